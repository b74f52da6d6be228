"""Loads of a loop some turns ahead: a ring of stages in shared memory, filled by cp.async.

In turn n the stage of turn n is multiplied while copies for turn n + stages - 1 are on their way.
One barrier a turn says both that the stage has arrived everywhere and that the one which is filled
next has been read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....hlo.graph import Op
from ... import llvm
from .analysis import OperandSource
from .copies import copy
from .demand import running_ahead
from .emitter import Emitter
from .operands import staged
from .shared import ALIGNMENT, PaddedTile, bytes_of, commit, wait


@dataclass(frozen=True, eq=False)
class Ring:
    """The loads of a loop that run ahead, and the rows that each of them fills in a stage."""

    e: Emitter
    loop: Op
    sources: tuple[OperandSource, ...]
    rows: tuple[PaddedTile, ...]  # of stage 0
    stages: int

    def begin(self, lower: llvm.Value, upper: llvm.Value) -> llvm.Value:
        """Copies of the first turns. Returns the first turn's stage."""
        f = self.e.f
        for turn in range(self.stages - 1):
            at = f.add(lower, turn * self.loop.step)
            with f.if_then(f.compare("slt", at, upper)):
                self._fill(at, llvm.constant("i32", turn))
            commit(f)
        return llvm.constant("i32", 0)

    def turn(self, index: llvm.Value, upper: llvm.Value, number: llvm.Value) -> llvm.Value:
        """The head of a turn: a stage has arrived, another one is filled. Returns the next one."""
        f, last = self.e.f, self.stages - 1
        wait(f, self.stages - 2)
        self.e.hazards.meet()
        at = f.add(index, last * self.loop.step)
        before = f.select(f.compare("eq", number, 0), last, f.sub(number, 1))
        with f.if_then(f.compare("slt", at, upper)):
            self._fill(at, before)
        commit(f)
        for source, rows in zip(self.sources, self.rows, strict=True):
            self.e.scope.rings[source.origin] = self._stage(rows, number)
        following = f.add(number, 1)
        return f.select(f.compare("eq", following, self.stages), 0, following)

    def end(self) -> None:
        """No copy is on its way any more, and the stages are free."""
        wait(self.e.f, 0)
        for source in self.sources:
            self.e.block.arena.give(self.e.scope.staged.pop((source.origin, "ring")).piece)

    def _stage(self, rows: PaddedTile, number: llvm.Value) -> PaddedTile:
        return replace(rows, stage=self.e.f.mul(number, rows.bytes))

    def _fill(self, at: llvm.Value, number: llvm.Value) -> None:
        """Copies of the turn `at`, an i64; what is computed for it is forgotten."""
        with self.e.inside():
            self.e.know(self.loop.regions[0].arguments[0], self.e.f.cast("trunc", at, "i32"))
            for source, rows in zip(self.sources, self.rows, strict=True):
                copy(self.e, source, self._stage(rows, number), ahead=True)


def ahead(e: Emitter, op: Op) -> Ring | None:
    """What a loop's code does before it: operands that the loop does not change lie in shared
    memory; the ring of those that it does, where there is one."""
    inside = set(op.regions[0].walk())
    for product in e.facts.products:
        plan = e.assignment.products.get(product.op)
        for operand in plan.operands if plan is not None and product.op in inside else ():
            owner = operand.source.origin.op
            if owner is not None and owner not in inside:
                staged(e, operand)
    found = _ring(e, op)
    if found is not None:
        e.rings.append(found)
    return found


def _ring(e: Emitter, op: Op) -> Ring | None:
    """The ring of a loop; None where nothing runs ahead."""
    stages = e.assignment.stages.get(op, 0)
    found = running_ahead(e.assignment, op) if stages else None
    if found is None:
        return None
    rows = []
    for operand in found.operands:
        size = bytes_of(operand.tile, operand.size)
        piece = e.block.arena.take(stages * size, ALIGNMENT)
        rows.append(PaddedTile(piece, operand.tile, operand.size))
        e.scope.staged[operand.source.origin, "ring"] = rows[-1]
        e.block.hazards.write(piece)
    sources = tuple(operand.source for operand in found.operands)
    return Ring(e, op, sources, tuple(rows), stages)
