"""mbarrier: objects in shared memory that count arrivals of threads and bytes of copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .copies import when_landed
from .matrix import unsupported
from .syntax import Address, Instruction, Operand, Sink
from .table import Bound, operation
from .traffic import Traffic, shared_place, spread

if TYPE_CHECKING:
    from .engine import At, Batch

MOST_ARRIVALS = MOST_BYTES = (1 << 20) - 1


@dataclass
class Barrier:
    """A phase completes when `pending` arrivals and `bytes` of copies are both down to 0."""

    count: int  # arrivals of each phase
    pending: int
    bytes: int = 0  # expected minus arrived
    phase: int = 0

    def check(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.count


def barriers_of(state: Batch) -> dict[int, Barrier]:
    return state.data.setdefault("barriers", {})


def barrier_at(at: At, place: int) -> Barrier:
    """The barrier at a place in `state.shared`."""
    found = barriers_of(at.state).get(place)
    if found is None:
        offset = place % at.state.shared_stride
        at.fault("barrier", f"no mbarrier is initialised at shared address {offset}")
        return Barrier(1, 1)
    return found


def arrive(at: At, place: int, count: int = 1, expect: int = 0, drop: bool = False) -> Barrier:
    """Arrives `count` times after expecting bytes; gives the barrier (before: `phase`)."""
    barrier = barrier_at(at, place)
    barrier.bytes += expect
    check_bytes(at, barrier)
    barrier.pending -= count
    if drop:
        barrier.count -= count
    if barrier.pending < 0:
        offset = place % at.state.shared_stride
        at.fault(
            "barrier",
            f"mbarrier at shared address {offset} got more arrivals in a phase than the "
            f"{barrier.count} of its initialisation",
        )
    barrier.check()
    return barrier


def check_bytes(at: At, barrier: Barrier) -> None:
    if abs(barrier.bytes) > MOST_BYTES:
        text = f"an mbarrier counts at most {MOST_BYTES} bytes, here {abs(barrier.bytes)}"
        at.fault("barrier", text)


def complete_bytes(barrier: Barrier, count: int) -> None:
    """A copy of `count` bytes has landed."""
    barrier.bytes -= count
    barrier.check()


def meet(at: At) -> None:
    """The threads arrive at a barrier: what they wrote may be read by those who wait for it."""
    for hook in at.state.on_barrier:
        hook(at.threads)


def _places(at: At, address: Any) -> np.ndarray:
    return shared_place(at, spread(at, address), 8, 8, "mbarrier")


def _remote_is_alive(at: At, places: np.ndarray) -> None:
    state = at.state
    for cta in np.unique(places // state.shared_stride):
        start = int(cta) * state.threads_per_cta
        if not state.live[start : start + state.threads_per_cta].any():
            at.fault(
                "cluster",
                f"access to the shared memory of block {int(cta)} of the cluster, which has exited",
            )


@operation("mbarrier.init")
def mbarrier_init(instruction: Instruction) -> Bound:
    def run(at: At, address: Any, count: Any) -> None:
        barriers = barriers_of(at.state)
        for place, arrivals in zip(_places(at, address), spread(at, count), strict=True):
            if int(place) in barriers:
                at.fault("barrier", "mbarrier.init of a barrier that is in use (inval it first)")
            if not 1 <= arrivals <= MOST_ARRIVALS:
                at.fault("barrier", f"mbarrier.init with a count of {int(arrivals)}")
            barriers[int(place)] = Barrier(int(arrivals), int(arrivals))
            Traffic.of(at.state).barriers[place // 4 : place // 4 + 2] = True

    address, count = instruction.operands
    return Bound(run, ((address, "address"), (count, "u4")))


@operation("mbarrier.inval")
def mbarrier_inval(instruction: Instruction) -> Bound:
    def run(at: At, address: Any) -> None:
        for place in _places(at, address):
            barrier_at(at, int(place))
            barriers_of(at.state).pop(int(place), None)
            Traffic.of(at.state).barriers[place // 4 : place // 4 + 2] = False

    return Bound(run, ((instruction.operands[0], "address"),))


@operation("mbarrier.expect_tx", "mbarrier.complete_tx")
def mbarrier_transactions(instruction: Instruction) -> Bound:
    sign = 1 if instruction.parts[1] == "expect_tx" else -1

    def run(at: At, address: Any, count: Any) -> None:
        for place, amount in zip(_places(at, address), spread(at, count), strict=True):
            barrier = barrier_at(at, int(place))
            barrier.bytes += sign * int(amount)
            check_bytes(at, barrier)
            barrier.check()

    address, count = instruction.operands
    return Bound(run, ((address, "address"), (count, "u4")))


@operation("mbarrier.arrive", "mbarrier.arrive_drop")
def mbarrier_arrive(instruction: Instruction) -> Bound:
    parts, operands = instruction.parts, instruction.operands
    target: Operand = Sink()
    if not isinstance(operands[0], Address):
        target, operands = operands[0], operands[1:]
    expects, drops = "expect_tx" in parts, parts[1] == "arrive_drop"
    if "noComplete" in parts and len(operands) < 2:
        raise unsupported(instruction, ".noComplete without a count")
    remote = "shared::cluster" in parts

    def run(at: At, address: Any, amount: Any = None) -> Any:
        places = _places(at, address)
        meet(at)
        if remote:
            _remote_is_alive(at, places)
        tokens = np.zeros(places.size, np.uint64)
        amounts = spread(at, 1 if amount is None else amount)
        for lane in range(places.size):
            place, number = int(places[lane]), int(amounts[lane])
            tokens[lane] = barrier_at(at, place).phase
            if expects:
                arrive(at, place, expect=number, drop=drops)
            else:
                arrive(at, place, count=number, drop=drops)
        return (tokens,)

    sources = [(operands[0], "address"), *((operand, "u4") for operand in operands[1:2])]
    return Bound(run, tuple(sources), ((target, "u8"),))


@operation("mbarrier.test_wait", "mbarrier.try_wait")
def mbarrier_wait(instruction: Instruction) -> Bound:
    """A wait that would fail suspends the warp until the phase is over, as the hardware may do."""
    parity = "parity" in instruction.parts
    tries = instruction.parts[1] == "try_wait"
    target, address, token = instruction.operands[:3]

    def run(at: At, address: Any, token: Any) -> Any:
        places, tokens = _places(at, address), spread(at, token).astype(np.int64)
        state = at.state
        unique, which = np.unique(places, return_inverse=True)
        found = [barrier_at(at, int(place)) for place in unique]
        phases = np.array([barrier.phase for barrier in found], np.int64)[which]
        done = (phases ^ tokens) & 1 != 0 if parity else phases != tokens
        if done.all():
            return (done,)
        warps = at.threads // 32
        stuck = ~np.isin(warps, warps[done])
        if not tries:
            # A poll: let something that is under way arrive, then give the answer of before.
            if state.pending:
                state.pending.pop(int(state.random.integers(len(state.pending))))()
            return (done,)
        if stuck.any():
            waiting = [(found[i], found[i].phase) for i in np.unique(which[stuck])]
            first = waiting[0][0]
            offset = int(unique[which[stuck].min()]) % state.shared_stride

            def ready() -> bool:
                return any(barrier.phase != phase for barrier, phase in waiting)

            text = (
                f"the mbarrier at shared address {offset}, phase {first.phase}: {first.pending} of "
                f"{first.count} arrivals and {first.bytes} bytes were missing"
            )
            at.park(stuck, ready, text, again=True)
        return (done,)

    kind = "u4" if parity else "u8"
    return Bound(run, ((address, "address"), (token, kind)), ((target, "b1"),), blocking=True)


@operation("mbarrier.pending_count")
def mbarrier_pending_count(instruction: Instruction) -> Bound:
    raise unsupported(instruction, "the state of a barrier is a phase number here")


@operation("cp.async.mbarrier.arrive")
def copies_arrive(instruction: Instruction) -> Bound:
    """An arrival once all cp.async of the thread so far have landed."""
    counted = "noinc" in instruction.parts

    def run(at: At, address: Any) -> None:
        for thread, place in zip(at.threads, _places(at, address), strict=True):
            barrier = barrier_at(at, int(place))
            if not counted:
                barrier.pending += 1

            def landed(place: int = int(place)) -> None:
                arrive(at, place)

            when_landed(at, int(thread), landed)

    return Bound(run, ((instruction.operands[0], "address"),))
