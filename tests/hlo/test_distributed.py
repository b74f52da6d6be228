"""Programs of several processes: groups, channels, streams, asynchronous operations, deadlocks."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo import groups
from girih.hlo.build import build_module, build_region, make_op
from girih.hlo.errors import VerifyError
from girih.hlo.graph import arguments
from girih.hlo.ops import collectives, communication, rooted
from girih.hlo.parse import parse_module
from girih.hlo.text import print_module
from girih.hlo.types import F32, I32, TOKEN, TensorType
from girih.hlo.wire import decode, encode

VECTOR, SCALAR = TensorType((4,), F32), TensorType((), F32)
DEVICE, TO_HOST, FROM_HOST = 1, 2, 3


def add() -> Any:
    return build_region([SCALAR, SCALAR], lambda b, x, y: [b("add", x, y)])


def vectors(count: int) -> list[list[np.ndarray]]:
    return [[np.arange(4, dtype=np.float32) + 10 * number] for number in range(count)]


def sums(given: Any, *members: int) -> Any:
    return np.sum([given[member][0] for member in members], 0)


def program(op: str, types: Any = (VECTOR,), result: Any = None, **facts: Any) -> girih.Module:
    reduces = op in ("all_reduce", "reduce_scatter", "collective_reduce")
    regions = (add(),) if reduces else ()
    results = None if result is None else [result]
    return build_module(types, lambda b, *v: b.op(op, v, facts, regions, results).results)


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        ({"replica_groups": ((0, 1),)}, [(0, 2), (1, 3), (0, 2), (1, 3)]),
        ({"replica_groups": ((0,), (1,)), "channel_id": 1}, [(0, 1), (0, 1), (2, 3), (2, 3)]),
        (
            {"replica_groups": ((0, 3), (1, 2)), "channel_id": 1, "use_global_device_ids": True},
            [(0, 3), (1, 2), (1, 2), (0, 3)],
        ),
        ({"replica_groups": ()}, [(0, 2), (1, 3), (0, 2), (1, 3)]),
    ],
)
def test_strategies_of_all_reduce(facts: Any, wanted: Any) -> None:
    """Two replicas times two partitions, numbered replica * 2 + partition."""
    given = vectors(4)
    module = program("all_reduce", **facts)
    found = girih.interpret_parallel(module, given, num_replicas=2, num_partitions=2)
    for (result,), members in zip(found.results, wanted, strict=True):
        np.testing.assert_array_equal(result, sums(given, *members))


def test_process_groups_are_the_specifications() -> None:
    four = ((0, 1), (2, 3))
    assert groups.process_groups("cross_replica", four, 4, 2) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert groups.process_groups("cross_partition", ((0, 1),), 4, 2) == (
        (0, 1), (2, 3), (4, 5), (6, 7),
    )  # fmt: skip
    both = groups.process_groups("cross_replica_and_partition", four, 4, 2)
    assert both == ((0, 2, 1, 3), (4, 6, 5, 7))


def test_groups_of_mesh_axes() -> None:
    axes = [("x", 4), ("y", 2)]
    assert groups.mesh_groups(axes, (), [("x", 1, 0)]) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert groups.mesh_groups(axes, (), [("x", 1, 2)]) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert groups.mesh_groups(axes, (), [("x", 2, 2), ("y", 1, 0)]) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert groups.mesh_groups([("x", 2)], (1, 0), [("x", 1, 0)]) == ((1, 0),)
    for chosen in ([("z", 1, 0)], [("x", 3, 2)], [("x", 1, 0), ("x", 1, 0)]):
        with pytest.raises(ValueError, match="axis"):
            groups.mesh_groups(axes, (), chosen)
    mesh = {"axes": ({"name": "x", "size": 2}, {"name": "y", "size": 2}), "device_ids": None}
    module = program(
        "all_reduce", replica_groups={"mesh": mesh, "axes": ({"name": "x"},)}, channel_id=1,
        use_global_device_ids=True,
    )  # fmt: skip
    given = vectors(4)
    found = girih.interpret_parallel(module, given, num_partitions=4)
    for number, (result,) in enumerate(found.results):
        np.testing.assert_array_equal(result, sums(given, number % 2, number % 2 + 2))
    assert print_module(parse_module(print_module(module))) == print_module(module)


def test_dynamic_roots() -> None:
    types = (VECTOR, VECTOR, TensorType((2,), I32))
    facts = {"replica_groups": ((0, 1, 2),), "has_dynamic_root": True}
    given = [[*x, *x, np.array([2, 0], np.int32)] for x in vectors(3)]
    spread = girih.interpret_parallel(
        program("collective_broadcast", types, **facts), given, num_replicas=3
    )
    reduced = girih.interpret_parallel(
        program("collective_reduce", types, **facts), given, num_replicas=3
    )
    total = sums(given, 0, 1, 2)
    for number in range(3):
        np.testing.assert_array_equal(spread.results[number][0], given[2][0])
        np.testing.assert_array_equal(spread.results[number][1], given[0][0])
        for place, root in enumerate((2, 0)):
            wanted = total if number == root else 0 * total
            np.testing.assert_array_equal(reduced.results[number][place], wanted)
    given[1][2] = np.array([3, 0], np.int32)
    with pytest.raises(girih.UserError, match="root 3 is no place in a group of 3"):
        girih.interpret_parallel(
            program("collective_broadcast", types, **facts), given, num_replicas=3
        )


def chat(pairs: Any, is_host: bool) -> girih.Module:
    """Sends its input, then receives what comes."""
    kinds = (TO_HOST, FROM_HOST) if is_host else (DEVICE, DEVICE)
    facts = [
        {
            "channel_id": 7, "channel_type": kind, "is_host_transfer": is_host,
            "source_target_pairs": pairs,
        }
        for kind in kinds
    ]  # fmt: skip

    def body(b: Any, x: Any) -> Any:
        sent = b("send", x, b("create_token"), **facts[0])
        return b.op("recv", [sent], facts[1], (), [VECTOR, TOKEN]).results[:1]

    return build_module([VECTOR], body)


def test_send_and_receive_between_devices() -> None:
    given = vectors(3)
    found = girih.interpret_parallel(chat(((0, 1), (1, 0)), False), given, num_partitions=3)
    np.testing.assert_array_equal(found.results[0][0], given[1][0])
    np.testing.assert_array_equal(found.results[1][0], given[0][0])
    np.testing.assert_array_equal(found.results[2][0], 0 * given[2][0])


def test_the_host_sends_and_receives() -> None:
    given, more = vectors(1), np.full(4, 5, np.float32)
    found = girih.interpret_parallel(chat((), True), given, received={7: [more]})
    np.testing.assert_array_equal(found.results[0][0], more)  # what was there first
    np.testing.assert_array_equal(found.sent[7][0][0], given[0][0])


def streams() -> girih.Module:
    def body(b: Any, x: Any) -> Any:
        out = b("outfeed", x, b("create_token"))
        return b.op("infeed", [out], {}, (), [VECTOR, TOKEN]).results[:1]

    return build_module([VECTOR], body)


def test_infeed_and_outfeed_are_per_process() -> None:
    given = vectors(2)
    queues = [[x + 1] for (x,) in given]
    found = girih.interpret_parallel(streams(), given, num_replicas=2, infeed=queues)
    for number in range(2):
        np.testing.assert_array_equal(found.results[number][0], queues[number][0])
        np.testing.assert_array_equal(found.outfeed[number][0][0], given[number][0])
    with pytest.raises(girih.UserError, match=r"infeed of process \(1, 0\) is empty"):
        girih.interpret_parallel(streams(), given, num_replicas=2, infeed=queues[:1])
    with pytest.raises(girih.UserError, match=r"takes f32\[4\], but is given float64\[4\]"):
        girih.interpret_parallel(streams(), given[:1], infeed=[[np.zeros(4)]])
    with pytest.raises(girih.UserError, match="infeed"):
        girih.interpret(streams(), given[0])


def asynchronous(order: Any) -> girih.Module:
    """Starts two reductions over different channels in that order, then waits for them."""

    def body(b: Any, x: Any) -> Any:
        futures = {}
        for channel in order:
            facts: dict[str, Any] = {"replica_groups": ((0, 1),), "channel_id": channel}
            facts["use_global_device_ids"] = True
            inner = build_region(
                [VECTOR], lambda c, y, facts=facts: [c("all_reduce", y, regions=(add(),), **facts)]
            )
            futures[channel] = b("async_start", x, regions=(inner,))
            x = b("add", x, x)
        return [b.op("async_done", [futures[channel]]).result for channel in (1, 2)]

    return build_module([VECTOR], body)


def test_asynchronous_operations_do_not_hold_up_what_follows() -> None:
    given = vectors(2)
    found = girih.interpret_parallel([[asynchronous((1, 2)), asynchronous((2, 1))]], given)
    (first, second), others = found.results
    np.testing.assert_array_equal(first, given[0][0] + 2 * given[1][0])
    np.testing.assert_array_equal(second, 2 * given[0][0] + given[1][0])
    np.testing.assert_array_equal([first, second], others)
    text = str(asynchronous((1, 2)))
    assert print_module(parse_module(text)) == text
    assert print_module(decode(encode(asynchronous((1, 2))))) == text


def test_a_deadlock_is_an_error_with_its_places() -> None:
    text = """
    #loc = loc("model.py":41:0)
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = "stablehlo.all_gather"(%x) {
        all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>
      } : (tensor<4xf32>) -> tensor<8xf32> loc(#loc)
      %1 = stablehlo.slice %0 [0:4] : (tensor<8xf32>) -> tensor<4xf32>
      return %1 : tensor<4xf32>
    }
    """
    waits, ends = girih.import_model(text), build_module([VECTOR], lambda b, x: [x])
    with pytest.raises(girih.UserError) as caught:
        girih.interpret_parallel([[waits], [ends]], vectors(2))
    assert "process (0, 0): model.py:41: all_gather waits for the processes [0, 1]" in str(
        caught.value
    )
    assert "ended: process (1, 0)" in str(caught.value)
    with pytest.raises(girih.UserError, match="names? replica 1, but the program runs on"):
        girih.interpret(waits, vectors(1)[0])


def test_an_error_in_one_process_ends_all() -> None:
    def body(b: Any, x: Any) -> Any:
        token = b("create_token")
        b.op("infeed", [token], {}, (), [VECTOR, TOKEN])
        return [b("all_reduce", x, regions=(add(),), replica_groups=((0, 1),))]

    failing = build_module([VECTOR], body)
    fine = program("all_reduce", replica_groups=((0, 1),))
    for _ in range(20):  # no thread of an ended grid holds anything up
        with pytest.raises(girih.UserError, match="infeed of process"):
            girih.interpret_parallel([[fine], [failing]], vectors(2))


def test_sizes_and_inputs_are_checked() -> None:
    module = program("all_reduce", replica_groups=((0, 1),))
    for sizes, message in (
        ({"num_replicas": 0}, "cannot be run"),
        ({"num_replicas": 10**9, "num_partitions": 10**9}, "cannot be run"),
        ({"num_replicas": 3}, "3 processes need as many lists of inputs"),
        ({"num_replicas": "2"}, "must be an integer"),
    ):
        with pytest.raises(girih.UserError, match=message):
            girih.interpret_parallel(module, vectors(2), **sizes)  # type: ignore[arg-type]
    for wrong in ("func.func @main", [["a"]]):
        with pytest.raises(girih.UserError, match="import_model makes them"):
            girih.interpret_parallel(wrong)  # type: ignore[arg-type]
    with pytest.raises(girih.UserError, match="rows of one length"):
        girih.interpret_parallel([[module, module], [module]], vectors(3))
    with pytest.raises(girih.UserError, match="but the programs are for 1"):
        girih.interpret_parallel([[module], [module]], vectors(2), num_partitions=2)
    other = program("all_reduce", (TensorType((3,), F32),), replica_groups=((0, 1),))
    with pytest.raises(girih.UserError, match="differ in shape"):
        girih.interpret_parallel([[module], [other]], [*vectors(1), [np.zeros(3, np.float32)]])


def test_the_module_says_how_many_processes_it_is_for() -> None:
    text = """
    module @m attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 3 : i32} {
      func.func @main() -> (tensor<ui32>, tensor<ui32>) {
        %0 = stablehlo.replica_id : tensor<ui32>
        %1 = stablehlo.partition_id : tensor<ui32>
        return %0, %1 : tensor<ui32>, tensor<ui32>
      }
    }
    """
    found = girih.interpret_parallel(girih.import_model(text))
    numbers = [tuple(map(int, results)) for results in found.results]
    with pytest.raises(
        girih.UserError, match=r"replica_id: .* num_replicas = 3, num_partitions = 2"
    ):
        girih.interpret(girih.import_model(text), [])
    assert numbers == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]


def strange(source: random.Random, depth: int = 0) -> Any:
    """An attribute that nobody should write."""
    kind = source.randrange(4 if depth < 3 else 2)
    if kind < 2:
        return source.choice([0, 1, -1, 2**70, True, None, "x", b"y", 1.5, float("nan")])
    if kind == 2:
        return tuple(strange(source, depth + 1) for _ in range(source.randrange(4)))
    keys = source.sample(["mesh", "axes", "name", "size", "device_ids", "sub_axis", "parts"], 3)
    return {key: strange(source, depth + 1) for key in keys}


def test_strange_attributes_are_told_by_their_clause() -> None:
    source = random.Random(4)
    rooms = [*collectives.ROOMS, *rooted.ROOMS, *communication.ROOMS]
    kinds = [VECTOR, TOKEN, SCALAR, TensorType((2,), I32)]
    accepted = 0
    for _ in range(4000):
        room = source.choice(rooms)
        facts = {key: strange(source) for key in room.attributes if source.random() < 0.9}
        values = arguments([source.choice(kinds) for _ in range(source.randrange(3))])
        regions = [add() for _ in room.regions]
        try:
            make_op(room.name, values, facts, regions, [v.type for v in values])
            accepted += 1
        except VerifyError as error:
            assert str(error).startswith(f"{room.name}.")  # noqa: PT017
    assert accepted < 1000
