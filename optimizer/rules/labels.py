"""Products whose dims carry labels, as in einsum: what is in both and not in the result is summed.

labels = Labels(dot)                      # .left, .right, .result: one label per dim
product(dot, x, "bij", y, "bjk", b)       # x @ y, with the attributes of `dot`
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...hlo.graph import Op, Value
from ...hlo.types import TensorType
from ..rewrite import Rewriter

Label = int
Line = tuple[Label, ...]  # of the dims of one value


@dataclass(frozen=True)
class Labels:
    """The labels of a dot_general's operands and result; `first` is the least label."""

    left: Line
    right: Line
    result: Line

    @classmethod
    def of(cls, op: Op, left: Line | None = None, first: int = 0) -> Labels:
        """Labels counted from `first`; those of the left operand may be given."""
        x, y = op.operands
        own = left or tuple(range(first, first + x.rank))
        other: list[Label] = [max((*own, first)) + 1 + d for d in range(y.rank)]
        pairs = (
            *zip(op.lhs_batching_dimensions, op.rhs_batching_dimensions, strict=True),
            *zip(op.lhs_contracting_dimensions, op.rhs_contracting_dimensions, strict=True),
        )
        for i, j in pairs:
            other[j] = own[i]
        batch = [own[d] for d in op.lhs_batching_dimensions]
        summed = {own[d] for d in op.lhs_contracting_dimensions}
        gone = {*batch, *summed}
        free = [label for line in (own, other) for label in line if label not in gone]
        return cls(own, tuple(other), (*batch, *free))

    def swapped(self) -> Labels:
        return Labels(self.right, self.left, self.result)


def renamed(line: Line, names: dict[Label, Label]) -> Line:
    return tuple(names.get(label, label) for label in line)


def result_of(left: Line, right: Line, kept: Sequence[Label]) -> Line:
    """The labels of a product in the order in which dot_general gives them."""
    batch = [label for label in left if label in right and label in kept]
    both = {label for label in left if label in right}
    return (*batch, *(label for line in (left, right) for label in line if label not in both))


def product(
    like: Op, x: Value, left: Line, y: Value, right: Line, kept: Sequence[Label], b: Rewriter
) -> Value:
    """The dot_general of `x` and `y`; its dims are `result_of(left, right, kept)`.

    Labels in both are batching dims if they are in `kept`, else they are summed over. Precision
    and the element type of the result are those of `like`.
    """
    batch = [label for label in left if label in right and label in kept]
    summed = [label for label in left if label in right and label not in kept]
    sizes = dict(zip((*left, *right), (*x.dims, *y.dims), strict=True))
    names = result_of(left, right, kept)
    attributes = {
        **like.attributes,
        "lhs_batching_dimensions": tuple(left.index(label) for label in batch),
        "rhs_batching_dimensions": tuple(right.index(label) for label in batch),
        "lhs_contracting_dimensions": tuple(left.index(label) for label in summed),
        "rhs_contracting_dimensions": tuple(right.index(label) for label in summed),
    }
    type = TensorType([sizes[label] for label in names], like.type.element)
    return b.build("dot_general", (x, y), attributes, (), (type,))[0]


def multiplications(sizes: dict[Label, int], *lines: Line) -> int:
    """How often a product of values with these labels multiplies."""
    return math.prod(sizes[label] for label in {label for line in lines for label in line})
