"""Proves that the arguments of a launch of several kernels lie apart in their table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..hlo.errors import CompilerBug

ALIGNED = 64  # bytes: of a tensor map; other arguments are as aligned as they are large


def sizes_of(launch: Any) -> list[int]:
    """The bytes of each argument of a launch (plan_pb2.Launch)."""
    kinds = [(one, one.WhichOneof("value")) for one in launch.arguments]
    return [
        len(one.immediate) if kind == "immediate" else 128 if kind == "tensor_map" else 8
        for one, kind in kinds
    ]


def check_table(cells: Sequence[tuple[int, int]], size: int, what: str) -> None:
    """Raise CompilerBug unless the arguments of a launch, (place, bytes) each, lie apart in a table
    of so many bytes, where they can be loaded."""
    end = 0
    for place, count in sorted(cells):
        if place < end:
            raise CompilerBug(f"arguments of {what} share a place")
        if place % max(min(count, ALIGNED), 1):
            raise CompilerBug(f"an argument of {what} lies where it cannot be loaded")
        end = place + count
    if end > size:
        raise CompilerBug(f"arguments of {what} lie outside of their table")
