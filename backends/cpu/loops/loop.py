"""`loop` fusions: every element of the roots by itself, vectors along the last dims.

The roots' index space is cut into boxes at the seams of concatenations and paddings, so that inside
a box no element needs a test. In each box neighbouring dims run as one where every access allows
it. Tiles are rows of a box (or blocks of one long row).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....hlo.deciding import at_hint, surely_below
from ....hlo.graph import Region
from ....optimizer.cuts.loops import (
    Common,
    LoopBlocking,
    LoopPass,
    LoopShape,
    RowsDown,
    RowsInCommon,
    likely,
)
from ... import llvm
from ...llvm.elementwise import ElementEmitter, Mask
from ...llvm.index import SAME, Affine, LoopAxis, delinear, number, of_axis
from ...llvm.target import KernelCode
from ...plain.boxes import IndexBox, boxes, crossing
from ...plain.frame import (
    Frame,
    computable,
    cost,
    lanes_for,
    read_bytes,
    steps,
    tile_range,
    weight,
)
from ...plain.probe import ProbedAccess, argument
from ..codegen import Target
from ..machines import cuts_of
from . import transpose
from .work import for_several, operations

_FEW = 8  # elements of a row that is no vector
_VECTORS_DOWN = 16  # of rows, of a tile


def takes(region: Region) -> bool:
    """Whether `emit` has a kernel for the region of a `loop` fusion."""
    dims = region.results[0].dims
    reduces = any(op.name == "reduce" for op in region.ops)
    return not reduces and all(r.dims == dims for r in region.results) and computable(region)


def emit(
    region: Region, target: Target, flops: float, cut: LoopBlocking | None = None
) -> KernelCode:
    """The kernel of a `loop` fusion's region that it takes, cut as said or as predicted best."""
    frame = Frame(target, region.argument_types, region.result_types)
    emitter = frame.emitter(region)
    tiles = 0
    if all(root.tensor.size for root in region.results):
        for box in boxes(region):
            own = cut or cuts_of(target).of_loop(_shape(region, target, box))
            tiles += _box(frame, target, emitter, region, box, tiles, own)
    work = cost(region) * at_hint(region.results[0].tensor.size) / 8
    return frame.finish(tiles, flops, work=work)


def shape_of(region: Region, target: Target) -> LoopShape | None:
    """What decides how the kernel is cut; None where it has several boxes, each cut alone."""
    found = boxes(region)
    return _shape(region, target, found[0]) if len(found) == 1 else None


def _shape(region: Region, target: Target, box: IndexBox) -> LoopShape:
    *outer, inner = (likely(extent) for extent in box.extents())
    size = max(1, at_hint(region.results[0].tensor.size))
    part = math.prod((*outer, inner)) / size
    across = crossing(region, box.groups, box.sizes, box.found)
    other = 1 if across is None else outer[across.group]
    named = {argument(n): value for n, value in enumerate(region.arguments)}
    last = [d for d in box.groups[-1] if box.sizes[d] != 1][-1:]
    moved, gathered, table = 0, 0, 0.0
    for load in dict.fromkeys(box.found.loads):
        if _is_gathered(load, box):
            gathered += 1
            table += float(at_hint(named[load.pointer].tensor.bytes))
        else:
            moved += sum(load.row[d] for d in last) != 0
    elements = max(root.element.itemsize for root in region.results)
    one = LoopPass(inner, operations(region.ops), moved + len(region.results), gathered)
    read = sum(read_bytes(value, region) for value in region.arguments)
    written = at_hint(sum(root.tensor.bytes for root in region.results))
    several = for_several(region, size, read + written)
    return LoopShape(
        "loop" if across is None else "transpose", likely(math.prod(outer)), (one,), part * read,
        part * written, elements, lanes_for(target, region), target.vector_registers,
        target.vector_bits == 512, several, other, table,
    )  # fmt: skip


