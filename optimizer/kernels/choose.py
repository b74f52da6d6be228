"""In which form a contraction becomes kernels: `Chooser.kernels`, read from above."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...hlo.build import Builder
from ...hlo.graph import Op, Region, Value
from ...hlo.types import TensorType
from ..machine import Machine
from ..passes.encode import Packing
from ..tiles.depths import with_split_depths
from . import convolution_form, operand_layout, split_sum
from .fission import Fission, fused
from .tiled import Tiled, Tilings, contractions

if TYPE_CHECKING:
    from ...backends.capabilities import Capabilities


class Chooser:
    """Writes the kernels of contractions into the program that `b` builds."""

    def __init__(self, b: Builder, machine: Machine, capabilities: Capabilities) -> None:
        self.b, self.machine, self.capabilities = b, machine, capabilities
        self.tilings = Tilings(machine, capabilities)

    def kernels(self, region: Region, operands: Sequence[Value]) -> Sequence[Value]:
        """The results of a region around contractions."""
        if convolution_form.sums_one_feature(region):
            return fused(self.b, "contract", region, operands, tilings=self.tilings)
        if all(kind.is_static for kind in region.types if isinstance(kind, TensorType)):
            form = convolution_form.prepared(region)
            if form is not None:
                return self.fission(*form, operands, "a convolution's operands are laid anew")
            copied = operand_layout.laid_along(region, self.machine, self.capabilities)
            if copied is not None and isinstance(self.tilings.best(copied[0]), Tiled):
                note = "operands are copied first: the product cannot read them well as they lie"
                return self.fission(*copied, operands, note)
        return self.summed(region, operands)

    def summed(self, region: Region, operands: Sequence[Value], note: str = "") -> Sequence[Value]:
        """The same of operands as they lie: one kernel, two where its tiles leave the machine idle,
        or one each for operands, product and what follows."""
        split = with_split_depths(region)
        operands = [self.b.reshape(*pair) for pair in _as(split, operands)]
        tiled = self.tilings.best(split)
        if isinstance(tiled, Tiled):
            parts = split_sum.parts_of(split, tiled, self.tilings)
            if parts > 1:
                return self.in_parts(split_sum.in_parts(split, parts), operands)
        elif len(split.ops) > 1:
            computed = [v for op in contractions(split) for v in op.operands if v.op is not None]
            note = f"operands, product and what follows apart: {tiled.reason}"
            return self.fission(split, computed, operands, note)
        return fused(self.b, "contract", split, operands, note, self.tilings)

    def in_parts(self, split: split_sum.SplitSum, operands: Sequence[Value]) -> Sequence[Value]:
        """A kernel that gives the sums of parts, and one that adds them."""
        given = [operands[number] for number in split.sources]
        sides = [self.b.reshape(*pair) for pair in _as(split.product, given)]
        note = f"the sum is done in {split.parts} parts"
        sums = fused(self.b, "contract", split.product, sides, note, self.tilings)
        return fused(self.b, "loop", split.rest, [*sums, *operands])

    def fission(
        self, region: Region, first: Sequence[Value], operands: Sequence[Value], note: str
    ) -> Sequence[Value]:
        """Kernels that compute some values first, then one of all that is left, or of each
        contraction and of what follows it."""
        cut, mains = Fission(self.b, region, operands), contractions(region)
        for value in dict.fromkeys(first):
            if value not in cut.known:
                cut.store([value], note)
        left = [value for value in dict.fromkeys(region.results) if value not in cut.known]
        whole, inputs = cut.part(left)
        if len(mains) == 1 and isinstance(self.tilings.best(whole), Tiled):
            said = "" if first else note
            cut.known.update(zip(left, self.summed(whole, inputs, said), strict=True))
        else:
            for op in mains:
                product, inputs = cut.part(op.results)
                cut.known.update(zip(op.results, self.kernels(product, inputs), strict=True))
        return cut.rest(note)


def packing(op: Op, capabilities: Capabilities) -> Packing | None:
    """How a weight that the contraction of a fusion reads should lie for such a target."""
    return operand_layout.packing(op, capabilities) or convolution_form.packing(op)


def _as(region: Region, values: Sequence[Value]) -> list[tuple[Value, Sequence[int]]]:
    """Operands of a region, and the dims that its arguments have."""
    return [(v, own.dims) for v, own in zip(values, region.arguments, strict=True)]
