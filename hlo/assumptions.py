"""What is known of symbols, and what follows from it: three-valued answers about sizes.

An answer is True where it holds at all sizes that are admitted, False where it holds at none, None
where neither is proven (or it depends on the sizes). True and False are never wrong.

How it is done. Equalities become substitutions, a congruence s = r modulo m becomes s = r + m*s',
and ranges are shifted to begin at 0: so the algebra of `symbols` proves equality and divisibility,
and a polynomial without negative coefficients is not negative. Otherwise bounds decide
(`size_bounds.py`), and congruences.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from .errors import UserError
from .size_bounds import (
    MAXIMUM_FACTS,
    MAXIMUM_WORK,
    Answer,
    NormalBounds,
    variable,
)
from .size_intervals import Bounds, End, quotient
from .sizes import Relation, SizeConstraint, Symbol
from .symbol_ranges import SymbolRanges
from .symbols import (
    FUNCTIONS,
    Atom,
    Dim,
    Monomial,
    SizeTooLong,
    SymbolicDim,
    bound,
    from_terms,
    substituted,
    symbols_of,
    terms_of,
)

_FAR = 10**30  # beyond all sizes


class Maximum(NamedTuple):
    """value: never exceeded; None where there is no end. exact: it is reached, at these sizes."""

    value: End
    sizes: Mapping[str, int]
    exact: bool


_Query = TypeVar("_Query", bound=Callable[..., Any])


def _unknown_is(answer: Any) -> Callable[[_Query], _Query]:
    """A query that gives this answer where sizes on the way are too long, or have no meaning; each
    is answered once."""

    def decorate(query: _Query) -> _Query:
        name = query.__name__

        @functools.wraps(query)
        def asked(self: Assumptions, *arguments: Any) -> Any:
            key = name, *arguments
            if key not in self._answers:
                self._bounds.work = MAXIMUM_WORK
                try:
                    self._answers[key] = query(self, *arguments)
                except (SizeTooLong, ZeroDivisionError):  # of a divisor that is 0 somewhere
                    self._answers[key] = answer
            return self._answers[key]

        return asked  # type: ignore[return-value]

    return decorate


class Assumptions:
    """Facts about symbols; those without any are not negative. UserError where no size is left."""

    def __init__(
        self,
        symbols: Mapping[str, Symbol] | None = None,
        constraints: Sequence[SizeConstraint] = (),
    ) -> None:
        self.symbols = dict(symbols or {})
        self.constraints = tuple(constraints)
        for name, symbol in self.symbols.items():
            if symbol.is_empty:
                raise UserError(f"no sizes are admitted: {name} has none")
        self._ranges = SymbolRanges(self.symbols, self.constraints)
        self._said = dict(self.symbols)
        self._solved: dict[str, Dim] = {}  # symbols that equalities express by others
        self._positive: list[Dim] = []  # not negative
        self._unequal: list[Dim] = []  # not 0
        self._congruent: list[tuple[Dim, int, int]] = []
        self._learn()
        self._variables: dict[str, Dim] = {}  # symbol -> first + step * variable
        self._normal: dict[Dim, Dim] = {}
        self._answers: dict[tuple[Any, ...], Any] = {}  # by query and what it is asked of
        self._bounds = NormalBounds()
        normals = [self._normal_fact(fact) for fact in self._positive]
        unequal = [self._normal_fact(fact) for fact in self._unequal]
        congruent = [(self._normal_fact(e), m, r) for e, m, r in self._congruent]
        facts = dict.fromkeys(fact for fact in normals if isinstance(fact, SymbolicDim))
        for fact in facts:
            high = self._bounds.range(fact).high
            if high is not None and high < 0:
                raise UserError(f"no sizes are admitted: {self._constraint_of(fact)} never holds")
        self._bounds.state(list(facts))  # normal forms are made without them
        self._unequal = [fact for fact in unequal if isinstance(fact, SymbolicDim)]
        self._congruent = [(e, m, r) for e, m, r in congruent if isinstance(e, SymbolicDim)]

    # Queries.

    @_unknown_is(Bounds(None, None))
    def bounds(self, size: Dim) -> Bounds:
        """The range of a size."""
        normal = self.normal(size)
        found = self._bounds.range(normal)
        for fact in self._bounds.facts[:MAXIMUM_FACTS]:
            high = self._bounds.high_by(normal, fact)
            low = self._bounds.high_by(-normal, fact)
            found = found.meet(Bounds(None if low is None else -low, high))
        return found

    @_unknown_is(None)
    def is_equal(self, left: Dim, right: Dim) -> Answer:
        if left is right:
            return True
        if isinstance(left, int) and isinstance(right, int):
            return left == right
        difference = self.normal(left - right)
        if isinstance(difference, int):
            return not difference
        low, high = self._bounds.range(difference)
        if (low is not None and low > 0) or (high is not None and high < 0):
            return False
        modulus, residue = self._residue(difference)
        if residue % modulus if modulus else residue:
            return False
        if any(fact is difference or fact is -difference for fact in self._unequal):
            return False
        if self._bounds.is_positive(difference - 1) or self._bounds.is_positive(-difference - 1):
            return False
        if self._bounds.is_positive(difference) and self._bounds.is_positive(-difference):
            return True
        return None

    @_unknown_is(None)
    def at_most(self, left: Dim, right: Dim) -> Answer:
        """left <= right"""
        if isinstance(left, int) and isinstance(right, int):
            return left <= right
        difference = right - left
        low, high = self._ranges.interval(difference)
        if low is not None and low >= 0:
            return True
        if high is not None and high < 0:
            return False
        if self._ranges.changes_sign(difference):
            return None
        difference = self.normal(difference)
        if self._bounds.is_positive(difference):
            return True
        return False if self._bounds.is_positive(-difference - 1) else None

    def is_positive(self, size: Dim) -> Answer:
        """size >= 1"""
        return self.at_most(1, size)

    def is_one(self, size: Dim) -> Answer:
        return self.is_equal(size, 1)

    @_unknown_is(None)
    def divides(self, divisor: Dim, size: Dim) -> Answer:
        """divisor * k = size for an integer k."""
        divisor, size = self.normal(divisor), self.normal(size)
        if isinstance(size, int) and not size:
            return True
        if isinstance(divisor, int) and not divisor:
            return self.is_equal(size, 0)
        rest = self.normal(size % divisor)
        if isinstance(rest, int):
            return not rest
        if not isinstance(divisor, int):
            return True if self._bounds.range(rest) == Bounds(0, 0) else None
        divisor = abs(divisor)
        low, high = self._bounds.range(size)
        if low is not None and high is not None and high // divisor * divisor < low:
            return False
        for modulus, residue in self._residues(size):
            if not modulus % divisor:
                return not residue % divisor
            if residue % math.gcd(modulus, divisor):
                return False
        return None

    @_unknown_is((1, 0))
    def congruence(self, size: Dim) -> tuple[int, int]:
        """modulus, residue: the size is residue + modulus * k; modulus 0 for a number."""
        return self._residue(self.normal(size))

    @_unknown_is(None)
    def direction(self, size: Dim, symbol: str) -> int | None:
        """1 where a size never falls when the symbol grows, -1 where it never rises, 0 where it
        does not depend on it; None: unknown. The symbol must be expressed by no equality."""
        names = symbols_of(self._variable(symbol))
        return self._direction(self.normal(size), names[0]) if names else 0

    @_unknown_is(Maximum(None, {}, False))
    def maximum(self, size: Dim) -> Maximum:
        """The largest value over all sizes: at a corner where the size is monotone in each symbol,
        else the upper bound."""
        call = self._ranges.largest_in(size)
        if call is not None:
            return Maximum(bound(size, call), {n: call[n] for n in symbols_of(size)}, True)
        normal = self.normal(size)
        corner = dict.fromkeys([n for fact in self._stated() for n in symbols_of(fact)], 0)
        for name in symbols_of(normal):
            direction = self._direction(normal, name)
            limit = self._bounds.limits[Atom("", name)]
            if direction is None or (direction == 1 and limit is None):
                return Maximum(self.bounds(size).high, {}, False)
            corner[name] = limit if direction == 1 and limit is not None else 0
        value = bound(normal, corner)
        if self._bounds.facts:  # else all values of variables are sizes
            high = self.bounds(size).high
            if high is not None and high < value:
                return Maximum(high, {}, False)
        sizes = {
            name: bound(self.normal(SymbolicDim(name)), corner)
            for name in symbols_of(size)
            if corner.keys() >= set(symbols_of(self.normal(SymbolicDim(name))))
        }
        return Maximum(value, sizes, not self._congruent and self._is_admitted(corner))

    def _is_admitted(self, corner: Mapping[str, int]) -> bool:
        """Whether all facts hold for these values of variables; not where a divisor is 0."""
        try:
            return all(bound(fact, corner) >= 0 for fact in self._bounds.facts) and all(
                bound(fact, corner) for fact in self._unequal
            )
        except ZeroDivisionError:
            return False

    def _stated(self) -> list[Dim]:
        return [*self._bounds.facts, *self._unequal]

    def simplify(self, size: Dim) -> Dim:
        """The same size without what the facts make superfluous: quotients that are numbers,
        operands of max and min that never count, symbols that equalities express by others."""
        try:
            return self._simplified(size)
        except (SizeTooLong, ZeroDivisionError):
            return size

    def _simplified(self, size: Dim) -> Dim:
        return self._rebuilt(substituted(size, self._solved), self.bounds, self.at_most)

    # Facts.

    def _learn(self) -> None:
        for constraint in self.constraints:
            try:
                self._learn_one(constraint)
            except ZeroDivisionError:
                raise UserError(f"no sizes are admitted: {constraint} divides by 0") from None

    def _learn_one(self, constraint: SizeConstraint) -> None:
        left = substituted(constraint.left, self._solved)
        right = substituted(constraint.right, self._solved)
        found = constraint._replace(left=left, right=right).congruence
        if found is not None:
            self._learn_congruence(*found)
        elif constraint.relation == "==":
            self._learn_equality(left - right)
        elif constraint.relation == "<=":
            self._learn_positive(right - left)
        else:
            self._unequal.append(left - right)

    def _learn_equality(self, zero: Dim) -> None:
        """`zero` is 0: one of its symbols is expressed by the others."""
        name = next((name for name in reversed(symbols_of(zero)) if _is_linear(zero, name)), None)
        if name is None:
            if isinstance(zero, int) and zero:
                raise UserError(f"no sizes are admitted: {zero} is not 0")
            self._learn_positive(zero)
            self._learn_positive(-zero)
            return
        symbol = SymbolicDim(name)
        factor = _factor(zero, name)
        value = (symbol * factor - zero) * factor  # factor is 1 or -1
        said = self._said.pop(name, Symbol())
        replaced = {name: value}
        self._solved = {n: substituted(v, replaced) for n, v in self._solved.items()}
        self._solved[name] = value
        self._positive = [substituted(fact, replaced) for fact in self._positive]
        self._unequal = [substituted(fact, replaced) for fact in self._unequal]
        self._congruent = [(substituted(e, replaced), m, r) for e, m, r in self._congruent]
        self._learn_positive(value - said.minimum)
        if said.maximum is not None:
            self._learn_positive(said.maximum - value)
        if said.modulus != 1:
            self._learn_congruence(value, said.modulus, said.residue)

    def _learn_positive(self, fact: Dim) -> None:
        """fact >= 0; a range where it is about one symbol."""
        factors = _affine(fact)
        if isinstance(fact, SymbolicDim) and factors is not None and len(factors) == 1:
            ((name, factor),) = factors.items()
            if factor > 0:
                self._meet(name, Symbol(-(fact.constant // factor), None))
            else:
                self._meet(name, Symbol(-_FAR, fact.constant // -factor))
        elif isinstance(fact, int):
            if fact < 0:
                raise UserError(f"no sizes are admitted: {fact} must not be negative")
        else:
            self._positive.append(fact)

    def _learn_congruence(self, size: Dim, modulus: int, residue: int) -> None:
        factors = _affine(size)
        if isinstance(size, SymbolicDim) and factors is not None and len(factors) == 1:
            ((name, factor),) = factors.items()
            common = math.gcd(factor, modulus)
            rest = residue - size.constant
            if rest % common:
                raise UserError(f"no sizes are admitted: {size} is never {residue} mod {modulus}")
            step = modulus // common
            value = rest // common * pow(factor // common, -1, step) % step
            self._meet(name, Symbol(-_FAR, None, step, value))
        else:
            self._congruent.append((size, modulus, residue))

    def _meet(self, name: str, other: Symbol) -> None:
        self._said[name] = self._said.get(name, Symbol()).meet(other)

    # Normal forms: over variables that begin at 0.

    def normal(self, size: Dim) -> Dim:
        """The size over variables that begin at 0, by what equalities and congruences say; equal
        normal forms are equal sizes."""
        if isinstance(size, int):
            return size
        found = self._normal.get(size)
        if found is None:
            found = substituted(size, self._solved)
            names = symbols_of(found)
            found = substituted(found, {n: self._variable(n) for n in names})
            found = self._rebuilt(found, self._bounds.range, self._bounds.at_most)
            self._normal[size] = self._normal[found] = found
        return found

    def _constraint_of(self, fact: Dim) -> str:
        """Which constraint says that a normal form is not negative."""
        for constraint in self.constraints:
            normal = self._normal_fact(constraint.right - constraint.left)
            if normal is not None and fact in (normal, -normal):
                return (
                    f"{constraint} ({constraint.origin})" if constraint.origin else str(constraint)
                )
        return "what they are equal to"

    def _normal_fact(self, fact: Dim) -> Dim | None:
        try:
            return self.normal(fact)
        except (SizeTooLong, ZeroDivisionError):  # nothing can be concluded from it
            return None

    def _variable(self, name: str) -> Dim:
        found = self._variables.get(name)
        if found is not None:
            return found
        if name.endswith("'"):
            return variable(name)
        said = self._said.get(name, Symbol())
        first, last = said.first, said.last
        if last is not None and last < first:
            raise UserError(f"no sizes are admitted: {name} has no value")
        if first == last:
            made: Dim = first
        else:
            part = variable(f"{name}'")
            limit = None if last is None else (last - first) // said.modulus
            self._bounds.limits[Atom("", f"{name}'")] = limit
            made = first + said.modulus * part
        self._variables[name] = made
        return made

    def _rebuilt(
        self,
        size: Dim,
        bounds: Callable[[Dim], Bounds],
        at_most: Callable[[Dim, Dim], Answer],
    ) -> Dim:
        """The size with functions that their operands' bounds decide replaced."""
        if isinstance(size, int) or not any(a.function for m, _ in size.terms for a in m):
            return size
        total: Dim = 0
        for monomial, coefficient in size.terms:
            term: Dim = coefficient
            for atom in monomial:
                factor: Dim = from_terms({(atom,): 1})
                if atom.function:
                    operands = [self._rebuilt(o, bounds, at_most) for o in atom.operands]
                    factor = _decided(atom.function, operands, bounds, at_most)
                term = term * factor
            total = total + term
        return total

    # Congruences of normal forms.

    def _residue(self, size: Dim) -> tuple[int, int]:
        modulus, residue = 0, 0
        for monomial, coefficient in terms_of(size):
            m, r = 0, coefficient
            for atom in monomial:
                n, s = self._atom_residue(atom)
                m, r = math.gcd(m * n, m * s, n * r), r * s
            modulus, residue = math.gcd(modulus, m), residue + r
        return modulus, residue % modulus if modulus else residue

    def _atom_residue(self, atom: Atom) -> tuple[int, int]:
        if not atom.function:
            return 1, 0
        residues = [self._residue(operand) for operand in atom.operands]
        if atom.function == "//":
            (modulus, residue), (zero, divisor) = residues
            if not zero and divisor > 0 and not modulus % divisor:
                return modulus // divisor, residue // divisor
            return 1, 0
        (modulus, residue), *others = residues
        for m, r in others:
            modulus = math.gcd(modulus, m, residue - r)
        return modulus, residue % modulus if modulus else residue

    def _residues(self, size: Dim) -> list[tuple[int, int]]:
        """Congruences of a size, also by those that constraints state."""
        found = [self._residue(size)]
        for known, modulus, residue in self._congruent:
            first = terms_of(known)[0] if terms_of(known) else None
            factor = dict(terms_of(size)).get(first[0]) if first else None
            if first is None or not factor or factor % first[1]:
                continue
            factor //= first[1]
            m, r = self._residue(size - known * factor)
            common = math.gcd(m, modulus * factor)
            found.append((common, (r + residue * factor) % common))
        return found

    # Monotony of normal forms.

    def _direction(self, size: Dim, name: str) -> int | None:
        if name not in symbols_of(size):
            return 0
        found = {self._term_direction(m, c, name) for m, c in terms_of(size)}
        found.discard(0)
        if len(found) == 1 and None not in found:
            return found.pop()
        step = substituted(size, {name: variable(name) + 1}) - size
        low, high = self._bounds.range(
            self._rebuilt(step, self._bounds.range, self._bounds.at_most)
        )
        if low is not None and low >= 0:
            return 1
        return -1 if high is not None and high <= 0 else None

    def _term_direction(self, monomial: Monomial, coefficient: int, name: str) -> int | None:
        directions = {self._atom_direction(atom, name) for atom in monomial}
        varying = directions - {0}
        if not varying:
            return 0
        if len(varying) > 1 or None in varying:
            return None
        lows = [self._bounds.atom_range(atom).low for atom in monomial]
        if len(monomial) > 1 and any(low is None or low < 0 for low in lows):
            return None
        (direction,) = varying
        return direction if coefficient > 0 else -direction  # type: ignore[operator]

    def _atom_direction(self, atom: Atom, name: str) -> int | None:
        if not atom.function:
            return int(atom.text == name)
        found = [self._direction(operand, name) for operand in atom.operands]
        if atom.function != "//":
            varying = set(found) - {0}
            return 0 if not varying else varying.pop() if len(varying) == 1 else None
        numerator, divisor = found
        if numerator is None or divisor is None:
            return None
        ranges = [self._bounds.range(operand).low for operand in atom.operands]
        if ranges[1] is None or ranges[1] < 1:
            return None
        if not divisor:
            return numerator
        if ranges[0] is None or ranges[0] < 0 or numerator == divisor:
            return None
        return -divisor


