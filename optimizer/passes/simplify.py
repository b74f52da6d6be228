"""simplify: licensed rules, equal operations, small constants, dead code, until nothing applies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ...hlo.graph import Module
from ...hlo.verify import INLINED, Level
from ..licence import DEFAULT_LICENCES, Ledger, Licence
from ..rewrite import Engine
from ..rules import RULES


@dataclass(frozen=True)
class Simplify:
    """INLINED -> INLINED: no rule whose licence is in `licences` applies any more.

    `only` names the rules that may fire, empty for all; `without` those that may not.
    """

    name: ClassVar[str] = "simplify"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED
    licences: Licence = DEFAULT_LICENCES
    only: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    fold_bytes: int = 64 << 10
    ledger: Ledger = field(default_factory=Ledger, compare=False)

    def __call__(self, module: Module) -> Module:
        rules = [
            rule
            for rule in RULES
            if rule.name not in self.without and (not self.only or rule.name in self.only)
        ]
        engine = Engine(module, rules, self.licences, self.ledger, self.fold_bytes)
        return module.with_main(engine.simplify(module.body))
