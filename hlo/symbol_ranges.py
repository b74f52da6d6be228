"""What ranges of symbols alone say of sizes; what `assumptions.py` asks before it proves anything.

Most questions are answered by intervals of the symbols as they are said, or, where there is no
answer, by two calls that would give different ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .size_intervals import Bounds, of_function, sum_of_products
from .sizes import SizeConstraint, Symbol
from .symbols import Atom, Dim, SymbolicDim, bound, symbols_of

FAR = 1 << 20  # steps to what stands for a symbol's end where there is none
_ANY = Symbol()  # what is known of a symbol of which nothing is said


class SymbolRanges:
    """Sizes by the ranges of their symbols, and by some calls of which all constraints hold."""

    def __init__(
        self, symbols: Mapping[str, Symbol], constraints: Sequence[SizeConstraint]
    ) -> None:
        self.symbols, self.constraints = symbols, constraints
        self._intervals: dict[SymbolicDim, Bounds] = {}
        self._atoms: dict[Atom, Bounds] = {}
        self._calls: dict[tuple[str, ...], Sequence[Mapping[str, int]]] = {}  # by symbols

    def interval(self, size: Dim) -> Bounds:
        """A range of the size, term by term."""
        if isinstance(size, int):
            return Bounds(size, size)
        found = self._intervals.get(size)
        if found is None:
            found = self._intervals[size] = sum_of_products(size, self._atom_interval)
        return found

    def _atom_interval(self, atom: Atom) -> Bounds:
        found = self._atoms.get(atom)
        if found is None:
            if atom.function:
                found = of_function(atom.function, [self.interval(o) for o in atom.operands])
            else:
                said = self.symbols.get(atom.text, _ANY)
                found = Bounds(said.first, said.last)
            self._atoms[atom] = found
        return found

    def changes_sign(self, size: SymbolicDim) -> bool:
        """Whether the size is negative in one of some calls, and not in another."""
        values = self._values(size)
        return bool(values) and min(values) < 0 <= max(values)

    def largest_in(self, size: Dim) -> Mapping[str, int] | None:
        """A call in which the size is as large as in no other; None where none of some is."""
        high = self.interval(size).high
        if high is None:
            return None
        calls = zip(self._calls_of(symbols_of(size)), self._values(size), strict=False)
        return next((call for call, value in calls if value == high), None)

    def _values(self, size: Dim) -> list[int]:
        """In some calls; none where a divisor is 0 in one."""
        try:
            return [bound(size, call) for call in self._calls_of(symbols_of(size))]
        except ZeroDivisionError:
            return []

    def _calls_of(self, names: tuple[str, ...]) -> Sequence[Mapping[str, int]]:
        found = self._calls.get(names)
        if found is None:
            about = (n for one in self.constraints for n in one.symbols)
            ends: dict[str, tuple[int, int]] = {}
            for name in (*names, *self.symbols, *about):
                said = self.symbols.get(name, _ANY)
                last = said.first + FAR * said.modulus if said.last is None else said.last
                ends[name] = said.first, last
            found = self._calls[names] = [
                call for call in corners(ends) if all(one.holds(call) for one in self.constraints)
            ]
        return found


def corners(ends: Mapping[str, tuple[int, int]]) -> Iterator[Mapping[str, int]]:
    """Values of variables, each at one of its ends: all at the same but for one at most; each
    once."""
    low = {name: first for name, (first, _) in ends.items()}
    high = {name: last for name, (_, last) in ends.items()}
    made: list[dict[str, int]] = [low, high]
    for name, (first, last) in ends.items():
        made += [{**low, name: last}, {**high, name: first}]
    yield from {tuple(corner.values()): corner for corner in made}.values()
