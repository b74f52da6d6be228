"""How kernels are cut: `Cuts`, of shapes."""

from __future__ import annotations

from dataclasses import dataclass

from ..machine import Machine
from . import convolutions, loops, product_prices
from .convolutions import ConvolutionCut, ConvolutionShape
from .loops import LoopBlocking, LoopShape
from .products import Blocking, ProductShape


@dataclass(frozen=True)
class Cuts:
    """How kernels are cut that run on a machine, as the cost model predicts to be fastest."""

    machine: Machine

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
