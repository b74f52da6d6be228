"""Bounds of sizes over variables that begin at 0; what `assumptions.py` proves with.

Of a size that has few values the bounds are the least and the largest (`size_values.py`). Else the
tightest is taken of

- intervals, term by term,
- extremes at corners: what is v*q + rest has its extremes where v has them, if q has one sign or
  no v in it; quotients x//d are (x - m)/d with another variable 0 <= m < d, so that they cancel,
- cases: a maximum is one of its operands,
- constraints g >= 0 that the program states: e >= 0 follows from e - k*g >= 0 for k >= 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from . import size_values
from .size_intervals import Bounds, End, least, of_function, sum_of_products
from .symbol_ranges import FAR, corners
from .symbols import (
    Atom,
    Dim,
    SymbolicDim,
    from_terms,
    monomial_quotient,
    substituted,
    symbols_of,
    terms_of,
)

Answer = bool | None
Limits = dict[Atom, End]  # variables lie in 0 .. limit

MAXIMUM_CASES = 16  # of operands of max and min that are tried together
MAXIMUM_CORNERS = 64  # that are looked at for one bound
MAXIMUM_VARIABLES = 6  # of a polynomial that is looked at in all corners
MAXIMUM_WORK = 250  # polynomials that are looked at for one answer
MAXIMUM_PERIOD = 16  # of remainders that are tried one by one
MAXIMUM_FACTS = 12  # constraints that are tried for one bound
DEPTH = 2  # how many constraints are combined


class NormalBounds:
    """limits: variable -> its largest value. facts: sizes that are not negative. Bounds are found
    once; `work` is what may still be looked at for the answer at hand."""

    def __init__(self) -> None:
        self.limits: Limits = {}
        self.facts: list[SymbolicDim] = []
        self.work = MAXIMUM_WORK
        self._ranges: dict[Dim, Bounds] = {}
        self._quotients: dict[Atom, Bounds] = {}
        self._grids: dict[tuple[str, ...], size_values.ValueAxes | None] = {}  # by variables
        self._corners: dict[tuple[str, ...], list[Mapping[str, int]]] = {}  # by variables
        self._admitted: dict[tuple[str, ...], list[Mapping[str, int]]] = {}

    def state(self, facts: Sequence[SymbolicDim]) -> None:
        """From now on these are known not to be negative."""
        self.facts = list(facts)
        self._corners.clear()
        self._admitted.clear()

    def at_most(self, left: Dim, right: Dim) -> Answer:
        low, high = self.range(right - left)
        if low is not None and low >= 0:
            return True
        return False if high is not None and high < 0 else None

    def range(self, size: Dim) -> Bounds:
        if isinstance(size, int):
            return Bounds(size, size)
        found = self._ranges.get(size)
        if found is None:
            signs = {c > 0 for m, c in size.terms if m}
            functions = any(a.function for m, _ in size.terms for a in m)
            is_exact = len(signs) < 2 and not (functions and len(size.terms) > 1)
            found = None if is_exact else self._by_values(size)
            if found is None:
                self.work -= 1
                found = self._interval(size)
                if self.work < 0:
                    return found
                if not is_exact and not self._is_reached(size, found):
                    found = found.meet(self._by_cases(size))
            self._ranges[size] = found
        return found

    def _by_values(self, size: SymbolicDim) -> Bounds | None:
        """The least and the largest of all values of a size that has few."""
        names = size.symbols
        if names not in self._grids:
            limits = {name: self.limits[Atom("", name)] for name in names}
            self._grids[names] = size_values.grid(limits)
        grid = self._grids[names]
        values = None if grid is None else size_values.values_on(size, grid)
        return None if values is None else Bounds(int(values.min()), int(values.max()))

    def _is_reached(self, size: SymbolicDim, found: Bounds) -> bool:
        """Whether the size has both values somewhere, so that there are no tighter bounds."""
        values = _values(size, self._corners_of(size.symbols))
        return found.low in values and found.high in values

    def _corners_of(self, names: tuple[str, ...]) -> list[Mapping[str, int]]:
        """Corners of these variables, and of those that facts are about."""
        found = self._corners.get(names)
        if found is None:
            every = {name: None for size in self.facts for name in size.symbols}
            limits = {n: self.limits[Atom("", n)] for n in dict.fromkeys([*names, *every])}
            ends = {name: (0, FAR if limit is None else limit) for name, limit in limits.items()}
            found = self._corners[names] = list(corners(ends))
        return found

    def _admitted_corners(self, names: tuple[str, ...]) -> list[Mapping[str, int]]:
        """Those at which all facts hold."""
        found = self._admitted.get(names)
        if found is None:
            found = self._admitted[names] = [
                corner for corner in self._corners_of(names)
                if all(value >= 0 for fact in self.facts for value in _values(fact, [corner]))
            ]  # fmt: skip
        return found

    def _interval(self, size: SymbolicDim) -> Bounds:
        return sum_of_products(size, self.atom_range)

    def atom_range(self, atom: Atom) -> Bounds:
        if not atom.function:
            return Bounds(0, self.limits[atom])
        ranges = [self.range(operand) for operand in atom.operands]
        found = of_function(atom.function, ranges)
        return self._quotient_range(atom, found) if atom.function == "//" else found

    def _quotient_range(self, atom: Atom, interval: Bounds) -> Bounds:
        """x // p >= k is x - k*p >= 0, which may hold where x and p are large together."""
        numerator, divisor = atom.operands
        known = self._quotients.get(atom)
        if known is not None:
            return known
        low, high = self._quotients[atom] = interval  # what is asked meanwhile
        if self.work < 0:
            del self._quotients[atom]
            return interval
        if low is None or high is None or isinstance(divisor, int):
            return interval
        if (self.range(divisor).low or 0) > 0:
            low = _last(low, high, lambda k: self.is_positive(numerator - divisor * k))
            above = divisor - numerator - 1
            high = -_last(-high, -low, lambda k: self.is_positive(above - divisor * k))
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
        products = any(a.function and len(m) > 1 for m, _ in size.terms for a in m)
        if products and not self._is_reached(size, found):
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
            low = self.atom_range(atom).low
            if low is None:
                return None
            name = f"^{number}"
            parts[atom] = variable(name) + low
            back[name] = from_terms({(atom,): 1}) - low
        shifted: Dim = size
        for atom, value in parts.items():
            shifted = _with(shifted, atom, value)
        terms = terms_of(shifted)
        kept = from_terms({m: c for m, c in terms if c < 0 or len(m) < 2})
        if len(terms_of(kept)) == len(terms):
            return None
        kept = substituted(kept, back)
        return kept if isinstance(kept, int) else self.range(kept).low

    def is_positive(self, size: Dim, depth: int = DEPTH) -> bool:
        """Whether size >= 0 is proven."""
        if isinstance(size, int):
            return size >= 0
        if any(value < 0 for value in _values(size, self._admitted_corners(size.symbols))):
            return False
        low = self.range(size).low
        if low is not None and low >= 0:
            return True
        if not depth or self.work < 0:
            return False
        if self._is_positive_by_residues(size):
            return True
        for fact in self.facts[:MAXIMUM_FACTS]:
            for combined, _ in self._combined(size, fact, -1):
                if self.is_positive(combined, depth - 1):
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
        limit = self.limits[Atom("", name)]
        for residue in range(period if limit is None else min(period, limit + 1)):
            part = Atom("", f"{name}%{period}%{residue}")
            self.limits[part] = None if limit is None else (limit - residue) // period
            value = from_terms({(part,): period, (): residue})
            case = substituted(size, {name: value})
            low = case if isinstance(case, int) else self.range(case).low
            if low is None or low < 0:
                return False
        return True

    def high_by(self, size: Dim, fact: Dim) -> End:
        """An upper bound that a constraint gives: of size + k * fact for k >= 0."""
        best: End = None
        for combined, scale in self._combined(size, fact, 1):
            high = self.range(combined).high
            best = least(best, None if high is None else high // scale)
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
                if all((self.atom_range(atom).low or 0) >= 0 for atom in part):
                    multiple = from_terms({part: abs(coefficient)})
                    found.append((size * -factor + fact * multiple * sign, -factor))
        return found


class _Relaxed:
    """A normal form times `scale`, without functions: a polynomial of variables in 0 .. limit that
    has all values of the size, and maybe others."""

    def __init__(self, owner: NormalBounds, size: SymbolicDim, exact: bool) -> None:
        """exact: quotients by numbers cancel with what is divided; else they are variables."""
        self.owner, self.exact = owner, exact
        self.limits: Limits = {}
        self.scale = 1
        self.corners = MAXIMUM_CORNERS
        self.fresh = 0
        self.size: Dim | None = self._without_functions(size)

    def bounds(self) -> Bounds:
        if self.size is None:
            return Bounds(None, None)
        ends = self._in_corners(self.size)
        if ends is None:
            low = self._low(self.size)
            self.corners = MAXIMUM_CORNERS
            high = self._low(-self.size)
        else:
            low, high = min(ends), -max(ends)
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
                low, high = self.owner.atom_range(atom)
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
                    self.limits[atom] = self.owner.limits[atom]
        return size

    def _remainder(self, size: Dim, atom: Atom) -> Dim | None:
        """p * (x // p) is x - m, 0 <= m < p, where p is one variable (times a number)."""
        if atom.function != "//" or isinstance(atom.operands[1], int):
            return None
        numerator, divisor = atom.operands
        low, high = self.owner.range(divisor)
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

    def _in_corners(self, size: Dim) -> list[int] | None:
        """The values where each variable is at one of its ends: extremes are among them if each
        occurs once in each product. None where one does not, has no end, or there are many."""
        bits: dict[Atom, int] = {}
        products: list[tuple[int, int]] = []  # variables that are not 0, and the value there
        for monomial, value in terms_of(size):
            present = 0
            for atom in monomial:
                limit = self.limits[atom]
                bit = bits.setdefault(atom, 1 << len(bits))
                if limit is None or present & bit:
                    return None
                present |= bit
                value *= limit
            products.append((present, value))
        if len(bits) > MAXIMUM_VARIABLES:
            return None
        return [
            sum([value for present, value in products if present & corner == present])
            for corner in range(1 << len(bits))
        ]

    def _low(self, size: Dim) -> End:
        """A lower bound, exact where each variable occurs once in each product."""
        while True:
            terms = terms_of(size)
            if all(c > 0 or not m for m, c in terms):
                return size if isinstance(size, int) else size.constant
            self.corners -= 1
            self.owner.work -= 1
            if self.corners < 0 or self.owner.work < 0:
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
        if isinstance(size, int):
            return Bounds(size, size)
        return sum_of_products(size, lambda atom: Bounds(0, self.limits[atom]))


def variable(name: str) -> Dim:
    return from_terms({(Atom("", name),): 1})


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


def _last(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The last number of low .. high for which it holds; it holds for low, and up to the last."""
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _values(size: SymbolicDim, at: Sequence[Mapping[str, int]]) -> list[int]:
    """The values of a size for these of its variables; none where a divisor is 0."""
    try:
        return [size.bind(values) for values in at]
    except ZeroDivisionError:
        return []
