"""Convolutions of tiles: patches of sums in registers, image and kernel in shared memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....hlo.graph import Op, Value
from ....hlo.ops.convolution import window_attributes
from ... import llvm
from ...llvm import arithmetic, elements
from ...llvm.elements import Register
from ...llvm.index import ZERO, Affine, Indexer, LoopAxis, Scopes, delinear, linear, of_axis
from ...plain.monoid import flat, unflat
from ..frame import rolled
from ..plain.products import convolution_slides
from ..windows import load
from .block_wide import emit_block_wide
from .distributed_layout import DistributedLayout
from .dot import added, widened
from .emitter import Emitter
from .scope import Tile
from .shared import CHUNK

_UNROLLED = 16  # places of a window and input features whose loads may stand side by side


def convolution(e: Emitter, op: Op) -> None:
    """convolution of any dims and groups; one of a dilated image, or of groups of the batch, is
    done in memory."""
    if any(step != 1 for step in op.lhs_dilation) or op.batch_group_count != 1:
        emit_block_wide(e, op)
        return
    f = e.f
    sides = _ConvolutionSides(e, op)
    layout, element = e.layout(op.result), op.result.element
    zero = elements.register_constant(element, element.dtype.type(0), 1)
    start: list[Register] = [zero] * len(layout.alive)
    turns = math.prod(sides.inner)
    metadata = rolled(f) if turns > _UNROLLED else ""
    with f.for_range(0, turns, 1, flat(start), metadata=metadata) as loop:
        totals = dict(zip(layout.alive, unflat(loop.carried, start), strict=True))
        sides.turn(loop.index)
        width = sides.width(layout)
        for first in range(0, layout.count, width):
            place = layout.places[first]
            if place is None:
                continue
            index = e.block.index(layout, place)
            left, right = sides.image(index, width), sides.kernel(index, width)
            for lane in range(width):
                number = first + lane
                if number in totals:
                    totals[number] = added(e, op, totals[number], left[lane], right[lane])
        loop.carry(*flat([totals[number] for number in layout.alive]))
    tile: Tile = [None] * layout.count
    for number, one in zip(layout.alive, unflat(loop.results, start), strict=True):
        tile[number] = elements.rounded(f, one, element) if isinstance(one, llvm.Value) else one
    e.bind(op.result, tile, layout)


class _ConvolutionSides:
    """The elements of image and kernel that neighbouring results along the last dim multiply: read
    from shared memory, several at once where they are neighbours too."""

    def __init__(self, e: Emitter, op: Op) -> None:
        self.e, self.op, self.f = e, op, e.f
        self.left, self.right = op.operands
        self.pointers = dict(zip(op.operands, e.shared(*op.operands), strict=True))
        self.slides = convolution_slides(op)
        self.features = self.right.dims[op.kernel_input_feature_dimension]
        self.inner = [*(slide.size for slide in self.slides), self.features]
        outputs = self.right.dims[op.kernel_output_feature_dimension]
        self.each = outputs // op.feature_group_count
        self.reversal = window_attributes(op)[4]

    def width(self, layout: DistributedLayout) -> int:
        """Results that are taken at once: features of one group, or of one each."""
        op, last = self.op, self.op.result.rank - 1
        if (op.output_feature_dimension, op.kernel_output_feature_dimension) != (
            last,
            self.right.rank - 1,
        ):
            return 1
        if self.alone and op.input_feature_dimension != self.left.rank - 1:
            return 1
        width = layout.vector(max(1, CHUNK // self.right.element.itemsize))
        sizes = [self.op.result.dims[-1], self.right.dims[-1]]
        if op.feature_group_count > 1:
            sizes.append(self.left.dims[-1] if self.alone else self.each)
        while width > 1 and any(size % width for size in sizes):
            width //= 2
        return width

    @property
    def alone(self) -> bool:
        """Whether each result has a feature of the image of its own."""
        return self.op.feature_group_count > 1 and self.features == self.each == 1

    def turn(self, number: llvm.Value) -> None:
        """The place in the window, and what has been read there."""
        self.indexer = Indexer(Scopes(self.f))
        at = of_axis(LoopAxis(number, max(1, math.prod(self.inner))))
        self.walked = delinear(self.indexer, at, self.inner, 1)
        self.known: dict[Any, list[Register]] = {}

    def image(self, index: Sequence[Affine], width: int) -> list[Register]:
        """The elements of the image; 0 outside of it."""
        op, f = self.op, self.f
        feature = index[op.output_feature_dimension]
        found = [ZERO] * self.left.rank
        found[op.input_batch_dimension] = index[op.output_batch_dimension]
        channel = self.walked[-1]
        if op.feature_group_count != 1:
            group = self.indexer.divide(feature, self.each, 1)[0]
            channel = channel + group * self.features
        found[op.input_feature_dimension] = channel
        inside: llvm.Value | None = None
        for number, slide in enumerate(self.slides):
            tap = self.walked[number]
            if self.reversal[number]:
                tap = tap * -1 + (slide.size - 1)
            at = index[op.output_spatial_dimensions[number]]
            place = at * slide.stride + tap * slide.dilation + -slide.low
            found[op.input_spatial_dimensions[number]] = place
        for at, size in zip(found, self.left.dims, strict=True):
            if at.low < 0 or at.high >= size:
                held = f.compare("ult", self.e.block.scalar(at), size)
                inside = held if inside is None else f.land(inside, held)
        several = width if self.alone else 1
        read = self.read(self.left, found, several, inside)
        return read if several == width else read * width

    def kernel(self, index: Sequence[Affine], width: int) -> list[Register]:
        op = self.op
        found = [self.walked[-1]] * self.right.rank
        found[op.kernel_output_feature_dimension] = index[op.output_feature_dimension]
        for number, d in enumerate(op.kernel_spatial_dimensions):
            found[d] = self.walked[number]
        return self.read(self.right, found, width, None)

    def read(
        self, value: Value, index: Sequence[Affine], count: int, inside: llvm.Value | None
    ) -> list[Register]:
        """Neighbours of a tile in shared memory, in the type of the sums."""
        f, element = self.f, self.op.result.element
        offset = linear(index, value.dims)
        key = value, offset.key, inside and tuple(at.key for at in index)
        if key in self.known:
            return self.known[key]
        place = self.e.block.scalar(offset)
        # Results outside of the tile read anything.
        if inside is not None:
            place = f.select(inside, place, 0)
        elif offset.high + count > value.tensor.size:
            place = f.min(place, value.tensor.size - count)
        where = f.pointer(self.pointers[value], f.mul(place, value.element.itemsize), "i8")
        zero = elements.register_constant(element, element.dtype.type(0), 1)
        found: list[Register] = []
        for one in load(f, where, value.element, count, True):
            one = arithmetic.convert(f, one, value.element, widened(element, value.element))
            found.append(one if inside is None else arithmetic.select(f, inside, one, zero))
        self.known[key] = found
        return found
