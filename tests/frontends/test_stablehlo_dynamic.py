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


# Sizes that stay open: compiled once, without examples.

# As JAX exported it before 2023: the size is an argument, too.
LEADING = """
func.func public @main(%n: tensor<i64>, %x: tensor<?x1x3xf32>, %y: tensor<?x3xf32>)
    -> (tensor<?x2x3xf32>, tensor<?xi32>, tensor<f32>) {
  %0 = stablehlo.convert %n : (tensor<i64>) -> tensor<i32>
  %1 = stablehlo.reshape %0 : (tensor<i32>) -> tensor<1xi32>
  %2 = stablehlo.constant dense<[2, 3]> : tensor<2xi32>
  %3 = stablehlo.concatenate %1, %2, dim = 0 : (tensor<1xi32>, tensor<2xi32>) -> tensor<3xi32>
  %4 = stablehlo.dynamic_broadcast_in_dim %x, %3, dims = [0, 1, 2]
    : (tensor<?x1x3xf32>, tensor<3xi32>) -> tensor<?x2x3xf32>
  %5 = stablehlo.dynamic_broadcast_in_dim %y, %3, dims = [0, 2]
    : (tensor<?x3xf32>, tensor<3xi32>) -> tensor<?x2x3xf32>
  %6 = stablehlo.add %4, %5 : tensor<?x2x3xf32>
  %7 = stablehlo.dynamic_iota %1, dim = 0 : (tensor<1xi32>) -> tensor<?xi32>
  %8 = stablehlo.convert %n : (tensor<i64>) -> tensor<f32>
  return %6, %7, %8 : tensor<?x2x3xf32>, tensor<?xi32>, tensor<f32>
}
"""


def test_leading_arguments_that_are_sizes():
    module = girih.import_model(LEADING)
    assert list(module.symbols) == ["d0"] and "argument 0 is taken to be the size d0" in str(module)
    program = girih.compile(module, sizes={"d0": (0, 9)}, options=girih.Options(cache="off"))
    for size in (0, 1, 5, 9):
        x, y = (np.random.default_rng(size).normal(size=(size, n, 3)).astype("f") for n in (1, 4))
        inputs = (np.array(size), x, y[:, 0])
        wanted = (np.repeat(x, 2, 1) + y[:, :1], np.arange(size, dtype=np.int32), np.float32(size))
        equal(girih.interpret(module, inputs), wanted)
        equal(program(*inputs), wanted)
    for run in (lambda *given: girih.interpret(module, given), program):
        with pytest.raises(girih.UserError, match="argument 0 is not d0, which is a size"):
            run(np.array(4), *inputs[1:])
    with pytest.raises(girih.UserError, match="strict.*argument 0 is taken to be"):
        strict = girih.Options(cache="off", strict=True)
        girih.compile(module, sizes={"d0": (0, 9)}, options=strict)


def test_examples_say_what_an_argument_is():
    text = """
    func.func @main(%n: tensor<i32>, %x: tensor<?xf32>) -> tensor<?xf32> {
      %z = stablehlo.constant dense<0> : tensor<1xi32>
      %o = stablehlo.constant dense<1> : tensor<1xi32>
      %1 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
      %2 = stablehlo.real_dynamic_slice %x, %z, %1, %o
        : (tensor<?xf32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> tensor<?xf32>
      return %2 : tensor<?xf32>
    }
    """
    x = np.arange(5, dtype=np.float32)
    equal(girih.interpret(girih.import_model(text), (np.int32(3), x)), (x[:3],))
    program = girih.compile(text, np.int32(3), x, options=girih.Options(cache="off"))
    equal(program(np.int32(3), x), (x[:3],))
    assert any("size 3, as the example is" in note for note in program.module.notes)


