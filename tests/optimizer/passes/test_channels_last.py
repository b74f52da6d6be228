"""Channels last: what changes, what must not, and that the program's meaning stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from girih.hlo.build import Builder, build_module
from girih.hlo.graph import Module, Value
from girih.hlo.interpret import interpret
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import INLINED, verify
from girih.optimizer.passes.channels_last import ChannelsLast, reordered

FIRST = {
    "input_batch_dimension": 0, "input_feature_dimension": 1, "input_spatial_dimensions": (2, 3),
    "kernel_output_feature_dimension": 0, "kernel_input_feature_dimension": 1,
    "kernel_spatial_dimensions": (2, 3), "output_batch_dimension": 0,
    "output_feature_dimension": 1, "output_spatial_dimensions": (2, 3),
}  # fmt: skip
SAME = ((1, 1), (1, 1))


def f32(*dims: int) -> TensorType:
    return TensorType(dims, F32)


def convolve(b: Builder, x: Value, outputs: int, window: int = 3, **options: Any) -> Value:
    """A convolution with constant weights that keeps the picture's size."""
    inputs = x.dims[1] // options.get("feature_group_count", 1)
    rng = np.random.default_rng(outputs)
    weights = rng.standard_normal((outputs, inputs, window, window)).astype(np.float32) / 8
    options.setdefault("padding", ((window // 2, window // 2),) * 2)
    return b("convolution", x, b.constant(weights), **FIRST, **options)


def changed(body: Callable[..., Any], *dims: tuple[int, ...]) -> Module:
    """The module after the pass, checked against the source on random inputs."""
    module = build_module([f32(*d) for d in dims], body)
    verify(module, INLINED)
    result = ChannelsLast()(module)
    verify(result, INLINED)
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(d).astype(np.float32) for d in dims]
    for left, right in zip(interpret(module, inputs), interpret(result, inputs), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4)
    return result


def names(module: Module) -> list[str]:
    return [op.name for op in module.body.ops if op.name not in ("constant", "weight")]


def test_a_network_keeps_no_transpose():
    def body(b: Builder, x: Value) -> list[Value]:
        stem = convolve(b, x, 64, 7, window_strides=(2, 2))
        bias = b.broadcast(b.constant(np.arange(64, dtype=np.float32)), stem.dims, (1,))
        y = b("maximum", b("add", stem, bias), b.constant(0, stem.tensor))
        low = b.constant(-np.inf, f32())
        region = _region("maximum")
        pooled = b(
            "reduce_window", y, low, regions=(region,), window_dimensions=(1, 1, 3, 3),
            window_strides=(1, 1, 2, 2), padding=((0, 0), (0, 0), *SAME),
        )  # fmt: skip
        z = b("add", pooled, convolve(b, pooled, 64))
        wide = b("concatenate", z, convolve(b, z, 32), dimension=1)
        part = b(
            "slice", wide, start_indices=(0, 3, 0, 1), limit_indices=(1, 93, 8, 8),
            strides=(1, 1, 1, 1),
        )  # fmt: skip
        zero = b.constant(0, f32())
        grown = b(
            "pad", part, zero, edge_padding_low=(0, 6, 0, 1), edge_padding_high=(0, 0, 0, 0),
            interior_padding=(0, 0, 0, 0),
        )  # fmt: skip
        mean = b.reduce("add", convolve(b, grown, 96), zero, (2, 3))
        return [mean]

    result = changed(body, (1, 3, 32, 32))
    assert "transpose" not in names(result)
    convolutions = [op for op in result.body.ops if op.name == "convolution"]
    assert [op.output_feature_dimension for op in convolutions] == [3] * 4
    # The picture itself is read as it lies: a few features are no reason to move it.
    assert [op.input_feature_dimension for op in convolutions] == [1, 3, 3, 3]


def _region(name: str) -> Any:
    from girih.hlo.build import build_region

    return build_region([f32(), f32()], lambda b, x, y: [b(name, x, y)])


def test_transposes_of_the_user_cancel():
    def body(b: Builder, x: Value) -> list[Value]:
        inner = convolve(b, x, 64)
        last = b.transpose(inner, (0, 2, 3, 1))
        scaled = b(
            "multiply",
            last,
            b.constant(
                np.linspace(0, 1, 64, dtype=np.float32)
                .reshape(1, 1, 1, 64)
                .repeat(8, 1)
                .repeat(8, 2)
            ),
        )
        first = b.transpose(scaled, (0, 3, 1, 2))
        y = convolve(b, b("add", inner, first), 64)
        return [b.reduce("add", y, b.constant(0, f32()), (2, 3))]

    assert "transpose" not in names(changed(body, (1, 3, 8, 8)))


def test_merged_pixels_stay_last():
    def body(b: Builder, x: Value) -> list[Value]:
        patches = convolve(b, x, 64, 4, window_strides=(4, 4), padding=((0, 0), (0, 0)))
        return [b.transpose(b.reshape(patches, (2, 64, 16)), (0, 2, 1))]

    assert names(changed(body, (2, 3, 16, 16))) == ["convolution", "reshape"]


def test_pixels_of_a_product_are_convolved_as_they_lie():
    """As a feed-forward layer with a depthwise convolution inside: rows, pixels, rows."""

    def body(b: Builder, rows: Value) -> list[Value]:
        picture = b.reshape(b.transpose(rows, (0, 2, 1)), (2, 32, 6, 6))
        y = convolve(b, picture, 32, feature_group_count=32)
        rng = np.random.default_rng(3)
        weights = b.constant(rng.standard_normal((32, 16)).astype(np.float32))
        return [b(
            "dot_general", b.reshape(y, (2, 32, 36)), weights, lhs_batching_dimensions=(),
            rhs_batching_dimensions=(), lhs_contracting_dimensions=(1,),
            rhs_contracting_dimensions=(0,), type=f32(2, 36, 16),
        )]  # fmt: skip

    result = changed(body, (2, 36, 32))
    assert "transpose" not in names(result)
    (product,) = [op for op in result.body.ops if op.name == "dot_general"]
    assert product.lhs_contracting_dimensions == (2,)


def test_repeated_pixels_keep_their_features():
    """A nearest resize between two convolutions."""

    def body(b: Builder, x: Value) -> list[Value]:
        y = convolve(b, x, 32)
        wide = b.broadcast(y, (1, 32, 6, 2, 6, 2), (0, 1, 2, 4))
        z = convolve(b, b.reshape(wide, (1, 32, 12, 12)), 32)
        return [b.reduce("add", z, b.constant(0, f32()), (2, 3))]

    assert "transpose" not in names(changed(body, (1, 3, 6, 6)))


def test_what_is_repeated_is_moved_before():
    """A number for each feature, spread over pixels that are needed features first."""

    def body(b: Builder, x: Value, other: Value) -> list[Value]:
        zero = b.constant(0, f32())
        mean = b.reshape(b.reduce("add", convolve(b, x, 64), zero, (2, 3)), (1, 64, 1, 1))
        gate = convolve(b, mean, 64, 1)
        wide = b.broadcast(gate, (1, 64, 32, 32), (0, 1, 2, 3))
        return [b("reverse", wide, dimensions=(3,)), other]

    result = changed(body, (1, 3, 16, 16), (2, 2))
    assert "transpose" not in names(result)
    assert [op.output_feature_dimension for op in result.body.ops if op.name == "convolution"] == [
        3, 3,
    ]  # fmt: skip


def test_each_part_decides_for_itself():
    """One convolution whose result is cheap beside its flops, and one that would move more."""

    def body(b: Builder, x: Value, large: Value) -> list[Value]:
        deep = convolve(b, convolve(b, x, 64), 64)
        return [b.reduce("add", deep, b.constant(0, f32()), (2, 3)), convolve(b, large, 8, 1)]

    result = changed(body, (1, 3, 16, 16), (1, 3, 64, 64))
    found = [op.output_feature_dimension for op in result.body.ops if op.name == "convolution"]
    assert found == [3, 3, 1]
    assert "transpose" not in names(result)


def test_squeeze_and_excitation():
    def body(b: Builder, x: Value) -> list[Value]:
        y = convolve(b, x, 32)
        mean = b.reduce("add", y, b.constant(0, f32()), (2, 3))
        gate = b("logistic", convolve(b, b.reshape(mean, (1, 32, 1, 1)), 32, 1))
        scaled = b("multiply", y, b.broadcast(gate, y.dims, (0, 1, 2, 3)))
        return [b.reduce("add", convolve(b, scaled, 16), b.constant(0, f32()), (1, 2, 3))]

    assert "transpose" not in names(changed(body, (1, 3, 12, 12)))


def test_depthwise_and_one_dimension():
    def body(b: Builder, x: Value) -> list[Value]:
        y = convolve(b, convolve(b, x, 32), 32, feature_group_count=32)
        return [b.reduce("maximum", y, b.constant(-np.inf, f32()), (0, 2, 3))]

    result = changed(body, (2, 4, 9, 9))
    assert "transpose" not in names(result)
    line: dict[str, Any] = {
        key: value[:1] if isinstance(value, tuple) else value for key, value in FIRST.items()
    }

    def signal(b: Builder, x: Value) -> list[Value]:
        weights = b.constant(np.ones((64, 4, 3), np.float32))
        y = b("convolution", x, weights, **line, padding=((1, 1),))
        return [b.transpose(y, (0, 2, 1))]

    assert names(changed(signal, (2, 4, 50))) == ["convolution"]


UNCHANGED = {
    "a_lone_shallow_one": lambda b, x: [convolve(b, x, 16, 1)],
    "few_features": lambda b, x: [convolve(b, x, 4)],
    "small_groups": lambda b, x: [convolve(b, x, 32, feature_group_count=4)],
    "no_convolution": lambda b, x: [b("add", b.transpose(x, (0, 3, 1, 2)), b.transpose(
        b("negate", x), (0, 3, 1, 2)))],
}  # fmt: skip


@pytest.mark.parametrize("case", UNCHANGED)
def test_must_not_fire(case: str):
    module = build_module([f32(1, 16, 16, 16)], UNCHANGED[case])
    assert ChannelsLast()(module) is module


@pytest.mark.parametrize(
    ("before", "after", "order", "expected"),
    [
        ((2, 3, 4, 5), (2, 3, 20), (0, 2, 3, 1), (0, 2, 1)),
        ((2, 6, 4, 5), (2, 2, 3, 4, 5), (0, 2, 3, 1), (0, 3, 4, 1, 2)),
        ((2, 3, 4, 5), (2, 12, 5), (0, 2, 3, 1), None),
        ((2, 3, 4, 5), (6, 20), (0, 2, 3, 1), None),
        ((2, 3, 4, 5), (2, 1, 3, 4, 5), (0, 2, 3, 1), (0, 3, 4, 1, 2)),
    ],
)
def test_reordered(before: Any, after: Any, order: Any, expected: Any):
    found = reordered(before, after, order)
    assert found == expected
    if found is not None:
        x = np.arange(np.prod(before)).reshape(before)
        left = x.reshape(after).transpose(found)
        right = x.transpose(order).reshape([after[d] for d in found])
        np.testing.assert_array_equal(left, right)
