"""Elementwise consumers go into the kernel before them."""

from __future__ import annotations

import numpy as np
import pytest

from girih.hlo.build import build_module, build_region
from girih.hlo.cases import example
from girih.hlo.graph import Module, Op, Region, Value, arguments
from girih.hlo.interpret import interpret
from girih.hlo.ops import find
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import FUSED, verify
from girih.optimizer.passes.fuse import Fuse
from girih.optimizer.passes.kernel_epilogues import KernelEpilogues
from girih.optimizer.pipeline import run_pipeline

CASES = {case.name: case for case in find("kernel_call").cases()}


def after_kernel(name: str, consumer, extra=()) -> tuple[Module, list[np.ndarray]]:
    """The kernel of a case, then `consumer(b, *its results, *extra arguments)`."""
    room = find("kernel_call")
    case = CASES[name]
    inputs = [*case.inputs, *extra]
    types = [*(v.type for v in example(room, case).module.body.arguments)]
    types += [TensorType(array.shape, F32) for array in extra]

    def body(b, *values: Value):
        count = len(case.inputs)
        regions = case.regions(build_region) if case.regions else ()
        op = b.op("kernel_call", values[:count], case.attributes, regions, case.result_types)
        return consumer(b, *op.results, *values[count:])

    return build_module(types, body), inputs


def extended(module: Module, inputs) -> Module:
    result = run_pipeline(module, [Fuse(), KernelEpilogues()])
    verify(result, FUSED)
    for a, b in zip(interpret(result, inputs), interpret(module, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
    return result


def names(module: Module) -> list[str]:
    return [op.name for op in module.body.ops]


@pytest.mark.parametrize("name", ["kernel_double", "kernel_window", "kernel_matmul"])
def test_a_chain_goes_into_the_kernel(name):
    module, inputs = after_kernel(name, lambda b, x: [b("tanh", b("multiply", x, x))])
    assert names(extended(module, inputs)) == ["kernel_call"]


def test_what_the_consumer_reads_besides_is_loaded_through_the_window():
    bias, other = np.arange(7, dtype=np.float32), np.ones((5, 7), np.float32)

    def consumer(b, x, bias, other):
        return [b("add", b("add", x, b.broadcast(bias, (5, 7), (1,))), other)]

    module, inputs = after_kernel("kernel_matmul", consumer, (bias, other))
    result = extended(module, inputs)
    assert names(result) == ["kernel_call"]
    (kernel,) = result.body.ops
    assert len(kernel.operands) == 4


def test_a_result_that_is_needed_besides_is_stored_as_well():
    module, inputs = after_kernel("kernel_double", lambda b, x: [x, b("negate", x)])
    (kernel,) = extended(module, inputs).body.ops
    assert len(kernel.results) == 2


def test_several_results_of_the_consumer():
    module, inputs = after_kernel(
        "kernel_double", lambda b, x: [b("negate", x), b("abs", b("sine", x))]
    )
    assert names(extended(module, inputs)) == ["kernel_call"]


@pytest.mark.parametrize(
    ("name", "consumer"),
    [
        ("kernel_double", lambda b, x: [b("reverse", x, dimensions=(0,))]),  # other elements
        ("kernel_histogram", lambda b, x: [b("negate", x)]),  # sums that are not finished
        ("kernel_masked", lambda b, x: [b("negate", x)]),  # stores only some elements
    ],
)  # fmt: skip
def test_must_not_fire(name, consumer):
    module, inputs = after_kernel(name, consumer)
    assert len(names(extended(module, inputs))) > 1


def test_a_reference_grows_with_the_kernel():
    from girih.hlo.build import build_region, make_op
    from girih.hlo.graph import Function, Region, arguments

    case = CASES["kernel_double"]
    vector = TensorType((10,), F32)
    reference = build_region([vector], lambda b, x: [b("add", x, x)])
    own = arguments([vector])
    assert case.regions is not None
    kernel = make_op("kernel_call", own, case.attributes, (*case.regions(build_region), reference))
    after = make_op("negate", [kernel.result])
    module = Module({"main": Function("main", Region(own, [kernel, after], after.results))})
    result = extended(module, case.inputs)
    (kernel,) = result.body.ops
    body = Function("main", kernel.regions[1])
    (found,) = interpret(Module({"main": body}), case.inputs)
    np.testing.assert_array_equal(found, -2 * case.inputs[0])


def test_a_consumer_of_two_results_stays_behind_the_kernel():
    case = CASES["kernel_double"]
    (array,) = case.inputs
    assert case.regions and case.result_types
    kinds = [case.result_types[0]] * 2
    (region,) = case.regions(build_region)

    def body(b, x: Value):
        inner, memory = region.arguments
        both = arguments([inner.type, memory.type, memory.type])
        ops: list[Op] = []
        mapping = dict(zip((inner, memory), both, strict=False))
        for op in region.ops:
            operands = [mapping.get(v, v) for v in op.operands]
            ops.append(op.with_operands(operands))
            mapping.update(zip(op.results, ops[-1].results, strict=True))
            if op.name == "tile_store":
                ops.append(op.with_operands([both[2], *operands[1:]]))
        twice = Region(both, ops, ())
        op = b.op("kernel_call", [x], case.attributes, (twice,), kinds)
        return [b("add", b("multiply", *op.results), x)]

    module = build_module([TensorType(array.shape, F32)], body)
    assert names(extended(module, [array])) == ["kernel_call", "fusion"]
