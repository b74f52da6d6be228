"""cse: equal operations become one, dead ones none; no rule is applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...hlo.graph import Module
from ...hlo.verify import INLINED, Level
from ..rewrite import Engine


@dataclass(frozen=True)
class Cse:
    """INLINED -> INLINED: no two pure operations of a region are equal."""

    name: ClassVar[str] = "cse"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED

    def __call__(self, module: Module) -> Module:
        return module.with_main(Engine(module).simplify(module.body))
