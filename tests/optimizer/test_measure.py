"""The measure of an order is what its plan needs, and the task graph says the same."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.graph import Module, Region, signature_of
from girih.hlo.types import F32, I1, I32, TensorType
from girih.optimizer.measure import measure, size_of
from girih.optimizer.memory import Interval, live_bound
from girih.optimizer.orders.graph import task_graph
from girih.optimizer.output_reuse import reuse_outputs
from girih.optimizer.overwriting import hinders_of
from girih.optimizer.passes.fuse import Fuse
from girih.optimizer.passes.order import donations
from girih.optimizer.schedule import live_ranges, schedule

COUNT = TensorType((), I32)
LARGE, SMALL = TensorType((64, 48), F32), TensorType((64, 24), F32)


class Programmer:
    """Random programs of kernels, some of which may overwrite what they read."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def body(self, b: Builder, *values: Any, depth: int = 1) -> list[Any]:
        pool = list(values)
        for _ in range(self.chance.randint(4, 9)):
            x = self.chance.choice(pool[-5:])
            same = [v for v in pool if v.type is x.type]
            kind = self.chance.randrange(7 if depth else 5)
            if kind == 0:
                pool.append(b("reverse", x, dimensions=(0,)))
            elif kind == 1:
                pool.append(b("reverse", b("tanh", x), dimensions=(1,)))
            elif kind == 2:
                pool.append(b("add", x, self.chance.choice(same)))
            elif kind == 3:
                zero = b.constant(0, COUNT)
                row = b.op("slice", [x], {
                    "start_indices": (0, 0), "limit_indices": (1, x.dims[1]), "strides": (1, 1)
                }).result  # fmt: skip
                y = b("reverse", x, dimensions=(1,))
                pool.append(b("dynamic_update_slice", y, row, zero, zero))
            elif kind == 4:
                pool.append(b.reshape(b("reverse", x, dimensions=(0,)), x.dims[::-1]))
                pool[-1] = b.reshape(b("reverse", pool[-1], dimensions=(0,)), x.dims)
            elif kind == 5:
                pool.append(self.loop(b, x, self.chance.choice(same)))
            else:
                pool.append(self.branch(b, x))
        return [pool[-1], self.chance.choice(pool), pool[-2]]

    def loop(self, b: Builder, x: Any, y: Any) -> Any:
        kinds = [COUNT, x.type, x.type]
        swaps = self.chance.random() < 0.3

        def until(b: Builder, i: Any, x: Any, z: Any) -> list[Any]:
            return [b.compare("LT", i, b.constant(3, COUNT))]

        def turn(b: Builder, i: Any, x: Any, z: Any) -> list[Any]:
            found = self.body(b, x, z, y, depth=0)
            found = [v for v in found if v.type is x.type]
            last = [z, x] if swaps else [(found or [x])[0], b("reverse", z, dimensions=(0,))]
            return [b("add", i, b.constant(1, COUNT)), *last]

        regions = (build_region(kinds, until), build_region(kinds, turn))
        start = [b.constant(0, COUNT), x, b.constant(2.0, x.type)]
        return b.op("while", start, {}, regions, kinds).results[1 + self.chance.randrange(2)]

    def branch(self, b: Builder, x: Any) -> Any:
        flag = b.constant(self.chance.random() < 0.5, TensorType((), I1))

        def way(turned: int) -> Region:
            return build_region([], lambda b: [b("reverse", b("tanh", x), dimensions=(turned,))])

        ways = [way(0), way(1)]
        return b.op("if", [flag], {}, ways, [x.type]).results[0]


def program(seed: int) -> Module:
    programmer = Programmer(seed)
    module = build_module([LARGE, SMALL, LARGE], programmer.body)
    results = [value.type for value in module.body.results]
    signature = signature_of(module)
    arguments = list(signature.arguments)
    for index, kind in enumerate(results):
        if kind is module.body.arguments[index].type and programmer.chance.random() < 0.7:
            arguments[index] = replace(arguments[index], donated=True, aliases=index)
    return Fuse()(replace(module, signature=replace(signature, arguments=tuple(arguments))))


@pytest.mark.parametrize("seed", range(40))
def test_the_task_graph_measures_what_the_schedule_does(seed):
    module, hinders = program(seed), hinders_of(True)
    graph = task_graph(module.body, donations(module), hinders)
    chance = random.Random(seed)
    for _ in range(4):
        order = any_order(graph, chance)
        ops = graph.ops(order)
        found = measure(module.with_main(Region(module.body.arguments, ops, module.body.results)))
        assert graph.peak(order) == found.live_bytes
        assert found.live_bytes <= found.total_bytes


def any_order(graph: Any, chance: random.Random) -> list[int]:
    done, order = 0, []
    while len(order) < len(graph.tasks):
        number = chance.choice(graph.ready(done, graph.all & ~done))
        order.append(number)
        done |= 1 << number
    return graph.tasks_of(order)


@pytest.mark.parametrize("seed", range(10))
def test_the_measure_is_what_the_plan_needs(seed):
    module = program(seed)
    found, steps = measure(module), schedule(module)
    ranges = live_ranges(steps)
    reused = reuse_outputs(steps, ranges)
    intervals = [
        Interval(size_of(buffer.bytes), *life)
        for buffer, life in ranges.items() if buffer not in reused
    ]  # fmt: skip
    assert found.arena_bytes == live_bound(intervals)
    assert found.arena_bytes == sum(size_of(buffer.bytes) for buffer in found.at_peak)
    own = [buffer for buffer in steps.outputs if buffer.replaces is None]
    assert found.total_bytes == found.arena_bytes + sum(size_of(b.bytes) for b in own)


def test_scratch_counts_while_its_kernel_runs():
    module = program(3)
    plain, more = measure(module), measure(module, scratch=lambda op: 1000)
    assert more.arena_bytes == plain.arena_bytes + 1024
    assert more.scratch_bytes == 1024
    graph = task_graph(module.body, donations(module), hinders_of(False), lambda op: 1000)
    order = any_order(graph, random.Random(0))
    ops = graph.ops(order)
    ordered = module.with_main(Region(module.body.arguments, ops, module.body.results))
    assert graph.peak(order) == measure(ordered, scratch=lambda op: 1000).live_bytes
