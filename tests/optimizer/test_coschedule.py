"""Programs whose steps need little of each other: counters in place of barriers, orders in which
several steps run at a time, and the scalars of loops in each worker's own memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import girih
from girih.backends.cpu.machines import typical
from girih.hlo.build import build_module, build_region
from girih.hlo.graph import Module
from girih.hlo.types import F32, I32, TensorType
from girih.optimizer.coschedule import StepTime, makespan
from girih.optimizer.tasks import TaskStep, Touch, Wait, waits_of
from girih.specs.generated import plan_pb2

SIDE = 64
MATRIX, SCALAR = TensorType((SIDE, SIDE), F32), TensorType((), I32)
SECOND = StepTime(1.0, 1)


def dot(b: Any, x: Any, y: Any) -> Any:
    return b(
        "dot_general", x, y, lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,),
        lhs_batching_dimensions=(), rhs_batching_dimensions=(),
    )  # fmt: skip


def levels(b: Any, *given: Any) -> list[Any]:
    """Eight products beside each other, each of two of the level before."""
    level = list(given)
    for _ in range(8):
        level = [dot(b, level[n], level[(n + 1) % 8]) for n in range(8)]
    return level


def chains(b: Any, x: Any, y: Any, w: Any) -> list[Any]:
    for _ in range(8):
        x = dot(b, x, w)
    for _ in range(8):
        y = dot(b, y, w)
    return [x, y]


def recurrence(b: Any, rows: Any, w: Any) -> list[Any]:
    """h = tanh(h w + the turn's row), 16 times."""
    row = TensorType((1, SIDE), F32)

    def condition(b: Any, i: Any, h: Any) -> list[Any]:
        return [b.compare("LT", i, b.constant(16, SCALAR))]

    def step(b: Any, i: Any, h: Any) -> list[Any]:
        own = b("dynamic_slice", rows, i, b.constant(0, SCALAR), slice_sizes=(1, SIDE))
        new = b("tanh", b("add", dot(b, h, w), own))
        return [b("add", i, b.constant(1, SCALAR)), new]

    types = [SCALAR, row]
    start = [b.constant(0, SCALAR), b.constant(0.0, row)]
    regions = (build_region(types, condition), build_region(types, step))
    return b.op("while", start, {}, regions, types).results[1:]


def arguments(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((SIDE, SIDE)) / 8).astype(np.float32) for _ in range(count)]


def compiled(module: Module, **options: Any) -> tuple[Any, plan_pb2.Plan]:
    program = girih.compile(module, options=girih.Options(cache="off", **options))
    return program, program.plan


CASES: dict[str, tuple[int, Callable[..., Any]]] = {
    "levels": (8, levels), "chains": (3, chains), "recurrence": (2, recurrence),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_workers_give_the_same_bits(name: str) -> None:
    count, body = CASES[name]
    module, given = build_module([MATRIX] * count, body), arguments(count)
    one, plan = compiled(module, threads=1)
    assert plan.ranges
    wanted = one(*given)
    for threads in (2, 3):
        program, other = compiled(module, threads=threads)
        assert other == plan  # which knows of no workers
        for _ in range(50):
            for left, right in zip(program(*given), wanted, strict=True):
                np.testing.assert_array_equal(left, right)
    for left, right in zip(wanted, girih.interpret(module, given), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["levels", "chains"])
def test_only_counters_order_products(name: str) -> None:
    count, body = CASES[name]
    _, plan = compiled(build_module([MATRIX] * count, body))
    assert not any(step.run.wait for step in plan.steps)


def test_a_chain_of_steps_has_barriers() -> None:
    def chain(b: Any, x: Any, w: Any) -> list[Any]:
        for _ in range(8):
            x = dot(b, x, w)
        return [x]

    _, plan = compiled(build_module([MATRIX] * 2, chain))
    assert not plan.ranges
    assert plan.format_version == "1.0"


def test_a_turn_waits_for_what_it_needs() -> None:
    """The counter, the condition and where the row begins are each worker's own."""
    _, plan = compiled(build_module([MATRIX] * 2, recurrence))
    (back,) = (n for n, step in enumerate(plan.steps) if step.WhichOneof("action") == "jump")
    turn = plan.steps[plan.steps[back].jump.target : back]
    runs = [step.run for step in turn if step.WhichOneof("action") == "run"]
    assert not any(run.wait for run in runs)
    assert sum(len(run.waits) for run in runs) <= sum(not run.each for run in runs) <= 2
    assert sum(run.each for run in runs) == 2
    assert [step.branch_if_false.each for step in turn if step.HasField("branch_if_false")] == [
        True
    ]


def test_more_memory_only_where_it_may_be_taken() -> None:
    module = build_module([MATRIX] * 3, chains)
    _, tight = compiled(module, overlap_memory=0)
    _, loose = compiled(module)
    _, limited = compiled(module, max_memory="1 GiB")
    assert tight.memory.arena_bytes < loose.memory.arena_bytes
    assert limited.memory.arena_bytes == tight.memory.arena_bytes


def step(reads: str, writes: str, kind: str = "run") -> TaskStep:
    """Each letter is a memory of its own; the next step follows."""
    touches = [Touch(name, 0, 1, False) for name in reads] + [
        Touch(name, 0, 1, True) for name in writes
    ]
    return TaskStep(kind, touches, ())  # type: ignore[arg-type]


def followed(*steps: TaskStep, back: int | None = None) -> list[TaskStep]:
    """Steps one after the other; from behind the last one control goes on at `back`, if that is
    given, or to the end."""
    found = [one._replace(next=[number + 1]) for number, one in enumerate(steps)]
    if back is not None:
        found.append(TaskStep("jump", (), [back]))
        found[back] = found[back]._replace(next=[back + 1, len(found)])
    return found


def test_waits_that_follow_from_others_are_left_out() -> None:
    waits = waits_of(followed(step("", "a"), step("a", "b"), step("ab", "c"), step("c", "a")))
    assert waits.ranges == [(0, 4)]
    assert waits.waits == {1: [Wait(0, 1)], 2: [Wait(1, 1)], 3: [Wait(2, 1)]}


def test_a_turn_waits_for_the_turn_before() -> None:
    steps = followed(step("", "", "jump"), step("a", "b"), step("b", "a"), back=0)
    assert waits_of(steps).waits == {1: [Wait(2, 0)], 2: [Wait(1, 1)]}


def test_more_waits_than_meeting_costs_are_a_barrier() -> None:
    names = "abcdefgh"
    steps = followed(*(step("", name) for name in names), step(names, "z"), step("z", "y"))
    assert waits_of(steps, most=8).barriers == set()
    waits = waits_of(steps, most=7)
    assert waits.barriers == {8}
    assert waits.ranges == [(0, 8), (8, 2)]
    assert waits.waits == {9: [Wait(8, 1)]}


def test_memory_that_is_used_again_orders_steps() -> None:
    times = dict.fromkeys(range(4), SECOND)
    sync = typical("avx512").sync
    apart = waits_of(followed(step("", "a"), step("a", "b"), step("", "c"), step("c", "d")))
    again = waits_of(followed(step("", "a"), step("a", "b"), step("", "a"), step("a", "d")))
    assert makespan(apart, times, 2, sync) == pytest.approx(2, rel=1e-3)
    assert makespan(again, times, 2, sync) == pytest.approx(4, rel=1e-3)
