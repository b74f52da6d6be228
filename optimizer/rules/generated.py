"""Examples of formula rules: the pattern itself, over element types, shapes and constants."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...hlo.build import Builder
from ...hlo.graph import Value
from ...hlo.types import BF16, F16, F32, F64, I1, I8, I32, UI8, ElementType, TensorType
from ..rule import Example
from .formula import Apply, Types, Variable, literal_missing, literals, variable_type, variables
from .matching import Condition, Match, build

EXAMPLE_TYPES = (F32, F64, F16, BF16, I32, I8, UI8, I1)
_CONSTANTS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -4.0, 3.0, 7.0, np.inf, -np.inf, np.nan)
_SHAPES = ((676,), (), (1,), (0,), (2, 3))


class _Plain(Builder):
    """A builder with the rewriter's `splat`."""

    def splat(self, value: Any, type: TensorType) -> Value:
        return self.constant(value, type)


class _Constants:
    """Stands for a rewriter while a condition looks at an example's constants."""

    def scalar(self, value: Value) -> Any:
        owner = value.op
        return owner.value.splat_value if owner is not None and owner.name == "constant" else None


def examples_of(
    pattern: Apply, kinds: frozenset[str], where: Condition | None
) -> Iterator[Example]:
    names = variables(pattern)
    data = [v for v in names if v.kind != "predicate"]
    constants = [v for v in names if v.kind == "constant"]
    for element in EXAMPLE_TYPES:
        if element.kind not in kinds or not (data or element is I1):
            continue
        choices = list(itertools.product(_constants_of(element), repeat=len(constants)))
        for shape in _SHAPES:
            if shape == (0,) and (constants or literals(pattern)):
                continue  # an empty constant equals no number
            few = choices if shape == (676,) else choices[:: max(1, len(choices) // 5)]
            for choice in few:
                numbers = dict(zip((v.name for v in constants), choice, strict=True))
                made = _example(pattern, where, TensorType(shape, element), numbers)
                if made is not None and (made.fires or shape == (676,)):
                    yield made


def _constants_of(element: ElementType) -> list[Any]:
    if element.is_float:
        return list(_CONSTANTS)
    if element.is_bool:
        return [False, True]
    limits = np.iinfo(element.dtype)
    negative = {-1} if limits.min else set()
    return sorted({0, 1, 2, 3, 5, int(limits.max), int(limits.min)} | negative)


def _example(
    pattern: Apply, where: Condition | None, type: TensorType, numbers: dict[str, Any]
) -> Example | None:
    types = Types()
    root = types.find(types.infer(pattern))
    data = [v for v in variables(pattern) if v.kind != "predicate"]
    main = types.find(variable_type(data[0])) if data else root

    def type_of(variable: Variable) -> TensorType:
        found = types.find(variable_type(variable))
        if found == "predicate":
            return type.with_element(I1)
        return type if found == main else type.with_element(F64 if type.element is F32 else F32)

    b = _Plain()
    loose = [v for v in variables(pattern) if v.kind not in ("constant", "static")]
    given = b.arguments([type_of(v) for v in loose])
    values = {v.name: value for v, value in zip(loose, given, strict=True)}
    for variable in variables(pattern):
        if variable.kind == "constant":
            values[variable.name] = b.constant(numbers[variable.name], type_of(variable))
        elif variable.kind == "static":
            count = type.size
            numbers_of = np.resize(np.array([1, 2, 3, 4, 0, 5, 6, 1]), count).reshape(type.dims)
            numbers_of = numbers_of + 2 * len(values)  # other ones for each variable
            values[variable.name] = b.constant(numbers_of, type_of(variable))
    fires = where is None or bool(where(Match(values, _Constants())))  # type: ignore[arg-type]
    if any(literal_missing(node, type.element) for node in literals(pattern)):
        return None
    root_type = type.with_element(I1) if root == "predicate" else type
    try:
        result = build(pattern, values, b, root_type)
    except KeyError:
        return None
    shown = ", ".join(f"{key}={value}" for key, value in numbers.items())
    return Example(f"{type} {shown}".strip(), b.region([result]), fires=fires)
