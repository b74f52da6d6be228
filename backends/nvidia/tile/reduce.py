"""Sums over dims of a tile: registers, then lanes, then warps, in a fixed tree."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....hlo.graph import Op
from ... import llvm
from ...llvm import elements
from ...llvm.elements import Pair, Register
from ...llvm.index import linear
from ...plain.monoid import Reduction, flat, unflat
from .. import layouts
from ..frame import shuffle, where
from .block_wide import emit_block_wide
from .distributed_layout import LANE_BITS, DistributedLayout
from .emitter import Emitter
from .scope import Tile


def reduce(e: Emitter, op: Op) -> None:
    """reduce: in registers where its body is one operation, else from shared memory."""
    reduction = Reduction(op)
    if reduction.single is None or len(op.results) != 1 or not op.operands[0].rank:
        emit_block_wide(e, op)
        return
    operand = op.operands[0]
    source = e.layout(operand)
    layout, numbers = source.without(op.dimensions)
    tile = _registers(e, reduction, source, layout, numbers)
    tile = _lanes(e, reduction, op, source, tile)
    tile = _warps(e, reduction, op, source, layout, tile)
    initial = reduction.initial[0]
    if not reduction.is_neutral(initial):
        first = reduction.read(e.f, [e.scalar(initial)])
        tile = [one and reduction.combine(e.f, first, [one], 1)[0] for one in tile]
    tile = [one and reduction.finished(e.f, [one])[0] for one in tile]
    e.bind(op.result, tile, layout)


def _registers(
    e: Emitter,
    reduction: Reduction,
    source: DistributedLayout,
    layout: DistributedLayout,
    numbers: Sequence[int],
) -> Tile:
    """What each thread has of each sum."""
    f, op = e.f, reduction.op
    tile = e.tile(op.operands[0], source)
    parts: list[list[Register]] = [[] for _ in range(layout.count)]
    for number, place in enumerate(source.places):
        if place is None:
            continue
        register = tile[number]
        assert register is not None
        values = reduction.read(f, [register])
        held = e.block.inside(source, place, op.dimensions)
        if held is not None:
            values = reduction.masked(f, held, values, 1)
        parts[numbers[number]].append(values[0])
    neutral = reduction.identity(1)[0]
    found: Tile = []
    for place, own in zip(layout.places, parts, strict=True):
        found.append(None if place is None else _joined(e, reduction, own or [neutral]))
    return found


def _joined(e: Emitter, reduction: Reduction, values: list[Register]) -> Register:
    """Neighbours first: a tree whose depth is the logarithm."""
    while len(values) > 1:
        pairs = [
            reduction.combine(e.f, [values[n]], [values[n + 1]], 1)[0]
            for n in range(0, len(values) - 1, 2)
        ]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def _summed(op: Op, source: DistributedLayout, bit: int) -> bool:
    return any(source.threads[bit][d] for d in op.dimensions)


def _lanes(e: Emitter, reduction: Reduction, op: Op, source: DistributedLayout, tile: Tile) -> Tile:
    for bit in range(min(LANE_BITS, len(source.threads))):
        if _summed(op, source, bit):
            tile = [
                one and reduction.combine(e.f, [one], [exchanged(e, one, 1 << bit)], 1)[0]
                for one in tile
            ]
    return tile


def exchanged(e: Emitter, register: Register, mask: int) -> Register:
    """The register of the lane whose number differs in the bits of a mask."""
    if isinstance(register, Pair):
        return Pair(*(shuffle(e.f, "bfly", part, mask) for part in register))
    return shuffle(e.f, "bfly", register, mask)


def _warps(
    e: Emitter,
    reduction: Reduction,
    op: Op,
    source: DistributedLayout,
    layout: DistributedLayout,
    tile: Tile,
) -> Tile:
    """Sums of warps, through shared memory; every thread adds them in the same order."""
    bits = [bit for bit in range(LANE_BITS, len(source.threads)) if _summed(op, source, bit)]
    if not bits:
        return tile
    f, block = e.f, e.block
    warps = 1 << len(bits)
    size, parts = _stored(reduction)
    total = math.prod(layout.dims)
    piece = block.arena.take(summed_bytes(reduction, layout, warps))
    base = e.pointer(piece)
    steps = [1 << bits.index(bit) if bit in bits else 0 for bit in range(len(source.threads))]
    terms = layouts.terms([("warp", steps[LANE_BITS:])])
    warp = f.cast("zext", block.sum_of(terms), "i64")
    own = f.pointer(base, f.mul(warp, total * size * parts), "i8")
    # One lane of a warp writes each sum; warps that hold the same write the same.
    lanes = sum(1 << bit for bit in range(LANE_BITS) if not any(layout.threads[bit]))
    first = None
    if lanes:
        first = f.compare("eq", f.land(block.thread, lanes), 0)
    block.hazards.write(piece)
    for number in layout.alive:
        place, register = layout.places[number], tile[number]
        assert place is not None and register is not None
        at = block.scalar(linear(block.index(layout, place), layout.dims))
        held = e.both(first, block.inside(layout, place))
        pointer = f.pointer(own, f.mul(at, size * parts), "i8")
        with where(e.f, held):
            _write(e, pointer, register, size)
    block.hazards.read(piece)
    found: Tile = [None] * layout.count
    for number in layout.alive:
        place, like = layout.places[number], tile[number]
        assert place is not None and like is not None
        at = block.scalar(linear(block.index(layout, place), layout.dims))
        held = block.inside(layout, place)
        if held is not None:
            at = f.select(held, at, 0)
        pointer = f.pointer(base, f.mul(at, size * parts), "i8")
        values: list[Register] = []
        for warp_number in range(warps):
            there = f.pointer(pointer, warp_number * total * size * parts, "i8")
            values.append(_read(e, there, like, size))
        found[number] = _joined(e, reduction, values)
    block.arena.give(piece)
    return found


def summed_bytes(reduction: Reduction, layout: DistributedLayout, warps: int) -> int:
    """Bytes of shared memory in which sums of a layout are joined, of so many warps."""
    return warps * math.prod(layout.dims) * math.prod(_stored(reduction))


def _stored(reduction: Reduction) -> tuple[int, int]:
    """Bytes of a part of a sum, and parts of it."""
    element = reduction.elements[0]
    kind = elements.register_type(element)
    return max(1, llvm.bits_of(kind) // 8), 2 if element.is_complex else 1


def _write(e: Emitter, pointer: llvm.Value, register: Register, size: int) -> None:
    f = e.f
    for number, part in enumerate(flat([register])):
        if part.type == "i1":
            part = f.cast("zext", part, "i8")
        f.store(part, f.pointer(pointer, number * size, "i8"))


def _read(e: Emitter, pointer: llvm.Value, like: Register, size: int) -> Register:
    f = e.f
    parts = []
    for number, part in enumerate(flat([like])):
        at = f.pointer(pointer, number * size, "i8")
        if part.type == "i1":
            parts.append(f.compare("ne", f.load("i8", at), 0))
        else:
            parts.append(f.load(part.type, at))
    return unflat(parts, [like])[0]
