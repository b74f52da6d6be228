"""reduce_window: pooling, cumulative sums, and the general case, lanes along the last dim."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....hlo.deciding import at_hint
from ....hlo.graph import Op, Value
from ....hlo.ops.windows import running
from ...llvm.elements import Register
from ...llvm.elementwise import Mask
from ...llvm.index import Affine, delinear, linear
from ...llvm.target import KernelCode, Target
from ..frame import Frame, fitting, lanes_for_types, steps, tile_range
from ..monoid import Reduction, flat, spread, unflat
from ..sliding import Sliding
from .frame import blended, frame_of

UNROLLED = 9  # windows of so many elements are straight-line code


def per_dim(values: Sequence[Any], rank: int, default: Any) -> Sequence[Any]:
    """An attribute with one entry per dimension, left out where all are the default."""
    return tuple(values) if values else (default,) * rank


def slides_of(op: Op) -> list[Sliding]:
    """How the windows of a reduce_window slide along each dim."""
    source = op.operands[0].dims
    rank = len(source)
    columns = zip(
        source, op.window_dimensions, per_dim(op.window_strides, rank, 1),
        (low for low, _ in per_dim(op.padding, rank, (0, 0))),
        per_dim(op.window_dilations, rank, 1), per_dim(op.base_dilations, rank, 1),
        strict=True,
    )  # fmt: skip
    return [Sliding(*column) for column in columns]


class _ReduceWindowEmitter:
    def __init__(self, op: Op, target: Target, backward: bool = False) -> None:
        self.op, self.target = op, target
        self.frame, self.emitter = frame_of(op, target)
        self.f, self.scopes = self.frame.function, self.frame.scopes
        self.reduction = Reduction(op, backward)
        self.dims = op.results[0].dims
        self.sizes = op.window_dimensions
        self.slides = slides_of(op)
        widths = [value.element for value in (*self.reduction.inputs, *op.results)]
        self.width = lanes_for_types(target, widths)
        self.start: list[Register] = []  # initial values in every lane, once they have been read

    def initial(self, width: int) -> list[Register]:
        registers = [self.emitter.value(value, (), 1) for value in self.reduction.initial]
        return spread(self.f, self.reduction.read(self.f, registers), width)

    def read(self, at: Sequence[Affine], width: int, mask: Mask | None) -> list[Register]:
        inputs: Sequence[Value] = self.reduction.inputs
        registers = [self.emitter.value(value, at, width, mask) for value in inputs]
        return self.reduction.read(self.f, registers)

    def store(
        self, values: Sequence[Register], at: Sequence[Affine], width: int, mask: Mask | None
    ) -> None:
        rounded = self.reduction.finished(self.f, values)
        for pointer, result, register in zip(
            self.frame.outputs, self.op.results, rounded, strict=True
        ):
            offset = linear(at, self.dims)
            self.emitter.store(pointer, register, result.element, offset, width, mask)

    # The general case.

    def general(self) -> KernelCode:
        *outer, inner = self.dims or (1,)
        if self.target.one_lane:
            outer, inner = list(self.dims), 1
        rows = math.prod(outer)
        width = self.width
        if self.target.vector_bits < 512:
            width = fitting(width, inner)
        with (
            tile_range(self.frame, 0, rows) as (low, high),
            self.scopes.loop(low, high, extent=rows) as (row, _),
        ):
            at = delinear(self.emitter.indexer, row, outer, 1)
            for j, lanes, _, mask in steps(self.scopes, self.target, 0, inner, inner, width, 1):
                index = (*at, j)[: len(self.dims)]
                self.store(self.windowed(index, lanes, mask), index, lanes, mask)
        flops = self.op.definition.flops(self.op)
        return self.frame.finish(rows, flops)

    def windowed(self, index: Sequence[Affine], width: int, mask: Mask | None) -> list[Register]:
        """All elements of the windows of `width` results."""
        self.start = values = self.initial(width)
        moving = [d for d, size in enumerate(self.sizes) if size != 1]
        whole = math.prod(self.sizes)
        if isinstance(whole, int) and whole <= UNROLLED:
            for position in _positions(self.sizes):
                offsets = [Affine((), p) for p in position]
                values = self.element(index, offsets, values, width, mask)
            return values
        return self.loops(index, moving, {}, values, width, mask)

    def loops(
        self,
        index: Sequence[Affine],
        moving: Sequence[int],
        places: dict[int, Affine],
        values: list[Register],
        width: int,
        mask: Mask | None,
    ) -> list[Register]:
        if not moving:
            offsets = [places.get(d, Affine((), 0)) for d in range(len(self.sizes))]
            return self.element(index, offsets, values, width, mask)
        size = self.sizes[moving[0]]
        with self.scopes.loop(0, size, 1, flat(values), extent=size) as (at, loop):
            carried = unflat(loop.carried, values)
            inside = {**places, moving[0]: at}
            loop.carry(*flat(self.loops(index, moving[1:], inside, carried, width, mask)))
        return unflat(loop.results, values)

    def element(
        self,
        index: Sequence[Affine],
        offsets: Sequence[Affine],
        values: list[Register],
        width: int,
        mask: Mask | None,
    ) -> list[Register]:
        """One element of each window joined in: the initial value where it is padding."""
        inside: Mask | None = None
        place: list[Affine] = []
        for slide, at, offset in zip(self.slides, index, offsets, strict=True):
            valid, position = slide.place(self.emitter, at, offset, width)
            if valid is False:
                return self.reduction.combine(self.f, values, self.start, width)
            inside = self.emitter.both(inside, valid)
            place.append(position)
        read = self.read(place, width, self.emitter.both(mask, inside))
        read = blended(self.f, inside, read, self.start)
        return self.reduction.combine(self.f, values, read, width)

    # Window i holds all elements up to (or from) i, and padding that adds nothing: others have
    # been decomposed.

    def running(self, dimension: int) -> KernelCode:
        """One running total per line; lanes across lines where they are not the last dim."""
        f = self.f
        last = len(self.dims) - 1
        others = [d for d in range(len(self.dims)) if d != dimension]
        lined = others if self.target.one_lane else [d for d in others if d != last]
        length = self.dims[dimension]
        extents = [self.dims[d] for d in lined]
        rows = math.prod(extents)
        across = dimension != last and not self.target.one_lane
        inner = self.dims[last] if across else 1
        width = fitting(self.width, inner) if across else 1
        with (
            tile_range(self.frame, 0, rows) as (low, high),
            self.scopes.loop(low, high, extent=rows) as (row, _),
        ):
            place = dict(zip(lined, delinear(self.emitter.indexer, row, extents, 1), strict=True))
            for j, lanes, _, mask in steps(self.scopes, self.target, 0, inner, inner, width, 1):
                if across:
                    place[last] = j
                values = self.initial(lanes)
                with self.scopes.loop(0, length, 1, flat(values), extent=length) as (at, loop):
                    place[dimension] = at * -1 + (length - 1) if self.reduction.backward else at
                    index = [place[d] for d in range(len(self.dims))]
                    carried = unflat(loop.carried, values)
                    read = self.read(index, lanes, mask)
                    total = self.reduction.combine(f, carried, read, lanes)
                    self.store(total, index, lanes, mask)
                    loop.carry(*flat(total))
        return self.frame.finish(rows, float(at_hint(self.op.results[0].tensor.size)))


def _positions(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for size in sizes:
        found = [(*one, n) for one in found for n in range(size)]
    return found


def emit(op: Op, target: Target) -> KernelCode:
    """The kernel of a reduce_window."""
    found = running(op)
    window = _ReduceWindowEmitter(op, target, backward=found is not None and found[1])
    frame: Frame = window.frame
    if not op.results[0].tensor.size:
        return frame.finish(0, 0.0)
    return window.running(found[0]) if found else window.general()
