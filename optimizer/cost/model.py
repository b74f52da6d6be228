"""How long a tiled kernel takes: one function for every target, for arrays of configurations.

    seconds = rounds(tasks, executors) * (slow + (1 - overlap) * fast + serial + issue) + sync

`slow` and `fast` are the larger and the smaller of computing and moving, per task. Each byte is
counted at the level that serves it: where it is touched first, or the level whose capacity holds
what is touched between two uses. All quantities are numpy arrays over configurations, or numbers.
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
    in flops per second of one executor. issue: seconds of loops, calls and what cannot overlap."""

    flops: Numbers
    rate: Numbers
    traffic: tuple[Traffic, ...]
    issue: Numbers
    tasks: Numbers


def seconds(features: Features, machine: Machine, executors: int) -> Array:
    """Predicted seconds of all tasks on so many executors."""
    tasks = np.asarray(features.tasks)
    rounds = np.ceil(tasks / executors)
    if executors > 1:
        # Executors never run evenly: few large tasks leave some of them waiting at the end.
        rounds = np.maximum(rounds, tasks / executors + UNEVEN)
    active = int(min(executors, machine.executors))
    sync = machine.sync.step if executors > 1 else 0.0
    return rounds / tasks * work(features, machine, active) + sync


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
