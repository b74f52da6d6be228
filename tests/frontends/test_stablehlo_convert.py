"""Op trees become modules: attributes, weights, signatures, tuples, calls, and all blockers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
from girih.frontends.stablehlo import read_stablehlo
from girih.hlo.graph import Module, Op
from girih.hlo.sharding import Mesh
from girih.hlo.verify import HLO, verify

DATA = Path(__file__).parents[1] / "data" / "readers"


def f32(value: Any) -> np.ndarray:
    return np.array(value, np.float32)


def program(body: str, arguments: str = "", results: str = "") -> Module:
    """The module of a `main` with that body."""
    arrow = f"-> {results}" if results else ""
    return read_stablehlo(f"func.func @main({arguments}) {arrow} {{\n{body}\n}}", "model.mlir")


def only(module: Module, name: str) -> Op:
    (op,) = [op for op in module.walk() if op.name == name]
    return op


def test_dot_general_attributes_are_flat() -> None:
    module = program(
        """%0 = "stablehlo.dot_general"(%a, %b) <{dot_dimension_numbers = #stablehlo.dot<
             lhs_batching_dimensions = [0], rhs_batching_dimensions = [0],
             lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]>,
             precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision HIGHEST>]}>
             : (tensor<2x3x4xf32>, tensor<2x4x5xf32>) -> tensor<2x3x5xf32>
           return %0 : tensor<2x3x5xf32>""",
        "%a: tensor<2x3x4xf32>, %b: tensor<2x4x5xf32>",
        "tensor<2x3x5xf32>",
    )
    dot = only(module, "dot_general")
    assert dot.lhs_batching_dimensions == (0,) and dot.rhs_contracting_dimensions == (1,)
    assert dot.precision_config == ("DEFAULT", "HIGHEST")


def test_convolution_attributes_are_flat_and_complete() -> None:
    module = program(
        """%0 = stablehlo.convolution(%a, %b) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],
             window = {stride = [2, 1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
             : (tensor<1x3x8x8xf32>, tensor<4x3x2x1xf32>) -> tensor<1x4x4x8xf32>
           return %0 : tensor<1x4x4x8xf32>""",
        "%a: tensor<1x3x8x8xf32>, %b: tensor<4x3x2x1xf32>",
        "tensor<1x4x4x8xf32>",
    )
    o = only(module, "convolution")
    assert (o.input_batch_dimension, o.input_feature_dimension) == (0, 1)
    assert (o.kernel_output_feature_dimension, o.kernel_input_feature_dimension) == (0, 1)
    assert o.input_spatial_dimensions == o.output_spatial_dimensions == (2, 3)
    assert o.window_strides == (2, 1) and o.rhs_dilation == (1, 1)
    assert o.padding == ((0, 0), (0, 0))


@pytest.mark.parametrize("spelling", ["array<i64: 1, 0>", "dense<[1, 0]> : tensor<2xi64>"])
def test_integer_lists_in_either_spelling(spelling: str) -> None:
    module = program(
        f"""%0 = "stablehlo.transpose"(%a) {{permutation = {spelling}}}
              : (tensor<2x3xf32>) -> tensor<3x2xf32>
            return %0 : tensor<3x2xf32>""",
        "%a: tensor<2x3xf32>",
        "tensor<3x2xf32>",
    )
    assert only(module, "transpose").permutation == (1, 0)


def rows(count: int) -> str:
    return ", ".join(f"{n}.5" for n in range(count))


def test_large_constants_become_weights_once() -> None:
    module = program(
        f"""%0 = stablehlo.constant dense<[{rows(1024)}]> : tensor<1024xf32>
            %1 = stablehlo.constant dense<[{rows(1024)}]> : tensor<1024xf32>
            %2 = stablehlo.constant dense<1.0> : tensor<1024xf32>
            %3 = stablehlo.constant dense<[{rows(3)}]> : tensor<3xf32>
            return %0, %1, %2, %3
              : tensor<1024xf32>, tensor<1024xf32>, tensor<1024xf32>, tensor<3xf32>""",
        results="(tensor<1024xf32>, tensor<1024xf32>, tensor<1024xf32>, tensor<3xf32>)",
    )
    assert [op.name for op in module.walk()] == ["weight", "weight", "constant", "constant"]
    assert list(module.weights) == ["constant_0"]
    np.testing.assert_array_equal(module.weights["constant_0"].array, np.arange(1024) + 0.5)
    assert len(girih.interpret(module, [])) == 4


def test_signature_names_and_donation() -> None:
    module = read_stablehlo(
        """func.func public @main(
             %arg0: tensor<2xf32> loc("params['w']"),
             %arg1: tensor<2xf32> {tf.aliasing_output = 1 : i32} loc("x"),
             %arg2: tensor<2xf32> {jax.buffer_donor = true} loc("y"))
             -> (tensor<2xf32> {jax.result_info = "result['out']"},
                 tensor<2xf32> {jax.result_info = "result.state"}) {
             return %arg0, %arg1 : tensor<2xf32>, tensor<2xf32>
           }"""
    )
    signature = module.signature
    assert signature is not None
    assert [a.path for a in signature.arguments] == ["params['w']", "x", "y"]
    assert [(a.donated, a.aliases) for a in signature.arguments] == [
        (False, None),
        (True, 1),
        (True, None),
    ]
    assert [r.path for r in signature.results] == ["output['out']", "output.state"]


def test_origins_are_the_users_lines() -> None:
    module = program(
        """%0 = stablehlo.add %a, %a : tensor<f32> loc("block/add"("model.py":41:7))
           return %0 : tensor<f32>""",
        "%a: tensor<f32>",
        "tensor<f32>",
    )
    assert only(module, "add").origin == (("model.py", 41, "block/add"),)


def test_all_blockers_are_reported_at_once() -> None:
    with pytest.raises(girih.ImportBlockers) as caught:
        program(
            """%0 = "stablehlo.frobnicate"(%a) : (tensor<f32>) -> tensor<f32> loc("m.py":3:1)
               %1 = stablehlo.custom_call @my_kernel(%0)
                 : (tensor<f32>) -> tensor<f32> loc("m.py":5:1)
               %2 = "other.op"(%1) : (tensor<f32>) -> memref<2xf32> loc("m.py":8:1)
               %3 = call @missing(%1) : (tensor<f32>) -> tensor<f32>
               return %1 : tensor<f32>""",
            "%a: tensor<f32>",
            "tensor<f32>",
        )
    found = {blocker.operation: blocker for blocker in caught.value.blockers}
    assert found["stablehlo.frobnicate"].place == "m.py:3"
    assert "my_kernel" in found["stablehlo.custom_call"].reason
    assert "type memref<2xf32> are not supported" in str(caught.value)
    assert "@missing" in found["func.call"].reason
    assert all(blocker.remedy for blocker in caught.value.blockers)
    assert "5 blockers" in str(caught.value)


def test_free_shapes_are_fixed_by_the_inputs() -> None:
    module = program(
        """%0 = call @inner(%x) : (tensor<4x3xf32>) -> tensor<?x6xf32>
           return %0 : tensor<?x6xf32>
         }
         func.func private @inner(%x: tensor<4x3xf32>) -> tensor<?x6xf32> {
           %size = stablehlo.get_dimension_size %x, dim = 0 : (tensor<4x3xf32>) -> tensor<i32>
           %two = stablehlo.constant dense<2> : tensor<i32>
           %half = stablehlo.divide %size, %two : tensor<i32>
           %cells = stablehlo.multiply %two, %two : tensor<i32>
           %a = stablehlo.reshape %half : (tensor<i32>) -> tensor<1xi32>
           %six = stablehlo.constant dense<6> : tensor<1xi32>
           %shape = stablehlo.concatenate %a, %six, dim = 0
             : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
           %y = stablehlo.dynamic_reshape %x, %shape
             : (tensor<4x3xf32>, tensor<2xi32>) -> tensor<?x6xf32>
           %i = stablehlo.dynamic_iota %shape, dim = 1 : (tensor<2xi32>) -> tensor<?x6xf32>
           %sum = stablehlo.add %y, %i : tensor<?x6xf32>
           %zero = stablehlo.constant dense<0.0> : tensor<f32>
           %rows = stablehlo.reduce(%sum init: %zero) applies stablehlo.add across dimensions = [1]
             : (tensor<?x6xf32>, tensor<f32>) -> tensor<?xf32>
           %b = stablehlo.dynamic_broadcast_in_dim %rows, %shape, dims = [0]
             : (tensor<?xf32>, tensor<2xi32>) -> tensor<?x6xf32>
           %ok = stablehlo.compare EQ, %cells, %size
             : (tensor<i32>, tensor<i32>) -> tensor<i1>
           stablehlo.custom_call @shape_assertion(%ok, %half) {error_message = "half is {0}"}
             : (tensor<i1>, tensor<i32>) -> ()
           return %b : tensor<?x6xf32>""",
        "%x: tensor<4x3xf32>",
        "tensor<?x6xf32>",
    )
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    expected = (x.reshape(2, 6) + np.arange(6)).sum(1, keepdims=True).repeat(6, 1)
    np.testing.assert_array_equal(girih.interpret(module, [x])[0], expected)
    assert not any(op.name.startswith(("dynamic_", "call", "divide")) for op in module.walk())


def test_a_shape_that_depends_on_data_stays_free() -> None:
    module = program(
        """%0 = stablehlo.dynamic_reshape %x, %n
             : (tensor<4xf32>, tensor<2xi32>) -> tensor<?x2xf32>
           return %0 : tensor<?x2xf32>""",
        "%x: tensor<4xf32>, %n: tensor<2xi32>",
        "tensor<?x2xf32>",
    )
    x = np.arange(4, dtype=np.float32)
    (result,) = girih.interpret(module, [x, np.array([2, 2], np.int32)])
    np.testing.assert_array_equal(result, x.reshape(2, 2))
    with pytest.raises(girih.UserError, match=r"dynamic_reshape: .* f32\[d0,2\], but \(1, 4\)"):
        girih.interpret(module, [x, np.array([1, 4], np.int32)])


def test_a_shape_assertion_that_fails_says_why() -> None:
    with pytest.raises(girih.UserError, match="size 3 is not even"):
        program(
            """%ok = stablehlo.constant dense<false> : tensor<i1>
               %n = stablehlo.constant dense<3> : tensor<i32>
               stablehlo.custom_call @shape_assertion(%ok, %n)
                 {error_message = "size {0} is not even"} : (tensor<i1>, tensor<i32>) -> ()
               return"""
        )


def test_tuples_are_taken_apart() -> None:
    module = program(
        """%0 = stablehlo.tuple %a, %b : tuple<tensor<f32>, tensor<2xf32>>
           %1 = stablehlo.tuple %0, %a : tuple<tuple<tensor<f32>, tensor<2xf32>>, tensor<f32>>
           %2 = stablehlo.get_tuple_element %1[0]
             : (tuple<tuple<tensor<f32>, tensor<2xf32>>, tensor<f32>>)
             -> tuple<tensor<f32>, tensor<2xf32>>
           %3 = call @second(%2) : (tuple<tensor<f32>, tensor<2xf32>>) -> tensor<2xf32>
           return %3 : tensor<2xf32>
         }
         func.func private @second(%t: tuple<tensor<f32>, tensor<2xf32>>) -> tensor<2xf32> {
           %0 = stablehlo.get_tuple_element %t[1]
             : (tuple<tensor<f32>, tensor<2xf32>>) -> tensor<2xf32>
           return %0 : tensor<2xf32>""",
        "%a: tensor<f32>, %b: tensor<2xf32>",
        "tensor<2xf32>",
    )
    assert [op.name for op in module.walk()] == ["call"]
    inputs = [np.float32(1), f32([2, 3])]
    np.testing.assert_array_equal(girih.interpret(module, inputs)[0], [2, 3])


def test_composites_become_their_operation_or_their_decomposition() -> None:
    module = program(
        """%0 = stablehlo.composite "chlo.erf" %a {decomposition = @slow, version = 1 : i32}
             : (tensor<2xf32>) -> tensor<2xf32>
           %1 = stablehlo.composite "mine.double" %0 {composite_attributes = {n = 2 : i32},
             decomposition = @double} : (tensor<2xf32>) -> tensor<2xf32>
           return %1 : tensor<2xf32>
         }
         func.func private @slow(%x: tensor<2xf32>) -> tensor<2xf32> {
           return %x : tensor<2xf32>
         }
         func.func private @double(%x: tensor<2xf32>) -> tensor<2xf32> {
           %0 = stablehlo.add %x, %x : tensor<2xf32>
           return %0 : tensor<2xf32>""",
        "%a: tensor<2xf32>",
        "tensor<2xf32>",
    )
    assert set(module.functions) == {"main", "double"}
    (result,) = girih.interpret(module, [f32([0, 0.5])])
    np.testing.assert_allclose(result, [0, 2 * 0.5204999], rtol=1e-5)


def test_a_choice_by_a_constant_is_made() -> None:
    module = program(
        """%which = stablehlo.constant dense<1> : tensor<i32>
           %0 = "stablehlo.case"(%which) ({
             %1 = "only.on_tpu"(%a) : (tensor<f32>) -> tensor<f32>
             stablehlo.return %1 : tensor<f32>
           }, {
             %2 = stablehlo.negate %a : tensor<f32>
             stablehlo.return %2 : tensor<f32>
           }) : (tensor<i32>) -> tensor<f32>
           return %0 : tensor<f32>""",
        "%a: tensor<f32>",
        "tensor<f32>",
    )
    assert [op.name for op in module.walk()] == ["constant", "negate"]


def test_shardings_are_kept() -> None:
    module = read_stablehlo(
        """module {
             sdy.mesh @mesh = <["x"=2]>
             func.func @main(%a: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
                 -> (tensor<4xf32> {mhlo.sharding = "{replicated}"}) {
               %0 = stablehlo.add %a, %a : tensor<4xf32>
               %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}]> : tensor<4xf32>
               %2 = stablehlo.negate %1 : tensor<4xf32>
               %3 = stablehlo.custom_call @Sharding(%2) {mhlo.sharding = "{devices=[2]0,1}"}
                 : (tensor<4xf32>) -> tensor<4xf32>
               return %3 : tensor<4xf32>
             }
           }"""
    )
    verify(module, HLO)
    assert module.meshes == {"mesh": Mesh((("x", 2),)), "gspmd": Mesh((("axis1", 2),))}
    cut = '<@mesh, [{"x"}]>'
    assert str(module.body.arguments[0].tensor.sharding) == cut
    constraints = [op for op in module.body.ops if op.name == "sharding_constraint"]
    assert [(op.stated, str(op.type.sharding)) for op in constraints] == [
        ("constraint", cut),
        ("constraint", '<@gspmd, [{"axis1"}]>'),
        ("result", "<@gspmd, [{}]>"),
    ]
    assert not module.notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func.func private @f() { return }", None),
        ("func.func @f() { return }", None),
        ("func.func @f() { return } func.func @g() { return }", "one function 'main'"),
        ("func.func private @main()", "one function 'main'"),
        ("func.func @main() { call @main() : () -> () return }", "calls itself"),
        ("module { module { } }", "not known at the top"),
    ],
)
def test_the_entry(text: str, message: str | None) -> None:
    if message is None:
        assert read_stablehlo(text).entry == "f"
    else:
        with pytest.raises(girih.UserError, match=message):
            read_stablehlo(text)


@pytest.mark.parametrize(
    "constant",
    [
        "dense<[1.0, 2.0]> : tensor<3xf32>",
        "dense<[1.0, nan]> : tensor<2xf32>",
        "dense<300> : tensor<i8>",
        "dense<(1.0)> : tensor<complex<f32>>",
        'dense<"0x00"> : tensor<2xf32>',
        'dense<"0xZZ"> : tensor<2xf32>',
        "dense<[1, x]> : tensor<2xi32>",
    ],
)
def test_constants_that_do_not_fit_are_named(constant: str) -> None:
    kind = constant.rpartition(" : ")[2]
    with pytest.raises(girih.UserError, match=r"model\.mlir|constant"):
        program(f"%0 = stablehlo.constant {constant}\nreturn %0 : {kind}", results=kind)


def test_text_bytes_and_artifact_give_one_result() -> None:
    from jaxlib.mlir.dialects import stablehlo
    from mlir_reference import mlir_context

    text = """func.func @main(%a: tensor<2x3xf32>) -> tensor<2xf32> {
      %0 = stablehlo.constant dense<0.0> : tensor<f32>
      %1 = stablehlo.exponential %a : tensor<2x3xf32>
      %2 = stablehlo.reduce(%1 init: %0) applies stablehlo.add across dimensions = [1]
        : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
      return %2 : tensor<2xf32>
    }"""
    with mlir_context():
        data = stablehlo.serialize_portable_artifact_str(text, "1.0.0")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    sources: list[Any] = [text, text.encode(), data, memoryview(data)]
    results = [girih.interpret(read_stablehlo(source), [x])[0] for source in sources]
    for result in results:
        np.testing.assert_array_equal(result, results[0])
    np.testing.assert_allclose(results[0], np.exp(x).sum(1), rtol=1e-6)


@pytest.mark.parametrize("rows", ["2", "?"])
def test_chlo_dynamic_reshape_is_a_reshape(rows: str) -> None:
    text = f"""func.func @main(%a: tensor<{rows}x6xf32>) -> tensor<3x4xf32> {{
      %shape = stablehlo.constant dense<[3, 4]> : tensor<2xi64>
      %0 = "chlo.dynamic_reshape"(%a, %shape)
        : (tensor<{rows}x6xf32>, tensor<2xi64>) -> tensor<3x4xf32>
      return %0 : tensor<3x4xf32>
    }}"""
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    module = girih.import_model(text, x)
    assert [op.name for op in module.body.ops] == ["constant", "reshape"]
    np.testing.assert_array_equal(girih.interpret(module, [x])[0], x.reshape(3, 4))
