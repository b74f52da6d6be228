"""Rules for maximum, minimum, clamp, compare, select and logic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...hlo.build import Builder
from ...hlo.graph import Op, Value
from ...hlo.types import F32, I32, TensorType
from ..licence import ASSUMES_FINITE, IGNORES_ZERO_SIGN
from ..rewrite import Rewriter
from ..rule import Example, Rule, example, structural
from .common import made_by
from .formula import (
    ANY,
    BOOL,
    INTEGER,
    REAL,
    FormulaNode,
    all_ones,
    c1,
    c2,
    compare,
    false,
    highest,
    lowest,
    maximum,
    minimum,
    nothing,
    op,
    p,
    select,
    true,
    x,
    y,
    z,
    zero,
)
from .language import rule
from .matching import Match

ORDERED = REAL | BOOL
BITS = INTEGER | BOOL


def clamp(low: FormulaNode, value: FormulaNode, high: FormulaNode) -> FormulaNode:
    return op("clamp", low, value, high)


def _ordered_bounds(m: Match) -> bool:
    return bool(m.c1 <= m.c2)


def _apart(m: Match) -> bool:
    return bool(m.c1 < m.c2)  # equal zeros may have different signs


EXTREMES: tuple[Rule, ...] = (
    rule("maximum-lowest", maximum(x, lowest), x),
    rule("minimum-highest", minimum(x, highest), x),
    rule("maximum-highest-integer", maximum(x, highest), highest, kinds=INTEGER),
    rule("minimum-lowest-integer", minimum(x, lowest), lowest, kinds=INTEGER),
    rule("maximum-self", maximum(x, x), x, kinds=ORDERED),
    rule("minimum-self", minimum(x, x), x, kinds=ORDERED),
    rule("maximum-absorbs", maximum(maximum(x, y), y), maximum(x, y), kinds=ORDERED),
    rule("minimum-absorbs", minimum(minimum(x, y), y), minimum(x, y), kinds=ORDERED),
    rule("maximum-constants", maximum(maximum(x, c1), c2), maximum(x, maximum(c1, c2))),
    rule("minimum-constants", minimum(minimum(x, c1), c2), minimum(x, minimum(c1, c2))),
    rule("clamp-from-extremes", minimum(maximum(x, c1), c2), clamp(c1, x, c2),
         where=_ordered_bounds, single=True),
    rule("clamp-from-extremes-turned", maximum(minimum(x, c2), c1), clamp(c1, x, c2),
         where=_apart, single=True),
    rule("clamp-twice", clamp(c1, clamp(c1, x, c2), c2), clamp(c1, x, c2)),
)  # fmt: skip

SELECTION: tuple[Rule, ...] = (
    rule("select-true", select(true, x, y), x, kinds=ANY),
    rule("select-false", select(false, x, y), y, kinds=ANY),
    rule("select-same", select(p, x, x), x, kinds=ANY),
    rule("select-not", select(~p, x, y), select(p, y, x), kinds=ANY),
    rule("select-predicate", select(p, true, false), p, kinds=BOOL),
    rule("select-not-predicate", select(p, false, true), ~p, kinds=BOOL),
    rule("select-select-true", select(p, select(p, x, y), z), select(p, x, z), kinds=ANY),
    rule("select-select-false", select(p, x, select(p, y, z)), select(p, x, z), kinds=ANY),
    rule("select-greater", select(compare("GT", x, y), x, y), maximum(x, y),
         licence=IGNORES_ZERO_SIGN | ASSUMES_FINITE),
    rule("select-greater-equal", select(compare("GE", x, y), x, y), maximum(x, y),
         licence=IGNORES_ZERO_SIGN | ASSUMES_FINITE),
    rule("select-less", select(compare("LT", x, y), x, y), minimum(x, y),
         licence=IGNORES_ZERO_SIGN | ASSUMES_FINITE),
    rule("select-less-equal", select(compare("LE", x, y), x, y), minimum(x, y),
         licence=IGNORES_ZERO_SIGN | ASSUMES_FINITE),
)  # fmt: skip

COMPARISON: tuple[Rule, ...] = (
    *(
        rule(f"compare-self-{direction}", compare(direction, x, x), false, kinds=ORDERED)
        for direction in ("LT", "GT")
    ),
    rule("compare-self-NE", compare("NE", x, x), false, kinds=ORDERED, licence=ASSUMES_FINITE),
    *(
        rule(f"compare-self-{direction}", compare(direction, x, x), true, kinds=ORDERED,
             licence=ASSUMES_FINITE)
        for direction in ("EQ", "GE", "LE")
    ),
    rule("not-false", compare("NE", p, false), p, kinds=BOOL),
    rule("is-true", compare("EQ", p, true), p, kinds=BOOL),
    rule("is-false", compare("EQ", p, false), ~p, kinds=BOOL),
    rule("not-true", compare("NE", p, true), ~p, kinds=BOOL),
    rule("unsigned-below-zero", compare("LT", x, zero), false, kinds=frozenset({"uint"})),
    rule("unsigned-not-below-zero", compare("GE", x, zero), true, kinds=frozenset({"uint"})),
    *(
        rule(f"not-compare-{direction}", ~compare(direction, x, y), compare(opposite, x, y),
             kinds=kinds, single=True)
        for direction, opposite, kinds in (
            ("EQ", "NE", REAL), ("NE", "EQ", REAL), ("LT", "GE", INTEGER), ("GE", "LT", INTEGER),
            ("GT", "LE", INTEGER), ("LE", "GT", INTEGER),
        )
    ),
)  # fmt: skip

LOGIC: tuple[Rule, ...] = (
    rule("and-ones", x & all_ones, x, kinds=BITS),
    rule("and-nothing", x & nothing, nothing, kinds=BITS),
    rule("and-self", x & x, x, kinds=BITS),
    rule("or-nothing", x | nothing, x, kinds=BITS),
    rule("or-ones", x | all_ones, all_ones, kinds=BITS),
    rule("or-self", x | x, x, kinds=BITS),
    rule("xor-nothing", x ^ nothing, x, kinds=BITS),
    rule("xor-self", x ^ x, nothing, kinds=BITS),
    rule("xor-ones", x ^ all_ones, ~x, kinds=BITS),
    rule("not-not", ~~x, x, kinds=BITS),
)

EXTREME_OF = {"GT": "maximum", "LT": "minimum"}


def _extreme_examples() -> Iterator[Example]:
    for direction, extreme, fires in (
        ("GT", "maximum", True), ("LT", "minimum", True), ("GE", "maximum", False),
        ("GT", "minimum", False),
    ):  # fmt: skip
        for type in (TensorType((5,), F32), TensorType((5,), I32)):

            def body(b: Builder, x: Value, y: Value, d: str = direction, e: str = extreme) -> Any:
                return [b(e, x, y), b.compare(d, x, y)]

            yield example(f"{direction} and {extreme} of {type}", [type, type], body, fires=fires)


@structural("compare-extreme", "compare", examples=_extreme_examples, lowers="values that are read")
def compare_extreme(op: Op, b: Rewriter) -> Value | None:
    """compare(x > y) -> compare(max(x, y) > y) [that maximum is computed anyway]"""
    extreme = EXTREME_OF.get(op.comparison_direction)
    x, y = op.operands
    if extreme is None or op.attributes.get("compare_type") == "TOTALORDER":
        return None
    if made_by(x, extreme) is not None:
        return None  # its own, or another one that it could go back and forth with
    known = b.existing(extreme, x, y)
    if known is None or made_by(known, extreme) is None:
        return None  # it became something else, such as a constant
    return b.like(op, known, y)


RULES: tuple[Rule, ...] = EXTREMES + SELECTION + COMPARISON + LOGIC + (compare_extreme,)
