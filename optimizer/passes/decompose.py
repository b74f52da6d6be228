"""decompose: operations that a room explains by simpler ones are replaced by those."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ...hlo.graph import Module, Op, Value
from ...hlo.ops import DEFINITIONS
from ...hlo.room import OpDefinition
from ...hlo.verify import INLINED, Level
from ..licence import BITWISE, Ledger
from ..rewrite import Engine, Rewriter
from ..rule import Rule

# Decomposed by whoever compiles a kernel, if at all: one value in, one out, no memory between; or a
# sort of which little is wanted.
KEPT = frozenset({"chlo.erf", "chlo.erfc", "chlo.erf_inv", "chlo.top_k"})


def decomposable() -> tuple[str, ...]:
    """Names of all operations whose room has a decomposition."""
    return tuple(
        room.name for room in DEFINITIONS if type(room).decompose is not OpDefinition.decompose
    )


@dataclass(frozen=True)
class Decompose:
    """INLINED -> INLINED: no operation is left that has a decomposition, but those in `keep`."""

    name: ClassVar[str] = "decompose"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED
    keep: frozenset[str] = KEPT
    ledger: Ledger = field(default_factory=Ledger, compare=False)

    def __call__(self, module: Module) -> Module:
        names = [name for name in decomposable() if name not in self.keep]
        if not module.has(*names):
            return module
        rule = Rule("decompose", tuple(names), _decompose, BITWISE)
        engine = Engine(module, [rule], ledger=self.ledger, fold_bytes=0)
        return module.with_main(engine.simplify(module.body))


def _decompose(op: Op, b: Rewriter) -> list[Value] | None:
    found = op.definition.decompose(b, op, *op.operands)
    return None if found is None else list(found)
