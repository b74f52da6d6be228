"""Programs of several processes, which together have every operation that communicates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.graph import Module, Value
from girih.hlo.ops.manual import mesh_record
from girih.hlo.sharding import Mesh
from girih.hlo.types import F32, I32, FutureType, TensorType

Array = np.ndarray[Any, Any]
Body = Callable[[Builder, Value], Sequence[Value]]

WIDTH = 24  # elements of the argument along dim 1: 2, 3, 4, 6 and 8 divide it
KIND = TensorType((3, WIDTH), F32)
SCALAR = TensorType((), F32)


def folded(name: str = "add") -> Any:
    return (build_region([SCALAR, SCALAR], lambda b, x, y: [b(name, x, y)]),)


def everyone(count: int) -> dict[str, Any]:
    return {"replica_groups": (tuple(range(count)),), "channel_id": 1}


def flat(facts: dict[str, Any]) -> dict[str, Any]:
    """The same groups, of an operation that could mean replicas by them."""
    return {**facts, "use_global_device_ids": True}


def halves(count: int) -> dict[str, Any]:
    """Two groups, the second backwards."""
    half = count // 2
    groups = tuple(range(half)), tuple(reversed(range(half, count)))
    return {"replica_groups": groups, "channel_id": 1}


def ragged(count: int) -> dict[str, Any]:
    """A group of all but one, and that one; the same with one process."""
    if count == 1:
        return everyone(count)
    alone = (count - 1, *(-1,) * (count - 2))
    return {"replica_groups": (tuple(range(count - 1)), alone), "channel_id": 1}


def some(count: int) -> dict[str, Any]:
    """One group, in which the first process is not."""
    return {"replica_groups": (tuple(range(count - 1, 0, -1)),), "channel_id": 1}


def all_reduces(b: Builder, x: Value, count: int) -> Sequence[Value]:
    groups = [flat(groups(count)) for groups in (everyone, halves, ragged)]
    found = [
        b.op("all_reduce", [x, x], facts, folded(body)).results
        for facts in groups
        for body in ("add", "maximum")
    ]
    return [value for results in found for value in results]


def all_gathers(b: Builder, x: Value, count: int) -> Sequence[Value]:
    pair = b.op("all_gather", [x, b("negate", x)], {"all_gather_dim": 0, **flat(everyone(count))})
    half = b.op("all_gather", [x], {"all_gather_dim": 1, **flat(halves(count))})
    return [*pair.results, half.result]


def all_to_alls(b: Builder, x: Value, count: int) -> Sequence[Value]:
    whole = {"split_dimension": 1, "concat_dimension": 0, "split_count": count, **everyone(count)}
    same = {"split_dimension": 1, "concat_dimension": 1, "split_count": count // 2}
    return [
        *b.op("all_to_all", [x, b("negate", x)], whole).results,
        b.op("all_to_all", [x], {**same, **halves(count)}).result,
    ]


def reduce_scatters(b: Builder, x: Value, count: int) -> Sequence[Value]:
    whole = {"scatter_dimension": 1, **flat(everyone(count))}
    return [
        b.op("reduce_scatter", [x], whole, folded()).result,
        b.op("reduce_scatter", [x], {**whole, **flat(halves(count))}, folded("minimum")).result,
    ]


def permutes(b: Builder, x: Value, count: int) -> Sequence[Value]:
    ring = tuple((n, (n + 1) % count) for n in range(count))
    lone = ((0, count - 1), (1, 0))
    return [
        b("collective_permute", x, source_target_pairs=pairs, channel_id=1)
        for pairs in (ring, lone)
    ]


def broadcasts(b: Builder, x: Value, count: int) -> Sequence[Value]:
    return b.op("collective_broadcast", [x, b("negate", x)], some(count)).results


def reduces(b: Builder, x: Value, count: int) -> Sequence[Value]:
    groups = some(count), ragged(count)
    return [b.op("collective_reduce", [x], facts, folded()).result for facts in groups]


def dynamic_roots(b: Builder, x: Value, count: int) -> Sequence[Value]:
    """Roots that are known only when the program runs."""
    roots = b.constant(np.array([count // 2 - 1, 0], np.int32))
    facts = {**halves(count), "has_dynamic_root": True}
    return [
        *b.op("collective_broadcast", [x, x, roots], facts).results,
        *b.op("collective_reduce", [x, x, roots], facts, folded()).results,
    ]


def exchanges(b: Builder, x: Value, count: int) -> Sequence[Value]:
    boxes = [(n, (n + 1) % count, (0, n), (1, 2), (2, 5)) for n in range(count)]
    boxes += [(n, n, (2, 3), (0, 0), (1, 7)) for n in range(0, count, 2)]
    boxes.append((0, count - 1, (0, 0), (0, 8), (1, 2)))
    kind = TensorType((3, 12), F32)
    return [b("exchange", x, type=kind, transfers=tuple(boxes), channel_id=1)]


def numbers(b: Builder, x: Value, count: int) -> Sequence[Value]:
    return [b("partition_id"), b("replica_id")]


def asynchronous(b: Builder, x: Value, count: int) -> Sequence[Value]:
    ring = tuple((n, (n + 1) % count) for n in range(count))
    moved = build_region(
        [KIND], lambda b, y: [b("collective_permute", y, source_target_pairs=ring, channel_id=1)]
    )
    summed = build_region(
        [], lambda b: list(b.op("all_reduce", [x], flat(everyone(count)), folded()).results)
    )
    first = b.op("async_start", [x], {}, (moved,), [FutureType((KIND,))]).result
    second = b.op("async_start", [], {}, (summed,), [FutureType((KIND,))]).result
    between = b("multiply", x, x)
    return [between, b("async_done", second), b("async_done", first)]


def manual(b: Builder, x: Value, count: int) -> Sequence[Value]:
    """On a mesh of 2 x count / 2 devices: a partial one with sums that are left unreduced, and in
    it another."""
    half = count // 2
    mesh = mesh_record(Mesh((("a", 2), ("b", half))))
    block, part = TensorType((3, WIDTH // 2), F32), TensorType((3, WIDTH // 2 // half), F32)
    pairs = tuple((n, (n + half) % count) for n in range(count))

    def inner(b: Builder, y: Value) -> Sequence[Value]:
        return [b("multiply", y, y)]

    def outer(b: Builder, y: Value) -> Sequence[Value]:
        moved = b("collective_permute", y, source_target_pairs=pairs, channel_id=1)
        cut = (((), ("b",)),)
        facts = {"mesh": mesh, "manual_axes": ("b",), "in_shardings": cut, "out_shardings": cut}
        region = build_region([part], inner)
        nested = b.op("sdy.manual_computation", [moved], facts, (region,)).result
        return [nested, b("add", nested, y)]

    facts = {
        "mesh": mesh,
        "manual_axes": ("a",),
        "in_shardings": (((), ("a",)),),
        "out_shardings": (((), ("a",)), ((), ())),
        "shardings": (
            '<@mesh, [{}, {"a"}]>',
            '<@mesh, [{}, {"a"}]>',
            '<@mesh, [{}, {}], unreduced={"a"}>',
        ),
    }
    results = b.op("sdy.manual_computation", [x], facts, (build_region([block], outer),)).results
    return list(results)


def loop(b: Builder, x: Value, count: int) -> Sequence[Value]:
    """A loop and branches that communicate; all processes take the same ones."""
    number = TensorType((), I32)
    ring = tuple((n, (n + 1) % count) for n in range(count))

    def step(b: Builder, i: Value, v: Value) -> Sequence[Value]:
        def moved(b: Builder) -> Sequence[Value]:
            return [b("collective_permute", v, source_target_pairs=ring, channel_id=1)]

        def summed(b: Builder) -> Sequence[Value]:
            return list(b.op("all_reduce", [v], flat(everyone(count)), folded("maximum")).results)

        regions = (build_region([], moved), build_region([], summed))
        chosen = b.op("case", [i], {}, regions, [KIND]).result
        return [b("add", i, b.constant(np.int32(1))), b("add", chosen, v)]

    condition = build_region(
        [number, KIND], lambda b, i, v: [b.compare("LT", i, b.constant(np.int32(3)))]
    )
    start = b.constant(np.int32(0))
    return b.op("while", [start, x], {}, (condition, build_region([number, KIND], step))).results[
        1:
    ]


def replica_sums(b: Builder, x: Value, count: int) -> Sequence[Value]:
    found = [
        b("cross-replica-sum", x, replica_groups=ragged(count)["replica_groups"]),
        b("all_gather", x, all_gather_dim=0, replica_groups=(tuple(range(count)),)),
    ]
    return [*found, b("partition_id"), b("replica_id")]


PROGRAMS: dict[str, Callable[[Builder, Value, int], Sequence[Value]]] = {
    one.__name__: one
    for one in (
        all_reduces, all_gathers, all_to_alls, reduce_scatters, permutes, broadcasts, reduces,
        dynamic_roots,        exchanges, numbers, asynchronous, manual, loop,
    )
}  # fmt: skip


def program(name: str, count: int) -> Module:
    """A program of `count` partitions, of one argument f32[3,24]."""
    module = build_module([KIND], lambda b, x: PROGRAMS[name](b, x, count))
    return replace(module, attributes={"mhlo.num_partitions": count})


def on_grid(count: int) -> Module:
    """A program of `count` replicas of two partitions."""

    def body(b: Builder, x: Value) -> Sequence[Value]:
        whole = flat(everyone(2 * count))
        both = {"replica_groups": (tuple(range(count)),), "use_global_device_ids": False}
        pairs = ((0, 1), (1, 0))
        return [
            *replica_sums(b, x, count),
            b.op("all_reduce", [x], whole, folded()).result,
            b.op("all_reduce", [x], {**both, "channel_id": 2}, folded()).result,
            b("collective_permute", x, source_target_pairs=pairs, channel_id=3),
        ]

    module = build_module([KIND], body)
    return replace(module, attributes={"mhlo.num_partitions": 2, "mhlo.num_replicas": count})


def inputs(count: int, seed: int = 0) -> list[list[Array]]:
    """The argument of each process."""
    generator = np.random.default_rng(seed)
    return [[generator.standard_normal(KIND.dims, np.float32)] for _ in range(count)]
