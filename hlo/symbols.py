"""Sizes that are fixed only when a program is called: integer expressions over symbols.

    2*b*s    (s+1)//2    7*((n+6)//7)-n    max(t,4)    16*(s//(s//2))

An expression is a polynomial with integer coefficients over atoms; an atom is a symbol, or `//`,
`max`, `min` of expressions. All operations have Python's meaning: `//` rounds down, `%` has the
divisor's sign (it is kept as `x - d*(x//d)`). Expressions are canonical and interned, so that equal
polynomials are one object and `==` is `is`; what is rewritten here holds for all integers wherever
both sides mean something, also negative ones. What needs ranges is for `assumptions.py`.

This module imports nothing but the standard library: a bundle's runtime evaluates sizes with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

MAXIMUM_TERMS = 256  # of one expression
_KEPT = 1 << 14  # results of each operation: passes and emitters ask for the same ones many times


class SizeTooLong(ValueError):
    """A size has too many terms."""


class Atom:
    """A symbol (`function` is ""), or "//", "max" or "min" of `operands`; interned."""

    __slots__ = ("function", "operands", "text", "order")
    _interned: ClassVar[dict[Any, Atom]] = {}

    function: str
    operands: tuple[Dim, ...]
    text: str  # a symbol's name
    order: tuple[bool, str]  # symbols come before functions

    def __new__(cls, function: str, operands: Any) -> Atom:
        """operands: of a function its expressions, of a symbol its name."""
        known = cls._interned.get((function, operands))
        if known is None:
            made = super().__new__(cls)
            made.function = function
            made.operands = operands if function else ()
            made.text = _function_text(function, operands) if function else operands
            made.order = (bool(function), made.text)
            known = cls._interned.setdefault((function, operands), made)
        return known

    @property
    def base(self) -> str:
        """The text as a factor of a product."""
        return f"({self.text})" if self.function == "//" else self.text

    def bind(self, values: Mapping[str, int]) -> int:
        """Its value; KeyError if a symbol is missing, ZeroDivisionError for a divisor 0."""
        if not self.function:
            return values[self.text]
        numbers = [o if isinstance(o, int) else o.bind(values) for o in self.operands]
        if self.function == "//":
            return numbers[0] // numbers[1]
        return max(numbers) if self.function == "max" else min(numbers)

    def __repr__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return Atom, (self.function, self.operands if self.function else self.text)


Monomial = tuple[Atom, ...]  # sorted; the empty one is the constant's
_order = attrgetter("order")


class SymbolicDim:
    """A size that is no number yet: the sum of `coefficient * product of atoms`, canonical.

    `SymbolicDim("batch")` is a symbol; arithmetic with integers and other sizes makes the rest, and
    gives an integer where no symbol is left. What symbols stand for is the module's
    (`Module.symbols`). `==` tells whether two expressions are one; it compares no values. `<` has a
    meaning inside of `deciding.deciding` alone; what is proven of sizes `assumptions.Assumptions`
    tells. They are numbers where something is estimated (`deciding.estimating`), and nowhere else:
    what computes with sizes as data has to say so by operations.
    """

    __slots__ = ("terms", "_symbols")
    _interned: ClassVar[dict[Any, SymbolicDim]] = {}

    terms: tuple[tuple[Monomial, int], ...]
    """Highest degree first, the constant last."""
    _symbols: tuple[str, ...] | None

    def __new__(cls, name: str) -> SymbolicDim:
        if not NAME.fullmatch(name):
            raise ValueError(f"'{name}' is no name of a size")
        return _interned((((Atom("", name),), 1),))

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names of all symbols in it, sorted."""
        if self._symbols is None:
            found: set[str] = set()
            for monomial, _ in self.terms:
                for atom in monomial:
                    if atom.function:
                        found.update(*(symbols_of(o) for o in atom.operands))
                    else:
                        found.add(atom.text)
            self._symbols = tuple(sorted(found))
        return self._symbols

    @property
    def constant(self) -> int:
        """What is added to the rest."""
        monomial, coefficient = self.terms[-1]
        return 0 if monomial else coefficient

    @property
    def affine(self) -> Mapping[str, int] | None:
        """symbol -> factor, without the constant; None where it is no sum of multiples of them."""
        factors: dict[str, int] = {}
        for monomial, coefficient in self.terms:
            if len(monomial) > 1 or (monomial and monomial[0].function):
                return None
            if monomial:
                factors[monomial[0].text] = coefficient
        return factors

    def bind(self, values: Mapping[str, int]) -> int:
        """The size where each symbol has the given value; KeyError if one is missing,
        ZeroDivisionError where a divisor is 0."""
        total = 0
        for monomial, value in self.terms:
            for atom in monomial:
                value *= atom.bind(values)
            total += value
        return total

    def substitute(self, values: Mapping[str, Dim]) -> Dim:
        """The same expression of other sizes; symbols without one stay."""
        if values.keys().isdisjoint(self.symbols):
            return self
        total: Dim = 0
        for monomial, coefficient in self.terms:
            term: Dim = coefficient
            for atom in monomial:
                term = term * _substituted(atom, values)
            total = total + term
        return total

    def __add__(self, other: Dim) -> Dim:
        if isinstance(other, (int, SymbolicDim)):
            return _sum(self, other)
        return _estimate(self) + other if isinstance(other, float) else NotImplemented

    __radd__ = __add__

    def __neg__(self) -> SymbolicDim:
        return _interned(tuple((monomial, -coefficient) for monomial, coefficient in self.terms))

    def __sub__(self, other: Dim) -> Dim:
        if not isinstance(other, (int, SymbolicDim)):
            return _estimate(self) - other if isinstance(other, float) else NotImplemented
        return 0 if other is self else self + -other

    def __rsub__(self, other: int) -> Dim:
        return -self + other

    def __truediv__(self, other: Any) -> float:
        return _estimate(self) / other

    def __rtruediv__(self, other: Any) -> float:
        return other / _estimate(self)

    def __float__(self) -> float:
        return float(_estimate(self))

    def __index__(self) -> int:
        return _estimate(self)

    def __mul__(self, other: Dim) -> Dim:
        if isinstance(other, int):
            if other in (0, 1):
                return self if other else 0
            return _interned(tuple((m, c * other) for m, c in self.terms))
        if not isinstance(other, SymbolicDim):
            return _estimate(self) * other if isinstance(other, float) else NotImplemented
        return _times(self, other)

    __rmul__ = __mul__

    def __pow__(self, exponent: int) -> Dim:
        if not isinstance(exponent, int) or exponent < 0:
            return NotImplemented
        total: Dim = 1
        for _ in range(exponent):
            total = total * self
        return total

    def __floordiv__(self, other: Dim) -> Dim:
        if isinstance(other, int):
            return _by_number(self, other)
        return _by_expression(self, other) if isinstance(other, SymbolicDim) else NotImplemented

    def __rfloordiv__(self, other: int) -> Dim:
        return _by_expression(other, self) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: Dim) -> Dim:
        return self - self // other * other

    def __rmod__(self, other: int) -> Dim:
        return other - other // self * self

    def __divmod__(self, other: Dim) -> tuple[Dim, Dim]:
        quotient = self // other
        return quotient, self - quotient * other

    def __rdivmod__(self, other: int) -> tuple[Dim, Dim]:
        quotient = other // self
        return quotient, other - quotient * self

    def __le__(self, other: Any) -> bool:
        if isinstance(other, float):
            return _estimate(self) <= other
        return _current().at_most(self, other)

    def __lt__(self, other: Any) -> bool:
        if isinstance(other, float):
            return _estimate(self) < other
        return _current().at_most(self + 1, other)

    def __ge__(self, other: Any) -> bool:
        if isinstance(other, float):
            return _estimate(self) >= other
        return _current().at_most(other, self)

    def __gt__(self, other: Any) -> bool:
        if isinstance(other, float):
            return _estimate(self) > other
        return _current().at_most(other + 1, self)

    def __repr__(self) -> str:
        text = "".join(_term_text(*term) for term in self.terms)
        text = text.removeprefix("+")
        if text.startswith("-") and len(self.terms[0][0]) == 1:
            first = self.terms[0][0][0]
            if first.function == "//" and self.terms[0][1] == -1:  # -a//b is (-a)//b
                text = f"-({first.text})" + text[1 + len(first.text) :]
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_items, (self.terms,)


