"""cp.async: copies of 4, 8 or 16 bytes by each thread, from global to shared memory.

Eager runs copy at the issue, lazy runs at the last moment that a wait allows. The destination is
claimed until its thread has waited, in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .matrix import unsupported
from .syntax import Immediate, Instruction, Operand
from .table import Bound, operation
from .traffic import Traffic, global_bytes, shared_place

if TYPE_CHECKING:
    from .engine import At, Batch


@dataclass(eq=False)
class Incoming:
    """One cp.async of many threads: row i belongs to `threads[i]`, in that thread's `group[i]`."""

    threads: np.ndarray
    group: np.ndarray
    places: np.ndarray  # in state.shared
    sources: np.ndarray
    sizes: np.ndarray  # bytes that are read; the rest is zero
    nbytes: int
    at: At


class Groups:
    """cp.async of a batch: how many groups each thread has committed, and what is outstanding."""

    def __init__(self, state: Batch) -> None:
        self.state = state
        self.committed = np.zeros(state.T, np.int64)
        self.outstanding: list[Incoming] = []
        self.watchers: list[tuple[int, Callable[[], None]]] = []  # thread, what to call

    @staticmethod
    def of(state: Batch) -> Groups:
        found = state.data.get("groups")
        if found is None:
            found = state.data["groups"] = Groups(state)
        return found

    def land(self, threads: np.ndarray, keep: int | None) -> None:
        """Completes the copies of `threads` but for the latest `keep` groups (None: all, also
        those that are in no group yet)."""
        limit = np.full(self.state.T, -1, np.int64)
        limit[threads] = 1 << 60 if keep is None else self.committed[threads] - keep - 1
        left = []
        for copy in self.outstanding:
            due = copy.group <= limit[copy.threads]
            if not due.any():
                left.append(copy)
                continue
            self._land(copy, due)
            if not due.all():
                rest = ~due
                copy.threads, copy.group = copy.threads[rest], copy.group[rest]
                copy.places, copy.sources = copy.places[rest], copy.sources[rest]
                copy.sizes = copy.sizes[rest]
                left.append(copy)
        self.outstanding = left
        waiting, self.watchers = self.watchers, []
        for thread, call in waiting:
            if self.has(thread):
                self.watchers.append((thread, call))
            else:
                call()

    def has(self, thread: int) -> bool:
        return any((copy.threads == thread).any() for copy in self.outstanding)

    def _land(self, copy: Incoming, due: np.ndarray) -> None:
        data = read_rows(copy.at, copy.sources[due], copy.sizes[due], copy.nbytes)
        index = copy.places[due][:, None] // 4 + np.arange(copy.nbytes // 4)
        traffic = Traffic.of(self.state)
        traffic.end_write(index, data)
        traffic.wrote(copy.threads[due], index)  # for products and bulk copies like any store
        _tell_races(copy.at, copy.threads[due], copy.places[due], data)


def read_rows(at: At, addresses: np.ndarray, sizes: np.ndarray, nbytes: int) -> np.ndarray:
    """(rows, nbytes) of global memory: `sizes` bytes from each address, then zeros."""
    data = np.zeros((addresses.size, nbytes), np.uint8)
    rows = np.nonzero(sizes)[0]
    if not rows.size:
        return data
    segment = at.state.memory.find(int(addresses[rows].min()))
    if segment is None or (addresses + sizes)[rows].max() > segment.end:
        for row in rows:
            size = int(sizes[row])
            data[row, :size] = global_bytes(at, int(addresses[row]), size, "cp.async")
        return data
    offset = np.arange(nbytes)
    index = (addresses[rows] - segment.base)[:, None] + offset
    found = segment.data[np.minimum(index, segment.data.size - 1)]
    data[rows] = np.where(offset < sizes[rows, None], found, 0)
    return data


