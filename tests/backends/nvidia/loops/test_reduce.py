"""`reduce` fusions: any dims, any monoid, one launch or two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.backends.nvidia.assemble import assemble
from girih.backends.nvidia.compile import compile_ptx
from girih.backends.nvidia.kernels import emit
from girih.hlo.build import build_region
from girih.hlo.types import BF16, C64, F16, F32, F64, I1, I8, I32, I64, ElementType, TensorType

from ...support import argmax
from .. import harness
from .support import check, counted, inputs_for, kind, operation


def total(b: Any, x: Any, dims: tuple[int, ...], name: str = "add", start: Any = 0) -> Any:
    return b.reduce(name, x, b.constant(start, TensorType((), x.element)), dims)


SHAPES = [
    ((7,), (0,)), ((33, 65), (0,)), ((33, 65), (1,)), ((33, 65), (0, 1)), ((4, 9, 20), (1,)),
    ((4, 9, 20), (0, 2)), ((4, 9, 20), (0, 1)), ((4, 9, 20), ()), ((300, 1), (0,)),
    ((3, 1, 64, 5), (1, 2)), ((2, 3, 4, 5, 6), (0, 2, 4)), ((2, 3, 4, 5, 6), (1, 3)),
    ((64, 512), (0,)), ((1, 4096), (1,)), ((5, 0), (0,)),
]  # fmt: skip


@pytest.mark.parametrize(("dims", "over"), SHAPES, ids=str)
def test_shapes(dims: tuple[int, ...], over: tuple[int, ...]) -> None:
    check([kind(*dims)], lambda b, x: [total(b, x, over)], "reduce", 1e-5)


@pytest.mark.parametrize(
    ("dims", "over", "launches"),
    [((3, 300000), (1,), 2), ((400000,), (0,), 2), ((20000, 8), (0,), 2), ((9000, 64), (0,), 2),
     ((600, 700), (0, 1), 2), ((2000, 300), (1,), 1), ((30, 4000), (0,), 1)],
)  # fmt: skip
def test_long_ones_are_divided(dims: tuple[int, ...], over: tuple[int, ...], launches: int) -> None:
    def body(b: Any, x: Any) -> Any:
        return [total(b, x, over), total(b, x, over, "maximum", -np.inf)]

    code = check([kind(*dims)], body, "reduce", 2e-4)
    assert len(code.launches) == launches


@pytest.mark.parametrize(
    ("element", "name"),
    [
        (F32, "maximum"), (F32, "minimum"), (F64, "add"), (BF16, "add"),
        (F16, "maximum"), (I32, "add"), (I64, "minimum"), (I8, "maximum"), (I8, "xor"),
        (I1, "and"), (I1, "or"), (C64, "add"),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize(("dims", "over"), [((6, 70), (1,)), ((70, 6), (0,)), ((12000,), (0,))])
def test_types_and_bodies(
    element: ElementType, name: str, dims: tuple[int, ...], over: tuple[int, ...]
) -> None:
    tolerance = {F32: 1e-5, F64: 1e-12, C64: 1e-4}.get(element, 0.02)
    if not (element.is_float or element.is_complex):
        tolerance = 0.0
    check(
        [kind(*dims, element=element)],
        lambda b, x: [total(b, x, over, name, 1)],
        "reduce",
        tolerance,
    )


@pytest.mark.parametrize("element", [F32, C64], ids=str)
def test_products(element: ElementType) -> None:
    for dims, over in (((6, 70), (1,)), ((70, 6), (0,))):
        types = [kind(*dims, element=element)]
        check(types, lambda b, x, over=over: [total(b, x, over, "multiply", 1)], "reduce", 1e-4)


def test_nan_and_initial_values() -> None:
    values = np.random.default_rng(0).standard_normal((5, 90)).astype(np.float32)
    values[1, 3], values[2, 4] = np.nan, np.inf
    for dims in ((0,), (1,)):

        def body(b: Any, x: Any, dims: tuple[int, ...] = dims) -> Any:
            return [total(b, x, dims, "maximum", 0.5), total(b, x, dims, "minimum", -np.inf)]

        check([kind(5, 90)], body, "reduce", inputs=[values])


@pytest.mark.parametrize(
    ("dims", "over"), [((6, 300), (1,)), ((300, 6), (0,)), ((2, 30000), (1,)), ((5000, 3), (0,)),
                       ((6, 33), (1,)), ((5, 40, 7), (1,))]
)  # fmt: skip
def test_argmax(dims: tuple[int, ...], over: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 50, dims).astype(np.float32)
    check([kind(*dims)], lambda b, x: list(argmax(b, x, over)), "reduce", inputs=[values])


@pytest.mark.parametrize("dims", [(3, 100), (100, 3), (1, 70000), (70000, 1)], ids=str)
def test_bodies_that_do_not_commute(dims: tuple[int, int]) -> None:
    """(first element, last element) of a stretch: right only in the elements' order."""
    over = 1 if dims[1] > dims[0] else 0

    def body(b: Any, x: Any, y: Any) -> Any:
        scalars = [TensorType((), I32)] * 4

        def ends(b: Any, a: Any, z: Any, c: Any, d: Any) -> Any:
            zero = b.constant(0, TensorType((), I32))
            none = b.compare("EQ", a, zero)
            behind = b.compare("EQ", d, zero)
            return [b("select", none, c, a), b("select", behind, z, d)]

        region = build_region(scalars, ends)
        start = [b.constant(0, TensorType((), I32))] * 2
        return b.op("reduce", [x, y, *start], {"dimensions": (over,)}, [region]).results

    values = np.random.default_rng(0).integers(1, 1000, dims).astype(np.int32)
    check([kind(*dims, element=I32)] * 2, body, "reduce", inputs=[values, values])


