"""The task ranges of a plan on the CPU: records of steps, and what a context needs for them.

Records are as backends/cpu/ranges.py documents them.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...specs.generated import plan_pb2
from .limits import malformed

LINE = 64
MOST_ARGUMENTS = 63  # of a step that has some in its worker's own memory


def lines(size: int) -> int:
    """The bytes of the whole lines that hold `size` bytes."""
    return -(-size // LINE) * LINE


def own_buffers(plan: plan_pb2.Plan) -> int:
    """Where buffers begin in each worker's own memory: behind its turns of all ranges."""
    return lines(8 * len(plan.ranges))


class RangeRecords:
    """Records of a plan's steps; UserError where its waits cannot be met.

    words: all records, one behind the other; offset 0 is none. sizes: by first step, how many steps
    a range has. counter_bytes: of all counters. turn_bytes: of the table of turns. worker_bytes: of
    each worker's own memory.
    """

    def __init__(self, plan: plan_pb2.Plan, threads: int) -> None:
        self.words = [0]
        self.sizes = {one.first: one.steps for one in plan.ranges}
        self.count = len(plan.ranges)
        self.turn_bytes = lines(8 * (1 + 2 * self.count))
        self.worker_bytes = own_buffers(plan) + lines(plan.worker_bytes)
        self._plan, self._threads = plan, threads
        self._range_of: dict[int, int] = {}
        self._offsets: dict[int, int] = {}  # of counters, by number
        self._steps: dict[int, int] = {}  # of counters
        self.counter_bytes = 0
        end = 0
        for number, one in enumerate(plan.ranges):
            if one.first < end or not one.steps or one.first + one.steps > len(plan.steps):
                raise malformed(f"task range {number} does not lie behind the others")
            end = one.first + one.steps
            for step in range(one.first, end):
                self._add_counter(step, number)

    def _add_counter(self, number: int, range_number: int) -> None:
        step = self._plan.steps[number]
        run = step.run
        if step.WhichOneof("action") != "run" or run.each or not run.signal:
            raise malformed(f"step {number} has no counter in its task range")
        if run.signal - 1 in self._steps:
            raise malformed(f"step {number} has another step's counter")
        if run.wait and number not in self.sizes:
            raise malformed(f"step {number} waits for all within a task range")
        self._range_of[number], self._steps[run.signal - 1] = range_number, number
        self._offsets[run.signal - 1] = self.counter_bytes
        parts = self._threads if run.parallel else 1
        self.counter_bytes += lines(8 * (2 + parts))

    def check_target(self, target: int) -> None:
        """UserError where a jump leads into the middle of a range."""
        if target in self._range_of and target not in self.sizes:
            raise malformed(f"a jump leads to step {target}, within a task range")

    def add(
        self, number: int, waits: Iterable[plan_pb2.Wait], own: Iterable[int], arguments: int
    ) -> int:
        """The offset of the record of step `number`, which waits; `own` are those of its
        `arguments` that lie in its worker's memory. 0 where none is needed."""
        mask = sum(1 << argument for argument in own)
        waits = [*waits]
        counter = self._plan.steps[number].run.signal
        if not (mask or waits or counter):
            return 0
        if mask and arguments > MOST_ARGUMENTS:
            raise malformed(f"step {number} has {arguments} arguments, some of its worker's own")
        offset = 8 * len(self.words)
        home = self._range_of.get(number, 0)
        head = [self._offsets[counter - 1] if counter else 0, home, arguments, mask, len(waits)]
        self.words += head
        for wait in waits:
            self.words += self._wait(number, wait)
        return offset

    def _wait(self, number: int, wait: plan_pb2.Wait) -> list[int]:
        step = self._steps.get(wait.counter)
        if step is None or wait.threshold > 1:
            raise malformed(
                f"step {number} waits for {wait.threshold} runs that counter {wait.counter} counts"
            )
        same = self._range_of[step] == self._range_of.get(number)
        if same and wait.threshold and step >= number:
            raise malformed(f"step {number} waits for step {step}, which comes after it")
        return [self._offsets[wait.counter], 2 * self._range_of[step] + wait.threshold]

    def memory(self) -> tuple[int, int, int]:
        """Where in a context's memory the turns and the workers' own begin, and its bytes."""
        workers = self.counter_bytes + self.turn_bytes
        return self.counter_bytes, workers, workers + self._threads * self.worker_bytes

    def __bool__(self) -> bool:
        return bool(self.count or self._plan.worker_bytes)
