"""The processes of a grid: whose turn it is, and what passes between them.

One process runs at a time and hands over only where it has to wait, always in the same order: a
program gives the same numbers, and the same error, every time. A wait that nobody can end is told
at once, with the place of each operation that waits.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .errors import UserError
from .graph import Module, Op
from .groups import Groups, named_by, process_groups

MAXIMUM_RUNNING = 1024
"""Processes of one grid; each is a thread."""

_SHOWN = 8  # waiting operations that an error lists

Item = tuple[Any, ...]  # what one send, recv, infeed or outfeed carries


class _Stopped(BaseException):
    """Ends the thread of a process whose grid has failed."""


class _Fiber:
    """One strand of a process: its program, or an asynchronous operation of it."""

    def __init__(self, process: Process, task: Callable[[], Any]) -> None:
        self.process, self.task = process, task
        self.turn = threading.Semaphore(0)
        self.ready: Callable[[], bool] | None = None
        self.waits = ""
        self.stepped = self.done = False
        self.result: Any = None
        self.error: BaseException | None = None


class Future:
    """The results of an asynchronous operation, once `done`."""

    def __init__(self, results: Any = None, fiber: _Fiber | None = None) -> None:
        self._results, self._fiber = results, fiber

    @property
    def done(self) -> bool:
        return self._fiber is None or self._fiber.done

    @property
    def results(self) -> Any:
        return self._results if self._fiber is None else self._fiber.result


class Parts(list[Item]):
    """The operands of all members of a group, in its order."""

    def __init__(self, items: Sequence[Item]) -> None:
        super().__init__(items)
        self._shared: dict[Op, Any] = {}

    def once(self, o: Op, make: Callable[[], Any]) -> Any:
        """make(), by the first member that runs `o`; what it gives is nobody's own."""
        if o not in self._shared:
            self._shared[o] = make()
        return self._shared[o]


class _Meeting:
    """Operands of the members of a group that have arrived at one collective."""

    def __init__(self) -> None:
        self.parts: dict[int, Item] = {}
        self.whole: Parts | None = None
        self.left = 0


class Grid:
    """replicas x partitions processes, and all that is between them.

    infeed: one queue of items per process; received: channel -> items that the host sends.
    UserError for a grid without or with too many processes.
    """

    def __init__(
        self,
        replicas: int,
        partitions: int,
        infeed: Sequence[Sequence[Item]] = (),
        received: Mapping[int, Sequence[Item]] | None = None,
    ) -> None:
        if replicas < 1 or partitions < 1 or replicas * partitions > MAXIMUM_RUNNING:
            raise UserError(
                f"a grid of {replicas} x {partitions} processes cannot be run: it needs at least "
                f"one and at most {MAXIMUM_RUNNING}"
            )
        self.replicas, self.partitions = replicas, partitions
        self.processes = [Process(self, number) for number in range(replicas * partitions)]
        if len(infeed) > len(self.processes):
            raise UserError(f"{len(infeed)} infeeds for {len(self.processes)} processes")
        for process, queue in zip(self.processes, infeed, strict=False):
            process.infeed.extend(queue)
        self.channels: dict[Any, deque[Item]] = {
            channel: deque(items) for channel, items in (received or {}).items()
        }
        self.meetings: dict[Any, _Meeting] = {}
        self._fibers: list[_Fiber] = []
        self._current: _Fiber | None = None
        self._back = threading.Semaphore(0)
        self._closing = False

    def run(self, task: Callable[[Process], Any]) -> list[Any]:
        """task(process) of every process; the first error of any ends all."""
        own = [self._spawn(process, lambda p=process: task(p)) for process in self.processes]
        try:
            while any(not fiber.done for fiber in self._fibers):
                self._round()
        finally:
            self._close()
        return [fiber.result for fiber in own]

    def _round(self) -> None:
        """One turn for each fiber that can go on; UserError if none can."""
        moved = False
        for fiber in list(self._fibers):
            if fiber.done or (fiber.ready is not None and not fiber.ready()):
                continue
            moved = True
            self._step(fiber)
            if fiber.error is not None:
                raise fiber.error
        if not moved:
            raise UserError(self._deadlock())
        self._fibers = [fiber for fiber in self._fibers if not fiber.done]

    def _deadlock(self) -> str:
        waiting = [fiber for fiber in self._fibers if not fiber.done]
        lines = [f"  {fiber.process}: {fiber.waits}" for fiber in waiting[:_SHOWN]]
        if len(waiting) > _SHOWN:
            lines.append(f"  and {len(waiting) - _SHOWN} more")
        running = {fiber.process.number for fiber in waiting}
        ended = [str(p) for p in self.processes if p.number not in running]
        if ended:
            more = ", ..." if len(ended) > _SHOWN else ""
            lines.append(f"  ended: {', '.join(ended[:_SHOWN])}{more}")
        return "\n".join(
            [
                "the processes wait for each other for ever; give every member of a group the "
                "same communication in the same order:",
                *lines,
            ]
        )

    def _spawn(self, process: Process, task: Callable[[], Any]) -> _Fiber:
        fiber = _Fiber(process, task)
        self._fibers.append(fiber)
        threading.Thread(target=self._main, args=(fiber,), daemon=True).start()
        return fiber

    def _main(self, fiber: _Fiber) -> None:
        fiber.turn.acquire()
        try:
            if not self._closing:
                fiber.result = fiber.task()
        except _Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the thread that runs the grid
            fiber.error = error
        finally:
            fiber.done = True
            self._back.release()

    def _step(self, fiber: _Fiber) -> None:
        before, self._current = self._current, fiber
        fiber.ready = None
        fiber.turn.release()
        self._back.acquire()
        fiber.stepped = True
        self._current = before

    def _close(self) -> None:
        self._closing = True
        for fiber in self._fibers:
            if not fiber.done:
                self._step(fiber)

    def wait(self, ready: Callable[[], bool], o: Op, why: str) -> None:
        """Return once `ready()`; UserError where that cannot come to pass."""
        if ready():
            return
        fiber = self._current
        if fiber is None:
            raise UserError(f"{o.place}{o.name}: {why}; nobody else runs")
        fiber.ready, fiber.waits = ready, f"{o.place}{o.name} {why}"
        self._back.release()
        fiber.turn.acquire()
        if self._closing:
            raise _Stopped

    def start(self, process: Process, task: Callable[[], Any]) -> Future:
        """Run `task` beside the process; its first part, up to where it waits, at once."""
        if self._current is None:
            return Future(task())
        fiber = self._spawn(process, task)
        current = self._current
        current.ready, current.waits = (lambda: fiber.stepped), "starts an asynchronous operation"
        self._back.release()
        current.turn.acquire()
        if self._closing:
            raise _Stopped
        return Future(fiber=fiber)


