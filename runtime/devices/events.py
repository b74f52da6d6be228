"""What a program has asked its device for so far, counted."""

from __future__ import annotations

import threading

EVENTS = ("launches", "graph_launches", "nodes", "edges", "copies_to_host", "synchronisations")


class EventLog:
    """Counts of `EVENTS` in all calls so far: kernels that the host starts one by one, starts of
    graphs, the nodes and edges of the graphs that were started, and how often the host copies from
    the device, and waits for it."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = dict.fromkeys(EVENTS, 0)
        self._lock = threading.Lock()

    def add(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def read(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)
