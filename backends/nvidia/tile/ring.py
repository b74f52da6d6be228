"""Loads of a loop some turns ahead: a ring of stages in shared memory, filled by cp.async.

In turn n the stage of turn n is multiplied while copies for turn n + stages - 1 are on their way.
One barrier a turn says both that the stage has arrived everywhere and that the one which is filled
next has been read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....hlo.graph import Op, Value
from ... import llvm
from ...llvm import elementwise
from ...llvm.elements import Register
from ..atoms import thread_copy
from .analysis import MovingLoop, OperandSource, WindowLoad
from .copies import commit, copy, wait
from .emitter import Emitter
from .operands import ProductOperand
from .shared import ALIGNMENT, CHUNK, PaddedTile, bytes_of

MOST_STAGES = 4
SHARE = 2  # blocks that a multiprocessor should hold at once


@dataclass(frozen=True, eq=False)
class Ring:
    """The loads of a loop that run ahead, and the rows that each of them fills in a stage."""

    loop: MovingLoop
    windows: tuple[WindowLoad, ...]
    sources: tuple[OperandSource, ...]
    rows: tuple[PaddedTile, ...]  # of stage 0
    stages: int

    @property
    def bytes(self) -> tuple[int, ...]:
        """Of one stage, for each load."""
        return tuple(rows.bytes for rows in self.rows)


def ring(e: Emitter, op: Op) -> Ring | None:
    """The ring of a loop; None where nothing can run ahead."""
    if thread_copy(e.target.architecture, "global", "shared", CHUNK) is None:
        return None
    (loop,) = (one for one in e.facts.loops if one.op is op)
    if loop.trips is not None and loop.trips < 2:
        return None
    found: dict[Op, tuple[WindowLoad, ProductOperand]] = {}
    for product in loop.products:
        plan = e.assignment.products.get(product.op)
        if plan is None:
            continue
        for operand in plan.operands:
            window = operand.source.window
            if window is None or window.op not in e.assignment.direct:
                continue
            moves = window.op in loop.region.ops and window.follows
            if moves and window.op not in found:
                found[window.op] = window, operand
    if not found:
        return None
    windows, operands = zip(*found.values(), strict=True)
    total = sum(bytes_of(operand.tile, operand.size) for operand in operands)
    budget = e.target.architecture.shared_bytes // SHARE
    stages = min(MOST_STAGES, budget // total)
    if loop.trips is not None:
        stages = min(stages, loop.trips)
    if stages < 2:
        stages = 2 if 2 * total + e.block.arena.size <= e.target.architecture.shared_bytes else 0
    if not stages:
        return None
    rows = []
    for operand in operands:
        size = bytes_of(operand.tile, operand.size)
        piece = e.block.arena.take(stages * size, ALIGNMENT)
        rows.append(PaddedTile(piece, operand.tile, operand.size))
        e.scope.staged[operand.source.origin, "ring"] = rows[-1]
        e.block.hazards.write(piece)
    sources = tuple(operand.source for operand in operands)
    return Ring(loop, windows, sources, tuple(rows), stages)


def begin(e: Emitter, ring: Ring, lower: llvm.Value, upper: llvm.Value) -> None:
    """Copies of the first turns."""
    f = e.f
    for turn in range(ring.stages - 1):
        at = f.add(lower, turn * ring.loop.op.step)
        with f.if_then(f.compare("slt", at, upper)):
            _fill(e, ring, at, llvm.constant("i32", turn))
        commit(f)


def turn(
    e: Emitter, ring: Ring, index: llvm.Value, upper: llvm.Value, slot: llvm.Value
) -> llvm.Value:
    """The head of a turn: `slot` has arrived, another one is filled. Returns the next slot."""
    f = e.f
    wait(f, ring.stages - 2)
    e.block.hazards.meet()
    ahead = f.add(index, (ring.stages - 1) * ring.loop.op.step)
    last = f.select(f.compare("eq", slot, 0), ring.stages - 1, f.sub(slot, 1))
    with f.if_then(f.compare("slt", ahead, upper)):
        _fill(e, ring, ahead, last)
    commit(f)
    for source, rows, size in zip(ring.sources, ring.rows, ring.bytes, strict=True):
        e.scope.rings[source.origin] = _stage(e, rows, slot, size)
    following = f.add(slot, 1)
    return f.select(f.compare("eq", following, ring.stages), 0, following)


def end(e: Emitter, ring: Ring) -> None:
    """No copy is on its way any more, and the stages are free."""
    wait(e.f, 0)
    for source in ring.sources:
        e.block.arena.give(e.scope.staged.pop((source.origin, "ring")).piece)


def _stage(e: Emitter, rows: PaddedTile, slot: llvm.Value, size: int) -> PaddedTile:
    return replace(rows, stage=e.f.mul(slot, size))


def _fill(e: Emitter, ring: Ring, at: llvm.Value, slot: llvm.Value) -> None:
    scalars = _Scalars(e, ring.loop, at)
    for window, source, rows, size in zip(
        ring.windows, ring.sources, ring.rows, ring.bytes, strict=True
    ):
        offsets = _offsets(e, window, scalars)
        copy(e, source, _stage(e, rows, slot, size), offsets)


class _Scalars:
    """Numbers of another turn of a loop: `at` is its index, i64."""

    def __init__(self, e: Emitter, loop: MovingLoop, at: llvm.Value) -> None:
        self.e, self.inner = e, set(loop.region.ops)
        self.known: dict[Value, Register] = {loop.index: e.f.cast("trunc", at, "i32")}

    def of(self, value: Value) -> Register:
        """An i32."""
        if value not in self.known:
            op = value.op
            varies = op is not None and op in self.inner and op.operands
            self.known[value] = (
                elementwise.applied(self.e.f, op, [self.of(operand) for operand in op.operands])
                if varies and op is not None
                else self.e.scalar(value)
            )
        return self.known[value]


def _offsets(e: Emitter, window: WindowLoad, scalars: _Scalars) -> Sequence[llvm.Value]:
    """The offsets of a window in another turn of its loop, i64."""
    f = e.f
    found = []
    for offset in window.offsets:
        total: llvm.Value = llvm.constant("i64", offset.constant)
        for variable, factor in offset.terms:
            value = scalars.of(variable)
            assert isinstance(value, llvm.Value)
            total = f.add(total, f.mul(f.cast("sext", value, "i64"), factor))
        found.append(total)
    return found
