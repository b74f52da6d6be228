"""The search of `shardings="auto"`, beside every choice there is: small programs, random ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module
from girih.hlo.graph import Module
from girih.hlo.sharding import Mesh
from girih.hlo.types import F32, TensorType
from girih.optimizer.sharding import alike as alike_module
from girih.optimizer.sharding import search as search_module
from girih.optimizer.sharding.alike import Alike, Held, alike
from girih.optimizer.sharding.automatic import _OpenGraph
from girih.optimizer.sharding.propagated import propagate
from girih.optimizer.sharding.search import ShardingSearch
from girih.optimizer.sharding.value_costs import Improvement, ValueCost, ValueUse

from .test_automatic import DOT, mlp


def problem(seed: int, repeated: bool = False) -> Alike:
    """Five nodes of three states; values of one or two uses, also by the node that makes them."""
    r = np.random.default_rng(seed)
    count, states = 5, 3
    values: list[ValueCost] = []
    times = r.integers(1, 3, count).astype(float)
    for maker in (None, *range(count - 1)):
        first = 0 if maker is None else maker + 1
        readers = r.integers(first, count, r.integers(1, 3)).tolist()
        if repeated and maker is not None:
            readers[0] = maker
        uses = [ValueUse(n, float(times[n]), r.integers(0, 3, states)) for n in readers]
        if r.random() < 0.3:
            uses.append(ValueUse(None, 1.0, np.array([1])))
        made = np.array([1]) if maker is None else np.arange(states)
        prices = r.integers(0, 9, (3, 3)).astype(float)
        np.fill_diagonal(prices, 0.0)
        values.append(ValueCost(maker, made, uses, prices))
    own = [r.integers(0, 9, states).astype(float) for _ in range(count)]
    held = [
        Held(node, r.integers(1, 20, states).astype(float), r.integers(0, 2, 4).astype(float))
        for node in (*range(count), None)
    ]
    return Alike(range(count), own, values, [n == 0 for n in range(count)], held, 4)


def price(found: Alike, chosen: Sequence[int]) -> float:
    total = sum(float(own[state]) for own, state in zip(found.prices, chosen, strict=True))
    for value in found.values:
        left = value.made[0 if value.maker is None else chosen[value.maker]]
        wanted: dict[int, float] = {}
        for use in value.uses:
            way = int(use.ways[0 if use.node is None else chosen[use.node]])
            wanted[way] = max(wanted.get(way, 0.0), use.times)
        total += sum(float(value.prices[left, way]) * times for way, times in wanted.items())
    return total


def held(found: Alike, chosen: Sequence[int]) -> float:
    line = np.zeros(found.end)
    for one in found.held:
        line += one.count * one.sizes[0 if one.node is None else chosen[one.node]]
    return float(line.max())


def best_of(found: Alike, memory: float | None) -> float:
    every = itertools.product(range(3), repeat=len(found.prices))
    fitting = [c for c in every if memory is None or held(found, c) <= memory]
    return min(price(found, chosen) for chosen in fitting)


def middle(found: Alike) -> int:
    every = [held(found, c) for c in itertools.product(range(3), repeat=len(found.prices))]
    return int(np.quantile(every, 0.3))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("bounded", [False, True])
def test_with_whole_numbers_the_best_is_found_and_proven(seed: int, bounded: bool) -> None:
    pytest.importorskip("scipy")
    found = problem(seed, repeated=seed % 3 == 0)
    memory = middle(found) if bounded else None
    search, best = ShardingSearch(found), best_of(found, memory)
    answer = search.cheapest(memory)
    assert answer is not None
    assert answer.price == pytest.approx(price(found, answer.chosen))
    assert answer.held == pytest.approx(held(found, answer.chosen))
    assert memory is None or answer.held <= memory
    assert best <= answer.price <= 1.002 * best + 1e-6
    assert 0.998 * best - 1e-6 <= search.bound(memory) <= best + 1e-6


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("way", ["mixtures", "messages"])
def test_bounds_never_exceed_the_best(monkeypatch: Any, seed: int, way: str) -> None:
    """Of larger programs, whose linear program has no whole numbers, and without scipy."""
    monkeypatch.setattr(search_module, "EXACT", 0)
    if way == "messages":
        monkeypatch.setattr(search_module, "is_installed", lambda _: False)
    else:
        pytest.importorskip("scipy")
    found = problem(seed, repeated=seed % 3 == 0)
    for memory in (None, middle(found)):
        search, best = ShardingSearch(found), best_of(found, memory)
        answer = search.cheapest(memory)
        bound = search.bound(memory)
        assert bound <= best + 1e-6
        if answer is not None:
            assert best - 1e-6 <= answer.price and (memory is None or answer.held <= memory)


@pytest.mark.parametrize("seed", range(6))
def test_a_node_that_reads_what_it_makes_is_priced_whole(seed: int) -> None:
    found = problem(seed, repeated=True)
    improvement = Improvement(found.prices, found.values)
    chosen = np.random.default_rng(seed).integers(0, 3, 5).tolist()
    improvement.start(chosen)
    assert improvement.price() == pytest.approx(price(found, chosen))
    for node in range(5):
        around = improvement.around(node)
        each = [price(found, [*chosen[:node], s, *chosen[node + 1 :]]) for s in range(3)]
        np.testing.assert_allclose(around - around[0], np.array(each) - each[0], atol=1e-9)


def stack(layers: int) -> Module:
    """tanh(x @ w) as often as there are layers, each with its own weights."""

    def body(b: Any, x: Any, *weights: Any) -> Any:
        for w in weights:
            x = b("tanh", b("dot_general", x, w, **DOT))
        return [x]

    kinds = [TensorType((64, 128), F32), *[TensorType((128, 128), F32)] * layers]
    return build_module(kinds, body)


def of_stack(layers: int) -> Alike:
    sizes = Mesh((("data", 2), ("model", 2)))
    said = {"input[0]": ("data",)}
    module = girih.partition(stack(layers), mesh=dict(sizes.axes), shardings=said).propagated.module
    graph = _OpenGraph(propagate(module))
    graph.fill()
    return alike(graph)


def test_equal_layers_are_as_one(monkeypatch: Any) -> None:
    few, many = (len(of_stack(layers).prices) for layers in (24, 48))
    assert few == many < 24
    shared = of_stack(24)
    monkeypatch.setattr(alike_module, "FEWEST", 1000)
    single = of_stack(24)
    assert len(single.prices) > 24
    states = [0] * len(shared.prices)
    assert price(shared, states) == pytest.approx(price(single, [0] * len(single.prices)))
    assert held(shared, states) == held(single, [0] * len(single.prices))


def test_what_is_found_is_told_with_its_bound() -> None:
    parts = girih.partition(mlp(), mesh={"data": 2, "model": 4}, shardings="auto", memory="600KiB")
    found = parts.automatic
    assert found is not None and found.memory <= 600 << 10
    assert 0 < found.bound <= found.price * 1.001
    assert found.facts()["gap"] == pytest.approx(max(found.price / found.bound - 1, 0))
    assert (
        girih.partition(mlp(), mesh={"data": 2}, shardings={"input[0]": ("data",)}).automatic
        is None
    )
