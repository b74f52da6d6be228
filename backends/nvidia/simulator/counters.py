"""What an access costs: 32-byte sectors of global memory, wavefronts of shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .report import Report

if TYPE_CHECKING:
    from .engine import Batch

SECTOR = 32
BANKS = 32


class Counters:
    def __init__(self, report: Report) -> None:
        self.report = report

    @staticmethod
    def _warps(state: Batch, A: Any) -> np.ndarray:
        lanes = state.lanes[state.threads(A)]
        per = state.threads_per_cta
        return lanes // per * (-(-per // 32)) + lanes % per // 32

    def sectors(self, state: Batch, A: Any, offset: Any, size: int) -> None:
        """`offset`: bytes from the start of the allocation, which is aligned."""
        warps = self._warps(state, A)
        offset = np.broadcast_to(offset, warps.size)
        first, last = offset // SECTOR, (offset + size - 1) // SECTOR
        parts = [warps * (1 << 40) + first]
        for step in range(1, size // SECTOR + 1):
            parts.append(warps * (1 << 40) + np.minimum(first + step, last))
        touched = np.unique(np.concatenate(parts)).size
        requests, counts = np.unique(warps, return_counts=True)
        self.report.count("global_requests", requests.size)
        self.report.count("global_sectors", touched)
        self.report.count("global_sectors_ideal", int((-(-counts * size // SECTOR)).sum()))

    def banks(self, state: Batch, A: Any, offset: Any, size: int) -> None:
        """Wavefronts above those that the bytes need. Accesses of 8 and 16 bytes go by halves and
        quarters of a warp."""
        warps = self._warps(state, A)
        lanes = state.lanes[state.threads(A)] % state.threads_per_cta % 32
        offset = np.broadcast_to(offset, warps.size)
        width = max(1, size // 4)
        group = warps * width + lanes * width // 32
        words = (offset[:, None] // 4 + np.arange(width)).reshape(-1)
        groups = np.repeat(group, width)
        distinct = np.unique(groups * (1 << 32) + words)
        keys, counts = np.unique((distinct >> 32) * BANKS + distinct % BANKS, return_counts=True)
        most = np.zeros(int(keys[-1] // BANKS) + 1, np.int64)
        np.maximum.at(most, keys // BANKS, counts)
        self.report.count("shared_requests", np.unique(warps).size)
        self.report.count("shared_wavefronts", int(most.sum()))
        self.report.count("bank_conflicts", int((most[most > 0] - 1).sum()))
