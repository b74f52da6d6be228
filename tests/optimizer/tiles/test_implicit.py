"""Convolutions as products over their taps, run by the interpreter of tile functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.hlo.build import build_region
from girih.hlo.graph import Function, Module, Region, arguments
from girih.hlo.interpret import evaluated, interpret
from girih.hlo.ops.convolution import numbers
from girih.hlo.types import BF16, F32, TensorType
from girih.optimizer.tiles.build import build_kernel, make_group
from girih.optimizer.tiles.implicit import boxes, build_implicit, step_of
from girih.optimizer.tiles.write import Unwritable

RNG = np.random.default_rng(3)


def region(x: Sequence[int], w: Sequence[int], element: Any = F32, **facts: Any) -> Region:
    """relu(conv(x, w))."""
    dims = numbers(len(x) - 2) | facts

    def body(b: Any, x: Any, w: Any) -> list[Any]:
        y = b("convolution", x, w, **dims)
        return [b("maximum", y, b.constant(0, y.tensor))]

    return build_region([TensorType(x, element), TensorType(w, element)], body)


def check(found: Region, sizes: Sequence[int], step: int, tolerance: float = 0.0) -> None:
    """The tile function gives what the region gives."""
    arrays = [RNG.integers(-3, 4, v.dims).astype(v.tensor.dtype) for v in found.arguments]
    group = make_group(found.ops, found.arguments, found.results)
    kernel = build_implicit(group, arguments(found.argument_types), sizes, "test", step)
    wanted = interpret(Module({"main": Function("main", found)}), arrays)
    for got, right in zip(evaluated(kernel, arrays), wanted, strict=True):
        got, right = got.astype(np.float64), np.asarray(right).astype(np.float64)
        np.testing.assert_allclose(got, right, rtol=tolerance)


@settings(max_examples=15, deadline=None)
@given(
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    taps=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilations=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(*[st.tuples(st.integers(-1, 2), st.integers(-1, 2))] * 2),
    reversal=st.tuples(st.booleans(), st.booleans()),
    groups=st.sampled_from([1, 2]),
    tile=st.sampled_from([(1, 2, 4, 8), (2, 4, 1, 4), (1, 8, 8, 8), (4, 1, 2, 8)]),
    step=st.sampled_from([4, 8]),
)
def test_windows(size, taps, strides, dilations, padding, reversal, groups, tile, step):
    found = region(
        (3, *size, 8 * groups), (*taps, 8, 8 * groups), window_strides=strides, padding=padding,
        rhs_dilation=dilations, window_reversal=reversal, feature_group_count=groups,
    )  # fmt: skip
    if found.results[0].tensor.size:
        check(found, tile, step)


@pytest.mark.parametrize("spatial", [1, 3])
def test_other_ranks(spatial):
    x, w = (2, *(6, 7, 5)[:spatial], 8), (*(3, 2, 3)[:spatial], 8, 16)
    padding = ((1, 1),) * spatial
    tile = (1, *(4, 2, 2)[:spatial], 8)
    check(region(x, w, padding=padding, window_strides=(2,) * spatial), tile, 8)


def test_sums_of_narrow_floats_are_wide():
    # 512 + 1 + 1 + ... is 512 for ever in bf16.
    found = region((1, 1, 1, 64), (1, 1, 64, 8), BF16)
    group = make_group(found.ops, found.arguments, found.results)
    kernel = build_implicit(group, arguments(found.argument_types), (1, 1, 1, 8), "test", 16)
    x = np.ones((1, 1, 1, 64), found.arguments[0].tensor.dtype)
    x[..., 0] = 512
    (got,) = evaluated(kernel, [x, np.ones_like(np.zeros((1, 1, 64, 8)), x.dtype)])
    assert (got.astype(np.float32) == 576).all()


def test_operands_behind_moves():
    def body(b: Any, x: Any, w: Any) -> list[Any]:
        x = b("slice", x, start_indices=(0, 0, 0, 8), limit_indices=(2, 6, 5, 24),
              strides=(1,) * 4)  # fmt: skip
        x, w = b.transpose(x, (0, 3, 1, 2)), b.transpose(w, (0, 3, 1, 2))
        y = b("convolution", x, w, **numbers(2, channels_first=True), padding=((1, 1), (1, 1)))
        return [b.transpose(y, (0, 2, 3, 1))]

    found = build_region([TensorType((2, 6, 5, 32), F32), TensorType((8, 3, 3, 16), F32)], body)
    group = make_group(found.ops, found.arguments, found.results)
    kernel = build_implicit(group, arguments(found.argument_types), (1, 8, 4, 2), "test", 16)
    names = [op.name for op in kernel.regions[0].walk()]
    assert not {"transpose", "slice", "select"} & set(names[: names.index("dot_general")])
    check(found, (1, 8, 4, 2), 16)


def test_what_is_no_product_over_taps():
    found = region((2, 4, 4, 8), (2, 2, 8, 8), lhs_dilation=(2, 2))
    with pytest.raises(Unwritable, match="a dilated image"):
        check(found, (1, 2, 2, 8), 8)
    found = region((2, 4, 4, 16), (2, 2, 8, 16), feature_group_count=2)
    with pytest.raises(Unwritable, match="a tile of several groups"):
        check(found, (1, 2, 2, 16), 8)


@pytest.mark.parametrize("columns", [8, 12, 16, 24, 32, 48])
def test_tiles_do_not_cut_groups(columns):
    """Also where the convolution stays one: tiles are whole groups, or lie in one."""
    found = region((2, 6, 4, 8), (2, 2, 4, 48), feature_group_count=2)
    group = make_group(found.ops, found.arguments, found.results)
    operands = arguments(found.argument_types)
    if columns in (16, 32):
        with pytest.raises(Unwritable, match="cuts groups of 24"):
            build_kernel(group, operands, (1, 2, 3, columns), "test")
        return
    kernel = build_kernel(group, operands, (1, 2, 3, columns), "test")
    arrays = [RNG.integers(-3, 4, v.dims).astype(np.float32) for v in found.arguments]
    (wanted,) = interpret(Module({"main": Function("main", found)}), arrays)
    np.testing.assert_array_equal(evaluated(kernel, arrays)[0], np.asarray(wanted))


@pytest.mark.parametrize(
    ("dims", "rows", "first"),
    [
        ((32, 14, 14), 128, (32, 2, 2)),
        ((2, 56, 56), 128, (2, 8, 8)),
        ((1, 8, 100), 64, (1, 8, 8)),
        ((1, 7, 7), 64, (1, 8, 8)),
        ((3, 5), 64, (4, 16)),
    ],
)
def test_boxes_waste_the_least(dims, rows, first):
    found = list(boxes(dims, rows))
    assert found[0] == first
    for box in found:
        assert math.prod(box) == rows


def test_steps():
    assert [step_of(depth, 64, 16) for depth in (16, 40, 64, 80, 96, 512)] == [
        16, 64, 64, 32, 32, 64,
    ]  # fmt: skip
