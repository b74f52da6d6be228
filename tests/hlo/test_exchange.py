"""Boxes that processes send one another, and the bytes that are counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
from girih.frontends.xla import read_hlo
from girih.hlo.build import build_module, build_region
from girih.hlo.parse import parse_module
from girih.hlo.text import print_module
from girih.hlo.types import F32, TensorType
from girih.hlo.wire import decode, encode
from girih.optimizer.passes.one_device import OneDevice

SQUARE, SCALAR = TensorType((4, 4), F32), TensorType((), F32)
SUM = build_region([SCALAR, SCALAR], lambda b, x, y: [b("add", x, y)])


def squares(count: int) -> list[list[np.ndarray]]:
    return [[np.arange(16, dtype=np.float32).reshape(4, 4) + 100 * i] for i in range(count)]


def exchange(*boxes: Any, channel: int = 1, dims: Any = (2, 3)) -> girih.Module:
    facts = {"transfers": boxes, "channel_id": channel}
    kind = SQUARE.with_dims(dims)
    return build_module([SQUARE], lambda b, x: [b("exchange", x, type=kind, **facts)])


BOXES = (
    (0, 1, (1, 2), (0, 0), (2, 1)),
    (2, 1, (0, 0), (0, 1), (1, 2)),
    (1, 1, (3, 3), (1, 2), (1, 1)),
    (1, 0, (0, 0), (0, 0), (2, 3)),
    (0, 2, (0, 0), (0, 0), (0, 3)),
)


def test_boxes_go_where_they_are_sent() -> None:
    given = squares(3)
    (a,), (b,), (c,) = given
    module = exchange(*BOXES)
    assert print_module(parse_module(print_module(module))) == print_module(module)
    for same in (module, decode(encode(module))):
        found = girih.interpret_parallel(same, given, num_partitions=3)
        wanted = np.zeros((3, 2, 3), np.float32)
        wanted[1, :, :1], wanted[1, :1, 1:], wanted[1, 1, 2] = a[1:3, 2:3], c[:1, :2], b[3, 3]
        wanted[0] = b[:2, :3]
        np.testing.assert_array_equal([results[0] for results in found.results], wanted)
        assert found.received == [{"exchange": 24}, {"exchange": 16}, {"exchange": 0}]


@pytest.mark.parametrize("channel", [0, 1])
def test_each_replica_or_partition_exchanges_by_itself(channel: int) -> None:
    given = squares(4)
    boxes = ((0, 1, (0, 0), (0, 0), (1, 1)), (1, 0, (3, 3), (1, 1), (1, 1)))
    found = girih.interpret_parallel(
        exchange(*boxes, channel=channel), given, num_replicas=2, num_partitions=2
    )
    other = {0: (2, 3, 0, 1), 1: (1, 0, 3, 2)}[channel]
    for number, (result,) in enumerate(found.results):
        first = number in ((0, 1) if channel == 0 else (0, 2))
        place, value = ((1, 1), 15) if first else ((0, 0), 0)
        assert result[place] == value + 100 * other[number] and np.count_nonzero(result) <= 1


def test_an_exchange_runs_beside_what_follows() -> None:
    facts = {"transfers": ((0, 1, (0, 0), (0, 0), (4, 4)), (1, 0, (0, 0), (0, 0), (4, 4)))}

    def body(b: Any, x: Any) -> Any:
        region = build_region([SQUARE], lambda c, y: [c("exchange", y, type=SQUARE, **facts)])
        future = b.op("async_start", [x], {}, (region,)).result
        return [b("add", b("async_done", future, type=SQUARE), x)]

    given = squares(2)
    found = girih.interpret_parallel(build_module([SQUARE], body), given, num_replicas=2)
    for (result,) in found.results:
        np.testing.assert_array_equal(result, given[0][0] + given[1][0])


def test_who_waits_for_ever_is_named() -> None:
    silent = build_module([SQUARE], lambda b, x: [x])
    talks = exchange((0, 1, (0, 0), (0, 0), (1, 1)))
    with pytest.raises(girih.UserError, match=r"exchange waits for process 0"):
        girih.interpret_parallel([[silent, talks]], squares(2))


def test_alone_boxes_are_slices() -> None:
    boxes = ((0, 0, (1, 2), (0, 1), (2, 2)), (0, 0, (3, 0), (1, 0), (1, 1)))
    module = exchange(*boxes, dims=(2, 3))
    alone = OneDevice()(module)
    assert "exchange" not in {op.name for op in alone.walk()}
    given = squares(1)
    np.testing.assert_array_equal(
        girih.interpret(alone, given[0])[0],
        girih.interpret_parallel(module, given).results[0][0],
    )


def test_older_formats_have_no_exchange() -> None:
    with pytest.raises(girih.UserError, match="before it is partitioned"):
        encode(exchange(), version="1.3")


def reduction(name: str, dims: Any = (4, 4), **facts: Any) -> girih.Module:
    facts = {"replica_groups": ((0, 1, 2, 3),), **facts}
    regions, kinds = (SUM,) if "reduce" in name else (), [SQUARE.with_dims(dims)]
    return build_module([SQUARE], lambda b, x: b.op(name, [x], facts, regions, kinds).results)


@pytest.mark.parametrize(
    ("module", "wanted"),
    [
        (reduction("all_gather", (16, 4), all_gather_dim=0), [192] * 4),
        (reduction("all_reduce"), [96] * 4),
        (reduction("reduce_scatter", (4, 1), scatter_dimension=1), [48] * 4),
        (
            reduction("all_to_all", (1, 16), split_dimension=0, concat_dimension=1, split_count=4),
            [48] * 4,
        ),
        (reduction("collective_broadcast"), [0, 64, 64, 64]),
        (reduction("collective_reduce"), [0, 64, 64, 64]),
    ],
)
def test_bytes_are_counted_as_rings_carry_them(module: girih.Module, wanted: list[int]) -> None:
    found = girih.interpret_parallel(module, squares(4), num_replicas=4)
    assert [sum(received.values()) for received in found.received] == wanted
    (name,) = {name for received in found.received for name in received}
    assert name in {op.name for op in module.walk()}


def test_a_permute_counts_what_comes_from_others() -> None:
    facts = {"source_target_pairs": ((0, 0), (1, 2), (2, 1)), "channel_id": 1}
    module = build_module([SQUARE], lambda b, x: [b("collective_permute", x, **facts)])
    found = girih.interpret_parallel(module, squares(4), num_partitions=4)
    assert [sum(received.values()) for received in found.received] == [0, 64, 64, 0]


def test_sums_that_do_not_divide_are_counted_whole() -> None:
    """3 elements among 2: the shares of both are the 24 bytes that a ring carries."""
    kind = TensorType((3,), F32)
    facts = {"replica_groups": ((0, 1),)}
    module = build_module([kind], lambda b, x: b.op("all_reduce", [x], facts, (SUM,)).results)
    found = girih.interpret_parallel(module, [[np.ones(3, np.float32)]] * 2, num_replicas=2)
    assert [received["all_reduce"] for received in found.received] == [12, 12]


XLA = """HloModule jit_f, num_partitions=4

add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }

ENTRY main {
  p = f32[4,4] parameter(0)
  g = f32[4,16] all-gather(p), channel_id=1, replica_groups=[1,4]<=[4],
    dimensions={1}, use_global_device_ids=true
  r = f32[4,16] all-reduce(g), channel_id=2, replica_groups={{0,1},{2,3}},
    use_global_device_ids=true, to_apply=add
  ROOT s = f32[4,16] collective-permute(r), channel_id=3, source_target_pairs={{0,1},{1,0}}
}
"""


def test_what_xla_has_partitioned_is_counted_too() -> None:
    found = girih.interpret_parallel(read_hlo(XLA), squares(4), num_partitions=4)
    one = {"all_gather": 192, "all_reduce": 256}
    both = {**one, "collective_permute": 256}
    assert found.received == [both, both, one, one]
