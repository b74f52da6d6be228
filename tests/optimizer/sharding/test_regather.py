"""Values that are gathered again: fewer at a time, the same numbers, bytes that are explained."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import Builder, build_module
from girih.hlo.distributed import interpret_parallel
from girih.hlo.errors import MemoryLimitError
from girih.hlo.graph import Module, Op, Value
from girih.hlo.placement import cut
from girih.hlo.types import F32, TensorType
from girih.optimizer.sharding.interconnect import Interconnect, Link
from girih.partitioning import Partitioned

LAYERS, ROWS, WIDTH, DEVICES = 4, 2048, 32, 4
WHOLE = TensorType((WIDTH, WIDTH), F32)
EAGER = Interconnect(usual=Link(1e-9, 0.0, 1 / 50e9))  # calls cost little: none are joined


def training() -> Module:
    """Layers forward, and the gradient of each layer's input and weight backward."""

    def product(b: Builder, x: Value, y: Value, left: int, right: int) -> Value:
        return b(
            "dot_general", x, y, lhs_batching_dimensions=(), rhs_batching_dimensions=(),
            lhs_contracting_dimensions=(left,), rhs_contracting_dimensions=(right,),
        )  # fmt: skip

    def body(b: Builder, x: Value, *weights: Value) -> list[Value]:
        inputs = []
        for weight in weights:
            inputs.append(x)
            x = b("tanh", product(b, x, weight, 1, 0))
        slope, found = x, []
        for weight, given in zip(reversed(weights), reversed(inputs), strict=True):
            found.append(b("subtract", weight, product(b, given, slope, 0, 0)))
            slope = product(b, slope, weight, 1, 1)
        return [slope, *found]

    return build_module([TensorType((ROWS, WIDTH), F32), *[WHOLE] * LAYERS], body)


def parts(memory: int | None = None) -> Partitioned:
    said = {f"input[{n}]": ("data",) for n in range(LAYERS + 1)}
    return girih.partition(
        training(), mesh={"data": DEVICES}, shardings=said, interconnect=EAGER, memory=memory
    )


def together(ops: Iterable[Op]) -> int:
    """The most gathered weights that are there at a time, from where their gathers start."""
    ops = list(ops)
    gathers = [op for op in ops if op.name in ("all_gather", "async_start")]
    gathers = [op for op in gathers if "all_gather" in (op.name, *_inside(op))]
    last: dict[Op, int] = {}
    made: dict[Value, Op] = {op.results[0]: op for op in gathers}
    for number, op in enumerate(ops):
        for value in op.operands:
            if value in made:
                last[made[value]] = number
                if op.name == "async_done":
                    made[op.results[0]] = made[value]
    starts = {op: number for number, op in enumerate(ops) if op in gathers}
    return max(
        sum(starts[op] <= number <= last[op] for op in gathers) for number in range(len(ops))
    )


def _inside(op: Op) -> list[str]:
    return [inner.name for region in op.regions for inner in region.ops]


def received(found: Partitioned, inputs: list[Any]) -> float:
    kinds = [facts["girih.whole"] for facts in found.local.main.argument_attributes]
    blocks = [
        cut(array, kind.sharding, found.mesh) for array, kind in zip(inputs, kinds, strict=True)
    ]
    run = interpret_parallel(found.local, [[b[n] for b in blocks] for n in range(DEVICES)])
    return sum(sum(one.values()) for one in run.received) / DEVICES


def test_no_more_than_two_weights_are_gathered_at_a_time_where_memory_says_so() -> None:
    kept = parts()
    count = sum(op.name == "all_gather" for op in kept.local.body.ops)
    assert together(kept.local.body.ops) == count >= 3
    with pytest.raises(MemoryLimitError, match="values gathered again; cut more") as error:
        parts(memory=1000)
    least = error.value.needed_bytes
    assert least < kept.memory.total
    again = parts(memory=least)
    assert again.memory.total == least
    assert together(again.local.body.ops) <= 2
    assert together(again.overlapped.body.ops) <= 2
    generator = np.random.default_rng(0)
    inputs = [
        generator.standard_normal(k.tensor.dims, np.float32) for k in training().body.arguments
    ]
    wanted = kept.interpret(inputs)
    for one, other in zip(again.interpret(inputs), wanted, strict=True):
        assert one.tobytes() == other.tobytes()
    assert again.bytes > kept.bytes
    assert received(again, inputs) == again.bytes
    assert received(kept, inputs) == kept.bytes


def test_as_few_are_gathered_again_as_memory_needs() -> None:
    kept = parts()
    assert parts(memory=kept.memory.total).bytes == kept.bytes
    once = parts(memory=kept.memory.total - 1)
    assert once.memory.total < kept.memory.total
    assert once.bytes - kept.bytes == WHOLE.bytes * (DEVICES - 1) / DEVICES
