"""What steps of a GPU wait for, as edges of a graph."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from girih.hlo.errors import UserError
from girih.runtime.devices.edges import latest_first, launch_edges, step_edges
from girih.runtime.devices.gpu_steps import KernelStep, Where
from girih.specs.generated import plan_pb2

from .gpu_fakes import FakeGpu, PlanOf, flat


def step(*after: int, wait: bool = False) -> KernelStep:
    return KernelStep("k", "", (), (), (), Where(0, 0), 0, after=after, wait=wait)


def reachable(edges) -> list[set[int]]:
    found: list[set[int]] = []
    for after in edges:
        found.append(set(after).union(*(found[n] for n in after)))
    return found


@pytest.mark.parametrize("seed", range(50))
def test_edges_order_what_waits_and_barriers_order_and_nothing_else(seed):
    drawn, begin = random.Random(seed), 10
    steps = []
    for place in range(12):
        after = {begin + n for n in range(place) if drawn.random() < 0.2} | {3}
        steps.append(step(*sorted(after), wait=drawn.random() < 0.2))
    edges = step_edges(steps, begin)
    wanted: list[set[int]] = []
    barrier: set[int] = set()
    for place, one in enumerate(steps):
        barrier = set(range(place)) if one.wait else barrier
        direct = {n - begin for n in one.after if n >= begin} | barrier
        wanted.append(direct.union(*(wanted[n] for n in direct)))
    assert reachable(edges) == wanted
    for place, after in enumerate(edges):  # none follows from others
        for one, other in itertools.permutations(after, 2):
            assert one not in reachable(edges)[other], (place, one, other)


def test_launches_of_a_step_follow_each_other():
    edges = launch_edges([(), (), (0, 1), (2,)], [2, 0, 1, 2])
    assert edges == [(), (0,), (1,), (2,), (3,)]


def test_the_last_steps_that_may_come_first_do():
    assert [*latest_first([(), (), (0,), (1,)])] == [1, 3, 0, 2]


def diamond() -> PlanOf:
    """y = (x + 1) + (x + 2), whose first two steps need nothing of each other."""
    plan = PlanOf().inputs(x=16).outputs(y=16)
    plan.buffer("a", plan_pb2.ARENA, 16).buffer("b", plan_pb2.ARENA, 16, offset=64)
    plan.run("plus", "x", "a", numbers=(1,), wait=False)
    plan.run("plus", "x", "b", numbers=(2,), wait=False)
    return plan.run("add", "a", "b", "y", wait=False, after=(0, 1)).results("y")


def test_steps_that_nothing_orders_run_in_any_order():
    order: list[int] = []

    def plus(gpu: FakeGpu, x: int, y: int, number: int) -> None:
        order.append(number)
        gpu.floats(y, 4)[...] = gpu.floats(x, 4) + number

    def add(gpu: FakeGpu, x: int, y: int, z: int) -> None:
        order.append(0)
        gpu.floats(z, 4)[...] = gpu.floats(x, 4) + gpu.floats(y, 4)

    program = diamond().program(flat(1, 1), FakeGpu(plus=plus, add=add))
    x = np.arange(4, dtype=np.float32)
    before = dict(program.events)
    for _ in range(3):
        assert program(x)[0].tolist() == (2 * x + 3).tolist()
    assert order == [1, 2, 0] + 2 * [2, 1, 0]
    assert not any(before.values()) and program.events == {
        "launches": 3, "graph_launches": 2, "nodes": 6, "edges": 4,
        "copies_to_host": 3, "synchronisations": 3,
    }  # fmt: skip


def test_counters_that_are_nobodys_or_of_several_steps():
    for change, said in (
        (
            lambda plan: plan.steps[2].run.waits.add(counter=7, threshold=1),
            "a counter that no step",
        ),
        (lambda plan: setattr(plan.steps[1].run, "signal", 1), "several steps have one counter"),
    ):
        plan = diamond()
        change(plan.plan)
        with pytest.raises(UserError, match=said):
            plan.program(flat(1, 1), FakeGpu(plus=print, add=print))(np.zeros(4, np.float32))


def test_what_one_memory_of_scratch_is_for_is_in_order():
    """Plans before format 1.4 have one for all kernels."""
    plan = PlanOf().outputs(y=16, z=16)
    plan.run("fill", "y", scratch=16, wait=False).run("fill", "z", scratch=16, wait=False)
    order: list[int] = []
    device = FakeGpu(fill=lambda _, y, scratch: order.append(y))
    program = plan.results("y", "z").program(flat(0, 2), device)
    for _ in range(2):
        program()
    assert order[:2] == order[2:]
