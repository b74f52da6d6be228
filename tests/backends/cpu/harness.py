"""Compiles single kernels and runs them through ctypes, beside the interpreter."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from girih.backends.cpu import codegen, executor, image, kernels
from girih.backends.llvm.target import KernelCode
from girih.hlo.graph import Op
from girih.runtime.devices import cpu, libraries
from girih.runtime.devices.memory import Pages

from ..support import compare as compare
from ..support import expected as expected
from ..support import fusion as fusion

GUARD = 128  # bytes after each result that must stay as they are
_alive: list[Pages] = []  # mapped code must outlive the calls


def compiled(code: KernelCode, target: codegen.Target) -> Any:
    """A callable (addresses, begin, end, scratch address)."""
    if "amx-tile" in target.features:
        cpu._permit_tiles()
    # The executor's object has the memcpy and memset that LLVM may call.
    made = code.object or codegen.compile_object(code.ir_text, target)
    linked = image.link([_executor(target), made])
    mapped = cpu.map_image(linked.data)
    _alive.append(mapped)
    address = mapped.address + linked.symbols[code.symbol]
    function = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
    )(address)
    return function


@functools.cache
def _executor(target: codegen.Target) -> bytes:
    return codegen.compile_object(executor.emit(target), target)


class Kernel:
    """One kernel, ready to be called on numpy arrays."""

    def __init__(
        self,
        op: Op,
        target: codegen.Target | None = None,
        code: KernelCode | None = None,
    ) -> None:
        self.target = target or codegen.host_target()
        self.op = op
        self.code = code or kernels.emit(op, self.target)
        self.function = compiled(self.code, self.target)
        self._blocks: list[np.ndarray] = []
        self.scratch = aligned(self.code.scratch_bytes + 64)

    def outputs(self) -> list[np.ndarray]:
        """Results full of a pattern that no kernel may leave behind."""
        made = []
        for result in self.op.results:
            block = aligned(result.tensor.bytes + GUARD)
            block[:] = 0xA5
            self._blocks.append(block)
            flat = block[: result.tensor.bytes].view(result.tensor.dtype)
            made.append(flat.reshape(result.tensor.dims))
        return made

    def call(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], splits: int = 1
    ) -> None:
        """Runs all tiles in `splits` ranges, last range first."""
        addresses = [array.ctypes.data for array in (*inputs, *outputs)]
        addresses += map(libraries.address_of, self.code.functions)
        table = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        tiles = self.code.tiles
        bounds = [tiles * n // splits for n in range(splits + 1)]
        for begin, end in reversed(list(zip(bounds, bounds[1:], strict=False))):
            if begin < end:
                self.function(table, begin, end, self.scratch.ctypes.data)

    def __call__(self, *inputs: np.ndarray, splits: int = 1) -> list[np.ndarray]:
        ready = [np.ascontiguousarray(array) for array in inputs]
        results = self.outputs()
        self.call(ready, results, splits)
        for block in self._blocks:
            assert np.all(block[len(block) - GUARD :] == 0xA5), "written past the end of a result"
        self._blocks.clear()
        return results


def aligned(size: int) -> np.ndarray:
    block = np.empty(size + 64, np.uint8)
    offset = -block.ctypes.data % 64
    return block[offset : offset + size]


def check(
    op: Op, inputs: Sequence[np.ndarray], *, tolerance: float = 0.0, target: Any = None
) -> list[np.ndarray]:
    """Kernel and interpreter agree, and splitting the tiles changes no bit."""
    kernel = Kernel(op, target)
    results = kernel(*inputs)
    for parts in (2, 3):
        for first, again in zip(results, kernel(*inputs, splits=parts), strict=True):
            np.testing.assert_array_equal(_bytes(first), _bytes(again))
    for got, wanted in zip(results, expected(op, inputs), strict=True):
        compare(got, wanted, tolerance)
    return results


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
