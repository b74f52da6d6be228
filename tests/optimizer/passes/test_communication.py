"""communication: collectives as exchanges give the interpreter's bits, and bring the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

import girih
from girih.optimizer.passes.communication import Communication


def program(size: int, groups: str, count: int, computation: str = "stablehlo.add %x, %y") -> str:
    return f"""module @m attributes {{mhlo.num_partitions = {count} : i32}} {{
      func.func public @main(%a: tensor<{size}xf32>) -> tensor<{size}xf32> {{
        %0 = "stablehlo.all_reduce"(%a) <{{replica_groups = dense<{groups}>,
          channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          use_global_device_ids}}> ({{
          ^bb0(%x: tensor<f32>, %y: tensor<f32>):
            %s = {computation} : tensor<f32>
            stablehlo.return %s : tensor<f32>
          }}) : (tensor<{size}xf32>) -> tensor<{size}xf32>
        return %0 : tensor<{size}xf32>
      }}
    }}"""


@pytest.mark.parametrize("size", [1, 5, 7, 8])
@pytest.mark.parametrize(
    ("groups", "count"),
    [("[[0, 1, 2, 3]]> : tensor<1x4xi64", 4), ("[[0, 2], [3, 1]]> : tensor<2x2xi64", 4)],
)
def test_an_all_reduce_is_two_exchanges(size, groups, count):
    module = girih.import_model(program(size, groups, count))
    made = Communication()(module)
    assert [op.name for op in made.walk() if op.definition.communicates] == ["exchange"] * 2
    generator = np.random.default_rng(size)
    inputs = [[generator.standard_normal(size, np.float32)] for _ in range(count)]
    wanted = girih.interpret_parallel(module, inputs)
    found = girih.interpret_parallel(made, inputs)
    for left, right in zip(found.results, wanted.results, strict=True):
        assert left[0].tobytes() == right[0].tobytes()
    received = [sum(sum(one.values()) for one in run.received) for run in (found, wanted)]
    assert received[0] == received[1]


def test_one_process_is_left_to_the_next_pass():
    module = girih.import_model(program(4, "[[0]]> : tensor<1x1xi64", 1))
    assert Communication()(module) is module
