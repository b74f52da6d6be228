"""Times on a GPU: events around single calls, the second-level cache emptied before each.

Emptying keeps the GPU busy while the host prepares the next call, so that short kernels are not
timed by the host's speed. Engines take turns; a time is the median of all of an engine's calls.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

FLUSHED = 256 << 20  # bytes, more than any second-level cache
WARM, TURNS = 3, 3


class Clock:
    """Times calls on torch's current stream."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.block = torch.empty(FLUSHED, dtype=torch.uint8, device="cuda")

    def once(self, call: Callable[[], Any]) -> tuple[Any, Any]:
        """The events around a call that is under way."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.block.zero_()
        begin.record()
        results = call()
        end.record()
        del results
        return begin, end

    def series(self, call: Callable[[], Any], count: int) -> list[float]:
        """Seconds of `count` calls."""
        for _ in range(WARM):
            call()
        events = [self.once(call) for _ in range(count)]
        self.torch.cuda.synchronize()
        return [begin.elapsed_time(end) * 1e-3 for begin, end in events]

    def in_turns(self, calls: Mapping[str, Callable[[], Any]], count: int) -> dict[str, float]:
        """The median seconds of each engine's call, of `count` in all."""
        taken: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(TURNS):
            for name, call in calls.items():
                taken[name] += self.series(call, max(1, count // TURNS))
        return {name: statistics.median(values) for name, values in taken.items()}


def calibrate(clock: Clock, seconds: float = 0.5) -> dict[str, float]:
    """What the GPU reaches: bytes/s of a copy (read plus written), flops/s of cuBLAS products."""
    torch = clock.torch
    peaks = {"bytes": _copied(clock)}
    side = 8192
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("tf32", torch.float32)):
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        a, b = (torch.randn(side, side, device="cuda").to(dtype) for _ in range(2))
        one = min(clock.series(lambda a=a, b=b: a @ b, 3))
        times = clock.series(lambda a=a, b=b: a @ b, max(5, int(seconds / one)))
        peaks[name] = 2.0 * side**3 / min(times)
    peaks["f32"] = peaks["tf32"]
    peaks["fp8"] = 2 * peaks["bf16"]  # no engine's product: what the tensor cores double
    return peaks


def _copied(clock: Clock) -> float:
    """Bytes read and written in a second by a copy of a gibibyte."""
    source = clock.torch.empty(1 << 30, dtype=clock.torch.uint8, device="cuda")
    target = clock.torch.empty_like(source)
    return 2 * source.numel() / min(clock.series(lambda: target.copy_(source), 20))
