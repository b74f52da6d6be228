"""inline: every call and composite becomes the operations of its function."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ...hlo.errors import UserError
from ...hlo.graph import Module, Op, Origin, Region, Value
from ...hlo.verify import HLO, INLINED, Level
from ..licence import BITWISE, Ledger
from ..rewrite import copied, copied_region

CALLEES = {"call": "callee", "composite": "decomposition"}


@dataclass(frozen=True)
class Inline:
    """HLO -> INLINED: one function is left, the entry; UserError where functions call each other
    without end.
    """

    name: ClassVar[str] = "inline"
    takes: ClassVar[Level] = HLO
    gives: ClassVar[Level] = INLINED
    ledger: Ledger = field(default_factory=Ledger, compare=False)

    def __call__(self, module: Module) -> Module:
        body = _Inliner(module, self.ledger).region(module.body, {}, ())
        if body is not module.body:
            module = module.with_main(body)
        if len(module.functions) == 1:
            return module
        return module.with_functions({module.entry: module.main})


class _Inliner:
    def __init__(self, module: Module, ledger: Ledger) -> None:
        self.module, self.ledger = module, ledger

    def region(self, region: Region, outer: dict[Value, Value], stack: tuple[str, ...]) -> Region:
        """The region without calls; itself if it had none and uses no value that has changed."""
        if not any(definition.name in CALLEES for definition in region.definitions):
            if not any(value in outer for value in region.captures()):
                return region
            return copied_region(region, outer)
        values = dict(outer)
        ops: list[Op] = []
        self.ops_into(ops, region, values, stack)
        return Region(region.arguments, ops, [values.get(v, v) for v in region.results])

    def ops_into(
        self,
        ops: list[Op],
        region: Region,
        values: dict[Value, Value],
        stack: tuple[str, ...],
        place: tuple[Origin, ...] = (),
    ) -> None:
        """Append the region's operations; `place` is where those without a file are called."""
        for op in region.ops:
            if op.name in CALLEES:
                self.call(ops, op, values, stack, place)
                continue
            if stack:  # a function may be called again: its operations are copied each time
                fresh = copied(op, values, place)
                regions = [self.region(inner, {}, stack) for inner in fresh.regions]
                fresh = fresh.with_operands(fresh.operands, regions)
            else:
                regions = [self.region(inner, values, stack) for inner in op.regions]
                fresh = op.with_operands([values.get(v, v) for v in op.operands], regions)
            ops.append(fresh)
            values.update(
                (old, new) for old, new in zip(op.results, fresh.results, strict=True)
                if old is not new
            )  # fmt: skip

    def call(
        self,
        ops: list[Op],
        op: Op,
        values: dict[Value, Value],
        stack: tuple[str, ...],
        place: tuple[Origin, ...],
    ) -> None:
        name = op.attributes[CALLEES[op.name]]
        if name in stack:
            raise UserError(f"function '{name}' calls itself: {' -> '.join((*stack, name))}")
        body = self.module.functions[name].body
        self.ledger.record("inline", BITWISE, op)
        given = [values.get(value, value) for value in op.operands]
        inner: dict[Value, Value] = dict(zip(body.arguments, given, strict=True))
        known = any(origin.file for origin in op.origin)
        self.ops_into(ops, body, inner, (*stack, name), op.origin if known else place)
        results = [inner.get(value, value) for value in body.results]
        values.update(zip(op.results, results, strict=True))
