"""Operations that choose between values: compare, select, clamp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..graph import Op
from ..room import Case, OpDefinition, attribute, constraint, operand
from ..room import operand as second
from ..types import BF16, C64, F32, I1, I8, UI8, TensorType, Type
from . import numerics
from .clauses import merge_dims, same_dims, same_element, same_or_quantized
from .examples import f32, hostile

DIRECTIONS = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "GE": np.greater_equal,
    "GT": np.greater,
    "LE": np.less_equal,
    "LT": np.less,
}
TYPES = ("NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED")


class Compare(OpDefinition, name="compare"):
    """result = lhs <comparison_direction> rhs; TOTALORDER orders NaNs and signed zeros too."""

    pattern = "elementwise"
    predicate = True
    lhs = operand()
    rhs = operand()
    comparison_direction = attribute(str)
    compare_type = attribute(str, "NOTYPE")
    C1 = constraint(
        "lhs and rhs have the same element type",
        lambda o: same_or_quantized(o.lhs.element, o.rhs.element),
    )
    C2 = constraint(
        "lhs and rhs have the same dimensions", lambda o: same_dims(o.lhs.dims, o.rhs.dims)
    )
    C3 = constraint(
        "compare_type fits the element type", lambda o: o.compare_type in _legal_types(o)
    )
    C4 = constraint(
        "comparison_direction is EQ, NE, GE, GT, LE or LT",
        lambda o: o.comparison_direction in DIRECTIONS,
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [TensorType(merge_dims(o.lhs.dims, o.rhs.dims), I1)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        lhs, rhs = arrays
        direction = DIRECTIONS[o.comparison_direction]
        if o.compare_type == "TOTALORDER":
            lhs, rhs = numerics.total_order(lhs), numerics.total_order(rhs)
        lhs, rhs = numerics.wide(lhs), numerics.wide(rhs)
        with np.errstate(all="ignore"):
            if lhs.dtype.kind == "c" and o.comparison_direction not in ("EQ", "NE"):
                return _lexicographic(o.comparison_direction, lhs, rhs)
            return np.asarray(direction(lhs, rhs))

    def cases(self) -> Iterator[Case]:
        for direction in DIRECTIONS:
            for element in (F32, BF16, I8, UI8, I1):
                name = f"compare_{direction}_{element.name}"
                yield Case(name, hostile(element, 2), {"comparison_direction": direction})
        for direction in ("EQ", "NE"):
            name = f"compare_{direction}_{C64.name}"
            yield Case(name, hostile(C64, 2), {"comparison_direction": direction})
        ordered = {"comparison_direction": "LT", "compare_type": "TOTALORDER"}
        yield Case("compare_total_order", hostile(F32, 2), ordered)


def _lexicographic(direction: str, lhs: Any, rhs: Any) -> Any:
    """The order of complex numbers: by real parts, equal ones by imaginary parts."""
    strict = np.less if direction in ("LT", "LE") else np.greater
    inner = DIRECTIONS[direction](lhs.imag, rhs.imag)
    return strict(lhs.real, rhs.real) | ((lhs.real == rhs.real) & inner)


def _legal_types(o: Op) -> tuple[str, ...]:
    kind = o.lhs.element.kind
    legal = {"bool": "UNSIGNED", "uint": "UNSIGNED", "int": "SIGNED", "complex": "FLOAT"}
    if kind in ("float", "quantized"):
        return ("NOTYPE", "FLOAT", "TOTALORDER")
    return ("NOTYPE", legal.get(kind, ""))


class Select(OpDefinition, name="select"):
    """result = on_true where pred, else on_false; pred may be a scalar."""

    pattern = "elementwise"
    pred = operand()
    on_true = operand()
    on_false = operand()
    C0 = constraint("pred is a tensor of i1", lambda o: o.pred.element is I1)
    C1 = constraint(
        "rank(pred) = 0 or pred has the dimensions of on_true",
        lambda o: o.pred.rank == 0 or same_dims(o.pred.dims, o.on_true.dims),
    )
    C2 = constraint(
        "on_true and on_false have the same type",
        lambda o: (
            same_dims(o.on_true.dims, o.on_false.dims)
            and same_element(o.on_true.element, o.on_false.element)
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        first = o.on_true.tensor
        dims = merge_dims(o.on_true.dims, o.on_false.dims)
        return [first if dims == first.dims else first.with_dims(dims)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return np.where(*arrays)

    def cases(self) -> Iterator[Case]:
        pred = np.array([True, False, True, True])
        for element in (F32, BF16, I8, I1):
            values = np.resize(hostile(element, 1)[0], 8).reshape(2, 4)
            yield Case(f"select_{element.name}", (pred, values[0], values[1]))
        left, right = f32([[1, 2], [3, 4]]), f32([[5, 6], [7, 8]])
        yield Case("select_scalar_pred", (np.array(False), left, right))


class Clamp(OpDefinition, name="clamp"):
    """result = minimum(maximum(operand, min), max); min and max may be scalars."""

    pattern = "elementwise"
    min = operand()
    operand = operand()
    max = second()
    C1 = constraint(
        "rank(min) = 0 or min has the dimensions of operand",
        lambda o: o.min.rank == 0 or same_dims(o.min.dims, o.operand.dims),
    )
    C2 = constraint(
        "rank(max) = 0 or max has the dimensions of operand",
        lambda o: o.max.rank == 0 or same_dims(o.max.dims, o.operand.dims),
    )
    C3 = constraint(
        "min, operand and max have the same element type",
        lambda o: (
            same_element(o.min.element, o.operand.element)
            and same_element(o.max.element, o.operand.element)
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.type]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        def formula(low: Any, x: Any, high: Any) -> Any:
            return numerics.minimum(numerics.maximum(x, low), high)

        return numerics.elementwise(formula, arrays, arrays[1].dtype)

    def cases(self) -> Iterator[Case]:
        for element in (F32, BF16, I8, UI8):
            (values,) = hostile(element, 1)
            yield Case(f"clamp_{element.name}", (values[2], values, values[3]))
        low, x, high = f32([0, 0, 2]), f32([-1, 5, 3]), f32([1, 1, 1])
        yield Case("clamp_crossed_bounds", (low, x, high))


ROOMS = (Compare(), Select(), Clamp())