def _affine(size: Dim) -> Mapping[str, int] | None:
    return {} if isinstance(size, int) else size.affine


def _factor(size: Dim, name: str) -> int:
    return dict(terms_of(size)).get((Atom("", name),), 0)


def _is_linear(size: Dim, name: str) -> bool:
    """Whether a symbol stands in a size only once, with the factor 1 or -1."""
    factor = _factor(size, name)
    return abs(factor) == 1 and name not in symbols_of(size - SymbolicDim(name) * factor)


def _decided(
    function: str,
    operands: list[Dim],
    bounds: Callable[[Dim], Bounds],
    at_most: Callable[[Dim, Dim], Answer],
) -> Dim:
    """A function of sizes, as a simpler one where bounds of its operands say so."""
    if function == "//":
        numerator, divisor = operands
        found = quotient(bounds(numerator), bounds(divisor))
        if found.low is not None and found.low == found.high:
            return found.low
        if isinstance(divisor, int):
            numerator, divisor = _without_small(numerator, divisor, bounds)
        return numerator // divisor
    kept: list[Dim] = []
    for place, operand in enumerate(operands):
        later = operands[place + 1 :]
        order = at_most if function == "max" else _swapped(at_most)
        if not any(order(operand, other) for other in [*kept, *later]):
            kept.append(operand)
    return FUNCTIONS[function](*kept)


