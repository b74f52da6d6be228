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
from ...llvm.index import Affine, Axis, Indexer, Scopes, delinear, of_axis
from ...plain.monoid import flat, unflat
from .dot import added, widened
from .emitter import Emitter
from .scope import Tile
from .team import together


def convolution(e: Emitter, op: Op) -> None:
    """convolution of any dims and groups; one of a dilated image, or of groups of the batch, is
    done in memory."""
    if any(step != 1 for step in op.lhs_dilation) or op.batch_group_count != 1:
        together(e, op)
        return
    f, block = e.f, e.block
    image, kernel = op.operands
    pointers = dict(zip(op.operands, e.shared(image, kernel), strict=True))
    spread = e.spread(op.result)
    element = op.result.element
    taps = [kernel.dims[d] for d in op.kernel_spatial_dimensions]
    depth = kernel.dims[op.kernel_input_feature_dimension]
    inner = [*taps, depth]
    zero = elements.register_constant(element, element.dtype.type(0), 1)
    start: list[Register] = [zero] * len(spread.alive)
    with f.for_range(0, math.prod(inner), 1, flat(start)) as loop:
        old = unflat(loop.carried, start)
        at = of_axis(Axis(loop.index, max(1, math.prod(inner))))
        walked = delinear(Indexer(Scopes(f)), at, inner, 1)
        known: dict[Any, Register] = {}  # of the image by an index, of the kernel by a feature
        new: list[Register] = []
        for total, number in zip(old, spread.alive, strict=True):
            place = spread.places[number]
            assert place is not None
            index = block.index(spread, place)
            feature = op.output_feature_dimension
            grouped = op.feature_group_count != 1
            key = tuple(at.key if d != feature or grouped else 0 for d, at in enumerate(index))
            if key not in known:
                ours = _image_index(e, op, index, walked)
                known[key] = _element(e, image, pointers[image], ours, element)
            other = index[feature].key
            if other not in known:
                theirs = [block.scalar(one) for one in _kernel_index(op, index, walked)]
                known[other] = _element(e, kernel, pointers[kernel], theirs, element)
            new.append(added(e, op, total, known[key], known[other]))
        loop.carry(*flat(new))
    tile: Tile = [None] * spread.count
    for number, one in zip(spread.alive, unflat(loop.results, start), strict=True):
        tile[number] = elements.rounded(f, one, element) if isinstance(one, llvm.Value) else one
    e.set(op.result, spread, tile)


def _image_index(
    e: Emitter, op: Op, index: Sequence[Affine], walked: Sequence[Affine]
) -> list[llvm.Value]:
    """The element of the image for a result and a tap; it may lie outside."""
    f, block = e.f, e.block
    image, kernel = op.operands
    strides, pads, _, dilations, reversed_ = window_attributes(op)
    found: list[llvm.Value] = [llvm.constant("i64", 0)] * image.rank
    found[op.input_batch_dimension] = block.scalar(index[op.output_batch_dimension])
    depth = kernel.dims[op.kernel_input_feature_dimension]
    channel = block.scalar(walked[-1])
    if op.feature_group_count != 1:
        feature = block.scalar(index[op.output_feature_dimension])
        each = kernel.dims[op.kernel_output_feature_dimension] // op.feature_group_count
        channel = f.add(channel, f.mul(f.udiv(feature, each), depth))
    found[op.input_feature_dimension] = channel
    for number, (stride, (low, _), dilation) in enumerate(
        zip(strides, pads, dilations, strict=True)
    ):
        tap = block.scalar(walked[number])
        if reversed_[number]:
            size = kernel.dims[op.kernel_spatial_dimensions[number]]
            tap = f.sub(llvm.constant("i64", size - 1), tap)
        out = block.scalar(index[op.output_spatial_dimensions[number]])
        place = f.add(f.mul(out, stride), f.mul(tap, dilation))
        found[op.input_spatial_dimensions[number]] = f.sub(place, low)
    return found


def _kernel_index(op: Op, index: Sequence[Affine], walked: Sequence[Affine]) -> list[Affine]:
    found = [walked[-1]] * op.operands[1].rank
    found[op.kernel_output_feature_dimension] = index[op.output_feature_dimension]
    for number, d in enumerate(op.kernel_spatial_dimensions):
        found[d] = walked[number]
    return found


def _element(
    e: Emitter, value: Value, pointer: llvm.Value, index: Sequence[llvm.Value], element: Any
) -> Register:
    """An element of a tile in shared memory; 0 outside of it."""
    f = e.f
    inside: llvm.Value | None = None
    place: llvm.Value = llvm.constant("i64", 0)
    for at, size in zip(index, value.dims, strict=True):
        held = f.compare("ult", at, size)
        inside = held if inside is None else f.land(inside, held)
        place = f.add(f.mul(place, size), at)
    if inside is not None:
        place = f.select(inside, place, 0)
    where = f.pointer(pointer, f.mul(place, value.element.itemsize), "i8")
    register = e.block.load(where, value.element, 1, False)[0]
    register = arithmetic.convert(f, register, value.element, widened(element, value.element))
    zero = elements.register_constant(element, element.dtype.type(0), 1)
    return register if inside is None else arithmetic.select(f, inside, register, zero)
