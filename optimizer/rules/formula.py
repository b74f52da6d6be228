"""Formulas over variables: what the two sides of an elementwise rule are written in.

`x y z` match any value, `p` any predicate, `c c1 c2` a constant whose elements are all equal,
`k k1 k2` a value known when the bundle is built. Python's operators make larger formulas.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...hlo.ops import find
from ...hlo.types import I1, ElementType

FLOAT = frozenset({"float"})
INTEGER = frozenset({"int", "uint"})
REAL = FLOAT | INTEGER
NUMBER = REAL | {"complex"}
BOOL = frozenset({"bool"})
ANY = NUMBER | BOOL


class FormulaNode:
    """A formula; Python's operators build larger ones."""

    def __add__(self, other: FormulaNode) -> FormulaNode:
        return Apply("add", (self, other))

    def __sub__(self, other: FormulaNode) -> FormulaNode:
        return Apply("subtract", (self, other))

    def __mul__(self, other: FormulaNode) -> FormulaNode:
        return Apply("multiply", (self, other))

    def __truediv__(self, other: FormulaNode) -> FormulaNode:
        return Apply("divide", (self, other))

    def __pow__(self, other: FormulaNode) -> FormulaNode:
        return Apply("power", (self, other))

    def __neg__(self) -> FormulaNode:
        return Apply("negate", (self,))

    def __abs__(self) -> FormulaNode:
        return Apply("abs", (self,))

    def __and__(self, other: FormulaNode) -> FormulaNode:
        return Apply("and", (self, other))

    def __or__(self, other: FormulaNode) -> FormulaNode:
        return Apply("or", (self, other))

    def __xor__(self, other: FormulaNode) -> FormulaNode:
        return Apply("xor", (self, other))

    def __invert__(self) -> FormulaNode:
        return Apply("not", (self,))


@dataclass(frozen=True)
class Variable(FormulaNode):
    """`kind`: "any", "predicate", "constant" (a splat), "static" (known at build time) or "dynamic"
    (not so)."""

    name: str
    kind: str = "any"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Literal(FormulaNode):
    """A number, or a function from the element type to one (None: that type has none)."""

    name: str
    value: Any

    @functools.cache  # noqa: B019 - literals live as long as the rules that hold them
    def of(self, element: ElementType) -> Any:
        """The numpy scalar of that element type; None if it has none."""
        value: Any = self.value(element) if callable(self.value) else self.value
        if value is None or (element.is_bool and not isinstance(value, bool)):
            return None
        if isinstance(value, bool) and not element.is_bool:
            return None
        if not element.is_float and not element.is_complex and value != int(value):
            return None
        if element.kind == "uint" and value < 0:
            return None
        return np.asarray(value).astype(element.dtype)[()]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Apply(FormulaNode):
    """An elementwise operation of formulas."""

    operation: str
    children: tuple[FormulaNode, ...]
    attributes: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.children))
        extra = "".join(f"{value} " for _, value in self.attributes)
        return f"{self.operation}({extra}{inner})"


x, y, z = (Variable(name) for name in "xyz")
v = Variable("v", "dynamic")
p = Variable("p", "predicate")
c, c1, c2 = (Variable(name, "constant") for name in ("c", "c1", "c2"))
k1, k2 = (Variable(name, "static") for name in ("k1", "k2"))

zero = Literal("0", lambda element: None if element.is_bool else 0)
neg_zero = Literal("-0.0", lambda element: -0.0 if element.is_float else None)
one = Literal("1", lambda element: None if element.is_bool else 1)
neg_one = Literal("-1", lambda element: None if element.is_bool else -1)
two, three = Literal("2", 2), Literal("3", 3)
half, neg_half = Literal("0.5", 0.5), Literal("-0.5", -0.5)
true, false = Literal("true", True), Literal("false", False)


def _extreme(sign: int) -> Callable[[ElementType], Any]:
    def value(element: ElementType) -> Any:
        if element.is_float:
            return sign * np.inf
        if element.is_bool:
            return sign > 0
        if element.is_integer and element.bits >= 8:
            limits = np.iinfo(element.dtype)
            return int(limits.max if sign > 0 else limits.min)
        return None

    return value


