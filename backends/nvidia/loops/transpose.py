"""Boxes in which an operand is contiguous along another dimension than the results.

A block of threads reads a tile of the operand along the operand's dimension into shared memory and
computes the tile of the results from there, so that both sides are coalesced. Where sizes allow it,
both sides move 16 bytes per access: `Packed` tiles hold 32-bit words of neighbours along the
results' dimension, their columns swizzled so that no two lanes of an access meet in a bank. Else
tiles are `Single`: one element per access, rows padded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

from ....hlo.deciding import common_divisor, surely_divides
from ....hlo.graph import Region
from ... import llvm
from ...llvm import elements
from ...llvm.elements import Register
from ...llvm.elementwise import Mask
from ...llvm.index import CONSECUTIVE, SAME, Affine, LoopAxis, delinear, linear, of_axis
from ...plain.boxes import Crossing, IndexBox
from ..atoms import ACCESS_BYTES
from ..frame import barrier
from ..target import WARP
from .head import FusionEntry
from .threads import ThreadEmitter, joined

_WORD = 4  # bytes
_SEGMENT = 128  # bytes that all banks hold
_PAD = 4  # bytes behind a row of a tile of single elements, at least


class SharedTile(NamedTuple):
    """A tile of an argument in shared memory; rows of `row` bytes."""

    offset: int
    row: int
    size: int  # bytes of an element
    packed: bool


@dataclass(frozen=True)
class Shape:
    """Sizes of a tile: `along` the arguments' contiguous dimension, `inner` along the results';
    `width`: elements of a result that a thread computes at once."""

    along: int
    inner: int
    width: int
    packed: bool


def shape(region: Region, box: IndexBox, crossing: Crossing) -> Shape:
    """Packed tiles where every staged argument moves in whole accesses."""
    extents = box.extents()
    along, inner = extents[crossing.group], extents[-1]
    sizes = [region.arguments[number].element.itemsize for number in crossing.strides]
    width = ACCESS_BYTES // max(sizes)
    fits = max(sizes) <= _WORD and surely_divides(width, inner)
    for number, (strides, constant) in crossing.strides.items():
        size = region.arguments[number].element.itemsize
        if size > _WORD:
            continue
        lanes = ACCESS_BYTES // size
        others = [s for group, s in enumerate(strides) if group != crossing.group]
        fits = fits and common_divisor(lanes, along, constant, *others) == lanes
        fits = fits and surely_divides(_WORD // size, inner)
    if not fits:
        return Shape(WARP, WARP, 1, False)
    unit = _SEGMENT // min(sizes)
    return Shape(max(64, unit), 128 if min(sizes) == 2 else max(64, unit), width, True)


class _StagedTiles(ThreadEmitter):
    """Reads staged arguments from their tiles: `row` is the thread's row, `column` its first."""

    places: dict[str, tuple[SharedTile, llvm.Value]]
    row: llvm.Value
    column: llvm.Value
    width: int

    def load(
        self,
        pointer: llvm.Value,
        element: Any,
        offset: Affine,
        width: int = 1,
        mask: Mask | None = None,
    ) -> Register:
        found = self.places.get(pointer.name)
        if found is None:
            return super().load(pointer, element, offset, width, mask)
        place, base = found
        f, kind = self.function, elements.memory_type(self.function, element)
        column = f.mul(self.column, place.size)
        if place.packed:
            # 16-byte columns of a row change places by the row's number among the accesses.
            lanes = ACCESS_BYTES // place.size
            turn = f.shl(f.land(f.udiv(self.row, lanes), 7), 4)
            column = f.xor(column, turn)
        at = f.add(f.mul(self.row, place.row), column)
        step = min(ACCESS_BYTES, width * place.size)
        parts = []
        for first in range(0, width * place.size, step):
            address = f.pointer(base, f.cast("zext", f.add(at, first), "i64"), "i8")
            vector = llvm.vector(step // place.size, kind)
            parts.append(f.load(vector, address, align=step))
        return elements.widen(f, joined(f, parts), element)


class Tiles:
    """The tiles of one box; `blocks` of them, a block of threads each."""

    def __init__(self, part: FusionEntry, box: IndexBox, crossing: Crossing) -> None:
        self.part, self.box, self.crossing = part, box, crossing
        self.region, self.f, self.scopes = part.region, part.function, part.scopes
        self.shape = shape(part.region, box, crossing)
        extents = box.extents()
        self.group = crossing.group
        self.along, self.inner = extents[self.group], extents[-1]
        self.others = [e for g, e in enumerate(extents[:-1]) if g != self.group]
        self.rows = -(-self.along // self.shape.along)
        self.columns = -(-self.inner // self.shape.inner)
        self.blocks = math.prod(self.others) * self.rows * self.columns

    def emit(self, block: llvm.Value) -> None:
        """The tile of a block, by its number in the box (i32)."""
        f, one = self.f, self.shape
        staged = _StagedTiles(self.part.entry, self.region, self.part.pointers)
        self.emitter = staged
        rest = f.udiv(block, self.columns)
        column = f.mul(f.sub(block, f.mul(rest, self.columns)), one.inner)
        other = f.udiv(rest, self.rows)
        row = f.mul(f.sub(rest, f.mul(other, self.rows)), one.along)
        extent = math.prod(self.others)
        place = of_axis(LoopAxis(other, extent, SAME, self.scopes.depth))
        self.outer = delinear(staged.indexer, place, self.others, 1)
        staged.places = {}
        staged.width = one.width
        for number in self.crossing.strides:
            size = self.region.arguments[number].element.itemsize
            pad = 0 if one.packed else max(_PAD, size)
            length = one.inner * size + pad
            offset = self.part.shared(one.along * length)
            placed = SharedTile(offset, length, size, one.packed)
            address = self.part.at(offset)
            staged.places[self.part.pointers[number].name] = placed, address
            self.stage(number, placed, address, row, column)
        barrier(f)
        self.compute(row, column)
        self.part.release()

    # Into shared memory.

    def stage(
        self, number: int, place: SharedTile, base: llvm.Value, row: llvm.Value, column: llvm.Value
    ) -> None:
        """All steps of a thread for one argument: the loads first."""
        f, one = self.f, self.shape
        warps = self.part.threads // WARP
        lane, warp = f.land(self.part.thread, WARP - 1), f.lshr(self.part.thread, 5)
        if not place.packed:
            values = []
            for turn in range(-(-one.inner // warps)):
                j = f.add(warp, turn * warps)
                raw = self.read(number, f.add(row, lane), f.add(column, j), 1, 1)
                at = f.add(f.mul(lane, place.row), f.mul(j, place.size))
                values.append((raw, at))
            for raw, at in values:
                f.store(raw, f.pointer(base, f.cast("zext", at, "i64"), "i8"), align=place.size)
            return
        packed, lanes = _WORD // place.size, ACCESS_BYTES // place.size
        across = one.along // (8 * lanes)
        most = min(one.inner, self.inner) if isinstance(self.inner, int) else one.inner
        down = -(-most // (4 * packed))  # no more than there is
        words = []
        for turn in range(-(-across * down // warps)):
            step = f.add(warp, turn * warps)
            if (turn + 1) * warps > across * down:
                # Warps that are left over read what the last one reads.
                step = f.min(step, across * down - 1, signed=False)
            step_row = f.udiv(step, down)
            step_column = f.sub(step, f.mul(step_row, down))
            first = f.mul(f.add(f.mul(step_row, 8), f.land(lane, 7)), lanes)
            word = f.add(f.mul(step_column, 4), f.lshr(lane, 3))
            raw = []
            for n in range(packed):
                j = f.add(f.mul(word, packed), n)
                raw.append(self.read(number, f.add(row, first), f.add(column, j), lanes, packed))
            swizzled = f.xor(word, f.shl(f.land(lane, 7), 2))
            at = f.add(f.mul(first, place.row), f.mul(swizzled, _WORD))
            words.append((turn, raw, at))
        for turn, raw, at in words:
            with ExitStack() as stack:
                if (turn + 1) * warps > across * down:
                    alone = f.compare("ult", warp, across * down - turn * warps)
                    stack.enter_context(f.if_then(alone))
                for n, word in enumerate(interleaved(f, raw)):
                    wide = f.add(f.cast("zext", at, "i64"), n * place.row)
                    f.store(word, f.pointer(base, wide, "i8"), align=_WORD)

    def read(
        self, number: int, i: llvm.Value, j: llvm.Value, lanes: int, packed: int
    ) -> llvm.Value:
        """Neighbours along the argument's dimension: words of an access, or one element."""
        f, depth = self.f, self.scopes.depth
        strides, constant = self.crossing.strides[number]
        i = self.clamped(i, self.along, lanes, self.shape.along)
        j = self.clamped(j, self.inner, 1, self.shape.inner)
        at = [*self.outer, of_axis(LoopAxis(j, self.inner, SAME, depth))]
        at.insert(self.group, of_axis(LoopAxis(i, self.along, SAME, depth, lanes)))
        offset = Affine((), constant)
        for stride, place in zip(strides, at, strict=True):
            offset = offset + place * stride
        kind = elements.memory_type(f, self.region.arguments[number].element)
        scalar = self.emitter.indexer.scalar(offset)
        address = f.pointer(self.part.pointers[number], scalar, kind)
        if lanes == 1:
            return f.load(kind, address)
        return f.load("<4 x i32>", address, align=ACCESS_BYTES)

    def clamped(self, at: llvm.Value, extent: int, width: int, tile: int) -> llvm.Value:
        """A position whose `width` neighbours exist; what it shows instead is not used."""
        return at if extent % tile == 0 else self.f.min(at, extent - width, signed=False)

    # Out of shared memory.

    def compute(self, row: llvm.Value, column: llvm.Value) -> None:
        """The roots of the tile, all steps of a thread: computed first, then stored."""
        f, one = self.f, self.shape
        threads = self.part.threads
        across = one.inner // one.width  # threads of a row
        results: list[tuple[int, Register, Affine, llvm.Value | None]] = []
        for turn in range(one.along * across // threads):
            number = f.add(self.part.thread, turn * threads)
            i = f.udiv(number, across)
            j = f.mul(f.sub(number, f.mul(i, across)), one.width)
            self.emitter.row, self.emitter.column = i, j
            whole_i, whole_j = f.add(row, i), f.add(column, j)
            guard = self.guard(whole_i, whole_j)
            at = self.index(whole_i, whole_j)
            for n, root in enumerate(self.region.results):
                register = self.emitter.value(root, at, one.width)
                results.append((n, register, linear(at, root.dims), guard))
        for n, register, offset, guard in results:
            element, pointer = self.region.results[n].element, self.part.outputs[n]
            if guard is None:
                self.emitter.store(pointer, register, element, offset, one.width)
            else:
                with self.scopes.branch(guard):
                    self.emitter.store(pointer, register, element, offset, one.width)

    def guard(self, i: llvm.Value, j: llvm.Value) -> llvm.Value | None:
        """Whether a position lies inside; None if every one does."""
        f, found = self.f, None
        pairs = ((i, self.along, self.shape.along), (j, self.inner, self.shape.inner))
        for at, extent, tile in pairs:
            if extent % tile:
                inside = f.compare("ult", at, extent)
                found = inside if found is None else f.land(found, inside)
        return found

    def index(self, i: llvm.Value, j: llvm.Value) -> tuple[Affine, ...]:
        depth, width = self.scopes.depth, self.shape.width
        i = self.clamped(i, self.along, 1, self.shape.along)
        j = self.clamped(j, self.inner, width, self.shape.inner)
        lanes = CONSECUTIVE if width > 1 else SAME
        at: list[Affine] = [*self.outer, of_axis(LoopAxis(j, self.inner, lanes, depth, width))]
        at.insert(self.group, of_axis(LoopAxis(i, self.along, SAME, depth)))
        return self.box.index(self.emitter, at, width)


def interleaved(f: llvm.Function, rows: Sequence[llvm.Value]) -> list[llvm.Value]:
    """Words whose parts are one element of each row; rows are accesses of four words."""
    if len(rows) == 1:
        return [f.extract(rows[0], n) for n in range(4)]
    columns = [[f.extract(row, n) for row in rows] for n in range(4)]
    found: list[llvm.Value] = []
    for words in columns:
        if len(rows) == 2:
            a, b = words
            found += [permuted(f, a, b, 0x5410), permuted(f, a, b, 0x7632)]
            continue
        a, b, c, d = words
        for order in (0x5140, 0x7362):
            left, right = permuted(f, a, b, order), permuted(f, c, d, order)
            found += [permuted(f, left, right, 0x5410), permuted(f, left, right, 0x7632)]
    return found


def permuted(f: llvm.Function, a: llvm.Value, b: llvm.Value, order: int) -> llvm.Value:
    """Four bytes of two words: nibble k of `order` says which (0-3 of a, 4-7 of b) is byte k."""
    return f.call("llvm.nvvm.prmt", "i32", a, b, llvm.constant("i32", order), declare=True)
