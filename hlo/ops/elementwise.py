"""Elementwise operations: one formula per row, applied to each element of equal-shaped operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..graph import Op
from ..room import OpDefinition, constraint, operand
from ..types import TensorType, Type


class Elementwise(OpDefinition):
    """A formula over arrays; the result has the operands' dims and element type."""

    pattern = "elementwise"

    def __init__(self, name: str, formula: Callable[..., Any], kinds: str, doc: str) -> None:
        self.name = name  # type: ignore[misc]
        self.formula = formula
        self.kinds = tuple(kinds.split())
        self.__doc__ = doc

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operands[0].type]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        with np.errstate(all="ignore"):
            result = self.formula(*arrays)
        return np.asarray(result).astype(arrays[0].dtype, copy=False)


class Unary(Elementwise):
    operand = operand()
    C0 = constraint("operand has a legal element type", lambda o: _legal(o))


class Binary(Elementwise):
    lhs = operand()
    rhs = operand()
    C0 = constraint("lhs has a legal element type", lambda o: _legal(o))
    C1 = constraint(
        "lhs, rhs and result have the same type",
        lambda o: o.lhs.dims == o.rhs.dims and o.lhs.element is o.rhs.element,
    )


class CommutativeBinary(Binary):
    commutative = True


def _legal(o: Op) -> bool:
    value = o.operands[0].type
    return isinstance(value, TensorType) and value.element.kind in o.definition.kinds  # type: ignore[attr-defined]


ROOMS = (
    CommutativeBinary("add", np.add, "int uint float complex", "result = lhs + rhs; wraps."),
    CommutativeBinary("multiply", np.multiply, "int uint float complex", "result = lhs * rhs."),
    Binary("subtract", np.subtract, "int uint float complex", "result = lhs - rhs."),
    Unary("negate", np.negative, "int uint float complex", "result = -operand."),
)