highest, lowest = Literal("highest", _extreme(1)), Literal("lowest", _extreme(-1))
all_ones = Literal(
    "all ones",
    lambda e: True if e.is_bool else -1 if e.kind == "int" else (1 << e.bits) - 1
    if e.kind == "uint" else None,
)  # fmt: skip
nothing = Literal("no bits", lambda e: False if e.is_bool else 0 if e.is_integer else None)


def op(operation: str, *children: FormulaNode, **attributes: Any) -> FormulaNode:
    """Any elementwise operation by its name."""
    return Apply(operation, children, tuple(sorted(attributes.items())))


def compare(direction: str, left: FormulaNode, right: FormulaNode) -> FormulaNode:
    return op("compare", left, right, comparison_direction=direction)


def select(predicate: FormulaNode, on_true: FormulaNode, on_false: FormulaNode) -> FormulaNode:
    return op("select", predicate, on_true, on_false)


def maximum(left: FormulaNode, right: FormulaNode) -> FormulaNode:
    return op("maximum", left, right)


def minimum(left: FormulaNode, right: FormulaNode) -> FormulaNode:
    return op("minimum", left, right)


def exp(value: FormulaNode) -> FormulaNode:
    return op("exponential", value)


def log(value: FormulaNode) -> FormulaNode:
    return op("log", value)


def sqrt(value: FormulaNode) -> FormulaNode:
    return op("sqrt", value)


def rsqrt(value: FormulaNode) -> FormulaNode:
    return op("rsqrt", value)


def convert(value: FormulaNode) -> FormulaNode:
    """In a pattern: from any element type. In a replacement: to the type that is needed there."""
    return op("convert", value)


# Parts and types of formulas.


def names_in(node: FormulaNode) -> set[str]:
    if isinstance(node, Variable):
        return {node.name}
    return {name for child in getattr(node, "children", ()) for name in names_in(child)}


def variables(node: FormulaNode) -> list[Variable]:
    if isinstance(node, Variable):
        return [node]
    found: dict[Variable, None] = {}
    for child in getattr(node, "children", ()):
        found.update(dict.fromkeys(variables(child)))
    return list(found)


def operations(node: FormulaNode) -> int:
    """How many operations of a formula are left when what is known has been folded."""
    if not any(v.kind not in ("constant", "static") for v in variables(node)):
        return 0
    return isinstance(node, Apply) + sum(map(operations, getattr(node, "children", ())))


def variable_type(variable: Variable) -> Any:
    return "predicate" if variable.kind == "predicate" else f"type of {variable.name}"


def literals(node: FormulaNode) -> list[Literal]:
    if isinstance(node, Literal):
        return [node]
    return [found for child in getattr(node, "children", ()) for found in literals(child)]


def literal_missing(node: Literal, element: ElementType) -> bool:
    return node.of(element) is None and node.of(I1) is None


class Types:
    """Type variables of one rule: predicates are one type, everything else is inferred."""

    def __init__(self) -> None:
        self.parents: dict[Any, Any] = {}
        self.rigid: set[Any] = set()
        self.literals = 0

    def find(self, item: Any) -> Any:
        while item in self.parents:
            item = self.parents[item]
        return item

    def unify(self, left: Any, right: Any) -> None:
        left, right = self.find(left), self.find(right)
        if left == right:
            return
        if left in self.rigid and right in self.rigid:
            raise ValueError(f"its sides need {left} and {right} to be one type")
        if left in self.rigid or left == "predicate":
            left, right = right, left
        self.parents[left] = right

    def infer(self, node: FormulaNode) -> Any:
        if isinstance(node, Variable):
            return "predicate" if node.kind == "predicate" else f"type of {node.name}"
        if isinstance(node, Literal):
            self.literals += 1
            return ("literal", self.literals)
        assert isinstance(node, Apply)
        types = [self.infer(child) for child in node.children]
        if node.operation == "convert":
            return ("converted", id(node))
        if node.operation == "select":
            self.unify(types[0], "predicate")
            types = types[1:]
        for other in types[1:]:
            self.unify(types[0], other)
        return "predicate" if find(node.operation).predicate else types[0]
