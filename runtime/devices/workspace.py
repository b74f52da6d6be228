"""A stream, and the memory that one call at a time has on it.

A context of fixed sizes has a workspace of its own. Contexts of a program whose calls decide its
sizes take turns in those of all sizes, so that many sizes need no more memory than the largest.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .driver import Driver, GraphNode
from .events import EventLog
from .graph_nodes import sizes_of
from .persistent_launch import Meeting
from .resources import DeviceMemory, Moment, Stream, finally_do

if TYPE_CHECKING:
    from .nvidia import Opened

_KEPT = 64  # sets of addresses that came last
_GRAPHS = 32  # of a stretch of steps

Array = np.ndarray[Any, Any]


class Workspace:
    """`arguments`: by base, memory for what comes from or goes to the host; `uploaded`: then the
    staging memory may be written again; `pending`: other libraries' arrays that kernels use."""

    def __init__(self, opened: Opened, size: int) -> None:
        self.driver, self.events = opened.driver, opened.events
        self.stream = Stream(self.driver)
        opened.add_user(self.stream)
        self.memory = DeviceMemory(self.stream, size)
        self.arguments: dict[int, DeviceMemory] = {}
        self._staging: _HostMemory | None = None
        self._meeting: Meeting | None = None
        self.uploaded: Moment | None = None
        self.pending: deque[tuple[Moment, list[Any]]] = deque()
        self.stretches: dict[Any, Stretch] = {}  # by where they begin, and the entries

    def own(self, base: int, size: int) -> int:
        """The address of memory for an argument or a result, of at least so many bytes."""
        found = self.arguments.get(base)
        if found is None or found.size < size:
            found = self.arguments[base] = DeviceMemory(self.stream, size)
        return found.address

    def staged(self, size: int) -> Array:
        """So many bytes of the host's memory, which copies need not stage."""
        if self._staging is None or self._staging.array.size < size:
            self._staging = _HostMemory(self.stream, size)
        return self._staging.array

    @property
    def meeting(self) -> Meeting:
        """What the blocks of persistent launches meet by."""
        if self._meeting is None:
            self._meeting = Meeting(self.driver, self.stream)
        return self._meeting

    def stretch(self, key: tuple[Any, ...]) -> Stretch:
        """What keeps the graphs of launches that differ in addresses and sizes alone."""
        found = self.stretches.get(key)
        if found is None:
            found = self.stretches[key] = Stretch(self.driver, self.events)
        return found


class _HostMemory:
    """Memory that is given back when the stream's work is done and nobody refers to it."""

    def __init__(self, stream: Stream, size: int) -> None:
        self.array = stream.driver.host_memory(size)
        finally_do(self, stream.driver, _free_pinned, stream, self.array)


class Workspaces:
    """Those of a program whose calls decide its sizes; `most`: bytes of the largest arena."""

    def __init__(self) -> None:
        self.most = 0
        self.free: deque[Workspace] = deque()

    def take(self, opened: Opened) -> Workspace:
        """One that nobody has, until it is appended to `free`."""
        try:
            found = self.free.pop()
        except IndexError:
            return Workspace(opened, self.most)
        if found.memory.size < self.most:
            found.memory = DeviceMemory(found.stream, self.most)
        return found


class Stretch:
    """Steps without a branch between them. The first run starts one launch after the other: it is
    when a driver loads the code of its kernels. From then on they are graphs: one for each set of
    addresses (and sizes) that came before, as long as there are few, and one that is told those of
    all others."""

    def __init__(self, driver: Driver, events: EventLog) -> None:
        self.driver, self.events = driver, events
        self.seen: OrderedDict[tuple[int, ...], None] = OrderedDict()
        self.graphs: OrderedDict[tuple[int, ...], _StretchGraph] = OrderedDict()
        self.begun = False

    def start(
        self,
        key: tuple[int, ...],
        launches_at: Callable[[], list[Any]],
        nodes: Sequence[GraphNode],
        stream: Any,
        at_once: bool = False,
    ) -> None:
        """Starts the launches that `launches_at` gives, which are always the same for a key, as
        these nodes; at_once: as a graph at the first run as well."""
        driver = self.driver
        graph = self.graphs.get(key)
        if graph is not None:
            self.graphs.move_to_end(key)
            self._replay(graph, stream)
            return
        launches = launches_at()
        if not at_once and (not self.begun or not driver.graphs or len(launches) < 2):
            self.begun = True
            self.events.add(launches=len(launches))
            for prepared in launches:
                driver.launch(prepared, stream)
            return
        again = key in self.seen
        if not self.graphs or again and len(self.graphs) < _GRAPHS:
            graph = _StretchGraph(driver, launches, nodes)
        else:
            graph = self.graphs.popitem(last=False)[1]
            graph.rebind(launches)
        self.graphs[key] = graph
        self.seen[key] = None
        if len(self.seen) > _KEPT:
            self.seen.popitem(last=False)
        self._replay(graph, stream)

    def _replay(self, graph: _StretchGraph, stream: Any) -> None:
        self.events.add(graph_launches=1, nodes=graph.size[0], edges=graph.size[1])
        self.driver.replay(graph.handle, stream)


class _StretchGraph:
    """A stretch as the driver's graph; `launches`: what it holds now."""

    def __init__(self, driver: Driver, launches: list[Any], nodes: Sequence[GraphNode]) -> None:
        self.driver, self.launches = driver, launches
        self.handle = driver.graph(launches, nodes)
        self.size = sizes_of(nodes)
        finally_do(self, driver, driver.destroy_graph, self.handle)

    def rebind(self, launches: list[Any]) -> None:
        """Takes other parameters, where some have changed."""
        for number, (old, new) in enumerate(zip(self.launches, launches, strict=True)):
            if old is not new:
                self.driver.rebind(self.handle, number, new)
        self.launches = launches


def _free_pinned(stream: Stream, block: Array) -> None:
    stream.driver.synchronize(stream.handle)
    stream.driver.free_host_memory(block)
