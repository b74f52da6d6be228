"""Layouts: where the elements of a tile live, as linear maps over bits.

    linear.py      LinearLayout: a map and its algebra; Repeated: a tile again and again
    fragments.py   layouts of registers: for coalesced access, for products, of matrix instructions
    shared.py      layouts of shared memory: swizzles, the widest access, ldmatrix, bank conflicts
    conversion.py  from one layout of registers to another: renaming, shuffles, shared memory

In: shapes, threads, widths of elements. Out: layouts, and accesses by them as numbers; no code.
Imported by `backends/nvidia`.
"""

from __future__ import annotations

from .conversion import Conversion, Round, Shuffles, Swap, convert
from .fragments import (
    LANE_BITS,
    blocked,
    dealt,
    mma_a,
    mma_accumulator,
    mma_b,
    mma_tiles,
    patches,
    repeat,
    wgmma_a,
    wgmma_accumulator,
    wgmma_accumulator_tiles,
)
from .linear import LinearLayout, Repeated, layout, tensor_outputs
from .shared import (
    Addresses,
    AddressTerm,
    MatrixAccess,
    SharedAccess,
    accesses,
    addresses,
    best_tile,
    matrix_access,
    matrix_wavefronts,
    row_major,
    swizzled,
    terms,
    wavefronts,
)

__all__ = [
    "LANE_BITS",
    "SharedAccess",
    "Addresses",
    "Conversion",
    "LinearLayout",
    "MatrixAccess",
    "Repeated",
    "Round",
    "Shuffles",
    "Swap",
    "AddressTerm",
    "accesses",
    "addresses",
    "best_tile",
    "blocked",
    "convert",
    "dealt",
    "layout",
    "matrix_access",
    "matrix_wavefronts",
    "mma_a",
    "mma_accumulator",
    "mma_b",
    "mma_tiles",
    "patches",
    "repeat",
    "row_major",
    "swizzled",
    "tensor_outputs",
    "terms",
    "wavefronts",
    "wgmma_a",
    "wgmma_accumulator",
    "wgmma_accumulator_tiles",
]
