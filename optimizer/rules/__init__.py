"""All rules of the simplifier, by family, in one explicit table.

In: operations that match a pattern. Out: what replaces them, with the licence that this needs.
Imported by `optimizer/masks`, `optimizer/passes`.
"""

from __future__ import annotations

from ..rule import Rule
from . import (
    arithmetic,
    bounds,
    choose,
    contractions,
    control,
    conversion,
    convolutions,
    convolved,
    functions,
    gathers,
    indexing,
    interpolations,
    joined,
    one_hot,
    products,
    reductions,
    scales,
    scatters,
    shape,
    sinking,
    slices,
    updates,
)

# Rules of one root are tried in this order; any order ends with the same number of operations.
RULES: tuple[Rule, ...] = (
    *arithmetic.RULES,
    *functions.RULES,
    *choose.RULES,
    *bounds.RULES,
    *conversion.RULES,
    *shape.RULES,
    *slices.RULES,
    *indexing.RULES,
    *gathers.RULES,
    *scatters.RULES,
    *updates.RULES,
    *reductions.RULES,
    *joined.RULES,
    *one_hot.RULES,
    *products.RULES,
    *contractions.RULES,
    *scales.RULES,
    *convolutions.RULES,
    *convolved.RULES,
    *interpolations.RULES,
    *control.RULES,
    *sinking.RULES,
)
