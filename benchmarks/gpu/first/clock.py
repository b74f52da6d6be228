"""Times of launches by a driver's own events, without torch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

FLUSHED = 256 << 20  # bytes, more than any second-level cache


def seconds(driver: Any, stream: Any, start: Callable[[], None], count: int) -> float:
    """The median seconds of a call that starts work on a stream; the second-level cache is emptied
    before each, which keeps the GPU busy while the host prepares the next."""
    block = driver.allocate(FLUSHED, stream)
    try:
        for _ in range(2):
            start()
        pairs = []
        for _ in range(count):
            driver.fill(block, FLUSHED, stream)
            begin = driver.record(stream, timed=True)
            start()
            pairs.append((begin, driver.record(stream, timed=True)))
        driver.synchronize(stream)
        return statistics.median(_elapsed(driver, pair) for pair in pairs)
    finally:
        driver.free(block, stream)


def several(driver: Any, stream: Any, start: Callable[[], None], count: int) -> dict[str, float]:
    """Seconds of `count` calls one after the other, each: on the device, and until the host is free
    again."""
    start()
    driver.synchronize(stream)
    begin, before = driver.record(stream, timed=True), time.perf_counter()
    for _ in range(count):
        start()
    host = time.perf_counter() - before
    end = driver.record(stream, timed=True)
    driver.synchronize(stream)
    return {"device": _elapsed(driver, (begin, end)) / count, "host": host / count}


def _elapsed(driver: Any, pair: tuple[Any, Any]) -> float:
    try:
        return 1e-6 * driver.elapsed(*pair)
    finally:
        for event in pair:
            driver.destroy_event(event)
