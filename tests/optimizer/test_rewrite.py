"""The rewrite engine: identity when unchanged, equal operations, dead code, nested regions."""

from __future__ import annotations

import numpy as np

import girih
from girih.hlo.build import build_module, build_region
from girih.hlo.graph import EXACT, Module, Op, Origin, Value
from girih.hlo.room import OpDefinition, operand
from girih.hlo.types import F32, I1, I32, TensorType
from girih.hlo.verify import verify
from girih.optimizer.passes.dce import Dce
from girih.optimizer.passes.simplify import Simplify
from girih.optimizer.rewrite import Engine, Rewriter
from girih.optimizer.rule import structural

LINE = TensorType((4,), F32)
COUNT = TensorType((), I32)
FLAG = TensorType((), I1)


def f32(numbers: object) -> np.ndarray:
    return np.array(numbers, np.float32)


def names(module: Module) -> list[str]:
    return [op.name for op in module.walk()]


def merged(module: Module) -> Module:
    """No two pure operations of a region are equal; no rule is applied."""
    return module.with_main(Engine(module).simplify(module.body))


def test_unchanged_is_the_same_object() -> None:
    module = build_module([LINE, LINE], lambda b, x, y: [b("add", x, b("exponential", y))])
    assert Simplify()(module) is module
    assert merged(module) is module
    assert Dce()(module) is module


def test_equal_operations_become_one() -> None:
    def body(b, x, y):
        return [b("subtract", b("add", x, y), b("add", y, x))]

    assert names(merged(build_module([LINE, LINE], body))) == ["add", "subtract"]


def test_equal_operations_with_regions_become_one() -> None:
    def body(b, x):
        zero = b.constant(0.0, TensorType((), F32))
        return [b("add", b.reduce("add", x, zero, (0,)), b.reduce("add", x, zero, (0,)))]

    assert names(merged(build_module([LINE], body))).count("reduce") == 1


def test_attributes_of_different_kind_stay_apart() -> None:
    def body(b, x):
        one = b("multiply", x, b.constant(0.0, LINE))
        other = b("multiply", x, b.constant(-0.0, LINE))
        return [one, other]

    assert names(merged(build_module([LINE], body))).count("multiply") == 2


def test_barriers_are_not_merged_nor_crossed() -> None:
    def body(b, x):
        first = b("optimization_barrier", x)
        second = b("optimization_barrier", x)
        return [b("exponential", first), b("exponential", second), b("exponential", x)]

    after = names(Simplify()(build_module([LINE], body)))
    assert after.count("optimization_barrier") == 2
    assert after.count("exponential") == 3


class Announce(OpDefinition, name="announce"):
    effects = True
    operand = operand()


def test_dead_operations_go_and_effects_stay() -> None:
    def body(b, x):
        b("exponential", x)
        for _ in range(2):
            b.append(Op(Announce(), [b("negate", x)], {}, [], []))
        return [x]

    module = build_module([LINE], body)
    assert names(Dce()(module)) == ["negate", "announce", "negate", "announce"]
    assert names(Simplify()(module)) == ["negate", "announce", "announce"]


def test_captured_values_follow_what_became_of_them() -> None:
    def body(b, p, x):
        scaled = b("multiply", x, b.constant(1.0, LINE))
        yes = build_region([], lambda c: [c("add", scaled, scaled)])
        no = build_region([], lambda c: [c("negate", scaled)])
        return [b("if", p, regions=(yes, no))]

    module = build_module([FLAG, LINE], body)
    after = Simplify()(module)
    verify(after)
    assert "multiply" not in names(after)
    inputs = (np.bool_(True), f32([1, 2, 3, 4]))
    assert np.array_equal(girih.interpret(after, inputs)[0], girih.interpret(module, inputs)[0])


