"""What a program says of its symbols, and the check of a call's sizes against it.

A `Symbol` has a range and a congruence; a `SizeConstraint` relates several. `SizeSolver` finds from
the shapes of a call what each symbol stands for, once, and names argument, symbol, range and the
line that demands it where they do not fit. This module imports nothing of the compiler.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from .errors import UserError
from .size_text import parse_dim
from .symbols import Dim, SymbolicDim, bound, from_terms, substituted, symbols_of, terms_of

Relation = Literal["==", "!=", "<="]


class Symbol(NamedTuple):
    """A symbol's values: minimum .. maximum (None: no end) that are residue modulo `modulus`.

    `origin` says who demands that: a line of the export, an argument's dimension, the user.
    """

    minimum: int = 0
    maximum: int | None = None
    modulus: int = 1
    residue: int = 0
    origin: str = ""

    def admits(self, value: int) -> bool:
        """Whether a symbol may have this value."""
        return (
            self.minimum <= value
            and (self.maximum is None or value <= self.maximum)
            and (value - self.residue) % self.modulus == 0
        )

    @property
    def first(self) -> int:
        """The smallest value."""
        return self.minimum + (self.residue - self.minimum) % self.modulus

    @property
    def last(self) -> int | None:
        """The largest value; None: there is none."""
        if self.maximum is None:
            return None
        return self.maximum - (self.maximum - self.residue) % self.modulus

    @property
    def is_empty(self) -> bool:
        return self.last is not None and self.last < self.first

    def meet(self, other: Symbol) -> Symbol:
        """What both admit, by the origin of the one that says it all, else by both; UserError where
        no value is left."""
        ends = [end for end in (self.maximum, other.maximum) if end is not None]
        minimum, maximum = max(self.minimum, other.minimum), min(ends, default=None)
        common = _common_residue(self, other)
        if common is not None:
            modulus, residue = common
            met = Symbol(minimum, maximum, modulus, residue)
            if not met.is_empty:
                said = [one.origin for one in (other, self) if met[:4] == one[:4]]
                origins = dict.fromkeys(filter(None, said[-1:] or (other.origin, self.origin)))
                return met._replace(origin="; ".join(origins))
        raise UserError(f"no size is {self} and {other}")

    def __str__(self) -> str:
        """`from 1 to 64`, `from 16 to 512 in steps of 16`, `at least 2`, `8`."""
        first, last = self.first, self.last
        if first == last:
            return str(first)
        text = f"at least {first}" if last is None else f"from {first} to {last}"
        return text if self.modulus == 1 else f"{text} in steps of {self.modulus}"


def _common_residue(one: Symbol, other: Symbol) -> tuple[int, int] | None:
    """modulus, residue of what is congruent to both; None where nothing is."""
    common = math.gcd(one.modulus, other.modulus)
    if (one.residue - other.residue) % common:
        return None
    modulus = one.modulus // common * other.modulus
    step = other.modulus // common
    factor = (other.residue - one.residue) // common * pow(one.modulus // common, -1, step) % step
    return modulus, (one.residue + one.modulus * factor) % modulus


def symbol_of_range(sizes: range, origin: str = "") -> Symbol:
    """The symbol whose values are those of a range; UserError for an empty one."""
    if not len(sizes):
        raise UserError(f"{sizes} has no sizes")
    low, high = min(sizes[0], sizes[-1]), max(sizes[0], sizes[-1])
    step = abs(sizes.step) if len(sizes) > 1 else 1
    return Symbol(low, high, step, low % step, origin)


class SizeConstraint(NamedTuple):
    """left relation right, for all sizes of a call; `origin` as a symbol's."""

    left: Dim
    relation: Relation
    right: Dim
    origin: str = ""

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(sorted({*symbols_of(self.left), *symbols_of(self.right)}))

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether it holds for these values of its symbols; not where a divisor is 0."""
        try:
            left, right = bound(self.left, values), bound(self.right, values)
        except ZeroDivisionError:
            return False
        if self.relation == "<=":
            return left <= right
        return (left == right) is (self.relation == "==")

    @property
    def congruence(self) -> tuple[Dim, int, int] | None:
        """expression, modulus, residue, where it says that the expression is congruent."""
        if self.relation != "==":
            return None
        difference = self.left - self.right
        for monomial, coefficient in terms_of(difference):
            if len(monomial) != 1 or monomial[0].function != "//":
                continue
            numerator, divisor = monomial[0].operands
            if not isinstance(divisor, int) or coefficient % divisor:
                continue
            # factor * (numerator - m) stands there for coefficient * (numerator // divisor)
            factor = coefficient // divisor
            atom = difference - from_terms({monomial: coefficient}) + numerator * factor
            if isinstance(atom, int) and atom % factor == 0:
                return numerator, divisor, atom // factor % divisor
        return None

    def renamed(self, names: Mapping[str, Dim]) -> SizeConstraint:
        """The same of other sizes."""
        return self._replace(
            left=substituted(self.left, names), right=substituted(self.right, names)
        )

    def __str__(self) -> str:
        found = self.congruence
        if found is not None:
            expression, modulus, residue = found
            return f"({expression - residue}) % {modulus} == 0"
        return f"{self.left} {self.relation} {self.right}"


_RELATION = re.compile(r"==|!=|<=|>=|<|>")


def parse_constraint(text: str, origin: str = "") -> SizeConstraint:
    """The constraint of `b*s <= 4096`, `s % 8 == 0`, `s > t`, ...; ValueError for other text."""
    found = _RELATION.findall(text)
    if len(found) != 1:
        raise ValueError(f"'{text[:80]}' is no relation of two sizes")
    left, right = map(parse_dim, text.split(found[0]))
    match found[0]:
        case "<=":
            return SizeConstraint(left, "<=", right, origin)
        case ">=":
            return SizeConstraint(right, "<=", left, origin)
        case "<":
            return SizeConstraint(left + 1, "<=", right, origin)
        case ">":
            return SizeConstraint(right + 1, "<=", left, origin)
        case "==":
            return SizeConstraint(left, "==", right, origin)
        case _:
            return SizeConstraint(left, "!=", right, origin)


class _SolvedSymbol(NamedTuple):
    """A symbol that an argument's dimension gives: (size - rest) / factor."""

    symbol: str
    place: int
    axis: int
    factor: int
    rest: Dim


