"""What is known of symbols, and what follows from it: three-valued answers about sizes.

An answer is True where it holds at all sizes that are admitted, False where it holds at none, None
where neither is proven (or it depends on the sizes). True and False are never wrong.

How it is done. Equalities become substitutions, a congruence s = r modulo m becomes s = r + m*s', and
ranges are shifted to begin at 0: so the algebra of `symbols` proves equality and divisibility, and a
polynomial without negative coefficients is not negative. Otherwise bounds come, the tightest of

- intervals, term by term,
- extremes at corners: what is v*q + rest has its extremes where v has them, if q has one sign or no
  v in it; quotients x//d are (x - m)/d with another variable 0 <= m < d, so that they cancel with x;
- cases: a maximum is one of its operands,
- constraints g >= 0 that the program states: e >= 0 follows from e - k*g >= 0 for k >= 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from .errors import UserError
from .sizes import SizeConstraint, Symbol
from .symbols import (
    FUNCTIONS,
    Atom,
    Dim,
    Monomial,
    SizeTooLong,
    SymbolicDim,
    bound,
    from_terms,
    monomial_quotient,
    substituted,
    symbols_of,
    terms_of,
)

Answer = bool | None
End = int | None  # None: without end
Limits = dict[Atom, End]  # variables lie in 0 .. limit

MAXIMUM_CASES = 16  # of operands of max and min that are tried together
MAXIMUM_CORNERS = 64  # that are looked at for one bound
MAXIMUM_PERIOD = 16  # of remainders that are tried one by one
MAXIMUM_FACTS = 12  # constraints that are tried for one bound
_FAR = 10**30  # below all sizes
DEPTH = 2  # how many constraints are combined


class Bounds(NamedTuple):
    """low <= size <= high; None is no bound."""

    low: End
    high: End

    def meet(self, other: Bounds) -> Bounds:
        return Bounds(_most(self.low, other.low), _least(self.high, other.high))


class Maximum(NamedTuple):
    """value: never exceeded; None where there is no end. exact: it is reached, at these sizes."""

    value: End
    sizes: Mapping[str, int]
    exact: bool


_Query = TypeVar("_Query", bound=Callable[..., Any])


def _unknown_is(answer: Any) -> Callable[[_Query], _Query]:
    """A query that gives this answer where sizes on the way are too long, or have no meaning."""

    def decorate(query: _Query) -> _Query:
        @functools.wraps(query)
        def asked(*arguments: Any) -> Any:
            try:
                return query(*arguments)
            except (SizeTooLong, ZeroDivisionError):  # of a divisor that is 0 somewhere
                return answer

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
        self._said = dict(self.symbols)
        self._solved: dict[str, Dim] = {}  # symbols that equalities express by others
        self._positive: list[Dim] = []  # not negative
        self._unequal: list[Dim] = []  # not 0
        self._congruent: list[tuple[Dim, int, int]] = []
        self._learn()
        self._variables: dict[str, Dim] = {}  # symbol -> first + step * variable
        self._limits: Limits = {}
        self._normal: dict[Dim, Dim] = {}
        self._ranges: dict[Dim, Bounds] = {}
        self._quotients: dict[Atom, Bounds] = {}
        self._positive = [self.normal(fact) for fact in self._positive]
        self._positive = list(dict.fromkeys(f for f in self._positive if not isinstance(f, int)))
        self._unequal = [self.normal(fact) for fact in self._unequal]
        self._congruent = [(self.normal(e), m, r) for e, m, r in self._congruent]

    # Queries.

    @_unknown_is(Bounds(None, None))
    def bounds(self, size: Dim) -> Bounds:
        """The range of a size."""
        normal = self.normal(size)
        found = self._range(normal)
        for fact in self._positive[:MAXIMUM_FACTS]:
            high = self._high_by(normal, fact)
            low = self._high_by(-normal, fact)
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
        low, high = self._range(difference)
        if (low is not None and low > 0) or (high is not None and high < 0):
            return False
        modulus, residue = self._residue(difference)
        if residue % modulus if modulus else residue:
            return False
        if any(fact is difference or fact is -difference for fact in self._unequal):
            return False
        if self._is_positive(difference - 1) or self._is_positive(-difference - 1):
            return False
        if self._is_positive(difference) and self._is_positive(-difference):
            return True
        return None

    @_unknown_is(None)
    def at_most(self, left: Dim, right: Dim) -> Answer:
        """left <= right"""
        if isinstance(left, int) and isinstance(right, int):
            return left <= right
        difference = self.normal(right - left)
        if self._is_positive(difference):
            return True
        return False if self._is_positive(-difference - 1) else None

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
            return True if self._range(rest) == Bounds(0, 0) else None
        divisor = abs(divisor)
        low, high = self._range(size)
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
        variable = symbols_of(self._variable(symbol))
        return self._direction(self.normal(size), variable[0]) if variable else 0

    @_unknown_is(Maximum(None, {}, False))
    def maximum(self, size: Dim) -> Maximum:
        """The largest value over all sizes: at a corner where the size is monotone in each symbol,
        else the upper bound."""
        normal, high = self.normal(size), self.bounds(size).high
        corner = dict.fromkeys([n for fact in self._stated() for n in symbols_of(fact)], 0)
        for name in symbols_of(normal):
            direction = self._direction(normal, name)
            limit = self._limits[Atom("", name)]
            if direction is None or (direction == 1 and limit is None):
                return Maximum(high, {}, False)
            corner[name] = limit if direction == 1 and limit is not None else 0
        value = bound(normal, corner)
        if high is not None and high < value:
            return Maximum(high, {}, False)
        sizes = {
            name: bound(self.normal(SymbolicDim(name)), corner)
            for name in symbols_of(size)
            if corner.keys() >= set(symbols_of(self.normal(SymbolicDim(name))))
        }
        reached = all(bound(fact, corner) >= 0 for fact in self._positive) and all(
            bound(fact, corner) for fact in self._unequal
        )
        return Maximum(value, sizes, reached and not self._congruent)

    def _stated(self) -> list[Dim]:
        return [*self._positive, *self._unequal]

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
            found = self._rebuilt(found, self._range, self._at_most)
            self._normal[size] = self._normal[found] = found
        return found

    def _variable(self, name: str) -> Dim:
        found = self._variables.get(name)
        if found is not None:
            return found
        if name.endswith("'"):
            return _variable(name)
        said = self._said.get(name, Symbol())
        first, last = said.first, said.last
        if last is not None and last < first:
            raise UserError(f"no sizes are admitted: {name} has no value")
        if first == last:
            made: Dim = first
        else:
            variable = _variable(f"{name}'")
            limit = None if last is None else (last - first) // said.modulus
            self._limits[Atom("", f"{name}'")] = limit
            made = first + said.modulus * variable
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

    # Bounds of normal forms.

    def _at_most(self, left: Dim, right: Dim) -> Answer:
        low, high = self._range(right - left)
        if low is not None and low >= 0:
            return True
        return False if high is not None and high < 0 else None

    def _range(self, size: Dim) -> Bounds:
        if isinstance(size, int):
            return Bounds(size, size)
        found = self._ranges.get(size)
        if found is None:
            found = self._interval(size)
            signs = {c > 0 for m, c in size.terms if m}
            functions = any(a.function for m, _ in size.terms for a in m)
            if len(signs) > 1 or (functions and len(size.terms) > 1):  # else it is exact
                found = found.meet(self._by_cases(size))
            self._ranges[size] = found
        return found

    def _interval(self, size: SymbolicDim) -> Bounds:
        low: End = 0
        high: End = 0
        for monomial, coefficient in size.terms:
            part = Bounds(coefficient, coefficient)
            for atom in monomial:
                part = _times(part, self._atom_range(atom))
            low = None if low is None or part.low is None else low + part.low
            high = None if high is None or part.high is None else high + part.high
        return Bounds(low, high)

    def _atom_range(self, atom: Atom) -> Bounds:
        if not atom.function:
            return Bounds(0, self._limits[atom])
        ranges = [self._range(operand) for operand in atom.operands]
        if atom.function == "//":
            return self._quotient_range(atom, _quotient(*ranges))
        lows, highs = [r.low for r in ranges], [r.high for r in ranges]
        if atom.function == "max":
            ends = [low for low in lows if low is not None]
            return Bounds(max(ends, default=None), None if None in highs else max(highs))  # type: ignore[type-var]
        ends = [high for high in highs if high is not None]
        return Bounds(None if None in lows else min(lows), min(ends, default=None))  # type: ignore[type-var]

    def _quotient_range(self, atom: Atom, interval: Bounds) -> Bounds:
        """x // p >= k is x - k*p >= 0, which may hold where x and p are large together."""
        numerator, divisor = atom.operands
        known = self._quotients.get(atom)
        if known is not None:
            return known
        low, high = self._quotients[atom] = interval  # what is asked meanwhile
        if not isinstance(divisor, int) and low is not None and high is not None:
            if (self._range(divisor).low or 0) > 0:
                low = _last(low, high, lambda k: self._is_positive(numerator - divisor * k))
                above = divisor - numerator - 1
                high = -_last(-high, -low, lambda k: self._is_positive(above - divisor * k))
        self._quotients[atom] = found = Bounds(low, high)
        return found

    def _by_cases(self, size: SymbolicDim, left: int = MAXIMUM_CASES) -> Bounds:
        """Bounds where each maximum is one of its operands."""
        atom = next((a for m, _ in size.terms for a in m if a.function in ("max", "min")), None)
        if atom is None:
            return self._by_corners(size)
        if len(atom.operands) > left:
            return Bounds(None, None)
        cases = [_with(size, atom, operand) for operand in atom.operands]
        left //= len(cases)
        found = [
            Bounds(case, case) if isinstance(case, int) else self._case(case, left)
            for case in cases
        ]
        lows, highs = [f.low for f in found], [f.high for f in found]
        # Where the size grows with the maximum, it is above all cases, and not only one of them.
        factor = self._interval_of(_quotient_part(size, atom))
        grows = factor.low is not None and factor.low >= 0
        falls = factor.high is not None and factor.high <= 0
        is_max = atom.function == "max"
        known_lows = [low for low in lows if low is not None]
        known_highs = [high for high in highs if high is not None]
        if (grows and is_max) or (falls and not is_max):
            low = max(known_lows, default=None)
        else:
            low = None if None in lows else min(known_lows)
        if (grows and not is_max) or (falls and is_max):
            high = min(known_highs, default=None)
        else:
            high = None if None in highs else max(known_highs)
        return Bounds(low, high)

    def _case(self, size: SymbolicDim, left: int) -> Bounds:
        return self._interval(size).meet(self._by_cases(size, left))

    def _interval_of(self, size: Dim) -> Bounds:
        return Bounds(size, size) if isinstance(size, int) else self._interval(size)

    def _by_corners(self, size: SymbolicDim) -> Bounds:
        found = _Relaxed(self, size, exact=True).bounds()
        if any(a.function and len(m) > 1 for m, _ in size.terms for a in m):
            found = found.meet(_Relaxed(self, size, exact=False).bounds())
            low, high = self._linear_low(size), self._linear_low(-size)
            found = found.meet(Bounds(low, None if high is None else -high))
        return found

    def _linear_low(self, size: SymbolicDim) -> End:
        """A lower bound that leaves positive products of what is above the atoms' least values
        away."""
        atoms = dict.fromkeys(a for m, _ in size.terms for a in m if a.function)
        parts: dict[Atom, Dim] = {}
        back: dict[str, Dim] = {}
        for number, atom in enumerate(atoms):
            low = self._atom_range(atom).low
            if low is None:
                return None
            name = f"^{number}"
            parts[atom] = _variable(name) + low
            back[name] = from_terms({(atom,): 1}) - low
        shifted: Dim = size
        for atom, value in parts.items():
            shifted = _with(shifted, atom, value)
        terms = terms_of(shifted)
        kept = from_terms({m: c for m, c in terms if c < 0 or len(m) < 2})
        if len(terms_of(kept)) == len(terms):
            return None
        kept = substituted(kept, back)
        return kept if isinstance(kept, int) else self._range(kept).low

    # Constraints.

    def _is_positive(self, size: Dim, depth: int = DEPTH) -> bool:
        """Whether size >= 0 is proven."""
        low = self._range(size).low
        if low is not None and low >= 0:
            return True
        if not depth or isinstance(size, int):
            return False
        if self._is_positive_by_residues(size):
            return True
        for fact in self._positive[:MAXIMUM_FACTS]:
            for combined, _ in self._combined(size, fact, -1):
                if self._is_positive(combined, depth - 1):
                    return True
        return False

    def _is_positive_by_residues(self, size: SymbolicDim) -> bool:
        """Whether size >= 0 for each remainder of a variable by the divisors of its quotients:
        with v = d*w + r the quotients by d are w, and those of other divisors are left."""
        atoms = [a for m, _ in size.terms for a in m if a.function == "//"]
        divisors = {a.operands[1]: a for a in atoms if isinstance(a.operands[1], int)}
        period = math.lcm(*(d for d in divisors if isinstance(d, int)))
        names = list(dict.fromkeys(n for a in divisors.values() for n in symbols_of(a.operands[0])))
        if not 1 < period <= MAXIMUM_PERIOD or len(names) != 1:
            return False
        (name,) = names
        limit = self._limits[Atom("", name)]
        for residue in range(period if limit is None else min(period, limit + 1)):
            part = Atom("", f"{name}%{period}%{residue}")
            self._limits[part] = None if limit is None else (limit - residue) // period
            value = from_terms({(part,): period, (): residue})
            case = substituted(size, {name: value})
            low = case if isinstance(case, int) else self._range(case).low
            if low is None or low < 0:
                return False
        return True

    def _high_by(self, size: Dim, fact: Dim) -> End:
        """An upper bound that a constraint gives: of size + k * fact for k >= 0."""
        best: End = None
        for combined, scale in self._combined(size, fact, 1):
            high = self._range(combined).high
            best = _least(best, None if high is None else high // scale)
        return best

    def _combined(self, size: Dim, fact: Dim, sign: int) -> list[tuple[Dim, int]]:
        """(scale * size + sign * k * fact, scale), where a term of the fact that is negative
        cancels one of the size; scale > 0, k >= 0."""
        found = []
        for monomial, coefficient in terms_of(size):
            if coefficient * sign < 0:
                continue
            for other, factor in terms_of(fact):
                if factor > 0:
                    continue
                try:
                    part = monomial_quotient(monomial, other)
                except ValueError:
                    continue
                if all((self._atom_range(atom).low or 0) >= 0 for atom in part):
                    multiple = from_terms({part: abs(coefficient)})
                    found.append((size * -factor + fact * multiple * sign, -factor))
        return found

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
        step = substituted(size, {name: _variable(name) + 1}) - size
        low, high = self._range(self._rebuilt(step, self._range, self._at_most))
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
        if len(monomial) > 1 and any((self._atom_range(a).low or -1) < 0 for a in monomial):
            if any(self._atom_range(a).low != 0 for a in monomial):
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
        ranges = [self._range(operand).low for operand in atom.operands]
        if ranges[1] is None or ranges[1] < 1:
            return None
        if not divisor:
            return numerator
        if ranges[0] is None or ranges[0] < 0 or numerator == divisor:
            return None
        return -divisor


class _Relaxed:
    """A normal form times `scale`, without functions: a polynomial of variables in 0 .. limit that
    has all values of the size, and maybe others."""

    def __init__(self, facts: Assumptions, size: SymbolicDim, exact: bool) -> None:
        """exact: quotients by numbers cancel with what is divided; else they are variables."""
        self.facts, self.exact = facts, exact
        self.limits: Limits = {}
        self.scale = 1
        self.corners = MAXIMUM_CORNERS
        self.fresh = 0
        self.size: Dim | None = self._without_functions(size)

    def bounds(self) -> Bounds:
        if self.size is None:
            return Bounds(None, None)
        low = self._low(self.size)
        self.corners = MAXIMUM_CORNERS
        high = self._low(-self.size)
        return Bounds(
            None if low is None else -(-low // self.scale),
            None if high is None else -high // self.scale,
        )

    def _variable(self, limit: End) -> Dim:
        atom = Atom("", f"#{self.fresh}")
        self.fresh += 1
        self.limits[atom] = limit
        return from_terms({(atom,): 1})

    def _without_functions(self, size: Dim) -> Dim | None:
        """One after another: a quotient by a number is exact with a remainder beside it."""
        for _ in range(8):
            atoms = [a for m, _ in terms_of(size) for a in m if a.function]
            if not atoms:
                break
            atom = max(atoms, key=lambda a: len(a.text))  # outer ones before what is inside
            numerator, divisor = (*atom.operands, 0)[:2]
            if self.exact and atom.function == "//" and isinstance(divisor, int):
                value = numerator - self._variable(divisor - 1)
                scale = divisor
            else:
                scale = 1
                low, high = self.facts._atom_range(atom)
                product = self._remainder(size, atom)
                if product is not None:
                    size = product
                    continue
                if low is not None:
                    value = low + self._variable(None if high is None else high - low)
                elif high is not None:
                    value = high - self._variable(None)
                else:
                    return None
            degree = max(m.count(atom) for m, _ in terms_of(size))
            total: Dim = 0
            for monomial, coefficient in terms_of(size):
                count = monomial.count(atom)
                others = tuple(a for a in monomial if a is not atom)
                term: Dim = from_terms({others: coefficient * scale ** (degree - count)})
                for _ in range(count):
                    term = term * value
                total = total + term
            size, self.scale = total, self.scale * scale**degree
        else:
            return None
        for monomial, _ in terms_of(size):
            for atom in monomial:
                if atom not in self.limits:
                    self.limits[atom] = self.facts._limits[atom]
        return size

    def _remainder(self, size: Dim, atom: Atom) -> Dim | None:
        """p * (x // p) is x - m, 0 <= m < p, where p is one variable (times a number)."""
        if atom.function != "//" or isinstance(atom.operands[1], int):
            return None
        numerator, divisor = atom.operands
        low, high = self.facts._range(divisor)
        terms = terms_of(divisor)
        if low is None or low < 1:
            return None
        # With p = first + rest, first * q is x - m - rest * q.
        first, factor = terms[0]
        rest = divisor - from_terms({first: factor})
        total: Dim = 0
        changed = False
        remainder: Dim = self._variable(None if high is None else high - 1)
        for monomial, coefficient in terms_of(size):
            others = tuple(a for a in monomial if a is not atom)
            term: Dim = from_terms({monomial: coefficient})
            if monomial.count(atom) == 1 and not coefficient % factor:
                try:
                    part = monomial_quotient(others, first)
                except ValueError:
                    part = None
                if part is not None:
                    quotient = from_terms({(atom,): 1})
                    value = numerator - remainder - rest * quotient
                    term = from_terms({part: coefficient // factor}) * value
                    changed = True
            total = total + term
        return total if changed else None

    def _low(self, size: Dim) -> End:
        """A lower bound, exact where each variable occurs once in each product."""
        while True:
            terms = terms_of(size)
            if all(c > 0 or not m for m, c in terms):
                return size if isinstance(size, int) else size.constant
            self.corners -= 1
            if self.corners < 0:
                return self._interval(size).low
            undecided: list[tuple[Atom, Dim, Dim]] = []
            for atom in dict.fromkeys(a for m, c in terms if c < 0 for a in m):
                factor = _quotient_part(size, atom)
                rest = from_terms({m: c for m, c in terms if atom not in m})
                sign = self._interval(factor)
                if sign.low is not None and sign.low >= 0:
                    size = rest
                    break
                limit = self.limits[atom]
                if sign.high is not None and sign.high <= 0:
                    if limit is not None:
                        size = rest + factor * limit
                        break
                    continue
                undecided.append((atom, factor, rest))
            else:
                return self._branch(size, undecided)

    def _branch(self, size: Dim, undecided: Sequence[tuple[Atom, Dim, Dim]]) -> End:
        """The lower of both ends of a variable that occurs once in each product."""
        for atom, factor, rest in undecided:
            if any(atom in m for m, _ in terms_of(factor)):
                continue
            limit = self.limits[atom]
            if limit is None:
                sign = self._low(factor)
                if sign is None or sign < 0:
                    continue
                return self._low(rest)
            ends = self._low(rest), self._low(rest + factor * limit)
            return None if None in ends else min(ends)  # type: ignore[type-var]
        return self._interval(size).low

    def _interval(self, size: Dim) -> Bounds:
        low: End = 0
        high: End = 0
        for monomial, coefficient in terms_of(size):
            part = Bounds(coefficient, coefficient)
            for atom in monomial:
                part = _times(part, Bounds(0, self.limits[atom]))
            low = None if low is None or part.low is None else low + part.low
            high = None if high is None or part.high is None else high + part.high
        return Bounds(low, high)


def _variable(name: str) -> Dim:
    return from_terms({(Atom("", name),): 1})


def _affine(size: Dim) -> Mapping[str, int] | None:
    return {} if isinstance(size, int) else size.affine


def _factor(size: Dim, name: str) -> int:
    return dict(terms_of(size)).get((Atom("", name),), 0)


def _is_linear(size: Dim, name: str) -> bool:
    """Whether a symbol stands in a size only once, with the factor 1 or -1."""
    factor = _factor(size, name)
    return abs(factor) == 1 and name not in symbols_of(size - SymbolicDim(name) * factor)


def _with(size: Dim, atom: Atom, value: Dim) -> Dim:
    """The size with another value for an atom of it."""
    total: Dim = 0
    for monomial, coefficient in terms_of(size):
        term: Dim = from_terms({tuple(a for a in monomial if a is not atom): coefficient})
        for _ in range(monomial.count(atom)):
            term = term * value
        total = total + term
    return total


def _quotient_part(size: Dim, atom: Atom) -> Dim:
    """q of atom * q + rest, where the atom stands in no term of the rest."""
    return from_terms({
        monomial_quotient(m, (atom,)): c for m, c in terms_of(size) if atom in m
    })  # fmt: skip


def _decided(
    function: str,
    operands: list[Dim],
    bounds: Callable[[Dim], Bounds],
    at_most: Callable[[Dim, Dim], Answer],
) -> Dim:
    """A function of sizes, as a simpler one where bounds of its operands say so."""
    if function == "//":
        numerator, divisor = operands
        quotient = _quotient(bounds(numerator), bounds(divisor))
        if quotient.low is not None and quotient.low == quotient.high:
            return quotient.low
        return numerator // divisor
    kept: list[Dim] = []
    for place, operand in enumerate(operands):
        later = operands[place + 1 :]
        order = at_most if function == "max" else _swapped(at_most)
        if not any(order(operand, other) for other in [*kept, *later]):
            kept.append(operand)
    return FUNCTIONS[function](*kept)


def _swapped(at_most: Callable[[Dim, Dim], Answer]) -> Callable[[Dim, Dim], Answer]:
    return lambda left, right: at_most(right, left)


def _last(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The last number of low .. high for which it holds; it holds for low, and up to the last."""
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


# Intervals.


def _most(a: End, b: End) -> End:
    """The larger lower bound."""
    return b if a is None else a if b is None else max(a, b)


def _least(a: End, b: End) -> End:
    """The smaller upper bound."""
    return b if a is None else a if b is None else min(a, b)


def _times(a: Bounds, b: Bounds) -> Bounds:
    ends = [
        _end_product(x, x_sign, y, y_sign)
        for x, x_sign in ((a.low, -1), (a.high, 1))
        for y, y_sign in ((b.low, -1), (b.high, 1))
    ]
    low = None if -math.inf in ends else min(ends)
    high = None if math.inf in ends else max(ends)
    return Bounds(low, high)  # type: ignore[arg-type]


def _end_product(x: End, x_sign: int, y: End, y_sign: int) -> int | float:
    """The product of two ends; None is the infinity of that sign, and 0 times it is 0."""
    if x is not None and y is not None:
        return x * y
    if x == 0 or y == 0:
        return 0
    positive = ((x_sign if x is None else x) > 0) == ((y_sign if y is None else y) > 0)
    return math.inf if positive else -math.inf


def _quotient(x: Bounds, divisor: Bounds) -> Bounds:
    """x // divisor; no bounds where the divisor may be 0."""
    low, high = divisor
    if low is None or low < 1:
        if high is None or high > -1:
            return Bounds(None, None)
        return _quotient(_negative(x), _negative(divisor))
    smallest = largest = None
    if x.low is not None:
        smallest = x.low // low if x.low < 0 else _over(x.low, high)
    if x.high is not None:
        largest = x.high // low if x.high >= 0 else _over(x.high, high)
    return Bounds(smallest, largest)


def _negative(x: Bounds) -> Bounds:
    low, high = x
    return Bounds(None if high is None else -high, None if low is None else -low)


def _over(number: int, divisor: End) -> int:
    """number // divisor, of the largest divisor."""
    if divisor is None:
        return 0 if number >= 0 else -1
    return number // divisor
