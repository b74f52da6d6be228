"""How long a tiled kernel takes: one function for every target, for arrays of configurations.

    seconds = rounds(tasks, executors) * (slow + (1 - overlap) * fast + serial + issue) + sync

`slow` and `fast` are the larger and the smaller of computing and moving, per task. Each byte is
counted at the level that serves it: where it is touched first, or the level whose capacity holds
what is touched between two uses. All quantities are numpy arrays over configurations, or numbers.

Where executors run blocks of threads, tasks are blocks and go over the executors in waves; few of
them reach neither all units nor all of the bandwidth. Every launch costs its beginning.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..machine import Level, Machine, Unit

Array = np.ndarray[Any, Any]
Numbers = Array | float | int

UNEVEN = 0.05  # of a task: how much later than on average the last executor ends
USABLE = 0.75  # of a level: the rest is taken by what streams through
SINGLE = 3.0  # times as long, where elements are moved one by one
_MOVED, _RESIDENT = 1 << 13, 4  # bytes that a small task moves; such tasks of one executor
_WAITING = 0.3  # of the shorter of multiplying and other arithmetic that is not hidden
_TILE = 128 * 128  # elements of the tile that `machine.Blocks.tile` is about
_AROUND = 0.3  # of that, for the smallest


class Traffic(NamedTuple):
    """Bytes of all tasks that one operand moves. level: indices into the machine's levels.
    conflict: at least 1, how much slower than bytes in a row. overlapped: with computing."""

    bytes: Numbers
    level: Numbers
    kind: str = "read"  # or "write", "copy"
    conflict: Numbers = 1.0
    overlapped: bool = True


@dataclass(frozen=True)
class Features:
    """What the tasks of a configuration do, all together. flops: with padding. rate: of the unit,
    in flops per second of one executor. issue: seconds of loops, calls and what cannot overlap.
    launches: 1 where they are kernels of a program, which begin; more, in each of which there are
    parts of all tasks; 0 where ways within a kernel are compared.

    Of blocks of threads: multiplying: seconds of one executor's matrix units, beside the flops.
    resident: blocks of an executor at once; share: the part of it that they keep busy. elements:
    of a task's results. answers: seconds for which one task waits at least, for loads or products
    that the next ones need.
    """

    flops: Numbers
    rate: Numbers
    traffic: tuple[Traffic, ...]
    issue: Numbers
    tasks: Numbers
    launches: int = 0
    multiplying: Numbers = 0.0
    resident: Numbers = 1
    share: Numbers = 1.0
    elements: Numbers = _TILE
    answers: Numbers = 0.0


def seconds(features: Features, machine: Machine, executors: int) -> Array:
    """Predicted seconds of all tasks on so many executors."""
    if machine.blocks is not None:
        return _in_blocks(features, machine, executors)
    tasks = np.asarray(features.tasks)
    rounds = np.ceil(tasks / executors)
    if executors > 1:
        # Executors never run evenly: few large tasks leave some of them waiting at the end.
        rounds = np.maximum(rounds, tasks / executors + UNEVEN)
    active = int(min(executors, machine.executors))
    sync = machine.sync.step if executors > 1 else 0.0
    taken = rounds / tasks * work(features, machine, active) + sync
    return taken + features.launches * machine.sync.step


def _in_blocks(features: Features, machine: Machine, executors: int) -> Array:
    assert machine.blocks is not None
    tasks = np.maximum(features.tasks, 1)  # a likely call may have none
    moving, waiting = np.zeros(()), np.asarray(features.issue / tasks)
    for one in features.traffic:
        taken = (
            one.bytes * one.conflict / tasks / _reached(machine, one, np.minimum(tasks, executors))
        )
        if one.overlapped:
            moving = moving + taken
        else:
            waiting = waiting + taken
    others = np.asarray(features.flops / np.asarray(features.rate) / tasks)
    multiplying = np.asarray(features.multiplying / tasks)
    computing = np.maximum(multiplying, others) + _WAITING * np.minimum(multiplying, others)
    slow, fast = np.maximum(computing, moving), np.minimum(computing, moving)
    busy = (slow + (1 - machine.overlap) * fast + waiting) / features.share
    whole, resident = tasks / executors, np.asarray(features.resident)
    busy = np.maximum(busy, features.answers / np.minimum(resident, np.ceil(whole)))
    size = np.asarray(features.elements) / _TILE
    around = machine.blocks.tile * (_AROUND + (1 - _AROUND) * size) / resident
    even = np.where(whole <= 1, 1.0, np.maximum(1.0, whole + UNEVEN))
    rounds = np.where(resident > 1, even, np.ceil(whole))
    return rounds * (busy + around) + features.launches * (machine.blocks.fill + machine.sync.step)


def _reached(machine: Machine, one: Traffic, active: Array) -> Array:
    """Bytes per second of one of the active executors at the level of some traffic."""
    level, active = np.broadcast_arrays(np.asarray(one.level), active)
    found = np.stack([_rate(level, active, one.kind) for level in machine.levels])
    return np.take_along_axis(found, level[None], 0)[0]


def _rate(level: Level, active: Array, kind: str) -> Array:
    known = [row.executors for row in level.bandwidth]
    totals = [getattr(row, kind) for row in level.bandwidth]
    return np.interp(active, known, totals) / np.maximum(active, known[0])


def work(features: Features, machine: Machine, executors: int = 1) -> Array:
    """Executor-seconds: what one executor would take for all tasks beside so many active ones."""
    computing = np.asarray(features.flops / np.asarray(features.rate))
    moving, serial = np.zeros(()), np.asarray(features.issue)
    for one in features.traffic:
        rate = rates(machine, executors, one.kind)[np.asarray(one.level)]
        taken = one.bytes * one.conflict / rate
        if one.overlapped:
            moving = moving + taken
        else:
            serial = serial + taken
    slow, fast = np.maximum(computing, moving), np.minimum(computing, moving)
    return slow + (1 - machine.overlap) * fast + serial


@functools.lru_cache(maxsize=256)
def rates(machine: Machine, executors: int, kind: str) -> Array:
    """Bytes per second of one active executor, by level."""
    found = np.array([level.rate(executors, kind) for level in machine.levels])
    found.setflags(write=False)
    return found


def level_of(
    machine: Machine,
    size: Numbers,
    executors: int = 1,
    *,
    stride: Numbers = 0,
    run: Numbers = 0,
    usable: float = USABLE,
) -> Array:
    """The index of the fastest level that holds so many bytes of each active executor, which lie in
    runs of `run` bytes `stride` bytes apart (0: in a row)."""
    sizes = np.asarray(size)
    index = np.full(np.broadcast(sizes, stride, run).shape, len(machine.levels) - 1)
    in_a_row = isinstance(stride, int) and stride == 0
    for number in reversed(range(len(machine.levels) - 1)):
        level = machine.levels[number]
        room = level.capacity * usable / (executors if level.shared else 1)
        part = 1.0 if in_a_row else reachable(level, stride, run)
        index = np.where(sizes <= room * part, number, index)
    return index


def home(machine: Machine, total: Numbers) -> Array:
    """Where a whole tensor lies between two kernels that share the machine with others."""
    return np.maximum(level_of(machine, 2 * total / machine.executors), 1)


def moved(machine: Machine, read: float, written: float, conflict: float = 1.0) -> float:
    """Seconds of a kernel of many small tasks that only reads and writes so many bytes."""
    traffic = (
        Traffic(read, home(machine, read), conflict=conflict),
        Traffic(written, home(machine, written), "write", conflict),
    )
    tasks = max(1.0, (read + written) / _MOVED)
    features = Features(0, 1, traffic, 0, tasks, 1, resident=_RESIDENT, elements=0)
    return float(seconds(features, machine, machine.executors))


def step_seconds(machine: Machine, flops: float, total: float) -> float:
    """Seconds in which one executor runs a step of a plan that touches `total` bytes; rough, and
    cheap to ask of each step: nothing overlaps, nothing is padded."""
    level = int(np.maximum(level_of(machine, total), 1))
    rate = machine.levels[level].rate(machine.executors)
    return flops / machine.units[0].flops + total / rate


def streamed(machine: Machine, total: float, passes: int, tasks: int, launches: int) -> float:
    """Seconds of so many launches whose tasks share all of the bytes, read in so many passes."""
    near = np.maximum(level_of(machine, total / machine.executors), 1)
    traffic = Traffic(total, home(machine, total)), Traffic((passes - 1) * total, near)
    features = Features(0, 1, traffic, 0, tasks, launches, elements=0)
    return float(seconds(features, machine, machine.executors))


def reachable(level: Level, stride: Numbers, run: Numbers) -> Array:
    """The fraction of a level that such runs can occupy: strides of large powers of two meet in few
    places."""
    way = max(level.line, level.capacity // level.ways)
    steps = np.abs(np.asarray(stride, np.int64))
    length = np.maximum(run, level.line)
    return np.where(steps <= length, 1.0, np.minimum(1.0, length / np.gcd(steps, way)))


def scattered(
    machine: Machine, level: Numbers, run: Numbers, executors: int = 1, outstanding: float = 3.0
) -> Array:
    """How much slower than bytes in a row are runs that prefetching does not foresee: a limited
    number of them is outstanding, each for the level's latency."""
    latency = np.array([level.latency for level in machine.levels])
    waits = latency * rates(machine, executors, "read") / outstanding
    return np.maximum(1.0, waits[np.asarray(level)] / np.asarray(run))


def efficiency(unit: Unit, rows: Numbers, vectors: Numbers) -> Array:
    """The fraction of the unit's peak of a block of rows x vectors accumulators; linear between
    known rows. Numbers of vectors that are not in the table take the nearest that is."""
    rows, vectors = np.broadcast_arrays(np.asarray(rows), np.asarray(vectors))
    known = sorted({row.vectors for row in unit.efficiency})
    result = np.zeros(rows.shape)
    nearest = np.array(known)[np.abs(np.subtract.outer(vectors, known)).argmin(-1)]
    for count in known:
        table = sorted((e.rows, e.fraction) for e in unit.efficiency if e.vectors == count)
        x, y = zip(*table, strict=True)
        # A block of more vectors than the table knows has as many accumulators in fewer rows.
        same = rows * np.maximum(1, vectors / count)
        result = np.where(nearest == count, np.interp(same, x, y), result)
    return result
