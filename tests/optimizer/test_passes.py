"""The passes one by one, and pipelines: levels, options, notes, failures that name their pass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import girih
from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.graph import Function, Module, Origin, Weight
from girih.hlo.types import F32, I1, I8, I32, TensorType
from girih.hlo.verify import INLINED, Level, verify
from girih.optimizer.licence import Ledger
from girih.optimizer.passes.dce import Dce
from girih.optimizer.passes.decompose import Decompose, decomposable
from girih.optimizer.passes.fold_constants import FoldConstants
from girih.optimizer.passes.fold_weights import FoldWeights
from girih.optimizer.passes.inline import Inline
from girih.optimizer.passes.simplify import Simplify
from girih.optimizer.pipeline import run_pipeline, simplify_pipeline

LINE = TensorType((4,), F32)
MATRIX = TensorType((3, 4), F32)
FLAG = TensorType((), I1)
COUNT = TensorType((), I32)


def f32(numbers: object) -> np.ndarray:
    return np.array(numbers, np.float32)


def names(module: Module) -> list[str]:
    return [op.name for op in module.walk()]


def same(left: Module, right: Module, *inputs: np.ndarray) -> bool:
    pairs = zip(girih.interpret(left, inputs), girih.interpret(right, inputs), strict=True)
    return all(np.array_equal(one, other) for one, other in pairs)


def with_functions(body, **functions) -> Module:
    module = build_module([FLAG, LINE], body)
    return module.with_functions({**module.functions, **functions})


# inline


def test_inline_copies_a_function_for_each_call() -> None:
    square = Function("square", build_region([LINE], lambda b, x: [b("multiply", x, x)]))
    twice = Function(
        "twice",
        build_region(
            [LINE], lambda b, x: [b("call", b("call", x, type=LINE, callee="square"), type=LINE,
                                    callee="square")]
        ),
    )  # fmt: skip

    def body(b, p, x):
        yes = build_region([], lambda c: [c("call", x, type=LINE, callee="twice")])
        no = build_region([], lambda c: [c("call", c("negate", x), type=LINE, callee="square")])
        return [b("if", p, regions=(yes, no))]

    module = with_functions(body, square=square, twice=twice)
    after = Inline()(module)
    verify(after, INLINED)
    assert names(after).count("multiply") == 3 and list(after.functions) == ["main"]
    x = f32([1, 2, 3, 4])
    assert same(module, after, np.array(True), x) and same(module, after, np.array(False), x)


def test_inline_refuses_endless_calls() -> None:
    loop = Function("loop", build_region([LINE], lambda b, x: [b("call", x, type=LINE,
                                                                 callee="loop")]))  # fmt: skip
    module = with_functions(lambda b, p, x: [b("call", x, type=LINE, callee="loop")], loop=loop)
    with pytest.raises(girih.UserError, match="'loop' calls itself"):
        Inline()(module)


def test_inline_leaves_a_module_without_calls_alone() -> None:
    module = build_module([LINE], lambda b, x: [b("negate", x)])
    assert Inline()(module) is module


# decompose


def test_decompose_replaces_what_has_a_decomposition() -> None:
    assert "broadcast" in decomposable()
    module = build_module([LINE], lambda b, x: [b("broadcast", x, broadcast_sizes=(3,))])
    after = Decompose()(module)
    assert names(after) == ["broadcast_in_dim"]
    assert same(module, after, f32([1, 2, 3, 4]))
    assert Decompose()(after) is after


def test_decompose_keeps_what_it_is_told() -> None:
    module = build_module([LINE], lambda b, x: [b("broadcast", x, broadcast_sizes=(3,))])
    assert Decompose(keep=frozenset({"broadcast"}))(module) is module


# dce


def test_dce_drops_functions_and_weights_without_use() -> None:
    spare = Function("spare", build_region([LINE], lambda b, x: [b("negate", x)]))
    module = with_functions(lambda b, p, x: [x], spare=spare)
    module = module.with_weights({"w": Weight("w", f32([1, 2]))})
    after = Dce()(module)
    assert list(after.functions) == ["main"] and not after.weights


# loops and branches


def test_loop_carries_become_captures() -> None:
    def body(b, x, w):
        cond = build_region(
            [COUNT, LINE, LINE, LINE],
            lambda c, i, v, k, dead: [c.compare("LT", i, c.constant(3, COUNT))],
        )
        step = build_region(
            [COUNT, LINE, LINE, LINE],
            lambda c, i, v, k, dead: [
                c("add", i, c.constant(1, COUNT)), c("add", v, k), k, c("negate", dead),
            ],
        )  # fmt: skip
        loop = b.op("while", [b.constant(0, COUNT), x, w, x], {}, [cond, step])
        return [loop.results[1], loop.results[2]]

    module = build_module([LINE, LINE], body)
    after = Simplify()(module)
    verify(after)
    loop = next(op for op in after.walk() if op.name == "while")
    assert len(loop.operands) == 2
    assert same(module, after, f32([1, 2, 3, 4]), f32([1, 1, -1, 0]))


# fold-constants


def test_masks_over_iotas_stay_formulas_and_long_ones_do_not() -> None:
    square = TensorType((64, 64), I32)

    def mask(b, x):
        rows = b("iota", type=square, iota_dimension=0)
        columns = b("iota", type=square, iota_dimension=1)
        return [b("select", b.compare("GE", rows, columns), x, b("negate", x))]

    kind = TensorType((64, 64), F32)
    module = build_module([kind], mask)
    assert "iota" in names(FoldConstants()(module))

    def angles(b, x):
        line = b.convert(b("iota", type=TensorType((64,), I32), iota_dimension=0), F32)
        return [b("multiply", x, b("sine", line))]

    after = FoldConstants()(build_module([TensorType((64,), F32)], angles))
    assert names(after) == ["constant", "multiply"]


def test_fold_constants_keeps_its_budget() -> None:
    def body(b, x):
        line = b.convert(b("iota", type=TensorType((64,), I32), iota_dimension=0), F32)
        return [b("multiply", x, b("sine", line))]

    module = build_module([TensorType((64,), F32)], body)
    assert FoldConstants(limit=255)(module) is module
    assert FoldConstants(limit=0)(module) is module


def test_broadcasts_of_constants_are_not_stored() -> None:
    def body(b, x):
        line = b.convert(b("iota", type=TensorType((64,), I32), iota_dimension=0), F32)
        return [b("multiply", x, b.broadcast(b("sine", line), (64, 64), (1,)))]

    after = FoldConstants()(build_module([TensorType((64, 64), F32)], body))
    assert names(after) == ["constant", "broadcast_in_dim", "multiply"]


# fold-weights


def weighted(body, **arrays: np.ndarray) -> tuple[Module, list[str]]:
    """A module of one matrix and weights; the second result lists weights that were loaded."""
    loaded: list[str] = []

    def source(name: str):
        def load() -> np.ndarray:
            loaded.append(name)
            return arrays[name]

        return load

    weights = {
        name: Weight(name, source(name), TensorType(array.shape, F32))
        for name, array in arrays.items()
    }
    b = Builder()
    (x,) = b.arguments([MATRIX])
    values = {name: b("weight", type=weight.type, weight=name) for name, weight in weights.items()}
    region = b.region(body(b, x, **values))
    return Module({"main": Function("main", region)}, weights=weights), loaded


W = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_transposed_weights_are_made_when_the_bundle_is_built() -> None:
    def body(b, x, w):
        return [b("dot_general", x, b("exponential", b.transpose(w, (1, 0))),
                  lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,))]  # fmt: skip

    module, loaded = weighted(body, w=W)
    after = FoldWeights()(module)
    verify(after, INLINED)
    assert names(after) == ["weight", "dot_general"] and not loaded
    (name,) = after.weights
    assert name.startswith("w#transpose(1,0)#exponential")
    assert "1 weights are stored transformed (1 exponential)" in after.notes[0]
    assert same(module, after, np.ones((3, 4), np.float32))
    again, _ = weighted(body, w=W)
    assert list(FoldWeights()(again).weights) == [name]
    assert FoldWeights()(after) is after


def test_a_weight_with_another_use_is_not_stored_twice() -> None:
    def body(b, x, w):
        return [b("exponential", b.transpose(w, (1, 0))), b("add", x, w)]

    large = np.ones((3, 4), np.float32)
    module, _ = weighted(body, w=large)
    assert FoldWeights(growth=0)(module) is module
    assert len(FoldWeights(growth=48)(module).weights) == 2


def test_a_wider_form_of_a_weight_is_not_stored() -> None:
    b, kind = Builder(), TensorType((256, 300), I8)
    (x,) = b.arguments([kind.with_element(F32)])
    wide = b.convert(b("weight", type=kind, weight="w"), F32)
    module = Module({"main": Function("main", b.region([b("add", x, wide)]))})
    module = module.with_weights({"w": Weight("w", np.ones(kind.dims, np.int8))})
    assert FoldWeights(growth=1 << 20)(module) is module


def test_broadcasts_of_weights_are_not_stored() -> None:
    def body(b, x, w, v):
        total = b("add", w, v)
        return [b("add", x, b.broadcast(total, (3, 4), (1,)))]

    module, _ = weighted(body, w=f32([1, 2, 3, 4]), v=f32([1, 0, 0, 1]))
    after = FoldWeights(growth=0)(module)
    assert names(after) == ["weight", "broadcast_in_dim", "add"]
    assert after.body.ops[0].result.dims == (4,)
    assert same(module, after, np.ones((3, 4), np.float32))


def test_rows_of_a_weight_are_scaled_when_the_bundle_is_built() -> None:
    def body(b, x, w, v):
        return [b("add", x, b("multiply", w, b.broadcast(v, (3, 4), (1,))))]

    arrays = {"w": np.ones((3, 4), np.float32), "v": f32([1, 2, 0, 4])}
    module, _ = weighted(body, **arrays)
    after = FoldWeights(growth=0)(module)
    assert names(after) == ["weight", "add"]
    assert same(module, after, np.ones((3, 4), np.float32))


def test_batch_normalisation_goes_into_the_convolution() -> None:
    image, kernel = TensorType((1, 2, 5, 5), F32), TensorType((3, 2, 3, 3), F32)
    generator = np.random.default_rng(0)
    arrays = {
        "kernel": generator.normal(size=kernel.dims).astype(np.float32),
        **{
            name: generator.uniform(0.5, 1.5, 3).astype(np.float32)
            for name in ("scale", "offset", "mean", "variance")
        },
    }
    b = Builder()
    (x,) = b.arguments([image])
    given = {
        name: b("weight", type=TensorType(array.shape, F32), weight=name)
        for name, array in arrays.items()
    }
    y = b(
        "convolution", x, given["kernel"], input_batch_dimension=0, input_feature_dimension=1,
        input_spatial_dimensions=(2, 3), kernel_output_feature_dimension=0,
        kernel_input_feature_dimension=1, kernel_spatial_dimensions=(2, 3),
        output_batch_dimension=0, output_feature_dimension=1, output_spatial_dimensions=(2, 3),
    )  # fmt: skip

    def channels(value):
        return b.broadcast(value, y.dims, (1,))

    deviation = b("rsqrt", b("add", given["variance"], b.constant(1e-5, TensorType((3,), F32))))
    centred = b("subtract", y, channels(given["mean"]))
    scaled = b("multiply", centred, channels(b("multiply", given["scale"], deviation)))
    region = b.region([b("add", scaled, channels(given["offset"]))])
    weights = {name: Weight(name, array) for name, array in arrays.items()}
    module = Module({"main": Function("main", region)}, weights=weights)
    after = run_pipeline(module, simplify_pipeline(), check=True)
    left = [name for name in names(after) if name not in ("weight", "constant")]
    assert left == ["convolution", "broadcast_in_dim", "add"]
    picture = generator.normal(size=image.dims).astype(np.float32)
    before, now = girih.interpret(module, [picture])[0], girih.interpret(after, [picture])[0]
    assert np.abs(before - now).max() <= 1e-5 * np.abs(before).max()


def test_a_tied_weight_is_not_scaled_for_one_of_its_uses() -> None:
    def body(b, x, w):
        across = b.transpose(b("exponential", w), (1, 0))
        y = b("dot_general", x, across, lhs_contracting_dimensions=(1,),
              rhs_contracting_dimensions=(0,))  # fmt: skip
        return [b("multiply", y, b.constant(0.5, y.tensor)), w]

    module, _ = weighted(body, w=W)
    after = Simplify()(module)
    (product,) = (op for op in after.walk() if op.name == "dot_general")
    assert all(value.op is None or value.op.name != "multiply" for value in product.operands)

    def alone(b, x, w):
        return body(b, x, w)[:1]

    module, _ = weighted(alone, w=W)
    after = run_pipeline(module, simplify_pipeline(), check=True)
    assert names(after) == ["weight", "dot_general"]


# pipelines


def program() -> Module:
    def body(b, p, x):
        b.origin = (Origin("model.py", 5),)
        return [b("multiply", b("call", x, type=LINE, callee="twice"), b.constant(1.0, LINE))]

    twice = Function("twice", build_region([LINE], lambda b, x: [b("add", x, x)]))
    return with_functions(body, twice=twice)


def test_pipeline_stops_and_leaves_out() -> None:
    seen: list[str] = []
    run_pipeline(program(), simplify_pipeline(), on_pass=seen.append)
    assert seen[0] == "legalize-quantized" and seen.index("inline") < seen.index("simplify")
    assert seen.count("simplify") == 2
    stopped = run_pipeline(program(), simplify_pipeline(), stop_after="inline")
    assert names(stopped) == ["add", "constant", "multiply"]
    without = run_pipeline(program(), simplify_pipeline(), disable=["simplify"])
    assert "multiply" in names(without)
    second: list[str] = []
    run_pipeline(program(), simplify_pipeline(), disable=["simplify:2"], on_pass=second.append)
    assert second.count("simplify") == 1


def test_pipeline_knows_its_passes() -> None:
    with pytest.raises(
        girih.UserError, match="no pass 'layout'; there are legalize-quantized, inline"
    ):
        run_pipeline(program(), simplify_pipeline(), stop_after="layout")


def test_pipeline_dumps(tmp_path: Path) -> None:
    run_pipeline(program(), simplify_pipeline(), dump=tmp_path)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files[0] == "00-legalize-quantized.txt"
    assert "multiply" in (tmp_path / files[0]).read_text()


def test_only_some_rules_may_fire() -> None:
    ledger = Ledger()
    passes = simplify_pipeline(ledger=ledger, only_rules=["multiply-one"])
    assert names(run_pipeline(program(), passes)) == ["add"]
    assert set(ledger.hits) == {"inline", "multiply-one"}
    passes = simplify_pipeline(without_rules=["multiply-one"])
    assert "multiply" in names(run_pipeline(program(), passes))


@dataclass(frozen=True)
class Broken:
    name: ClassVar[str] = "broken"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED

    def __call__(self, module: Module) -> Module:
        return program()


def test_levels_are_checked_on_both_sides() -> None:
    with pytest.raises(girih.CompilerBug, match="call is not legal .* before pass 'simplify'"):
        run_pipeline(program(), [Simplify()])
    inlined = run_pipeline(program(), [Inline()])
    with pytest.raises(girih.CompilerBug, match="call is not legal .* after pass 'broken'"):
        run_pipeline(inlined, [Broken()])


def test_a_large_program_takes_little_time() -> None:
    """3,000 operations; the bound is loose, the usual time is a third of a second."""
    import time

    def body(b, p, x):
        for _ in range(500):
            y = b("multiply", x, b.constant(1.5, LINE))
            x = b("add", b.reshape(b.reshape(y, (2, 2)), (4,)), b("tanh", x))
        return [x]

    module = build_module([FLAG, LINE], body)
    assert sum(1 for _ in module.walk()) == 3000
    start = time.perf_counter()
    after = run_pipeline(module, simplify_pipeline())
    assert time.perf_counter() - start < 60  # a hang, not a speed
    assert names(after).count("reshape") == 0
