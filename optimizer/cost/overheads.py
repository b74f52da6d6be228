"""What kernels take around their arithmetic; of a CPU's, fitted to measurements."""

from __future__ import annotations

# Of products, in vector products: a call of the micro-kernel, a tile; what one vector costs that
# goes to memory, comes from there, or is copied while a side is packed.
CALL, TILE = 130.0, 800.0
STORED, LOADED = 3.0, 1.0
PACKED, PACKED_SLOWLY = 6.0, 24.0
FAR, FAR_BYTES = 10.0, 2048  # a step on another page, and from where on steps are
OUTSTANDING = 9.0  # far runs that are on their way at a time
COPIES = 1.3  # times the traffic of a copied left side: its rows are short

# Of loops, in additions of vectors: a turn and a tile besides their elements.
LOOP_TURN, LOOP_TILE = 2.0, 60.0
LOOP_SPILLED = 12.0  # of each vector of a transposed block that registers do not hold

MEETING = 32  # what threads of a GPU's block that meet cost, in instructions

# Of kernels in the language, in seconds: to begin on one window, on one tile of the grid.
WINDOW_SECONDS, TILE_SECONDS = 20e-9, 100e-9
