"""The little language of elementwise rules: two formulas over variables, and a licence.

    rule("add-zero", x + zero, x, licence=IGNORES_ZERO_SIGN)

A name used twice matches one value only. Operands of commutative operations match in either order.
Building a rule checks it: every name of the replacement is bound, and both sides have one type.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...hlo.graph import Op, Value
from ...hlo.ops import find
from ...hlo.types import I1, ElementType, TensorType, unsharded
from ..licence import BITWISE, Licence
from ..rewrite import Rewriter
from ..rule import Example, Rule
from .formula import (
    REAL,
    Apply,
    Literal,
    Node,
    Types,
    Variable,
    literals,
    names_in,
    operations,
    variable_type,
    variables,
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


def _variants(node: Node) -> list[Node]:
    """The pattern with the operands of its commutative operations in every order that differs."""
    if not isinstance(node, Apply):
        return [node]
    found = []
    for children in itertools.product(*(_variants(child) for child in node.children)):
        orders = [children]
        if find(node.operation).commutative and len(children) == 2:
            orders.append((children[1], children[0]))
        for order in orders:
            twin = Apply(node.operation, order, node.attributes)
            if twin not in found:
                found.append(twin)
    return found


def _same_attributes(wanted: Sequence[tuple[str, Any]], candidate: Op) -> bool:
    attributes = candidate.attributes
    if attributes.get("compare_type") == "TOTALORDER":
        return False
    return all(attributes.get(name) == value for name, value in wanted)


def _match(node: Node, value: Value, bindings: Bindings, b: Rewriter) -> bool:
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
    if node.attributes and not _same_attributes(node.attributes, owner):
        return False
    return _match_all(node.children, owner.operands, bindings, b)


def _match_all(
    nodes: Sequence[Node], values: Sequence[Value], bindings: Bindings, b: Rewriter
) -> bool:
    for node, value in zip(nodes, values, strict=True):  # noqa: SIM110 - half the time of all(...)
        if not _match(node, value, bindings, b):
            return False
    return True


def _makers(pattern: Apply) -> tuple[tuple[int, str], ...]:
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


def build(node: Node, bindings: Mapping[str, Value], b: Any, wanted: TensorType) -> Value:
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
    if node.operation in ("compare", "is_finite"):
        inner_type = _type_of_operands(node, bindings)
        operands = [build(child, bindings, b, inner_type) for child in node.children]
        return b(node.operation, *operands, **attributes)
    operands = [build(child, bindings, b, wanted) for child in node.children]
    return b(node.operation, *operands, **attributes)


def _type_of_operands(node: Node, bindings: Mapping[str, Value]) -> TensorType:
    """The type of the first variable below a comparison."""
    if isinstance(node, Variable):
        return bindings[node.name].tensor
    for child in getattr(node, "children", ()):
        if not isinstance(child, Literal):
            return _type_of_operands(child, bindings)
    raise ValueError(f"nothing tells the type of {node}")


# Rules.


def _check(name: str, pattern: Node, replacement: Node) -> None:
    unbound = sorted(names_in(replacement) - names_in(pattern))
    if unbound:
        raise ValueError(f"rule '{name}': {', '.join(unbound)} is not bound by its pattern")
    types = Types()
    try:
        left = types.infer(pattern)
        bound = [variable_type(variable) for variable in variables(pattern)]
        types.rigid = {types.find(item) for item in ("predicate", *bound)}
        right = types.infer(replacement)
        types.unify(left, right)
    except ValueError as error:
        raise ValueError(f"rule '{name}': {error}") from None


def rule(
    name: str,
    pattern: Node,
    replacement: Node,
    licence: Licence = BITWISE,
    kinds: frozenset[str] = REAL,
    where: Condition | None = None,
    ulps: int = 0,
    lowers: str = "",
    single: bool = False,
) -> Rule:
    """A rule from two formulas.

    `kinds`: element kinds that the data may have; `where`: a condition on the match; `single`: the
    operations inside the pattern must have no other user, so that they disappear. `lowers`: as in
    `Rule`; where it is not said, the operations, or as many of them for cheaper ones.
    """
    if not isinstance(pattern, Apply):
        raise ValueError(f"rule '{name}': its pattern must be an operation")
    _check(name, pattern, replacement)
    variants = [
        (variant, _makers(variant)) for variant in _variants(pattern) if isinstance(variant, Apply)
    ]
    fewer = operations(replacement) < operations(pattern)
    lowers = lowers or ("operations" if fewer else "costlier operations")
    data = [v for v in variables(pattern) if v.kind != "predicate"]
    makes_constants = bool(literals(replacement))

    def admissible(bindings: Bindings, root: Op, b: Rewriter) -> bool:
        element = bindings[data[0].name].element if data else root.results[0].element
        if getattr(element, "kind", "") not in kinds or (element.is_float and element.bits < 16):
            return False
        return where is None or where(Match(bindings, b))

    def attempt(variant: Apply, root: Op, b: Rewriter) -> Value | None:
        if variant.attributes and not _same_attributes(variant.attributes, root):
            return None
        bindings: Bindings = {}
        if not _match_all(variant.children, root.operands, bindings, b):
            return None
        if not admissible(bindings, root, b) or (single and not _alone(variant, root, b)):
            return None
        result = root.results[0].tensor
        if makes_constants and not result.is_static:
            return None
        if isinstance(replacement, Variable):
            given = bindings[replacement.name].type
            if unsharded(given) is not unsharded(result):
                return None  # a scalar predicate of a select, say
        return build(replacement, bindings, b, result)

    def rewrite(root: Op, b: Rewriter) -> Value | None:
        operands = root.operands
        for variant, makers in variants:
            for index, name in makers:
                owner = operands[index].owner
                if not isinstance(owner, Op) or owner.definition.name != name:
                    break
            else:
                found = attempt(variant, root, b)
                if found is not None:
                    return found
        return None

    def examples() -> Iterator[Example]:
        from .generated import examples_of  # builds the formulas of this module

        return examples_of(pattern, kinds, where)

    text = f"{pattern} -> {replacement}"
    every = all(makers for _, makers in variants)
    made = frozenset(made for _, makers in variants for _, made in makers if every)
    made_from = {
        "pattern": pattern, "replacement": replacement, "licence": licence, "kinds": kinds,
        "where": where, "ulps": ulps, "lowers": lowers, "single": single,
    }  # fmt: skip
    return Rule(
        name, (pattern.operation,), rewrite, licence, examples, lowers, ulps, text, makers=made,
        single=single, made_from=made_from,
    )  # fmt: skip


def _alone(pattern: Apply, root: Op, b: Rewriter) -> bool:
    for child, operand in zip(pattern.children, root.operands, strict=True):
        if isinstance(child, Apply):
            owner = operand.owner
            if not b.single_use(operand) or not isinstance(owner, Op):
                return False
            if not _alone(child, owner, b):
                return False
    return True
