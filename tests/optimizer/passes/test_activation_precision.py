"""The activation-precision pass: what is rounded where kernels hand it on, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import Builder
from girih.hlo.errors import UserError
from girih.hlo.graph import Function, Module, Value, Weight
from girih.hlo.interpret import interpret
from girih.hlo.types import BF16, F32, TensorType
from girih.hlo.verify import verify
from girih.optimizer.passes.activation_precision import ActivationPrecision
from girih.optimizer.passes.fuse import Fuse
from girih.options import Options

RANDOM = np.random.default_rng(17)
SIZE = 48


def network(body: Callable[..., Value]) -> Module:
    """body(builder, x, dense), where dense(value) is a product with a weight of its own."""
    b = Builder()
    (x,) = b.arguments([TensorType((SIZE, SIZE), F32)])
    weights: dict[str, Weight] = {}

    def dense(value: Value) -> Value:
        name = f"w{len(weights)}"
        data = RANDOM.standard_normal((SIZE, SIZE)).astype(np.float32) / 8
        weights[name] = Weight(name, data)
        w = b("weight", type=TensorType((SIZE, SIZE), F32), weight=name)
        return product(b, value, w)

    result = body(b, x, dense)
    return Module({"main": Function("main", b.region([result]))}).with_weights(weights)


def product(b: Builder, left: Value, right: Value) -> Value:
    return b(
        "dot_general", left, right, lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,)
    )


def residual(b: Builder, x: Value, dense: Callable[[Value], Value]) -> Value:
    """Two layers; the first one's result is read by the second, and added to it."""
    first = b("tanh", dense(x))
    return b("add", b("tanh", dense(first)), first)


def fused(module: Module) -> Module:
    return Fuse()(module)


def rounded(module: Module) -> Module:
    after = ActivationPrecision()(fused(module))
    verify(after)
    return after


def stored(module: Module) -> list[Any]:
    """The element of every value that one fusion gives."""
    return [v.element for op in module.body.ops if op.name == "fusion" for v in op.results]


def bf16(x: Any) -> Any:
    return np.asarray(x).astype(BF16.dtype).astype(np.float32)


def test_what_a_layer_hands_on_is_bf16_and_the_result_is_not() -> None:
    module = network(residual)
    after = rounded(module)
    assert stored(fused(module)) == [F32, F32]
    assert stored(after) == [BF16, F32]
    assert "1 values" in after.notes[0]
    x = RANDOM.standard_normal((SIZE, SIZE)).astype(np.float32)
    w = [module.weights[f"w{n}"].array for n in range(2)]
    first = bf16(np.tanh(x @ w[0]))
    (found,) = interpret(after, [x])
    np.testing.assert_allclose(found, np.tanh(first @ w[1]) + first, rtol=1e-5, atol=1e-5)


def test_a_value_that_was_given_in_both_types_is_given_once() -> None:
    def body(b: Builder, x: Value, dense: Callable[[Value], Value]) -> Value:
        first = b("tanh", dense(x))
        narrow = b.convert(first, BF16)
        again = product(b, narrow, narrow)
        return b("add", b.convert(again, F32), first)

    after = rounded(network(body))
    first = next(op for op in after.body.ops if op.name == "fusion")
    assert [v.element for v in first.results] == [BF16]


def test_products_of_two_activations_stay() -> None:
    """What an attention compares with its maximum is no layer's result."""

    def body(b: Builder, x: Value, dense: Callable[[Value], Value]) -> Value:
        del dense
        scores = product(b, x, x)
        return b("add", product(b, scores, x), product(b, b("tanh", scores), x))

    module = network(body)
    assert not rounded(module).notes and set(stored(rounded(module))) == {F32}


def test_what_a_loop_carries_and_what_others_read_stays() -> None:
    def body(b: Builder, x: Value, dense: Callable[[Value], Value]) -> Value:
        first = b("tanh", dense(x))
        attributes = {"dimension": 0, "is_stable": True}
        (ordered,) = b.op("sort", [first], attributes, [_less(first)], [first.type]).results
        return b("add", ordered, first)

    after = rounded(network(body))
    assert stored(after)[0] is F32


def _less(value: Value) -> Any:
    b = Builder()
    scalar = value.tensor.with_dims(())
    left, right = b.arguments([scalar, scalar])
    return b.region([b("compare", left, right, comparison_direction="LT")])


def test_a_view_between_kernels_is_of_what_is_stored() -> None:
    def body(b: Builder, x: Value, dense: Callable[[Value], Value]) -> Value:
        first = b("tanh", dense(x))
        spread = b.reshape(first, (4, SIZE // 4, SIZE))
        zero = b.constant(0, TensorType((), F32))
        adding = Builder()
        left, right = adding.arguments([zero.type, zero.type])
        add = adding.region([adding("add", left, right)])
        means = b("reduce", spread, zero, regions=(add,), dimensions=(1,))
        return b("add", product(b, means, first), product(b, means, x))

    module = network(body)
    after = rounded(module)
    x = RANDOM.standard_normal((SIZE, SIZE)).astype(np.float32)
    first = bf16(np.tanh(x @ module.weights["w0"].array))
    means = first.reshape(4, SIZE // 4, SIZE).sum(axis=1)
    (found,) = interpret(after, [x])
    np.testing.assert_allclose(found, means @ first + means @ x, rtol=2e-4, atol=2e-4)


def test_compiled_and_said_so() -> None:
    module = network(residual)
    options = Options(activation_precision="bfloat16", disable=("connect",))
    program = girih.compile(module, options=options)
    x = RANDOM.standard_normal((SIZE, SIZE)).astype(np.float32)
    (expected,) = interpret(rounded(module), [x])
    found = np.asarray(program(x)).reshape(SIZE, SIZE)
    assert np.abs(found - expected).max() < 1e-5
    assert np.abs(found - interpret(module, [x])[0]).max() > 1e-4
    assert any("stored in bfloat16" in note for note in program.plan.notes)


def test_an_unknown_precision_is_an_error() -> None:
    with pytest.raises(UserError, match="activation_precision must be one of float32, bfloat16"):
        Options(activation_precision="float16")