def _box(
    frame: Frame,
    target: Target,
    emitter: ElementEmitter,
    region: Region,
    box: IndexBox,
    first: int,
    cut: LoopBlocking,
) -> int:
    """Emits one box as tiles from number `first` on; returns how many."""
    *outer, inner = box.extents()
    rows = math.prod(outer)
    hint = likely(inner)  # what follows is right for every size, meant for this one
    width = cut.lanes
    if frame.target.vector_bits < 512 or inner == 1:
        while width > hint:
            width //= 2
    across = crossing(region, box.groups, box.sizes, box.found)
    if across is not None and width > 1:
        return transpose.emit(frame, emitter, region, box, across, first, cut)
    if width > 1 and _reads_down(region, box):
        return _down(frame, emitter, region, box, first, cut.lanes)
    unroll = max(1, min(cut.unroll, hint // width))
    stride = width * unroll
    blocks = 1
    block = max(1, cut.block // stride) * stride
    if hint > cut.block:
        blocks = -(-inner // block)
    tiles = rows * blocks

    def vectors(positions: Sequence[Affine], step: tuple[Affine, int, int, Mask | None]) -> None:
        j, lanes, copies, mask = step
        for copy in range(copies):
            index = box.index(emitter, [*positions, j + copy * lanes], lanes)
            frame.store_roots(emitter, region, index, lanes, mask)

    cuts = inner, width, unroll
    down = RowsDown(0, 0.0)
    if blocks == 1 and surely_below(1, rows):
        down = _in_common(region, box).down(width, stride)
    if down.block:
        tiles = rows // down.block
    with tile_range(frame, first, tiles) as (low, high):
        if down.block:
            parts = (*outer[:-1], outer[-1] // down.block)
            with frame.scopes.loop(low, high, extent=tiles) as (tile, _):
                *before, part = _outer_positions(emitter, tile, parts)
                for step in steps(frame.scopes, frame.target, 0, inner, *cuts):
                    with frame.scopes.loop(0, down.block, extent=down.block) as (row, _):
                        vectors([*before, part * down.block + row], step)
        elif down.gain > 0:
            for step in steps(frame.scopes, frame.target, 0, inner, *cuts):
                for at, _, _ in _rows(frame, outer, rows, 1, block, inner, low, high):
                    vectors(_outer_positions(emitter, at, outer), step)
        else:
            for at, begin, end in _rows(frame, outer, rows, blocks, block, inner, low, high):
                for step in steps(frame.scopes, frame.target, begin, end, *cuts):
                    vectors(_outer_positions(emitter, at, outer), step)
    return tiles


def _reads_down(region: Region, box: IndexBox) -> bool:
    """Whether rows are a few elements, and what is read lies side by side from row to row, as the
    colours of an image that is brought from planes to pixels."""
    extents = box.extents()
    if len(extents) < 2 or not all(isinstance(n, int) for n in extents[-2:]):
        return False
    if not 1 < extents[-1] < _FEW or extents[-2] < _FEW:
        return False
    rows, inner = (_innermost(box, group) for group in box.groups[-2:])
    for load in dict.fromkeys(box.found.loads):
        if load.dims and not (load.plain and (load.row[rows], load.row[inner] == 1) == (1, False)):
            return False
    return any(load.dims for load in box.found.loads)


def _innermost(box: IndexBox, group: Sequence[int]) -> int:
    """The dim of a group whose neighbours are the group's."""
    return next((d for d in reversed(group) if box.sizes[d] != 1), group[-1])


def _down(
    frame: Frame, emitter: ElementEmitter, region: Region, box: IndexBox, first: int, lanes: int
) -> int:
    """Emits a box of short rows as vectors of rows, one for each element of a row, as tiles from
    number `first` on; returns how many."""
    *outer, across, inner = box.extents()
    block = lanes * _VECTORS_DOWN
    blocks = -(-across // block)
    tiles = math.prod(outer) * blocks
    f, scopes = frame.function, frame.scopes
    with (
        tile_range(frame, first, tiles) as (low, high),
        scopes.loop(low, high, extent=tiles) as (tile, _),
    ):
        *before, part = delinear(emitter.indexer, tile, (*outer, blocks), 1)
        begin = emitter.indexer.scalar(part * block)
        end = f.min(f.add(begin, block), across)
        for at, width, _, mask in steps(scopes, frame.target, begin, end, across, lanes, 1):
            for element in range(inner):
                index = box.index(emitter, [*before, at, number(element)], width)
                frame.store_roots(emitter, region, index, width, mask)
    return tiles


def _in_common(region: Region, box: IndexBox) -> RowsInCommon:
    """What the rows of a box have in common, and the elements of each."""
    last, line = frozenset(box.groups[-1]), frozenset(box.groups[-2])
    kinds, loads = box.found.dims.items(), dict.fromkeys(box.found.loads)
    rows = frozenset(d for group in box.groups[:-1] for d in group)

    def common(changing: frozenset[int]) -> Common:
        """What no dim of `changing` decides, but elements of a row differ in."""

        def found(dims: frozenset[int]) -> bool:
            return bool(dims & last) and not dims & changing

        return Common(
            sum(weight(op) for op, dims in kinds if found(dims)),
            sum(_is_gathered(load, box) for load in loads if found(load.dims)),
        )

    innermost = box.sizes[_innermost(box, box.groups[-2])]
    return RowsInCommon(
        likely(box.extents()[-1]), max(root.element.itemsize for root in region.results),
        sum(weight(op) for op, dims in kinds if dims and not dims & last),
        common(rows), common(line), innermost if isinstance(innermost, int) else 1,
    )  # fmt: skip


def _is_gathered(load: ProbedAccess, box: IndexBox) -> bool:
    """Whether lanes along the last dims read elements that are no neighbours."""
    last = [d for d in box.groups[-1] if box.sizes[d] != 1][-1:]
    stride = sum(load.row[d] for d in last)
    return stride not in (-1, 0, 1) or (not stride and not load.plain)


def _rows(
    frame: Frame,
    outer: Sequence[int],
    rows: int,
    blocks: int,
    block: int,
    inner: int,
    low: llvm.Value,
    high: llvm.Value,
) -> Iterator[tuple[Affine, llvm.Operand, llvm.Operand]]:
    """Loops over the tiles: yields (row, begin, end) of the inner dimension."""
    f, scopes = frame.function, frame.scopes
    if rows == 1:
        if blocks == 1:
            with scopes.branch(f.compare("slt", low, high)):
                yield Affine((), 0), 0, inner
        else:
            end = f.min(f.mul(high, block), inner)
            yield Affine((), 0), f.mul(low, block), end
        return
    with scopes.loop(low, high, extent=rows * blocks) as (tile, loop):
        if blocks == 1:
            yield tile, 0, inner
            return
        row = f.udiv(loop.index, blocks)
        begin = f.mul(f.sub(loop.index, f.mul(row, blocks)), block)
        end = f.min(f.add(begin, block), inner)
        yield of_axis(LoopAxis(row, rows, SAME, scopes.depth)), begin, end


def _outer_positions(
    emitter: ElementEmitter, row: Affine, outer: Sequence[int]
) -> tuple[Affine, ...]:
    return delinear(emitter.indexer, row, outer, 1)
