"""Convolutions rewritten on operands that copies take: the same numbers, the better form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from girih.hlo.build import build_region, make_op
from girih.hlo.graph import Function, Module, Op, Region, arguments
from girih.hlo.interpret import interpret
from girih.hlo.ops.convolution import numbers, window_attributes
from girih.hlo.types import F32, TensorType
from girih.optimizer.kernels import convolution_form

RNG = np.random.default_rng(8)
OHWI = numbers(2) | {
    "kernel_output_feature_dimension": 0,
    "kernel_spatial_dimensions": (1, 2),
    "kernel_input_feature_dimension": 3,
}
OIHW = numbers(2, channels_first=True)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(convolution_form, "CONVOLVED_PER_LAUNCH", 0)


def region(x: Sequence[int], w: Sequence[int], facts: dict[str, Any]) -> Region:
    types = [TensorType(x, F32), TensorType(w, F32)]
    return build_region(types, lambda b, x, w: [b("convolution", x, w, **facts)])


def fusion(found: Region) -> Op:
    operands = arguments(found.argument_types)
    return make_op("fusion", operands, {"kind": "contract"}, (found,), found.result_types)


def run(found: Region, arrays: Sequence[np.ndarray]) -> np.ndarray:
    (result,) = interpret(Module({"main": Function("main", found)}), list(arrays))
    return np.asarray(result)


def prepared(found: Region) -> list[Op]:
    """The convolutions of the better form, which gives the same numbers."""
    form = convolution_form.prepared(found)
    assert form is not None
    better = form[0]
    arrays = [RNG.integers(-3, 4, v.dims).astype(v.tensor.dtype) for v in found.arguments]
    np.testing.assert_array_equal(run(better, arrays), run(found, arrays))
    made = [op for op in better.ops if op.name == "convolution"]
    for op in made:
        assert not any(d != 1 for d in window_attributes(op)[2])
        assert op.operands[0].dims[-1] % 4 == 0  # pixels of whole 16-byte chunks
        assert op.kernel_input_feature_dimension == op.operands[1].rank - 1
    return made


CASES = {
    "colours": ((2, 18, 20, 3), (7, 7, 3, 16), numbers(2), {
        "window_strides": (2, 2), "padding": ((3, 3), (3, 3)), "window_reversal": (True, True),
    }),
    "colours in planes": ((2, 3, 9, 11), (16, 3, 3, 4), OIHW, {
        "padding": ((1, 1), (2, -1)), "rhs_dilation": (1, 2),
    }),
    "planes": ((2, 16, 9, 11), (16, 16, 3, 3), OIHW, {"padding": ((1, 1), (1, 1))}),
    "pixels of 20 bytes": ((2, 9, 11, 5), (3, 3, 5, 16), numbers(2), {}),
    "groups": ((2, 16, 9, 11), (16, 8, 3, 3), OIHW, {"feature_group_count": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_layouts(name):
    x, w, dims, facts = CASES[name]
    (made,) = prepared(region(x, w, dims | facts))
    assert made.operands[0].dims[0] == 2 and made.input_feature_dimension == 3


@pytest.mark.parametrize(
    ("taps", "base", "padding", "count"),
    [
        ((2, 2), (2, 2), ((1, 1), (1, 1)), 1),  # all phases see the same pixel: one convolution
        ((4, 4), (2, 2), ((2, 2), (2, 2)), 4),
        ((3, 3), (2, 3), ((1, 2), (0, 2)), 4),
        ((3, 1), (4, 1), ((1, 2), (0, 0)), 2),  # some phases see nothing
    ],
)
def test_transposed_convolutions(taps, base, padding, count):
    found = region((2, 7, 9, 16), (*taps, 16, 8), numbers(2) | {
        "lhs_dilation": base, "padding": padding, "window_reversal": (True, False),
    })  # fmt: skip
    assert len(prepared(found)) == count


def test_both_dilated():
    found = region((2, 7, 9, 16), (3, 3, 16, 8), numbers(2) | {
        "lhs_dilation": (2, 3), "rhs_dilation": (2, 2), "padding": ((1, 2), (0, 2)),
    })  # fmt: skip
    prepared(found)


@pytest.mark.parametrize(
    ("x", "w", "facts"),
    [
        ((2, 9, 11, 16), (8, 3, 3, 16), OHWI),
        ((2, 9, 11, 8), (8, 1, 1, 8), OHWI),
        ((2, 9, 11, 16), (3, 3, 1, 16), numbers(2) | {"feature_group_count": 16}),
        ((4, 9, 11, 16), (3, 3, 16, 16), numbers(2) | {"batch_group_count": 2}),
    ],
)
def test_what_stays(x, w, facts):
    assert convolution_form.prepared(region(x, w, facts)) is None


def test_small_convolutions_stay(monkeypatch):
    monkeypatch.undo()
    assert convolution_form.prepared(region((1, 8, 4, 4), (8, 8, 1, 1), OIHW)) is None


def test_weights_are_stored_as_they_are_read():
    found = fusion(region((2, 16, 9, 11), (8, 16, 3, 3), OIHW))
    packing = convolution_form.packing(found)
    assert packing is not None and packing.operand == 1
    array = np.arange(8 * 16 * 9, dtype=np.float32).reshape(8, 16, 3, 3)
    stored = build_region([TensorType(array.shape, F32)], lambda b, w: [packing.forward(b, w)])
    assert run(stored, [array]).shape == (8, 3, 3, 16)
    both = build_region(
        [TensorType(array.shape, F32)], lambda b, w: [packing.inverse(b, packing.forward(b, w))]
    )
    np.testing.assert_array_equal(run(both, [array]), array)
    assert convolution_form.packing(fusion(region((2, 9, 11, 16), (8, 3, 3, 16), OHWI))) is None
