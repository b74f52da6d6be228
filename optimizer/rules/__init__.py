"""All rules of the simplifier, by family, in one explicit table."""

from __future__ import annotations

from ..rule import Rule
from . import arithmetic, choose, contractions, conversion, functions, shape, sinking

RULES: tuple[Rule, ...] = (
    *arithmetic.RULES,
    *functions.RULES,
    *choose.RULES,
    *conversion.RULES,
    *shape.RULES,
    *sinking.RULES,
    *contractions.RULES,
)
