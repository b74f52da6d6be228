"""select_and_scatter: each source element goes to the place that its window selects."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....hlo.graph import Op
from ... import llvm
from ...llvm import elements
from ...llvm.arithmetic import select
from ...llvm.elements import Register
from ...llvm.elementwise import ElementEmitter, Mask, scalar_region
from ...llvm.index import Affine, LoopAxis, Scopes, delinear, linear, of_axis
from ...llvm.target import KernelCode, Target
from ..frame import tile_range
from ..monoid import flat, unflat
from .frame import frame_of, nest
from .window import per_dim


def emit(op: Op, target: Target) -> KernelCode:
    """Source elements in their order. Where dims of the window are 1, what lies apart along them
    are tiles, if tiles should be small; else one worker does it all."""
    frame, emitter = frame_of(op, target)
    f, scopes = frame.function, frame.scopes
    source, values, initial = op.operands
    output = frame.outputs[0]
    element = op.result.element
    if not source.tensor.size:
        return frame.finish(0, 0.0)
    rank = source.rank
    sizes = per_dim(op.window_dimensions, rank, 1)
    strides = per_dim(op.window_strides, rank, 1)
    padding = per_dim(op.padding, rank, (0, 0))
    outer_dims = [
        d
        for d in range(rank)
        if target.one_lane and (sizes[d], strides[d], *padding[d]) == (1, 1, 0, 0)
    ]
    count = source.tensor.size
    extents = [source.dims[d] for d in outer_dims]
    tiles = math.prod(extents)

    def inside_tile(dims: Sequence[int], outer: Sequence[Affine]) -> Iterator[tuple[Affine, ...]]:
        """The indices of an array whose dims `outer_dims` stand."""
        with nest(scopes, [1 if d in outer_dims else size for d, size in enumerate(dims)]) as inner:
            index = dict(enumerate(inner)) | dict(zip(outer_dims, outer, strict=True))
            yield tuple(index[d] for d in range(rank))

    with (
        tile_range(frame, 0, tiles) as (low, high),
        scopes.loop(low, high, extent=tiles) as (tile, _),
    ):
        outer = delinear(emitter.indexer, tile, extents, 1)
        first = emitter.value(initial, (), 1)
        for at in inside_tile(source.dims, outer):
            emitter.store(output, first, element, linear(at, source.dims))
        if values.tensor.size:
            for index in inside_tile(values.dims, outer):
                found = _selected(op, emitter, scopes, index)
                with scopes.branch(f.compare("sge", found, 0)):
                    hit = of_axis(LoopAxis(found, count, depth=scopes.depth))
                    old = emitter.load(output, element, hit)
                    new = emitter.value(values, index, 1)
                    (result,) = scalar_region(f, op.regions[1], [old, new], 1)
                    emitter.store(output, result, element, hit)
    return frame.finish(tiles, op.definition.flops(op), parallel=False)


def _selected(
    op: Op, emitter: ElementEmitter, scopes: Scopes, index: tuple[Affine, ...]
) -> llvm.Value:
    """The number of the element that a window selects; negative where it has none inside."""
    f, source = emitter.function, op.operands[0]
    zero = elements.register_constant(source.element, source.element.dtype.type(0), 1)
    start: list[Register] = [zero, llvm.constant("i64", -1)]
    # Positions of the window, as one loop.
    total = math.prod(per_dim(op.window_dimensions, source.rank, 1))
    with scopes.loop(0, total, 1, flat(start), extent=total) as (number, loop):
        carried = unflat(loop.carried, start)
        place, inside = _place(op, emitter, index, number)
        if place is None:
            loop.carry(*flat(carried))
        else:
            candidate = emitter.value(source, place, 1, inside)
            (keep,) = scalar_region(f, op.regions[0], [carried[0], candidate], 1)
            found = carried[1]
            assert isinstance(keep, llvm.Value) and isinstance(found, llvm.Value)
            keep = f.land(keep, f.compare("sge", found, 0))
            better = f.lnot(keep)
            if inside is not None:
                better = f.land(better, inside.value)
            where = emitter.indexer.scalar(linear(place, source.dims))
            loop.carry(
                *flat([select(f, better, candidate, carried[0])]),
                f.select(better, where, found),
            )
    found = unflat(loop.results, start)[1]
    assert isinstance(found, llvm.Value)
    return found


def _place(
    op: Op, emitter: ElementEmitter, index: tuple[Affine, ...], number: Affine
) -> tuple[list[Affine] | None, Mask | None]:
    """Where place `number` of a window lies in the source, and whether that is inside; None where
    no place of it is."""
    source = op.operands[0]
    sizes = per_dim(op.window_dimensions, source.rank, 1)
    strides = per_dim(op.window_strides, source.rank, 1)
    padding = per_dim(op.padding, source.rank, (0, 0))
    rest = number
    offsets: list[Affine] = []
    for size in reversed(sizes):
        rest, offset = emitter.indexer.divide(rest, size, 1)
        offsets.insert(0, offset)
    place: list[Affine] = []
    inside: Mask | None = None
    skip = False
    for d, (one, offset) in enumerate(zip(index, offsets, strict=True)):
        position = one * strides[d] + offset + -padding[d][0]
        valid = emitter.in_range(position, 0, source.dims[d], 1)
        if valid is False:
            skip = True
        else:
            inside = emitter.both(inside, valid)
        place.append(position.within(0, source.dims[d] - 1))
    return (None if skip else place), inside
