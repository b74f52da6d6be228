"""approximate: operations for which a target has a formula that is off by more than its plain one.

The attribute `girih.approximate` says that the formula may be taken. Emitters take none without it,
and may leave it aside: what an operation gives is then that of the plain formula.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from ...hlo.build import Builder
from ...hlo.graph import APPROXIMATE, EXACT, Module, Op, Value
from ...hlo.regions import rewritten
from ...hlo.types import Element
from ...hlo.verify import FUSED, Level
from ..licence import DEFAULT_LICENCES, REASSOCIATES, Ledger, Licence


@dataclass(frozen=True)
class Formula:
    """How a target may compute an operation of these types of element, where other roundings are
    allowed (the licence REASSOCIATES).

    text: the formula; error: a bound of its relative error, where `eps` is 2^-24 and `x` the
    operand, for results that are normal numbers. fits: whether an operation has its form.
    """

    op: str
    elements: tuple[Element, ...]
    text: str
    error: str
    fits: Callable[[Op], bool] = lambda op: True


@dataclass(frozen=True)
class Approximate:
    """FUSED -> FUSED: operations of a formula are marked, in kernels that hold a contraction.

    What is exact (`girih.exact`) stays so. The ledger is told "approximate-" and the operation.
    """

    formulas: tuple[Formula, ...]
    licences: Licence = DEFAULT_LICENCES
    ledger: Ledger = field(default_factory=Ledger, compare=False)

    name: ClassVar[str] = "approximate"
    takes: ClassVar[Level] = FUSED
    gives: ClassVar[Level] = FUSED

    def __call__(self, module: Module) -> Module:
        if REASSOCIATES not in self.licences or not any(map(self._concerns, module.walk())):
            return module
        functions = {
            name: function.with_body(rewritten(function.body, {}, self._kernel))
            for name, function in module.functions.items()
        }
        return module.with_functions(functions)

    def marked(self, op: Op) -> Op:
        """A kernel with its marks; itself if it has none."""
        if not self._concerns(op):
            return op
        bodies = [rewritten(body, {}, self._mark) for body in op.regions]
        return Op(op.definition, op.operands, op.attributes, bodies, op.result_types, op.origin)

    def _concerns(self, op: Op) -> bool:
        if op.name not in ("fusion", "kernel_call"):
            return False
        inside = [inner for body in op.regions for inner in body.walk()]
        products = any(inner.definition.pattern == "contract" for inner in inside)
        return products and any(self._formula(inner) for inner in inside)

    def _formula(self, op: Op) -> Formula | None:
        """The formula that an operation may be computed by."""
        if EXACT in op.attributes or len(op.results) != 1:
            return None
        for formula in self.formulas:
            same = op.name == formula.op and op.result.element in formula.elements
            if same and formula.fits(op):
                return formula
        return None

    def _kernel(self, b: Builder, op: Op, known: dict[Value, Value]) -> bool:
        made = self.marked(op)
        if made is op:
            return False
        operands = [known.get(value, value) for value in op.operands]
        made = b.append(made.with_operands(operands))
        known.update(zip(op.results, made.results, strict=True))
        return True

    def _mark(self, b: Builder, op: Op, known: dict[Value, Value]) -> bool:
        formula = self._formula(op)
        if formula is None:
            return False
        self.ledger.record(f"{self.name}-{op.name.replace('_', '-')}", REASSOCIATES, op)
        operands = [known.get(value, value) for value in op.operands]
        facts = {**op.attributes, APPROXIMATE: True}
        made = b.append(Op(op.definition, operands, facts, (), op.result_types, op.origin))
        known[op.result] = made.result
        return True
