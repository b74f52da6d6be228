"""Sorts along a cut dim: networks that sort, stable ones where elements can be told apart."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.distributed import interpret_parallel
from girih.hlo.graph import Module, Value
from girih.hlo.interpret import interpret
from girih.hlo.placement import cut, joined
from girih.hlo.sharding import Axis, Mesh
from girih.hlo.types import F32, I32, TensorType
from girih.optimizer.sharding.inner import inner_bytes, inner_calls
from girih.optimizer.sharding.partition.partitioner import sharding_of
from girih.optimizer.sharding.partition.program import partition
from girih.optimizer.sharding.partition.sorting import Round, merging, neighbours

from .test_windows import Axes, decided


@pytest.mark.parametrize("count", range(1, 11))
@pytest.mark.parametrize("network", [merging, neighbours])
def test_networks_sort(network: Callable[[int], tuple[Round, ...]], count: int) -> None:
    """What sorts all rows of zeros and ones sorts everything; each is in one pair at a time."""
    rounds = network(count)
    for pairs in rounds:
        held = [part for pair in pairs for part in pair]
        assert len(held) == len(set(held)) > 0
        assert all(low < high < count for low, high in pairs)
    for bits in itertools.product((0, 1), repeat=count):
        row = list(bits)
        for low, high in itertools.chain.from_iterable(rounds):
            row[low], row[high] = min(row[low], row[high]), max(row[low], row[high])
        assert row == sorted(bits)


def test_the_merging_network_has_few_pairs() -> None:
    assert sum(map(len, merging(8))) == 19
    assert sum(map(len, neighbours(8))) == 28
    assert all(high == low + 1 for pairs in neighbours(8) for low, high in pairs)


def sorting(dims: tuple[int, ...], dim: int, keyed: bool) -> Module:
    """By value, all bits counting; or keys with ties, and numbers that tell where they were."""
    elements = (F32, I32) if keyed else (F32,)
    how: dict[str, Any] = {} if keyed else {"compare_type": "TOTALORDER"}

    def before(b: Builder, x: Value, y: Value, *rest: Value) -> list[Value]:
        return [b("compare", x, y, comparison_direction="GT", **how)]

    region = build_region([TensorType((), e) for e in elements for _ in range(2)], before)
    kinds = [TensorType(dims, element) for element in elements]
    facts = {"dimension": dim, "is_stable": True}
    return build_module(kinds, lambda b, *v: b.op("sort", v, facts, (region,)).results)


def axes_along(module: Module, dim: int, axes: Axes) -> list[Axes]:
    (op,) = module.body.ops
    factors = op.definition.divide(op)
    assert factors is not None
    held = factors.operands[0][dim]
    return [axes if held == (n,) else () for n in range(len(factors.factors))]


MESHES = (
    (Mesh((("x", 2),)), (Axis("x"),)),
    (Mesh((("x", 5),)), (Axis("x"),)),
    (Mesh((("x", 8),), (3, 1, 0, 2, 7, 6, 5, 4)), (Axis("x"),)),
    (Mesh((("x", 2), ("y", 3))), (Axis("y"), Axis("x"))),
    (Mesh((("x", 3), ("y", 2))), (Axis("x"),)),
    (Mesh((("x", 16),)), (Axis("x"),)),
)


@pytest.mark.parametrize("seed", range(60))
def test_blocks_are_sorted_in_place(seed: int) -> None:
    """Bit for bit and stable; what is sent is what was said; nobody gathers."""
    r = random.Random(seed)
    keyed, dim = bool(seed % 2), r.randrange(2)
    dims = tuple(r.choice((1, 2, 5, 7, 16, 31, 40)) for _ in range(2))
    mesh, axes = MESHES[seed % len(MESHES)]
    module = sorting(dims, dim, keyed)
    (op,) = module.body.ops
    factors = op.definition.divide(op)
    assert factors is not None
    cuts = axes_along(module, dim, axes)
    generator = np.random.default_rng(seed)
    x = generator.integers(-3, 4, dims).astype(np.float32)
    x[generator.random(dims) < 0.2] = -0.0
    if not keyed:
        x[generator.random(dims) < 0.1] = np.nan
    inputs = [x, generator.permutation(x.size).reshape(dims).astype(np.int32)][: 1 + keyed]
    made = decided(op, factors, cuts, mesh)
    columns = [
        cut(array, sharding_of(v.tensor), mesh, np.nan if array.dtype.kind == "f" else -1)
        for array, v in zip(inputs, made.body.arguments, strict=True)
    ]
    rows = [[column[device] for column in columns] for device in range(mesh.devices)]
    ran = interpret_parallel(partition(made), rows, num_partitions=mesh.devices)
    wanted = interpret(module, inputs)
    for n, (value, whole) in enumerate(zip(made.body.results, wanted, strict=True)):
        got = joined([row[n] for row in ran.results], sharding_of(value.tensor), mesh, dims)
        assert got.tobytes() == whole.tobytes()
    counts = [count for received in ran.received for count in received.items()]
    assert {name for name, size in counts if size} <= {"exchange"}
    size = inner_bytes(op, factors, cuts, mesh)
    assert sum(size for _, size in counts) / mesh.devices == pytest.approx(size)


def test_a_sort_of_values_sends_less_than_a_gather() -> None:
    """19 pairs of 8 blocks: each device receives 4.75 blocks of 64, where a gather brings 7."""
    module = sorting((512, 3), 0, keyed=False)
    (op,) = module.body.ops
    factors = op.definition.divide(op)
    assert factors is not None
    mesh = Mesh((("x", 8),))
    cuts = axes_along(module, 0, (Axis("x"),))
    assert inner_bytes(op, factors, cuts, mesh) == 19 * 2 / 8 * 64 * 3 * 4
    assert inner_calls(op, factors, cuts, mesh) == len(merging(8)) == 6


@pytest.mark.parametrize("parts, placed", [(2, False), (8, False), (16, True), (32, True)])
def test_places_come_along_where_that_sends_less(parts: int, placed: bool) -> None:
    """Keys and numbers, 8 bytes, over 16 blocks: 63 pairs of 12 bytes against 120 of 8."""
    module = sorting((32 * parts,), 0, keyed=True)
    (op,) = module.body.ops
    factors = op.definition.divide(op)
    assert factors is not None
    cuts = axes_along(module, 0, (Axis("x"),))
    found = inner_bytes(op, factors, cuts, Mesh((("x", parts),)))
    pairs = [sum(map(len, network(parts))) for network in (merging, neighbours)]
    assert found == (pairs[0] * 12 if placed else pairs[1] * 8) * 2 * 32 / parts
    assert found == min(pairs[0] * 12, pairs[1] * 8) * 2 * 32 / parts
