"""Integer expressions over tile ids, tile sizes, run-time values and sizes that a call decides, in
one canonical form.

    const | t_i | s_i | r_j | n:size
    | a + b | a * b | a // c | a % c | min | max | gcd | a if x <= y else b

An expression is a polynomial with integer coefficients over atoms; an atom is a variable or one of
the functions, applied to expressions. Equal polynomials are one object, so `==` is `is`. Functions
are simplified by intervals: where the ranges of the variables decide, no function is left.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from ...hlo import symbols
from ...hlo.deciding import current, surely_at_most
from ...hlo.size_text import parse_dim
from ...hlo.symbols import Dim, SymbolicDim

Array = np.ndarray[Any, Any]
Monomial = tuple["Atom", ...]  # sorted by key; the empty one is the constant's

_INTERNING = threading.Lock()  # two threads must not make one expression twice


class Range(NamedTuple):
    """low <= value <= high; None is no bound."""

    low: int | None
    high: int | None


class Atom:
    """A variable, or a function of expressions; `key` names it, equal keys are one object."""

    __slots__ = ("key", "function", "arguments", "range", "_hash", "__weakref__")
    _made: ClassVar[WeakValueDictionary[Any, Atom]] = WeakValueDictionary()

    key: str
    function: str  # "" for a variable, else "//", "%", "max", "gcd" or "choose"
    arguments: tuple[Expression, ...]
    range: Range

    def __new__(
        cls, key: str, bounds: Range, function: str = "", arguments: Sequence[Expression] = ()
    ) -> Atom:
        full = (function, *arguments) if function else (key, bounds)
        known = cls._made.get(full)
        if known is None:
            made = object.__new__(cls)
            made.key, made.function, made.arguments = key, function, tuple(arguments)
            made.range, made._hash = bounds, hash(full)
            with _INTERNING:
                known = cls._made.setdefault(full, made)
        return known

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return self.key


class Expression:
    """sum of coefficient * product of atoms; interned."""

    __slots__ = ("terms", "_range", "_hash", "__weakref__")
    _made: ClassVar[WeakValueDictionary[Any, Expression]] = WeakValueDictionary()

    terms: tuple[tuple[Monomial, int], ...]

    def __new__(cls, terms: Mapping[Monomial, int]) -> Expression:
        items = [item for item in terms.items() if item[1]]
        if len(items) > 1:
            items.sort(key=lambda item: [atom.key for atom in item[0]])
        key = tuple(items)
        known = cls._made.get(key)
        if known is None:
            made = object.__new__(cls)
            made.terms, made._range, made._hash = key, None, hash(key)
            with _INTERNING:
                known = cls._made.setdefault(key, made)
        return known

    def __hash__(self) -> int:
        return self._hash

    @property
    def constant(self) -> int | None:
        """Its value, if it is a number."""
        if not self.terms:
            return 0
        ((monomial, coefficient), *rest) = self.terms
        return coefficient if not monomial and not rest else None

    @property
    def range(self) -> Range:
        """Bounds that hold for all values of the variables."""
        if self._range is None:
            low: int | None = 0
            high: int | None = 0
            for monomial, coefficient in self.terms:
                small, large = _monomial_range(monomial, coefficient)
                low = None if low is None or small is None else low + small
                high = None if high is None or large is None else high + large
            self._range = Range(low, high)
        return self._range

    @property
    def variables(self) -> set[Atom]:
        """All variables in it, those inside functions too."""
        found: set[Atom] = set()
        for monomial, _ in self.terms:
            for atom in monomial:
                if atom.function:
                    for argument in atom.arguments:
                        found |= argument.variables
                else:
                    found.add(atom)
        return found

    def __add__(self, other: Expression | Dim) -> Expression:
        other = expression(other)
        if not other.terms:
            return self
        if not self.terms:
            return other
        terms = dict(self.terms)
        for monomial, coefficient in other.terms:
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return Expression(terms)

    __radd__ = __add__

    def __neg__(self) -> Expression:
        return Expression({monomial: -coefficient for monomial, coefficient in self.terms})

    def __sub__(self, other: Expression | Dim) -> Expression:
        return self + -expression(other)

    def __rsub__(self, other: Dim) -> Expression:
        return -self + other

    def __mul__(self, other: Expression | Dim) -> Expression:
        other = expression(other)
        if other is ONE:
            return self
        if self is ONE:
            return other
        terms: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in other.terms:
                monomial = (
                    tuple(sorted((*left, *right), key=_key)) if left and right else left + right
                )
                terms[monomial] = terms.get(monomial, 0) + a * b
        return Expression(terms)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Expression:
        """Rounded down; `divisor` > 0."""
        if divisor == 1:
            return self
        whole = Expression({m: c // divisor for m, c in self.terms if c % divisor == 0})
        rest = Expression({m: c for m, c in self.terms if c % divisor})
        offset = dict(rest.terms).get((), 0)
        if offset // divisor:  # the number's own quotient moves out: what is left is canonical
            whole, rest = whole + offset // divisor, rest - offset // divisor * divisor
        low, high = rest.range
        if low is not None and high is not None and low // divisor == high // divisor:
            return whole + low // divisor
        bounds = Range(*(None if v is None else v // divisor for v in rest.range))
        return whole + _atom("//", (rest, expression(divisor)), bounds)

    def __mod__(self, divisor: int) -> Expression:
        """self - self // divisor * divisor"""
        rest = Expression({m: c % divisor for m, c in self.terms})
        low, high = rest.range
        if low is not None and high is not None and low // divisor == high // divisor:
            return rest - low // divisor * divisor
        return _atom("%", (rest, expression(divisor)), Range(0, divisor - 1))

    def __repr__(self) -> str:
        parts = []
        for monomial, coefficient in self.terms:
            product = "*".join(atom.key for atom in monomial)
            if not product:
                parts.append(str(coefficient))
            else:
                parts.append(
                    {1: product, -1: f"-{product}"}.get(coefficient, f"{coefficient}*{product}")
                )
        return " + ".join(parts).replace("+ -", "- ") or "0"