class SizeSolver:
    """Finds what symbols stand for in a call.

    arguments: name and dims of each; every symbol in them must follow from a dimension that is
    `k * symbol + rest`, where the symbols of the rest follow from others. UserError where one does
    not: its sizes could not be told at a call.
    """

    def __init__(
        self,
        arguments: Sequence[tuple[str, Sequence[Dim]]],
        symbols: Mapping[str, Symbol],
        constraints: Sequence[SizeConstraint] = (),
    ) -> None:
        self.names = [name for name, _ in arguments]
        self.ranks = [len(dims) for _, dims in arguments]
        self.symbols, self.steps = dict(symbols), list[_SolvedSymbol]()
        open_dims = [
            (place, axis, dim)
            for place, (_, dims) in enumerate(arguments)
            for axis, dim in enumerate(dims)
            if isinstance(dim, SymbolicDim)
        ]
        self.checked = list(open_dims)
        known: set[str] = set()
        progress = True
        while open_dims and progress:
            progress = False
            # Plain symbols first: their sizes need no arithmetic, and errors name them.
            for entry in sorted(open_dims, key=lambda entry: len(entry[2].terms)):
                step = _solved(*entry, known)
                if step is not None:
                    self.steps.append(step)
                    known.add(step.symbol)
                    self.checked.remove(entry)
                if step is not None or known.issuperset(entry[2].symbols):
                    open_dims.remove(entry)
                    progress = True
                    break
        for place, axis, dim in open_dims:
            lacking = [name for name in dim.symbols if name not in known]
            origin = next((symbols[n].origin for n in lacking if n in symbols), "")
            raise UserError(
                f"{self.names[place]}: dimension {axis} is {dim}, from which {_listed(lacking)} "
                f"cannot be told{_by(origin)}; no argument has a dimension that is a multiple of "
                "it plus what is known: give one, or fix it"
            )
        self.constraints = [c for c in constraints if known.issuperset(c.symbols)]

    def solve(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """symbol -> value, for shapes that have the arguments' ranks and fixed dims. UserError
        where they contradict each other, a range or a constraint."""
        values: dict[str, int] = {}
        for name, place, axis, factor, rest in self.steps:
            size = shapes[place][axis]
            value, left = divmod(size - bound(rest, values), factor)
            said = self.symbols.get(name, _ANY)
            if left or not said.admits(value):
                dim = rest + factor * SymbolicDim(name)
                what = "" if dim is SymbolicDim(name) else f" = {dim}"
                raise UserError(
                    f"{self.names[place]}: dimension {axis}{what} is {size}, but the size {name} "
                    f"must be {'a whole number, ' if left else ''}{said}{_by(said.origin)}"
                )
            values[name] = value
        for place, axis, dim in self.checked:
            size, wanted = shapes[place][axis], _bound(dim, values)
            if size != wanted:
                raise UserError(
                    f"{self.names[place]}: dimension {axis} = {dim} is {size}, but must be "
                    f"{wanted}: {self._said(dim, values)}"
                )
        for constraint in self.constraints:
            if not constraint.holds(values):
                found = ", ".join(f"{name} = {values[name]}" for name in constraint.symbols)
                raise UserError(
                    f"these sizes do not fit: {constraint} does not hold for {found}"
                    f"{_by(constraint.origin)}"
                )
        return values

    def _said(self, dim: SymbolicDim, values: Mapping[str, int]) -> str:
        """Which argument gave the symbols of a size."""
        steps = [step for step in self.steps if step.symbol in dim.symbols]
        return ", ".join(
            f"{s.symbol} is {values[s.symbol]} by dimension {s.axis} of {self.names[s.place]}"
            for s in steps
        )


_ANY = Symbol()


def _solved(place: int, axis: int, dim: SymbolicDim, known: set[str]) -> _SolvedSymbol | None:
    """How a dimension gives the only symbol of it that is not known yet."""
    unknown = [name for name in dim.symbols if name not in known]
    if len(unknown) != 1:
        return None
    name = unknown[0]
    symbol = SymbolicDim(name)
    factor = next((c for m, c in dim.terms if len(m) == 1 and m[0].text == name), 0)
    rest = dim - symbol * factor
    if not factor or name in symbols_of(rest):
        return None
    return _SolvedSymbol(name, place, axis, factor, rest)


def _bound(dim: SymbolicDim, values: Mapping[str, int]) -> int | None:
    try:
        return dim.bind(values)
    except ZeroDivisionError:
        return None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _by(origin: str) -> str:
    return f" ({origin})" if origin else ""
