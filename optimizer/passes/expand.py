"""expand: operations on whole matrices that a target has no code for become plain HLO.

Runs on what the target is about to be made from; the stored program keeps the operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from ...hlo.build import Builder
from ...hlo.graph import Module, Op, Value
from ...hlo.regions import rewritten
from ...hlo.verify import INLINED, Level
from ..expansions import expands, expansion


@dataclass(frozen=True)
class Expand:
    """INLINED -> INLINED: what is `wanted` and has an expansion becomes it, with a note."""

    wanted: Callable[[Op], bool]
    name: ClassVar[str] = "expand"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED

    def __call__(self, module: Module) -> Module:
        chosen = {op for op in module.walk() if expands(op) and self.wanted(op)}
        if not chosen:
            return module

        def change(b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
            if op not in chosen:
                return False
            with b.at(op.origin):
                results = expansion(b, op, [mapping.get(v, v) for v in op.operands])
            mapping.update(zip(op.results, results, strict=True))
            return True

        body = rewritten(module.body, {}, change, module.body.arguments)
        notes = {f"{op.name} is computed by products and loops" for op in chosen}
        return module.with_main(body).with_notes(*sorted(notes))