ZERO, ONE = Expression({}), Expression({(): 1})


def _key(atom: Atom) -> str:
    return atom.key


def expression(value: Expression | Dim) -> Expression:
    """A number, or a size that a call decides, as an expression."""
    if isinstance(value, SymbolicDim):
        return _size(value)
    return value if isinstance(value, Expression) else _number(int(value))


@functools.lru_cache(4096)
def _number(value: int) -> Expression:
    return Expression({(): value})


_SIZE = "n:"  # begins the names of variables that stand for sizes


def _size(size: SymbolicDim) -> Expression:
    """A size: symbols and functions of them are variables, with the ranges that are known."""
    total = ZERO
    for monomial, coefficient in size.terms:
        term = expression(coefficient)
        for atom in monomial:
            term = term * Expression({(Atom(f"{_SIZE}{atom.text}", ends_of(atom_size(atom))),): 1})
        total = total + term
    return total


def atom_size(atom: symbols.Atom) -> Dim:
    """An atom of a size as a size."""
    return symbols.from_terms({(atom,): 1})


def ends_of(size: Dim) -> Range:
    """The bounds of a size."""
    decisions = current()
    if isinstance(size, int) or decisions is None:
        return Range(size, size) if isinstance(size, int) else Range(None, None)
    ends = decisions.assumptions.bounds(size)
    return Range(ends.low, ends.high)


@functools.lru_cache(4096)
def _named_size(key: str) -> Dim:
    return parse_dim(key.removeprefix(_SIZE))


def size_of(atom: Atom) -> Dim | None:
    """The size that a variable stands for; None for all other variables."""
    return _named_size(atom.key) if atom.key.startswith(_SIZE) and not atom.function else None


def sizes_in(value: Expression) -> bool:
    """Whether it depends on sizes that a call decides."""
    return any(atom.key.startswith(_SIZE) for atom in value.variables)


