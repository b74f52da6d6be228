"""Writes the operations of a group for one tile: loads of windows, operations on tiles.

Boxes say which elements each value has in the tile (`access.propagate`); offsets become scalar
operations, sizes are numbers by now.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...hlo.access import access_of
from ...hlo.build import Builder
from ...hlo.errors import CompilerBug
from ...hlo.graph import Dense, Op, Value, constant_of
from ...hlo.ops.convolution import window_attributes
from ...hlo.ops.tile_examples import INDEX
from ...hlo.symbols import SymbolicDim
from ...hlo.types import I32, TensorType
from .access import Box, Span, TilePropagation, compose
from .expressions import (
    ZERO,
    Atom,
    Expression,
    as_size,
    expression,
    never_above,
    size_of,
    sizes_in,
)

# Index operations that have a form on tiles; every elementwise operation has.
_MOVES = frozenset({"broadcast_in_dim", "iota", "pad", "reshape", "slice", "transpose"})


def writable(op: Op) -> bool:
    """Whether a tile function can hold the operation."""
    if op.definition.effects or not all(isinstance(v.type, TensorType) for v in op.results):
        return False
    if access_of(op) is None:
        return False
    if op.name == "constant":
        return op.attributes["value"].is_splat
    if op.name == "pad":
        return not any(op.interior_padding) and constant_of(op.operands[1]) is not None
    if op.name == "convolution":
        dilated = any(d != 1 for d in op.lhs_dilation)
        return not dilated and op.batch_group_count == 1
    if op.definition.pattern == "elementwise":
        return len(op.results) == 1
    return op.name in _MOVES or op.definition.pattern in ("reduce", "contract")


class Unwritable(Exception):
    """The group has no tile function for these sizes: a tile would need what another one has."""


def inside(span: Span) -> bool:
    """Whether all its indices are provably inside the dim."""
    return never_above(ZERO, span.offset) and never_above(span.last, span.bound - 1)


def numbers(box: Box) -> tuple[int, ...]:
    """The sizes of a box as numbers; Unwritable if they are a call's to decide, CompilerBug if they
    still depend on something else."""
    found = tuple(span.size.constant for span in box.spans)
    if None in found:
        if any(sizes_in(span.size) for span in box.spans):
            raise Unwritable(f"a call decides how large a tile of {box} is")
        raise CompilerBug(f"a tile of {box} has no fixed size")
    return tuple(n for n in found if n is not None)


def dense(box: Box) -> Box:
    """The box without gaps: all indices from the first to the last one."""
    return Box(
        tuple(span._replace(size=(span.size - 1) * span.stride + 1, stride=1) for span in box.spans)
    )


class TileWriter:
    """Appends to a builder what a tile needs.

    memory: the kernel's arguments for the group's inputs. variables: scalars that stand for the
    variables of offsets. tiles: what is computed, with the box in `boxes`.
    """

    def __init__(
        self, b: Builder, memory: Mapping[Value, Value], variables: Mapping[str, Value]
    ) -> None:
        self.b, self.memory, self.variables = b, memory, dict(variables)
        self.outer: TileWriter | None = None
        self.tiles: dict[Value, Value] = {}
        self.boxes: dict[Value, Box] = {}
        self._scalars: dict[Any, Value] = {}
        self._loads: dict[Any, Value] = {}

    def nested(self, b: Builder, variables: Mapping[str, Value]) -> TileWriter:
        """A writer for a region inside, with more variables. It sees what this one has computed so
        far, and leaves to it what does not depend on these variables."""
        inner = TileWriter(b, self.memory, {**self.variables, **variables})
        inner.outer = self
        inner.tiles, inner.boxes = dict(self.tiles), dict(self.boxes)
        return inner

    def invariant(self, *offsets: Expression) -> TileWriter | None:
        """The writer of the region outside, if it has all that these offsets depend on."""
        outer = self.outer
        if outer is None:
            return None
        atoms = {atom for offset in offsets for atom in offset.variables}
        needed = {atom.key for atom in atoms if size_of(atom) is None}
        return outer if needed <= set(outer.variables) else None

    @contextmanager
    def of(self, op: Op) -> Iterator[None]:
        """What is written meanwhile, also to regions outside, has the operation's origin."""
        builders = [self.b]
        outer = self.outer
        while outer is not None:
            builders.append(outer.b)
            outer = outer.outer
        before = [b.origin for b in builders]
        for b in builders:
            b.origin = op.origin or b.origin
        yield
        for b, origin in zip(builders, before, strict=True):
            b.origin = origin

    def define(self, value: Value, tile: Value, box: Box) -> None:
        self.tiles[value], self.boxes[value] = tile, box

    # Scalars.

    def scalar(self, value: Expression) -> Value:
        """The i32 scalar of an expression."""
        outer = self.invariant(value)
        if outer is not None:
            return outer.scalar(value)
        known = self._scalars.get(value)
        if known is None:
            known = self._scalars[value] = self._sum(value)
        return known

    def _sum(self, value: Expression) -> Value:
        size = as_size(value)
        if isinstance(size, SymbolicDim):
            return self.b("tile_bound", size=size)
        total: Value | None = None
        for monomial, coefficient in value.terms:
            factors = [self._atom(atom) for atom in monomial]
            if coefficient != 1 or not factors:
                factors.append(self.b.constant(coefficient, INDEX))
            product = factors[0]
            for factor in factors[1:]:
                product = self.b("multiply", product, factor)
            total = product if total is None else self.b("add", total, product)
        return self.b.constant(0, INDEX) if total is None else total

    def _atom(self, atom: Atom) -> Value:
        if not atom.function and size_of(atom) is None:
            return self.variables[atom.key]
        known = self._scalars.get(atom)
        if known is None:
            known = self._scalars[atom] = self._function(atom)
        return known

    def _function(self, atom: Atom) -> Value:
        size = size_of(atom)
        if size is not None:
            return self.b("tile_bound", size=size)
        left, right, *_ = [self.scalar(argument) for argument in atom.arguments]
        if atom.function == "max":
            return self.b("maximum", left, right)
        if atom.function in ("//", "%") and never_above(ZERO, atom.arguments[0]):
            return self.b("divide" if atom.function == "//" else "remainder", left, right)
        # Rounding differs where the left side may be below zero.
        raise Unwritable(f"an offset of a tile needs '{atom.function}'")

    # Values.

    def read(
        self, value: Value, need: Box, fill: Any = None, dims: Iterable[int] | None = None
    ) -> Value:
        """The tile of a value with exactly the needed elements. Where indices along `dims` (all of
        them by default) lie outside the tensor, it holds `fill`, if that is given."""
        splat = constant_of(value)
        if splat is not None and splat.is_splat:
            kind = value.tensor.with_dims(numbers(need))
            return self.b.constant(Dense.splat(splat.splat_value, kind))
        if value.op is not None and value.op.name == "iota" and value not in self.memory:
            return _iota(self, value.op, need)
        if value in self.tiles:
            tile = self.cut(self.tiles[value], self.boxes[value], need)
            return tile if fill is None else self.masked(tile, need, fill, dims)
        if isinstance(fill, (int, np.integer)) and int(float(fill)) != fill:
            return self.masked(self.load(value, need, 0.0), need, fill, dims)
        return self.load(value, need, 0.0 if fill is None else float(fill))

    def load(self, value: Value, need: Box, fill: float) -> Value:
        whole = dense(need)
        outer = self.invariant(*(span.offset for span in whole.spans))
        if outer is not None:
            return self.cut(outer.load(value, whole, fill), whole, need)
        key = value, whole, fill
        tile = self._loads.get(key)
        if tile is None:
            offsets = [self.scalar(span.offset) for span in whole.spans]
            tile = self._loads[key] = self.b(
                "tile_load", self.memory[value], *offsets, sizes=numbers(whole), fill=fill
            )
        return self.cut(tile, whole, need)

    def cut(self, tile: Value, have: Box, need: Box) -> Value:
        """The needed part of a tile that has more."""
        starts, dynamic = [], False
        for mine, wanted in zip(have.spans, need.spans, strict=True):
            shift = (wanted.offset - mine.offset).constant
            dynamic = dynamic or shift is None
            starts.append(shift)
        sizes, strides = numbers(need), [w.stride for w in need.spans]
        if have == need:
            return tile
        if any(h.stride != 1 for h in have.spans):
            raise Unwritable(f"a tile with gaps {have} is read as {need}")
        for mine, wanted in zip(have.spans, need.spans, strict=True):
            first, last = wanted.offset - mine.offset, wanted.last - mine.offset
            if not (never_above(ZERO, first) and never_above(last, mine.size - 1)):
                raise Unwritable(f"a tile of {have} does not hold {need}")
        if dynamic:
            if any(stride != 1 for stride in strides):
                raise Unwritable(f"{need} is no window of {have}")
            places = [
                self.scalar(w.offset - h.offset)
                for h, w in zip(have.spans, need.spans, strict=True)
            ]
            return self.b("dynamic_slice", tile, *places, slice_sizes=sizes)
        if not any(starts) and sizes == tile.dims and set(strides) <= {1}:
            return tile
        limits = [s + (n - 1) * k + 1 for s, n, k in zip(starts, sizes, strides, strict=True)]
        return self.b(
            "slice", tile, start_indices=tuple(starts), limit_indices=tuple(limits),
            strides=tuple(strides),
        )  # fmt: skip

    def masked(self, tile: Value, box: Box, fill: Any, dims: Iterable[int] | None) -> Value:
        """The tile with `fill` at the indices that lie outside of the tensor."""
        holds: Value | None = None
        for d in range(tile.rank) if dims is None else dims:
            span = box.spans[d]
            if inside(span):
                continue
            part = self._inside(span, d, tile.dims)
            holds = part if holds is None else self.b("and", holds, part)
        if holds is None:
            return tile
        return self.b("select", holds, tile, self.b.constant(fill, tile.tensor))

    def _inside(self, span: Span, dim: int, dims: Sequence[int]) -> Value:
        kind = TensorType(tuple(dims), I32)
        index = self.b("iota", type=kind, iota_dimension=dim)
        if span.stride != 1:
            index = self.b("multiply", index, self.b.constant(span.stride, kind))
        index = self.b("add", index, self.b.broadcast(self.scalar(span.offset), dims, ()))
        if isinstance(span.bound, int):
            end = self.b.constant(span.bound, kind)
        else:
            end = self.b.broadcast(self.scalar(expression(span.bound)), dims, ())
        holds = self.b.compare("LT", index, end)
        if not never_above(ZERO, span.offset):
            above = self.b.compare("GE", index, self.b.constant(0, kind))
            holds = self.b("and", holds, above)
        return holds

    # Operations.

    def write(self, ops: Iterable[Op], parts: TilePropagation) -> None:
        """All of the operations for their boxes."""
        for op in ops:
            if op.results[0] in parts.boxes and not op.definition.known:
                with self.of(op):
                    self.op(op, parts)

    def op(self, op: Op, parts: TilePropagation) -> None:
        """One operation; its results are then defined."""
        box = parts.boxes[op.results[0]]
        access = parts.accesses[op]

        def need(number: int) -> Box:
            value = op.operands[number]
            return compose(access, number, box, value.dims, parts.inner[op])

        special = _SPECIAL.get(op.name)
        if special is not None:
            written = special(self, op, box, need)
            tiles = list(written) if isinstance(written, tuple) else [written]
        else:
            operands = [self.read(v, need(n)) for n, v in enumerate(op.operands)]
            kinds = [result.tensor.with_dims(numbers(box)) for result in op.results]
            made = self.b.op(op.name, operands, op.attributes, op.regions, kinds)
            tiles = list(made.results)
        for result, tile in zip(op.results, tiles, strict=True):
            self.define(result, tile, box)


