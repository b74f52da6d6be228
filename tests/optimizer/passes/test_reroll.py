"""Equal layers become one function between passes, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

import girih
from girih.hlo.build import Builder
from girih.hlo.graph import Function, Module, Op, Origin, Value, Weight
from girih.hlo.parse import parse_module
from girih.hlo.text import canonical_op
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import INLINED, verify
from girih.optimizer.passes.reroll import CALL, Reroll, Unroll
from girih.optimizer.pipeline import run_pipeline, simplify_pipeline
from girih.options import Options

from .modules import f32, same

ROWS, WIDTH, LAYERS = 4, 8, 40
X = TensorType((ROWS, WIDTH), F32)
SQUARE = TensorType((WIDTH, WIDTH), F32)
ROW, SCALAR = TensorType((WIDTH,), F32), TensorType((), F32)
INPUTS = f32(np.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH))

Layer = Callable[[Builder, Value, Value, Value, Value], Value]


def layer(b: Builder, x: Value, w: Value, v: Value, y: Value) -> Value:
    """x + tanh(norm(x) @ w^T) * e^v; y is the program's own input."""
    total = b.reduce("add", b("multiply", x, x), b.constant(0.0, SCALAR), (1,))
    root = b("rsqrt", b("add", total, b.constant(np.full(ROWS, 1e-3, np.float32))))
    normal = b("multiply", x, b.broadcast(root, X.dims, (0,)))
    turned = b.transpose(w, (1, 0))
    product = b("dot_general", normal, turned,
                lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,))  # fmt: skip
    return b(
        "add", x, b("multiply", b("tanh", product), b.broadcast(b("exponential", v), X.dims, (1,)))
    )


def with_common_work(b: Builder, x: Value, w: Value, v: Value, y: Value) -> Value:
    """Each layer computes the same of the program's input, and then of its own values."""
    return layer(b, b("add", x, b("exponential", b("negate", y))), w, v, y)


def stack(
    one: Layer = layer,
    layers: int = LAYERS,
    first: Callable[[Builder, Value], Value] = lambda b, y: y,
    last: Callable[[Builder, Value], Value] = lambda b, x: x,
) -> Module:
    """`layers` equal layers with their own weights, between `first` and `last`."""
    generator = np.random.default_rng(0)
    b = Builder()
    (y,) = b.arguments([X])
    x, weights = first(b, y), {}
    for number in range(layers):
        with b.at((Origin("model.py", 10, f"layers.{number}"),)):
            made = []
            for kind, name in ((SQUARE, f"layers.{number}.w"), (ROW, f"layers.{number}.v")):
                array = (0.1 * generator.standard_normal(kind.dims)).astype(np.float32)
                weights[name] = Weight(name, array)
                made.append(b("weight", type=kind, weight=name))
            x = one(b, x, *made, y)
    return Module({"main": Function("main", b.region([last(b, x)]))}, weights=weights)


def calls(module: Module) -> list[Op]:
    return [op for op in module.body.ops if op.name == CALL]


def texts(module: Module) -> Counter[object]:
    """What a program computes, operation by operation, and where each comes from."""
    return Counter(
        (canonical_op(op), op.origin if len(op.origin) < 4 else "many layers")
        for op in module.body.ops
        if op.operands
    )


def values(module: Module) -> Counter[bytes]:
    return Counter(weight.array.tobytes() for weight in module.weights.values())


def both(module: Module) -> tuple[Module, Module]:
    """The simplified program, and the one that is simplified layer by layer."""
    pipeline = simplify_pipeline()
    plain = run_pipeline(module, pipeline, disable=("reroll",), check=True)
    return run_pipeline(module, pipeline, check=True), plain


def test_equal_layers_become_one_function() -> None:
    module = stack()
    rolled = Reroll()(module)
    verify(rolled, INLINED)
    assert set(rolled.functions) == {"main", "repeated_0"}
    assert rolled.functions["repeated_0"].attributes == {"copies": LAYERS - 2}
    assert len(calls(rolled)) == LAYERS - 2
    assert same(module, rolled, INPUTS)
    again = parse_module(str(rolled), lambda name, type: rolled.weights[name].array)
    assert str(again) == str(rolled)
    unrolled = Unroll()(rolled)
    assert texts(unrolled) == texts(module) and set(unrolled.weights) == set(module.weights)
    assert same(module, unrolled, INPUTS)


def test_a_rolled_program_stays_as_it_is() -> None:
    rolled = Reroll()(stack())
    assert Reroll()(rolled) is rolled
    module = stack(layers=3)
    assert Reroll()(module) is module and Unroll()(module) is module


@pytest.mark.parametrize("one", [layer, with_common_work])
def test_simplified_as_without_it(one: Layer) -> None:
    """Also what layers have in common, and weights that are derived of theirs."""
    rolled, plain = both(stack(one))
    assert texts(rolled) == texts(plain)
    assert any("#exponential" in name for name in rolled.weights)
    assert values(rolled) == values(plain)
    assert same(rolled, plain, INPUTS)


def test_what_is_known_around_the_layers_is_carried_through_them() -> None:
    """The last row alone is needed, so every layer computes one row; or all rows are equal."""

    def one_row(b: Builder, x: Value) -> Value:
        bounds = {"start_indices": (3, 0), "limit_indices": (4, WIDTH), "strides": (1, 1)}
        return b("slice", x, **bounds)

    def dense(b: Builder, x: Value, w: Value, v: Value, y: Value) -> Value:
        product = b("dot_general", x, w,
                    lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,))  # fmt: skip
        shift = b.broadcast(v, X.dims, (1,))
        return b("logistic", b("tanh", b("exponential", b("sine", b("add", product, shift)))))

    rolled, plain = both(stack(dense, last=one_row))
    assert texts(rolled) == texts(plain) and same(rolled, plain, INPUTS)
    assert all(op.result.dims[0] == 1 for op in rolled.body.ops if op.name == "dot_general")

    rolled, plain = both(stack(first=lambda b, y: b.constant(np.zeros(X.dims, np.float32))))
    assert same(rolled, plain, INPUTS)
    assert len(rolled.body.ops) == len(plain.body.ops)


def test_layers_are_cut_where_nothing_is_lost() -> None:
    """A layer ends in a negation that the next one begins with: they cancel out."""

    def turned(b: Builder, x: Value, w: Value, v: Value, y: Value) -> Value:
        return b("negate", layer(b, b("negate", x), w, v, y))

    rolled, plain = both(stack(turned))
    assert texts(rolled) == texts(plain)
    assert sum(op.name == "negate" for op in rolled.body.ops) <= 2


def test_notes_of_functions_say_for_how_many_parts_they_stand() -> None:
    rolled, _ = both(stack())
    assert any(note.startswith(f"in {LAYERS - 2} equal parts each: ") for note in rolled.notes)


def test_the_same_plan_and_the_same_bits_on_the_cpu() -> None:
    module = stack()
    options = [Options(cache="off"), Options(cache="off", disable=("reroll",))]
    rolled, plain = (girih.compile(module, options=one) for one in options)
    assert np.array_equal(rolled(INPUTS)[0], plain(INPUTS)[0])
    assert len(rolled.plan.steps) == len(plain.plan.steps)
    assert len(rolled.plan.kernels) == len(plain.plan.kernels)
    assert rolled.memory.arena_bytes == plain.memory.arena_bytes
    sizes = [sum(w.nbytes for w in one.parts.weights.values()) for one in (rolled, plain)]
    assert sizes[0] == sizes[1]
