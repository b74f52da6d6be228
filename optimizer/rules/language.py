"""The little language of elementwise rules: two formulas over variables, and a licence.

    rule("add-zero", x + zero, x, licence=IGNORES_ZERO_SIGN)

`x y z w` match any value, `p q` any predicate, `c c1 c2` a constant whose elements are all equal,
`k k1 k2` a value known when the bundle is built. A name used twice matches one value only.
Operands of commutative operations match in either order. Building a rule checks it: every name of
the replacement is bound, and both sides have one type.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...hlo.build import Builder
from ...hlo.graph import Op, Value
from ...hlo.ops import find
from ...hlo.types import BF16, F16, F32, F64, I1, I8, I32, UI8, ElementType, TensorType
from ..licence import BITWISE, Licence
from ..rewrite import Rewriter
from ..rule import Example, Rule

FLOAT = frozenset({"float"})
INTEGER = frozenset({"int", "uint"})
REAL = FLOAT | INTEGER
NUMBER = REAL | {"complex"}
BOOL = frozenset({"bool"})
ANY = NUMBER | BOOL

EXAMPLE_TYPES = (F32, F64, F16, BF16, I32, I8, UI8, I1)


class Node:
    """A formula; Python's operators build larger ones."""

    def __add__(self, other: Node) -> Node:
        return Apply("add", (self, other))

    def __sub__(self, other: Node) -> Node:
        return Apply("subtract", (self, other))

    def __mul__(self, other: Node) -> Node:
        return Apply("multiply", (self, other))

    def __truediv__(self, other: Node) -> Node:
        return Apply("divide", (self, other))

    def __pow__(self, other: Node) -> Node:
        return Apply("power", (self, other))

    def __neg__(self) -> Node:
        return Apply("negate", (self,))

    def __abs__(self) -> Node:
        return Apply("abs", (self,))

    def __and__(self, other: Node) -> Node:
        return Apply("and", (self, other))

    def __or__(self, other: Node) -> Node:
        return Apply("or", (self, other))

    def __xor__(self, other: Node) -> Node:
        return Apply("xor", (self, other))

    def __invert__(self) -> Node:
        return Apply("not", (self,))


@dataclass(frozen=True)
class Variable(Node):
    """`kind`: "any", "predicate", "constant" (a splat) or "static" (known at build time)."""

    name: str
    kind: str = "any"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Literal(Node):
    """A number, or a function from the element type to one (None: that type has none)."""

    name: str
    value: Any

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
class Apply(Node):
    """An elementwise operation of formulas."""

    operation: str
    children: tuple[Node, ...]
    attributes: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.children))
        extra = "".join(f"{value} " for _, value in self.attributes)
        return f"{self.operation}({extra}{inner})"


x, y, z, w = (Variable(name) for name in "xyzw")
p, q = (Variable(name, "predicate") for name in "pq")
c, c1, c2 = (Variable(name, "constant") for name in ("c", "c1", "c2"))
k, k1, k2 = (Variable(name, "static") for name in ("k", "k1", "k2"))

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


def op(operation: str, *children: Node, **attributes: Any) -> Node:
    """Any elementwise operation by its name."""
    return Apply(operation, children, tuple(sorted(attributes.items())))


def compare(direction: str, left: Node, right: Node) -> Node:
    return op("compare", left, right, comparison_direction=direction)


def select(predicate: Node, on_true: Node, on_false: Node) -> Node:
    return op("select", predicate, on_true, on_false)


def maximum(left: Node, right: Node) -> Node:
    return op("maximum", left, right)


def minimum(left: Node, right: Node) -> Node:
    return op("minimum", left, right)


def exp(value: Node) -> Node:
    return op("exponential", value)


def log(value: Node) -> Node:
    return op("log", value)


def sqrt(value: Node) -> Node:
    return op("sqrt", value)


def rsqrt(value: Node) -> Node:
    return op("rsqrt", value)


def convert(value: Node) -> Node:
    """In a pattern: from any element type. In a replacement: to the type that is needed there."""
    return op("convert", value)


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
        if node.kind == "static" and not b.is_static(value):
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
    return all(
        _match(child, operand, bindings, b)
        for child, operand in zip(node.children, owner.operands, strict=True)
    )


