"""What communicates, compiled for one device: its trivial form with a note, or one refusal."""

from __future__ import annotations

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module, build_region
from girih.hlo.cases import Example, example
from girih.hlo.ops import collectives, communication, rooted
from girih.hlo.types import F32, TOKEN, TensorType
from girih.optimizer.passes.communication import Communication
from girih.optimizer.passes.one_device import OneDevice

EXAMPLES = [
    example(room, case)
    for room in (*collectives.ROOMS, *rooted.ROOMS, *communication.ROOMS)
    for case in room.cases()
]
VECTOR = TensorType((4,), F32)


@pytest.mark.parametrize("made", EXAMPLES, ids=lambda made: made.name)
def test_alone_is_what_the_interpreter_gives(made: Example) -> None:
    after = OneDevice()(made.module)
    assert not any(op.definition.communicates for op in after.walk())
    assert "on one device there is nobody to communicate with" in after.notes[-1]
    assert after.body.result_types == made.module.body.result_types
    pairs = zip(
        girih.interpret(after, made.inputs), girih.interpret(made.module, made.inputs), strict=True
    )
    for left, right in pairs:
        np.testing.assert_array_equal(left, right)


def test_nested_and_asynchronous_on_cpu() -> None:
    def body(b, x):
        facts = {"source_target_pairs": ((0, 0),)}
        inner = build_region([VECTOR], lambda c, y: [c("collective_permute", y, **facts)])
        future = b("async_start", x, regions=(inner,))
        limit = b.constant(np.float32(9))

        def smaller(c, y):
            first = c("slice", y, start_indices=(0,), limit_indices=(1,), strides=(1,))
            return [c.compare("LT", c.reshape(first, ()), limit)]

        def step(c, y):
            fold = build_region([TensorType((), F32)] * 2, lambda d, p, q: [d("add", p, q)])
            reduced = c("all_reduce", y, regions=(fold,), replica_groups=((0,),))
            return [c("add", reduced, c("add", y, x))]

        regions = build_region([VECTOR], smaller), build_region([VECTOR], step)
        done = b.op("async_done", [future]).result
        return b.op("while", [done], {}, regions).results

    module = build_module([VECTOR], body)
    x = np.ones(4, np.float32)
    (wanted,) = girih.interpret(module, [x])
    np.testing.assert_array_equal(girih.compile(module)(x)[0], wanted)


def test_every_reason_is_listed_at_once() -> None:
    text = """
    func.func @main(%x: tensor<4xf32>) -> tensor<8xf32> {
      %t = stablehlo.create_token : !stablehlo.token
      %0 = "stablehlo.all_gather"(%x) {
        all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>
      } : (tensor<4xf32>) -> tensor<8xf32> loc("model.py":7:0)
      %1 = "stablehlo.outfeed"(%x, %t) {outfeed_config = ""}
        : (tensor<4xf32>, !stablehlo.token) -> !stablehlo.token loc("model.py":8:0)
      return %0 : tensor<8xf32>
    }
    """
    with pytest.raises(girih.UnsupportedError) as caught:
        girih.compile(girih.import_model(text))
    assert "multi-device execution comes with sharding" in str(caught.value)
    assert "model.py:7: all_gather: needs 2 devices" in str(caught.value)
    assert "model.py:8: outfeed: compiled programs neither send nor receive" in str(caught.value)


def test_a_program_for_several_processes_keeps_exchanges_alone() -> None:
    text = """
    module @m attributes {mhlo.num_partitions = 2 : i32} {
      func.func @main() -> tensor<ui32> {
        %0 = stablehlo.partition_id : tensor<ui32>
        return %0 : tensor<ui32>
      }
    }
    """
    several = OneDevice()(Communication()(girih.import_model(text)))
    assert [op.name for op in several.walk() if op.definition.communicates] == ["exchange"]
    results = girih.interpret_parallel(several, [[], []])
    assert [int(row[0]) for row in results.results] == [0, 1]
    assert not any(sum(received.values()) for received in results.received)
    with pytest.raises(girih.UnsupportedError, match="partition_id: is part of a program for"):
        OneDevice()(girih.import_model(text))
    one = text.replace("num_partitions = 2", "num_partitions = 1")
    assert girih.compile(one)()[0] == 0
    with pytest.raises(girih.UserError, match=r"strict: .*partition_id removed"):
        girih.compile(one, options=girih.Options(strict=True))


def test_tokens_at_the_edge_are_refused() -> None:
    module = build_module([TOKEN, VECTOR], lambda b, token, x: [x])
    with pytest.raises(girih.UnsupportedError, match="argument 0 is a token"):
        girih.compile(module)