def test_paddings_that_data_decide():
    text = """
    func.func @main(%n: tensor<i32>, %x: tensor<?x2xf32>, %y: tensor<?x2xf32>)
        -> (tensor<?x2xf32>, tensor<?x2xf32>) {
      %f = stablehlo.constant dense<7.0> : tensor<f32>
      %z = stablehlo.constant dense<0> : tensor<1xi32>
      %o = stablehlo.constant dense<[1, 0]> : tensor<2xi32>
      %1 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
      %2 = stablehlo.concatenate %1, %z, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
      %3 = stablehlo.dynamic_pad %x, %f, %2, %o, %2 : (tensor<?x2xf32>, tensor<f32>, tensor<2xi32>,
        tensor<2xi32>, tensor<2xi32>) -> tensor<?x2xf32>
      %4 = stablehlo.add %x, %y : tensor<?x2xf32>
      return %3, %4 : tensor<?x2xf32>, tensor<?x2xf32>
    }
    """
    module = girih.import_model(text)
    x_rows, y_rows = (argument.tensor.dims[0] for argument in module.body.arguments[1:])
    padded = str(module.body.results[0].tensor.dims[0])
    # What operations need of sizes that calls decide is checked by calls.
    assert [str(one) for one in module.constraints] == [f"{x_rows} == {y_rows}"]
    sizes = {str(x_rows): (0, 4), str(y_rows): (0, 4), padded: (0, 20)}
    program = girih.compile(module, sizes=sizes, options=girih.Options(cache="off", size_plans=1))
    for n, rows in ((0, 3), (2, 4), (3, 1), (2, 0)):
        x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        equal(program(np.int32(n), x, x), girih.interpret(module, (np.int32(n), x, x)))
    with pytest.raises(girih.UserError, match="d.* that data decide is not in 0..20"):
        program(np.int32(20), x, x)
    with pytest.raises(girih.UserError, match="must be 0|does not hold"):
        program(np.int32(1), x, np.zeros((2, 2), np.float32))


LOOP = """
func.func private @half(%n: tensor<i32>) -> tensor<i32> {
  %c = stablehlo.constant dense<2> : tensor<i32>
  %0 = stablehlo.divide %n, %c : tensor<i32>
  return %0 : tensor<i32>
}
func.func @main(%x: tensor<?x2xf32>, %k: tensor<i32>) -> (tensor<?x4xf32>, tensor<?x2xf32>) {
  %z = stablehlo.constant dense<0> : tensor<i32>
  %o = stablehlo.constant dense<1> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<1xi32>
  %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x2xf32>) -> tensor<i32>
  %h = func.call @half(%n) : (tensor<i32>) -> tensor<i32>
  %t = stablehlo.multiply %h, %o : tensor<i32>
  %even = stablehlo.add %t, %h : tensor<i32>
  %holds = stablehlo.compare EQ, %even, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.custom_call @shape_assertion(%holds, %n) {error_message = "rows are pairs, not {0}",
    has_side_effect = true} : (tensor<i1>, tensor<i32>) -> ()
  %1 = stablehlo.reshape %h : (tensor<i32>) -> tensor<1xi32>
  %s = stablehlo.concatenate %1, %four, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %r = stablehlo.dynamic_reshape %x, %s : (tensor<?x2xf32>, tensor<2xi32>) -> tensor<?x4xf32>
  %2:3 = stablehlo.while(%i = %k, %a = %r, %m = %h) : tensor<i32>, tensor<?x4xf32>, tensor<i32>
  cond {
    %g = stablehlo.compare GT, %i, %z : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %g : tensor<i1>
  } do {
    %j = stablehlo.subtract %i, %o : tensor<i32>
    %w = stablehlo.reshape %m : (tensor<i32>) -> tensor<1xi32>
    %d = stablehlo.concatenate %w, %four, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %f = stablehlo.convert %j : (tensor<i32>) -> tensor<f32>
    %b = stablehlo.dynamic_broadcast_in_dim %f, %d, dims = []
      : (tensor<f32>, tensor<2xi32>) -> tensor<?x4xf32>
    %c = stablehlo.add %a, %b : tensor<?x4xf32>
    stablehlo.return %j, %c, %m : tensor<i32>, tensor<?x4xf32>, tensor<i32>
  }
  %p = stablehlo.compare GT, %k, %z : (tensor<i32>, tensor<i32>) -> tensor<i1>
  %3 = "stablehlo.if"(%p) ({
    stablehlo.return %x : tensor<?x2xf32>
  }, {
    %q = stablehlo.negate %x : tensor<?x2xf32>
    stablehlo.return %q : tensor<?x2xf32>
  }) : (tensor<i1>) -> tensor<?x2xf32>
  return %2#1, %3 : tensor<?x4xf32>, tensor<?x2xf32>
}
"""


