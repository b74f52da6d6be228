"""Boxes of elements, and how they travel through operations: what a tile needs, and where it lies.

A `Box` says for each dim of a tensor which indices are meant: offset, offset + stride, ... (`size`
of them) below `bound`, the dim's size. Indices outside 0 .. bound - 1 mean nothing: they are what a
halo reaches over the edge. Offsets and sizes are expressions over tile ids, tile sizes and run-time
values, so that one box describes all tiles of all sizes, see expressions.py.

A box never leaves out an element that is needed. It may hold others; then `exact` is False, which
costs redundant work and never correctness; `exact` speaks of a tile that no edge cuts. Sizes do not
depend on the tile id: every tile of a value fits one buffer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...hlo.access import Access, Index, Iteration, access_of
from ...hlo.deciding import surely_at_most
from ...hlo.errors import CompilerBug
from ...hlo.graph import Op, Value
from ...hlo.symbols import Dim, SymbolicDim
from ...hlo.types import TensorType
from .expressions import (
    ONE,
    ZERO,
    Atom,
    Expression,
    choose,
    common_divisor,
    expression,
    maximum,
    minimum,
    never_above,
    variable,
)


class Span(NamedTuple):
    """Indices offset + k * stride for 0 <= k < size, as far as they lie in 0 .. bound - 1."""

    offset: Expression
    size: Expression
    stride: int
    bound: Dim
    exact: bool = True

    @property
    def last(self) -> Expression:
        """The last index, which may lie outside."""
        return self.offset + (self.size - 1) * self.stride

    @property
    def extent(self) -> Expression:
        """How many indices at most a tile has: the size of a buffer's dim."""
        return minimum(self.size, -(-self.bound // self.stride))

    @property
    def count(self) -> Expression:
        """How many of this tile's indices lie inside; a function of the tile id."""
        first = maximum(-(self.offset // self.stride), ZERO)
        if never_above(ZERO, self.offset):
            first = ZERO
        end = minimum(self.size, (expression(self.bound - 1) - self.offset) // self.stride + 1)
        return maximum(end - first, ZERO)

    def __repr__(self) -> str:
        stride = f":{self.stride}" if self.stride != 1 else ""
        return f"[{self.offset} +{self.size}{stride} <{self.bound}]{'' if self.exact else '~'}"


class Box(NamedTuple):
    """One span per dim."""

    spans: tuple[Span, ...]

    @property
    def exact(self) -> bool:
        """Whether it holds nothing but what is needed."""
        return all(span.exact for span in self.spans)

    @property
    def sizes(self) -> tuple[Expression, ...]:
        """The dims of a buffer that holds any tile of it."""
        return tuple(span.extent for span in self.spans)

    def __repr__(self) -> str:
        return "".join(map(repr, self.spans)) or "[]"


def whole_span(bound: Dim) -> Span:
    """All indices of a dim."""
    if isinstance(bound, SymbolicDim):  # what is known of it is the program's
        return Span(ZERO, expression(bound), 1, bound)
    return _whole_span(bound)


@functools.lru_cache(4096)
def _whole_span(bound: int) -> Span:
    return Span(ZERO, expression(bound), 1, bound)


def whole(dims: Sequence[Dim]) -> Box:
    """All elements of a tensor."""
    return Box(tuple(map(whole_span, dims)))


def box(ranges: Iterable[tuple[int, int]], dims: Sequence[int]) -> Box:
    """The box of (offset, size) per dim in numbers."""
    spans = zip(ranges, dims, strict=True)
    return Box(tuple(Span(expression(o), expression(n), 1, dim) for (o, n), dim in spans))


def tile_id(number: int, bound: int) -> Expression:
    """t<number>: which tile along a dim of `bound` elements."""
    return variable(f"t{number}", 0, max(bound - 1, 0))


def tile_size(number: int, bound: int) -> Expression:
    """s<number>: how many elements a tile has along that dim."""
    return variable(f"s{number}", 1, max(bound, 1))


def tile_span(number: int, bound: int, size: int | None = None) -> Span:
    """Tile t<number> along a dim, of s<number> elements or of a size in numbers.

    With a number the tile id is bounded as well, so that what divides a dim is provably inside it.
    """
    if size is None:
        extent = tile_size(number, bound)
        return Span(tile_id(number, bound) * extent, extent, 1, bound)
    last = max(-(-bound // size) - 1, 0)
    return Span(variable(f"t{number}", 0, last) * size, expression(size), 1, bound)


def tiles(
    dims: Sequence[int],
    first: int = 0,
    tiled: Iterable[int] | None = None,
    sizes: Mapping[int, int] | None = None,
) -> Box:
    """The box of one tile: dim d is cut as number first + d, dims not `tiled` are whole.

    `sizes` gives a dim's tile size in numbers; without, it is the variable s<first + d>.
    """
    cut = set(range(len(dims)) if tiled is None else tiled)
    known = sizes or {}
    return Box(
        tuple(
            tile_span(first + d, dim, known.get(d)) if d in cut else whole_span(dim)
            for d, dim in enumerate(dims)
        )
    )


def same_for_all_tiles(value: Expression) -> bool:
    """Whether it depends on sizes alone, those of tiles (s<n>) and those that a call decides (n:);
    all other variables differ between tiles."""
    return all(atom.key.startswith(("s", "n:")) for atom in value.variables)


# Sets of indices.


def contains_span(outer: Span, inner: Span) -> bool:
    """Whether all of inner's indices that lie inside are provably in outer."""
    if outer[:4] == inner[:4]:
        return True
    if outer.stride != 1:
        shift = (outer.offset - inner.offset).constant
        if outer.stride != inner.stride or shift is None or shift % outer.stride:
            return False
    edge = inner.bound - 1
    below = never_above(outer.offset, inner.offset) or never_above(outer.offset, ZERO)
    above = never_above(inner.last, outer.last) or never_above(edge - outer.stride + 1, outer.last)
    return below and above


def union_span(a: Span, b: Span) -> Span:
    """The smallest span that holds both, as far as that can be said for all sizes."""
    if a[:4] == b[:4]:
        return a._replace(exact=a.exact or b.exact)
    if contains_span(a, b):
        return a
    if contains_span(b, a):
        return b
    shift = (b.offset - a.offset).constant
    stride = math.gcd(a.stride, b.stride, shift) if shift is not None else 1
    first, last = minimum(a.offset, b.offset), maximum(a.last, b.last)
    filled = a.stride == b.stride == stride and (
        never_above(a.offset, b.last + stride) and never_above(b.offset, a.last + stride)
    )
    size = (last - first) // stride + 1
    if not same_for_all_tiles(size):  # they move apart: no buffer but the whole dim holds both
        return whole_span(a.bound)._replace(exact=False)
    return Span(first, size, stride, a.bound, a.exact and b.exact and filled)


def union(a: Box, b: Box) -> Box:
    """The smallest box that holds both; not `exact` where it also holds others."""
    spans = tuple(map(union_span, a.spans, b.spans))
    differing = [
        d
        for d, (x, y) in enumerate(zip(a.spans, b.spans, strict=True))
        if not (contains_span(x, y) and contains_span(y, x))
    ]
    if len(differing) > 1 and not (is_contained(a, b) or is_contained(b, a)):
        # two boxes that differ along several dims leave corners that neither has
        d = differing[0]
        spans = (*spans[:d], spans[d]._replace(exact=False), *spans[d + 1 :])
    return Box(spans)


def is_contained(inner: Box, outer: Box) -> bool:
    """Whether outer provably holds all of inner, for all tiles and sizes."""
    return all(map(contains_span, outer.spans, inner.spans))


def count(of: Box) -> Expression:
    """How many elements of the tensor this tile has."""
    return _product(span.count for span in of.spans)


def volume(of: Box) -> Expression:
    """How many elements a buffer for any tile has."""
    return _product(of.sizes)


def _product(values: Iterable[Expression]) -> Expression:
    result = ONE
    for value in values:
        result = result * value
    return result


# How boxes travel.

Runtime = Callable[[int, Any], Expression]  # (operand, largest value) -> its run-time value


def image(index: Index, spans: Sequence[Span], bound: Dim, runtime: Runtime) -> Span:
    """The indices that an operand dim of size `bound` is read at, for these spans of iterations."""
    if bound == 0:
        return Span(ZERO, ZERO, 1, 0)
    same = index.same
    if same is not None and spans[same].bound == bound:
        return spans[same]
    span = _sum(index, spans, bound)
    if index.start is not None:
        start = index.start.sign * runtime(index.start.operand, index.start.high)
        span = span._replace(offset=span.offset + start)
    if index.divisor > 1:
        span = _spread(span, index.divisor) if index.dilated else _quotient(span, index.divisor)
    if index.modulus:
        span = _remainder(span, index.modulus)
    all_of_it = whole_span(bound)
    return all_of_it._replace(exact=span.exact) if contains_span(span, all_of_it) else span


def _sum(index: Index, spans: Sequence[Span], bound: Dim) -> Span:
    """offset + sum of coefficient * span: the hull, dense where the steps fill each other up."""
    offset, exact = expression(index.offset), True
    parts: list[tuple[Dim, Expression]] = []  # step, size
    for dim, coefficient, divisor in index.terms:
        part = spans[dim] if divisor == 1 else _quotient(spans[dim], divisor)
        positive = surely_at_most(0, coefficient)
        offset = offset + (part.offset if positive else part.last) * coefficient
        exact = exact and part.exact
        if part.size is not ONE:
            parts.append(((coefficient if positive else -coefficient) * part.stride, part.size))
    if not parts:
        return Span(offset, ONE, 1, bound, exact)
    if any(isinstance(step, SymbolicDim) for step, _ in parts):
        reach = _added((size - 1) * step for step, size in parts) + 1
        return Span(offset, reach, 1, bound, False)
    return _filled(parts, offset, bound, exact)


def _added(values: Iterable[Expression]) -> Expression:
    total = ZERO
    for value in values:
        total = total + value
    return total


def _filled(
    parts: list[tuple[Any, Expression]], offset: Expression, bound: Dim, exact: bool
) -> Span:
    """The hull from an offset of steps in numbers."""
    parts.sort(key=lambda part: part[0])
    stride, reach = parts[0]
    for step, size in parts[1:]:
        wider = math.gcd(stride, step)
        reach = (reach - 1) * (stride // wider) + 1 if wider != stride else reach
        # without gaps only where a step lands at most one behind what is reached already
        exact = exact and wider == stride and never_above(step // stride, reach)
        stride = wider
        reach = reach + (size - 1) * (step // stride)
    return Span(offset, reach, stride, bound, exact)


def _alignment(offset: Expression, divisor: int) -> Expression:
    """A number that divides `divisor` and `offset` for all tile ids and run-time values."""
    common: Expression = expression(divisor)
    for monomial, coefficient in offset.terms:
        known = expression(abs(coefficient))
        for atom in monomial:
            known = known * _factor(atom, divisor)
        common = common_divisor(common, known)
    return common


def _factor(atom: Atom, divisor: int) -> Expression:
    """A number that divides the atom for all tile ids, as far as that helps `divisor`."""
    alone = Expression({(atom,): 1})
    if same_for_all_tiles(alone):
        return alone
    if atom.function not in ("//", "%"):
        return ONE
    by = atom.arguments[1].constant or 1
    if atom.function == "%":
        return _alignment(atom.arguments[0], math.gcd(by, divisor))
    common = _alignment(atom.arguments[0], by * divisor)
    return choose(by, common_divisor(common, by), maximum(common // by, ONE), ONE)


def _quotient(span: Span, divisor: int) -> Span:
    """span // divisor, elementwise. The size is the largest over all tiles."""
    offset = span.offset // divisor
    if span.stride % divisor == 0:
        return span._replace(offset=offset, stride=span.stride // divisor)
    late = divisor - _alignment(span.offset, divisor)  # the largest rest of the offset
    size = (late + (span.size - 1) * span.stride) // divisor + 1
    exact = span.exact and (size is ONE or (span.stride <= divisor and late.constant == 0))
    return span._replace(offset=offset, size=size, stride=1, exact=exact)


def _spread(span: Span, divisor: int) -> Span:
    """span / divisor for its multiples of `divisor`."""
    first = -(-span.offset // divisor)
    size = (span.size - 1) * span.stride // divisor + 1
    if span.stride % divisor == 0:  # all of them are multiples, or none
        exact = span.exact and (span.offset % divisor).constant == 0
        return span._replace(offset=first, stride=span.stride // divisor, exact=exact)
    exact = span.exact and span.stride == 1
    return span._replace(offset=first, size=size, stride=1, exact=exact)


def _remainder(span: Span, modulus: int) -> Span:
    """span % modulus: itself within one period, else all of it."""
    aligned = _alignment(span.offset, modulus)
    reach = (span.size - 1) * span.stride + 1
    if never_above(reach, aligned):
        return span._replace(offset=span.offset % modulus)
    # which of the two it is depends on the sizes; both are boxes of unit stride
    fits = choose(reach, aligned, ONE, ZERO)
    offset = fits * (span.offset % modulus)
    size = choose(reach, aligned, reach, modulus)
    exact = span.exact and span.stride == 1
    return Span(offset, size, 1, span.bound, exact)


def compose(
    access: Access,
    operand: int,
    result: Box,
    dims: Sequence[int],
    inner: Sequence[Span] = (),
    runtime: Runtime | None = None,
) -> Box:
    """The box of an operand of dimensions `dims` that this box of the result needs.

    `inner` are the spans of the access's inner iterations, all of them whole by default. `runtime`
    names the run-time values, by default r<operand>.
    """
    spans = (*result.spans, *(inner or inner_spans(access)))
    named = runtime or (lambda number, high: variable(f"r{number}", 0, high))
    indices = access.operands[operand]
    return Box(
        tuple(image(index, spans, dim, named) for index, dim in zip(indices, dims, strict=True))
    )


def inner_spans(access: Access) -> tuple[Span, ...]:
    """All inner iterations, whole."""
    return tuple(whole_span(iteration.extent) for iteration in access.inner)


# Groups of operations.


@dataclass(frozen=True, eq=False)
class TilePropagation:
    """What every operation of a group computes for one tile.

    `boxes` holds the box of each value that is computed or read; `inner` the inner iterations of an
    operation; `runtime` the scalar that a run-time variable stands for; `opaque` are operations
    whose access is not known: they are computed and read whole.
    """

    boxes: Mapping[Value, Box]
    inner: Mapping[Op, tuple[Span, ...]]
    accesses: Mapping[Op, Access]
    runtime: Mapping[str, Value] = field(default_factory=dict)
    opaque: tuple[Op, ...] = ()

    def iterations(self, op: Op) -> tuple[tuple[Iteration, Span], ...]:
        """The iterations of one operation with the indices that this tile runs over."""
        spans = (*self.boxes[op.results[0]].spans, *self.inner[op])
        return tuple(zip(self.accesses[op].iterations, spans, strict=True))

    @property
    def exact(self) -> bool:
        """Whether nothing is computed or read that the tile does not need."""
        return all(part.exact for part in self.boxes.values())


def propagate(
    ops: Sequence[Op],
    roots: Mapping[Value, Box],
    inner: Mapping[Op, Sequence[Span]] | None = None,
) -> TilePropagation:
    """The boxes of all values that the root boxes need, walking `ops` backwards.

    `ops` stand in an order in which values are defined before they are used. A value with several
    consumers gets the hull of what they need. `inner` cuts inner iterations of an operation into
    tiles (the depth of a contraction); those not named are whole. Values from outside of `ops` get
    the box that is read of them. CompilerBug if a root is not computed by `ops`.
    """
    needed = dict(roots)
    chosen: dict[Op, tuple[Span, ...]] = {}
    accesses: dict[Op, Access] = {}
    runtime: dict[str, Value] = {}
    opaque: list[Op] = []
    for position in range(len(ops) - 1, -1, -1):
        op = ops[position]
        wanted = [needed[v] for v in op.results if v in needed]
        if not wanted:
            continue
        _whole([value for region in op.regions for value in region.captures()], needed)
        access = access_of(op)
        if access is None:
            opaque.append(op)
            _whole((*op.results, *op.operands), needed)
            continue
        # results of one operation are computed together, all over the same box
        result = wanted[0]
        for other in wanted[1:]:
            result = union(result, other)
        needed.update(dict.fromkeys(op.results, result))
        accesses[op] = access
        chosen[op] = tuple((inner or {}).get(op) or inner_spans(access))

        def named(number: int, high: Any, op: Op = op, position: int = position) -> Expression:
            name = f"r{position}.{number}"
            runtime[name] = op.operands[number]
            return variable(name, 0, high)

        for number, value in enumerate(op.operands):
            read = compose(access, number, result, value.dims, chosen[op], named)
            needed[value] = union(needed[value], read) if value in needed else read
    computed = {result for op in ops for result in op.results}
    if not computed.issuperset(roots):
        raise CompilerBug("a root is not computed by the operations")
    return TilePropagation(needed, chosen, accesses, runtime, tuple(reversed(opaque)))


def _whole(values: Iterable[Value], needed: dict[Value, Box]) -> None:
    """All elements of these values are needed."""
    for value in values:
        if isinstance(value.type, TensorType):
            needed[value] = whole(value.dims)
