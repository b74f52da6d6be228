"""What lowering one program for several likely calls has in common.

Passes over a program whose sizes calls decide give the same module for every likely call, as long
as none has asked what that call is (`Decisions.asked`). So a run for another call goes on where the
one before began to depend on it, and one for a call that was only judged before goes on where that
was: in front of `connect`, which knows then what was judged.
"""

from __future__ import annotations

from typing import NamedTuple

from ..hlo.deciding import Decisions, current
from ..hlo.graph import Module
from ..hlo.sizes import SizeConstraint
from ..hlo.verify import Level
from .passes.connect import Tilings

_Call = tuple[tuple[str, int], ...]


class Reached(NamedTuple):
    """How far a module has come: the number of the last pass, the module that a bundle stores, the
    simplified one, and that of today with its level. guards: what was decided until then."""

    number: int
    simple: Module
    simplified: Module
    module: Module
    held: Level | None
    guards: tuple[SizeConstraint, ...] = ()


class Shared:
    """How far the modules of one compilation have come, all of them by equal passes."""

    def __init__(self) -> None:
        self.common: dict[Module, Reached] = {}  # whatever the likely call is
        self.judged: dict[tuple[Module, _Call], Reached] = {}
        self.tilings: dict[tuple[Module, _Call], Tilings] = {}

    def tilings_of(self, module: Module) -> Tilings:
        """What `connect` knows of the module for the likely call of today's decisions."""
        decisions = current()
        if decisions is None:
            return Tilings()
        return self.tilings.setdefault((module, _call(decisions)), Tilings())

    def reached(self, module: Module) -> Reached | None:
        """How far the module has come for the likely call of today's decisions, which take over
        what was decided."""
        decisions = current()
        if decisions is None:
            return None
        known = self.judged.get((module, _call(decisions)))
        if known is None:
            return self.common.get(module)
        decisions.asked = True
        decisions.guards.update(dict.fromkeys(known.guards))
        return known

    def keep(self, module: Module, reached: Reached, first: int, connect: int) -> None:
        """Keep how far the module has come. first: the number of the first pass that lowers;
        connect: of `connect`."""
        decisions = current()
        if decisions is None or reached.number >= connect:
            return
        if not decisions.asked:
            self.common[module] = reached
        # Passes that tell the ledger what they do must not be left out, but where they have told.
        known = self.common.get(module)
        if reached.number == connect - 1 and known is not None and known.number + 1 >= first:
            guards = tuple(decisions.guards)
            self.judged[module, _call(decisions)] = reached._replace(guards=guards)


def _call(decisions: Decisions) -> _Call:
    return tuple(sorted(decisions.likely.items()))
