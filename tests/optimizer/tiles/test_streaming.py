"""Groups as tile functions give what their operations give, walked along a dim or not."""

from __future__ import annotations

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module
from girih.hlo.graph import Function, Module, Region, arguments
from girih.hlo.interpret import interpret, simulate
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import FUSED, verify
from girih.optimizer.pipeline import run_pipeline, simplify_pipeline
from girih.optimizer.tiles.build import build_kernel, make_group
from girih.optimizer.tiles.streaming import StreamStage, streams

from .programs import SMALL

# Programs whose longest reduced dim can be walked, and its size.
WALKED = {
    "attention": 48, "attention_odd": 53, "causal": 40, "biased": 40, "cosine": 70,
    "logsumexp": 100, "argmax": 100, "variance": 100, "group_statistics": 90,
    "two_layers": 40, "softmax_matmul": 40,
}  # fmt: skip
SIZES = {1: (8,), 2: (7, 16), 4: (1, 2, 9, 16)}


def simplified(name: str) -> tuple[Module, list[np.ndarray]]:
    function, inputs = SMALL[name]
    module = girih.import_model(function, *inputs)
    return run_pipeline(module, simplify_pipeline(girih.Options())), inputs


def sizes_for(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(min(size, dim) for size, dim in zip(SIZES[len(dims)], dims, strict=True))


@pytest.mark.parametrize("name", SMALL)
def test_every_way_to_walk_gives_the_same(name):
    module, inputs = simplified(name)
    group = make_group(module.body.ops, module.body.arguments, module.body.results)
    ways = streams(group.ops, group.roots)
    if name in WALKED:
        assert max(way.extent for way in ways) == WALKED[name]
    wanted = interpret(module, inputs)
    own = arguments(module.body.argument_types)
    for way in (None, *ways):
        step = max(1, way.extent // 3) if way else 0
        kernel = build_kernel(group, own, sizes_for(group.roots[0].dims), name, way, step)
        whole = Module({"main": Function("main", Region(own, [kernel], kernel.results))})
        verify(whole, FUSED)
        found, counts = simulate(kernel, inputs)
        assert not counts.faults
        assert counts.tiles > 1
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_rows_that_are_masked_at_first_are_right():
    """The first tiles of k hold nothing but minus infinity for the last rows."""
    module, inputs = simplified("causal")
    inputs = [inputs[0], inputs[1][:, :, ::-1].copy(), inputs[2][:, :, ::-1].copy()]
    group = make_group(module.body.ops, module.body.arguments, module.body.results)
    (way,) = [way for way in streams(group.ops, group.roots) if way.extent == 40]
    own = arguments(module.body.argument_types)
    kernel = build_kernel(group, own, (1, 1, 8, 8), "k", way, 8)
    np.testing.assert_allclose(
        simulate(kernel, inputs)[0][0], interpret(module, inputs)[0], rtol=2e-5, atol=2e-5
    )


def test_a_wholly_masked_row_is_no_number_in_both_ways():
    module, inputs = simplified("logsumexp")
    x = inputs[0]
    x[3] = -np.inf
    x[4, 50:] = -np.inf
    x[5, :50] = -np.inf
    x[6, 7] = np.inf
    group = make_group(module.body.ops, module.body.arguments, module.body.results)
    (way,) = streams(group.ops, group.roots)
    kernel = build_kernel(group, arguments(module.body.argument_types), (8,), "k", way, 25)
    with np.errstate(all="ignore"):
        found, wanted = simulate(kernel, [x])[0][0], interpret(module, [x])[0]
    np.testing.assert_allclose(found, wanted, rtol=2e-5)


def test_a_sum_that_starts_from_something_is_not_walked():
    matrix = TensorType((4, 30), F32)

    def body(b, x):
        return [b.reduce("add", x, b.constant(5, TensorType((), F32)), (1,))]

    module = build_module([matrix], body)
    assert streams(module.body.ops, module.body.results) == []


def test_what_depends_on_a_sum_by_more_than_a_factor_is_not_walked():
    matrix = TensorType((4, 30), F32)

    def centred(b, x):
        zero = b.constant(0, TensorType((), F32))
        total = b.broadcast(b.reduce("add", x, zero, (1,)), (4, 30), (0,))
        away = b("abs", b("subtract", x, total))
        return [b.reduce("add", away, zero, (1,))]

    module = build_module([matrix], centred)
    assert streams(module.body.ops, module.body.results) == []


def test_a_result_along_the_dim_is_not_walked():
    matrix = TensorType((4, 30), F32)

    def softmax(b, x):
        scalar = TensorType((), F32)
        top = b.reduce("maximum", x, b.constant(-np.inf, scalar), (1,))
        power = b("exponential", b("subtract", x, b.broadcast(top, (4, 30), (0,))))
        total = b.reduce("add", power, b.constant(0, scalar), (1,))
        return [b("divide", power, b.broadcast(total, (4, 30), (0,)))]

    module = build_module([matrix], softmax)
    assert streams(module.body.ops, module.body.results) == []


def test_stages_of_attention():
    module, _ = simplified("attention")
    group = make_group(module.body.ops, module.body.arguments, module.body.results)
    way = group.streams()[0]
    folds = [op.name for op in group.ops if way.stages[op.results[0]] is StreamStage.FOLD]
    assert folds == ["reduce", "reduce", "dot_general"]
