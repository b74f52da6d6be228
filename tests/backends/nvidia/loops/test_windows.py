"""Pooling, reduce_window, select_and_scatter and depthwise convolutions: shapes, types, traffic."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.backends.nvidia.assemble import assemble
from girih.backends.nvidia.compile import compile_ptx
from girih.backends.nvidia.loops import windows
from girih.backends.nvidia.simulator import Report
from girih.backends.nvidia.target import target
from girih.hlo.build import build_region, make_op
from girih.hlo.graph import Op, arguments
from girih.hlo.types import BF16, C64, F16, F32, F64, I8, I32, ElementType, TensorType

from .. import harness
from .support import emit, inputs_for, kind


def pool(
    name: str,
    dims: tuple[int, ...],
    sizes: tuple[int, ...],
    strides: tuple[int, ...] = (),
    padding: tuple[tuple[int, int], ...] = (),
    element: ElementType = F32,
    **attributes: Any,
) -> Op:
    scalar = TensorType((), element)
    body = build_region([scalar, scalar], lambda b, x, y: [b(name, x, y)])
    values = {"window_dimensions": sizes, "window_strides": strides, "padding": padding}
    operands = arguments([kind(*dims, element=element), scalar])
    return make_op("reduce_window", operands, {**values, **attributes}, (body,))


def depthwise(
    dims: tuple[int, int, int, int],
    size: tuple[int, int],
    multiplier: int = 1,
    element: ElementType = F32,
    after: bool = False,
    **attributes: Any,
) -> Op:
    """An NHWC convolution of each channel alone; `after`: with a bias, a residual and a relu."""
    channels = dims[-1]
    types = [kind(*dims, element=element), kind(*size, 1, channels * multiplier, element=element)]
    numbers: dict[str, Any] = {
        "input_batch_dimension": 0, "input_feature_dimension": 3,
        "input_spatial_dimensions": (1, 2), "kernel_input_feature_dimension": 2,
        "kernel_output_feature_dimension": 3, "kernel_spatial_dimensions": (0, 1),
        "output_batch_dimension": 0, "output_feature_dimension": 3,
        "output_spatial_dimensions": (1, 2), "feature_group_count": channels,
        "batch_group_count": 1, "precision_config": (), **attributes,
    }  # fmt: skip
    alone = make_op("convolution", arguments(types), numbers)
    if not after:
        region = build_region(types, lambda b, x, w: [_one(b, alone, x, w)])
        return harness.fusion("contract", region)
    result = alone.result.tensor
    types += [kind(result.dims[-1], element=element), result]

    def body(b: Any, x: Any, w: Any, bias: Any, residual: Any) -> Any:
        total = b("add", _one(b, alone, x, w), b.broadcast(bias, result.dims, (3,)))
        return [b("maximum", b("add", total, residual), b.constant(0, result))]

    return harness.fusion("contract", build_region(types, body))


def _one(b: Any, op: Op, x: Any, w: Any) -> Any:
    return b.op("convolution", [x, w], op.attributes, (), op.result_types).result


@pytest.fixture(autouse=True)
def patches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small examples as if they kept the machine busy: in patches, but for those marked `alone`."""
    if request.node.get_closest_marker("alone") is None:
        monkeypatch.setattr(windows, "BUSY", 0)


def check(op: Op, tolerance: float = 0.0) -> None:
    code = emit(op)
    assert not code.notes
    inputs = inputs_for([value.tensor for value in op.operands])
    harness.check(op, inputs, tolerance=tolerance, emitter=lambda: code)