def _is_literal(node: Literal, number: Any, element: ElementType) -> bool:
    wanted = node.of(element)
    if wanted is None or not bool(number == wanted):
        return False
    return not element.is_float or bool(np.signbit(number) == np.signbit(wanted))


# Building.


def _build(node: Node, bindings: Mapping[str, Value], b: Any, wanted: TensorType) -> Value:
    if isinstance(node, Variable):
        return bindings[node.name]
    if isinstance(node, Literal):
        return b.splat(node.of(wanted.element), wanted)
    assert isinstance(node, Apply)
    attributes = dict(node.attributes)
    if node.operation == "convert":
        inner = _build(node.children[0], bindings, b, wanted)
        return b.convert(inner, wanted.element)
    if node.operation == "select":
        condition, *branches = node.children
        chosen = [_build(branch, bindings, b, wanted) for branch in branches]
        predicate = _build(condition, bindings, b, wanted.with_element(I1))
        return b(node.operation, predicate, *chosen)
    if node.operation in ("compare", "is_finite"):
        inner_type = _type_of_operands(node, bindings)
        operands = [_build(child, bindings, b, inner_type) for child in node.children]
        return b(node.operation, *operands, **attributes)
    operands = [_build(child, bindings, b, wanted) for child in node.children]
    return b(node.operation, *operands, **attributes)


def _type_of_operands(node: Node, bindings: Mapping[str, Value]) -> TensorType:
    """The type of the first variable below a comparison."""
    if isinstance(node, Variable):
        return bindings[node.name].tensor
    for child in getattr(node, "children", ()):
        if not isinstance(child, Literal):
            return _type_of_operands(child, bindings)
    raise ValueError(f"nothing tells the type of {node}")


# Types of formulas.


class _Types:
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

    def infer(self, node: Node) -> Any:
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
        return "predicate" if node.operation in ("compare", "is_finite") else types[0]


def _names(node: Node) -> set[str]:
    if isinstance(node, Variable):
        return {node.name}
    return {name for child in getattr(node, "children", ()) for name in _names(child)}


def _check(name: str, pattern: Node, replacement: Node) -> None:
    unbound = sorted(_names(replacement) - _names(pattern))
    if unbound:
        raise ValueError(f"rule '{name}': {', '.join(unbound)} is not bound by its pattern")
    types = _Types()
    try:
        left = types.infer(pattern)
        bound = [_variable_type(variable) for variable in _variables(pattern)]
        types.rigid = {types.find(item) for item in ("predicate", *bound)}
        right = types.infer(replacement)
        types.unify(left, right)
    except ValueError as error:
        raise ValueError(f"rule '{name}': {error}") from None


def _variables(node: Node) -> list[Variable]:
    if isinstance(node, Variable):
        return [node]
    found: dict[Variable, None] = {}
    for child in getattr(node, "children", ()):
        found.update(dict.fromkeys(_variables(child)))
    return list(found)


def _variable_type(variable: Variable) -> Any:
    return "predicate" if variable.kind == "predicate" else f"type of {variable.name}"


def rule(
    name: str,
    pattern: Node,
    replacement: Node,
    licence: Licence = BITWISE,
    kinds: frozenset[str] = REAL,
    where: Condition | None = None,
    ulps: int = 0,
    lowers: str = "operations",
    single: bool = False,
) -> Rule:
    """A rule from two formulas.

    `kinds`: element kinds that the data may have; `where`: a condition on the match; `single`: the
    operations inside the pattern must have no other user, so that they disappear.
    """
    if not isinstance(pattern, Apply):
        raise ValueError(f"rule '{name}': its pattern must be an operation")
    _check(name, pattern, replacement)
    variants = [variant for variant in _variants(pattern) if isinstance(variant, Apply)]
    data = [v for v in _variables(pattern) if v.kind != "predicate"]

    def admissible(bindings: Bindings, root: Op, b: Rewriter) -> bool:
        element = bindings[data[0].name].element if data else root.results[0].element
        if getattr(element, "kind", "") not in kinds or (element.is_float and element.bits < 16):
            return False
        return where is None or where(Match(bindings, b))

    def rewrite(root: Op, b: Rewriter) -> Value | None:
        for variant in variants:
            if variant.attributes and not _same_attributes(variant.attributes, root):
                continue
            bindings: Bindings = {}
            if not all(
                _match(child, operand, bindings, b)
                for child, operand in zip(variant.children, root.operands, strict=True)
            ):
                continue
            if not admissible(bindings, root, b):
                continue
            if single and not _alone(variant, root, b):
                continue
            result = root.results[0].tensor
            if isinstance(replacement, Variable) and bindings[replacement.name].type is not result:
                continue  # a scalar predicate of a select, say
            return _build(replacement, bindings, b, result)
        return None

    def examples() -> Iterator[Example]:
        return _examples(name, pattern, kinds, where)

    text = f"{pattern} -> {replacement}"
    return Rule(name, (pattern.operation,), rewrite, licence, examples, lowers, ulps, text)