if TYPE_CHECKING:
    # Code that computes with sizes takes numbers and expressions alike, and most of it was written
    # for numbers; that an expression is no number is found when it is taken for one, not by types.
    Dim = Any
else:
    Dim = int | SymbolicDim


class SizeOrder:
    """What comparisons of sizes give while code is made for all of them: see deciding.py."""

    def at_most(self, left: Dim, right: Dim) -> bool:
        """left <= right"""
        raise NotImplementedError

    def estimate(self, size: SymbolicDim) -> int:
        """A number for it; TypeError where nothing is estimated."""
        raise NotImplementedError


_ORDER: ContextVar[SizeOrder | None] = ContextVar("order of sizes", default=None)


@contextmanager
def ordered_by(order: SizeOrder | None) -> Iterator[None]:
    """Inside, `order` says what comparisons of sizes give; None: they have no order. For
    `deciding.py` alone."""
    before = _ORDER.set(order)
    try:
        yield
    finally:
        _ORDER.reset(before)


def _current() -> SizeOrder:
    found = _ORDER.get()
    if found is None:
        raise TypeError("sizes that a call fixes have no order here, and are no numbers")
    return found


def _estimate(size: SymbolicDim) -> int:
    return _current().estimate(size)


def _interned(items: tuple[tuple[Monomial, int], ...]) -> SymbolicDim:
    """The expression of sorted terms, none of them 0."""
    known = SymbolicDim._interned.get(items)
    if known is None:
        made = object.__new__(SymbolicDim)
        made.terms, made._symbols = items, None
        known = SymbolicDim._interned.setdefault(items, made)
    return known


