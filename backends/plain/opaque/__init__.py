"""Single operations outside fusions: plain loops, parallel where that is trivial.

In: one operation (sort, top_k, scatter, updates, windows ...) and pointers. Out: IR of its
function, for one worker or a grid. Imported by `backends/cpu`, `backends/nvidia`.
"""

from __future__ import annotations

from collections.abc import Callable

from ....hlo.graph import Op
from ...llvm.target import KernelCode, Target
from . import fourier, linear_algebra, scatter, select, sort, top, update, window

# Those that need memory of their own.
WITH_SCRATCH: dict[str, Callable[[Op, Target], KernelCode]] = {
    "sort": sort.emit,
    "chlo.top_k": top.emit,
    "fft": fourier.emit,
}
EMITTERS: dict[str, Callable[[Op, Target], KernelCode]] = {
    **WITH_SCRATCH,
    "dynamic_update_slice": update.emit,
    "optimization_barrier": update.copies,
    "reduce_window": window.emit,
    "scatter": scatter.emit,
    "select_and_scatter": select.emit,
    "cholesky": linear_algebra.cholesky,
    "triangular_solve": linear_algebra.triangular_solve,
    "linalg.pivots_to_permutation": linear_algebra.pivots_to_permutation,
}
