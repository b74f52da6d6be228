"""Which elements of its operands one element of an operation's result needs.

A room states it once, as an `Access`: the dims that the operation iterates over, the result's dims
first, and for each operand dim an index formula over them. `optimizer/tiles/access.py` computes
with boxes what these formulas say about elements.

    dot_general f32[M,K] x f32[K,N]:  iterations M, N parallel, K reduce(add)
    lhs = (d0, d2), rhs = (d2, d1)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from .assumptions import assumed
from .deciding import common_divisor, current, once, surely_at_most
from .errors import CompilerBug
from .symbols import Dim, SizeTooLong
from .types import TensorType

if TYPE_CHECKING:
    from .graph import Op


class IterationKind(Enum):
    """What happens along an iteration dim.

    PARALLEL dims are the result's; the others are inner ones: REDUCE and WINDOW are folded with a
    monoid, SCAN carries a value along, GATHER means that data, or all elements together, decide
    which elements count, so that each result element may need any of them.
    """

    PARALLEL = "parallel"
    REDUCE = "reduce"
    SCAN = "scan"
    WINDOW = "window"
    GATHER = "gather"


class Iteration(NamedTuple):
    """One dim of the iteration space, indices 0 <= i < extent."""

    extent: Any
    kind: IterationKind = IterationKind.PARALLEL
    monoid: str = ""  # the folding operation's name; empty where the body is not a known monoid


class IndexTerm(NamedTuple):
    """coefficient * (i[dim] // divisor)"""

    dim: int
    coefficient: Any = 1
    divisor: Any = 1


class ClampedStart(NamedTuple):
    """sign * the value of a scalar operand, clamped to 0 <= value <= high at run time."""

    operand: int
    high: Any
    sign: int = 1


class Index(NamedTuple):
    """(offset + start + sum of terms) // divisor % modulus: the index along one operand dim.

    Coefficients, divisors and moduli are sizes (`symbols.Dim`): numbers where dims are fixed. An
    index outside the operand is not read. `dilated`: the quotient is read only where the
    division leaves no rest. A modulus of 0 takes none.
    """

    terms: tuple[IndexTerm, ...] = ()
    offset: Any = 0
    start: ClampedStart | None = None
    divisor: Any = 1
    modulus: Any = 0
    dilated: bool = False

    @property
    def same(self) -> int | None:
        """The iteration dim that it equals; None where it is another formula."""
        if len(self.terms) != 1:
            return None
        term = self.terms[0]
        plain = term[1:] == _ONCE and self[1:] == _AS_IT_IS
        return term.dim if plain else None


_ONCE = IndexTerm(0)[1:]
_AS_IT_IS = Index()[1:]


@dataclass(frozen=True)
class Access:
    """`iterations`, the first ones being the dims of every result; an index per operand dim."""

    iterations: tuple[Iteration, ...]
    operands: tuple[tuple[Index, ...], ...]

    @property
    def rank(self) -> int:
        """How many of the iterations are the result's dims."""
        return sum(iteration.kind is IterationKind.PARALLEL for iteration in self.iterations)

    @property
    def inner(self) -> tuple[Iteration, ...]:
        """The iterations that are no dims of the result."""
        return self.iterations[self.rank :]

    def aligned(self, operand: int, dim: int) -> int | None:
        """The dim of the operand whose tile alone a tile of result dim `dim` needs, index by index.

        None where another dim's index depends on `dim` as well, or where the index is another
        formula: then a tile needs other elements than those with its own indices.
        """
        found = None
        for position, index in enumerate(self.operands[operand]):
            if index.same == dim:
                if found is not None:
                    return None
                found = position
            elif any(term.dim == dim for term in index.terms):
                return None
        return found

    def uses(self, operand: int, dim: int) -> bool:
        """Whether what is read of the operand depends on iteration dim `dim`."""
        return any(term.dim == dim for index in self.operands[operand] for term in index.terms)

    def gathers(self, operand: int) -> bool:
        """Whether data, or all elements together, decide which elements of the operand count."""
        return any(
            self.iterations[term.dim].kind is IterationKind.GATHER
            for index in self.operands[operand]
            for term in index.terms
        )


class Space:
    """Builds an Access: first the result's dims, then inner ones as they are asked for."""

    def __init__(self, dims: Sequence[Any]) -> None:
        self.iterations = [Iteration(dim) for dim in dims]

    def inner(self, extent: Any, kind: IterationKind, monoid: str = "") -> Index:
        """An index that runs over a new inner dim."""
        self.iterations.append(Iteration(extent, kind, monoid))
        return at(len(self.iterations) - 1)

    def whole(self, dims: Iterable[Any]) -> tuple[Index, ...]:
        """Indices that run over all of these dims."""
        return tuple(self.inner(dim, IterationKind.GATHER) for dim in dims)

    def access(self, *operands: Sequence[Index]) -> Access:
        return Access(tuple(self.iterations), tuple(map(tuple, operands)))


def at(dim: int, coefficient: int = 1, offset: int = 0) -> Index:
    """coefficient * i[dim] + offset"""
    return Index((IndexTerm(dim, coefficient),), offset)


def identity(rank: int) -> tuple[Index, ...]:
    """Result and operand have the same indices."""
    return tuple(map(at, range(rank)))


def elementwise(dims: Sequence[Any], ranks: Iterable[int]) -> Access:
    """Operands have the result's indices; a scalar among them is read whole."""
    return Space(dims).access(*(identity(len(dims)) if rank else () for rank in ranks))


def windowed(
    window: Index, dim: int, stride: int, dilation: int, low: int, base: int, reverse: int = 0
) -> Index:
    """(i[dim] * stride + w * dilation - low) / base, where w runs over a window's positions.

    `reverse`, if not 0, is the window's size: then w runs backwards. A window of one position may
    be none, `Index()`.
    """
    step = -dilation if reverse else dilation
    terms = (IndexTerm(dim, stride), *(inner._replace(coefficient=step) for inner in window.terms))
    offset = (reverse - 1) * dilation - low if reverse else -low
    return Index(terms, offset, divisor=base, dilated=base > 1)


def reshaped(source: Sequence[Any], target: Sequence[Any]) -> tuple[Index, ...]:
    """For each dim of `source`, its index in terms of the indices of `target` (same size).

    Dims are matched in the smallest groups of equal size, so that a dim that stays, or that is
    split or merged with its neighbours alone, is not mixed with the others. Sizes are equal where
    that is known (`assumptions.assuming`).
    """
    if 0 in source:  # nothing is read
        return (Index(),) * len(source)
    indices: list[Index] = []
    is_open = not all(isinstance(dim, int) for dim in (*source, *target))
    for sources, targets in (_open_groups if is_open else _groups)(source, target):
        strides = [math.prod(target[t] for t in targets[n + 1 :]) for n in range(len(targets))]
        terms = [
            (IndexTerm(t, stride), target[t])
            for t, stride in zip(targets, strides, strict=True)
            if target[t] != 1
        ]
        for number, s in enumerate(sources):
            divisor = math.prod(source[k] for k in sources[number + 1 :])
            if source[s] == 1:
                indices.append(Index())
            elif is_open:
                modulus = source[s] if number else 0
                indices.append(Index(tuple(t for t, _ in terms), divisor=divisor, modulus=modulus))
            else:
                indices.append(_digit(terms, divisor, source[s]))
    return tuple(indices)


def _digit(terms: Sequence[tuple[IndexTerm, Any]], divisor: Any, modulus: Any) -> Index:
    """sum of terms // divisor % modulus, the terms being a row-major number with their dims' sizes.

    Terms that these cancel are left out, so that what remains is simple wherever it can be.
    """
    period = divisor * modulus
    kept = [(term, size) for term, size in terms if term.coefficient % period != 0]
    for count in range(len(kept) + 1):
        # the terms behind the first `count` stay below a step of those before, and of the quotient
        common = _common([divisor, *(term.coefficient for term, _ in kept[:count])])
        if all(_at_most(t.coefficient * size, common) for t, size in kept[count : count + 1]):
            if all(_at_most(term.coefficient * size, period) for term, size in kept[:1]):
                modulus = 0
            high = (t._replace(coefficient=t.coefficient // common) for t, _ in kept[:count])
            return Index(tuple(high), divisor=divisor // common, modulus=modulus)
    raise AssertionError("with all terms there are none behind them")


def _common(numbers: Sequence[Any]) -> Any:
    """What divides all of them: the largest, of sizes that a call decides what is known."""
    if all(isinstance(number, int) for number in numbers):
        return math.gcd(*numbers)
    if all(number is numbers[0] for number in numbers):
        return numbers[0]
    return 1 if 1 in numbers or current() is None else common_divisor(*numbers)


def _at_most(left: Any, right: Any) -> bool:
    """Whether left <= right, as far as that is known."""
    if isinstance(left, int) and isinstance(right, int):
        return left <= right
    return left is right or current() is not None and surely_at_most(left, right)


def _groups(source: Sequence[Any], target: Sequence[Any]) -> Iterable[tuple[list[int], list[int]]]:
    """The smallest runs of dims of both sides with equal products, in order."""
    s = t = 0
    while s < len(source):
        sources, targets = [s], []
        left, right = source[s], 1
        s += 1
        while left != right:
            if left > right:
                right *= target[t]
                targets.append(t)
                t += 1
            else:
                left *= source[s]
                sources.append(s)
                s += 1
        yield sources, targets


def _open_groups(
    source: Sequence[Any], target: Sequence[Any]
) -> Iterable[tuple[list[int], list[int]]]:
    """The same where sizes are open: runs whose products are equal at all sizes; what has no such
    run is one group."""
    s = t = 0
    while s < len(source):
        ends = [(i, j) for i in range(s + 1, len(source) + 1) for j in range(t, len(target) + 1)]
        for i, j in sorted(ends, key=sum):
            if _equal_products(source[s:i], target[t:j]):
                break
        else:
            i, j = len(source), len(target)
        yield list(range(s, i)), list(range(t, j))
        s, t = i, j


def _equal_products(left: Sequence[Any], right: Sequence[Any]) -> bool:
    try:
        return assumed().facts.is_equal(math.prod(left), math.prod(right)) is True
    except SizeTooLong:
        return False


def access_of(op: Op) -> Access | None:
    """The access that the operation's room states; None where it is opaque, or where indices are
    divided by sizes that a call decides."""
    # What a room says depends on these alone; copies of an operation share all of them.
    types = tuple(value.type for value in (*op.results, *op.operands))
    if op.definition.pattern == "control":
        return _access_of(op)
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    key = op.definition.name, types, id(op.attributes), op.regions

    def made() -> tuple[Any, Access | None]:
        return op.attributes, _access_of(op)  # the attributes keep their id

    if any(not t.is_static for t in types if isinstance(t, TensorType)):
        return once(_KNOWN, key, made)[1]
    known = _KNOWN.get(key)
    if known is None:
        known = _KNOWN[key] = made()
    return known[1]


_KNOWN: dict[Any, tuple[Any, Access | None]] = {}
_MOST_KNOWN = 4096


def _access_of(op: Op) -> Access | None:
    values = (*op.results, *op.operands)
    if not all(isinstance(v.type, TensorType) for v in values):
        return None
    if current() is None and not all(v.type.is_static for v in values):  # type: ignore[union-attr]
        return None
    access = op.definition.access(op)
    if access is not None and not all(map(_is_plain, access.operands)):
        return None
    if access is not None and any(v.rank != access.rank for v in op.results):
        raise CompilerBug(f"{op.name}: its access has other dims than its results")
    return access


def _is_plain(indices: Sequence[Index]) -> bool:
    """Whether indices are divided by numbers, and have steps of one sign."""
    return all(
        isinstance(index.divisor, int)
        and isinstance(index.modulus, int)
        and all(isinstance(t.divisor, int) and _has_sign(t.coefficient) for t in index.terms)
        for index in indices
    )


def _has_sign(number: Dim) -> bool:
    return surely_at_most(0, number) or surely_at_most(number, 0)
