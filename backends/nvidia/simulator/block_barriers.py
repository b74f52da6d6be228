"""bar and barrier.cta: the sixteen barriers of a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ....hlo.errors import UserError
from .syntax import Instruction, Negated, Operand
from .table import Bound, operation

if TYPE_CHECKING:
    from .engine import At, Batch

COUNT = 16


class Barriers:
    """Arrivals at the barriers of all blocks of a batch."""

    def __init__(self, state: Batch) -> None:
        self.state = state
        shape = (state.cta_count, COUNT)
        self.arrived = np.zeros(shape, np.int64)
        self.expected = np.zeros(shape, np.int64)  # threads; 0: all that live
        self.truths = np.zeros(shape, np.int64)  # arrived threads whose predicate holds
        self.voters = np.zeros(shape, np.int64)
        self.waiting = np.full(state.T, -1, np.int8)  # barrier at which a thread waits
        self.released = np.zeros(state.T, bool)
        self.count = np.zeros(state.T, np.uint32)  # outcome of bar.red
        self.all = np.zeros(state.T, bool)
        self.cta_of = state.thread_numbers // state.threads_per_cta

    @staticmethod
    def of(state: Batch) -> Barriers:
        found = state.data.get("block barriers")
        if found is None:
            found = state.data["block barriers"] = Barriers(state)
        return found

    def settle(self) -> None:
        """Releases the threads of complete barriers."""
        live = self.state.live.reshape(self.state.cta_count, -1).sum(1)
        needed = np.where(self.expected > 0, self.expected, live[:, None])
        done = (self.arrived > 0) & (self.arrived >= needed)
        if not done.any():
            return
        free = (self.waiting >= 0) & done[self.cta_of, self.waiting]
        places = (self.cta_of[free], self.waiting[free])
        self.count[free] = self.truths[places]
        self.all[free] = self.truths[places] == self.voters[places]
        self.released[free] = True
        self.waiting[free] = -1
        for table in (self.arrived, self.expected, self.truths, self.voters):
            table[done] = 0
        self.state.blocks_met(np.unique(np.nonzero(done)[0]))

    def ready(self, threads: np.ndarray) -> np.ndarray:
        self.settle()  # threads that left may have completed a barrier
        return self.released[threads]


def check_aligned(at: At, threads: np.ndarray) -> None:
    """All live threads of each warp must be here."""
    state = at.state
    warps, counts = np.unique(threads >> 5, return_counts=True)
    live = state.live.reshape(-1, 32).sum(1)[warps]
    if (counts != live).any():
        wrong = threads[np.isin(threads >> 5, warps[counts != live])]
        at.fault("divergent", "a part of a warp reaches a barrier for whole warps", wrong)


def _arrive(
    at: At, barriers: Barriers, threads: np.ndarray, number: np.ndarray, count: Any, truth: Any,
    aligned: bool,
) -> None:  # fmt: skip
    """Counts the threads that arrive; with a count, whole warps of an aligned barrier."""
    cta = barriers.cta_of[threads]
    if ((number < 0) | (number >= COUNT)).any():
        at.fault("barrier", f"barrier {int(number.max())} of {COUNT}", threads)
    if aligned:
        check_aligned(at, threads)
    weight = np.ones(threads.size, np.int64)
    if count is not None:
        known = barriers.expected[cta, number]
        if ((known != 0) & (known != count)).any():
            at.fault("barrier", "threads name different counts for one barrier", threads)
        barriers.expected[cta, number] = count
        if aligned:  # a warp counts as 32 threads, also where some have left
            warps, first, counts = np.unique(threads >> 5, return_index=True, return_counts=True)
            weight[first] += 32 - counts
            if (count % 32).any():
                at.fault("barrier", f"a count of {int(count.max())}, no multiple of 32", threads)
    np.add.at(barriers.arrived, (cta, number), weight)
    np.add.at(barriers.truths, (cta, number), truth.astype(np.int64))
    np.add.at(barriers.voters, (cta, number), 1)
    expected = barriers.expected[cta, number]
    if ((expected > 0) & (barriers.arrived[cta, number] > expected)).any():
        at.fault("barrier", "more threads arrive than the barrier expects", threads)


def _together(at: At, number: np.ndarray, count: Any) -> bool:
    """Do all live threads of the batch arrive at one idle barrier that is for all of them?"""
    state = at.state
    if at.threads.size != state.live_count or state.live_count != state.T:
        return False
    if (number != number[0]).any() or not 0 <= number[0] < COUNT:
        return False
    if count is not None and (count != state.threads_per_cta).any():
        return False
    barriers = state.data.get("block barriers")
    return barriers is None or not (barriers.arrived.any() or barriers.released.any())


def _outcomes(mode: str, count: np.ndarray, every: np.ndarray) -> Any:
    return {"popc": count, "and": every, "or": count > 0}[mode]


@operation("bar", "barrier", lockstep=True)
def barrier(instruction: Instruction) -> Bound:
    parts = instruction.parts
    kind = next((p for p in parts if p in ("sync", "arrive", "red")), None)
    if kind is None or "cluster" in parts:
        raise UserError(
            f"PTX line {instruction.line}: '{instruction.opcode}' is not known\n"
            f"    {instruction.text}"
        )
    aligned = parts[0] == "bar" or "aligned" in parts
    operands = list(instruction.operands)
    mode = next((p for p in parts if p in ("popc", "and", "or")), "")
    targets: list[tuple[Operand, str]] = []
    predicate: Operand | None = None
    if kind == "red":
        targets = [(operands.pop(0), "u4" if mode == "popc" else "b1")]
        predicate = operands.pop()
    has_count = len(operands) > 1

    def run(at: At, *sources: Any) -> Any:
        for hook in at.state.on_barrier:
            hook(at.threads)
        number = np.asarray(sources[0]).astype(np.int64)
        count = sources[1].astype(np.int64) if has_count else None
        truth = sources[-1] if predicate is not None else np.zeros(at.threads.size, bool)
        if isinstance(predicate, Negated):
            truth = ~truth
        state = at.state
        if kind != "arrive" and _together(at, number, count):
            if state.races or state.communication is not None:
                state.blocks_met(np.arange(state.cta_count))
            if kind == "sync":
                return None
            votes = truth.reshape(state.cta_count, -1)
            sums = np.repeat(votes.sum(1).astype(np.uint32), state.threads_per_cta)
            every = np.repeat(votes.all(1), state.threads_per_cta)
            return (_outcomes(mode, sums, every),)
        barriers = Barriers.of(state)
        threads = at.threads
        fresh = ~barriers.released[threads]
        barriers.released[threads] = False
        if fresh.any():
            part = None if count is None else count[fresh]
            _arrive(at, barriers, threads[fresh], number[fresh], part, truth[fresh], aligned)
            if kind != "arrive":
                barriers.waiting[threads[fresh]] = number[fresh]
            barriers.settle()
        if kind == "arrive":
            return None
        barriers.released[threads[fresh & barriers.released[threads]]] = False
        stay = fresh & (barriers.waiting[threads] >= 0)
        if stay.any():
            names = ", ".join(str(n) for n in np.unique(number[stay]))
            at.park(stay, barriers.ready, f"barrier {names} of its block", again=True, each=True)
        if kind == "sync":
            return None
        return (_outcomes(mode, barriers.count[threads], barriers.all[threads]),)

    sources = [(operands[0], "u4")]
    if has_count:
        sources.append((operands[1], "u4"))
    if predicate is not None:
        inner = predicate.register if isinstance(predicate, Negated) else predicate
        sources.append((inner, "b1"))
    return Bound(run, tuple(sources), tuple(targets), blocking=True)
