"""The automatic rule check: both sides of a rule compute the same, as far as its licence says."""

from __future__ import annotations

import numpy as np
import pytest

from girih.hlo.build import build_region
from girih.hlo.graph import Dense, Function, Module
from girih.hlo.types import F32, TensorType
from girih.optimizer.licence import BITWISE, IGNORES_ZERO_SIGN, REASSOCIATES, Licence
from girih.optimizer.rewrite import Engine
from girih.optimizer.rule import Rule
from girih.optimizer.rules import RULES
from girih.optimizer.rules.check import check_rule, difference
from girih.optimizer.rules.formula import (
    FLOAT,
    Variable,
    c,
    compare,
    neg_zero,
    one,
    op,
    select,
    x,
    y,
    zero,
)
from girih.optimizer.rules.language import rule
from girih.optimizer.rules.mutants import alters, is_caught, mutants

LINE = TensorType((4,), F32)


def f32(numbers: object) -> np.ndarray:
    return np.array(numbers, np.float32)


@pytest.mark.parametrize("candidate", RULES, ids=lambda candidate: candidate.name)
def test_rule_preserves_meaning(candidate: Rule) -> None:
    assert check_rule(candidate) == []


def test_rules_have_names_texts_and_examples_of_their_own() -> None:
    assert len({candidate.name for candidate in RULES}) == len(RULES) >= 150
    assert all(candidate.text for candidate in RULES)
    assert all(any(True for _ in candidate.examples()) for candidate in RULES)


def test_most_mutants_are_caught() -> None:
    """`benchmarks/rule_mutants.py` tries all of them; these are a sample."""
    sample = [(mutant, rule) for rule in RULES for mutant in mutants(rule)][::29]
    missed = [(mutant, rule) for mutant, rule in sample if not is_caught(mutant)]
    survivors = [mutant.name for mutant, rule in missed if alters(mutant, rule)]
    assert len(sample) > 40 and len(survivors) <= 0.1 * len(sample), survivors


WRONG = (
    rule("add-zero without licence", x + zero, x),
    rule("subtract-self without licence", x - x, zero),
    rule("swapped", x - y, y - x, licence=REASSOCIATES),
    rule("other constant", x * one, x + one, licence=REASSOCIATES),
    rule("maximum of anything", select(compare("GT", x, y), x, y), op("maximum", x, y)),
    rule("division", x / c, x * c, kinds=FLOAT, licence=REASSOCIATES),
    rule("no condition", x / c, x * (one / c), kinds=FLOAT, licence=BITWISE),
    rule("compare flipped", compare("LT", x, y), compare("GE", x, y), kinds=FLOAT),
    rule("no fewer operations", op("abs", op("abs", x)), op("abs", -x), lowers="operations"),
    rule("root of a square", op("sqrt", x * x), x, kinds=FLOAT, licence=REASSOCIATES),
)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_wrong_rules_are_caught(wrong: Rule) -> None:
    assert check_rule(wrong)


def test_unbound_name_is_rejected() -> None:
    with pytest.raises(ValueError, match="y is not bound"):
        rule("unbound", x + zero, y)


def test_sides_of_different_type_are_rejected() -> None:
    with pytest.raises(ValueError, match="one type"):
        rule("types", compare("LT", x, y), x + y)
    with pytest.raises(ValueError, match="one type"):
        rule("converted", op("convert", x) + y, x + y)


def test_pattern_must_be_an_operation() -> None:
    with pytest.raises(ValueError, match="must be an operation"):
        rule("nothing", Variable("x"), x)


def fired(licences: Licence) -> set[str]:
    """Rules that fire on `(x + 0) + (y + -0)` and `(x * 3) * 5` with the given licences."""

    def body(b, x, y):
        zeros, negative = b.constant(0.0, LINE), b.constant(-0.0, LINE)
        total = b("add", b("add", x, zeros), b("add", y, negative))
        scaled = b("multiply", b("multiply", x, b.constant(3.0, LINE)), b.constant(5.0, LINE))
        return [total, scaled]

    region = build_region([LINE, LINE], body)
    engine = Engine(Module({"main": Function("main", region)}), RULES, licences, check=True)
    engine.simplify(region)
    return set(engine.ledger.hits)


def test_licences_decide_what_fires() -> None:
    assert fired(BITWISE) == {"add-neg-zero"}
    assert fired(IGNORES_ZERO_SIGN) == {"add-neg-zero", "add-zero"}
    assert "multiply-multiply-static" in fired(REASSOCIATES)


def test_what_is_static_as_a_whole_stays_as_it_is() -> None:
    """A polynomial of a constant that nobody folds: terms moved about would be moved for ever."""
    numbers = Dense.of(np.arange(LINE.size, dtype=np.float32))

    def body(b):
        x = b.constant(numbers)
        before, total = x, b("sine", x)
        for n in range(20):
            term = b.constant(n + 2.5, LINE)
            following = b("add", b("subtract", b("multiply", x, total), before), term)
            before, total = total, following
        return [total]

    region = build_region([], body)
    engine = Engine(Module({"main": Function("main", region)}), RULES, fold_bytes=0)
    assert engine.simplify(region) is region and not engine.ledger.hits


def test_integers_need_no_licence() -> None:
    from girih.hlo.types import I32

    kind = TensorType((4,), I32)
    region = build_region([kind], lambda b, v: [b("subtract", v, v)])
    engine = Engine(Module({"main": Function("main", region)}), RULES, BITWISE)
    (made,) = engine.simplify(region).ops
    assert made.name == "constant"
    assert engine.ledger.licences == BITWISE


def test_ledger_counts_lines() -> None:
    from girih.hlo.graph import Origin

    def body(b, v):
        b.origin = (Origin("model.py", 41),)
        return [b("multiply", v, b.constant(1.0, LINE))]

    region = build_region([LINE], body)
    engine = Engine(Module({"main": Function("main", region)}), RULES)
    engine.simplify(region)
    assert engine.ledger.places["multiply-one"] == {"model.py:41": 1}
    assert "model.py:41 (1)" in engine.ledger.table()


def test_difference_knows_zeros_and_nans() -> None:
    left, right = f32([0.0, np.nan]), f32([-0.0, np.nan])
    assert difference(left, right, BITWISE)
    assert not difference(left, right, IGNORES_ZERO_SIGN)
    assert difference(f32([np.inf]), f32([np.nan]), REASSOCIATES)
    assert neg_zero.of(F32) == 0