Need = Callable[[int], Box]


def _iota(w: TileWriter, op: Op, box: Box) -> Value:
    kind = op.type.with_dims(numbers(box))
    span = box.spans[op.iota_dimension]
    index = w.b("iota", type=kind, iota_dimension=op.iota_dimension)
    if span.stride != 1:
        index = w.b("multiply", index, w.b.constant(span.stride, kind))
    start = w.b.convert(w.scalar(span.offset), kind.element)
    return w.b("add", index, w.b.broadcast(start, kind.dims, ()))


def _same(w: TileWriter, op: Op, box: Box, need: Need) -> Value:
    """What a slice gives is what is read."""
    return w.read(op.operands[0], need(0))


def _beyond(have: Span, first: Expression, size: Expression) -> tuple[int, int]:
    """How far first .. first + size - 1 reaches over what is read of a dim, on both sides.

    Nowhere, but for a tile that needs the whole dim: that is read without what lies around it.
    """
    low = (have.offset - first).constant
    high = (first + size - 1 - have.last).constant
    if low is None or high is None or low < 0 or high < 0:
        raise Unwritable(f"a window that starts at {first} is not {have}")
    return low, high


def _pad(w: TileWriter, op: Op, box: Box, need: Need) -> Value:
    value = constant_of(op.operands[1])
    if value is None:
        raise CompilerBug("a pad without a constant in a tile function")
    have = need(0)
    tile = w.read(op.operands[0], have, value.splat_value)
    around = [
        _beyond(read, span.offset - low, span.size)
        for read, span, low in zip(have.spans, box.spans, op.edge_padding_low, strict=True)
    ]
    if not any(map(any, around)):
        return tile
    lows, highs = zip(*around, strict=True)
    return w.b(
        "pad", tile, w.b.constant(value), edge_padding_low=lows, edge_padding_high=highs,
        interior_padding=(0,) * tile.rank,
    )  # fmt: skip


