"""cp.async.bulk: copies of many bytes by one thread, and their groups.

Loads land in a random order when no warp can run (lazy), or at once (eager), and then count down
the bytes of their barrier. Stores belong to bulk groups of their thread: lazily, shared memory is
read when `wait_group.read` or `wait_group` asks for it, global memory is written at `wait_group` or
at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from .matrix import unsupported
from .mbarriers import barrier_at, complete_bytes
from .syntax import Immediate, Instruction, Operand
from .table import Bound, operation
from .traffic import Traffic, global_bytes, shared_place, spread, words_from

if TYPE_CHECKING:
    from .engine import At, Batch

ELEMENTS: dict[str, Any] = {
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "s32": np.int32, "b32": np.uint32,
    "u64": np.uint64, "s64": np.int64, "b64": np.uint64, "f16": np.float16,
    "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip


@dataclass(eq=False)
class Store:
    """A copy out of shared memory: the words `index` go where `write` puts their bytes."""

    number: int  # of the instruction
    group: int
    index: np.ndarray
    write: Callable[[np.ndarray], None]
    data: np.ndarray | None = None
    written: bool = False
    released: bool = False

    def read_source(self, state: Batch) -> None:
        if self.data is None:
            self.data = state.shared_view("u4")[self.index].view(np.uint8)

    def finish(self, state: Batch) -> None:
        self.read_source(state)
        if not self.written and self.data is not None:
            self.written = True
            self.write(self.data)


@dataclass
class Outgoing:
    """Stores of one thread; `group` is the number of its open group."""

    group: int = 0
    stores: list[Store] = field(default_factory=list)


def _outgoing(state: Batch) -> dict[int, Outgoing]:
    found = state.data.get("outgoing")
    if found is None:
        found = state.data["outgoing"] = {}
        state.at_exit.append(_drain)
    return found


def _drain(state: Batch) -> None:
    """All threads have left: a store that nobody has waited for may read memory that is gone."""
    for thread, bulk in _outgoing(state).items():
        for store in bulk.stores:
            if not store.released and state.checks:
                text = (
                    "the block exits while this copy may still read its shared memory "
                    "(commit the group and wait with cp.async.bulk.wait_group)"
                )
                state.fault("exit", text, store.number, np.array([thread]))
            store.finish(state)


def issue_store(
    at: At, thread: int, index: np.ndarray, write: Callable[[np.ndarray], None], what: str
) -> None:
    """A copy out of shared memory by `thread`, in its open group."""
    state = at.state
    Traffic.of(state).begin_read(at, index, what, thread)
    bulk = _outgoing(state).setdefault(thread, Outgoing())
    store = Store(at.node.number, bulk.group, index, write)
    bulk.stores.append(store)
    if state.mode == "eager":
        store.finish(state)


def issue_load(
    at: At, index: np.ndarray, read: Callable[[], np.ndarray], barriers: list[tuple[int, int]],
    what: str,
) -> None:  # fmt: skip
    """A copy into the words `index`, [block, word]; it counts each (place of a barrier, bytes)
    down. In lazy runs it lands when no warp can run."""
    state = at.state
    traffic = Traffic.of(state)
    if state.checks:
        traffic.check_readers(at, index, what)
    traffic.begin_write(at, index, what)
    found = [(barrier_at(at, place), nbytes) for place, nbytes in barriers]

    blocks = np.unique(index[:, 0] * 4 // state.shared_stride)
    in_flight = _loads_in_flight(state)

    def land() -> None:
        for cta in blocks:
            is_alive(at, int(cta))
        traffic.end_write(index, read())
        in_flight.discard(land)
        for barrier, nbytes in found:
            complete_bytes(barrier, nbytes)

    if state.mode == "eager":
        land()
    else:
        in_flight.add(land)
        state.pending.append(land)


def _loads_in_flight(state: Batch) -> set[Callable[[], None]]:
    found = state.data.get("loads in flight")
    if found is None:
        found = state.data["loads in flight"] = set()
        # Whoever has not landed lands now, and finds that its block has left.
        state.at_exit.append(lambda state: [land() for land in list(found)])
    return found


def targets_of(at: At, thread: int, mask: int | None) -> list[int]:
    """Numbers of the blocks that a copy writes: those of a multicast mask, or None: the address
    says which."""
    if mask is None:
        return []
    state = at.state
    alone = state.launch.cluster == (1, 1, 1)
    cluster = [thread // state.threads_per_cta] if alone else state.cluster
    chosen = [number for rank, number in enumerate(cluster) if mask >> rank & 1]
    if mask >> len(cluster) or not chosen:
        at.fault("cluster", f"multicast mask {mask:#x} in a cluster of {len(cluster)} blocks")
    return chosen


def is_alive(at: At, cta: int) -> None:
    state = at.state
    start = cta * state.threads_per_cta
    if not state.live[start : start + state.threads_per_cta].any():
        at.fault(
            "cluster", f"access to shared memory of block {cta} of the cluster, which has exited"
        )


@operation("cp.async.bulk.commit_group")
def commit(instruction: Instruction) -> Bound:
    def run(at: At) -> None:
        for thread in at.threads:
            _outgoing(at.state).setdefault(int(thread), Outgoing()).group += 1

    return Bound(run)


@operation("cp.async.bulk.wait_group")
def wait(instruction: Instruction) -> Bound:
    keep = instruction.operands[0]
    if not isinstance(keep, Immediate):
        raise unsupported(instruction, "the number of groups is a constant")
    source_only = "read" in instruction.parts

    def run(at: At) -> None:
        state = at.state
        for thread in at.threads:
            bulk = _outgoing(state).get(int(thread))
            if bulk is None:
                continue
            left = []
            for store in bulk.stores:
                if store.group < bulk.group - keep.value:
                    store.read_source(state)
                    if not store.released:
                        store.released = True
                        Traffic.of(state).end_read(store.index)
                    if not source_only:
                        store.finish(state)
                if not store.written or not store.released:
                    left.append(store)
            bulk.stores = left

    return Bound(run)


def _check_size(at: At, nbytes: int, what: str) -> None:
    if nbytes % 16 or nbytes <= 0:
        at.fault("alignment", f"{what} of {nbytes} bytes; bulk copies take multiples of 16")


def _check_global(at: At, address: int, nbytes: int, what: str) -> None:
    if address % 16:
        at.fault("alignment", f"{what} at global address {address:#x}, no multiple of 16")
    global_bytes(at, address, nbytes, what)


@operation("cp.async.bulk")
def bulk_copy(instruction: Instruction) -> Bound:
    parts, operands = instruction.parts, list(instruction.operands)
    if "L2::cache_hint" in parts:
        operands.pop()
    to, origin = parts[3], parts[4]
    if to == "prefetch":
        return _prefetch(operands)
    if to == "global" and origin == "shared::cta":
        return _bulk_store(instruction, operands)
    if to in ("shared::cluster", "shared::cta") and origin == "global":
        return _bulk_load(instruction, operands)
    if to == "shared::cluster" and origin == "shared::cta":
        return _bulk_across(operands)
    raise unsupported(instruction, "this direction is not known")


def _prefetch(operands: list[Operand]) -> Bound:
    def run(at: At, address: Any, nbytes: Any) -> None:
        for start, count in zip(address, nbytes, strict=True):
            _check_global(at, int(start), int(count), "prefetch")

    return Bound(run, ((operands[0], "address"), (operands[1], "u4")))


def _bulk_load(instruction: Instruction, operands: list[Operand]) -> Bound:
    multicast = "multicast::cluster" in instruction.parts

    def run(at: At, destination: Any, source: Any, nbytes: Any, barrier: Any,
            mask: Any = None) -> None:  # fmt: skip
        places = _each(at, destination, nbytes, "bulk copy")
        bars = shared_place(at, barrier, 8, 8, "mbarrier")
        for lane, thread in enumerate(at.threads):
            count, start = int(nbytes[lane]), int(source[lane])
            _check_size(at, count, "bulk copy")
            _check_global(at, start, count, "bulk copy")
            index, signals = multicast_places(
                at, int(thread), words_from(int(places[lane]), count), int(bars[lane]),
                None if mask is None else int(mask[lane]),
            )  # fmt: skip

            def read(start: int = start, count: int = count, index: Any = index) -> np.ndarray:
                data = global_bytes(at, start, count, "bulk copy")
                return np.broadcast_to(data, (index.shape[0], count))

            issue_load(at, index, read, [(signal, count) for signal in signals], "bulk copy")

    kinds = ["address", "address", "u4", "address", "u2"][: 5 if multicast else 4]
    return Bound(run, tuple(zip(operands, kinds, strict=False)))


def multicast_places(
    at: At, thread: int, index: np.ndarray, barrier: int, mask: int | None
) -> tuple[np.ndarray, list[int]]:
    """Words [block, word] and barriers of a copy that goes to every block of `mask`, at the same
    offsets; None: where the addresses point."""
    stride = at.state.shared_stride
    if mask is None:
        is_alive(at, int(index.flat[0]) * 4 // stride)
        if int(index.flat[0]) * 4 // stride != barrier // stride:
            at.fault("barrier", "destination and mbarrier of a copy lie in different blocks")
        return index[None], [barrier]
    chosen = targets_of(at, thread, mask)
    for cta in chosen:
        is_alive(at, cta)
    return (
        np.stack([index % (stride // 4) + cta * stride // 4 for cta in chosen]),
        [barrier % stride + cta * stride for cta in chosen],
    )


def _each(at: At, address: Any, nbytes: Any, what: str) -> np.ndarray:
    """Places of copies whose sizes differ by thread."""
    places = np.zeros(at.threads.size, np.int64)
    for lane in range(at.threads.size):
        one = slice(lane, lane + 1)
        places[lane] = shared_place(
            at, spread(at, address)[one], int(nbytes[lane]), 16, what, at.threads[one]
        )[0]
    return places


def _bulk_across(operands: list[Operand]) -> Bound:
    """From the shared memory of one block into another's."""

    def run(at: At, destination: Any, source: Any, nbytes: Any, barrier: Any) -> None:
        state = at.state
        to = _each(at, destination, nbytes, "bulk copy")
        origin = _each(at, source, nbytes, "bulk copy")
        bars = shared_place(at, barrier, 8, 8, "mbarrier")
        for lane, thread in enumerate(at.threads):
            count = int(nbytes[lane])
            _check_size(at, count, "bulk copy")
            index, signals = multicast_places(
                at, int(thread), words_from(int(to[lane]), count), int(bars[lane]), None
            )
            taken = words_from(int(origin[lane]), count)
            traffic = Traffic.of(state)
            traffic.begin_read(at, taken, "bulk copy", int(thread))

            def read(taken: np.ndarray = taken, traffic: Traffic = traffic) -> np.ndarray:
                traffic.end_read(taken)
                return state.shared_view("u4")[taken].view(np.uint8)[None]

            issue_load(at, index, read, [(signal, count) for signal in signals], "bulk copy")

    kinds = ("address", "address", "u4", "address")
    return Bound(run, tuple(zip(operands, kinds, strict=True)))


