"""Formulas of rules: found in a program, and built in one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...hlo.graph import Op, Value
from ...hlo.ops import find
from ...hlo.types import I1, ElementType, TensorType
from ..rewrite import Rewriter
from .formula import (
    Apply,
    FormulaNode,
    Literal,
    Variable,
)

Bindings = dict[str, Value]
Condition = Callable[["Match"], bool]


class Match:
    """What a pattern matched: `m.x` is a value, `m.c` the number of a constant."""

    def __init__(self, bindings: Bindings, rewriter: Rewriter) -> None:
        self._bindings, self._rewriter = bindings, rewriter

    def __getattr__(self, name: str) -> Any:
        value = self._bindings[name]
        number = self._rewriter.scalar(value)
        return value if number is None else number

    def value(self, name: str) -> Value:
        return self._bindings[name]


# Matching.


def variants_of(node: FormulaNode) -> list[FormulaNode]:
    """The pattern with the operands of its commutative operations in every order that differs."""
    if not isinstance(node, Apply):
        return [node]
    found = []
    for children in itertools.product(*(variants_of(child) for child in node.children)):
        orders = [children]
        if find(node.operation).commutative and len(children) == 2:
            orders.append((children[1], children[0]))
        for order in orders:
            twin = Apply(node.operation, order, node.attributes)
            if twin not in found:
                found.append(twin)
    return found


def same_attributes(wanted: Sequence[tuple[str, Any]], candidate: Op) -> bool:
    attributes = candidate.attributes
    if attributes.get("compare_type") == "TOTALORDER":
        return False
    return all(attributes.get(name) == value for name, value in wanted)


def _match(node: FormulaNode, value: Value, bindings: Bindings, b: Rewriter) -> bool:
    if isinstance(node, Variable):
        known = bindings.get(node.name)
        if known is not None:
            return known is value
        if node.kind == "constant" and b.scalar(value) is None:
            return False
        if node.kind in ("static", "dynamic") and b.is_static(value) != (node.kind == "static"):
            return False
        if node.kind == "predicate" and value.element is not I1:
            return False
        bindings[node.name] = value
        return True
    if isinstance(node, Literal):
        number = b.scalar(value)
        return number is not None and _is_literal(node, number, value.element)
    owner = value.owner
    assert isinstance(node, Apply)
    if not isinstance(owner, Op) or owner.definition.name != node.operation:
        return False
    if node.attributes and not same_attributes(node.attributes, owner):
        return False
    return match_all(node.children, owner.operands, bindings, b)


def match_all(
    nodes: Sequence[FormulaNode], values: Sequence[Value], bindings: Bindings, b: Rewriter
) -> bool:
    for node, value in zip(nodes, values, strict=True):  # noqa: SIM110 - half the time of all(...)
        if not _match(node, value, bindings, b):
            return False
    return True


def makers_of(pattern: Apply) -> tuple[tuple[int, str], ...]:
    """Operands that one operation has to make, and its name: what most candidates fail on."""
    found = []
    for index, child in enumerate(pattern.children):
        if isinstance(child, Apply):
            found.append((index, child.operation))
        elif isinstance(child, Literal) or (
            isinstance(child, Variable) and child.kind == "constant"
        ):
            found.append((index, "constant"))
    return tuple(found)


def _is_literal(node: Literal, number: Any, element: ElementType) -> bool:
    wanted = node.of(element)
    if wanted is None or not bool(number == wanted):
        return False
    return not element.is_float or bool(np.signbit(number) == np.signbit(wanted))


# Building.


def build(node: FormulaNode, bindings: Mapping[str, Value], b: Any, wanted: TensorType) -> Value:
    if isinstance(node, Variable):
        return bindings[node.name]
    if isinstance(node, Literal):
        return b.splat(node.of(wanted.element), wanted)
    assert isinstance(node, Apply)
    attributes = dict(node.attributes)
    if node.operation == "convert":
        inner = build(node.children[0], bindings, b, wanted)
        return b.convert(inner, wanted.element)
    if node.operation == "select":
        condition, *branches = node.children
        chosen = [build(branch, bindings, b, wanted) for branch in branches]
        predicate = build(condition, bindings, b, wanted.with_element(I1))
        return b(node.operation, predicate, *chosen)
    if find(node.operation).predicate:
        inner_type = _type_of_operands(node, bindings)
        operands = [build(child, bindings, b, inner_type) for child in node.children]
        return b(node.operation, *operands, **attributes)
    operands = [build(child, bindings, b, wanted) for child in node.children]
    return b(node.operation, *operands, **attributes)


def _type_of_operands(node: FormulaNode, bindings: Mapping[str, Value]) -> TensorType:
    """The type of the first variable below a comparison."""
    if isinstance(node, Variable):
        return bindings[node.name].tensor
    for child in getattr(node, "children", ()):
        if not isinstance(child, Literal):
            return _type_of_operands(child, bindings)
    raise ValueError(f"nothing tells the type of {node}")


def alone(pattern: Apply, root: Op, b: Rewriter) -> bool:
    for child, operand in zip(pattern.children, root.operands, strict=True):
        if isinstance(child, Apply):
            owner = operand.owner
            if not b.single_use(operand) or not isinstance(owner, Op):
                return False
            if not alone(child, owner, b):
                return False
    return True
