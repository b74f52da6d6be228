"""Which operations kernels compute inside, and what each costs to compute twice."""

from __future__ import annotations

from collections.abc import Sequence

from ..hlo.deciding import at_hint, surely_at_most
from ..hlo.graph import Dense, Op, Region
from ..hlo.symbols import Dim
from ..hlo.types import TensorType

# Index operations that an emitter can follow inside another kernel, and whether vectors are kept.
FOLLOWED = {
    "broadcast_in_dim": True,
    "reshape": True,
    "iota": True,
    "constant": True,
    "slice": True,
    "convert": True,
    "dynamic_slice": False,
    "gather": False,
    "pad": False,
    "real": False,
    "imag": False,
}


def keeps_vectors(op: Op) -> bool:
    """Whether it can be followed inside another kernel without losing vectors."""
    return FOLLOWED.get(op.name, False)


def is_splat_constant(op: Op) -> bool:
    """A constant whose elements are all one number: computed wherever it is used."""
    if op.name != "constant":
        return False
    value: Dense = op.attributes["value"]
    return value.is_splat


def fusable(op: Op) -> bool:
    """Whether a kernel other than its own may compute it."""
    if op.definition.effects or len(op.results) != 1 and op.name != "reduce":
        return False
    if op.name == "dynamic_update_slice":  # in place where it can be: a kernel of its own
        return False
    if not all(isinstance(value.type, TensorType) for value in (*op.operands, *op.results)):
        return False
    inside = op.definition.pattern in ("elementwise", "index", "reduce")
    return inside or op.name == "iota" or is_splat_constant(op)


def brings_features_together(op: Op, user: Op) -> bool:
    """Whether a transposition lays the features of a convolution's image side by side, as units
    that multiply narrow numbers read them: in pairs or more at a time."""
    if op.name != "transpose" or user.name != "convolution" or user.operands[0] is not op.result:
        return False
    innermost = op.result.rank - 1
    across = op.permutation[-1:] != (innermost,)
    return across and user.input_feature_dimension == innermost and op.result.element.bits < 32


def reshape_moves(before: Sequence[Dim], after: Sequence[Dim]) -> tuple[bool, bool]:
    """Whether a reshape splits dims, and whether it merges dims; (True, True) for uneven ones. Of
    sizes that calls decide, where some are 1 in a call it may do less than is said."""
    left = [d for d in before if d != 1]
    right = [d for d in after if d != 1]
    splits = merges = False
    while left and right:
        a, b = left.pop(0), right.pop(0)
        if a == b:
            continue
        if _is_smaller(b, a):
            splits = True
            while b != a and right and _is_smaller(b, a):
                b *= right.pop(0)
        else:
            merges = True
            while a != b and left and _is_smaller(a, b):
                a *= left.pop(0)
        if a != b:
            return True, True
    return splits, merges


def _is_smaller(one: Dim, other: Dim) -> bool:
    """Which of two different sizes is smaller, or as large in some calls. It leaves no guard: where
    dims begin and end together, equal products say, whichever side was multiplied first."""
    if surely_at_most(one, other):
        return True
    return not surely_at_most(other, one) and at_hint(one) < at_hint(other)


def respells(op: Op) -> bool:
    """Whether an operation is a reshape that adds or drops dims of size one."""
    if op.name != "reshape":
        return False
    before, after = op.operands[0].dims, op.result.dims
    return [d for d in before if d != 1] == [d for d in after if d != 1]


def trailing_reduction(op: Op) -> int | None:
    """Number of outer dims if a reduce runs over all the others, which stand last; else None."""
    if op.name != "reduce":
        return None
    rank = op.operands[0].rank
    dimensions = sorted(op.dimensions)
    outer = rank - len(dimensions)
    return outer if dimensions == list(range(outer, rank)) else None


def outer_rank(region: Region) -> int | None:
    """The number of row dims if all reductions are over the dims after them; else None."""
    reductions = [op for op in region.ops if op.name == "reduce"]
    ranks = {trailing_reduction(op) for op in reductions}
    outer = ranks.pop() if len(ranks) == 1 else None
    if outer is None:
        return None
    rows = {value.dims[:outer] for op in reductions for value in (op.operands[0], *region.results)}
    return outer if len(rows) == 1 else None
