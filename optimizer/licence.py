"""Licences: how a rewrite may change numbers, and the ledger of what was used."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Flag
from typing import Any

from ..hlo.errors import CompilerBug
from ..hlo.graph import EXACT, Op


class Licence(Flag):
    """What a rewrite needs beyond "the same bits"; combine with `|`.

    On integers and booleans every rule is bit for bit exact, whatever its licence says.
    """

    BITWISE = 0  # the same bits; only the payload of a NaN may differ
    IGNORES_ZERO_SIGN = 1  # +0.0 may become -0.0 and the other way round
    REASSOCIATES = 2  # other rounding, also of intermediate overflow; inf and NaN inputs respected
    ASSUMES_FINITE = 4  # right only while inputs and results are finite

    def __str__(self) -> str:
        return "|".join(part.name or "" for part in Licence if part & self) or "BITWISE"


BITWISE = Licence.BITWISE
IGNORES_ZERO_SIGN = Licence.IGNORES_ZERO_SIGN
REASSOCIATES = Licence.REASSOCIATES
ASSUMES_FINITE = Licence.ASSUMES_FINITE

# Results stay within a few roundings of the program as written; an inf or a NaN is never lost.
DEFAULT_LICENCES = IGNORES_ZERO_SIGN | REASSOCIATES


@dataclass
class Ledger:
    """Which rules fired, how often, for which lines of the user's program, under which licences.

    allowed: the licences that the program gives; None where nobody asks. A rule that made use of
    more, or any on an operation that has to stay exact, is a CompilerBug. limit: how many times
    rules may fire, for finding faults; None: without end. `last` is the last that did.
    """

    hits: Counter[str] = field(default_factory=Counter)
    places: dict[str, Counter[str]] = field(default_factory=dict)
    licences: Licence = BITWISE  # what was really made use of
    folded_elements: int = 0  # elements read and written by constant folding
    allowed: Licence | None = None
    exhausted: int = 0  # how often a chain of rules was cut off: a pair of rules undoes itself
    limit: int | None = None
    last: tuple[str, Op] | None = None

    @property
    def is_full(self) -> bool:
        """Whether no rule may fire any more."""
        return self.limit is not None and self.hits.total() >= self.limit

    def record(self, rule: str, needs: Licence, op: Op) -> None:
        """Note that `rule` rewrote `op`, having made use of the licences `needs`; CompilerBug
        where these go beyond what is allowed for the compilation or for this operation."""
        allowed = BITWISE if EXACT in op.attributes else self.allowed
        if allowed is not None and needs & ~allowed:
            raise CompilerBug(
                f"{op.place}rule '{rule}' has rewritten {op.name}, which needs {needs}, but the "
                f"program allows {allowed}"
            )
        self.hits[rule] += 1
        self.last = rule, op
        self.licences |= needs
        place = op.origin[0] if op.origin else None
        line = f"{place.file}:{place.line}" if place and place.file else "unknown"
        self.places.setdefault(rule, Counter())[line] += 1

    def report(self) -> dict[str, Any]:
        """The licences that were used, and each rule's hits with the lines that it hit most often,
        as JSON values."""
        rules = {
            name: {"hits": count, "lines": [line for line, _ in _most(self.places[name])]}
            for name, count in _most(self.hits, len(self.hits))
        }
        return {"licences": str(self.licences), "rules": rules}

    def table(self) -> str:
        """One line per rule: name, hits, the lines of the program with most hits."""
        rows = []
        for name, count in sorted(self.hits.items(), key=lambda item: (-item[1], item[0])):
            lines = self.places[name].most_common(3)
            shown = ", ".join(f"{line} ({hits})" for line, hits in lines)
            rows.append(f"{name:40} {count:6}  {shown}")
        return "\n".join(rows)


def _most(counts: Counter[str], number: int = 3) -> list[tuple[str, int]]:
    """The highest counts; of equal ones the first by name."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:number]
