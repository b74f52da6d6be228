"""The cost model: more work never takes less time, and each term binds where it should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from girih.backends.cpu import machines
from girih.optimizer.cost.model import (
    Features,
    Traffic,
    efficiency,
    level_of,
    reachable,
    scattered,
    seconds,
    work,
)

MACHINE = machines.typical("avx512")


def features(
    flops: Any = 1e9,
    moved: Any = 1e6,
    level: Any = 1,
    issue: float = 0.0,
    tasks: Any = 64,
    **options: Any,
) -> Features:
    return Features(flops, 1e11, (Traffic(moved, level, **options),), issue, tasks)


@given(
    st.floats(1, 1e12), st.floats(0, 1e12), st.integers(0, 3), st.integers(1, 10_000),
    st.integers(1, 8), st.floats(1, 4),
)  # fmt: skip
def test_more_work_never_takes_less(flops, moved, level, tasks, executors, factor):
    base = seconds(features(flops, moved, level, tasks=tasks), MACHINE, executors)
    for more in (
        features(flops * factor, moved, level, tasks=tasks),
        features(flops, moved * factor, level, tasks=tasks),
        features(flops, moved, min(3, level + 1), tasks=tasks),
        features(flops, moved, level, tasks=tasks, conflict=factor),
        features(flops, moved, level, tasks=tasks, overlapped=False),
        features(flops, moved, level, 1e-6, tasks=tasks),
    ):
        assert seconds(more, MACHINE, executors) >= base * (1 - 1e-12)


@given(st.integers(1, 200), st.integers(1, 4))
def test_executors_beyond_the_tasks_do_nothing(tasks, executors):
    one = work(features(tasks=tasks), MACHINE, min(executors, MACHINE.executors))
    taken = seconds(features(tasks=tasks), MACHINE, executors)
    assert taken >= one / min(tasks, executors) * (1 - 1e-12)


def test_the_slower_of_computing_and_moving_binds():
    hidden = replace(MACHINE, overlap=1.0)
    rate = MACHINE.levels[3].rate(1)
    computing = features(flops=1e11, moved=rate / 10, level=3, tasks=1)
    moving = features(flops=1e10, moved=rate, level=3, tasks=1)
    assert seconds(computing, hidden, 1) == pytest.approx(1.0)
    assert seconds(moving, hidden, 1) == pytest.approx(1.0)
    bare = replace(MACHINE, overlap=0.0)
    assert seconds(computing, bare, 1) == pytest.approx(1.1)


def test_arrays_of_configurations_are_scored_as_each_alone():
    flops, moved = np.array([1e9, 2e9, 4e9]), np.array([1e6, 1e9, 1e3])
    tasks, level = np.array([1, 7, 64]), np.array([0, 3, 2])
    together = seconds(features(flops, moved, level, tasks=tasks), MACHINE, 4)
    alone = [
        seconds(features(f, m, int(v), tasks=t), MACHINE, 4)
        for f, m, v, t in zip(flops, moved, level, tasks, strict=True)
    ]
    np.testing.assert_array_equal(together, np.array(alone))


def test_sizes_find_the_level_that_holds_them():
    sizes = np.array([1, 30_000, 60_000, 1 << 20, 8 << 20, 1 << 30])
    levels = level_of(MACHINE, sizes)
    assert levels.tolist() == [0, 0, 1, 1, 2, 3]
    assert (np.diff(level_of(MACHINE, np.arange(0, 1 << 24, 4099))) >= 0).all()
    # Four executors share the third level.
    assert level_of(MACHINE, 8 << 20, 4) == 3


def test_large_powers_of_two_occupy_a_part_of_a_level():
    first = MACHINE.levels[0]
    assert reachable(first, 64, 64) == 1
    assert reachable(first, 4096, 64) == 64 / 4096
    assert reachable(first, 4096 + 64, 64) == 1
    assert reachable(first, 4096, 8192) == 1, "long runs fill what is between"
    assert level_of(MACHINE, 8192, stride=4096, run=64) > level_of(MACHINE, 8192)


def test_short_runs_wait_for_latency():
    far = scattered(MACHINE, np.array([3, 3]), np.array([64, 1 << 20]))
    assert far[0] > 1 and far[1] == 1


@given(st.integers(1, 40), st.integers(1, 12))
def test_efficiency_is_a_fraction_and_grows_with_rows(rows, vectors):
    unit = MACHINE.unit("f32")
    fraction = efficiency(unit, rows, vectors)
    assert 0 < fraction <= 1
    if rows * vectors < unit.parallelism:
        assert efficiency(unit, rows + 1, vectors) >= fraction