def _reshape(w: TileWriter, op: Op, box: Box, need: Need) -> Value:
    have = need(0)
    if math.prod(numbers(have)) != math.prod(numbers(box)):
        raise Unwritable(f"the elements of {box} are no window before the reshape, but in {have}")
    return w.b.reshape(w.read(op.operands[0], have), numbers(box))


def _reduce(w: TileWriter, op: Op, box: Box, need: Need) -> tuple[Value, ...]:
    half = len(op.operands) // 2
    tiles = []
    for number, (value, initial) in enumerate(
        zip(op.operands[:half], op.operands[half:], strict=True)
    ):
        start = constant_of(initial)
        # Without a constant to fill with, the dims that are reduced are whole.
        fill = None if start is None else start.splat_value
        tiles.append(w.read(value, need(number), fill, op.dimensions))
    initials = [w.read(v, need(half + n)) for n, v in enumerate(op.operands[half:])]
    kinds = [result.tensor.with_dims(numbers(box)) for result in op.results]
    made = w.b.op("reduce", [*tiles, *initials], op.attributes, op.regions, kinds)
    return made.results


def _dot(w: TileWriter, op: Op, box: Box, need: Need) -> Value:
    left = w.read(op.operands[0], need(0), 0, op.lhs_contracting_dimensions)
    right = w.read(op.operands[1], need(1), 0, op.rhs_contracting_dimensions)
    kind = op.type.with_dims(numbers(box))
    return w.b("dot_general", left, right, type=kind, **op.attributes)


