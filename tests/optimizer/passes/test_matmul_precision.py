"""The matmul-precision pass: what it narrows, what it leaves, and that it says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import Builder, build_region
from girih.hlo.errors import UserError
from girih.hlo.graph import Function, Module, Weight
from girih.hlo.interpret import interpret
from girih.hlo.precision import may_use_tf32
from girih.hlo.types import BF16, F32, TensorType
from girih.hlo.verify import verify
from girih.optimizer.passes.dce import Dce
from girih.optimizer.passes.matmul_precision import MatmulPrecision
from girih.options import Options

RANDOM = np.random.default_rng(8)


def dense(depth: int = 48, **attributes: Any) -> Module:
    """tanh(x @ transpose(w)) with a weight."""
    b = Builder()
    (x,) = b.arguments([TensorType((6, depth), F32)])
    w = b("weight", type=TensorType((20, depth), F32), weight="w")
    y = b(
        "dot_general", x, b.transpose(w, (1, 0)), lhs_contracting_dimensions=(1,),
        rhs_contracting_dimensions=(0,), **attributes,
    )  # fmt: skip
    data = RANDOM.standard_normal((20, depth)).astype(np.float32)
    module = Module({"main": Function("main", b.region([b("tanh", y)]))})
    return module.with_weights({"w": Weight("w", data)})


def narrowed(module: Module) -> Module:
    after = MatmulPrecision("bfloat16")(module)
    verify(after)
    return after


def operands(module: Module) -> list[str]:
    return [v.element.name for op in module.walk() if op.name == "dot_general" for v in op.operands]


def test_operands_become_bf16_and_the_weight_is_stored_so() -> None:
    module = dense()
    after = narrowed(module)
    assert operands(after) == ["bf16", "bf16"]
    assert after.weights["w#bf16"].type.element is BF16
    assert "1 contractions" in after.notes[0]


def test_the_numbers_are_those_of_rounded_operands() -> None:
    module = dense()
    x = RANDOM.standard_normal((6, 48)).astype(np.float32)
    rounded = [a.astype(BF16.dtype).astype(np.float32) for a in (x, module.weights["w"].array)]
    (found,) = interpret(narrowed(module), [x])
    np.testing.assert_allclose(found, np.tanh(rounded[0] @ rounded[1].T), atol=1e-5)
    assert np.abs(found - interpret(module, [x])[0]).max() > 1e-4


@pytest.mark.parametrize(
    "module",
    [
        dense(1),
        dense(precision_config=("HIGHEST", "HIGHEST")),
    ],
    ids=["one-product", "highest"],
)
def test_left_as_it_is(module: Module) -> None:
    assert narrowed(module) is module


def test_float32_changes_nothing() -> None:
    module = dense()
    assert MatmulPrecision("float32")(module) is module


def test_a_value_is_narrowed_once_before_its_views() -> None:
    b = Builder()
    (x,) = b.arguments([TensorType((8, 8), F32)])
    wide = b("exponential", x)
    y = b(
        "dot_general", wide, b.transpose(wide, (1, 0)), lhs_contracting_dimensions=(1,),
        rhs_contracting_dimensions=(0,),
    )  # fmt: skip
    after = narrowed(Module({"main": Function("main", b.region([y]))}))
    converts = [op for op in after.walk() if op.name == "convert"]
    assert [op.operands[0] for op in converts] == [
        op.result for op in after.walk() if op.name == "exponential"
    ]


def test_loops_are_reached() -> None:
    b = Builder()
    start = b.arguments([TensorType((4, 4), F32), TensorType((), girih.hlo.types.I32)])
    kinds = [value.type for value in start]
    check, step = Builder(), Builder()
    _, count = check.arguments(kinds)
    limit = check.constant(3, count.tensor)
    condition = check.region([check("compare", count, limit, comparison_direction="LT")])
    state, count = step.arguments(kinds)
    product = step(
        "dot_general", state, state, lhs_contracting_dimensions=(1,),
        rhs_contracting_dimensions=(0,),
    )  # fmt: skip
    one = step.constant(1, count.tensor)
    body = step.region([product, step("add", count, one)])
    loop = b.op("while", list(start), {}, [condition, body], kinds)
    after = narrowed(Module({"main": Function("main", b.region(list(loop.results)))}))
    assert operands(after) == ["bf16", "bf16"]


def test_the_plan_says_so_and_strict_refuses() -> None:
    x = RANDOM.standard_normal((6, 48)).astype(np.float32)
    program = girih.compile(dense(), options=Options(matmul_precision="bfloat16"))
    assert any("bfloat16" in note for note in program.plan.notes)
    assert "bfloat16" in str(program.profile(x))
    with pytest.raises(UserError, match="bfloat16"):
        girih.compile(dense(), options=Options(matmul_precision="bfloat16", strict=True))


ALGORITHM = {
    "accumulation_type": "f32", "lhs_component_count": 1, "rhs_component_count": 1,
    "allow_imprecise_accumulation": False,
}  # fmt: skip


def asking(element: str, products: int = 1) -> Module:
    """A product whose source asks for operands of an element type."""
    facts = {"lhs_precision_type": element, "rhs_precision_type": element}
    return dense(**facts, **ALGORITHM, num_primitive_operations=products)


def marks(module: Module) -> list[bool]:
    return [may_use_tf32(op) for op in module.walk() if op.name == "dot_general"]


@pytest.mark.parametrize(
    ("module", "marked"),
    [
        (dense(), True),
        (dense(precision_config=("HIGH", "HIGH")), True),
        (dense(precision_config=("HIGHEST", "HIGHEST")), False),
        (dense(1), False),
        (asking("f32"), False),
        (asking("tf32", 3), False),
        (asking("tf32"), True),
    ],
    ids=["default", "high", "highest", "one-product", "f32", "tf32-x3", "tf32"],
)
def test_tensorfloat32_is_a_mark(module: Module, marked: bool) -> None:
    """No value changes its type; what the source asks for goes first."""
    after = MatmulPrecision("tensorfloat32")(module)
    verify(after)
    assert marks(after) == [marked] and operands(after) == ["f32", "f32"]
    known = after is module
    assert known or "1 contractions may read operands rounded to tensorfloat32" in after.notes[0]


def test_an_export_says_it_too() -> None:
    text = girih.export_stablehlo(MatmulPrecision("tensorfloat32")(dense()), text=True)
    assert marks(girih.import_model(text)) == [True]


def test_the_source_may_ask_for_bf16_operands() -> None:
    for precision in ("float32", "tensorfloat32"):
        after = MatmulPrecision(precision)(asking("bf16"))
        assert operands(after) == ["bf16", "bf16"] and not after.notes
    assert operands(MatmulPrecision("float32")(asking("bf16", 3))) == ["f32", "f32"]


def test_targets_without_tensorfloat32_read_float32() -> None:
    x = RANDOM.standard_normal((6, 48)).astype(np.float32)
    module = dense()
    exact = girih.compile(module)(x)
    program = girih.compile(module, options=Options(matmul_precision="tensorfloat32"))
    np.testing.assert_array_equal(program(x), exact)
    assert any("other targets read float32" in note for note in program.plan.notes)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="float32, tensorfloat32, bfloat16"):
        Options(matmul_precision="int3")


def pooled(*, kind: str = "maximum", also: bool = False) -> Module:
    """A convolution of the largest of windows; `also`: these are results besides."""
    b = Builder()
    (x,) = b.arguments([TensorType((1, 8, 8, 4), F32)])
    w = b("weight", type=TensorType((8, 4, 3, 3), F32), weight="w")
    start = b.constant(-np.inf if kind == "maximum" else 0.0, TensorType((), F32))
    body = build_region([start.type] * 2, lambda inner, p, q: [inner(kind, p, q)])
    windows = b(
        "reduce_window", x, start, regions=(body,), window_dimensions=(1, 2, 2, 1),
        window_strides=(1, 2, 2, 1),
    )  # fmt: skip
    y = b(
        "convolution", windows, w, input_batch_dimension=0, input_feature_dimension=3,
        input_spatial_dimensions=(1, 2), kernel_output_feature_dimension=0,
        kernel_input_feature_dimension=1, kernel_spatial_dimensions=(2, 3),
        output_batch_dimension=0, output_feature_dimension=3, output_spatial_dimensions=(1, 2),
        feature_group_count=1, batch_group_count=1,
    )  # fmt: skip
    data = RANDOM.standard_normal((8, 4, 3, 3)).astype(np.float32)
    results = [y, windows] if also else [y]
    module = Module({"main": Function("main", b.region(results))})
    return module.with_weights({"w": Weight("w", data)})


def window_elements(module: Module) -> list[str]:
    walked = Dce()(module).walk()
    return [op.type.element.name for op in walked if op.name == "reduce_window"]


def test_the_largest_of_windows_is_taken_of_rounded_elements() -> None:
    module = pooled()
    after = narrowed(module)
    assert window_elements(after) == ["bf16"]
    x = RANDOM.standard_normal((1, 8, 8, 4)).astype(np.float32)
    x[0, 1, 1, 0], x[0, 3, 2, 1] = np.nan, -np.inf
    kept = MatmulPrecision("bfloat16")(pooled(also=True))
    kept = kept.with_weights({**kept.weights, **after.weights})
    np.testing.assert_array_equal(interpret(after, [x])[0], interpret(kept, [x])[0])


@pytest.mark.parametrize("module", [pooled(kind="add"), pooled(also=True)], ids=["sum", "read"])
def test_other_windows_stay(module: Module) -> None:
    assert window_elements(narrowed(module)) == ["f32"]
