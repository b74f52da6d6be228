"""Contractions whose sizes a call decides, against the interpreter at edges of what they take."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.backends.cpu import codegen
from girih.backends.cpu.contract import packing_for
from girih.hlo.assumptions import Assumptions
from girih.hlo.build import Builder, build_region
from girih.hlo.deciding import deciding
from girih.hlo.graph import Function, Module, Op
from girih.hlo.interpret import interpret
from girih.hlo.sizes import Symbol
from girih.hlo.symbols import SymbolicDim, bound, symbols_of
from girih.hlo.types import F32, ElementType, TensorType, element_type

from ..support import fusion
from .open_kernels import OpenKernel, interpreted
from .test_contract import dims

pytestmark = pytest.mark.usefixtures("each_level")
MOST = 150
RANDOM = np.random.default_rng(11)
S, T, N, B = (SymbolicDim(name) for name in "stnb")
TOLERANCE = {"f64": 1e-12, "bf16": 2e-2, "f16": 4e-3}


def arrays(kinds: list[TensorType], values: dict[str, int]) -> list[Any]:
    made = []
    for kind in kinds:
        shape = [bound(d, values) for d in kind.dims]
        if kind.element.is_integer:
            made.append(RANDOM.integers(-100, 100, shape).astype(kind.dtype))
        else:
            made.append((RANDOM.standard_normal(shape) * 2).astype(kind.dtype))
    return made


def product(
    left: tuple[Any, ...], right: tuple[Any, ...], numbers: dict[str, Any],
    element: ElementType = F32, result: ElementType | None = None,
) -> Op:  # fmt: skip
    b = Builder()
    x, y = b.arguments([TensorType(left, element), TensorType(right, element)])
    made = b.op("dot_general", [x, y], numbers)
    if result is not None:
        made = b.op("dot_general", [x, y], numbers, types=[made.type.with_element(result)])
    return made


def kernel(op: Op, hint: int = 64, most: int = MOST) -> OpenKernel:
    names = sorted({n for value in op.operands for d in value.dims for n in symbols_of(d)})
    made = OpenKernel(op, {n: Symbol(1, most) for n in names}, dict.fromkeys(names, hint))
    assert not made.guards
    return made


def edges(lanes: int) -> list[int]:
    return sorted({1, 2, lanes - 1, lanes, lanes + 1, 2 * lanes + 3, 37, MOST})


def check(made: OpenKernel, values: dict[str, int], tolerance: float = 1e-5) -> None:
    made.check(values, arrays([value.tensor for value in made.op.operands], values), tolerance)


PLAIN, TURNED = dims([1], [0]), dims([1], [1])
HEADS = dims([3], [3], ([0, 1], [0, 1]))
VALUES = dims([3], [2], ([0, 1], [0, 1]))
FORMS = {
    "rows": ((S, 40), (40, 70), PLAIN),
    "columns": ((21, 40), (40, S), PLAIN),
    "columns, turned": ((21, 40), (S, 40), TURNED),
    "few rows, columns": ((2, 40), (S, 40), TURNED),
    "one row, columns": ((1, 40), (40, S), PLAIN),
    "depth": ((21, S), (S, 70), PLAIN),
    "depth, turned": ((21, S), (70, S), TURNED),
    "left turned": ((S, 21), (S, 70), dims([0], [0])),
    "all": ((S, T), (T, N), PLAIN),
    "all, turned": ((S, T), (N, T), TURNED),
    "all, left turned": ((T, S), (T, N), dims([0], [0])),
    "vector": ((S, T), (T,), PLAIN),
    "rows and depth": ((S, T), (T, 33), PLAIN),
    "scores": ((B, 2, S, 16), (B, 2, S, 16), HEADS),
    "values": ((B, 2, S, S), (B, 2, S, 16), VALUES),
    "one query": ((B, 2, 1, 16), (B, 2, S, 16), HEADS),
    "one query's values": ((B, 2, 1, S), (B, 2, S, 16), VALUES),
    "heads side by side": ((B, S, 2, 16), (B, S, 2, 16), dims([3], [3], ([0, 2], [0, 2]))),
    "two summed": ((S, 5, T), (5, T, 20), dims([1, 2], [0, 1])),
    "two summed, crossing": ((S, T, 5), (5, T, 20), dims([1, 2], [1, 0])),
    "two of columns": ((9, T), (T, S, 3), PLAIN),
    "outer": ((S,), (T,), dims([], [])),
}


@functools.cache
def form_kernel(form: str, hint: int, element: str, target: codegen.Target) -> OpenKernel:
    left, right, numbers = FORMS[form]
    return kernel(product(left, right, numbers, element_type(element)), hint)


@pytest.mark.parametrize("hint", [3, 120])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_sizes_at_the_edges(form: str, hint: int) -> None:
    made = form_kernel(form, hint, "f32", codegen.host_target())
    lanes = codegen.host_target().lanes("float")
    for number, size in enumerate(edges(lanes)):
        every = edges(lanes)
        values = {"s": size, "b": 1 + number % 3}
        values |= {"t": every[(number * 3 + 1) % len(every)], "n": every[number * 5 % len(every)]}
        check(made, values)


@pytest.mark.parametrize("element", ["f64", "bf16", "f16", "i8", "i32"])
@pytest.mark.parametrize(
    "form", ["rows", "all", "all, turned", "scores", "values", "depth, turned"]
)
def test_elements(form: str, element: str) -> None:
    made = form_kernel(form, 64, element, codegen.host_target())
    for size in (1, 5, 16, 33, MOST):
        values = {"s": size, "t": size // 2 + 1, "n": size * 7 % MOST + 1, "b": 2}
        check(made, values, TOLERANCE.get(element, 1e-5))


@pytest.mark.parametrize("hint", [1, 3, 64])
@pytest.mark.parametrize("pair", ["bf16 f32", "i8 i32", "ui8 i32"], ids=str)
def test_rows_of_narrow_numbers(pair: str, hint: int) -> None:
    element, result = map(element_type, pair.split())
    for right, numbers in (((96, 80), PLAIN), ((80, 96), TURNED)):
        made = kernel(product((S, 96), right, numbers, element, result), hint)
        for size in (1, 2, 3, 4, 5, 11, 12, 13, 16, 17, 31, 32, 33, 64, 101, MOST):
            check(made, {"s": size})


@pytest.mark.parametrize("hint", [5, 1500])
def test_long_depths_are_summed_in_parts(hint: int) -> None:
    left, right, numbers = FORMS["rows and depth"]
    made = kernel(product(left, right, numbers), hint, most=2500)
    for depth in (1, 511, 512, 513, 1007, 1008, 1024, 1025, 1531, 2500):
        check(made, {"s": 9, "t": depth}, 5e-6)


def followed(what: str) -> Op:
    """A product with what follows it in one kernel."""
    types = {
        "bias": [TensorType((B, S, 24), F32), TensorType((24, 50), F32), TensorType((50,), F32)],
        "mask": [TensorType((B, S, 16), F32), TensorType((B, S, 16), F32), TensorType((B, S), F32)],
        "one query": [
            TensorType((B, 1, 1, S), F32),
            TensorType((B, 1, S, 16), F32),
            TensorType((B, 1, 1, 16), F32),
            TensorType((B, 1, 1), F32),
        ],
    }[what]

    def body(b: Builder, x: Any, y: Any, z: Any, *factors: Any) -> Any:
        if what == "bias":
            made = b.op("dot_general", [x, y], dims([2], [0])).result
            return [b("tanh", b("add", made, b.broadcast(z, made.dims, (2,))))]
        if what == "one query":
            made = b.op("dot_general", [x, y], dims([3], [2], ([0, 1], [0, 1]))).result
            (factor,) = factors
            spread = b.broadcast(factor, z.dims, (0, 1, 2))
            return [b("add", b("multiply", z, spread), made)]
        made = b.op("dot_general", [x, y], dims([2], [2], ([0], [0]))).result
        scaled = b("multiply", made, b.broadcast(b.constant(0.25, z.tensor.with_dims(())),
                                                 made.dims, ()))  # fmt: skip
        return [b("add", scaled, b.broadcast(z, made.dims, (0, 2)))]

    return fusion("contract", build_region(types, body))


def sliced(start: tuple[int, ...], lying: tuple[Any, ...], strides: tuple[int, ...]) -> Op:
    """A product, scaled by a number that was reshaped, plus a part of a larger value."""
    types = [TensorType((B, S, 24), F32), TensorType((24, 50), F32), TensorType(lying, F32)]

    def body(b: Builder, x: Any, y: Any, z: Any) -> Any:
        made = b.op("dot_general", [x, y], dims([2], [0])).result
        factor = b.constant(0.25, z.tensor.with_dims(()))
        scale = b.reshape(b.broadcast(factor, (1, *made.dims), ()), made.dims)
        limits = tuple(
            at + (size - 1) * step + 1
            for at, size, step in zip(start, made.dims, strides, strict=True)
        )
        part = b("slice", z, start_indices=start, limit_indices=limits, strides=strides)
        return [b("add", b("multiply", made, scale), part)]

    return fusion("contract", build_region(types, body))


@pytest.mark.parametrize(
    "start, lying, strides",
    [
        ((0, 0, 0), (B, S, 50), (1, 1, 1)),
        ((2, 0, 0), (B + 3, S, 50), (1, 1, 1)),
        ((0, 3, 0), (B, S + 4, 50), (1, 1, 1)),
        ((0, 0, 5), (B, S, 60), (1, 1, 1)),
        ((1, 2, 3), (2 * B + 1, 3 * S + 1, 105), (2, 3, 2)),
        ((0, 0, 0), (2 * B, S, 50), (2, 1, 1)),
        ((0, 1, 0), (B, 2 * S, 50), (1, 2, 1)),
    ],
)
def test_parts_of_values_that_follow(
    start: tuple[int, ...], lying: tuple[Any, ...], strides: tuple[int, ...]
) -> None:
    made = kernel(sliced(start, lying, strides))
    for size in edges(codegen.host_target().lanes("float")):
        check(made, {"s": size, "b": size % 3 + 1})


def test_positions_that_follow() -> None:
    """Which rows see which columns, from their numbers."""
    types = [TensorType((B, 2, S, 16), F32)] * 2

    def body(b: Builder, x: Any, y: Any) -> Any:
        made = b.op("dot_general", [x, y], HEADS).result
        rows, columns = (
            b.op("iota", [], {"iota_dimension": d}, types=[made.tensor]).result for d in (2, 3)
        )
        seen = b("compare", columns, rows, comparison_direction="LE")
        low = b.broadcast(b.constant(-1e9, made.tensor.with_dims(())), made.dims, ())
        return [b("select", seen, made, low)]

    made = kernel(fusion("contract", build_region(types, body)))
    for size in edges(codegen.host_target().lanes("float")):
        check(made, {"s": size, "b": size % 3 + 1})


@pytest.mark.parametrize("what", ["bias", "mask", "one query"])
def test_what_follows(what: str) -> None:
    made = kernel(followed(what))
    for size in edges(codegen.host_target().lanes("float")):
        check(made, {"s": size, "b": size % 3 + 1})


@settings(max_examples=40)
@given(
    form=st.sampled_from(sorted(FORMS)),
    hint=st.sampled_from([3, 120]),
    sizes=st.lists(
        st.tuples(*[st.integers(1, MOST)] * 3, st.integers(1, 4)), min_size=1, max_size=3
    ),
)
def test_any_sizes(form: str, hint: int, sizes: list[tuple[int, ...]]) -> None:
    made = form_kernel(form, hint, "f32", codegen.host_target())
    for some in sizes:
        check(made, dict(zip("stnb", some, strict=True)))


# Convolutions: batch, lines and columns of the image are symbols.

LAYOUTS = {
    "NCHW": ((0, 1, 2, 3), (0, 1, 2, 3)),
    "NHWC": ((0, 3, 1, 2), (3, 2, 0, 1)),
    "NDHWC": ((0, 4, 1, 2, 3), (4, 3, 0, 1, 2)),
}  # (batch, feature, spatial...) of image and result; (output, input, spatial...) of the kernel
H, W = SymbolicDim("h"), SymbolicDim("w")
CONVOLUTIONS: dict[str, tuple[int, int, tuple[int, ...], dict[str, Any]]] = {
    "1x1": (24, 40, (1, 1), {}),
    "1x1 of every second": (24, 40, (1, 1), {"window_strides": (2, 2)}),
    "3x3": (16, 40, (3, 3), {"padding": ((1, 1), (1, 1))}),
    "3x3 of every second": (16, 33, (3, 3), {"padding": ((1, 1), (1, 1)),
                                             "window_strides": (2, 2)}),
    "first layer": (3, 32, (7, 7), {"padding": ((3, 3), (3, 3)), "window_strides": (2, 2)}),
    "uneven padding": (5, 7, (3, 3), {"padding": ((0, 2), (1, 0))}),
    "cut borders": (5, 7, (3, 3), {"padding": ((-1, 0), (0, -1))}),
    "dilated": (4, 18, (3, 2), {"rhs_dilation": (2, 3), "padding": ((2, 2), (2, 2))}),
    "gradient of the image": (4, 18, (3, 3), {"lhs_dilation": (2, 2), "padding": ((1, 1), (2, 2))}),
    "reversed": (4, 18, (3, 3), {"window_reversal": (True, True), "padding": ((1, 1), (1, 1))}),
    "depthwise": (40, 40, (3, 3), {"padding": ((1, 1), (1, 1)), "feature_group_count": 40}),
    "depthwise of every second": (40, 40, (3, 3), {"padding": ((0, 1), (0, 1)),
        "window_strides": (2, 2), "feature_group_count": 40}),
    "depthwise, large": (17, 17, (5, 5), {"padding": ((2, 2), (2, 2)), "feature_group_count": 17}),
    "depthwise, two each": (6, 12, (3, 3), {"padding": ((1, 1), (1, 1)), "feature_group_count": 6}),
    "groups": (8, 32, (3, 3), {"padding": ((1, 1), (1, 1)), "feature_group_count": 2}),
    "winograd": (32, 64, (3, 3), {"padding": ((1, 1), (1, 1))}),
    "winograd, features in parts": (96, 32, (3, 3), {}),
}  # fmt: skip
VOLUMES = {
    "winograd of planes": (32, 64, (3, 3, 3), {"padding": ((2, 1), (1, 1), (1, 1))}),
    "winograd of every second plane": (48, 32, (2, 3, 3), {
        "padding": ((0, 0), (1, 1), (1, 1)), "window_strides": (2, 1, 1),
    }),
}  # fmt: skip
IMAGES = [(1, 3, 3), (2, 7, 5), (1, 8, 16), (3, 17, 15), (1, 31, 33), (2, 4, 40)]


def convolution(form: str, layout: str, image: tuple[Any, ...], element: ElementType = F32) -> Op:
    inputs, outputs, window, options = {**CONVOLUTIONS, **VOLUMES}[form]
    (batch, feature, *spatial), (output, input, *taps) = LAYOUTS[layout]

    def placed(places: list[int], sizes: list[Any]) -> TensorType:
        dims = [0] * len(places)
        for place, size in zip(places, sizes, strict=True):
            dims[place] = size
        return TensorType(tuple(dims), element)

    groups = options.get("feature_group_count", 1)
    b = Builder()
    x, w = b.arguments([
        placed([batch, feature, *spatial], [image[0], inputs, *image[1:]]),
        placed([output, input, *taps], [outputs, inputs // groups, *window]),
    ])  # fmt: skip
    return b.op("convolution", [x, w], {
        "batch_group_count": 1, "feature_group_count": 1, **options,
        "input_batch_dimension": batch, "input_feature_dimension": feature,
        "input_spatial_dimensions": tuple(spatial), "kernel_output_feature_dimension": output,
        "kernel_input_feature_dimension": input, "kernel_spatial_dimensions": tuple(taps),
        "output_batch_dimension": batch, "output_feature_dimension": feature,
        "output_spatial_dimensions": tuple(spatial),
    })  # fmt: skip


def convolve(made: OpenKernel, values: dict[str, int], fixed: Op, tolerance: float = 1e-5) -> None:
    inputs = arrays([value.tensor for value in fixed.operands], {})
    wanted = interpreted(fixed, inputs)
    made.compare(values, inputs, wanted, tolerance)


@pytest.mark.parametrize("what", ["batch", "images"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("form", CONVOLUTIONS, ids=str)
def test_convolutions(form: str, layout: str, what: str) -> None:
    opened = (B, H, W) if what == "images" else (B, 9, 14)
    op = convolution(form, layout, opened)
    symbols = {"b": Symbol(1, 8), "h": Symbol(3, 64), "w": Symbol(3, 64)}
    made = OpenKernel(op, symbols, {"b": 2, "h": 14, "w": 18})
    assert not made.guards
    for batch, height, width in IMAGES:
        image = (batch, height, width) if what == "images" else (batch, 9, 14)
        values = {"b": batch, "h": height, "w": width}
        convolve(made, values, convolution(form, layout, image))


@functools.cache
def packed_convolution(
    form: str, image: tuple[Any, ...], target: codegen.Target
) -> tuple[Op, Any, Any]:
    """A convolution of a weight that is stored as kernels read it, and its packing."""
    op = convolution(form, "NDHWC" if form in VOLUMES else "NHWC", image)
    packing = packing_for(op, target, True)
    assert packing is not None
    forward = build_region([op.rhs.type], lambda b, w: [packing.forward(b, w)])

    def body(b: Builder, x: Any, w: Any) -> list[Any]:
        return [b.op("convolution", [x, packing.inverse(b, w)], op.attributes).result]

    stored = forward.results[0].tensor
    return fusion("contract", build_region([op.lhs.type, stored], body)), forward, packing.name


@pytest.mark.parametrize("what", ["batch", "images", "lines"])
@pytest.mark.parametrize(
    "form", ["winograd", "winograd, features in parts", "1x1", "3x3", "first layer"]
)
def test_convolutions_of_packed_weights(form: str, what: str) -> None:
    target = codegen.host_target()
    if target.lanes("float") < 8 and form.startswith("winograd"):
        pytest.skip("its features are whole vectors")
    opened = {"batch": (B, 9, 14), "images": (B, H, W), "lines": (1, H, 14)}[what]
    symbols = {"b": Symbol(1, 8), "h": Symbol(3, 64), "w": Symbol(3, 64)}
    hints = {"b": 2, "h": 14, "w": 18}
    with deciding(Assumptions(symbols, ()), hints):
        op, forward, name = packed_convolution(form, opened, target)
    assert name.startswith("winograd") == form.startswith("winograd")
    made = OpenKernel(op, symbols, hints)
    assert not made.guards
    for batch, height, width in IMAGES:
        values = {"b": batch, "h": height, "w": width}
        plain = convolution(form, "NHWC", tuple(bound(d, values) for d in opened))  # type: ignore[arg-type]
        compare_packed(made, values, plain, forward)


def compare_packed(made: OpenKernel, values: dict[str, int], plain: Op, forward: Any) -> None:
    image, weight = arrays([value.tensor for value in plain.operands], {})
    module = Module({"main": Function("main", forward)})
    stored = np.asarray(interpret(module, [weight])[0])
    made.compare(values, [image, stored], interpreted(plain, [image, weight]), 2e-5)


@pytest.mark.parametrize("what", ["batch", "planes", "lines"])
@pytest.mark.parametrize("form", VOLUMES)
def test_convolutions_of_planes(form: str, what: str) -> None:
    target = codegen.host_target()
    if target.lanes("float") < 8:
        pytest.skip("its features are whole vectors")
    opened = {"batch": (B, 3, 9, 10), "planes": (1, H, 9, 10), "lines": (2, 3, H, 9)}[what]
    symbols = {"b": Symbol(1, 8), "h": Symbol(3, 64)}
    hints = {"b": 2, "h": 9}
    with deciding(Assumptions(symbols, ()), hints):
        op, forward, name = packed_convolution(form, opened, target)
    assert name.startswith("winograd")
    made = OpenKernel(op, symbols, hints)
    assert not made.guards
    for batch, planes in ((1, 3), (3, 4), (2, 9)):
        values = {"b": batch, "h": planes}
        plain = convolution(form, "NDHWC", tuple(bound(d, values) for d in opened))  # type: ignore[arg-type]
        compare_packed(made, values, plain, forward)


@pytest.mark.parametrize("residual", [False, True])
def test_every_number_of_rows_takes_few_micro_kernels(residual: bool) -> None:
    """Whole panels, and what is left of them in equal parts, with what follows the sums."""
    op = product((S, 40), (40, 70), PLAIN)
    if residual:
        types = [*(value.tensor for value in op.operands), op.type]
        op = fusion("contract", build_region(types, lambda b, x, w, y: [
            b.op("add", [b.op("dot_general", [x, w], PLAIN).result, y]).result
        ]))  # fmt: skip
    made = kernel(op)
    defined = re.findall(r"define .*@(\w+)_rows\d*\(", made.code.ir_text)
    assert 1 < len(defined) <= 5 * len(set(defined))
    for rows in range(1, 40):
        check(made, {"s": rows})