def grid_of(module: Module) -> tuple[int, int]:
    """(num_replicas, num_partitions) that the module says it is for, 1 where it says nothing."""
    names = ("mhlo.num_replicas", "mhlo.num_partitions")
    replicas, partitions = (module.attributes.get(name, 1) for name in names)
    return replicas, partitions


def refuse_several(module: Module) -> None:
    """UserError for a program of several processes, which one process cannot be.

    A manual computation brings its processes with it, whatever the module says.
    """
    if grid_of(module) == (1, 1):
        return
    seen: set[str] = set()
    pending = [module.body]
    while pending:
        for op in pending.pop().ops:
            if op.name == "sdy.manual_computation":
                continue
            if op.definition.communicates:
                sizes = "num_replicas = {}, num_partitions = {}".format(*grid_of(module))
                raise UserError(
                    f"{op.place}{op.name}: the program is for {sizes}; run it with "
                    "girih.interpret_parallel, with the inputs of each process"
                )
            pending += op.regions
            callee = op.attributes.get("callee") or op.attributes.get("decomposition")
            if isinstance(callee, str) and callee in module.functions and callee not in seen:
                seen.add(callee)
                pending.append(module.functions[callee].body)


class Process:
    """One process of a grid, as the rooms of communicating operations see it."""

    def __init__(self, grid: Grid, number: int) -> None:
        self.grid, self.number = grid, number
        self.infeed: deque[Item] = deque()
        self.outfeed: list[Item] = []
        self.received: Counter[str] = Counter()  # operation -> bytes from other processes
        self._rounds: dict[Any, int] = {}

    @property
    def replica(self) -> int:
        return self.number // self.grid.partitions

    @property
    def partition(self) -> int:
        return self.number % self.grid.partitions

    def __str__(self) -> str:
        return f"process ({self.replica}, {self.partition})"

    # Groups

    def group(
        self, o: Op, strategy: str, groups: Groups, covers: bool = True
    ) -> tuple[int, ...] | None:
        """The group of processes that this one is in; None if it is in none, which is an error
        where the groups have to cover all. No groups: all processes are one."""
        grid = self.grid
        count = named_by(strategy, grid.replicas, grid.partitions)
        if not groups:
            groups = (tuple(range(count)),)
        self._check_ids(o, strategy, [i for group in groups for i in group], count)
        for members in process_groups(strategy, groups, grid.replicas, grid.partitions):
            if self.number in members:
                return members
        if covers:
            raise UserError(f"{o.place}{o.name}: {self} is in none of its replica_groups")
        return None

    def _check_ids(self, o: Op, strategy: str, ids: Sequence[int], count: int) -> None:
        highest = max(ids, default=0)
        if highest >= count:
            grid = self.grid
            what = "replica" if strategy.startswith("cross_replica") else "partition"
            what = "process" if strategy == "flattened_ids" else what
            raise UserError(
                f"{o.place}{o.name}: its groups name {what} {highest}, but the program runs on "
                f"num_replicas = {grid.replicas} times num_partitions = {grid.partitions}; "
                "girih.interpret_parallel runs it on more"
            )

    def pairs(self, o: Op, strategy: str, pairs: Groups) -> Groups:
        """The (source, target) processes that source_target_pairs means."""
        grid = self.grid
        count = named_by(strategy, grid.replicas, grid.partitions)
        self._check_ids(o, strategy, [i for pair in pairs for i in pair], count)
        return process_groups(strategy, pairs, grid.replicas, grid.partitions)

    def group_of(self, o: Op, wanted: int, found: int) -> None:
        """UserError where the group has another number of members."""
        if wanted != found:
            raise UserError(f"{o.place}{o.name}: its groups need {wanted} members, have {found}")

    def divisible(self, o: Op, size: int, parts: int) -> None:
        """UserError where a dimension cannot be split among the members."""
        if size % parts:
            raise UserError(
                f"{o.place}{o.name}: a dimension of {size} cannot be split into {parts} parts"
            )

    def member(self, o: Op, number: int, count: int) -> None:
        """UserError where a root is no member of its group."""
        if not 0 <= number < count:
            raise UserError(
                f"{o.place}{o.name}: root {number} is no place in a group of {count} processes"
            )

    # Exchange

    def count(self, name: str, size: int) -> None:
        """`size` more bytes have come from other processes to an operation of that name."""
        self.received[name] += size

    def _round(self, key: Any) -> tuple[Any, int]:
        """The key with how often this process has used it."""
        number = self._rounds.get(key, 0)
        self._rounds[key] = number + 1
        return key, number

    def exchange(self, o: Op, group: tuple[int, ...], arrays: Item) -> Parts:
        """The operands of all members, in the group's order, once all have come."""
        key = self._round((o.name, o.attributes.get("channel_id", 0), group))
        meetings = self.grid.meetings
        meeting = meetings.setdefault(key, _Meeting())
        meeting.parts[self.number] = arrays
        self.grid.wait(
            lambda: len(meeting.parts) == len(group), o, f"waits for the processes {list(group)}"
        )
        meeting.left += 1
        if meeting.left == len(group):
            del meetings[key]
        if meeting.whole is None:
            parts = meeting.whole = Parts([meeting.parts[number] for number in group])
            shapes = [[(x.shape, x.dtype) for x in part if x is not None] for part in parts]
            if o.name not in _OWN_SHAPES and any(shape != shapes[0] for shape in shapes):
                reason = "its operands differ in shape among the processes"
                raise UserError(f"{o.place}{o.name}: {reason}")
        return meeting.whole

    def permute(self, o: Op, pairs: Groups, arrays: Item) -> Item | None:
        """Give the operands to the paired target, get those of the paired source; None without."""
        key, channels = (o.name, o.attributes.get("channel_id", 0), pairs), self.grid.channels
        for source, target in pairs:
            if source == self.number:
                channels.setdefault((key, target), deque()).append(arrays)
        for source, target in pairs:
            if target == self.number:
                return self._take((key, target), o, f"waits for process {source}")
        return None

    def transfer(
        self, o: Op, outgoing: Mapping[int, Sequence[Any]], incoming: Iterable[int]
    ) -> dict[int, Item]:
        """Give outgoing[p] to each process p, get what each process of `incoming` gives."""
        key = o.name, o.attributes.get("channel_id", 0)
        for target, arrays in outgoing.items():
            self.grid.channels.setdefault((key, self.number, target), deque()).append(tuple(arrays))
        return {
            source: self._take((key, source, self.number), o, f"waits for process {source}")
            for source in incoming
        }

    def _take(self, key: Any, o: Op, why: str) -> Item:
        queue = self.grid.channels.setdefault(key, deque())
        self.grid.wait(lambda: bool(queue), o, why)
        item = queue.popleft()
        if not queue:
            del self.grid.channels[key]
        return item

    # Points and streams

    def send(self, o: Op, strategy: str, arrays: Item) -> None:
        """Into the channel; with pairs, for the process that this one is paired with."""
        channels = self.grid.channels
        if not o.source_target_pairs:
            channels.setdefault(o.channel_id, deque()).append(arrays)
            return
        for source, target in self.pairs(o, strategy, o.source_target_pairs):
            if source == self.number:
                channels.setdefault(("pair", o.channel_id, source, target), deque()).append(arrays)

    def receive(self, o: Op, strategy: str) -> Item | None:
        """From the channel; with pairs, None where no process is paired with this one."""
        if not o.source_target_pairs:
            return self._take(o.channel_id, o, f"waits for a value in channel {o.channel_id}")
        for source, target in self.pairs(o, strategy, o.source_target_pairs):
            if target == self.number:
                key = ("pair", o.channel_id, source, target)
                item = self._take(key, o, f"waits for process {source}")
                if source != target:
                    self.count(o.name, sum(np.asarray(array).nbytes for array in item))
                return item
        return None

    def next_infeed(self, o: Op) -> Item:
        """What the host feeds next; UserError where nothing is left."""
        if not self.infeed:
            raise UserError(
                f"{o.place}infeed: the infeed of {self} is empty; give it more items with "
                "interpret_parallel(..., infeed=...)"
            )
        return self.infeed.popleft()

    # Strands

    def start(self, task: Callable[[], Any]) -> Future:
        return self.grid.start(self, task)

    def finish(self, o: Op, future: Future) -> Any:
        """The results of an asynchronous operation, once it is done."""
        self.grid.wait(lambda: future.done, o, "waits for its asynchronous operation")
        return future.results


_OWN_SHAPES = ("sdy.manual_computation",)
