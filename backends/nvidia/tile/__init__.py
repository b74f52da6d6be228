"""Tile functions as GPU kernels: every kernel_call becomes one kernel, a block per grid place.

In: a kernel_call or the tile function of a contraction. Out: one launch, by layouts that are
assigned first (`Assignment`); `fits` says why a function has too large tiles for registers or
shared memory, and `memory_tiles.py` takes those. Imported by `backends/nvidia`.
"""

from __future__ import annotations

from .assign import Assignment
from .kernel import emit, emitted, fits

__all__ = ["Assignment", "emit", "emitted", "fits"]