def _alone(pattern: Apply, root: Op, b: Rewriter) -> bool:
    for child, operand in zip(pattern.children, root.operands, strict=True):
        if isinstance(child, Apply):
            owner = operand.owner
            if not b.single_use(operand) or not isinstance(owner, Op):
                return False
            if not _alone(child, owner, b):
                return False
    return True


# Examples: the pattern itself, over element types, shapes and constants.

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


def _examples(
    name: str, pattern: Apply, kinds: frozenset[str], where: Condition | None
) -> Iterator[Example]:
    names = _variables(pattern)
    data = [v for v in names if v.kind != "predicate"]
    constants = [v for v in names if v.kind == "constant"]
    for element in EXAMPLE_TYPES:
        if element.kind not in kinds or not (data or element is I1):
            continue
        choices = list(itertools.product(_constants_of(element), repeat=len(constants)))
        for shape in _SHAPES:
            if shape == (0,) and (constants or _literals(pattern)):
                continue  # an empty constant equals no number
            few = choices if shape == (676,) else choices[:: max(1, len(choices) // 5)]
            for choice in few:
                numbers = dict(zip((v.name for v in constants), choice, strict=True))
                made = _example(name, pattern, where, TensorType(shape, element), numbers)
                if made is not None:
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
    name: str, pattern: Apply, where: Condition | None, type: TensorType, numbers: dict[str, Any]
) -> Example | None:
    types = _Types()
    root = types.find(types.infer(pattern))
    data = [v for v in _variables(pattern) if v.kind != "predicate"]
    main = types.find(_variable_type(data[0])) if data else root

    def type_of(variable: Variable) -> TensorType:
        found = types.find(_variable_type(variable))
        if found == "predicate":
            return type.with_element(I1)
        return type if found == main else type.with_element(F64 if type.element is F32 else F32)

    b = _Plain()
    loose = [v for v in _variables(pattern) if v.kind not in ("constant", "static")]
    given = b.arguments([type_of(v) for v in loose])
    values = {v.name: value for v, value in zip(loose, given, strict=True)}
    for variable in _variables(pattern):
        if variable.kind == "constant":
            values[variable.name] = b.constant(numbers[variable.name], type_of(variable))
        elif variable.kind == "static":
            count = type.size
            numbers_of = np.resize(np.array([1, 2, 3, 4, 0, 5, 6, 1]), count).reshape(type.dims)
            values[variable.name] = b.constant(numbers_of, type_of(variable))
    if where is not None and not where(Match(values, _Constants())):  # type: ignore[arg-type]
        return None
    if any(_literal_missing(node, type.element) for node in _literals(pattern)):
        return None
    root_type = type.with_element(I1) if root == "predicate" else type
    try:
        result = _build(pattern, values, b, root_type)
    except KeyError:
        return None
    shown = ", ".join(f"{key}={value}" for key, value in numbers.items())
    return Example(f"{type} {shown}".strip(), b.region([result]))


def _literals(node: Node) -> list[Literal]:
    if isinstance(node, Literal):
        return [node]
    return [found for child in getattr(node, "children", ()) for found in _literals(child)]


def _literal_missing(node: Literal, element: ElementType) -> bool:
    return node.of(element) is None and node.of(I1) is None


