"""Sums over dims of a tile: registers, then lanes, then warps, in a fixed tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from ....hlo.graph import Op, Value
from ... import llvm
from ...llvm import elements
from ...llvm.elements import Register
from ...llvm.index import linear
from ...plain.monoid import Reduction, flat, unflat
from .. import layouts
from ..frame import shuffle, where
from ..layout_code import as_i64
from ..loops.groups import restored, stored
from ..target import WARP
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
    summed = layout.copies & ~source.copies
    tile = [one and across(e.f, reduction, one, summed % WARP) for one in tile]
    if summed >= WARP:
        tile = _warps(e, reduction, layout, tile, summed // WARP)
    e.bind(op.result, [one and concluded(e.f, reduction, one, e.scalar) for one in tile], layout)


def joined(
    f: llvm.Function, reduction: Reduction, values: Iterable[Register], chains: int = 0
) -> Register:
    """Neighbours first: a tree whose depth is the logarithm. `chains`: of so many sums at most, to
    which the values are added in turn (0: each is one)."""
    own: list[Register] = []
    for number, value in enumerate(values):
        if chains and number >= chains:
            (own[number % chains],) = reduction.combine(f, [own[number % chains]], [value], 1)
        else:
            own.append(value)
    while len(own) > 1:
        pairs = [
            reduction.combine(f, [own[n]], [own[n + 1]], 1)[0] for n in range(0, len(own) - 1, 2)
        ]
        own = pairs + own[len(pairs) * 2 :]
    return own[0]


def across(f: llvm.Function, reduction: Reduction, value: Register, lanes: int) -> Register:
    """A value joined with those of lanes whose numbers differ in the bits `lanes`."""
    for bit in range(LANE_BITS):
        if lanes >> bit & 1:
            parts = [shuffle(f, "bfly", part, 1 << bit) for part in flat([value])]
            (value,) = reduction.combine(f, [value], unflat(parts, [value]), 1)
    return value


def concluded(
    f: llvm.Function, reduction: Reduction, value: Register, scalar: Callable[[Value], Register]
) -> Register:
    """A result: joined with the initial value, rounded."""
    initial = reduction.initial[0]
    if not reduction.is_neutral(initial):
        first = reduction.read(f, [scalar(initial)])
        (value,) = reduction.combine(f, [value], first, 1)
    return reduction.finished(f, [value])[0]


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
        found.append(None if place is None else joined(e.f, reduction, own or [neutral]))
    return found


def _warps(
    e: Emitter, reduction: Reduction, layout: DistributedLayout, tile: Tile, summed: int
) -> Tile:
    """Sums of warps whose numbers differ in the bits `summed`, through shared memory; every thread
    adds them in the same order."""
    bits = [bit for bit in range(summed.bit_length()) if summed >> bit & 1]
    f, block = e.f, e.block
    warps = 1 << len(bits)
    size, parts = _stored(reduction)
    total = math.prod(layout.dims)
    piece = block.arena.take(summed_bytes(reduction, layout, warps))
    base = e.pointer(piece)
    steps = [1 << bits.index(bit) if bit in bits else 0 for bit in range(summed.bit_length())]
    terms = layouts.terms([("warp", steps)])
    warp = f.cast("zext", block.sum_of(terms), "i64")
    own = f.pointer(base, f.mul(warp, total * size * parts), "i8")
    # One lane of a warp writes each sum; warps that hold the same write the same.
    first = block.owner(layout.copies % WARP)
    block.hazards.write(piece)
    for number in layout.alive:
        place, register = layout.places[number], tile[number]
        assert place is not None and register is not None
        at = as_i64(f, linear(block.index(layout, place), layout.dims))
        held = e.both(first, block.inside(layout, place))
        pointer = f.pointer(own, f.mul(at, size * parts), "i8")
        with where(e.f, held):
            _write(e, pointer, register, size)
    block.hazards.read(piece)
    found: Tile = [None] * layout.count
    for number in layout.alive:
        place, like = layout.places[number], tile[number]
        assert place is not None and like is not None
        at = as_i64(f, linear(block.index(layout, place), layout.dims))
        held = block.inside(layout, place)
        if held is not None:
            at = f.select(held, at, 0)
        pointer = f.pointer(base, f.mul(at, size * parts), "i8")
        values: list[Register] = []
        for warp_number in range(warps):
            there = f.pointer(pointer, warp_number * total * size * parts, "i8")
            values.append(_read(e, there, like, size))
        found[number] = joined(f, reduction, values)
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
    for number, part in enumerate(flat([register])):
        e.f.store(stored(e.f, part), e.f.pointer(pointer, number * size, "i8"))


def _read(e: Emitter, pointer: llvm.Value, like: Register, size: int) -> Register:
    parts = []
    for number, part in enumerate(flat([like])):
        kind = "i8" if part.type == "i1" else part.type
        raw = e.f.load(kind, e.f.pointer(pointer, number * size, "i8"))
        parts.append(restored(e.f, raw, part.type))
    return unflat(parts, [like])[0]
