"""How kernels are cut: `Cuts`, of shapes; and cuts as attributes of kernels."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

from ...hlo.errors import UserError
from ...hlo.graph import Op
from ..machine import Machine
from . import convolutions, loops, product_prices
from .convolutions import ConvolutionCut, ConvolutionShape
from .loops import LoopBlocking, LoopShape
from .products import Blocking, ProductShape

CUT = "girih.cut"
"""Of a kernel that is cut in one way: the fields of its `Cut`, a convolution's way behind those of
its blocking."""

Shape = ProductShape | ConvolutionShape | LoopShape
Cut = Blocking | ConvolutionCut | LoopBlocking


@dataclass(frozen=True)
class Cuts:
    """How kernels are cut that run on a machine, as the cost model predicts to be fastest."""

    machine: Machine

    def of(self, shape: Shape) -> Cut:
        """The cut of a kernel of any shape."""
        if isinstance(shape, ProductShape):
            return self.of_product(shape)
        if isinstance(shape, ConvolutionShape):
            return self.of_convolution(shape)
        return self.of_loop(shape)

    def of_product(self, shape: ProductShape) -> Blocking:
        """The blocking of a product whose sizes are numbers."""
        return product_prices.chosen(shape, self.machine)

    def best_of_product(self, shape: ProductShape, most: int) -> list[tuple[Blocking, float]]:
        """The best predicted blockings with their seconds, at most `most`, first `of_product`."""
        return product_prices.best(shape, self.machine, most)

    def allow(self, shape: ProductShape, cut: Blocking) -> bool:
        """Whether a product can be cut so, within the bounds of scratch that all choices keep."""
        return product_prices.is_candidate(shape, self.machine, cut)

    def of_convolution(self, shape: ConvolutionShape) -> ConvolutionCut:
        """The cut of a convolution whose columns are read in place."""
        return convolutions.choose(shape, self.machine)

    def of_loop(self, shape: LoopShape) -> LoopBlocking:
        """The cut of a loop, of reductions or of rows."""
        return loops.choose(shape, self.machine)


def with_cut(op: Op, cut: Cut) -> Op:
    """The kernel with how it is cut."""
    blocking = cut.blocking if isinstance(cut, ConvolutionCut) else cut
    row = (*astuple(blocking), *([cut.way] if isinstance(cut, ConvolutionCut) else []))
    facts = {**op.attributes, CUT: row}
    return Op(op.definition, op.operands, facts, op.regions, op.result_types, op.origin)


def cut_of(op: Op) -> Cut | None:
    """How a kernel says that it is cut; None where it does not. UserError for what is none."""
    row = op.attributes.get(CUT)
    if row is None:
        return None
    ops = op.regions[0].ops if op.name == "fusion" else (op,)
    main = next((one for one in ops if one.definition.pattern == "contract"), None)
    kind = LoopBlocking if main is None else Blocking
    count, way = len(fields(kind)), main is not None and main.name == "convolution"
    whole = isinstance(row, tuple) and all(isinstance(one, int) and one >= 0 for one in row)
    if not whole or len(row) != count + way:
        raise UserError(f"{op.place}{op.name}: {CUT} = {row} is no cut of such a kernel")
    cut = kind(*row[:count])
    return ConvolutionCut(cut, row[count]) if isinstance(cut, Blocking) and way else cut
