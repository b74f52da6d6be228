"""kernels: contractions in the form in which a target computes them best.

What that takes besides, copies of operands, parts of a sum and what adds them, are kernels of the
program like all others (`optimizer/kernels/`). Bounds of tile functions that no call decides are
constants then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from ...hlo.build import Builder
from ...hlo.graph import PARTS, Module, Op, Region, Value, arguments
from ...hlo.regions import inline, rename
from ...hlo.text import canonical_op
from ...hlo.verify import FUSED, Level
from ..kernels.choose import Chooser
from ..kernels.divided_rows import parts_of
from ..machine import Machine
from ..tiles.bounds import with_numbers
from ..windows import opened

if TYPE_CHECKING:
    from ...backends.capabilities import Capabilities


@dataclass(frozen=True)
class Kernels:
    """FUSED -> FUSED, on a machine that runs blocks of threads, which have these capabilities.
    Equal fusions are judged once."""

    machine: Machine
    capabilities: Capabilities
    made: dict[str, Region | None] = field(default_factory=dict, compare=False)
    name: ClassVar[str] = "kernels"
    takes: ClassVar[Level] = FUSED
    gives: ClassVar[Level] = FUSED

    def __call__(self, module: Module) -> Module:
        return module.with_bodies(self.region)

    def region(self, region: Region) -> Region:
        mapping: dict[Value, Value] = {}
        b = Builder(check=False)
        for op in region.ops:
            chosen = self.chosen(op)
            if chosen is not None:
                with b.at(op.origin):
                    results = inline(b, chosen, _mapped(op.operands, mapping))
            else:
                new = self.decided(op)
                nested = [rename(body, mapping) for body in new.regions]
                if op.definition.flow:
                    nested = [self.region(body) for body in nested]
                results = b.append(new.with_operands(_mapped(op.operands, mapping), nested)).results
            pairs = zip(op.results, results, strict=True)
            mapping.update((old, new) for old, new in pairs if new is not old)
        if not mapping and b.ops == list(region.ops):
            return region
        return Region(region.arguments, b.ops, _mapped(region.results, mapping))

    def decided(self, op: Op) -> Op:
        """A kernel that stays one, with what is decided of it."""
        if op.name == "kernel_call":
            return with_numbers(op)
        if op.name != "fusion" or op.kind != "rows":
            return op
        parts = parts_of(opened(op).op.regions[0], self.machine, self.capabilities)
        if parts == 1:
            return op
        facts = {**op.attributes, PARTS: parts}
        return Op(op.definition, op.operands, facts, op.regions, op.result_types, op.origin)

    def chosen(self, op: Op) -> Region | None:
        """The kernels of a contraction, of the same operands; None where it is one as it is."""
        if op.name != "fusion" or op.kind != "contract":
            return None
        text = canonical_op(op)
        if text not in self.made:
            # No kernel of a contraction reads parts of arrays.
            found = None if opened(op).windows else self.fission(op)
            if found is not None and [canonical_op(one) for one in found.ops] == [text]:
                found = None
            self.made[text] = found
        return self.made[text]

    def fission(self, op: Op) -> Region:
        """The kernels that a contraction becomes."""
        operands = arguments([value.type for value in op.operands])
        b = Builder(check=False)
        results = Chooser(b, self.machine, self.capabilities).kernels(op.regions[0], operands)
        return Region(operands, b.ops, results)


def _mapped(values: tuple[Value, ...], mapping: Mapping[Value, Value]) -> list[Value]:
    return [mapping.get(value, value) for value in values]
