"""A group of operations as a tile function: grid, loads, operations on tiles, stores.

`build_kernel(group, sizes, stream, step)` writes the `kernel_call` that computes the group's roots
in tiles of the given sizes; with a stream, the operations along k stand in a loop over tiles of k
that carries the reductions so far (optimizer/tiles/streaming.py says what is carried and why).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ...hlo.access import access_of
from ...hlo.build import Builder, make_op
from ...hlo.deciding import at_hint, once, surely_at_most
from ...hlo.graph import Op, Origin, Region, Value, union_origins
from ...hlo.ops.tile_examples import INDEX
from ...hlo.regions import extract
from ...hlo.symbols import Dim, SymbolicDim
from ...hlo.text import canonical_op
from ...hlo.types import F32, TensorType
from .access import Box, Span, TilePropagation, compose, inner_spans, propagate
from .expressions import expression, variable
from .streaming import (
    Factor,
    StreamedGroup,
    StreamStage,
    away_from_square,
    folding_of,
    streams,
)
from .write import TileWriter, numbers


@dataclass(frozen=True, eq=False)
class TileGroup:
    """Operations in order, the values they take from outside, and those that leave."""

    ops: tuple[Op, ...]
    inputs: tuple[Value, ...]
    roots: tuple[Value, ...]
    known: dict[Any, Any] = field(default_factory=dict, repr=False)  # what was found of it, `once`

    @cached_property
    def text(self) -> str:
        """What groups share that compute the same on the same types."""
        region = extract(self.ops, self.inputs, self.roots)
        kind = {"kind": "group"}
        return canonical_op(make_op("fusion", self.inputs, kind, (region,), check=False))

    def streams(self) -> list[StreamedGroup]:
        """All ways to walk it, the longest dim first."""
        found = once(self.known, "streams", lambda: streams(self.ops, self.roots))
        return sorted(found, key=lambda stream: -at_hint(stream.extent))

    @property
    def origin(self) -> tuple[Origin, ...]:
        main = sorted(self.ops, key=lambda op: op.definition.pattern not in ("contract", "reduce"))
        return union_origins(*(op.origin for op in main))


def make_group(ops: Sequence[Op], inputs: Sequence[Value], roots: Sequence[Value]) -> TileGroup:
    """A group of copies of the operations in which what depends on no input is computed anew for
    each of its uses: it costs nothing, and one value would tie dims together that are not one."""
    users: dict[Value, int] = {}
    for op in ops:
        for value in op.operands:
            users[value] = users.get(value, 0) + 1
    sources: dict[Value, Op] = {}
    mapping: dict[Value, Value] = {}
    copies: list[Op] = []

    def use(value: Value) -> Value:
        op = sources.get(value)
        if op is None or users[value] == 1:
            return mapping.get(value, value)
        copy = op.with_operands([use(v) for v in op.operands])
        if copy is op or copy in copies:
            copy = Op(
                op.definition, copy.operands, op.attributes, op.regions, op.result_types, op.origin
            )
        copies.append(copy)
        return copy.result

    for op in ops:
        if len(op.results) == 1 and all(value in sources for value in op.operands):
            sources[op.result] = op
            if users.get(op.result, 0) != 1 and op.result not in roots:
                continue
        new = op.with_operands([use(value) for value in op.operands])
        if new is not op:
            mapping.update(zip(op.results, new.results, strict=True))
        copies.append(new)
    return TileGroup(tuple(copies), tuple(inputs), tuple(mapping.get(root, root) for root in roots))


def tile_count(dim: Dim, size: int) -> Dim:
    """How many tiles there are along a dim; what a call decides has at least one."""
    count = -(-dim // size)
    return 1 if isinstance(count, SymbolicDim) and surely_at_most(count, 1) else count


def tile_counts(dims: Sequence[Dim], sizes: Sequence[int]) -> tuple[Dim, ...]:
    """How many tiles there are along each dim."""
    return tuple(map(tile_count, dims, sizes))


def grid_axes(counts: Sequence[Dim]) -> list[int]:
    """The dims along which there may be several tiles."""
    return [d for d, count in enumerate(counts) if not isinstance(count, int) or count > 1]


def root_box(dims: Sequence[Dim], sizes: Sequence[int]) -> Box:
    """The box of tile (t0, t1, ...) of those sizes; dims of one tile have no variable."""
    spans = []
    for d, (dim, size, count) in enumerate(zip(dims, sizes, tile_counts(dims, sizes), strict=True)):
        offset = variable(f"t{d}", 0, count - 1) * size
        spans.append(Span(offset, expression(size), 1, dim))
    return Box(tuple(spans))


def walked_spans(group: TileGroup, stream: StreamedGroup, step: int) -> dict[Op, tuple[Span, ...]]:
    """The inner iterations of the folds, with k cut into tiles of `step`."""
    count = tile_count(stream.extent, step)
    along = Span(variable("k", 0, count - 1) * step, expression(step), 1, stream.extent)
    return {
        op: tuple(
            along if number == stream.inner[op] else span
            for number, span in enumerate(inner_spans(access))
        )
        for op in group.ops
        if op in stream.inner
        for access in [access_of(op)]
        if access is not None
    }


def group_boxes(
    group: TileGroup, sizes: Sequence[int], stream: StreamedGroup | None = None, step: int = 0
) -> TilePropagation:
    """What each value of the group is in one tile; roots have equal leading dims."""
    roots = {root: root_box(root.dims, sizes) for root in group.roots}
    inner = walked_spans(group, stream, step) if stream else None
    return propagate(group.ops, roots, inner)


def build_kernel(
    group: TileGroup,
    operands: Sequence[Value],
    sizes: Sequence[int],
    name: str,
    stream: StreamedGroup | None = None,
    step: int = 0,
) -> Op:
    """The kernel_call on `operands`, which stand for the group's inputs. All roots have the same
    dims, cut into tiles of `sizes`; `step` is the size of a tile of the stream's dim. Unwritable
    where a tile does not hold what another one, or a root's store, needs of it."""
    parts = group_boxes(group, sizes, stream, step)
    dims = group.roots[0].dims
    counts = tile_counts(dims, sizes)
    b = Builder(group.origin, check=False)
    memory = b.arguments([v.type for v in (*group.inputs, *group.roots)])
    axes = grid_axes(counts)
    ids = {f"t{d}": b("tile_id", axis=axis) for axis, d in enumerate(axes)}
    writer = TileWriter(b, dict(zip(group.inputs, memory, strict=False)), ids)
    if stream is None:
        writer.write(group.ops, parts)
    else:
        _StreamWriter(group, stream, parts, step).write(writer)
    # A root that others of the group read may be computed in larger tiles than it is stored in:
    # tiles that overlap would be stored twice.
    own = root_box(dims, sizes)
    for root, target in zip(group.roots, memory[len(group.inputs) :], strict=True):
        offsets = [writer.scalar(span.offset) for span in own.spans]
        made = root.op.origin if root.op is not None else ()
        b.origin = made or group.origin
        b.op("tile_store", [target, writer.read(root, own), *offsets])
    attributes = {"kernel": name, "grid": tuple(counts[d] for d in axes)}
    types = [root.type for root in group.roots]
    return make_op("kernel_call", operands, attributes, (b.region([]),), types, group.origin)


