"""What emitters of LLVM IR need to know of a target, and what a plain kernel is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from .builder import Module


@dataclass(frozen=True)
class KernelCode:
    """One kernel of the plain ABI: IR of a module that defines `symbol` as
    void(ptr arguments, i64 begin, i64 end, ptr scratch), which does the tiles [begin, end)."""

    ir_text: str
    symbol: str
    tiles: int  # any split of [0, tiles) gives the same bits
    scratch_bytes: int  # per worker
    flops: float
    bytes: float  # read plus written, each counted once
    parallel: bool = True
    notes: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()  # of libraries; their addresses come behind the results
    sizes: tuple[Any, ...] = ()  # what the call decides, in the table before the arguments
    object: bytes = b""  # an ELF object that defines `symbol`, in place of IR; written elsewhere


class Target(ABC):
    """A machine that LLVM compiles for, as the emitters of backends/llvm and backends/plain see it.

    vector_bits: of one register; what fits no lane is done one element at a time.
    """

    vector_bits: int

    @abstractmethod
    def step_lanes(self, bits: int) -> int:
        """Lanes of one step of a loop over elements of so many bits."""

    @abstractmethod
    def lanes(self, element: str) -> int:
        """Lanes of one vector register of an LLVM element type."""

    @property
    def one_lane(self) -> bool:
        """Whether code computes one element at a time, in many threads: then tiles are small."""
        return self.step_lanes(32) == 1

    @abstractmethod
    def module(self) -> Module:
        """An empty module of this target."""
