"""Strategies, the exact search and the bound against all orders of small graphs."""

from __future__ import annotations

import random

import pytest

from girih.hlo.errors import CompilerBug
from girih.optimizer.certify import Forced, check_order_bound
from girih.optimizer.orders.beam import beam_order
from girih.optimizer.orders.bound import certified, forced_live
from girih.optimizer.orders.depth_first import depth_first_order
from girih.optimizer.orders.divide import parts_of, search
from girih.optimizer.orders.graph import Task, bits
from girih.optimizer.orders.ready import least_net_order, list_order
from girih.optimizer.orders.source import source_order

from .graphs import OP, graph_of, needed, orders, random_graph, random_wiring

STRATEGIES = source_order, list_order, least_net_order, depth_first_order, beam_order


@pytest.mark.parametrize("seed", range(8))
def test_no_order_of_random_graphs_is_better_than_the_found_one(seed):
    chance = random.Random(seed)
    for _ in range(50):
        graph = random_graph(chance, 7)
        lowest = min(needed(graph, order) for order in orders(graph))
        bound = forced_live(graph).bytes
        assert bound <= lowest
        found = search(graph, source_order(graph), bound)
        assert found.peak == found.bound == needed(graph, found.order) == lowest


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies_order_all_tasks_after_what_they_wait_for(strategy):
    chance = random.Random(1)
    for count in (1, 2, 9, 30):
        graph = random_graph(chance, count)
        done = 0
        for number in strategy(graph):
            assert not graph.before[number] & ~done
            done |= 1 << number
        assert done == graph.all
        assert strategy(graph) == strategy(graph)


def test_the_peak_of_an_order_is_what_lives_at_one_time():
    chance = random.Random(2)
    for count in (3, 8, 40):
        for _ in range(20):
            graph = random_graph(chance, count)
            order = source_order(graph)
            assert graph.peak(order) == needed(graph, order)


def test_a_search_that_gives_up_tells_a_bound():
    for seed in range(2):
        graph = random_wiring(1, seed)
        first = source_order(graph)
        full = search(graph, first, forced_live(graph).bytes)
        for work in (1, 50, 400):
            part = search(graph, first, forced_live(graph).bytes, work)
            assert part.bound <= full.peak <= part.peak <= graph.peak(first)
            assert needed(graph, part.order) == part.peak


@pytest.mark.parametrize(("stages", "seeds"), [(1, range(2)), (3, range(1))])
def test_random_wirings_are_proven(stages, seeds):
    for seed in seeds:
        graph = random_wiring(stages, seed)
        assert len(graph.tasks) == 33 * stages + 1
        greedy = min((strategy(graph) for strategy in STRATEGIES), key=graph.peak)
        found = search(graph, greedy, forced_live(graph).bytes)
        assert found.bound == found.peak == needed(graph, found.order)


def test_tasks_that_are_comparable_with_all_divide():
    graph = random_wiring(3, 0)
    parts = parts_of(graph)
    assert len(parts) >= 3 and sum(parts) == graph.all & ~graph.lazy
    for before, after in zip(parts, parts[1:], strict=False):
        assert max(bits(before)) < min(bits(after))


def test_the_bound_names_what_is_alive():
    # Two values of 8 and 4 bytes are needed at once by task 2; the value of 16 is not.
    tasks = [
        Task(OP, (), (0,)),
        Task(OP, (0,), (1,), over=((1, (0,)),)),
        Task(OP, (0, 1), (2,), inside=2),
        Task(OP, (2,), (3,)),
    ]
    bound = forced_live(graph_of(tasks, [8, 4, 1, 16], [3]))
    assert (bound.bytes, bound.task) == (17, 3)
    assert bound.forced == (Forced(2, "passes"), Forced(3, "made here"))
    bound = forced_live(graph_of(tasks, [8, 4, 1, 12], [3]))
    assert (bound.bytes, bound.task) == (15, 2)
    assert bound.forced == (Forced(0, "passes"), Forced(1, "passes"), Forced(2, "made here"))


def test_certificates_of_bounds_are_checked_and_mutants_are_rejected():
    chance = random.Random(3)
    rejected = 0
    for _ in range(100):
        graph = random_graph(chance, 12)
        bound, tasks = forced_live(graph), certified(graph)
        check_order_bound(tasks, bound)
        more = next((v for v in range(len(graph.values)) if v not in dict(bound.forced)), None)
        mutants = [bound._replace(bytes=bound.bytes + 1)]
        if more is not None:
            mutants.append(bound._replace(forced=(*bound.forced, Forced(more, "passes"))))
        for mutant in mutants:
            with pytest.raises(CompilerBug):
                check_order_bound(tasks, mutant)
            rejected += 1
    assert rejected > 150
