"""note-slow: a note for what takes longer on the target than its element types suggest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from ...hlo.deciding import estimating
from ...hlo.graph import Module, Op
from ...hlo.verify import INLINED, Level


@dataclass(frozen=True)
class NoteSlow:
    """INLINED -> INLINED: the same program, with a note for each reason why operations are slow, in
    a likely call: how many, and the first.

    slow: what an operation costs more on the target, "" as a rule.
    """

    slow: Callable[[Op], str] = lambda op: ""
    name: ClassVar[str] = "note-slow"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED

    def __call__(self, module: Module) -> Module:
        found: dict[str, list[Op]] = {}
        with estimating():
            for op in module.walk():
                if why := self.slow(op):
                    found.setdefault(why, []).append(op)
        if not found:
            return module
        notes = [
            f"{ops[0].place}{ops[0].name}: {why}" + (f" ({len(ops)} operations)" if ops[1:] else "")
            for why, ops in found.items()
        ]
        return replace(module, notes=(*module.notes, *notes))