def test_producers_are_computed_on_the_fly() -> None:
    def body(b: Any, x: Any, y: Any) -> Any:
        turned = b("transpose", y, permutation=(1, 0))
        return [total(b, b("multiply", x, turned), (0,))]

    check([kind(40, 50), kind(50, 40)], body, "reduce", 1e-5)


@settings(max_examples=25, deadline=None)
@given(
    dims=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    seed=st.integers(0, 100),
    element=st.sampled_from([F32, I32, F64]),
)
def test_any_shape(dims: list[int], seed: int, element: ElementType) -> None:
    generator = np.random.default_rng(seed)
    over = tuple(d for d in range(len(dims)) if generator.integers(2))
    tolerance = {F32: 1e-5, I32: 0.0, F64: 1e-12}[element]
    check([kind(*dims, element=element)], lambda b, x: [total(b, x, over)], "reduce", tolerance)


def test_every_seed_gives_the_same_bits() -> None:
    op = operation([kind(200000)], lambda b, x: [total(b, x, (0,))], "reduce")
    inputs = inputs_for([kind(200000)])
    first, second = (harness.run(op, inputs, seed=seed)[0] for seed in (0, 3))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("over", [0, 1])
def test_inputs_are_read_once_in_whole_sectors(over: int) -> None:
    _, reports = counted([kind(512, 1024)], lambda b, x: [total(b, x, (over,))], "reduce")
    moved = sum(report.counters["global_sectors"] for report in reports)
    assert moved <= 1.15 * 512 * 1024 * 4 // 32
    assert sum(report.counters.get("bank_conflicts", 0) for report in reports) == 0


@pytest.mark.requires_ptxas
@pytest.mark.parametrize(("dims", "over"), [((4096, 4096), 0), ((4096, 4096), 1), ((1 << 24,), 0)])
def test_no_spills(dims: tuple[int, ...], over: int) -> None:
    for element in (F32, BF16):
        types = [kind(*dims, element=element)]
        op = operation(types, lambda b, x: [total(b, x, (over,))], "reduce")
        code = emit(op, harness.TARGET)
        ptx = compile_ptx(code.text, harness.TARGET.architecture)
        assert not assemble(ptx, harness.TARGET.architecture).faults()