POOLS: dict[str, Op] = {
    "2x2": pool("maximum", (2, 8, 10, 16), (1, 2, 2, 1), (1, 2, 2, 1)),
    "3x3 of stride 2": pool(
        "maximum", (2, 15, 17, 8), (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
    ),
    "3x3 of stride 1": pool(
        "add", (1, 9, 11, 24), (1, 3, 3, 1), (), ((0, 0), (1, 1), (1, 1), (0, 0))
    ),
    "odd channels": pool("add", (2, 9, 7, 5), (1, 3, 2, 1)),
    "channels first": pool("maximum", (2, 5, 12, 14), (1, 1, 3, 3), (1, 1, 2, 2)),
    "dilated": pool(
        "add", (1, 7, 9, 8), (1, 3, 3, 1), (), ((0, 0), (2, 1), (0, 3), (0, 0)),
        base_dilations=(1, 2, 1, 1), window_dilations=(1, 1, 2, 1),
    ),
    "large": pool("add", (2, 14, 14, 8), (1, 14, 14, 1)),
    "larger than its line": pool("add", (1, 20, 50, 8), (1, 1, 45, 1)),
    "wide along channels": pool("add", (4, 5, 32), (1, 1, 4), (1, 1, 4)),
    "one dim": pool("minimum", (100,), (7,), (3,)),
    "scalar": pool("add", (), ()),
    "nothing left": pool("add", (3, 4), (1, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", POOLS)
def test_pools(name: str) -> None:
    check(POOLS[name], 1e-6)


def test_windows_over_nothing() -> None:
    op = pool("add", (3, 0), (1, 2), (), ((0, 0), (2, 2)))
    harness.check(op, inputs_for([value.tensor for value in op.operands]), tolerance=1e-6)


@pytest.mark.parametrize("sizes", [(1, 112, 112, 1), (1, 1, 1, 64), (2, 1, 112, 1)], ids=str)
def test_one_window_over_whole_dims_is_a_reduction(sizes: tuple[int, ...]) -> None:
    """Many threads have it, several blocks where there are few results."""
    op = pool("add", (2, 112, 112, 64), sizes)
    code = emit(op)
    assert code.launches[0].symbol == "reduce"
    assert code.launches[0].grid[0] * code.launches[0].block[0] > 10000
    whole = pool("maximum", tuple(min(n, 40) for n in (2, 112, 112, 64)),
                 tuple(min(n, 40) for n in sizes))  # fmt: skip
    harness.check(whole, inputs_for([value.tensor for value in whole.operands]))


@pytest.mark.parametrize("element", [F64, F16, BF16, I8, I32, C64], ids=str)
def test_element_types(element: ElementType) -> None:
    padding = ((0, 0), (1, 1), (0, 1), (0, 0))
    check(pool("add", (2, 7, 6, 16), (1, 3, 2, 1), (1, 2, 1, 1), padding, element), 1e-2)


def test_a_body_of_its_own_meets_elements_in_their_order() -> None:
    scalar = TensorType((), F32)
    body = build_region([scalar] * 2, lambda b, x, y: [b("subtract", b("add", x, x), y)])
    operands = arguments([kind(2, 6, 7, 8), scalar])
    attributes = {"window_dimensions": (1, 3, 3, 1), "padding": ((0, 0), (1, 0), (0, 1), (0, 0))}
    check(make_op("reduce_window", operands, attributes, (body,)), 1e-5)


def test_two_inputs() -> None:
    """The greatest element of each window and where it stands."""
    scalars = [TensorType((), F32), TensorType((), I32)] * 2

    def body(b: Any, x: Any, i: Any, y: Any, j: Any) -> Any:
        first = b.compare("GE", x, y)
        return [b("select", first, x, y), b("select", first, i, j)]

    types = [kind(2, 9, 8, 16), kind(2, 9, 8, 16, element=I32), *scalars[:2]]
    attributes = {"window_dimensions": (1, 3, 2, 1), "window_strides": (1, 2, 2, 1)}
    region = build_region(scalars, body)
    check(make_op("reduce_window", arguments(types), attributes, (region,)))


CONVOLUTIONS: dict[str, Op] = {
    "3x3": depthwise((2, 9, 10, 16), (3, 3), padding=((1, 1), (1, 1))),
    "stride 2": depthwise((1, 11, 12, 8), (3, 3), window_strides=(2, 2), padding=((0, 1), (1, 1))),
    "5x5": depthwise((1, 12, 9, 24), (5, 5), padding=((2, 2), (2, 2))),
    "7x7": depthwise((1, 9, 9, 8), (7, 7), padding=((3, 3), (3, 3))),
    "two results of a channel": depthwise((1, 6, 7, 4), (3, 3), 2),
    "four results of a channel": depthwise((1, 6, 7, 4), (3, 3), 4),
    "odd channels": depthwise((2, 6, 7, 5), (2, 3)),
    "dilated": depthwise((1, 9, 9, 8), (3, 3), rhs_dilation=(2, 1), padding=((2, 2), (0, 0))),
    "transposed": depthwise((1, 5, 5, 8), (3, 3), lhs_dilation=(2, 2), padding=((1, 1), (1, 2))),
    "reversed": depthwise((1, 6, 7, 8), (3, 2), window_reversal=(True, False)),
    "with what follows": depthwise((2, 9, 7, 16), (3, 3), after=True, padding=((1, 1), (1, 1))),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_depthwise_convolutions(name: str) -> None:
    check(CONVOLUTIONS[name], 1e-5)


@pytest.mark.parametrize("element", [F64, F16, BF16], ids=str)
def test_depthwise_element_types(element: ElementType) -> None:
    sides = ((1, 1), (1, 1))
    check(depthwise((1, 7, 6, 16), (3, 3), element=element, after=True, padding=sides), 2e-2)


def scattered(
    dims: tuple[int, ...],
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    element: ElementType = F32,
    direction: str = "GE",
) -> Op:
    """select_and_scatter: what the gradient of max pooling is."""
    scalar = TensorType((), element)
    select = build_region(
        [scalar] * 2, lambda b, x, y: [b("compare", x, y, comparison_direction=direction)]
    )
    add = build_region([scalar] * 2, lambda b, x, y: [b("add", x, y)])
    windows = pool("add", dims, sizes, strides, padding, element).results[0].tensor
    operands = arguments([kind(*dims, element=element), windows, scalar])
    attributes = {"window_dimensions": sizes, "window_strides": strides, "padding": padding}
    return make_op("select_and_scatter", operands, attributes, (select, add))


SCATTERED: dict[str, Op] = {
    "3x3 of stride 2": scattered(
        (2, 9, 11, 16), (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
    ),
    "2x2": scattered((2, 8, 6, 8), (1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4),
    "with gaps": scattered((1, 9, 9, 5), (1, 2, 2, 1), (1, 3, 3, 1), ((0, 0),) * 4,
                           direction="LT"),
    "cropped": scattered((1, 9, 8, 4), (1, 3, 2, 1), (1, 2, 1, 1),
                         ((0, 0), (-2, 0), (1, -1), (0, 0))),
    "channels first": scattered((2, 3, 8, 9), (1, 1, 3, 2), (1, 1, 1, 2), ((0, 0),) * 4),
    "large": scattered((1, 12, 12, 8), (1, 6, 6, 1), (1, 2, 3, 1), ((0, 0),) * 4),
    "bf16": scattered((1, 8, 6, 16), (1, 3, 2, 1), (1, 1, 2, 1), ((0, 0),) * 4, BF16),
    "i32": scattered((1, 8, 6, 16), (1, 3, 2, 1), (1, 1, 2, 1), ((0, 0),) * 4, I32),
}  # fmt: skip


@pytest.mark.parametrize("name", SCATTERED)
def test_select_and_scatter(name: str) -> None:
    check(SCATTERED[name], 1e-2 if name == "bf16" else 1e-6)


def test_an_element_in_too_many_windows_is_done_the_plain_way() -> None:
    op = scattered((1, 12, 12, 2), (1, 9, 9, 1), (1, 1, 1, 1), ((0, 0),) * 4)
    assert "windows" in emit(op).notes[0]


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_window(data: st.DataObject) -> None:
    """Pools and their gradients over windows of any form."""
    dims = (data.draw(st.integers(1, 2)), *(data.draw(st.integers(3, 9)) for _ in range(2)), 8)
    forms = [
        (data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3)), data.draw(st.integers(-1, 2)))
        for _ in range(2)
    ]
    sizes = (1, *(size for size, _, _ in forms), 1)
    strides = (1, *(stride for _, stride, _ in forms), 1)
    padding = ((0, 0), *((low, 1) for _, _, low in forms), (0, 0))
    for make in (lambda: pool("maximum", dims, sizes, strides, padding),
                 lambda: scattered(dims, sizes, strides, padding)):  # fmt: skip
        op = make()
        if op.results[0].tensor.size and all(value.tensor.size for value in op.operands):
            check(op, 1e-6)


# How memory is accessed.


LARGE: dict[str, Op] = {
    "pool": pool(
        "maximum", (32, 56, 56, 64), (1, 3, 3, 1), (1, 2, 2, 1),
        ((0, 0), (1, 1), (1, 1), (0, 0)), BF16,
    ),
    "depthwise": depthwise(
        (16, 56, 56, 96), (3, 3), element=BF16, after=True, padding=((1, 1), (1, 1))
    ),
    "depthwise 7x7": depthwise((16, 56, 56, 96), (7, 7), element=F32, padding=((3, 3), (3, 3))),
    "gradient": scattered(
        (32, 56, 56, 64), (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)), BF16
    ),
}  # fmt: skip


@pytest.mark.requires_ptxas
@pytest.mark.parametrize(("name", "on"), [*zip(LARGE, ("sm_80", "sm_90a") * 2, strict=True)])
def test_vectors_of_16_bytes_without_spills(name: str, on: str) -> None:
    machine = target(on)
    code = emit(LARGE[name], machine)
    ptx = compile_ptx(code.text, machine.architecture)
    wide = [line for line in ptx.splitlines() if "ld.global" in line and ".v" in line]
    assert wide and all(".v4.b32" in line for line in wide)
    assert assemble(ptx, machine.architecture).faults() == []


OVERLAPPING = pool("add", (1, 32, 32, 32), (1, 3, 3, 1), (), ((0, 0), (1, 1), (1, 1), (0, 0)))


def read_again() -> float:
    """Sectors of the input that a pool reads, by those that it has."""
    reports: list[Report] = []
    inputs = inputs_for([value.tensor for value in OVERLAPPING.operands])
    harness.run(OVERLAPPING, inputs, reports=reports, counters=True, checks=False)
    (report,) = reports
    size = 32 * 32 * 32 * 4 // 32
    return (report.counters["global_sectors"] - size) / size


def test_windows_that_overlap_share_what_they_read() -> None:
    """In patches of 4 x 2 windows of 3 x 3, an element is read at most 24 / 8 times."""
    assert read_again() < 3.2


@pytest.mark.alone
def test_windows_alone_read_each_element_as_often_as_it_is_covered() -> None:
    assert 8 < read_again() < 9.5


@pytest.mark.alone
@pytest.mark.parametrize("op", [
    POOLS["3x3 of stride 2"], POOLS["one dim"], POOLS["odd channels"], CONVOLUTIONS["3x3"],
    CONVOLUTIONS["with what follows"], SCATTERED["3x3 of stride 2"],
], ids=lambda op: op.name)  # fmt: skip
def test_small_ones(op: Op) -> None:
    """Where threads are few, each has one window."""
    check(op, 1e-5)
