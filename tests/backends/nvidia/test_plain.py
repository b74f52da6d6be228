"""Every kind of operation through its GPU kernel in the simulator, beside the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from girih.backends.nvidia import plain
from girih.backends.nvidia.fits import shared
from girih.backends.nvidia.launch import SCRATCH, KernelMemory
from girih.backends.plain.single import LIMITATIONS, as_region
from girih.hlo.build import Builder
from girih.hlo.errors import UnsupportedError
from girih.hlo.graph import Region
from girih.hlo.ops import DEFINITIONS
from girih.hlo.types import BF16, C64, F16, F32, F64, I8, I32, TensorType

from . import harness

EVERY = 3  # of an operation's examples so many are left out


def cases() -> Iterator[Any]:
    """Of each operation the first example, and some of the others."""
    for definition in DEFINITIONS:
        control = definition.pattern in ("control", "source") and definition.name != "iota"
        if control or definition.name in LIMITATIONS or definition.communicates:
            continue
        if definition.name.startswith("linalg.") and "pivots" not in definition.name:
            continue  # LAPACK's
        if definition.name in ("foreign_call", "kernel_call"):
            continue  # tests of their own
        for case in list(definition.cases())[::EVERY]:
            yield pytest.param(definition, case, id=f"{definition.name}-{case.name}")


@pytest.mark.parametrize("definition, case", list(cases()))
def test_case(definition: Any, case: Any) -> None:
    op = harness.operation(definition, case)
    values = (*op.operands, *op.results)
    if not all(isinstance(v.type, TensorType) and v.type.is_static for v in values):
        pytest.skip("not a static tensor")
    inputs = [np.asarray(x) for x in case.inputs]
    floats = any(v.element.kind in ("float", "complex") for v in op.results)
    harness.check(op, inputs, tolerance=max(case.tolerance, 1e-5) if floats else 0.0)


def emitted(region: Region) -> Any:
    return plain.emit(region, harness.TARGET, 0.0)


@pytest.mark.parametrize("element", (F32, F16, BF16, F64, I8, I32, C64), ids=str)
def test_regions_of_several_operations(element: Any) -> None:
    """Rows normalised, multiplied and summed: five launches hand on what lies in scratch."""
    b = Builder()
    x, w = b.arguments([TensorType((5, 12), element), TensorType((12, 7), element)])
    zero = b.constant(0, TensorType((), element))
    total = b.reduce("add", b("multiply", x, x), zero, [1])
    scaled = b("add", x, b.broadcast(total, (5, 12), [0]))
    product = b(
        "dot_general", scaled, b("negate", w), type=TensorType((5, 7), element),
        lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,),
    )  # fmt: skip
    column = b.reduce("add", product, zero, [0])
    region = b.region([b("negate", product), column, total])
    op = harness.fusion("loop", region)
    random = np.random.default_rng(0)
    inputs = [
        (random.integers(-3, 4, value.dims) / (1 if element.is_integer else 8)).astype(
            element.dtype
        )
        for value in op.operands
    ]
    code = emitted(region)
    assert len(code.launches) == 4 and code.scratch_bytes > 0
    tolerance = {"bf16": 2e-2, "f16": 2e-3}.get(str(element), 1e-5)
    harness.check(
        op, inputs, tolerance=0.0 if element.is_integer else tolerance, emitter=lambda: code
    )


def test_values_that_two_launches_read_are_apart() -> None:
    b = Builder()
    (x,) = b.arguments([TensorType((64,), F32)])
    zero = b.constant(0.0, TensorType((), F32))
    first, second = b.reduce("add", x, zero, [0]), b.reduce("maximum", x, zero, [0])
    code = emitted(b.region([b("add", first, second)]))
    places = {
        argument.offset
        for launch in code.launches
        for argument in launch.arguments
        if isinstance(argument, KernelMemory) and argument.slot == SCRATCH
    }
    assert len(places) == 2 and max(places) < code.scratch_bytes


@pytest.mark.parametrize("name", ("dynamic_update_slice", "scatter"))
def test_updates_in_place(name: str) -> None:
    """Operand and result in one piece of memory: the copy does nothing."""
    definition = next(d for d in DEFINITIONS if d.name == name)
    for case in definition.cases():
        op = harness.operation(definition, case)
        if (0, 0) not in shared(op):
            continue
        inputs = [np.asarray(x) for x in case.inputs]
        pairs = [pair for pair in shared(op) if pair[0] == pair[1]]
        apart = harness.run(op, inputs)
        together = harness.run(op, inputs, shared=pairs)
        for one, other in zip(apart, together, strict=True):
            np.testing.assert_array_equal(one, other)


def test_scatter_is_parallel_along_dims_that_stay_apart() -> None:
    definition = next(d for d in DEFINITIONS if d.name == "scatter")
    grids = []
    for case in definition.cases():
        op = harness.operation(definition, case)
        code = plain.emit(as_region(op), harness.TARGET, 0.0)
        grids += [launch.block[0] * launch.grid[0] for launch in code.launches]
    assert min(grids) == 32


def test_one_lane_kernels_of_windows_have_a_thread_per_result() -> None:
    definition = next(d for d in DEFINITIONS if d.name == "reduce_window")
    for case in definition.cases():
        op = harness.operation(definition, case)
        (launch,) = plain.emit(as_region(op), harness.TARGET, 0.0).launches
        assert launch.block[0] * launch.grid[0] >= min(op.results[0].tensor.size, 32)


def test_what_lapack_computes_is_refused() -> None:
    definition = next(d for d in DEFINITIONS if d.name == "linalg.eigh")
    op = harness.operation(definition, next(iter(definition.cases())))
    with pytest.raises(UnsupportedError, match=r"linalg\.eigh: target nvidia has no code"):
        harness.run(op, [])
