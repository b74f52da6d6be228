"""The CPU backend: kernels as LLVM IR, compiled and linked when the program is compiled, so that a
bundle runs without LLVM.

In: schedules and the features of a processor. Out: plans, and an ELF image with all kernels and the
executor that walks a plan's steps. Imported by `cli`, `girih`.
"""

from __future__ import annotations

from .facade import backend, backend_of, target_of

__all__ = ["backend", "backend_of", "target_of"]