def _without_small(
    numerator: Dim, divisor: int, bounds: Callable[[Dim], Bounds]
) -> tuple[Dim, int]:
    """(g*x + r) // (g*d) is (x + k) // d, where r // g is always k."""
    terms = [term for term in terms_of(numerator) if term[0]]
    for common in sorted({math.gcd(c, divisor) for _, c in terms} - {1}, reverse=True):
        large = from_terms({m: c for m, c in terms if not c % common})
        low, high = bounds(numerator - large)
        if low is not None and high is not None and low // common == high // common:
            return large // common + low // common, divisor // common
    return numerator, divisor


def _swapped(at_most: Callable[[Dim, Dim], Answer]) -> Callable[[Dim, Dim], Answer]:
    return lambda left, right: at_most(right, left)


class Assumed(NamedTuple):
    """What clauses of rooms are checked under. proven: what is not known does not hold. unknown:
    where to note what was asked and is not known; None stands for what is too long to be said."""

    facts: Assumptions
    proven: bool = False
    unknown: list[SizeConstraint | None] | None = None

    def accepts(self, answer: Answer, left: Dim, relation: Relation, right: Dim) -> bool:
        """Whether a clause may take `left relation right` to hold, of which `answer` is known."""
        if answer is None and self.unknown is not None:
            self.unknown.append(SizeConstraint(left, relation, right))
        return bool(answer) or (answer is None and not self.proven)

    def accepts_too_long(self) -> bool:
        """Whether a clause may take to hold what is about sizes that are too long to be asked."""
        if self.unknown is not None:
            self.unknown.append(None)
        return not self.proven


_NOTHING = Assumed(Assumptions())
_assumed: ContextVar[Assumed | None] = ContextVar("assumed", default=None)


def assumed() -> Assumed:
    """What is assumed here: without `assuming`, that symbols are not negative."""
    return _assumed.get() or _NOTHING


@contextmanager
def assuming(
    facts: Assumptions, proven: bool = False, unknown: list[SizeConstraint | None] | None = None
) -> Iterator[None]:
    """Rooms check and infer sizes by these facts. By default a clause about sizes holds unless it
    is known to hold for none, and what is not known is added to `unknown`; with `proven` only where
    it is known to hold for all."""
    token = _assumed.set(Assumed(facts, proven, unknown))
    try:
        yield
    finally:
        _assumed.reset(token)
