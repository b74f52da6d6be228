"""All rules of the simplifier, by family, in one explicit table."""

from __future__ import annotations

from ..rule import Rule
from . import (
    arithmetic,
    choose,
    contractions,
    control,
    conversion,
    convolutions,
    functions,
    indexing,
    reductions,
    scales,
    shape,
    sinking,
    slices,
)

# Rules of one root are tried in this order; any order ends with the same number of operations.
RULES: tuple[Rule, ...] = (
    *arithmetic.RULES,
    *functions.RULES,
    *choose.RULES,
    *conversion.RULES,
    *shape.RULES,
    *slices.RULES,
    *indexing.RULES,
    *reductions.RULES,
    *contractions.RULES,
    *scales.RULES,
    *convolutions.RULES,
    *control.RULES,
    *sinking.RULES,
)
