"""communication: collectives as exchanges give the interpreter's bits, and bring the same bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tests.runtime.distributed import rooms

import girih
from girih.hlo.errors import UnsupportedError
from girih.hlo.ops import DEFINITIONS
from girih.hlo.verify import verify
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


@pytest.mark.parametrize("count", [4, 6])
@pytest.mark.parametrize("name", [*rooms.PROGRAMS, "on_grid"])
def test_every_room_as_exchanges_has_the_same_bits_and_brings_the_same_bytes(name, count):
    grid = name == "on_grid"
    module = rooms.on_grid(count // 2) if grid else rooms.program(name, count)
    verify(module)
    made = Communication()(module)
    verify(made)
    assert {op.name for op in made.walk() if op.definition.communicates} == {"exchange"}
    given = rooms.inputs(count)
    wanted, found = (girih.interpret_parallel(one, given) for one in (module, made))
    for left, right in zip(found.results, wanted.results, strict=True):
        assert [x.tobytes() for x in left] == [x.tobytes() for x in right]
    totals = [sum(map(Counter, run.received), Counter()) for run in (found, wanted)]
    if name != "dynamic_roots":  # who is the root is not known to who sends
        assert totals[0] == totals[1]


def test_every_room_that_communicates_is_in_a_program_or_refused():
    modules = [rooms.program(name, 4) for name in rooms.PROGRAMS] + [rooms.on_grid(2)]
    found = {op.name for module in modules for op in module.walk()}
    every = {room.name for room in DEFINITIONS if room.communicates}
    assert every - found == {"send", "recv", "infeed", "outfeed"}


@pytest.mark.parametrize(
    ("groups", "count", "reason"),
    [
        ("[[0, 1]]> : tensor<1x2xi64", 4, "process 2 is in none of its groups"),
        ("[[0, 1], [2, 3]]> : tensor<2x2xi64", 2, "it names number 3"),
    ],
)
def test_groups_that_are_not_of_the_grid_are_refused(groups, count, reason):
    module = girih.import_model(program(8, groups, count))
    with pytest.raises(UnsupportedError, match=reason):
        Communication()(module)


def test_a_manual_computation_on_another_mesh_is_refused():
    module = replace(rooms.program("manual", 4), attributes={"mhlo.num_partitions": 8})
    with pytest.raises(UnsupportedError, match="its mesh has 4 devices"):
        Communication()(module)
