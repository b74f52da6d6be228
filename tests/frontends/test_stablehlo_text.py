"""The StableHLO text reader: both spellings, every attribute form, places in errors, bounds."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from mlir_reference import flat_attributes, mlir_context, mlir_facts, tree_facts

import girih
from girih.frontends import tree
from girih.frontends.stablehlo.literals import read_elements
from girih.frontends.stablehlo.locations import Locations
from girih.frontends.stablehlo.text import parse_attribute, parse_type, read_text

DATA = Path(__file__).parents[1] / "data" / "readers"
PRETTY = (DATA / "pretty.mlir").read_text()
GENERIC = (DATA / "pretty_generic.mlir").read_text()


def test_pretty_and_generic_spelling_are_one_program() -> None:
    pretty, generic = read_text(PRETTY), read_text(GENERIC)
    assert tree_facts(pretty) == tree_facts(generic)
    assert list(flat_attributes(pretty)) == list(flat_attributes(generic))


def test_agrees_with_jaxlib() -> None:
    from jaxlib.mlir import ir

    with mlir_context(), ir.Location.unknown():
        for text in (PRETTY, GENERIC):
            assert tree_facts(read_text(text)) == mlir_facts(ir.Module.parse(text))


def test_agrees_with_jaxlib_on_lowered_functions() -> None:
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp
    from jaxlib.mlir import ir

    def model(w, x):  # noqa: ANN001, ANN202
        def step(carry, row):  # noqa: ANN001, ANN202
            return jnp.tanh(carry @ w + row), carry.sum()

        y, sums = jax.lax.scan(step, x, w)
        y = jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, y))[1]
        image = jax.lax.conv(y[None, None], w[None, None, :2, :2], (1, 1), "SAME")
        return jnp.sort(y), jax.nn.softmax(y)[jnp.array([1, 0])], image, y.at[1].add(sums)

    square = np.ones((4, 4), np.float32)
    lowered = jax.jit(model).lower(square, square).compiler_ir("stablehlo")
    for generic in (False, True):
        for debug in (False, True):
            text = lowered.operation.get_asm(print_generic_op_form=generic, enable_debug_info=debug)
            with mlir_context(), ir.Location.unknown():
                assert tree_facts(read_text(text)) == mlir_facts(ir.Module.parse(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dense<[1, -2]> : tensor<2xi32>", np.array([1, -2], np.int32)),
        ("dense<7> : tensor<2x2xi64>", np.full((2, 2), 7)),
        ("dense<true> : tensor<3xi1>", np.ones(3, bool)),
        ("dense<[[true, false]]> : tensor<1x2xi1>", np.array([[True, False]])),
        ("dense<[255, -1]> : tensor<2xi8>", np.array([-1, -1], np.int8)),
        ("dense<255> : tensor<ui8>", np.array(255, np.uint8)),
        ("dense<18446744073709551615> : tensor<ui64>", np.array(2**64 - 1, np.uint64)),
        ("dense<-8> : tensor<2xi4>", np.full(2, -8)),
        ("dense<[1.5, -2.0e3]> : tensor<2xf32>", np.array([1.5, -2000], np.float32)),
        ("dense<[0x7F800000, 1.0]> : tensor<2xf32>", np.array([np.inf, 1], np.float32)),
        ("dense<0x7FC0> : tensor<bf16>", np.array(np.nan, np.float32)),
        ("dense<0.1> : tensor<f16>", np.array(0.1, np.float16)),
        ("dense<(1.0, -2.5)> : tensor<2xcomplex<f32>>", np.full(2, 1 - 2.5j, np.complex64)),
        ('dense<"0x0000803F000000C0"> : tensor<2xf32>', np.array([1, -2], np.float32)),
        ('dense<"0x0000803F"> : tensor<3xf32>', np.ones(3, np.float32)),
        ('dense<"0x05"> : tensor<8xi1>', np.array([1, 0, 1, 0, 0, 0, 0, 0], bool)),
        ('dense<"0x0100"> : tensor<2xi1>', np.array([True, False])),
        ("dense<> : tensor<0x3xf32>", np.zeros((0, 3), np.float32)),
    ],
)  # fmt: skip
def test_constants(text: str, expected: np.ndarray) -> None:
    found = read_elements(parse_attribute(text))
    assert found.shape == expected.shape
    wide = found.astype(np.float64) if found.dtype.kind == "V" else found
    np.testing.assert_array_equal(wide.astype(expected.dtype), expected)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("array<i64: 1, 2>", (1, 2)),
        ("array<i64>", ()),
        ("array<i1: true, false>", (True, False)),
        ("array<f32: 1.5>", (1.5,)),
        ("[1 : i32, true]", (tree.Integer(1, "i32"), True)),
        ('{a = "x\\22\\0A", b}', {"a": 'x"\n', "b": True}),
        ("@outer::@inner", "outer::@inner"),
        ("#stablehlo<comparison_direction LT>", "LT"),
        ("#stablehlo.result_accuracy_mode<HIGHEST>", "HIGHEST"),
        ("1.0e-3 : f32", tree.Float(float(np.float32(1e-3)), "f32")),
        ("0x7F800000 : f32", tree.Float(float("inf"), "f32")),
        ("tensor<2x?xf32>", tree.Tensor((2, tree.DYNAMIC), "f32")),
        ("#other.thing<a = [1, {b}], \">\">", tree.Opaque("other.thing", '<a = [1, {b}], ">">')),
        ("affine_map<(d0) -> (d0)>", tree.Opaque("affine_map", "<(d0) -> (d0)>")),
    ],
)  # fmt: skip
def test_attributes(text: str, value: object) -> None:
    assert parse_attribute(text) == value


def test_quantized_types_compare_by_meaning() -> None:
    plain = parse_type("tensor<2x!quant.uniform<i8:f32, 1.0:17>>")
    spelled = parse_type("tensor<2x!quant.uniform<i8<-128:127>:f32, 1.000000e+00:17>>")
    assert plain == spelled
    per_axis = parse_type("tensor<2x!quant.uniform<u8:f32:0, {0.5:128, 2.0}>>")
    assert isinstance(per_axis, tree.Tensor)
    assert per_axis.element == tree.Quantized("ui8", "f32", 0, (0.5, 2.0), (128, 0), 0, 255)


def test_aliases_and_resources_may_follow_their_use() -> None:
    document = read_text(
        """
        func.func @main() -> !t {
          %0 = stablehlo.constant dense_resource<blob> : !t
          return %0 : !t
        }
        !t = tensor<2xf32>
        {-# dialect_resources: { builtin: { blob: "0x040000000000803F00000040" } } #-}
        """.replace("\n        ", "\n")
    )
    constant = document.module.regions[0].operations[0].regions[0].operations[0]
    np.testing.assert_array_equal(read_elements(constant.attributes["value"]), [1, 2])


def test_locations_name_the_users_line() -> None:
    lines = [
        "func.func @main(%x: tensor<f32> loc(\"state['w']\")) -> tensor<f32> {",
        "  %0 = stablehlo.add %x, %x : tensor<f32> loc(#loc5)",
        '  %1 = stablehlo.add %0, %0 : tensor<f32> loc(callsite("a.py":1:2 at "b.py":3:4))',
        '  %2 = stablehlo.add %1, %1 : tensor<f32> loc(fused["c.py":5:6 to :9, "d.py":7:8])',
        "  return %2 : tensor<f32>",
        "}",
        '#loc1 = loc("/x/site-packages/jax/_src/numpy.py":9:9)',
        '#loc2 = loc("model.py":41:7)',
        '#loc3 = loc("layer"(#loc2))',
        "#loc4 = loc(callsite(#loc1 at #loc3))",
        '#loc5 = loc("jit(f)/dense/add"(#loc4))',
    ]
    document = read_text("\n".join(lines))
    locations = Locations(document)
    (function,) = document.module.regions[0].operations
    assert locations.name(function.regions[0].arguments[0].location) == "state['w']"
    places = [locations.place(op.location) for op in function.regions[0].operations]
    assert places == ["model.py:41", "a.py:1", "c.py:5", "<text>:5"]
    (origin,) = locations.origins("#loc5")
    assert origin == ("model.py", 41, "jit(f)/dense/add")


def test_deep_location_chains_are_no_recursion() -> None:
    lines = ["func.func @main() {", "  return loc(#loc3000)", "}", '#loc0 = loc("m.py":8:1)']
    lines += [f'#loc{n} = loc("n{n}"(#loc{n - 1}))' for n in range(1, 3001)]
    document = read_text("\n".join(lines))
    (function,) = document.module.regions[0].operations
    assert Locations(document).origins(function.regions[0].operations[0].location)


BROKEN = [
    ("%0 = stablehlo.add %x, %y : tensor<f32>", "'%y' is not defined here"),
    ("%0 = stablehlo.add %x, %x : tensor<2xf32>", "%x is tensor<f32>, used as tensor<2xf32>"),
    ("%0 = stablehlo.add %x %x tensor<f32>", "unexpected '<'"),
    ("%0:2 = stablehlo.add %x, %x : tensor<f32>", "2 names for 1 results of stablehlo.add"),
    ("%0 = frobnicate %x : tensor<f32>", "unknown operation 'frobnicate'"),
    ("%0 = stablehlo.add %x, %x extra : tensor<f32>", "unexpected 'extra'"),
    ('%0 = "stablehlo.add"(%x) : (tensor<f32>, f32) -> f32', "1 operands but 2 operand types"),
    ('%0 = "stablehlo.add(%x)', "a string is not closed"),
    ("%0 = stablehlo.constant dense<1.0 : tensor<f32>> : 5", "expected ':'"),
    ("%0 = stablehlo.constant dense<1> : i32", "needs a tensor type"),
    ("cf.br ^bb1", "unexpected '^'"),
    ("%0 = stablehlo.add %x, %x {a = #missing} : tensor<f32>", "'#missing' is not defined"),
]


@pytest.mark.parametrize(("line", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_errors_show_line_and_snippet(line: str, message: str) -> None:
    text = f"module {{\n  func.func @main(%x: tensor<f32>) {{\n    {line}\n    return\n  }}\n}}"
    with pytest.raises(girih.UserError) as caught:
        read_text(text, "model.mlir")
    report = str(caught.value)
    assert message in report
    assert report.startswith("model.mlir:3: ")
    assert line[:20] in report and report.endswith("^")


@pytest.mark.parametrize(
    "text",
    [
        "module {" * 5000,
        "#a = [" * 5000,
        "func.func @f() attributes {a = " + "[" * 5000,
        "func.func @f(%x: " + "tuple<" * 5000,
        "func.func @f() attributes {a = #n<" + "<" * 100000,
        "#a = #b\n#b = #a\nfunc.func @f() attributes {x = #a} { return }",
        "func.func @f(%x: tensor<99999999999999999999999xf32>) { return }",
        "func.func @f() { %0:999999999 = stablehlo.add }",
        " " * 200000 + "\n" * 200000 + "?",
        "%" * 100000,
        "",
    ],
    ids=["regions", "aliases", "arrays", "types", "brackets", "cycle", "dimension", "results",
         "space", "percents", "empty"],
)  # fmt: skip
def test_hostile_text_is_refused_quickly(text: str) -> None:
    started = time.process_time()
    with pytest.raises(girih.UserError):
        read_text(text)
    assert time.process_time() - started < 60  # a hang, not a speed


def test_shared_aliases_do_not_explode() -> None:
    lines = ["#a0 = [1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"#a{n} = [{', '.join([f'#a{n - 1}'] * 8)}]" for n in range(1, 30)]
    lines += ["func.func @f() attributes {x = #a29} { return }"]
    with pytest.raises(girih.UserError, match="parts"):
        read_text("\n".join(lines))