def _tell_races(at: At, threads: np.ndarray, places: np.ndarray, data: np.ndarray) -> None:
    """A copy writes at its issue as well as at its wait: nobody may read from before the one until
    a barrier after the other."""
    state = at.state
    if state.races:
        words = np.ascontiguousarray(data).view(np.uint32)
        piece = (state.shared_view("u4"), places // 4, None)
        state.races.write(state, threads, at.node.number, [piece], data.shape[1], list(words.T))


def when_landed(at: At, thread: int, call: Callable[[], None]) -> None:
    """Calls `call` once the cp.async that `thread` has issued so far have landed."""
    groups = Groups.of(at.state)
    if not groups.has(thread):
        call()
        return
    groups.watchers.append((thread, call))
    at.state.pending.append(lambda: groups.land(np.array([thread]), None))


@operation("cp.async.ca", "cp.async.cg", lockstep=True)
def copy_async(instruction: Instruction) -> Bound:
    """cp.async.{ca,cg}.shared.global [destination], [source], bytes {, source bytes | ignore};"""
    operands = list(instruction.operands)
    if any("cache_hint" in part for part in instruction.parts):
        operands.pop()
    size = operands[2]
    if not isinstance(size, Immediate) or size.value not in (4, 8, 16):
        raise unsupported(instruction, "it copies 4, 8 or 16 bytes")
    nbytes = size.value
    if instruction.parts[2] == "cg" and nbytes != 16:
        raise unsupported(instruction, ".cg copies 16 bytes")
    ignore = len(operands) > 3 and _is_predicate(operands[3])

    def run(at: At, destination: Any, source: Any, given: Any = None) -> None:
        groups, state = Groups.of(at.state), at.state
        places = shared_place(at, destination, nbytes, nbytes, "cp.async")
        if (source % nbytes).any():
            at.fault("alignment", f"cp.async of {nbytes} bytes from an address that is no multiple")
        sizes = np.full(places.size, nbytes)
        if given is not None:
            sizes = np.where(given, 0, nbytes) if ignore else given.astype(np.int64)
            if (sizes > nbytes).any():
                at.fault("bounds", f"cp.async of {nbytes} bytes reads {int(sizes.max())}")
        data = read_rows(at, source, sizes, nbytes)
        read = sizes > 0
        if state.communication is not None:
            number = at.node.number
            state.communication.copied(at.threads[read], number, source[read], sizes[read])
        if state.counting and read.any():
            state.counting.sectors(state, at.threads[read], at.node.number, source[read], nbytes)
        _tell_races(at, at.threads, places, data)
        index = places[:, None] // 4 + np.arange(nbytes // 4)
        Traffic.of(state).begin_write(at, index, "cp.async")
        groups.outstanding.append(
            Incoming(
                at.threads, groups.committed[at.threads], places, source.copy(), sizes, nbytes, at
            )
        )
        if state.mode == "eager":
            # The data are there; that they may be read is still a matter of waiting.
            state.shared_view("u4")[index] = data.view(np.uint32)

    sources: list[tuple[Operand, str]] = [(operands[0], "address"), (operands[1], "address")]
    if len(operands) > 3:
        sources.append((operands[3], "b1" if ignore else "u4"))
    return Bound(run, tuple(sources))


def _is_predicate(operand: Operand) -> bool:
    return getattr(operand, "type", "") == "pred"


@operation("cp.async.commit_group", lockstep=True)
def commit(instruction: Instruction) -> Bound:
    def run(at: At) -> None:
        Groups.of(at.state).committed[at.threads] += 1

    return Bound(run)


@operation("cp.async.wait_group", "cp.async.wait_all", lockstep=True)
def wait(instruction: Instruction) -> Bound:
    keep: int | None = None
    if instruction.operands:
        count = instruction.operands[0]
        if not isinstance(count, Immediate):
            raise unsupported(instruction, "the number of groups is a constant")
        keep = count.value

    def run(at: At) -> None:
        Groups.of(at.state).land(at.threads, keep)

    return Bound(run)
