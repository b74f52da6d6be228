"""einsum and unary_einsum: sums of products by the letters of their dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..factors import Factor, FactorBuilder, FactorKind, Factors
from ..graph import Op
from ..room import Case, attribute, constraint, operand
from ..room import operand as second
from ..types import Type
from .decomposed import Decomposed
from .examples import counting


def _letters(o: Op) -> tuple[list[str], str]:
    """The letters of each operand's dimensions, and of the result's."""
    inputs, _, result = o.einsum_config.replace(" ", "").partition("->")
    return inputs.split(","), result


def _fits(o: Op) -> bool:
    inputs, result = _letters(o)
    sizes: dict[str, Any] = {}
    if len(inputs) != len(o.operands) or "->" not in o.einsum_config:
        return False
    for letters, value in zip(inputs, o.operands, strict=True):
        if len(letters) != value.rank or len(set(letters)) != len(letters):
            return False
        for letter, size in zip(letters, value.dims, strict=True):
            if not letter.isalpha() or sizes.setdefault(letter, size) != size:
                return False
    return len(set(result)) == len(result) and set(result) <= set(sizes)


_CLAUSE = (
    "einsum_config is `ab,bc->ac`: a letter for each dimension, none twice in one operand, all of "
    "the result's among the operands', and of one size"
)


def _summed(b: Any, value: Any, letters: str, kept: set[str]) -> tuple[Any, str]:
    """The value summed over dimensions whose letters are not kept."""
    over = [d for d, letter in enumerate(letters) if letter not in kept]
    if over:
        value = b.reduce("add", value, b.constant(0, value.tensor.with_dims(())), over)
    return value, "".join(letter for letter in letters if letter in kept)


def _ordered(b: Any, value: Any, letters: str, result: str) -> Any:
    return b.transpose(value, [letters.index(letter) for letter in result])


def _letter_factors(o: Op) -> Factors:
    """A factor for each letter: it passes into the result, or is summed."""
    operands, result = _letters(o)
    sizes: dict[str, int] = {}
    for letters, value in zip(operands, o.operands, strict=True):
        sizes.update(zip(letters, value.dims, strict=True))
    rule = FactorBuilder(o)
    for letter in [*result, *(name for name in sizes if name not in result)]:
        held = {n: letters.index(letter) for n, letters in enumerate(operands) if letter in letters}
        if letter in result:
            rule.add(Factor(sizes[letter]), held, {0: result.index(letter)})
        else:
            rule.add(Factor(sizes[letter], FactorKind.REDUCTION), held)
    return rule.build()


class Einsum(Decomposed, name="einsum"):
    """result = the sum of lhs * rhs over the dimensions whose letters the result lacks."""

    pattern = "opaque"
    opaque = "it is decomposed before anybody asks"
    since = "1.2"
    lhs = operand()
    rhs = second()
    einsum_config = attribute(str)
    C1 = constraint(_CLAUSE, _fits)
    C2 = constraint("operands have one element type", lambda o: o.lhs.element is o.rhs.element)

    def infer(self, o: Op) -> Sequence[Type]:
        (left, right), result = _letters(o)
        sizes = dict(zip(left + right, o.lhs.dims + o.rhs.dims, strict=True))
        return [o.lhs.tensor.with_dims([sizes[letter] for letter in result])]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        (left, right), result = _letters(o)
        lhs, left = _summed(b, values[0], left, {*right, *result})
        rhs, right = _summed(b, values[1], right, {*left, *result})
        common = [letter for letter in left if letter in right]
        batch = [letter for letter in common if letter in result]
        inner = [letter for letter in common if letter not in result]
        product = b(
            "dot_general", lhs, rhs,
            lhs_batching_dimensions=tuple(map(left.index, batch)),
            rhs_batching_dimensions=tuple(map(right.index, batch)),
            lhs_contracting_dimensions=tuple(map(left.index, inner)),
            rhs_contracting_dimensions=tuple(map(right.index, inner)),
        )  # fmt: skip
        free = [letter for letter in left + right if letter not in common]
        return [_ordered(b, product, "".join(batch + free), result)]

    def shard(self, o: Op) -> Factors | None:
        return _letter_factors(o)

    def cases(self) -> Iterator[Case]:
        x, y = counting(2, 3, 4), counting(2, 4, 5)
        yield Case("einsum_batched", (x, y), {"einsum_config": "abc,acd->dab"})
        yield Case("einsum_outer", (x[0], y[0]), {"einsum_config": "ab,cd->ad"})


class UnaryEinsum(Decomposed, name="unary_einsum"):
    """result = operand summed over the dimensions whose letters the result lacks, in its order."""

    pattern = "opaque"
    opaque = "it is decomposed before anybody asks"
    since = "1.2"
    operand = operand()
    einsum_config = attribute(str)
    C1 = constraint(_CLAUSE, _fits)

    def infer(self, o: Op) -> Sequence[Type]:
        (letters,), result = _letters(o)
        sizes = dict(zip(letters, o.operand.dims, strict=True))
        return [o.operand.tensor.with_dims([sizes[letter] for letter in result])]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        (letters,), result = _letters(o)
        value, letters = _summed(b, values[0], letters, set(result))
        return [_ordered(b, value, letters, result)]

    def shard(self, o: Op) -> Factors | None:
        return _letter_factors(o)

    def cases(self) -> Iterator[Case]:
        yield Case("unary_einsum", (counting(2, 3, 4),), {"einsum_config": "abc->ca"})


ROOMS = (Einsum(), UnaryEinsum())