class AtSizes(dict[str, Any]):
    """Values of variables, where those of sizes follow from what symbols stand for: numbers, or
    arrays of the numbers in several calls."""

    def __init__(self, values: Mapping[str, Any], sizes: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.sizes = sizes

    def __missing__(self, key: str) -> Any:
        if not key.startswith(_SIZE):
            raise KeyError(key)
        size = _named_size(key)
        if all(isinstance(value, int) for value in self.sizes.values()):
            return symbols.bound(size, self.sizes)
        return _in_calls(size, self.sizes)


def _in_calls(size: Dim, sizes: Mapping[str, Array]) -> Any:
    """A size in several calls."""
    total: Any = 0
    for monomial, coefficient in symbols.terms_of(size):
        term: Any = coefficient
        for atom in monomial:
            if atom.function:
                operands = (_in_calls(operand, sizes) for operand in atom.operands)
                term = term * functools.reduce(_OF_SIZES[atom.function], operands)
            else:
                term = term * sizes[atom.text]
        total = total + term
    return total


_OF_SIZES = {"//": np.floor_divide, "max": np.maximum, "min": np.minimum}


def variable(name: str, low: int | None = 0, high: Dim | None = None) -> Expression:
    """A variable whose values lie in low .. high."""
    if isinstance(high, SymbolicDim):
        high = ends_of(high).high
    if low is not None and low == high:
        return expression(low)
    return Expression({(Atom(name, Range(low, high)),): 1})


def _atom(function: str, arguments: Sequence[Expression], bounds: Range) -> Expression:
    if function in ("//", "%"):
        key = f"(({arguments[0]}) {function} {arguments[1]})"
    else:
        key = f"{function}({', '.join(map(repr, arguments))})"
    return Expression({(Atom(key, bounds, function, arguments),): 1})


def _monomial_range(monomial: Monomial, coefficient: int) -> Range:
    low: int | None = coefficient
    high: int | None = coefficient
    for atom in monomial:
        ends = [_product(a, b) for a in (low, high) for b in atom.range]
        if None in ends:
            # one sided bounds survive only where no sign can change
            least = atom.range.low
            if least is None or least < 0 or low is None and high is None:
                return Range(None, None)
            if low is not None and low >= 0:
                low, high = low * least, None
            elif high is not None and high <= 0:
                low, high = None, high * least
            else:
                return Range(None, None)
        else:
            numbers = [end for end in ends if end is not None]
            low, high = min(numbers), max(numbers)
    return Range(low, high)


def _product(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a * b


def _least(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else min(a, b)


def _most(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)


def never_above(a: Expression | Dim, b: Expression | Dim) -> bool:
    """Whether a <= b can be proven."""
    if a is b:
        return True
    difference = expression(b) - a
    low = difference.range.low
    if low is not None and low >= 0:
        return True
    size = as_size(difference)
    return isinstance(size, SymbolicDim) and surely_at_most(0, size)


def as_size(value: Expression) -> Dim | None:
    """The size that an expression is; None where something else is in it."""
    total: Dim = 0
    for monomial, coefficient in value.terms:
        term: Dim = coefficient
        for atom in monomial:
            size = size_of(atom)
            if size is None:
                return None
            term = term * size
        total = total + term
    return total


def minimum(a: Expression | Dim, b: Expression | Dim) -> Expression:
    """The smaller one; common terms stand outside."""
    return -maximum(-expression(a), -expression(b))


def maximum(a: Expression | Dim, b: Expression | Dim) -> Expression:
    """The larger one; common terms stand outside."""
    a, b = expression(a), expression(b)
    if never_above(a, b):
        return b
    if never_above(b, a):
        return a
    theirs = dict(b.terms)
    common = Expression({m: c for m, c in a.terms if m and theirs.get(m) == c})
    left, right = sorted((a - common, b - common), key=repr)
    lows = [v for v in (left.range.low, right.range.low) if v is not None]
    high = _most(left.range.high, right.range.high)
    return common + _atom("max", (left, right), Range(max(lows, default=None), high))


def common_divisor(a: Expression | int, b: Expression | int) -> Expression:
    """gcd(a, b); gcd(0, b) = b. Both are not negative."""
    a, b = sorted((expression(a), expression(b)), key=repr)
    if a.constant is not None and b.constant is not None:
        return expression(math.gcd(a.constant, b.constant))
    for one, other in ((a, b), (b, a)):
        if one.constant == 0 or other.constant == 1:
            return other
        if other.constant and all(c % other.constant == 0 for _, c in one.terms):
            return other
    positive = [e for e in (a, b) if (e.range.low or 0) > 0]
    bounds = [e.range.high for e in positive if e.range.high is not None]
    high = min(bounds) if bounds else _most(a.range.high, b.range.high)
    return _atom("gcd", (a, b), Range(int(bool(positive)), high))


def choose(
    x: Expression | int, y: Expression | int, then: Expression | int, other: Expression | int
) -> Expression:
    """`then` where x <= y, else `other`."""
    x, y, then, other = map(expression, (x, y, then, other))
    if then is other or never_above(x, y):
        return then
    if never_above(y + 1, x):
        return other
    bounds = Range(
        _least(then.range.low, other.range.low), _most(then.range.high, other.range.high)
    )
    return _atom("choose", (x, y, then, other), bounds)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "//": np.floor_divide,
    "%": np.remainder,
    "max": np.maximum,
    "gcd": np.gcd,
    "choose": lambda x, y, then, other: np.where(np.less_equal(x, y), then, other),
}


def evaluate(
    expressions: Iterable[Expression], values: Mapping[str, Array | int]
) -> list[Array | int]:
    """The values of several expressions at once, see `evaluator`."""
    return list(map(evaluator(values), expressions))


def evaluator(values: Mapping[str, Array | int]) -> Callable[[Expression], Array | int]:
    """What gives the values of expressions, one after another.

    `values` gives each variable by its name ("t0", "s0", "r0") a number or an int64 array; arrays
    broadcast together. Shared parts are computed once.
    """
    atoms: dict[Atom, Any] = {}
    monomials: dict[Monomial, Any] = {}
    done: dict[Expression, Any] = {}

    def atom_value(atom: Atom) -> Any:
        found = atoms.get(atom)
        if found is None:
            if atom.function:
                found = _FUNCTIONS[atom.function](*map(value, atom.arguments))
            else:
                found = values[atom.key]
            atoms[atom] = found
        return found

    def monomial_value(monomial: Monomial) -> Any:
        found = monomials.get(monomial)
        if found is None:
            found = atom_value(monomial[-1])
            if len(monomial) > 1:
                found = monomial_value(monomial[:-1]) * found
            monomials[monomial] = found
        return found

    def value(e: Expression) -> Any:
        found = done.get(e)
        if found is None:
            found = 0
            for monomial, coefficient in reversed(e.terms):
                if not monomial:
                    part: Any = coefficient
                else:
                    part = monomial_value(monomial)
                    part = part if coefficient == 1 else part * coefficient
                found = (
                    part
                    if found is None or (isinstance(found, int) and not found)
                    else found + part
                )
            done[e] = found
        return found

    return value