@lru_cache(maxsize=_KEPT)
def _sum(x: SymbolicDim, y: Dim) -> Dim:
    terms = dict(x.terms)
    for monomial, coefficient in terms_of(y):
        terms[monomial] = terms.get(monomial, 0) + coefficient
    return from_terms(terms)


@lru_cache(maxsize=_KEPT)
def _times(x: SymbolicDim, y: SymbolicDim) -> Dim:
    if len(x.terms) * len(y.terms) > 16 * MAXIMUM_TERMS:
        raise SizeTooLong("a size is a product of sums that are too long")
    terms: dict[Monomial, int] = {}
    for left, a in x.terms:
        for right, b in y.terms:
            product = _product(left, right)
            terms[product] = terms.get(product, 0) + a * b
    return from_terms(terms)


def _rank(item: tuple[Monomial, int]) -> Any:
    """Graded lexicographic: an order of monomials that products keep."""
    monomial = item[0]
    return -len(monomial), [atom.order for atom in monomial]


def from_terms(terms: Mapping[Monomial, int]) -> Dim:
    """The sum of `coefficient * monomial`; the atoms of each monomial are sorted."""
    items = [item for item in terms.items() if item[1]]
    if not items:
        return 0
    if len(items) == 1:
        if not items[0][0]:
            return items[0][1]
    else:
        if len(items) > MAXIMUM_TERMS:
            raise SizeTooLong(f"a size has more than {MAXIMUM_TERMS} terms")
        items.sort(key=_rank)
    return _interned(tuple(items))


def _from_items(items: tuple[tuple[Monomial, int], ...]) -> Dim:
    return from_terms({tuple(sorted(monomial, key=_order)): c for monomial, c in items})


def _product(left: Monomial, right: Monomial) -> Monomial:
    if left and right:
        return tuple(sorted((*left, *right), key=_order))
    return left or right


def _of_atom(function: str, *operands: Dim) -> SymbolicDim:
    return _interned((((Atom(function, operands),), 1),))


