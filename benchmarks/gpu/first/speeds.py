"""Fifteen speeds that say most, beside torch (cuBLAS, cuDNN, FlashAttention) in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cases
import static
from cases import Case

ENGINES = ("girih", "torch")
_COUNT = 30

# (name, the case, a small one of its kind for the simulator)
SPEEDS: tuple[tuple[str, Callable[[], Case], Callable[[], Case]], ...] = (
    *(
        (
            f"speed: matmul {dtype} {'x'.join(map(str, sizes))}",
            partial(cases.matmul, dtype, *sizes),
            partial(cases.matmul, dtype, 128, 128, 64),
        )
        for dtype, sizes in (
            ("bf16", (8192, 8192, 8192)), ("bf16", (4096, 4096, 4096)),
            ("bf16", (2048, 2048, 2048)), ("fp16", (4096, 4096, 4096)),
            ("tf32", (4096, 4096, 4096)), ("fp8", (8192, 8192, 8192)),
            ("bf16", (16, 8192, 8192)), ("bf16", (8192, 28672, 4096)),
        )
    ),
    *(
        (
            f"speed: attention {length}x{width}{' causal' if causal else ''}",
            partial(cases.attention, "bf16", 16384 // length, 2048 // width, length, width, causal),
            partial(cases.attention, "bf16", 1, 1, 128, width, causal),
        )
        for length, width, causal in ((4096, 128, False), (4096, 128, True), (4096, 64, True))
    ),
    ("speed: softmax", partial(cases.softmax, "bf16", 16384, 1024),
     partial(cases.softmax, "bf16", 16, 200)),
    ("speed: layer norm", partial(cases.layer_norm, "bf16", 16384, 1024),
     partial(cases.layer_norm, "bf16", 16, 200)),
    ("speed: elementwise", partial(cases.elementwise, "bf16", 8192, 8192),
     partial(cases.elementwise, "bf16", 16, 200)),
    ("speed: transpose", partial(cases.transpose, "bf16", 8192, 8192),
     partial(cases.transpose, "bf16", 48, 80)),
)  # fmt: skip


def prepare(case: Case, architecture: str, file: Path) -> None:
    """Write the case's bundle."""
    import girih

    options = girih.Options(numerics=case.numerics)
    program = girih.compile(case.exported(), target=f"nvidia:{architecture}", options=options)
    program.save(file)


class Speeds:
    """The clock and the peaks of a device, measured at the first use."""

    def __init__(self, architecture: str, simulated: bool) -> None:
        self.architecture, self.simulated = architecture, simulated
        self._clock: Any = None
        self.peaks: dict[str, float] = {}

    def start(self) -> dict[str, Any]:
        """The peaks: bytes per second of a copy, flops per second of cuBLAS products of 8192."""
        if self.simulated:
            return {"simulated": "there is no clock"}
        from timing import Clock, calibrate

        self._clock = Clock()
        self.peaks = calibrate(self._clock)
        return {"peaks": self.peaks}

    def measure(self, case: Case, bundle: Path | None) -> dict[str, Any]:
        """The row of benchmarks/gpu/run.py, with girih's share of torch's speed."""
        if self.simulated:
            found = static.simulated(case, self.architecture)
            if not found["good"]:
                raise ValueError(f"the error is {found['error']:.1e}")
            return found
        import run

        if not self.peaks:
            self.start()
        if bundle is not None:
            case = replace(case, facts={**case.facts, "bundle": bundle})
        row = run.measured(case, list(ENGINES), self._clock, self.peaks, _COUNT)
        ours, theirs = (row["engines"][name] for name in ENGINES)
        if "unavailable" in ours:
            raise ValueError(ours["unavailable"])
        if not ours["good"]:
            raise ValueError(f"the error is {ours['error']:.1e}")
        if "milliseconds" in theirs:
            row["of_torch"] = theirs["milliseconds"] / ours["milliseconds"]
        return row
