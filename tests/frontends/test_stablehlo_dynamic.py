"""Sizes that are known only when a program is called, or only while it runs."""

from __future__ import annotations

import numpy as np
import pytest

import girih
from girih.frontends.stablehlo.write import write_text
from girih.hlo.build import build_module
from girih.hlo.ops.convolution import numbers
from girih.hlo.ops.shape import padded
from girih.hlo.sizes import Symbol
from girih.hlo.types import F32, TensorType, tensor_of

FREE = """
!bounded = tensor<?xf32, #stablehlo.bounds<4>>
func.func @twice(%a: !bounded) -> !bounded {
  %0 = stablehlo.add %a, %a : !bounded
  return %0 : !bounded
}
func.func @main(%x: tensor<?x3xf32>, %y: !bounded, %n: tensor<i32>)
    -> (tensor<?x3xf32>, !bounded, tensor<i32>) {
  %c = stablehlo.constant dense<1> : tensor<i32>
  %z = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.add %x, %x : tensor<?x3xf32>
  %s = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x3xf32>) -> tensor<i32>
  %1:2 = stablehlo.while(%a = %y, %i = %n) : !bounded, tensor<i32>
  cond {
    %g = stablehlo.compare GT, %i, %z : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %g : tensor<i1>
  } do {
    %r = func.call @twice(%a) : (!bounded) -> !bounded
    %j = stablehlo.subtract %i, %c : tensor<i32>
    stablehlo.return %r, %j : !bounded, tensor<i32>
  }
  return %0, %1#0, %s : tensor<?x3xf32>, !bounded, tensor<i32>
}
"""
INPUTS = (np.ones((2, 3), np.float32), np.ones(3, np.float32), np.int32(2))
WANTED = (np.full((2, 3), 2, np.float32), np.full(3, 4, np.float32), np.int32(2))

OF_DATA = """
func.func @main(%x: tensor<6xf32>, %n: tensor<2xi32>) -> tensor<?x?xf32> {
  %0 = stablehlo.dynamic_reshape %x, %n : (tensor<6xf32>, tensor<2xi32>) -> tensor<?x?xf32>
  %1 = stablehlo.negate %0 : tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}
"""
BOUNDED = """
func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> (tensor<f32>, tensor<i32>) {
  %0 = stablehlo.set_dimension_size %x, %n, dim = 0
    : (tensor<4xf32>, tensor<i32>) -> tensor<?xf32, #stablehlo.bounds<4>>
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %1 = stablehlo.reduce(%0 init: %c) applies stablehlo.add across dimensions = [0]
    : (tensor<?xf32, #stablehlo.bounds<4>>, tensor<f32>) -> tensor<f32>
  %2 = stablehlo.get_dimension_size %0, dim = 0
    : (tensor<?xf32, #stablehlo.bounds<4>>) -> tensor<i32>
  return %1, %2 : tensor<f32>, tensor<i32>
}
"""


def equal(results, wanted):
    for result, expected in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(result, expected)


def test_free_sizes_are_interpreted_as_they_come():
    module = girih.import_model(FREE)
    equal(girih.interpret(module, INPUTS), WANTED)
    equal(girih.interpret(girih.import_model(write_text(module).text), INPUTS), WANTED)
    longer = (np.ones((5, 3), np.float32), np.ones(1, np.float32), np.int32(0))
    equal(girih.interpret(module, longer), (2 * longer[0], longer[1], np.int32(5)))
    with pytest.raises(
        girih.UserError, match="dimension 0 is 5, but the size d1 must be from 0 to 4"
    ):
        girih.interpret(module, (INPUTS[0], np.ones(5, np.float32), INPUTS[2]))


def test_examples_fix_them_and_are_reported():
    with pytest.raises(girih.UnsupportedError, match="no largest value.*or a number"):
        girih.compile(FREE)
    program = girih.compile(FREE, *INPUTS)
    equal(program(*INPUTS), WANTED)
    assert "input 0 is f32[2,3], as the example is" in program.module.notes
    assert "input 1 is f32[3], as the example is" in program.module.notes
    with pytest.raises(girih.UserError, match=r"example 1 has shape \[5\]"):
        girih.compile(FREE, INPUTS[0], np.ones(5, np.float32), INPUTS[2])
    with pytest.raises(girih.UserError, match="takes 3 inputs, got 1"):
        girih.compile(FREE, INPUTS[0])
    with pytest.raises(girih.UserError, match="strict: .*as the example is"):
        girih.compile(FREE, *INPUTS, options=girih.Options(strict=True))


