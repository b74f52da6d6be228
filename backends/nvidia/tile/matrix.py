"""Products by matrix instructions (mma.sync): operands through swizzled shared memory.

Operands lie in shared memory in rows as their tile has them; 16-byte chunks of a row are permuted
by the row's number, so that ldmatrix meets every bank once. Sums stay in registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..target import Target
from .analysis import Product
from .spread import Spread


@dataclass(frozen=True, eq=False)
class Plan:
    """How a product is done: warps (down, across), and how its sums lie."""

    product: Product
    warps: tuple[int, int]
    sums: Spread


def plan(product: Product, target: Target, warps: int, chained: bool) -> Plan | None:
    """The plan of a product; None where no matrix instruction has its types."""
    return None