def terms_of(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    """The terms of a size that may be a number."""
    if isinstance(dim, int):
        return (((), dim),) if dim else ()
    return dim.terms


def symbols_of(dim: Dim) -> tuple[str, ...]:
    """The names of the symbols in a size that may be a number."""
    return () if isinstance(dim, int) else dim.symbols


def name_of(dim: Dim) -> str:
    """The name of a size that is a symbol; "" of another one."""
    name = repr(dim)
    return name if symbols_of(dim) == (name,) else ""


def bound(dim: Dim, values: Mapping[str, int]) -> int:
    """The value of a size that may be a number; see `SymbolicDim.bind`."""
    return dim if isinstance(dim, int) else dim.bind(values)


def largest(dim: Dim, bounds: Mapping[str, Dim]) -> Dim:
    """A size that `dim` never exceeds where each of these symbols is 0 to its bound; other symbols
    stay. ValueError where it divides by one of them."""
    if bounds.keys().isdisjoint(symbols_of(dim)):
        return dim
    total: Dim = 0
    for monomial, coefficient in terms_of(dim):
        term: Dim = coefficient
        bounded = False
        for atom in monomial:
            own = from_terms({(atom,): 1})
            bounded |= not bounds.keys().isdisjoint(symbols_of(own))
            term = term * _largest(atom, own, bounds)
        if coefficient > 0 or not bounded:  # else it is at most 0
            total = total + term
    return total


def _largest(atom: Atom, own: Dim, bounds: Mapping[str, Dim]) -> Dim:
    if bounds.keys().isdisjoint(symbols_of(own)):
        return own
    if not atom.function:
        return bounds[atom.text]
    operands = [largest(operand, bounds) for operand in atom.operands]
    if atom.function != "//":
        return FUNCTIONS[atom.function](*operands)
    if not bounds.keys().isdisjoint(symbols_of(atom.operands[1])):
        raise ValueError(f"{own} divides by a size that data decide")
    return operands[0] // operands[1]


def substituted(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """`SymbolicDim.substitute` of a size that may be a number."""
    return dim if isinstance(dim, int) else dim.substitute(values)


def _substituted(atom: Atom, values: Mapping[str, Dim]) -> Dim:
    if not atom.function:
        return values.get(atom.text, _interned((((atom,), 1),)))
    operands = [substituted(operand, values) for operand in atom.operands]
    return FUNCTIONS[atom.function](*operands)


# Division.


def floordiv(left: Dim, right: Dim) -> Dim:
    """left // right, rounded down; ZeroDivisionError for the number 0."""
    return left // right


def ceildiv(left: Dim, right: Dim) -> Dim:
    """left / right, rounded up."""
    return -(-left // right)


@lru_cache(maxsize=_KEPT)
def _by_number(x: SymbolicDim, divisor: int) -> Dim:
    """x // divisor, where what is left under `//` has

    - coefficients within half of the divisor, and a constant in [0, divisor),
    - no common factor with the divisor,
    - a positive first coefficient: x//d is -((-x+d-1)//d),
    - no quotient with the factor 1 or -1: (x//a + y)//b is (x + a*y)//(a*b) for positive a and b.
    """
    if not divisor:
        raise ZeroDivisionError(f"{x} is divided by 0")
    if divisor < 0:
        x, divisor = -x, -divisor
    whole: dict[Monomial, int] = {}
    sign = 1
    while True:
        rest: dict[Monomial, int] = {}
        for monomial, coefficient in x.terms:
            remainder = coefficient % divisor
            if monomial and 2 * remainder > divisor:
                remainder -= divisor
            if remainder:
                rest[monomial] = remainder
            if remainder != coefficient:
                part = sign * ((coefficient - remainder) // divisor)
                whole[monomial] = whole.get(monomial, 0) + part
        factors = [c for m, c in rest.items() if m]
        if not factors:
            return from_terms(whole)
        common = math.gcd(divisor, *factors)
        if common > 1:
            divisor //= common
            rest = {m: c // common for m, c in rest.items()}
        left = from_terms(rest)
        assert isinstance(left, SymbolicDim)
        if left.terms[0][1] < 0:
            flipped = -left + (divisor - 1)
            assert isinstance(flipped, SymbolicDim)
            x, sign = flipped, -sign
            continue
        nested = next((t for t in left.terms if _is_quotient(*t)), None)
        if nested is None:
            quotient = _of_atom("//", left, divisor)
            return from_terms(whole) + quotient * sign
        ((atom,), factor) = nested
        numerator, inner = atom.operands
        assert isinstance(inner, int)
        others = left - _interned((nested,))
        # -(n//a) is (-n+a-1)//a
        numerator = numerator if factor == 1 else -numerator + (inner - 1)
        x, divisor = _symbolic(numerator + others * inner), divisor * inner


def _symbolic(dim: Dim) -> SymbolicDim:
    assert isinstance(dim, SymbolicDim)
    return dim


def _is_quotient(monomial: Monomial, coefficient: int) -> bool:
    if len(monomial) != 1 or coefficient not in (1, -1):
        return False
    return monomial[0].function == "//" and isinstance(monomial[0].operands[1], int)


@lru_cache(maxsize=_KEPT)
def _by_expression(x: Dim, divisor: SymbolicDim) -> Dim:
    """x // divisor: common factors go, and multiples of the divisor come out."""
    whole: Dim = 0
    while True:
        x, lower = _without_common(x, divisor)
        if isinstance(lower, int):
            return whole + x // lower
        divisor = lower
        if divisor.terms[0][1] < 0:
            x, divisor = -x, -divisor
        quotient, rest = _long_division(x, divisor)
        whole = whole + quotient
        if isinstance(rest, int) and not rest:
            return whole
        if isinstance(quotient, int) and not quotient:
            return whole + _of_atom("//", rest, divisor)
        x = rest


def _without_common(x: Dim, divisor: SymbolicDim) -> tuple[Dim, Dim]:
    """Both without the factors, numbers and atoms, that all of their terms have."""
    terms = [*terms_of(x), *divisor.terms]
    content = math.gcd(*(c for _, c in terms))
    shared = list(terms[-1][0])
    for monomial, _ in terms:
        left = list(monomial)
        kept = []
        for atom in shared:
            if atom in left:
                left.remove(atom)
                kept.append(atom)
        shared = kept
    if content == 1 and not shared:
        return x, divisor
    found = [
        from_terms({monomial_quotient(m, shared): c // content for m, c in terms_of(part)})
        for part in (x, divisor)
    ]
    return found[0], found[1]


def monomial_quotient(monomial: Monomial, divisor: Iterable[Atom]) -> Monomial:
    """monomial / divisor; ValueError where that is none."""
    left = list(monomial)
    for atom in divisor:
        left.remove(atom)
    return tuple(left)


def _long_division(x: Dim, divisor: SymbolicDim) -> tuple[Dim, Dim]:
    """quotient, rest: no term of the rest is a multiple of the divisor's first term."""
    (first, factor), *others = divisor.terms
    left = dict(terms_of(x))
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    while left:
        monomial, coefficient = min(left.items(), key=_rank)
        del left[monomial]
        try:
            part = monomial_quotient(monomial, first)
        except ValueError:
            part = None
        if part is None or coefficient % factor:
            rest[monomial] = coefficient
            continue
        quotient[part] = number = coefficient // factor
        for other, c in others:
            product = _product(part, other)
            left[product] = left.get(product, 0) - number * c
            if not left[product]:
                del left[product]
    return from_terms(quotient), from_terms(rest)


# Extrema.


def maximum(*operands: Dim) -> Dim:
    """The largest of at least one size."""
    return _extremum("max", operands)


def minimum(*operands: Dim) -> Dim:
    """The smallest of at least one size."""
    return _extremum("min", operands)


_OTHER = {"max": "min", "min": "max"}


def _extremum(function: str, operands: Sequence[Dim]) -> Dim:
    """Operands that differ by a number become one, those that are themselves `max` (of a `min`:
    `min`) several; what all have in common, terms and factors, stands outside; `max` and `min` turn
    so that the operands' sum begins with a plus."""
    if all(isinstance(operand, int) for operand in operands):
        return max(operands) if function == "max" else min(operands)  # type: ignore[type-var]
    parts = _apart(_merged(function, operands), function)
    if len(parts) == 1:
        return parts[0]
    base = _common(parts)
    parts = [part - base for part in parts]
    total: Dim = 0
    for part in parts:
        total = total + part
    lead = next((c for m, c in terms_of(total) if m), 0)
    sign = 1
    if lead < 0 or (not lead and function == "min"):
        sign, function, parts = -1, _OTHER[function], [-part for part in parts]
    parts.sort(key=_part_order)
    constant = _constant(parts[0])
    parts = [part - constant for part in parts]
    content = math.gcd(*(c for part in parts for _, c in terms_of(part)))
    parts = [part // content for part in parts]
    if any(_inside(function, part) for part in parts):
        made = _extremum(function, parts)
    else:
        made = _of_atom(function, *parts)
    return base + (made * content + constant) * sign


def _inside(function: str, part: Dim) -> tuple[Atom, int] | None:
    """The atom and its sign where a part is `max` of a `max`, or `-min`, but for a constant."""
    varying = [term for term in terms_of(part) if term[0]]
    if len(varying) != 1 or len(varying[0][0]) != 1:
        return None
    ((atom,), coefficient) = varying[0]
    wanted = {1: function, -1: _OTHER[function]}.get(coefficient)
    return (atom, coefficient) if atom.function == wanted else None


def _merged(function: str, operands: Sequence[Dim]) -> list[Dim]:
    """Operands that are `max` (of a `min`: `min`) become several."""
    parts: list[Dim] = []
    for part in operands:
        found = _inside(function, part)
        if found is None:
            parts.append(part)
        else:
            atom, sign = found
            constant = _constant(part)
            parts += _merged(function, [operand * sign + constant for operand in atom.operands])
    return list(dict.fromkeys(parts))


def _constant(dim: Dim) -> int:
    return dim if isinstance(dim, int) else dim.constant


def _apart(parts: Sequence[Dim], function: str) -> list[Dim]:
    """Of parts that differ by a number the one that counts."""
    constants: dict[Dim, int] = {}
    choose: Callable[[int, int], int] = max if function == "max" else min
    for part in parts:
        constant = _constant(part)
        rest = part - constant
        constants[rest] = choose(constants[rest], constant) if rest in constants else constant
    return [rest + constant for rest, constant in constants.items()]


def _common(parts: Sequence[Dim]) -> Dim:
    """The terms that all parts have."""
    shared = {m: c for m, c in terms_of(parts[0]) if m}
    for part in parts[1:]:
        theirs = dict(terms_of(part))
        shared = {m: c for m, c in shared.items() if theirs.get(m) == c}
    return from_terms(shared)


def _part_order(part: Dim) -> Any:
    """Numbers come last; constants do not count."""
    return isinstance(part, int), [(_rank(term), term[1]) for term in terms_of(part) if term[0]]


FUNCTIONS: Mapping[str, Callable[..., Dim]] = {"//": floordiv, "max": maximum, "min": minimum}


# Text.

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def _function_text(function: str, operands: Sequence[Dim]) -> str:
    if function == "//":
        return "//".join(map(_factor_text, operands))
    return f"{function}({','.join(map(repr, operands))})"


def _factor_text(dim: Dim) -> str:
    text = repr(dim)
    if isinstance(dim, int):
        return text if dim >= 0 else f"({text})"
    (monomial, coefficient), *rest = dim.terms
    single = not rest and len(monomial) == 1 and coefficient == 1
    return text if single and monomial[0].function != "//" else f"({text})"


def _term_text(monomial: Monomial, coefficient: int) -> str:
    sign = "-" if coefficient < 0 else "+"
    factor = abs(coefficient)
    if len(monomial) == 1 and factor == 1:
        return sign + monomial[0].text
    factors = [str(factor)] if factor != 1 or not monomial else []
    return sign + "*".join([*factors, *(atom.base for atom in monomial)])
