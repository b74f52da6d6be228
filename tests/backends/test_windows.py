"""Windows over padding: StableHLO's interpreter, ours, and every target give the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
from girih.frontends.stablehlo.write import write_text
from girih.hlo.build import build_region
from girih.hlo.graph import Dense, Function, Module, Value
from girih.hlo.interpret import interpret
from girih.hlo.types import BF16, F32, I32, ElementType, TensorType
from girih.optimizer.passes.decompose import Decompose

DIMS = (4, 6)
WINDOWS: dict[str, dict[str, Any]] = {
    "prefixes": {"window_dimensions": (1, 6), "padding": ((0, 0), (5, 0))},
    "suffixes": {"window_dimensions": (1, 6), "padding": ((0, 0), (0, 5))},
    "prefixes of columns": {"window_dimensions": (4, 1), "padding": ((3, 0), (0, 0))},
    "dilated": {
        "window_dimensions": (2, 3), "padding": ((1, 1), (2, 1)), "base_dilations": (2, 1),
    },
    "large": {
        "window_dimensions": (4, 5), "padding": ((3, 1), (2, 3)), "base_dilations": (1, 2),
        "window_dilations": (2, 1),
    },
}  # fmt: skip


def program(
    window: str, element: ElementType, name: str, start: int | None, pairs: bool = False
) -> Module:
    """A reduce_window; its initial value is an input where `start` is None. With `pairs` the body
    keeps a second value, the last one, beside the combined first."""
    count = 2 if pairs else 1
    scalar, whole = TensorType((), element), TensorType(DIMS, element)

    def combine(b: Any, *values: Value) -> list[Value]:
        return [b(name, values[0], values[count]), *values[count + 1 :]]

    body = build_region([scalar] * (2 * count), combine)

    def build(b: Any, *values: Value) -> Any:
        inits = list(values[count:]) or [b.constant(start, scalar)] * count
        return b.op("reduce_window", [*values[:count], *inits], WINDOWS[window], [body]).results

    kinds = [whole] * count + [scalar] * (count if start is None else 0)
    return Module({"main": Function("main", build_region(kinds, build))})


def inputs(element: ElementType, start: int | None, count: int = 1) -> list[Any]:
    values = np.random.default_rng(3).integers(-3, 4, (count, *DIMS)).astype(element.dtype)
    return [*values, *([np.array(2, element.dtype)] * count if start is None else [])]


CASES = [
    (window, element, name, start)
    for window in WINDOWS
    for element, name, start in [
        (F32, "add", 0), (F32, "add", 2), (F32, "multiply", None), (F32, "maximum", 1),
        (I32, "add", None), (I32, "multiply", 1), (I32, "xor", 5), (I32, "minimum", None),
    ]
]  # fmt: skip


@pytest.mark.parametrize(("window", "element", "name", "start"), CASES, ids=str)
def test_every_place_of_the_padding_is_an_initial_value(
    window: str, element: ElementType, name: str, start: int | None
) -> None:
    module, arrays = program(window, element, name, start), inputs(element, start)
    (wanted,) = interpret(module, arrays)
    np.testing.assert_array_equal(reference(module, arrays)[0], wanted)
    for target in ("cpu", "ptx-sim"):
        (got,) = girih.compile(module, target=target)(*arrays)
        np.testing.assert_array_equal(np.asarray(got), wanted, err_msg=target)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("start", [3, None])
def test_bodies_of_two_values(window: str, start: int | None) -> None:
    """The last value is not commutative: padding and elements are combined in their order."""
    module = program(window, I32, "add", start, pairs=True)
    arrays = inputs(I32, start, 2)
    wanted = interpret(module, arrays)
    for target in ("cpu", "ptx-sim"):
        for got, value in zip(girih.compile(module, target=target)(*arrays), wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(got), value, err_msg=target)


@pytest.mark.parametrize(
    ("window", "pad"),
    [("prefixes", 0), ("prefixes", 1), ("prefixes of columns", 1), ("suffixes", 0)],
)  # fmt: skip
def test_bodies_that_do_not_commute_keep_the_order(window: str, pad: int) -> None:
    """x, y -> y where it is not 0, else x: the last number of a window that is not 0."""
    scalar = TensorType((), I32)
    zero = Dense.splat(0, scalar)

    def last(b: Any, x: Value, y: Value) -> list[Value]:
        return [b("select", b.compare("EQ", y, b.constant(zero)), x, y)]

    body = build_region([scalar] * 2, last)

    def build(b: Any, x: Value) -> Any:
        return b.op("reduce_window", [x, b.constant(pad, scalar)], WINDOWS[window], [body]).results

    module = Module({"main": Function("main", build_region([TensorType(DIMS, I32)], build))})
    arrays = inputs(I32, 0)
    (wanted,) = interpret(module, arrays)
    for target in ("cpu", "ptx-sim"):
        (got,) = girih.compile(module, target=target)(*arrays)
        np.testing.assert_array_equal(np.asarray(got), wanted, err_msg=target)


@pytest.mark.parametrize(
    ("name", "start", "changes"),
    [("add", 0, False), ("add", 2, True), ("add", None, True), ("multiply", 1, False),
     ("maximum", None, False), ("xor", 5, True)],
)  # fmt: skip
def test_only_padding_that_adds_something_is_written_out(
    name: str, start: int | None, changes: bool
) -> None:
    module = program("prefixes", I32, name, start)
    after = Decompose()(module)
    assert (after is not module) == changes
    assert any(op.name == "pad" for op in after.walk()) == changes


def test_sums_in_a_wider_type_stay_running_totals() -> None:
    wide, narrow = TensorType((), F32), TensorType((), BF16)
    body = build_region([wide] * 2, lambda b, x, y: [b("add", x, y)])

    def build(b: Any, x: Value) -> Any:
        operands = [x, b.constant(0, narrow)]
        return b.op("reduce_window", operands, WINDOWS["suffixes"], [body]).results

    module = Module({"main": Function("main", build_region([TensorType(DIMS, BF16)], build))})
    assert Decompose()(module) is module
    arrays = inputs(BF16, 0)
    (wanted,) = interpret(module, arrays)
    for target in ("cpu", "ptx-sim"):
        (got,) = girih.compile(module, target=target)(*arrays)
        np.testing.assert_array_equal(np.asarray(got), wanted, err_msg=target)


def reference(module: Module, arrays: list[Any]) -> list[Any]:
    """What StableHLO's own interpreter computes."""
    pytest.importorskip("jax")
    from jax._src.interpreters import mlir as lowering  # a context with all dialects
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with lowering.make_ir_context():
        parsed = ir.Module.parse(write_text(module).text)
        make: Any = ir.DenseElementsAttr.get
        return [
            np.array(x)
            for x in stablehlo.eval_module(parsed, [make(np.asarray(a)) for a in arrays])
        ]
