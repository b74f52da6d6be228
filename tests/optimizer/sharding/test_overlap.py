"""Fewer calls, earlier starts, later waits: the same bits and bytes, and a timeline that pays."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.distributed import ParallelResults, interpret_parallel
from girih.hlo.graph import Module, Op, Value
from girih.hlo.sharding import Mesh
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import INLINED, verify
from girih.optimizer.passes.communication import Communication
from girih.optimizer.sharding.ahead import gathered_ahead
from girih.optimizer.sharding.combine import combined
from girih.optimizer.sharding.interconnect import Interconnect, Link
from girih.optimizer.sharding.overlap import overlapped
from girih.optimizer.sharding.partition.program import partition
from girih.optimizer.sharding.timeline import Costs, sends, timeline
from models.annotated_networks import NETWORKS
from models.annotated_operations import OPERATIONS

COUNT = 4
ALL = (tuple(range(COUNT)),)
MESH = Mesh((("x", COUNT),))
DOT = {
    "lhs_batching_dimensions": (), "rhs_batching_dimensions": (),
    "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,),
}  # fmt: skip
LINK = Interconnect(usual=Link(10e-6, 0.0, 1 / 50e9))


def slow(op: Op) -> float:
    """A device on which a product takes a millisecond."""
    return 1e-3 if op.name == "dot_general" else 0.0


SLOW = Costs(MESH, LINK, slow)


def module(kinds: list[TensorType], body: Any) -> Module:
    made = build_module(kinds, body)
    return Module(
        made.functions, attributes={"mhlo.num_replicas": 1, "mhlo.num_partitions": COUNT},
        meshes={"mesh": MESH},
    )  # fmt: skip


def group(channel: int) -> dict[str, Any]:
    return {"replica_groups": ALL, "channel_id": channel, "use_global_device_ids": True}


def summed(b: Builder, value: Value, channel: int) -> Value:
    scalar = TensorType((), value.element)
    fold = build_region([scalar, scalar], lambda inner, x, y: [inner("add", x, y)])
    return b("all_reduce", value, regions=(fold,), **group(channel))


def scattered(b: Builder, value: Value, dim: int, channel: int) -> Value:
    scalar = TensorType((), value.element)
    fold = build_region([scalar, scalar], lambda inner, x, y: [inner("add", x, y)])
    facts = group(channel)
    return b("reduce_scatter", value, regions=(fold,), scatter_dimension=dim, **facts)


def gathered(b: Builder, value: Value, dim: int, channel: int) -> Value:
    return b("all_gather", value, all_gather_dim=dim, **group(channel))


def calls(program: Module) -> list[str]:
    return [op.name for op in program.walk() if sends(op)]


def run(program: Module, seed: int = 0) -> ParallelResults:
    random = np.random.default_rng(seed)
    kinds = [value.tensor for value in program.body.arguments]
    inputs = [
        [random.standard_normal(kind.dims).astype(kind.dtype) for kind in kinds]
        for _ in range(COUNT)
    ]
    return interpret_parallel(program, inputs)


def check(before: Module, after: Module) -> None:
    """Equal bits, and equal bytes of all devices together."""
    verify(after, INLINED)
    one, other = run(before), run(after)
    for left, right in zip(one.results, other.results, strict=True):
        assert [x.tobytes() for x in left] == [x.tobytes() for x in right]
    assert sum(map(_total, one.received)) == sum(map(_total, other.received))


def _total(received: dict[str, int]) -> int:
    return sum(received.values())


# Joined calls.


def gradients(b: Builder, x: Value, *weights: Value) -> list[Value]:
    """Sums that only updates wait for, of values that are ready one after the other."""
    found = []
    for number, weight in enumerate(weights):
        x = b("dot_general", x, weight, **DOT)
        found.append(b("subtract", weight, summed(b, x, number + 1)))
    return found


SQUARE = TensorType((16, 16), F32)


@pytest.mark.parametrize(("limit", "count"), [(1 << 20, 1), (2048, 3), (1024, 6), (0, 6)])
def test_sums_that_only_updates_wait_for_are_joined_up_to_a_limit(limit: int, count: int) -> None:
    program = module([SQUARE] * 7, gradients)
    after = combined(program, SLOW, limit)
    assert calls(after) == ["all_reduce"] * count
    assert (after is program) == (count == 6)
    check(program, after)


def test_a_sum_that_the_next_product_waits_for_is_not_joined() -> None:
    def body(b: Builder, x: Value, w: Value) -> list[Value]:
        first = summed(b, x, 1)
        product = b("dot_general", first, w, **DOT)
        return [product, summed(b, b("dot_general", x, w, **DOT), 2)]

    program = module([SQUARE, SQUARE], body)
    assert combined(program, SLOW) is program


def test_what_would_wait_for_itself_is_not_joined() -> None:
    """Of two pairs, each of which could be joined, where both at once would be a circle."""

    def body(b: Builder, x: Value, y: Value) -> list[Value]:
        a1 = summed(b, x, 1)
        b1 = gathered(b, a1, 0, 2)
        b2 = gathered(b, y, 0, 3)
        cut = b("slice", b2, start_indices=(0, 0), limit_indices=(16, 16), strides=(1, 1))
        a2 = summed(b, cut, 4)
        return [b1, a2]

    program = module([SQUARE, SQUARE], body)
    after = combined(program, SLOW)
    assert len(calls(after)) == 3
    check(program, after)


def test_gathers_are_joined_where_they_are_read_together_or_brief() -> None:
    wide = TensorType((512, 1024), F32)

    def body(b: Builder, x: Value, *weights: Value) -> list[Value]:
        for number, weight in enumerate(weights):
            whole = gathered(b, weight, 0, number + 1)
            x = b("dot_general", x, whole, **DOT)
        return [x]

    rows, large = TensorType((8, 2048), F32), TensorType((512, 2048), F32)
    program = module([rows, large, large], body)
    assert combined(program, SLOW) is program  # the second would lie there for a millisecond
    small = TensorType((4, 16), F32)
    program = module([SQUARE, small, small], body)
    after = combined(program, SLOW)
    assert calls(after) == ["all_gather"]
    check(program, after)

    def together(b: Builder, x: Value, y: Value) -> list[Value]:
        return [b("add", gathered(b, x, 0, 1), gathered(b, y, 0, 2))]

    assert calls(combined(module([wide, wide], together), SLOW)) == ["all_gather"]


def test_short_reduce_scatters_lie_side_by_side() -> None:
    def body(b: Builder, x: Value, y: Value, z: Value) -> list[Value]:
        return [scattered(b, x, 1, 1), scattered(b, y, 0, 2), scattered(b, z, 2, 3)]

    kinds = [TensorType(dims, F32) for dims in ((6, 8), (4,), (2, 3, 12))]
    program = module(kinds, body)
    after = combined(program, SLOW)
    assert calls(after) == ["reduce_scatter"]
    check(program, after)


def test_other_folds_groups_and_elements_stay_apart() -> None:
    half = TensorType((16,), girih.hlo.types.F16)

    def body(b: Builder, x: Value, y: Value, h: Value) -> list[Value]:
        scalar = TensorType((), F32)
        fold = build_region([scalar, scalar], lambda inner, p, q: [inner("maximum", p, q)])
        most = b("all_reduce", y, regions=(fold,), **group(2))
        pairs = {**group(4), "replica_groups": ((0, 1), (2, 3))}
        fold = build_region([scalar, scalar], lambda inner, p, q: [inner("add", p, q)])
        near = b("all_reduce", y, regions=(fold,), **pairs)
        return [summed(b, x, 1), most, summed(b, h, 3), near]

    program = module([SQUARE, SQUARE, half], body)
    assert combined(program, SLOW) is program


# Started early, waited for late.


def stack(b: Builder, x: Value, *weights: Value) -> list[Value]:
    """Layers whose weights are gathered right before they are read."""
    for number, weight in enumerate(weights):
        whole = gathered(b, b("negate", weight), 0, number + 1)
        x = b("tanh", b("dot_general", x, whole, **DOT))
    return [x]


def test_the_next_layers_weights_are_gathered_beside_this_ones_product() -> None:
    rows, part = TensorType((8, 256), F32), TensorType((64, 256), F32)
    program = module([rows, *[part] * 5], stack)
    after = overlapped(program, SLOW)
    check(program, after)
    found = timeline(after, SLOW)
    first, *rest = found.calls
    assert first.hidden == 0 and first.waited == first.duration
    assert all(call.waited == 0 for call in rest) and len(rest) == 4
    assert found.seconds == pytest.approx(found.computing + first.duration)
    issued = [op.name for op in after.body.ops if op.name in ("async_start", "dot_general")]
    assert issued == ["async_start", "dot_general"] * 4 + ["dot_general"]


def test_no_more_than_two_layers_weights_are_there_at_a_time() -> None:
    rows, part = TensorType((8, 256), F32), TensorType((64, 256), F32)
    quick = Costs(MESH, LINK, lambda op: 1e-7)  # the link is what everything waits for
    after = overlapped(module([rows, *[part] * 6], stack), quick)
    there = most = 0
    for op in after.body.ops:
        there += op.name in ("async_start", "all_gather")
        most = max(most, there)
        there -= op.name == "dot_general"
    assert most == 2


def test_memory_decides_how_much_is_gathered_ahead() -> None:
    rows, part = TensorType((8, 256), F32), TensorType((64, 256), F32)
    program = module([rows, *[part] * 5], stack)
    after = overlapped(program, SLOW, memory=256 * 256 * 4 + 64 * 256 * 4 + 3 * 8 * 256 * 4)
    check(program, after)
    assert not any(op.name == "async_start" for op in after.walk())


def test_sums_start_at_once_and_are_waited_for_at_the_end() -> None:
    program = module([SQUARE] * 5, gradients)
    after = overlapped(program, SLOW)
    check(program, after)
    found = timeline(after, SLOW)
    assert [call.waited > 0 for call in found.calls] == [False, False, False, True]
    assert found.seconds < timeline(program, SLOW).seconds


def test_a_program_that_feeds_and_sends_to_the_host_stays_as_it_is() -> None:
    from girih.hlo.types import TOKEN

    def body(b: Builder, x: Value, token: Value) -> list[Value]:
        after = b("outfeed", x, token, type=TOKEN)
        return [summed(b, x, 1), after]

    program = build_module([SQUARE, TOKEN], body)  # type: ignore[list-item]
    assert overlapped(program, SLOW) is program


# Loops.


def loop(turns: int, direction: str = "LT", first: int = 0, step: int = 1) -> Module:
    """x = tanh(x @ all_gather(w[i])) for each i."""
    counter = TensorType((), girih.hlo.types.I32)
    stacked, rows = TensorType((8, 4, 16), F32), TensorType((2, 16), F32)
    bound = first + step * turns - (step if direction in ("LE", "GE") else 0)

    def body(b: Builder, w: Value, x: Value) -> list[Value]:
        start = b.constant(np.int32(first))
        condition = build_region(
            [counter, rows, stacked],
            lambda inner, i, *_: [inner.compare(direction, i, inner.constant(np.int32(bound)))],
        )

        def turn(inner: Builder, i: Value, y: Value, all_w: Value) -> list[Value]:
            zero = inner.constant(np.int32(0))
            own = inner("dynamic_slice", all_w, i, zero, zero, slice_sizes=(1, 4, 16))
            whole = gathered(inner, inner.reshape(own, (4, 16)), 0, 1)
            new = inner("tanh", inner("dot_general", y, whole, **DOT))
            return [inner("add", i, inner.constant(np.int32(step))), new, all_w]

        inner = build_region([counter, rows, stacked], turn)
        found = b.op("while", [start, x, w], {}, [condition, inner], [counter, rows, stacked])
        return list(found.results[:2])

    return module([stacked, rows], body)


@pytest.mark.parametrize(
    ("turns", "direction", "first", "step"),
    [(8, "LT", 0, 1), (3, "LE", 2, 1), (4, "NE", 0, 2), (5, "GT", 7, -1), (2, "GE", 4, -2)],
)
def test_a_loop_gathers_for_the_next_turn(
    turns: int, direction: str, first: int, step: int
) -> None:
    program = loop(turns, direction, first, step)
    ahead = gathered_ahead(program)
    assert Counter(op.name for op in ahead.walk())["all_gather"] == 2
    check(program, ahead)
    after = overlapped(ahead, SLOW)
    check(program, after)
    (body,) = (op.regions[1] for op in after.body.ops if op.name == "while")
    names = [op.name for op in body.ops]
    assert names.index("async_start") < names.index("dot_general") < names.index("async_done")
    found = timeline(after, SLOW)
    assert len(found.calls) == turns
    assert sum(c.hidden for c in found.calls[1:]) == sum(c.duration for c in found.calls[1:])


def test_loops_of_one_turn_and_gathers_of_what_a_turn_makes_stay() -> None:
    program = loop(1)
    assert gathered_ahead(program) is program
    kind = TensorType((4, 16), F32)
    counter = TensorType((), girih.hlo.types.I32)

    def body(b: Builder, x: Value) -> list[Value]:
        def turn(inner: Builder, i: Value, y: Value) -> list[Value]:
            whole = gathered(inner, y, 0, 1)
            cut = inner("slice", whole, start_indices=(0, 0), limit_indices=(4, 16), strides=(1, 1))
            return [inner("add", i, inner.constant(np.int32(1))), cut]

        def condition(inner: Builder, i: Value, _: Value) -> list[Value]:
            return [inner.compare("LT", i, inner.constant(np.int32(3)))]

        regions = [build_region([counter, kind], part) for part in (condition, turn)]
        start = b.constant(np.int32(0))
        return [b.op("while", [start, x], {}, regions, [counter, kind]).results[1]]

    program = module([kind], body)
    assert gathered_ahead(program) is program


# Whole programs.


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_keep_their_bits(seed: int) -> None:
    choose = random.Random(seed)

    def body(b: Builder, *arguments: Value) -> list[Value]:
        values = list(arguments)
        for channel in range(1, 26):
            x, y = choose.choice(values), choose.choice(values)
            kind = choose.randrange(6)
            if kind == 0:
                values.append(summed(b, x, channel))
            elif kind == 1:
                whole = gathered(b, x, choose.randrange(2), channel)
                dims = tuple(choose.randrange(size - 15) for size in whole.dims)
                stop = tuple(size + 16 for size in dims)
                values.append(
                    b("slice", whole, start_indices=dims, limit_indices=stop, strides=(1, 1))
                )
            elif kind == 2:
                part = scattered(b, x, choose.randrange(2), channel)
                zero = b.constant(np.float32(0))
                high = tuple(16 - size for size in part.dims)
                values.append(
                    b("pad", part, zero, edge_padding_low=(0, 0), edge_padding_high=high,
                      interior_padding=(0, 0))
                )  # fmt: skip
            elif kind == 3:
                values.append(b("tanh", b("dot_general", x, y, **DOT)))
            else:
                values.append(b("add", x, y))
        return choose.sample(values, 5)

    program = module([SQUARE] * 3, body)
    less = combined(program, SLOW)
    check(program, less)
    for costs in (SLOW, Costs(MESH, LINK)):
        after = overlapped(less, costs)
        check(program, after)
        check(program, Communication()(after))


@pytest.mark.parametrize("name", ["b2", "d1", "h16"])
def test_annotated_programs(name: str) -> None:
    examples = {**NETWORKS, **OPERATIONS}
    parts = girih.partition(examples[name].module(8))
    plain = partition(parts.decided, parts.interconnect)
    sums = {
        program: sum(op.definition.traffic(op, 8) for op in program.walk())
        for program in (plain, parts.local)
    }
    assert sums[plain] == pytest.approx(sums[parts.local])
    found = Counter(calls(parts.local))
    assert found["all_reduce"] == {"b2": 3, "d1": 1, "h16": 0}[name]
    verify(parts.overlapped, INLINED)
    before, after = timeline(parts.local, parts.costs), parts.timeline()
    assert after.seconds < before.seconds
    assert after.computing == pytest.approx(before.computing)
    slower = parts.timeline(Costs(parts.mesh, LINK, lambda op: slow(op) + 1e-6))
    if name == "h16":
        rest = slower.calls[1:]
        assert len(rest) == 7
        assert sum(c.hidden for c in rest) >= 0.8 * sum(c.duration for c in rest)


def test_weights_are_updated_in_place_where_they_are_donated() -> None:
    parts = girih.partition(NETWORKS["d1"].module(8))
    weights = [kind for kind in parts.local.body.result_types if kind.rank == 2]  # type: ignore[union-attr]
    assert len(weights) == 4
    assert parts.memory.outputs < min(kind.bytes for kind in weights)  # type: ignore[union-attr]
