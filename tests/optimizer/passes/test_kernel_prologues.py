"""Elementwise producers go into the kernel that loads their result."""

from __future__ import annotations

import numpy as np
import pytest

from girih.hlo.build import build_module, build_region
from girih.hlo.graph import Module, Value
from girih.hlo.interpret import interpret
from girih.hlo.ops import find
from girih.hlo.types import tensor_of
from girih.hlo.verify import FUSED, verify
from girih.optimizer.passes.fuse import Fuse
from girih.optimizer.passes.kernel_prologues import KernelPrologues
from girih.optimizer.pipeline import run_pipeline

CASES = {case.name: case for case in find("kernel_call").cases()}


def before_kernel(name: str, operand: int, producer, extra=()) -> tuple[Module, list[np.ndarray]]:
    """`producer(b, argument, *extra)` in front of one input of a case's kernel."""
    case = CASES[name]
    inputs = [*map(np.asarray, case.inputs), *extra]

    def body(b, *values: Value):
        count = len(case.inputs)
        operands = list(values[:count])
        operands[operand] = producer(b, operands[operand], *values[count:])
        regions = case.regions(build_region) if case.regions else ()
        return b.op("kernel_call", operands, case.attributes, regions, case.result_types).results

    return build_module([tensor_of(array) for array in inputs], body), inputs


def extended(module: Module, inputs) -> list[str]:
    result = run_pipeline(module, [Fuse(), KernelPrologues()])
    verify(result, FUSED)
    for a, b in zip(interpret(result, inputs), interpret(module, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
    return [op.name for op in result.body.ops]


def shifted(b, x):
    return b("add", b("multiply", x, x), b.constant(3, x.tensor))


@pytest.mark.parametrize("name", ["kernel_double", "kernel_row_softmax", "kernel_branch"])
def test_a_chain_goes_into_the_kernel(name):
    module, inputs = before_kernel(name, 0, shifted)
    assert extended(module, inputs) == ["kernel_call"]


def test_what_lies_outside_stays_the_fill():
    """The chain would make 3 of what lies outside; the kernel's windows are filled with 0 there."""
    module, inputs = before_kernel("kernel_sum", 0, shifted)
    assert extended(module, inputs) == ["kernel_call"]


def test_a_broadcast_is_loaded_in_its_own_window():
    bias = np.arange(4, dtype=np.float32)

    def producer(b, x, bias):
        return b("subtract", x, b.broadcast(bias, x.dims, (1,)))

    module, inputs = before_kernel("kernel_row_softmax", 0, producer, (bias,))
    assert extended(module, inputs) == ["kernel_call"]


@pytest.mark.parametrize(
    ("name", "operand", "producer"),
    [
        ("kernel_matmul", 0, shifted),  # every element is loaded twice
        ("kernel_gather", 0, shifted),  # rows are looked up
        ("kernel_masked", 0, shifted),  # the result starts as the input
        ("kernel_double", 0, lambda b, x: b("reverse", x, dimensions=(0,))),
    ],
)
def test_must_not_fire(name, operand, producer):
    module, inputs = before_kernel(name, operand, producer)
    assert len(extended(module, inputs)) > 1