def test_sizes_that_data_decides():
    module, x = girih.import_model(OF_DATA), np.arange(6, dtype=np.float32)
    for shape in ((2, 3), (6, 1)):
        (result,) = girih.interpret(module, [x, np.array(shape, np.int32)])
        np.testing.assert_array_equal(result, -x.reshape(shape))
    assert "sizes are computed while it runs" in module.notes[-1]
    for shape in ((4, 2), (-1, 2)):
        with pytest.raises(girih.UserError, match="dynamic_reshape"):
            girih.interpret(module, [x, np.array(shape, np.int32)])
    with pytest.raises(girih.UnsupportedError, match="known only while the program runs"):
        girih.compile(module)


def test_bounded_dimensions():
    module, x = girih.import_model(BOUNDED), np.arange(4, dtype=np.float32)
    assert module.symbols == {"d0": Symbol(0, 4)}
    for size in range(5):
        equal(girih.interpret(module, [x, np.int32(size)]), (x[:size].sum(), np.int32(size)))
    for size in (-1, 5):
        with pytest.raises(girih.UserError, match=f"cannot get the size {size}"):
            girih.interpret(module, [x, np.int32(size)])
    program = girih.compile(module)
    assert "masks over whole dimensions" in program.module.notes[-1]
    for size in range(5):
        equal(program(x, np.int32(size)), (x[:size].sum(), np.int32(size)))
    again = girih.import_model(write_text(module).text)
    assert again.symbols == module.symbols
    constant = BOUNDED.replace("%n: tensor<i32>)", "%m: tensor<i32>)").replace(
        "  %0 =", "  %n = stablehlo.constant dense<3> : tensor<i32>\n  %0 =", 1
    )
    equal(girih.compile(constant)(x, np.int32(0)), (x[:3].sum(), np.int32(3)))


def test_operands_of_different_sizes_are_no_broadcast():
    text = """
    func.func @main(%x: tensor<?xf32>, %y: tensor<?xf32>) -> tensor<?xf32> {
      %0 = stablehlo.add %x, %y : tensor<?xf32>
      return %0 : tensor<?xf32>
    }
    """
    module = girih.import_model(text)
    one, three = np.ones(1, np.float32), np.ones(3, np.float32)
    program = girih.compile(module, sizes={"d0": (0, 9)}, options=girih.Options(cache="off"))
    equal(program(three, three), (2 * three,))
    for run in (lambda *inputs: girih.interpret(module, inputs), program):
        with pytest.raises(girih.UserError, match=r"1\]?: dimension 0 = d0 is 3, but must be 1"):
            run(one, three)


def on_both(arrays, name, kind, **facts):
    """The op with run-time operands and a fixed result, on the interpreter and on cpu."""
    module = build_module(
        [tensor_of(a) for a in arrays], lambda b, *v: [b(name, *v, type=kind, **facts)]
    )
    (left,), (right,) = girih.interpret(module, arrays), girih.compile(module)(*arrays)
    np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5)
    return left


def test_run_time_paddings_on_cpu():
    random = np.random.default_rng(0)
    done = 0
    while done < 8:
        x = random.integers(0, 9, (3, 4)).astype(np.float32)
        low, high, inner = (random.integers(least, 3, 2) for least in (-2, -1, 0))
        wanted = padded(x, np.float32(-1), *(v.tolist() for v in (low, high, inner)))
        if 0 in wanted.shape:
            continue
        kind = (np.int32, np.int64)[done % 2]
        arrays = [x, np.float32(-1), *(v.astype(kind) for v in (low, high, inner))]
        found = on_both(list(map(np.asarray, arrays)), "dynamic_pad", tensor_of(wanted))
        np.testing.assert_array_equal(found, wanted)
        done += 1


def test_run_time_slices_on_cpu():
    x = np.arange(40, dtype=np.float32).reshape(5, 8)
    bounds = [np.array(v, np.int32) for v in ([1, 0], [4, 8], [2, 3])]
    found = on_both([x, *bounds], "real_dynamic_slice", TensorType((2, 3), F32))
    np.testing.assert_array_equal(found, x[1:4:2, 0:8:3])


@pytest.mark.parametrize(
    ("stride", "spread", "base", "low", "high"),
    [(1, 1, 1, 1, 1), (2, 1, 2, -1, 3), (1, 2, 1, 0, 2)],
)
def test_run_time_padding_of_a_convolution_on_cpu(stride, spread, base, low, high):
    random = np.random.default_rng(1)
    x, w = (random.standard_normal(s).astype(np.float32) for s in ((2, 7, 3), (3, 3, 4)))
    count = (6 * base + 1 + low + high - 2 * spread - 1) // stride + 1
    facts = {
        **numbers(1),
        "window_strides": (stride,),
        "rhs_dilation": (spread,),
        "lhs_dilation": (base,),
    }
    padding = np.array([[low, high]], np.int32)
    on_both([x, w, padding], "dynamic_conv", TensorType((2, count, 4), F32), **facts)
