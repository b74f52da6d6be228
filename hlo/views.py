"""Operands seen through transposes, reshapes, slices and broadcasts, as strides of what is stored.

An `OperandView` of a stored array gives every dimension as *segments* (size, stride), outermost
first: one for a plain dimension, several where a reshape merged dimensions that do not lie evenly.
So the inverse of a weight packing, transpose -> reshape -> slice, becomes plain strides again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from .deciding import surely_at_most
from .graph import Op, Value


class Segment(NamedTuple):
    size: int
    stride: int  # in elements


@dataclass(frozen=True)
class Dimension:
    """`extent` indices; index i is i unravelled over the segments, whose product may be larger."""

    extent: int
    segments: tuple[Segment, ...]

    @property
    def stored(self) -> int:
        """Indices that exist in memory; those past `extent` are padding that may be read."""
        return math.prod(segment.size for segment in self.segments)

    @property
    def exact(self) -> bool:
        return self.extent == self.stored


@dataclass(frozen=True)
class OperandView:
    """What a value is, in terms of the stored array `source`."""

    source: Value
    offset: int
    dims: tuple[Dimension, ...]


def merge(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """The same walk with as few segments as possible."""
    merged: list[Segment] = []
    for segment in segments:
        if segment.size == 1:
            continue
        if merged and merged[-1].stride == segment.size * segment.stride:
            merged[-1] = Segment(merged[-1].size * segment.size, segment.stride)
        else:
            merged.append(segment)
    return tuple(merged)


def stored_view(value: Value) -> OperandView:
    """A value as it lies in memory: row-major."""
    dims, stride = [], 1
    for size in reversed(value.dims):
        dims.append(Dimension(size, merge([Segment(size, stride)]) if size else (Segment(0, 1),)))
        stride *= size
    return OperandView(value, 0, tuple(reversed(dims)))


def view_of(value: Value) -> OperandView | None:
    """The value through all view-like operations above it; None where strides cannot say it."""
    op = value.op
    if op is None or op.name not in _STEPS:
        return stored_view(value)
    inner = view_of(op.operands[0])
    return _STEPS[op.name](op, inner) if inner is not None else None


def _transpose(op: Op, view: OperandView) -> OperandView:
    return replace(view, dims=tuple(view.dims[i] for i in op.permutation))


def _reverse(op: Op, view: OperandView) -> OperandView | None:
    dims, offset = list(view.dims), view.offset
    for number in op.dimensions:
        dim = dims[number]
        if not dim.exact:
            return None
        offset += sum((s.size - 1) * s.stride for s in dim.segments)
        dims[number] = Dimension(
            dim.extent, tuple(Segment(s.size, -s.stride) for s in dim.segments)
        )
    return OperandView(view.source, offset, tuple(dims))


def _broadcast(op: Op, view: OperandView) -> OperandView:
    dims = [Dimension(n, (Segment(n, 0),) if n != 1 else ()) for n in op.type.dims]
    for number, dim in zip(op.broadcast_dimensions, view.dims, strict=True):
        if dim.extent != 1 or op.type.dims[number] == 1:
            dims[number] = dim
    return replace(view, dims=tuple(dims))


def _slice(op: Op, view: OperandView) -> OperandView | None:
    dims, offset = [], view.offset
    bounds = zip(view.dims, op.type.dims, op.start_indices, op.strides, strict=True)
    for dim, extent, start, step in bounds:
        if start == 0 and step == 1:
            dims.append(_clipped(dim, extent))
        elif len(dim.segments) <= 1:
            stride = dim.segments[0].stride if dim.segments else 0
            offset += start * stride
            dims.append(Dimension(extent, merge([Segment(extent, stride * step)])))
        else:
            return None
    return OperandView(view.source, offset, tuple(dims))


def _clipped(dim: Dimension, extent: int) -> Dimension:
    """The first `extent` indices; segments of which only the first index remains are dropped."""
    if len(dim.segments) <= 1:
        # A plain dimension is stored to its new end only: what lies behind may not be there.
        return Dimension(extent, tuple(Segment(extent, s.stride) for s in dim.segments))
    segments = list(dim.segments)
    while len(segments) > 1 and surely_at_most(extent, math.prod(s.size for s in segments[1:])):
        segments.pop(0)
    return Dimension(extent, tuple(segments))


def _reshape(op: Op, view: OperandView) -> OperandView | None:
    """Regroups the segments; fails where a new dimension would cut one unevenly."""
    if 0 in op.type.dims:
        return OperandView(view.source, view.offset, tuple(
            Dimension(n, (Segment(n, 1),) if n != 1 else ()) for n in op.type.dims
        ))  # fmt: skip
    dims: list[Dimension] = []
    pending = list(view.dims)
    for size in op.type.dims:
        if size == 1:
            dims.append(Dimension(1, ()))
            continue
        while pending and pending[0].extent == 1:
            pending.pop(0)
        if pending and pending[0].extent == size:  # also dimensions with padding
            dims.append(pending.pop(0))
            continue
        taken: list[Segment] = []
        wanted = size
        while wanted != 1:
            if not pending or not pending[0].exact:
                return None
            outer, rest = _outermost(pending.pop(0), wanted)
            if outer is None:
                return None
            taken.append(outer)
            wanted //= outer.size
            if rest is not None:
                pending.insert(0, rest)
        dims.append(Dimension(size, merge(taken)))
    return replace(view, dims=tuple(dims))


def _outermost(dim: Dimension, wanted: int) -> tuple[Segment | None, Dimension | None]:
    """Takes from a dimension its outermost segment, or the part of it that makes `wanted`."""
    if not dim.segments:
        return Segment(1, 0), None
    first, *others = dim.segments
    if wanted % first.size == 0:
        taken, left = first, others
    elif first.size % wanted == 0:
        inner = first.size // wanted
        taken = Segment(wanted, first.stride * inner)
        left = [Segment(inner, first.stride), *others]
    else:
        return None, None
    rest = math.prod(s.size for s in left)
    return taken, Dimension(rest, tuple(left)) if rest != 1 else None


def widens(op: Op) -> bool:
    """Whether an operation is a conversion that loses nothing, from a float, or an integer of at
    most 16 bits, to a wider float, or of such an integer to one of 32 bits: what a load can do."""
    if op.name != "convert":
        return False
    old, new = op.operands[0].element, op.type.element
    if old.is_float:
        return new.is_float and {old.name, new.name} <= _WIDENED and old.bits < new.bits
    if not old.is_integer or old.bits not in (8, 16):
        return False
    return new.name in ("f32", "f64") or (new.is_integer and new.bits == 32)


_WIDENED = {"f16", "bf16", "f32", "f64"}


def _convert(op: Op, view: OperandView) -> OperandView | None:
    """Loads widen numbers by themselves; it loses nothing, so it may be left to them."""
    return view if widens(op) else None


_STEPS = {
    "convert": _convert,
    "transpose": _transpose,
    "reshape": _reshape,
    "slice": _slice,
    "reverse": _reverse,
    "broadcast_in_dim": _broadcast,
}


def align(left: Dimension, right: Dimension) -> list[tuple[int, int, int]] | None:
    """Two dimensions of equal extent as common loops (size, left stride, right stride)."""
    if not (left.exact and right.exact):
        return None
    loops: list[tuple[int, int, int]] = []
    a, b = list(left.segments), list(right.segments)
    while a and b:
        (m, x), (n, y) = a.pop(), b.pop()
        size = m if m == n or n % m == 0 else n if m % n == 0 else None
        if size is None:
            return None
        loops.insert(0, (size, x, y))
        if m != size:
            a.append(Segment(m // size, x * size))
        if n != size:
            b.append(Segment(n // size, y * size))
    return loops


def merged_depth(depth: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Loops of (size, left, right): those that walk evenly are one, those of one step go."""
    merged: list[tuple[int, int, int]] = []
    for size, left, right in depth:
        if size == 1:
            continue
        if merged and merged[-1][1:] == (size * left, size * right):
            merged[-1] = (merged[-1][0] * size, left, right)
        else:
            merged.append((size, left, right))
    return merged
