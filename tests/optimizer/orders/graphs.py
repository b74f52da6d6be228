"""Task graphs for tests, and what an order of them needs, counted in another way."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from girih.hlo.build import make_op
from girih.hlo.graph import Region, arguments
from girih.hlo.types import F32, TensorType
from girih.optimizer.orders.graph import Task, TaskGraph

ONE = TensorType((1,), F32)
OP = make_op("negate", arguments([ONE]), {})


def graph_of(
    tasks: Sequence[Task], sizes: Sequence[int], kept: Sequence[int], waits: Sequence[int] = ()
) -> TaskGraph:
    """A graph whose tasks wait for those that make what they read, and for `waits` (masks)."""
    makers = {value: number for number, task in enumerate(tasks) for value in task.makes}
    before = list(waits) or [0] * len(tasks)
    for number, task in enumerate(tasks):
        for value in task.reads:
            before[number] |= 1 << makers[value]
    end = sum(sizes[value] for value in set(kept))
    flags = [value in kept for value in range(len(sizes))]
    values = list(arguments([ONE] * len(sizes)))
    return TaskGraph(Region((), (), ()), list(tasks), values, list(sizes), before, flags, end)


def random_graph(chance: random.Random, count: int) -> TaskGraph:
    """Tasks of one or two results, some in place, some with memory of their own inside."""
    tasks: list[Task] = []
    sizes: list[int] = []
    for _ in range(count):
        pool = range(len(sizes))
        reads = tuple(
            sorted(chance.sample(pool, min(len(pool), chance.choice((0, 1, 1, 2, 2, 3)))))
        )
        makes = tuple(range(len(sizes), len(sizes) + chance.choice((1, 1, 1, 2))))
        sizes += [chance.randint(0, 5) for _ in makes]
        over = []
        for value in makes:
            fitting = [v for v in reads if sizes[v] == sizes[value] and chance.random() < 0.7]
            if fitting:
                over.append((value, tuple(fitting)))
        inside = chance.choice((0, 0, 0, chance.randint(1, 6)))
        gone = frozenset(v for v in reads if inside and chance.random() < 0.3)
        tasks.append(Task(OP, reads, makes, inside, tuple(over), gone))
    kept = [value for value in range(len(sizes)) if chance.random() < 0.15]
    waits = [0] * count
    if chance.random() < 0.3 and count > 2:
        first, second = sorted(chance.sample(range(count), 2))
        waits[second] |= 1 << first
    return graph_of(tasks, sizes, kept, waits)


def needed(graph: TaskGraph, order: Sequence[int]) -> int:
    """The peak of an order, from lists of what lives at each task."""
    position = {number: at for at, number in enumerate(order)}
    born: dict[int, int] = {}
    dies: dict[int, int] = {}
    for number, task in enumerate(graph.tasks):
        for value in task.makes:
            born[value] = position[number]
            dies.setdefault(value, position[number])
        for value in task.reads:
            dies[value] = max(dies.get(value, -1), position[number])
    for value, kept in enumerate(graph.kept):
        if kept:
            dies[value] = len(order)
    peak = graph.end_bytes
    for at, number in enumerate(order):
        task = graph.tasks[number]
        live = {value for value in born if born[value] <= at <= dies[value]}
        taken: set[int] = set()
        for _, operands in task.over:
            taken |= set([v for v in operands if dies[v] == at and v not in taken][:1])
        beside = live - taken
        during = {v for v in beside if not (v in task.gone and dies[v] == at)}
        peak = max(peak, sum(graph.sizes[v] for v in beside))
        peak = max(peak, sum(graph.sizes[v] for v in during) + task.inside)
    return peak


def orders(graph: TaskGraph) -> Iterator[tuple[int, ...]]:
    """Every order that the graph allows."""
    for order in itertools.permutations(range(len(graph.tasks))):
        done = 0
        for number in order:
            if graph.before[number] & ~done:
                break
            done |= 1 << number
        else:
            yield order


def watts_strogatz(nodes: int, near: int, chance: float, seed: int) -> list[tuple[int, int]]:
    """Edges of a small-world graph, each from the lower number to the higher."""
    draw = random.Random(seed)
    edges = {(a, (a + step) % nodes) for step in range(1, near // 2 + 1) for a in range(nodes)}
    links = {frozenset(edge) for edge in edges}
    for step in range(1, near // 2 + 1):
        for a in range(nodes):
            old = frozenset((a, (a + step) % nodes))
            if draw.random() < chance and old in links:
                b = draw.randrange(nodes)
                if b != a and frozenset((a, b)) not in links:
                    links.remove(old)
                    links.add(frozenset((a, b)))
    return sorted((min(link), max(link)) for link in links)


def random_wiring(stages: int, seed: int, nodes: int = 32) -> TaskGraph:
    """A network of RandWire: each node reads the sum of its inputs, all values are of one size; a
    stage's loose ends are summed into its output."""
    tasks: list[Task] = [Task(OP, (), (0,))]
    for stage in range(stages):
        entry = len(tasks) - 1
        inputs: dict[int, list[int]] = {number: [] for number in range(nodes)}
        edges = watts_strogatz(nodes, 4, 0.75, seed * 10 + stage)
        for low, high in edges:
            inputs[high].append(entry + 1 + low)
        for number in range(nodes):
            reads = tuple(inputs[number]) or (entry,)
            value = len(tasks)
            tasks.append(Task(OP, reads, (value,)))
        used = {low for low, _ in edges}
        loose = tuple(entry + 1 + number for number in range(nodes) if number not in used)
        tasks.append(Task(OP, loose, (len(tasks),)))
    return graph_of(tasks, [1] * len(tasks), [len(tasks) - 1])