def test_open_types_in_loops_branches_and_checks():
    module = girih.import_model(LOOP)
    d0 = girih.hlo.symbols.SymbolicDim("d0")
    assert module.body.results[0].dims == (d0 // 2, 4)
    assert module.assumptions.divides(2, d0) is True
    program = girih.compile(module, sizes={"d0": (0, 40)}, options=girih.Options(cache="off"))
    for size, turns in ((0, 1), (2, 0), (6, 3), (38, 4)):
        x = np.random.default_rng(size).normal(size=(size, 2)).astype(np.float32)
        y = x.reshape(-1, 4)
        for turn in reversed(range(turns)):
            y = y + np.float32(turn)
        inputs = (x, np.int32(turns))
        for found in (girih.interpret(module, inputs), program(*inputs)):
            equal(found, (y, x if turns else -x))
    with pytest.raises(girih.UserError, match=r"d0 = 5 \(rows are pairs, not d0\)"):
        program(np.zeros((5, 2), np.float32), np.int32(0))


def test_computed_shapes_fit_their_types_and_are_not_negative():
    text = """
    func.func @main(%x: tensor<?xf32>, %y: tensor<?xf32>) -> (tensor<?xi32>, tensor<4xi32>) {
      %f = stablehlo.constant dense<5> : tensor<i32>
      %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?xf32>) -> tensor<i32>
      %m = stablehlo.subtract %n, %f : tensor<i32>
      %s = stablehlo.reshape %m : (tensor<i32>) -> tensor<1xi32>
      %0 = stablehlo.dynamic_iota %s, dim = 0 : (tensor<1xi32>) -> tensor<?xi32>
      %k = stablehlo.get_dimension_size %y, dim = 0 : (tensor<?xf32>) -> tensor<i32>
      %t = stablehlo.reshape %k : (tensor<i32>) -> tensor<1xi32>
      %1 = stablehlo.dynamic_iota %t, dim = 0 : (tensor<1xi32>) -> tensor<4xi32>
      return %0, %1 : tensor<?xi32>, tensor<4xi32>
    }
    """
    module = girih.import_model(text)
    x, y = np.zeros(7, np.float32), np.zeros(4, np.float32)
    equal(girih.interpret(module, (x, y)), (np.arange(2), np.arange(4)))
    with pytest.raises(girih.UserError, match=r"d0 must be at least 5 \(iota at <text>:7\)"):
        girih.interpret(module, (x[:4], y))
    with pytest.raises(girih.UserError, match=r"d1 == 4 does not hold .*dynamic_iota at <text>:10"):
        girih.interpret(module, (x, y[:3]))


def test_operations_demand_that_sizes_fit():
    text = """
    func.func @main(%x: tensor<?x4xf32>, %y: tensor<4x?xf32>, %i: tensor<i32>, %z: tensor<?x2xf32>)
        -> (tensor<?x?xf32>, tensor<?x4xf32>) {
      %c = stablehlo.constant dense<0> : tensor<i32>
      %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
        : (tensor<?x4xf32>, tensor<4x?xf32>) -> tensor<?x?xf32>
      %1 = stablehlo.dot_general %0, %0, contracting_dims = [1] x [0]
        : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
      %2 = stablehlo.dynamic_update_slice %x, %z, %i, %c
        : (tensor<?x4xf32>, tensor<?x2xf32>, tensor<i32>, tensor<i32>) -> tensor<?x4xf32>
      return %1, %2 : tensor<?x?xf32>, tensor<?x4xf32>
    }
    """
    module = girih.import_model(text)
    assert module.body.arguments[1].dims == (4, module.body.arguments[0].dims[0])
    (constraint,) = module.constraints
    assert str(constraint) == "d2 <= d0" and constraint.origin == "dynamic_update_slice at <text>:9"
    x, y, z = (
        np.random.default_rng(0).normal(size=s).astype("f") for s in ((5, 4), (4, 5), (3, 2))
    )
    product, updated = girih.interpret(module, (x, y, np.int32(1), z))
    np.testing.assert_allclose(product, x @ y @ x @ y, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(updated[1:4, :2], z)
    with pytest.raises(girih.UserError, match="d2 <= d0 does not hold for d0 = 5, d2 = 6"):
        girih.interpret(module, (x, y, np.int32(1), np.zeros((6, 2), np.float32)))
    with pytest.raises(girih.UserError, match="input 1: dimension 1 = d0 is 4, but must be 5"):
        girih.interpret(module, (x, y[:, :4], np.int32(1), z))


DATA_BESIDE_CALLS = """
func.func @main(%n: tensor<i64>, %p: tensor<i32>, %x: tensor<?x4xf32>, %m: tensor<?x4xi1>)
    -> (tensor<?xf32>, tensor<?x2xf32>, tensor<i64>) {
  %two = stablehlo.constant dense<2> : tensor<i64>
  %one = stablehlo.constant dense<1> : tensor<1xi32>
  %ones = stablehlo.constant dense<1> : tensor<2xi32>
  %c = stablehlo.constant dense<1.5> : tensor<f32>
  %0 = stablehlo.multiply %n, %two : tensor<i64>
  %1 = stablehlo.convert %0 : (tensor<i64>) -> tensor<i32>
  %2 = stablehlo.reshape %1 : (tensor<i32>) -> tensor<1xi32>
  %3 = stablehlo.dynamic_iota %2, dim = 0 : (tensor<1xi32>) -> tensor<?xf32>
  %4 = stablehlo.dynamic_broadcast_in_dim %c, %2, dims = []
    : (tensor<f32>, tensor<1xi32>) -> tensor<?xf32>
  %5 = stablehlo.add %3, %4 : tensor<?xf32>
  %6 = stablehlo.reshape %p : (tensor<i32>) -> tensor<1xi32>
  %7 = stablehlo.concatenate %6, %one, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %8 = stablehlo.convert %n : (tensor<i64>) -> tensor<i32>
  %9 = stablehlo.reshape %8 : (tensor<i32>) -> tensor<1xi32>
  %10 = stablehlo.constant dense<2> : tensor<1xi32>
  %11 = stablehlo.concatenate %9, %10, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %12 = stablehlo.add %7, %11 : tensor<2xi32>
  %13 = stablehlo.real_dynamic_slice %x, %7, %12, %ones
    : (tensor<?x4xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<?x2xf32>
  %14 = stablehlo.convert %m : (tensor<?x4xi1>) -> tensor<?x4xi64>
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %15 = stablehlo.reduce(%14 init: %zero) applies stablehlo.add across dimensions = [0, 1]
    : (tensor<?x4xi64>, tensor<i64>) -> tensor<i64>
  return %5, %13, %15 : tensor<?xf32>, tensor<?x2xf32>, tensor<i64>
}
"""


def test_sizes_from_data_beside_those_of_calls():
    """Sizes that data decide are compared by the program, not refused; what is counted over an
    open tensor is no size."""
    module = girih.import_model(DATA_BESIDE_CALLS)
    given = {name for a in module.body.arguments for d in a.dims if not isinstance(d, int)
             for name in d.symbols}  # fmt: skip
    sizes = {name: (1, 20) if name in given else (0, 40) for name in module.symbols}
    program = girih.compile(module, sizes=sizes, options=girih.Options(cache="off", size_plans=1))
    for rows, start, count in ((7, 2, 3), (20, 0, 20), (1, 0, 1), (5, 4, 0)):
        x = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
        inputs = (np.int64(count), np.int32(start), x, x > 0)
        wanted = (
            np.arange(2 * count, dtype=np.float32) + np.float32(1.5),
            x[start : start + count, 1:3],
            (x > 0).sum(),
        )
        equal(girih.interpret(module, inputs), wanted)
        equal(program(*inputs), wanted)
    with pytest.raises(girih.UserError, match="does not hold for these data|not in 0"):
        program(np.int64(3), np.int32(5), x, x > 0)
