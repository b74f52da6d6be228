"""kernels: how a target computes kernels best, decided before it emits them.

On machines that run blocks of threads: the form of contractions. What that takes besides, copies of
operands, parts of a sum and what adds them, are kernels of the program like all others
(`optimizer/kernels/`). Bounds of tile functions that no call decides are constants then.

On CPUs: into which tiles, blocks and vectors a kernel is divided. The backend says what it does, as
a shape, and an attribute how it is cut (`optimizer/cuts/`). Kernels inside of others, the nests of
tile functions and what is computed one operation after another, are known to emitters alone, which
ask the same `Cuts` for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from ...hlo.build import Builder
from ...hlo.deciding import estimating
from ...hlo.errors import UnsupportedError
from ...hlo.graph import PARTS, Module, Op, Region, Value, arguments
from ...hlo.regions import inline, rename
from ...hlo.text import canonical_op
from ...hlo.verify import FUSED, Level
from ..cuts.choose import Cut, Cuts, Shape, with_cut
from ..kernels.choose import Chooser
from ..kernels.divided_rows import parts_of
from ..machine import Machine
from ..tiles.bounds import with_numbers
from ..windows import opened

if TYPE_CHECKING:
    from ...backends.capabilities import Capabilities


@dataclass(frozen=True)
class Kernels:
    """FUSED -> FUSED, on a machine that runs blocks of threads, which have these capabilities, or
    whose kernels have shapes that are cut. Equal kernels are judged once."""

    machine: Machine
    capabilities: Capabilities | None = None
    shape: Callable[[Op], Shape | None] | None = None
    cuts: dict[str, Cut | None] = field(default_factory=dict, compare=False)
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
        if self.capabilities is None:
            cut = self.cut(op)
            return op if cut is None else with_cut(op, cut)
        if op.name == "kernel_call":
            return with_numbers(op)
        if op.name != "fusion" or op.kind != "rows":
            return op
        parts = parts_of(opened(op).op.regions[0], self.machine, self.capabilities)
        if parts == 1:
            return op
        facts = {**op.attributes, PARTS: parts}
        return Op(op.definition, op.operands, facts, op.regions, op.result_types, op.origin)

    def cut(self, op: Op) -> Cut | None:
        """How a kernel is cut that is cut in one way."""
        if self.shape is None or op.definition.flow or not op.operands or not op.results:
            return None
        text = canonical_op(op)
        if text not in self.cuts:
            try:
                with estimating():
                    shape = self.shape(op)
                    self.cuts[text] = None if shape is None else Cuts(self.machine).of(shape)
            except UnsupportedError:
                self.cuts[text] = None  # the backend lists all that it has no kernel for
        return self.cuts[text]

    def chosen(self, op: Op) -> Region | None:
        """The kernels of a contraction, of the same operands; None where it is one as it is."""
        if self.capabilities is None or op.name != "fusion" or op.kind != "contract":
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
        assert self.capabilities is not None
        results = Chooser(b, self.machine, self.capabilities).kernels(op.regions[0], operands)
        return Region(operands, b.ops, results)


def _mapped(values: tuple[Value, ...], mapping: Mapping[Value, Value]) -> list[Value]:
    return [mapping.get(value, value) for value in values]
