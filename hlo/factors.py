"""What happens to an operation when its tensors are cut: an einsum over factors, per operation.

    dot_general   ([i, k], [k, j])->([i, j]) {i=8, j=16, k=32} reduction={k}

Each dim of an operand or a result is a product of factors, major to minor (`[ij]`); most are one.
Cutting a factor cuts every dim that holds it; what that means says its kind. The notation is that
of Shardy's op_sharding_rule (openxla/shardy), with the kind of a reduction named besides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from .access import Access, IterationKind
from .errors import CompilerBug
from .sharding import MAX, MIN, SUM
from .types import I1, Element, QuantizedType, TensorType

if TYPE_CHECKING:
    from .graph import Op, Value


class FactorKind(Enum):
    """PASS: every device computes its part, without the others. REDUCTION: it gives a value that is
    unreduced over the axes that cut the factor. PERMUTATION: elements are needed of other devices'
    parts (a halo, a shift). REPLICATE: each device needs all of it.
    """

    PASS = "pass"
    REDUCTION = "reduction"
    PERMUTATION = "permutation"
    REPLICATE = "replicate"


class Factor(NamedTuple):
    """`size` elements; `blocked`: propagation does not carry axes along it; `reduction`: of
    REDUCTION, one of sum, max, min.

    `placed`: a part has to know its place. Data that names positions counts from the part's first
    element, and what it names outside of the part is left out (read as 0, not written); part of a
    window reads that far from the window's start; what is made of nothing is made for the part.

    What kernels say (`contracts.py`): `halo`, elements that a part reads before and behind it;
    `multiple`, what the size of a part has to be a multiple of; `least`, its least size.
    """

    size: int
    kind: FactorKind = FactorKind.PASS
    blocked: bool = False
    reduction: str = SUM
    placed: bool = False
    halo: tuple[int, int] = (0, 0)
    multiple: int = 1
    least: int = 1

    def fits(self, parts: int) -> bool:
        """Whether it may be cut into so many parts, by what a kernel says of their sizes. Parts of
        which it says something are equal."""
        if parts == 1 or (self.multiple, self.least, self.halo) == (1, 1, (0, 0)):
            return True
        size, rest = divmod(self.size, parts)
        return not rest and size % self.multiple == 0 and size >= max(self.least, *self.halo)


Dims = tuple[tuple[int, ...], ...]  # of one tensor: for each dim its factors, major to minor


@dataclass(frozen=True)
class Factors:
    """The rule of one operation: its factors by number, and which of them each dim holds.

    Operands and results that are no tensors, and dims of size 1 that nothing can cut, hold none.
    A PASS factor that only operands hold says that all parts give the same. Where an operation
    changes a dim's size (slice, pad), the factor has the operand's; along windows it has the number
    of windows, or of places in one, so that the sizes of a dim's factors need not make up the dim.

    `once`: operands that go into a reduction beside its elements (initial values). One part of a
    cut reduction takes them as they are; the others take the reduction's identity instead.
    """

    factors: tuple[Factor, ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    once: tuple[int, ...] = ()

    @property
    def tensors(self) -> tuple[Dims, ...]:
        """Operands, then results."""
        return self.operands + self.results

    def of_kind(self, kind: FactorKind) -> tuple[int, ...]:
        return tuple(n for n, factor in enumerate(self.factors) if factor.kind is kind)

    def __str__(self) -> str:
        sizes = ", ".join(f"{factor_name(n)}={f.size}" for n, f in enumerate(self.factors))
        text = f"({_tensors(self.operands)})->({_tensors(self.results)}) {{{sizes}}}"
        for kind, word in FACTOR_SETS.items():
            numbers = self.of_kind(kind)
            if numbers:
                text += f" {word}={{{', '.join(map(factor_name, numbers))}}}"
        blocked = [factor_name(n) for n, factor in enumerate(self.factors) if factor.blocked]
        if blocked:
            text += f" blocked_propagation={{{', '.join(blocked)}}}"
        return text


FACTOR_SETS = {
    FactorKind.REDUCTION: "reduction",
    FactorKind.REPLICATE: "need_replication",
    FactorKind.PERMUTATION: "permutation",
}
"""The word before the set of factors of a kind, in the notation."""


def factor_name(number: int) -> str:
    """i, j, ..., z, then z_1, z_2, ..."""
    return chr(ord("i") + number) if number < 18 else f"z_{number - 17}"


def _tensors(tensors: tuple[Dims, ...]) -> str:
    return ", ".join(
        "[" + ", ".join("".join(map(factor_name, dim)) for dim in dims) + "]" for dims in tensors
    )


class FactorBuilder:
    """Makes the factors of one operation, whose dims are static: `add` them, then `build`."""

    def __init__(self, o: Op) -> None:
        self._o = o
        self._factors: list[Factor] = []
        self._operands = [[[] for _ in _dims(value)] for value in o.operands]
        self._results = [[[] for _ in _dims(value)] for value in o.results]

    def add(
        self,
        factor: Factor,
        operands: Mapping[int, int] | None = None,
        results: Mapping[int, int] | None = None,
    ) -> None:
        """A factor, and for operands and results by number the dim that holds it.

        It becomes the minor-most one of these dims. One of size 1 is left out.
        """
        if factor.size == 1:
            return
        for tensors, places in ((self._operands, operands), (self._results, results)):
            for tensor, dim in (places or {}).items():
                tensors[tensor][dim].append(len(self._factors))
        self._factors.append(factor)

    def everywhere(self, dim: int, factor: Factor) -> None:
        """A factor of this dim of all operands and results but scalars."""
        operands, results = (
            {n: dim for n, dims in enumerate(tensors) if dims}
            for tensors in (self._operands, self._results)
        )
        self.add(factor, operands, results)

    def batch(self, rank: int) -> FactorBuilder:
        """Each of the first `rank` dims of everything but scalars passes."""
        dims = next(filter(None, map(_dims, self._o.operands)), ())
        for dim in range(rank):
            self.everywhere(dim, Factor(dims[dim]))
        return self

    def build(self, once: Sequence[int] = ()) -> Factors:
        """The rule. A dim to which nothing was added, and one along which a quantised type has
        scales, cannot be cut."""
        values = (*self._o.operands, *self._o.results)
        for value, dims in zip(values, self._operands + self._results, strict=True):
            for dim, (size, held) in enumerate(zip(_dims(value), dims, strict=True)):
                if not held and size != 1:
                    held.append(len(self._factors))
                    self._factors.append(Factor(size, FactorKind.REPLICATE, blocked=True))
                if _scaled_along(value, dim):
                    for number in held:
                        factor = self._factors[number]
                        self._factors[number] = Factor(factor.size, FactorKind.REPLICATE)
        operands, results = (
            tuple(tuple(map(tuple, dims)) for dims in tensors)
            for tensors in (self._operands, self._results)
        )
        return Factors(tuple(self._factors), operands, results, tuple(once))


def alike(numbers: Iterable[int], dim: int) -> dict[int, int]:
    """The same dim of each of these operands (or results)."""
    return dict.fromkeys(numbers, dim)


def _dims(value: Value) -> tuple[int, ...]:
    return value.type.dims if isinstance(value.type, TensorType) else ()


def _scaled_along(value: Value, dim: int) -> bool:
    element = value.type.element if isinstance(value.type, TensorType) else None
    return isinstance(element, QuantizedType) and element.axis == dim


def from_access(o: Op, access: Access) -> Factors:
    """What follows from the elements that a result needs, where no data decides which these are.

    Dims of the results pass where operands are read at the same index; at another formula (a
    shift, a stride, a window) elements of other parts are needed. What is folded is a reduction.
    """
    rule = FactorBuilder(o)
    everything = range(len(o.results))
    for number, iteration in enumerate(access.iterations):
        if iteration.kind is IterationKind.GATHER:
            raise CompilerBug(f"data decides what {o.name} reads: it has to say its own factors")
        held, as_it_is = _reading(o, access, number)
        if iteration.kind is IterationKind.PARALLEL:
            kind = FactorKind.PASS if as_it_is else FactorKind.PERMUTATION
            source = o.definition.pattern == "source"
            factor = Factor(iteration.extent, kind, placed=source)
            rule.add(factor, held, alike(everything, number))
        elif iteration.kind is IterationKind.REDUCE:
            folds = [(iteration.monoid, result.tensor.element) for result in o.results]
            rule.add(reducing(iteration.extent, *folds), held)
    return rule.build()


def _reading(o: Op, access: Access, number: int) -> tuple[dict[int, int], bool]:
    """The operands' dims that an iteration walks along, and whether all of them index by index."""
    held, as_it_is = {}, True
    for operand, indices in enumerate(access.operands):
        for dim, index in enumerate(indices):
            terms = tuple(t for t in index.terms if access.iterations[t.dim].extent != 1)
            if terms and terms[0].dim == number:
                held[operand] = dim
                same = index._replace(terms=terms).same is not None
                size = access.iterations[number].extent
                as_it_is &= same and o.operands[operand].dims[dim] == size
    return held, as_it_is


