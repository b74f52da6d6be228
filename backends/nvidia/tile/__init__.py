"""Tile functions as GPU kernels: every kernel_call becomes one kernel, a block per grid place."""

from __future__ import annotations

from .kernel import emit

__all__ = ["emit"]
