"""Sizes that change at run time as masks: compiled programs give the interpreter's numbers."""

from __future__ import annotations

import numpy as np
import pytest

import girih
from girih.hlo.verify import INLINED, verify
from girih.optimizer.passes.mask_bounded import MaskBounded

ROWS, COLUMNS = (
    "tensor<?x3xf32, #stablehlo.bounds<4, ?>>",
    "tensor<?x5xf32, #stablehlo.bounds<4, ?>>",
)
TURNED = "tensor<5x?xf32, #stablehlo.bounds<?, 4>>"
PROGRAM = f"""
func.func @exponential(%a: {ROWS}) -> {ROWS} {{
  %0 = stablehlo.exponential %a : {ROWS}
  return %0 : {ROWS}
}}
func.func @main(%x: tensor<4x3xf32>, %w: tensor<3x5xf32>, %n: tensor<i32>)
    -> (tensor<3xf32>, tensor<5x5xf32>, tensor<i32>, tensor<f32>) {{
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<7.0> : tensor<f32>
  %0 = stablehlo.set_dimension_size %x, %n, dim = 0 : (tensor<4x3xf32>, tensor<i32>) -> {ROWS}
  %e = func.call @exponential(%0) : ({ROWS}) -> {ROWS}
  %1 = stablehlo.reduce(%e init: %low) applies stablehlo.maximum across dimensions = [0]
    : ({ROWS}, tensor<f32>) -> tensor<3xf32>
  %2 = stablehlo.dot_general %e, %w, contracting_dims = [1] x [0]
    : ({ROWS}, tensor<3x5xf32>) -> {COLUMNS}
  %t = stablehlo.transpose %2, dims = [1, 0] : ({COLUMNS}) -> {TURNED}
  %3 = stablehlo.dot_general %t, %2, contracting_dims = [1] x [0]
    : ({TURNED}, {COLUMNS}) -> tensor<5x5xf32>
  %4 = stablehlo.get_dimension_size %t, dim = 1 : ({TURNED}) -> tensor<i32>
  %5 = stablehlo.add %2, %2 : {COLUMNS}
  %6 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [0, 1]
    : ({COLUMNS}, tensor<f32>) -> tensor<f32>
  return %1, %3, %4, %6 : tensor<3xf32>, tensor<5x5xf32>, tensor<i32>, tensor<f32>
}}
"""


@pytest.fixture(scope="module")
def module():
    return girih.import_model(PROGRAM)


def inputs():
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((4, 3), (3, 5)))
    x[3] = np.inf  # behind every size but the largest: must not be seen
    return x, w


def test_masks_give_the_numbers_of_true_sizes(module):
    after = MaskBounded()(module)
    verify(after, INLINED)
    assert all(value.tensor.is_static for op in after.walk() for value in op.results)
    program, given = girih.compile(module), inputs()
    for size in range(4):
        wanted = girih.interpret(module, [*given, np.int32(size)])
        for engine in (lambda *a: girih.interpret(after, a), program):
            for left, right in zip(engine(*given, np.int32(size)), wanted, strict=True):
                np.testing.assert_allclose(left, right, rtol=1e-5)
    with pytest.raises(girih.UserError, match="strict: .*masks over whole dimensions"):
        girih.compile(module, options=girih.Options(strict=True))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (f"%r = stablehlo.reverse %0, dims = [0] : {ROWS}", "set_dimension_size"),
        (
            "%y = stablehlo.set_dimension_size %x, %m, dim = 0"
            f" : (tensor<4x3xf32>, tensor<i32>) -> {ROWS}\n"
            f"%r = stablehlo.add %0, %y : {ROWS}",
            "set_dimension_size",
        ),
    ],
)
def test_what_has_no_mask_is_refused(line, name):
    text = f"""
    func.func @main(%x: tensor<4x3xf32>, %n: tensor<i32>, %m: tensor<i32>) -> tensor<f32> {{
      %c = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.set_dimension_size %x, %n, dim = 0 : (tensor<4x3xf32>, tensor<i32>) -> {ROWS}
      {line}
      %1 = stablehlo.reduce(%r init: %c) applies stablehlo.add across dimensions = [0, 1]
        : ({ROWS}, tensor<f32>) -> tensor<f32>
      return %1 : tensor<f32>
    }}
    """
    module = girih.import_model(text)
    with pytest.raises(girih.UnsupportedError, match=f"{name}: .* known only while the program"):
        girih.compile(module)
    x = np.ones((4, 3), np.float32)
    (result,) = girih.interpret(module, [x, np.int32(2), np.int32(2)])
    assert result in (6, 12)


def test_a_result_of_a_changing_size_is_refused():
    text = f"""
    func.func @main(%x: tensor<4x3xf32>, %n: tensor<i32>) -> {ROWS} {{
      %0 = stablehlo.set_dimension_size %x, %n, dim = 0 : (tensor<4x3xf32>, tensor<i32>) -> {ROWS}
      return %0 : {ROWS}
    }}
    """
    module = girih.import_model(text)
    with pytest.raises(girih.UnsupportedError, match="set_dimension_size"):
        girih.compile(module)
    (result,) = girih.interpret(module, [np.ones((4, 3), np.float32), np.int32(2)])
    assert result.shape == (2, 3)


def test_the_pass_can_be_left_out(module):
    options = girih.Options(disable=("mask-bounded",))
    with pytest.raises(girih.UnsupportedError, match="has a size that is known only while"):
        girih.compile(module, target="null", options=options)
