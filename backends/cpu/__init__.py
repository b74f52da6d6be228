"""The CPU backend: kernels as LLVM IR, compiled and linked when the program is compiled, so that a
bundle runs without LLVM."""

from __future__ import annotations

from .facade import backend, backend_of, target_of

__all__ = ["backend", "backend_of", "target_of"]