def test_rules_apply_inside_loops() -> None:
    def body(b, x):
        cond = build_region(
            [COUNT, LINE], lambda c, i, v: [c.compare("LT", i, c.constant(3, COUNT))]
        )
        step = build_region(
            [COUNT, LINE],
            lambda c, i, v: [
                c("add", i, c.constant(1, COUNT)),
                c("add", v, c("multiply", v, c.constant(1.0, LINE))),
            ],
        )
        loop = b.op("while", [b.constant(0, COUNT), x], {}, [cond, step])
        return [loop.results[1]]

    module = build_module([LINE], body)
    after = Simplify()(module)
    verify(after)
    assert "multiply" not in names(after)
    x = f32([1, -2, 3, 0.5])
    assert np.array_equal(girih.interpret(after, [x])[0], 8 * x)


def test_origins_of_merged_operations_are_united() -> None:
    def body(b, x):
        values = []
        for line in (3, 7):
            b.origin = (Origin("model.py", line),)
            values.append(b("exponential", x))
        return [b("add", *values)]

    after = merged(build_module([LINE], body))
    first = next(op for op in after.walk() if op.name == "exponential")
    assert [origin.line for origin in first.origin] == [3, 7]


def test_what_a_rule_builds_has_the_origins_of_what_it_replaces() -> None:
    def body(b, x):
        b.origin = (Origin("model.py", 3),)
        first = b("negate", x)
        b.origin = (Origin("model.py", 7),)
        return [b("add", first, b("exponential", first))]

    after = Simplify()(build_module([LINE], body))
    lines = {origin.line for op in after.walk() for origin in op.origin}
    assert lines == {3, 7}


def test_a_rule_that_undoes_itself_is_cut_off() -> None:
    @structural("flip", "add", examples=tuple)
    def flip(op: Op, b: Rewriter) -> Value:
        return b("subtract", op.operands[0], b("negate", op.operands[1]))

    @structural("flop", "subtract", examples=tuple)
    def flop(op: Op, b: Rewriter) -> Value:
        inner = op.operands[1].op
        assert inner is not None
        return b("add", op.operands[0], inner.operands[0])

    module = build_module([LINE, LINE], lambda b, x, y: [b("add", x, y)])
    engine = Engine(module, [flip, flop])
    engine.simplify(module.body, sweeps=1)
    assert engine.ledger.exhausted


def test_splats_fold_to_splats() -> None:
    large = TensorType((1000, 1000), F32)

    def body(b, x):
        return [b("multiply", x, b("exponential", b.constant(0.0, large)))]

    module = build_module([large], body)
    assert Simplify(only=frozenset({"none"}))(module).body.ops[0].attributes["value"].is_splat
    assert names(Simplify()(module)) == []


def test_folding_has_a_budget() -> None:
    def body(b):
        numbers = np.arange(64, dtype=np.float32)
        return [b("exponential", b.constant(numbers))]

    module = build_module([], body)
    assert names(Simplify()(module)) == ["constant"]
    assert names(Simplify(fold_bytes=64)(module)) == ["constant", "exponential"]
    assert names(Simplify(fold_bytes=0)(module)) == ["constant", "exponential"]


def test_exact_operations_are_rewritten_by_exact_rules_only() -> None:
    """A rounding that decides an integer stays; what replaces such an operation is exact too."""

    def body(exact):
        facts = {EXACT: True} if exact else {}

        def build(b, x):
            third = b.op("divide", [x, b.constant(3.0, LINE)], facts).result
            less = b.op("subtract", [third, b.constant(1.0, LINE)], facts).result
            return [b.op("subtract", [less, b.constant(2.0, LINE)], facts).result]

        return build

    loose, exact = (Simplify()(build_module([LINE], body(kind))) for kind in (False, True))
    assert "divide" not in names(loose) and names(loose).count("add") == 1
    assert "divide" in names(exact) and names(exact).count("add") == 2
    made = [op for op in exact.walk() if op.name != "constant"]
    assert all(op.attributes.get(EXACT) for op in made)
