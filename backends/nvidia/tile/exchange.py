"""A tile in another layout: registers by other names, shuffles, or shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from ....hlo.graph import Value
from ....hlo.types import ElementType
from ... import llvm
from ...llvm import elements
from ...llvm.elements import Register
from ...plain.monoid import flat, unflat
from .. import layouts
from ..atoms import ACCESS_BYTES
from ..frame import shuffle, where
from ..layouts import Shuffles, Swap
from ..windows import load, store
from .assign import Assignment
from .distributed_layout import DistributedLayout, copies, way
from .emitter import Emitter
from .operands import raw_bits
from .scope import Tile
from .shared import PaddedTile, bytes_of

WORTH = 512  # elements of a tile whose stores are worth an exchange
SECTOR = 32  # bytes of global memory that are moved at once
_SAME_LANE = (1, 2, 4, 8, 16)


def converted(
    e: Emitter, value: Value, source: DistributedLayout, tile: Tile, target: DistributedLayout
) -> Tile:
    """The registers of a value in the layout `target`, from those in `source`."""
    found = way(value, source, target)
    if found.kind in ("none", "registers"):
        return [
            tile[number] if place is not None else None
            for number, place in zip(found.registers, target.places, strict=True)
        ]
    # Through shared memory each element is written and read.
    words = max(len(source.alive), len(target.alive)) * max(1.0, value.element.itemsize / 4)
    blocks = e.target.machine.blocks
    assert blocks is not None
    if found.shuffles is not None and found.shuffles.cost <= 4 * words + blocks.meeting:
        return _shuffled(e, value.element, tile, target, found.shuffles)
    return _through_shared(e, value, source, tile, target)


def stored(assignment: Assignment, value: Value, layout: DistributedLayout) -> DistributedLayout:
    """The layout that a value is stored in: its own, or one of 16-byte accesses where its own has
    narrow ones, or ones of parts of sectors."""
    size = value.element.itemsize
    most = ACCESS_BYTES // size
    if value.tensor.size < WORTH or not value.rank:
        return layout
    vector = layout.vector(most)
    steps = {basis[-1] for basis in layout.threads[: layouts.LANE_BITS]}
    run = vector
    while run in steps:
        run *= 2
    wide = assignment.blocked(value.dims)
    if vector * size >= 8 and run * size >= SECTOR or wide.vector(most) * size < ACCESS_BYTES:
        return layout
    return wide


# Shuffles.


def _shuffled(
    e: Emitter, element: ElementType, tile: Tile, target: DistributedLayout, plan: Shuffles
) -> Tile:
    f, pack = e.f, 1 << plan.packed_bits
    like = elements.register_constant(element, element.dtype.type(0), 1)
    registers: list[Register] = [like if one is None else one for one in tile]
    if pack > 1:
        raw = [raw_bits(f, one, element) for one in registers]
        whole = f"i{8 * element.itemsize * pack}"
        words = [f.bitcast(f.joined(raw[n : n + pack]), whole) for n in range(0, len(raw), pack)]
        kind = elements.memory_type(f, element)
        found = [
            elements.widen(f, f.extract(f.bitcast(word, f"<{pack} x {kind}>"), n), element)
            for word in _moved(e, words, plan)
            for n in range(pack)
        ]
    else:
        own = (flat([one]) for one in registers)
        parts = [_moved(e, list(part), plan) for part in zip(*own, strict=True)]
        found = [unflat(list(one), [like])[0] for one in zip(*parts, strict=True)]
    return [
        one if place is not None else None for one, place in zip(found, target.places, strict=True)
    ]


def _moved(e: Emitter, words: list[llvm.Value], plan: Shuffles) -> list[llvm.Value]:
    """Words of other lanes."""
    f = e.f
    words = _swapped(e, words, plan.before)
    lane = e.block.sum_of(layouts.terms([("lane", plan.lanes)]))
    kept = [words[0]] * len(plan.rounds)
    for step in plan.rounds:
        word = words[step.send]
        if not step.moves:
            kept[step.keep] = word
        elif plan.lanes == _SAME_LANE:
            kept[step.keep] = shuffle(f, "bfly", word, step.lane_xor)
        else:
            kept[step.keep] = shuffle(f, "idx", word, f.xor(lane, step.lane_xor))
    kept = _swapped(e, kept, plan.after)
    return [kept[number] for number in plan.words]


def _swapped(e: Emitter, words: list[llvm.Value], swaps: Sequence[Swap]) -> list[llvm.Value]:
    f, words = e.f, list(words)
    for swap in swaps:
        bits = f.land(e.block.thread, swap.mask)
        if swap.mask & swap.mask - 1:
            bits = f.land(f.call("llvm.ctpop.i32", "i32", bits, declare=True), 1)
        odd = f.compare("ne", bits, 0)
        for low in range(len(words)):
            high = low | 1 << swap.bit
            if low != high:
                a, b = words[low], words[high]
                words[low], words[high] = f.select(odd, b, a), f.select(odd, a, b)
    return words


# Shared memory.


def _through_shared(
    e: Emitter, value: Value, source: DistributedLayout, tile: Tile, target: DistributedLayout
) -> Tile:
    block, element, size = e.block, value.element, value.element.itemsize
    writer, reader = source.trimmed, target.trimmed
    place = layouts.best_tile(writer, reader, size)
    rows = PaddedTile(block.arena.take(bytes_of(place, size)), place, size)
    zero = elements.register_constant(element, element.dtype.type(0), 1)
    block.hazards.write(rows.piece)
    plan = layouts.addresses(writer, place, size)
    common, owner = block.common_address(rows, plan.terms), block.owner(copies(writer))
    for access in plan.accesses:
        known = [tile[number] for number in access.registers]
        if any(one is not None for one in known):
            pointer = block.place(rows, common, access)
            registers = [zero if one is None else one for one in known]
            with where(e.f, owner):
                store(e.f, pointer, registers, element, True)
    block.hazards.read(rows.piece)
    plan = layouts.addresses(reader, place, size)
    common = block.common_address(rows, plan.terms)
    found: Tile = [None] * target.count
    for access in plan.accesses:
        if any(target.places[number] is not None for number in access.registers):
            pointer = block.place(rows, common, access)
            loaded = load(e.f, pointer, element, len(access.registers), True)
            for number, one in zip(access.registers, loaded, strict=True):
                found[number] = one if target.places[number] is not None else None
    block.arena.give(rows.piece)
    return found
