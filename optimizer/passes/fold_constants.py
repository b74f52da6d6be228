"""fold-constants: what depends on constants and iotas alone is computed, within a budget of bytes.

Masks and other short formulas over an iota stay formulas: a kernel computes them faster than it
reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ...hlo.build import make_op
from ...hlo.graph import Dense, Module, Op, Region, Value
from ...hlo.interpret import Interpreter
from ...hlo.types import TensorType
from ...hlo.verify import INLINED, Level
from ..fold import FOLDED_PATTERNS, compact, evaluated, grows
from ..licence import BITWISE, Ledger
from ..rewrite import Engine

TINY = 256  # bytes: always better as a constant
CHEAP_OPERATIONS = 6  # a formula over iotas with so many operations is computed where it is used
CHEAP = frozenset({
    "add", "subtract", "multiply", "and", "or", "xor", "not", "compare", "select", "convert",
    "negate", "maximum", "minimum", "broadcast_in_dim", "reshape", "transpose", "iota", "constant",
})  # fmt: skip


@dataclass(frozen=True)
class FoldConstants:
    """INLINED -> INLINED: constants of up to `limit` bytes take the place of what computes them."""

    name: ClassVar[str] = "fold-constants"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED
    limit: int = 64 << 10
    elements: int = 1 << 24  # work of one constant, in elements of all values before it
    ledger: Ledger = field(default_factory=Ledger, compare=False)

    def __call__(self, module: Module) -> Module:
        if not self.limit:
            return module
        folder = _Folder(self, module)
        folder.region(module.body)
        if not folder.constants:
            return module
        engine = Engine(module, merge=False, substitutes=folder.constants)
        return module.with_main(engine.simplify(module.body))


class _Folder:
    def __init__(self, options: FoldConstants, module: Module) -> None:
        self.options = options
        self.interpreter = Interpreter(module)
        self.constants: dict[Op, Op] = {}  # what takes the place of an operation
        self.arrays: dict[Value, Any] = {}
        self.work: dict[Value, int] = {}  # elements computed before a value, itself included
        self.cost: dict[Value, int] = {}  # operations of its formula if all are CHEAP

    def region(self, region: Region) -> None:
        """Note the constants for one region, nested ones included."""
        for op in region.ops:
            for inner in op.regions:
                if not op.definition.sealed:
                    self.region(inner)
            self.note(op)
        for op in region.ops:
            if self.wanted(op, region):
                self.constants[op] = self.constant(op)

    def note(self, op: Op) -> None:
        if len(op.results) != 1 or not isinstance(op.results[0].type, TensorType):
            return
        (result,) = op.results
        type = result.tensor
        if not type.is_static:
            return
        if not op.definition.known and (
            op.definition.pattern not in FOLDED_PATTERNS
            or not op.operands
            or any(value not in self.work for value in op.operands)
            or any(inner.captures() for inner in op.regions)
        ):
            return
        self.work[result] = type.size + sum(self.work[value] for value in op.operands)
        splat = op.name != "constant" or op.attributes["value"].is_splat
        if op.name in CHEAP and splat and all(value in self.cost for value in op.operands):
            own = op.name not in ("constant", "iota", "broadcast_in_dim", "reshape")
            self.cost[result] = own + sum(self.cost[value] for value in op.operands)

    def wanted(self, op: Op, region: Region) -> bool:
        """Whether a known value should become a constant: small, and needed by what is unknown."""
        if op.definition.known or len(op.results) != 1:
            return False
        (result,) = op.results
        if result not in self.work or result.tensor.bytes > self.options.limit:
            return False
        if self.work[result] > self.options.elements:
            return False
        cheap = self.cost.get(result, CHEAP_OPERATIONS + 1) <= CHEAP_OPERATIONS
        if cheap and result.tensor.bytes > TINY:
            return False
        if grows(op) and result.tensor.bytes > TINY:
            return False
        users = region.uses.get(result, ())
        return bool(users) and self.needed(result, region)

    def needed(self, value: Value, region: Region) -> bool:
        """Whether a known value has a user that is not known, past broadcasts that enlarge it."""
        for user, _ in region.uses.get(value, ()):
            if user is None or not user.results or user.results[0] not in self.work:
                return True
            if grows(user) and self.needed(user.results[0], region):
                return True
        return False

    def constant(self, op: Op) -> Op:
        self.options.ledger.record("fold-constants", BITWISE, op)
        array = np.array(evaluated(op.results[0], self.interpreter, self.arrays), order="C")
        self.options.ledger.folded_elements += self.work[op.results[0]]
        dense = compact(Dense(op.type, array))
        return make_op("constant", [], {"value": dense}, origin=op.origin, check=False)
