"""use-references: kernels that were written elsewhere, on a target that none of their codes is for.

Runs on what the target is about to be made from; the stored program keeps the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from ...hlo.build import Builder
from ...hlo.errors import UnsupportedError
from ...hlo.graph import Module, Op, Value
from ...hlo.regions import inline, rewritten
from ...hlo.verify import INLINED, Level


@dataclass(frozen=True)
class UseReferences:
    """INLINED -> INLINED: a foreign_call that lacks code for the target becomes its reference, with
    a note; UnsupportedError lists those without one. `lacks(op)` says why, or "" where it has code.
    """

    lacks: Callable[[Op], str]
    name: ClassVar[str] = "use-references"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED

    def __call__(self, module: Module) -> Module:
        if not module.has("foreign_call"):
            return module
        reasons: dict[Op, str] = {}
        for op in module.walk():
            if op.name == "foreign_call" and (reason := self.lacks(op)):
                reasons[op] = reason
        if not reasons:
            return module
        missing = [
            f"{_place(op)}kernel '{op.kernel}': {reason}, and it has no reference="
            for op, reason in reasons.items()
            if not op.regions
        ]
        if missing:
            raise UnsupportedError("\n".join(dict.fromkeys(missing)))

        def change(b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
            if op not in reasons:
                return False
            with b.at(op.origin):
                operands = [mapping.get(value, value) for value in op.operands]
                results = inline(b, op.regions[0], operands)
            mapping.update(zip(op.results, results, strict=True))
            return True

        body = rewritten(module.body, {}, change, module.body.arguments)
        notes = [f"kernel '{op.kernel}' runs as its reference: {r}" for op, r in reasons.items()]
        return module.with_main(body).with_notes(*dict.fromkeys(notes))


def _place(op: Op) -> str:
    return f"{op.origin[0].file}:{op.origin[0].line}: " if op.origin else ""