def reducing(size: int, *folds: tuple[str, Element]) -> Factor:
    """The factor of a dim that is folded: for each result the monoid, and what it folds.

    It cannot be cut where an unreduced value is no such fold of its parts: products, bits of
    integers, bodies of several operations, results that are folded in different ways.
    """
    kinds = {(_OF_FLAGS if element is I1 else _OF_NUMBERS).get(name) for name, element in folds}
    (reduction,) = kinds if len(kinds) == 1 else (None,)
    if reduction is None:
        return Factor(size, FactorKind.REPLICATE)
    return Factor(size, FactorKind.REDUCTION, reduction=reduction)


_OF_NUMBERS = {"add": SUM, "maximum": MAX, "minimum": MIN}
_OF_FLAGS = {
    "add": MAX, "or": MAX, "maximum": MAX, "multiply": MIN, "and": MIN, "minimum": MIN,
}  # fmt: skip


def resized(o: Op, kind: FactorKind, blocked: bool = False) -> Factors:
    """Factors of an operation that takes a part of its first operand: dims of which it takes less
    than all are of `kind`, the others pass."""
    rule = FactorBuilder(o)
    for dim, (size, result) in enumerate(zip(o.operands[0].dims, o.results[0].dims, strict=True)):
        factor = Factor(size) if size == result else Factor(size, kind, blocked)
        rule.add(factor, {0: dim}, {0: dim})
    return rule.build()