class _StreamWriter:
    """Writes a group that is walked along k."""

    def __init__(
        self, group: TileGroup, stream: StreamedGroup, parts: TilePropagation, step: int
    ) -> None:
        self.group, self.stream, self.parts, self.step = group, stream, parts, step
        self.folds = [op for op in group.ops if self.stage(op) is StreamStage.FOLD]

    def stage(self, op: Op) -> StreamStage:
        return self.stream.stages[op.results[0]]

    def write(self, outer: TileWriter) -> None:
        parts, b = self.parts, outer.b
        outer.write([op for op in self.group.ops if self.stage(op) is StreamStage.BEFORE], parts)
        starts = [start for op in self.folds for start in self.starts(op, outer)]
        count = tile_count(self.stream.extent, self.step)
        body = self.body(outer, [start.type for start in starts])
        bounds = [b.constant(0, INDEX), outer.scalar(expression(count))]
        loop = b.op("tile_for", [*bounds, *starts], {}, (body,))
        done = iter(loop.results)
        sums = {result: next(done) for op in self.folds for result in self.carried(op)}
        for op in self.group.ops:
            stage = self.stage(op)
            if stage is StreamStage.FOLD:
                with outer.of(op):
                    for result in op.results:
                        box = parts.boxes[result]
                        tile = self.multiplied(outer, sums[result], result)
                        outer.define(result, outer.b.convert(tile, result.element), box)
            elif stage in (StreamStage.RUNNING, StreamStage.AFTER):
                outer.write([op], parts)

    def carried(self, op: Op) -> list[Value]:
        """What a fold carries: its results, and for squares the operand that is summed besides."""
        return [*op.results, *([op.operands[0]] if self.square(op) else [])]

    def square(self, op: Op) -> Factor | None:
        form = self.stream.forms.get(op.results[0])
        return form.square if form is not None and op in self.stream.inner else None

    def wide(self, op: Op) -> bool:
        """Whether a fold carries f32 for its narrower floats: many small roundings would add up."""
        narrow = op.results[0].element.is_float and op.results[0].element.bits < 32
        return narrow and folding_of(op) == "add" and not self.square(op)

    def starts(self, op: Op, w: TileWriter) -> list[Value]:
        """What a fold starts from."""
        dims = numbers(self.parts.boxes[op.results[0]])
        if self.square(op):
            return [w.b.constant(0, op.type.with_dims(dims))] * 2
        if op.name != "reduce":
            kind = op.type.with_element(F32) if self.wide(op) else op.type
            return [w.b.constant(0, kind.with_dims(dims))]
        initials = [w.read(v, Box(())) for v in op.operands[len(op.operands) // 2 :]]
        if self.wide(op):
            initials = [w.b.convert(value, F32) for value in initials]
        return [w.b.broadcast(value, dims, ()) for value in initials]

    def widened(self, w: TileWriter, tile: Value) -> Value:
        """A tile's part of a fold as f32; of a product, the sum before it is rounded."""
        op = tile.op
        if op is None or op.name != "dot_general" or w.b.ops[-1] is not op:
            return w.b.convert(tile, F32)
        w.b.ops.pop()
        return w.b("dot_general", *op.operands, type=op.type.with_element(F32), **op.attributes)

    def body(self, outer: TileWriter, carried: Sequence[Any]) -> Region:
        b = Builder(outer.b.origin, check=False)
        index, *old = b.arguments([INDEX, *carried])
        self.index = index
        w = outer.nested(b, {"k": index})
        before = outer.nested(b, {"k": index})  # running values of the tiles before this one
        values = iter(old)
        previous = {result: next(values) for op in self.folds for result in self.carried(op)}
        new: dict[Value, Value] = {}
        for op in self.group.ops:
            stage = self.stage(op)
            with w.of(op):
                if stage is StreamStage.ALONG:
                    self.along(op, w)
                elif stage is StreamStage.RUNNING:
                    w.write([op], self.parts)
                    before.write([op], self.parts)
                elif stage is StreamStage.FOLD:
                    self.fold(op, w, before, previous, new)
        return b.region([new[result] for op in self.folds for result in self.carried(op)])

    def along(self, op: Op, w: TileWriter) -> None:
        """One operation for this tile of k. What is multiplied after the sum is left out here."""
        form = self.stream.forms.get(op.results[0])
        if form is None or form.offset is not None or op.name == "constant":
            w.write([op], self.parts)
            return
        if form.uniform is not None:
            if form.uniform.value in w.tiles and self.used_inside(op.results[0]):
                w.write([op], self.parts)
            return
        operand_forms = [self.stream.forms.get(value) for value in op.operands]
        factors = [
            number
            for number, known in enumerate(operand_forms)
            if known is not None and known.uniform is not None
        ]
        if _scales(op) and factors:
            kept = op.operands[1 - factors[0]]
            box = self.parts.boxes[op.results[0]]
            w.define(op.results[0], w.read(kept, box), box)
        elif op.name in ("add", "subtract") and factors:
            self.shifted(op, w, factors[0])
        else:
            w.write([op], self.parts)

    def used_inside(self, value: Value) -> bool:
        """Whether a spread value is added somewhere, rather than multiplied after the sum."""
        return any(
            not _scales(op)
            for op in self.group.ops
            if value in op.operands and self.stage(op) is StreamStage.ALONG
        )

    def shifted(self, op: Op, w: TileWriter, number: int) -> None:
        """x - u, with 0 for a u that is still minus infinity: nothing has been seen then, and
        exp(-inf - -inf) would be no number where the whole dim gives one."""
        box = self.parts.boxes[op.results[0]]
        operands = [w.read(value, box) for value in op.operands]
        u = operands[number]
        nothing = w.b.constant(-np.inf, u.tensor)
        zero = w.b.constant(0, u.tensor)
        operands[number] = w.b("select", w.b.compare("EQ", u, nothing), zero, u)
        w.define(op.results[0], w.b(op.name, *operands), box)

    def fold(
        self,
        op: Op,
        w: TileWriter,
        before: TileWriter,
        previous: Mapping[Value, Value],
        new: dict[Value, Value],
    ) -> None:
        """Fold this tile of k and combine it with what was carried."""
        square = self.square(op)
        if square is not None:
            self.fold_squares(op, square, w, before, previous, new)
            return
        old = [previous[result] for result in op.results]
        w.write([op], self.parts)
        tiles = [w.tiles[result] for result in op.results]
        if self.wide(op):
            tiles = [self.widened(w, tile) for tile in tiles]
        form = self.stream.forms.get(op.results[0])
        if form is not None and form.power:
            old = [self.rescaled(w, before, old[0], form.power)]
        folding = folding_of(op)
        if folding is not None:
            combined = [w.b(folding, old[0], tiles[0])]
        else:
            combined = self.combine(op, w, old, tiles)
        for result, value, start in zip(op.results, combined, old, strict=True):
            box = self.parts.boxes[result]
            new[result] = value
            if result in self.stream.estimated:
                value = self.extrapolated(w, value, self.seen(w, 1))
                start = self.extrapolated(w, start, self.seen(w, 0))
            elif self.wide(op):
                continue  # nobody reads the sum while walking
            w.define(result, w.b.convert(value, result.element), box)
            before.define(result, w.b.convert(start, result.element), box)

    def seen(self, w: TileWriter, more: int) -> Value:
        """How many indices of k there were before this tile, or with it (`more` = 1), as f32."""
        count = w.b("add", self.index, w.b.constant(more, INDEX))
        count = w.b("multiply", count, w.b.constant(self.step, INDEX))
        count = w.b("minimum", count, w.scalar(expression(self.stream.extent)))
        return w.b.convert(count, F32)

    def extrapolated(self, w: TileWriter, sum: Value, seen: Value) -> Value:
        """What a sum will be if all of k is like what was seen."""
        one, extent = w.b.constant(1, seen.tensor), self.stream.extent
        whole = (
            w.b.constant(extent, seen.tensor)
            if isinstance(extent, int)
            else w.b.convert(w.scalar(expression(extent)), F32)
        )
        part = w.b("divide", whole, w.b("maximum", seen, one))
        return w.b("multiply", sum, self.like(w, part, sum))

    def like(self, w: TileWriter, scalar: Value, tile: Value) -> Value:
        return w.b.broadcast(w.b.convert(scalar, tile.element), tile.dims, ())

    def fold_squares(
        self,
        op: Op,
        square: Factor,
        w: TileWriter,
        before: TileWriter,
        previous: Mapping[Value, Value],
        new: dict[Value, Value],
    ) -> None:
        """Sums of (x - u)^2 and of x - u for the new estimate of u, from those for the old one."""
        value, result = op.operands[0], op.results[0]
        tile_squares = self.summed(op, value, w)
        tile_sum = self.summed(op, away_from_square(value), w)
        squares, sum = previous[result], previous[value]
        now = self.spread(w, w.tiles[square.value], square, squares.tensor)
        then = self.spread(w, before.tiles[square.value], square, squares.tensor)
        change = w.b("subtract", then, now)
        count = self.like(w, self.seen(w, 0), squares)
        moved = w.b("multiply", count, change)
        twice = w.b("add", sum, w.b("add", sum, moved))
        squares = w.b("add", squares, w.b("multiply", change, twice))
        new[result] = w.b("add", squares, tile_squares)
        new[value] = w.b("add", w.b("add", sum, moved), tile_sum)
        w.define(result, new[result], self.parts.boxes[result])

    def summed(self, op: Op, value: Value, w: TileWriter) -> Value:
        """The sum of this tile of a value, over the dims that `op` sums its operand over."""
        parts = self.parts
        need = compose(
            parts.accesses[op], 0, parts.boxes[op.results[0]], value.dims, parts.inner[op]
        )
        tile = w.read(value, need, 0, op.dimensions)
        zero = w.b.constant(0, TensorType((), value.element))
        return w.b.reduce("add", tile, zero, op.dimensions)

    def combine(
        self, op: Op, w: TileWriter, old: Sequence[Value], tiles: Sequence[Value]
    ) -> Sequence[Value]:
        """Two partial results through the reduction's own body, as a reduction of two."""
        joined = []
        for left, right in zip(old, tiles, strict=True):
            dims = (*left.dims, 1)
            parts = [w.b.reshape(left, dims), w.b.reshape(right, dims)]
            kind = left.tensor.with_dims((*left.dims, 2))
            joined.append(w.b("concatenate", *parts, type=kind, dimension=left.rank))
        initials = [w.read(v, Box(())) for v in op.operands[len(op.operands) // 2 :]]
        attributes = {"dimensions": (old[0].rank,)}
        kinds = [value.type for value in old]
        return w.b.op("reduce", [*joined, *initials], attributes, op.regions, kinds).results

    def rescaled(
        self, w: TileWriter, before: TileWriter, sum: Value, factors: Sequence[Factor]
    ) -> Value:
        """The carried sum times exp(new u - old u) for every u in its exponent."""
        for factor in factors:
            now, then = w.tiles[factor.value], before.tiles[factor.value]
            change = w.b("subtract", now, then) if factor.sign > 0 else w.b("subtract", then, now)
            one = w.b.constant(1, change.tensor)
            same = w.b.compare(
                "EQ", now, then
            )  # also two infinities, whose difference is no number
            growth = w.b("select", same, one, w.b("exponential", change))
            sum = w.b("multiply", sum, self.spread(w, growth, factor, sum.tensor))
        return sum

    def multiplied(self, w: TileWriter, sum: Value, result: Value) -> Value:
        """The finished sum with the factors that were left out of it."""
        form = self.stream.forms.get(result)
        for factor in form.outer if form else ():
            tile = self.spread(w, w.tiles[factor.value], factor, sum.tensor)
            sum = w.b("multiply" if factor.sign > 0 else "divide", sum, tile)
        return sum

    def spread(self, w: TileWriter, tile: Value, factor: Factor, kind: TensorType) -> Value:
        """A factor's tile in the shape of what it multiplies."""
        kept = [number for number, dim in enumerate(factor.dims) if dim != -1]
        tile = w.b.reshape(tile, [tile.dims[number] for number in kept])
        return w.b.broadcast(tile, kind.dims, [factor.dims[number] for number in kept])


def _scales(op: Op) -> bool:
    """Whether a factor of the operands is one of the result."""
    return op.name in ("multiply", "divide")
