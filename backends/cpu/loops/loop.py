"""`loop` fusions: every element of the roots by itself, vectors along the last dims.

The roots' index space is cut into boxes at the seams of concatenations and paddings, so that inside
a box no element needs a test. In each box neighbouring dims run as one where every access allows
it. Tiles are rows of a box (or blocks of one long row).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ....hlo.graph import Region
from ... import llvm
from ...llvm.elementwise import ElementEmitter, Mask
from ...llvm.index import SAME, Affine, Axis, delinear, linear, of_axis
from ...plain import composite
from ...plain.frame import Frame, computable, cost, steps, tile_range
from ...plain.probe import Findings, box_index, collapse, probe
from ..codegen import KernelCode, Target
from . import blocking, transpose
from .blocking import LoopBlocking

MAXIMUM_BOXES = 8
_ENOUGH_TILES = 16  # rows that are not cut
MAXIMUM_OPERATIONS = 48  # in all boxes together, where these are more


@dataclass
class Box:
    """A part of the roots' index space and the groups of dims that run as one there."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    groups: list[list[int]]
    found: Findings

    def extents(self) -> list[int]:
        return [math.prod(self.sizes[d] for d in group) for group in self.groups]

    def index(
        self, emitter: ElementEmitter, at: Sequence[Affine], width: int
    ) -> tuple[Affine, ...]:
        """The roots' index for a position in each group."""
        parts: list[Affine] = []
        for group, position in zip(self.groups, at, strict=True):
            parts.extend(delinear(emitter.indexer, position, [self.sizes[d] for d in group], width))
        return box_index(parts, self.starts, self.sizes)


def emit(
    region: Region, target: Target, flops: float, cut: LoopBlocking | None = None
) -> KernelCode:
    """The kernel of a `loop` fusion's region, cut as said or as usual."""
    dims = region.results[0].dims
    reduces = any(op.name == "reduce" for op in region.ops)
    same = all(root.dims == dims for root in region.results)
    if reduces or not same or not computable(region):
        return composite.emit(region, target, flops)
    frame = Frame(target, region.argument_types, region.result_types)
    emitter = frame.emitter(region)
    tiles = 0
    if all(root.tensor.size for root in region.results):
        for box in boxes(region):
            tiles += _box(frame, target, emitter, region, box, tiles, cut)
    work = cost(region) * region.results[0].tensor.size / 8
    return frame.finish(tiles, flops, work=work)


def boxes(region: Region) -> list[Box]:
    """The parts of the index space, in row-major order of their starts."""
    dims = region.results[0].dims
    whole = (0,) * len(dims)
    found = probe(region, whole, dims)
    ranges: list[list[tuple[int, int]]] = []
    count = 1
    most = max(MAXIMUM_BOXES, MAXIMUM_OPERATIONS // (1 + len(region.ops)))
    for size, cuts in zip(dims, found.cuts, strict=True):
        seams = sorted({cut for cut in cuts if 0 < cut < size})
        if count * (len(seams) + 1) > most:
            seams = []
        count *= len(seams) + 1
        ranges.append(list(itertools.pairwise([0, *seams, size])))
    if count == 1:
        return [Box(whole, dims, collapse(dims, found), found)]
    made: list[Box] = []
    for part in itertools.product(*ranges):
        starts = tuple(low for low, _ in part)
        sizes = tuple(high - low for low, high in part)
        inside = probe(region, starts, sizes)
        coefficients = [*inside.coefficients, _strides(dims)]
        merged = collapse(sizes, Findings(coefficients))
        made.append(Box(starts, sizes, merged, inside))
    return made


def _strides(dims: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides: where the box is stored."""
    return tuple(math.prod(dims[d + 1 :]) for d in range(len(dims)))


def _box(
    frame: Frame,
    target: Target,
    emitter: ElementEmitter,
    region: Region,
    box: Box,
    first: int,
    cut: LoopBlocking | None,
) -> int:
    """Emits one box as tiles from number `first` on; returns how many."""
    *outer, inner = box.extents()
    rows = math.prod(outer)
    usual = cut or blocking.default(region, target)
    width = usual.lanes
    if frame.target.vector_bits < 512 or inner == 1:
        while width > inner:
            width //= 2
    crossing = transpose.crossing(region, box.groups, box.sizes, box.found)
    if crossing is not None and width > 1:
        return transpose.emit(frame, emitter, region, box, crossing, first, cut)
    unroll = max(1, min(usual.unroll, inner // width))
    stride = width * unroll
    blocks = 1
    block = max(1, usual.block // stride) * stride
    if (cut or rows < _ENOUGH_TILES) and inner > block:
        blocks = -(-inner // block)
    tiles = rows * blocks
    with tile_range(frame, first, tiles) as (low, high):
        for at, begin, end in _rows(frame, outer, rows, blocks, block, inner, low, high):
            positions = _outer_positions(emitter, at, outer)
            for j, lanes, copies, mask in steps(
                frame.scopes, frame.target, begin, end, inner, width, unroll
            ):
                for copy in range(copies):
                    place = j + copy * lanes
                    index = box.index(emitter, [*positions, place], lanes)
                    store_roots(frame, emitter, region, index, lanes, mask)
    return tiles


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
        yield of_axis(Axis(row, rows, SAME, scopes.depth)), begin, end


def _outer_positions(
    emitter: ElementEmitter, row: Affine, outer: Sequence[int]
) -> tuple[Affine, ...]:
    return delinear(emitter.indexer, row, outer, 1)


def store_roots(
    frame: Frame,
    emitter: ElementEmitter,
    region: Region,
    index: Sequence[Affine],
    width: int,
    mask: Mask | None,
) -> None:
    """Computes the roots at an index and stores them; all loads come before the first store."""
    registers = [emitter.value(root, index, width, mask) for root in region.results]
    for root, register, pointer in zip(region.results, registers, frame.outputs, strict=True):
        emitter.store(pointer, register, root.element, linear(index, root.dims), width, mask)
