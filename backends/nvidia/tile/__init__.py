"""Tile functions as GPU kernels: every kernel_call becomes one kernel, a block per grid place."""

from __future__ import annotations

from .assign import Assignment
from .kernel import emit, emitted, fits

__all__ = ["Assignment", "emit", "emitted", "fits"]
