"""Calls whose times show the rates of the machine: arithmetic on registers, reading, copying."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

Call = Callable[[], Any]
_BEHIND = 4096  # bytes of a worker's block that its results go behind


class Limits:
    """Native loops on `threads` threads at once."""

    def __init__(self, threads: int) -> None:
        from girih.backends.cpu import codegen, image, probes

        self.threads = threads
        self.pool = ThreadPoolExecutor(threads)
        target = codegen.host_target()
        module = target.module()
        self.lanes, self.sums = target.lanes("float"), 24 if target.vector_bits == 512 else 12
        self._products(module)
        probes.read(module, "read", target)
        probes.copy(module, "copy", target)
        linked = image.link([codegen.compile_object(module.text(), target)])
        self._code = mmap.mmap(
            -1, len(linked.data), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        )
        self._code.write(linked.data)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._code))
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2)
        self.products, self.read, self.copy = (
            kind(base + linked.symbols[name]) for name in ("products", "read", "copy")
        )
        self.blocks = [np.zeros(_BEHIND, np.float32) for _ in range(threads)]

    def _products(self, module: Any) -> None:
        """Fused multiply-adds on registers, `turns` times as many as fill them."""
        from girih.backends import llvm

        words = [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("i64", "size"), ("i64", "turns")]
        f = module.function("products", words)
        a, _, c, _, turns = f.arguments
        kind = llvm.vector(self.lanes, "float")
        x = f.load(kind, a)
        # Sums that begin alike would become one.
        begin = [f.load(kind, f.pointer(a, n * self.lanes, "float")) for n in range(self.sums)]
        with f.for_range(0, turns, 1, begin, at_least_once=True) as loop:
            loop.carry(*(f.fma(x, x, total) for total in loop.carried))
        for n, total in enumerate(loop.results):
            f.store(total, f.pointer(c, n * self.lanes, "float"))
        f.ret()

    def arithmetic(self, flops: float) -> tuple[Call, float]:
        """A call, and how many flops it does: about as many as asked."""
        per_turn = 2 * self.lanes * self.sums
        turns = max(self._turns(40_000), int(flops / per_turn / self.threads))

        def one(worker: int) -> None:
            block = self.blocks[worker].ctypes.data
            self.products(block, 0, block + _BEHIND, 0, turns)

        return self._everywhere(one), float(turns * per_turn * self.threads)

    def reading(self, size: int) -> tuple[Call, float]:
        """A call that reads an array of about `size` bytes, more often if it is small; and how many
        bytes it reads."""
        return self._moving(self.read, size, 1)

    def copying(self, size: int) -> tuple[Call, float]:
        """A call that reads and writes about `size` bytes together; and how many."""
        return self._moving(self.copy, size, 2)

    def _moving(self, function: Any, size: int, arrays: int) -> tuple[Call, float]:
        part = max(4096, size // arrays // self.threads // 4096 * 4096)
        turns = max(1, self._turns(200_000) // part)
        source = np.ones(part * self.threads // 4, np.float32)
        target = np.ones(part * self.threads // 4, np.float32) if arrays == 2 else source

        def one(worker: int) -> None:
            offset, block = worker * part, self.blocks[worker].ctypes.data
            target_at = target.ctypes.data + offset if arrays == 2 else 0
            function(source.ctypes.data + offset, target_at, block + _BEHIND, part, turns)

        return self._everywhere(one), float(part * turns * self.threads * arrays)

    def _turns(self, least: int) -> int:
        """More where starting the threads takes time of its own, which is no part of a rate."""
        return least if self.threads == 1 else 20 * least

    def _everywhere(self, one: Callable[[int], Any]) -> Call:
        if self.threads == 1:
            return lambda: one(0)
        return lambda: list(self.pool.map(one, range(self.threads)))
