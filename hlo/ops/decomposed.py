"""Rooms whose meaning is a decomposition: one formula that is interpreted here and compiled there.

`Term` lets a formula be written as one: `x * (y + 1)` builds `multiply` and `add`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..graph import Op, Region, Value
from ..room import OpDefinition
from ..types import F32


class Decomposed(OpDefinition):
    """Evaluates by interpreting its decomposition (`expansion.py`): that is its one arithmetic."""

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return context["expanded"](o, arrays)


def inlined(b: Any, region: Region, values: Sequence[Value]) -> list[Value]:
    """The region's operations built again on `values`; their results."""
    return _inlined_with(b, region, dict(zip(region.arguments, values, strict=True)))


def _inlined_with(b: Any, region: Region, replaced: dict[Value, Value]) -> list[Value]:
    known = dict(replaced)
    for op in region.ops:
        operands = [known.get(value, value) for value in op.operands]
        regions = [_copied(b, inner, known) for inner in op.regions]
        made = b.op(op.name, operands, op.attributes, regions, op.result_types)
        known.update(zip(op.results, made.results, strict=True))
    return [known.get(value, value) for value in region.results]


def _copied(b: Any, region: Region, known: dict[Value, Value]) -> Region:
    """The region with outer values replaced; itself if it uses none of them."""
    outer = [value for value in region.captures() if value in known]
    if not outer:
        return region
    whole = Region((), region.ops, region.results)

    def body(b: Any, *arguments: Value) -> list[Value]:
        pairs = {**known, **dict(zip(region.arguments, arguments, strict=True))}
        return _inlined_with(b, whole, pairs)

    return b.nested(region.argument_types, body)


class Term:
    """A value under construction; numbers on either side become constants of its type."""

    __slots__ = ("b", "value")

    def __init__(self, b: Any, value: Any) -> None:
        self.b, self.value = b, value

    @property
    def element(self) -> Any:
        return self.value.element

    def like(self, other: Any) -> Term:
        """`other` as a term of this one's type."""
        if isinstance(other, Term):
            return other
        return Term(self.b, self.b.constant(other, self.value.tensor))

    def op(self, name: str, *others: Any) -> Term:
        return Term(self.b, self.b(name, self.value, *(self.like(x).value for x in others)))

    def compare(self, direction: str, other: Any) -> Term:
        return Term(self.b, self.b.compare(direction, self.value, self.like(other).value))

    def convert(self, element: Any) -> Term:
        return Term(self.b, self.b.convert(self.value, element))

    def bits(self, element: Any) -> Term:
        """The same bits as another element type of the same width."""
        wanted = self.value.tensor.with_element(element)
        return Term(self.b, self.b("bitcast_convert", self.value, type=wanted))

    def __add__(self, other: Any) -> Term:
        return self.op("add", other)

    def __radd__(self, other: Any) -> Term:
        return self.like(other).op("add", self)

    def __sub__(self, other: Any) -> Term:
        return self.op("subtract", other)

    def __rsub__(self, other: Any) -> Term:
        return self.like(other).op("subtract", self)

    def __mul__(self, other: Any) -> Term:
        return self.op("multiply", other)

    def __rmul__(self, other: Any) -> Term:
        return self.like(other).op("multiply", self)

    def __truediv__(self, other: Any) -> Term:
        return self.op("divide", other)

    def __rtruediv__(self, other: Any) -> Term:
        return self.like(other).op("divide", self)

    def __neg__(self) -> Term:
        return self.op("negate")

    def __abs__(self) -> Term:
        return self.op("abs")

    def __and__(self, other: Any) -> Term:
        return self.op("and", other)

    def __or__(self, other: Any) -> Term:
        return self.op("or", other)

    def __xor__(self, other: Any) -> Term:
        return self.op("xor", other)

    def __invert__(self) -> Term:
        return self.op("not")

    def __lshift__(self, other: Any) -> Term:
        return self.op("shift_left", other)

    def __rshift__(self, other: Any) -> Term:
        """Zeros come in from the left."""
        return self.op("shift_right_logical", other)

    def __lt__(self, other: Any) -> Term:
        return self.compare("LT", other)

    def __le__(self, other: Any) -> Term:
        return self.compare("LE", other)

    def __gt__(self, other: Any) -> Term:
        return self.compare("GT", other)

    def __ge__(self, other: Any) -> Term:
        return self.compare("GE", other)

    def equals(self, other: Any) -> Term:
        return self.compare("EQ", other)

    def differs(self, other: Any) -> Term:
        return self.compare("NE", other)


def where(condition: Term, yes: Any, no: Any) -> Term:
    """yes where the condition holds, else no; one of them must be a term."""
    like = yes if isinstance(yes, Term) else no
    b = condition.b
    return Term(b, b("select", condition.value, like.like(yes).value, like.like(no).value))


def exp(x: Term) -> Term:
    return x.op("exponential")


def expm1(x: Term) -> Term:
    return x.op("exponential_minus_one")


def log(x: Term) -> Term:
    return x.op("log")


def log1p(x: Term) -> Term:
    return x.op("log_plus_one")


def sqrt(x: Term) -> Term:
    return x.op("sqrt")


def polynomial(x: Term, coefficients: Sequence[float]) -> Term:
    """Horner's rule, highest power first."""
    total = x.like(coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


def in_f32(b: Any, formula: Callable[..., Term], values: Sequence[Any]) -> list[Any]:
    """The formula's value; small floats are computed in f32 and rounded once."""
    element = values[0].element
    small = element.is_float and element.bits < 32
    terms = [Term(b, b.convert(v, F32) if small else v) for v in values]
    return [b.convert(formula(*terms).value, element)]