def reshaping(o: Op) -> Factors:
    """Factors of a reshape of the first operand: those that both sides have in common, major to
    minor, and where they part, each side's own until both have come to the same number again.

    A factor that one side alone has cannot be cut: its elements lie elsewhere on the other side.
    """
    rule = FactorBuilder(o)
    sides = [_ReshapeWalk(o.operands[0].dims), _ReshapeWalk(o.results[0].dims)]
    if 0 in (*o.operands[0].dims, *o.results[0].dims):
        return rule.build()
    left, right = sides
    while left.more() or right.more():
        common = math.gcd(left.rest, right.rest)
        if left.passed == right.passed and common > 1:
            rule.add(Factor(common), {0: left.dim}, {0: right.dim})
            left.take(common)
            right.take(common)
            continue
        apart = left.passed == right.passed
        for own, other in ((left, right), (right, left)):
            if apart or own.passed < other.passed:
                size = own.rest if apart else own.until(other, common)
                place = {0: own.dim}
                factor = Factor(size, FactorKind.REPLICATE)
                rule.add(factor, *((place, {}) if own is left else ({}, place)))
                own.take(size)
                if not apart:
                    break
    return rule.build()


class _ReshapeWalk:
    """A walk over the dims of one side of a reshape, major to minor, without those of size 1."""

    def __init__(self, dims: Sequence[int]) -> None:
        self._dims = [(dim, size) for dim, size in enumerate(dims) if size != 1]
        self._place = 0
        self.passed = 1  # product of all factors so far
        self.dim, self.rest = self._dims[0] if self._dims else (0, 1)

    def more(self) -> bool:
        return self._place < len(self._dims)

    def until(self, other: _ReshapeWalk, common: int) -> int:
        """How much to take so that the other is reached, or that `common` remains for later."""
        ahead, left = divmod(other.passed, self.passed)
        if left == 0 and self.rest % ahead == 0:
            return ahead
        return self.rest // common if self.rest > common else self.rest

    def take(self, size: int) -> None:
        self.passed *= size
        self.rest //= size
        if self.rest == 1:
            self._place += 1
            if self.more():
                self.dim, self.rest = self._dims[self._place]