def _convolution(w: TileWriter, op: Op, box: Box, need: Need) -> Value:
    have = dense(need(0))
    image = w.read(op.operands[0], have, 0)
    kernel = w.read(op.operands[1], need(1))
    strides, pads, _, dilations, _ = window_attributes(op)
    padding = []
    for number, (stride, (low, _), dilation) in enumerate(
        zip(strides, pads, dilations, strict=True)
    ):
        span = box.spans[op.output_spatial_dimensions[number]]
        taps = kernel.dims[op.kernel_spatial_dimensions[number]]
        reach = (span.size - 1) * stride + (taps - 1) * dilation + 1
        read = have.spans[op.input_spatial_dimensions[number]]
        padding.append(_beyond(read, span.offset * stride - low, reach))
    attributes = {**op.attributes, "padding": tuple(padding)}
    if op.feature_group_count != 1:
        features = op.type.dims[op.output_feature_dimension] // op.feature_group_count
        if not _of_groups(box.spans[op.output_feature_dimension], features):
            raise Unwritable(f"a tile of features of {box} cuts groups of {features}")
        depth = kernel.dims[op.kernel_input_feature_dimension]
        attributes["feature_group_count"] = image.dims[op.input_feature_dimension] // depth
    kind = op.type.with_dims(numbers(box))
    return w.b("convolution", image, kernel, type=kind, **attributes)


def _of_groups(span: Span, features: int) -> bool:
    """Whether all tiles of a span are whole groups of that many features, or lie in one group."""
    size = span.size.constant
    if size is None or size == span.bound:
        return size is not None
    unit = features if size % features == 0 else size
    aligned = all(coefficient % unit == 0 for _, coefficient in span.offset.terms)
    return aligned and (features % unit == 0)


_SPECIAL: dict[str, Callable[[TileWriter, Op, Box, Need], Value | tuple[Value, ...]]] = {
    "slice": _same,
    "pad": _pad,
    "reshape": _reshape,
    "reduce": _reduce,
    "dot_general": _dot,
    "convolution": _convolution,
}
