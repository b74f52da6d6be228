"""What an access costs: 32-byte sectors of global memory, wavefronts of shared memory.

Each count is of the launch, and of the line of source that its instruction is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .report import Report

if TYPE_CHECKING:
    from .engine import At, Batch
    from .flow import Block

SECTOR = 32
BANKS = 32


class Counters:
    def __init__(self, report: Report, files: dict[int, str]) -> None:
        self.report, self.files = report, files
        self._blocks: dict[int, dict[str, int]] = {}  # instructions of a block, by line

    def _count(self, state: Batch, number: int, name: str, amount: int) -> None:
        self.report.count(name, amount, self._place(state.nodes[number].instruction.source))

    def _place(self, source: tuple[int, int] | None) -> str:
        if source is None:
            return ""
        file, line = source
        return f"{self.files.get(file, f'file {file}')}:{line}"

    def executed(self, block: Block, size: int) -> None:
        """A block of the program, by `size` threads."""
        lines = self._blocks.get(block.rank)
        if lines is None:
            lines = self._blocks[block.rank] = {}
            instructions = [node.instruction for node in block.nodes]
            if block.instruction is not None:
                instructions.append(block.instruction)
            for instruction in instructions:
                place = self._place(instruction.source)
                lines[place] = lines.get(place, 0) + 1
        for place, count in lines.items():
            self.report.count_line("instructions", count * size, place)

    @staticmethod
    def _warps(state: Batch, A: Any) -> np.ndarray:
        lanes = state.lanes[state.threads(A)]
        per = state.threads_per_cta
        return lanes // per * (-(-per // 32)) + lanes % per // 32

    def sectors(self, state: Batch, A: Any, number: int, offset: Any, size: int) -> None:
        """`offset`: bytes from the start of the allocation, which is aligned; `number`: of the
        instruction."""
        warps = self._warps(state, A)
        offset = np.broadcast_to(offset, warps.size)
        first, last = offset // SECTOR, (offset + size - 1) // SECTOR
        parts = [warps * (1 << 40) + first]
        for step in range(1, size // SECTOR + 1):
            parts.append(warps * (1 << 40) + np.minimum(first + step, last))
        touched = np.unique(np.concatenate(parts)).size
        asked = np.unique(warps * (1 << 40) + offset)  # lanes that want the same get it at once
        requests, counts = np.unique(asked >> 40, return_counts=True)
        self._count(state, number, "global_requests", requests.size)
        self._count(state, number, "global_sectors", touched)
        ideal = int((-(-counts * size // SECTOR)).sum())
        self._count(state, number, "global_sectors_ideal", ideal)

    def rows(self, at: At, starts: np.ndarray, nbytes: int) -> None:
        """One request of the copy engine: `nbytes` from each of the addresses `starts`."""
        if not starts.size or not nbytes:
            return
        touched = int(((starts + nbytes - 1) // SECTOR - starts // SECTOR + 1).sum())
        state, number = at.state, at.node.number
        self._count(state, number, "global_requests", 1)
        self._count(state, number, "global_sectors", touched)
        self._count(state, number, "global_sectors_ideal", -(-starts.size * nbytes // SECTOR))

    def banks(self, state: Batch, A: Any, number: int, offset: Any, size: int) -> None:
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
        self._count(state, number, "shared_requests", np.unique(warps).size)
        self._count(state, number, "shared_wavefronts", int(most.sum()))
        self._count(state, number, "bank_conflicts", int((most[most > 0] - 1).sum()))
