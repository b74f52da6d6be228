"""Boxes in which an operand is contiguous along another dimension than the result.

Square blocks are read along the operand's dimension, transposed in registers and staged on the
stack; then the rows of the block are computed from there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....hlo.deciding import at_hint
from ....hlo.graph import Region
from ... import llvm
from ...llvm import elements
from ...llvm.elements import Register
from ...llvm.elementwise import ElementEmitter, Mask
from ...llvm.index import CONSECUTIVE, SAME, Affine, LoopAxis, delinear, of_axis
from ...plain.boxes import Crossing, IndexBox
from ...plain.frame import Frame, steps, tile_range

if TYPE_CHECKING:
    from ....optimizer.cuts.loops import LoopBlocking


class _StagedBlocks(ElementEmitter):
    """Reads staged arguments from their blocks."""

    blocks: dict[str, llvm.Value]
    row: Affine
    lanes: int

    def load(
        self,
        pointer: llvm.Value,
        element: Any,
        offset: Affine,
        width: int = 1,
        mask: Mask | None = None,
    ) -> Register:
        block = self.blocks.get(pointer.name)
        if block is None or width != self.lanes:
            return super().load(pointer, element, offset, width, mask)
        f = self.function
        kind = elements.memory_type(f, element)
        at = self.indexer.scalar(self.row * width)
        raw = f.load(llvm.vector(width, kind), f.pointer(block, at, kind), align=width)
        return elements.widen(f, raw, element)


def emit(
    frame: Frame,
    plain: ElementEmitter,
    region: Region,
    box: IndexBox,
    crossing: Crossing,
    first: int,
    cut: LoopBlocking,
) -> int:
    """Emits one box as tiles from number `first` on, blocks of rows each; returns how many."""
    f, scopes = frame.function, frame.scopes
    extents = box.extents()
    across, inner = extents[crossing.group], extents[-1]
    width = min(cut.lanes, 1 << (max(1, min(at_hint(across), at_hint(inner))).bit_length() - 1))
    blocks, rest = divmod(across, width)
    others = [e for g, e in enumerate(extents[:-1]) if g != crossing.group]
    tiles = math.prod(others) * (blocks + (1 if rest else 0))
    staged = _StagedBlocks(f, region, frame.pointers, scopes=scopes)
    staged.lanes = width
    staged.blocks = {
        frame.pointers[n].name: f.alloca(
            elements.memory_type(f, region.arguments[n].element), width * width
        )
        for n in crossing.strides
    }

    def index(outer: Sequence[Affine], row: Affine, j: Affine, lanes: int) -> tuple[Affine, ...]:
        at = [*outer, j]
        at.insert(crossing.group, row)
        return box.index(plain, at, lanes)

    def rows(outer: Sequence[Affine], row: Affine, begin: int) -> None:
        for j, lanes, _, mask in steps(scopes, frame.target, begin, inner, inner, width, 1):
            frame.store_roots(plain, region, index(outer, row, j, lanes), lanes, mask)

    with (
        tile_range(frame, first, tiles) as (low, high),
        scopes.loop(low, high, extent=tiles) as (tile, loop),
    ):
        per = blocks + (1 if rest else 0)
        other = f.udiv(loop.index, per)
        block = f.sub(loop.index, f.mul(other, per))
        place = of_axis(LoopAxis(other, math.prod(others), SAME, scopes.depth))
        outer = delinear(plain.indexer, place, others, 1)
        if blocks:
            with scopes.branch(f.compare("slt", block, blocks)):
                # The axis belongs to the branch: what uses it must not move out of the test.
                start = f.mul(block, width)
                base = of_axis(LoopAxis(start, across - width + 1, SAME, scopes.depth, width))
                whole = inner - inner % width
                with scopes.loop(0, whole, width, extent=inner, multiple=width) as (j, j_loop):
                    for number in crossing.strides:
                        _stage(frame, staged, region, crossing, number, outer, base, j, width)
                    with scopes.loop(0, width, extent=width) as (r, _):
                        staged.row = r
                        lanes = LoopAxis(j_loop.index, inner, CONSECUTIVE, scopes.depth, width)
                        at = index(outer, (base + r).within(0, across - 1), of_axis(lanes), width)
                        frame.store_roots(staged, region, at, width, None)
                if inner % width:
                    with scopes.loop(0, width, extent=width) as (r, _):
                        rows(outer, (base + r).within(0, across - 1), whole)
        if rest:
            with (
                scopes.branch(f.compare("sge", block, blocks)),
                scopes.loop(blocks * width, across, extent=across) as (row, _),
            ):
                rows(outer, row, 0)
    return tiles


def _stage(
    frame: Frame,
    staged: _StagedBlocks,
    region: Region,
    crossing: Crossing,
    number: int,
    outer: Sequence[Affine],
    base: Affine,
    j: Affine,
    width: int,
) -> None:
    """Reads a block of one argument, transposes it, writes it to the stack."""
    f = frame.function
    strides, constant = crossing.strides[number]
    pointer = frame.pointers[number]
    kind = elements.memory_type(f, region.arguments[number].element)
    at = [*outer, j]
    at.insert(crossing.group, base)
    offset = Affine((), constant)
    for stride, one in zip(strides, at, strict=True):
        offset = offset + one * stride
    vector = llvm.vector(width, kind)
    columns = [
        f.load(vector, f.pointer(pointer, staged.indexer.scalar(offset + k * strides[-1]), kind))
        for k in range(width)
    ]
    target = staged.blocks[pointer.name]
    for r, row in enumerate(transposed(f, columns)):
        f.store(row, f.pointer(target, r * width, kind))


def transposed(f: llvm.Function, rows: list[llvm.Value]) -> list[llvm.Value]:
    """The columns of a square block given as rows: log2(n) rounds of two-operand shuffles."""
    n = len(rows)
    distance = n // 2
    while distance:
        # Swap off-diagonal quarters of all 2*distance blocks.
        low = [lane if not lane & distance else lane - distance + n for lane in range(n)]
        high = [lane + distance if not lane & distance else lane + n for lane in range(n)]
        result = list(rows)
        for r in range(n):
            if not r & distance:
                a, b = rows[r], rows[r + distance]
                result[r] = f.shuffle(a, b, low)
                result[r + distance] = f.shuffle(a, b, high)
        rows = result
        distance //= 2
    return rows