def _bulk_store(instruction: Instruction, operands: list[Operand]) -> Bound:
    masked = "cp_mask" in instruction.parts

    def run(at: At, destination: Any, source: Any, nbytes: Any, mask: Any = None) -> None:
        places = _each(at, source, nbytes, "bulk copy")
        for lane, thread in enumerate(at.threads):
            count, start = int(nbytes[lane]), int(destination[lane])
            _check_size(at, count, "bulk copy")
            _check_global(at, start, count, "bulk copy")
            keep = np.ones(count, bool)
            if mask is not None:
                keep = (int(mask[lane]) >> np.arange(count) % 16 & 1).astype(bool)

            def write(data: np.ndarray, start: int = start, keep: np.ndarray = keep) -> None:
                global_bytes(at, start, data.size, "bulk copy")[keep] = data[keep]

            index = words_from(int(places[lane]), count)
            issue_store(at, int(thread), index, write, "bulk copy")

    kinds = ["address", "address", "u4", "u2"][: 4 if masked else 3]
    return Bound(run, tuple(zip(operands, kinds, strict=True)))


def reduction(instruction: Instruction) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """What `.add`, `.min`, ... of a bulk reduction does: (old, new) -> combined."""
    functions: dict[str, Callable[..., Any]] = {
        "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
        "or": np.bitwise_or, "xor": np.bitwise_xor,
        "inc": lambda old, limit: np.where(old >= limit, old * 0, old + 1),
        "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - 1),
    }  # fmt: skip
    for part in instruction.parts:
        if part in functions:
            return functions[part]
    raise unsupported(instruction, "it names no reduction")


@operation("cp.reduce.async.bulk")
def bulk_reduce(instruction: Instruction) -> Bound:
    parts, operands = instruction.parts, list(instruction.operands)
    if "L2::cache_hint" in parts:
        operands.pop()
    if parts[4:6] != ("global", "shared::cta"):
        raise unsupported(instruction, "reductions go to global memory here")
    combine, dtype = reduction(instruction), np.dtype(ELEMENTS[parts[-1]])

    def run(at: At, destination: Any, source: Any, nbytes: Any) -> None:
        places = _each(at, source, nbytes, "bulk reduction")
        for lane, thread in enumerate(at.threads):
            count, start = int(nbytes[lane]), int(destination[lane])
            _check_size(at, count, "bulk reduction")
            _check_global(at, start, count, "bulk reduction")

            def write(data: np.ndarray, start: int = start) -> None:
                old = global_bytes(at, start, data.size, "bulk reduction").view(dtype)
                old[:] = combine(old, data.view(dtype))

            index = words_from(int(places[lane]), count)
            issue_store(at, int(thread), index, write, "bulk reduction")

    return Bound(run, tuple(zip(operands, ("address", "address", "u4"), strict=True)))
