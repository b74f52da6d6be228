"""What is assumed of any machine: by passes that decide before or without a description of one, and
of what kernels take around their arithmetic."""

from __future__ import annotations

SECONDS_PER_FLOP = {"contract": 1e-11, "other": 1e-10}
SECONDS_PER_BYTE = 5e-11
SECONDS_PER_CALL = 2e-5  # that a call takes beside its kernels
# To look at a counter that another worker has changed; to meet at one word: of machines whose
# description does not say.
SECONDS_PER_COUNTER, SECONDS_PER_BARRIER = 5e-8, 2e-7
WORK_PER_BYTE = 2.0  # additions in the time of moving one byte of main memory
NEAR_BYTES = 1 << 19  # of a value that is still in a core's cache when the next kernel reads it
CONVOLVED_PER_BYTE = 200  # flops of convolutions that pay for one byte moved by a transpose
CONVOLVED_PER_LAUNCH = 1e6  # and for another launch on a GPU

# Between devices, in the time in which one receives a byte: what it computes, and what it reads and
# writes. 400 TFLOP/s and 3 TB/s beside 50 GB/s, round figures of an accelerator on a network of
# servers.
FLOPS_PER_BYTE, MEMORY_PER_BYTE = 8_000.0, 600.0
# What each communication costs beside its bytes, in bytes: of two ways equal in these, the shorter.
BYTES_PER_COMMUNICATION = 4096.0

# Of products, in vector products: a call of the micro-kernel, a tile; what one vector costs that
# goes to memory, comes from there, or is copied while a side is packed.
CALL, TILE = 130.0, 800.0
LATER = 1.0  # of a tile: how much later the last of several workers ends where tiles differ
STORED, LOADED = 3.0, 1.0
PACKED, PACKED_SLOWLY = 8.0, 24.0
UNFOLDED, RUN = 3.0, 12.0  # a vector of a window that is copied; a run of such vectors
# Of bytes that come from a cache again, those that are waited for: of rows side by side; in a row.
FETCHED, STREAMED = 0.4, 0.1
FAR, FAR_BYTES = 3.0, 2048  # a step on another page, and from where on steps are
OUTSTANDING = 20.0  # far runs that are on their way at a time
COPIES = 1.3  # times the traffic of a copied left side: its rows are short

# Of loops, in additions of vectors from and to a cache: a simple operation in registers; a load or
# a store; an element of a vector whose elements are loaded one by one; a vector's mask; a turn, at
# least; a row; a tile; joining two accumulators, or halves of one; an instruction that is brought
# from memory.
LOOP_SIMPLE, LOOP_MOVED, LOOP_GATHERED, LOOP_MASKED = 0.3, 0.22, 0.5, 1.0
LOOP_TURN, LOOP_ROW, LOOP_TILE, LOOP_END, LOOP_CODE = 0.8, 1.0, 2.0, 2.0, 0.5
LOOP_STEP = 0.2  # of a turn besides its vectors
LOOP_SPILLED = 12.0  # of each vector of a transposed block that registers do not hold
LOOP_WAITING = 0.1  # of what is issued, that which shows where sums wait for each other

# Of kernels in the language, in seconds: to begin on one window, on one tile of the grid.
WINDOW_SECONDS, TILE_SECONDS = 20e-9, 100e-9
