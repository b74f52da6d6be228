"""The step table of a plan on the CPU: a row for each step, and the slots that rows point to.

Rows are as backends/cpu/executor.py documents them. What only a call knows (addresses of inputs and
outputs, the arena, sizes) is left open here, with where it belongs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...specs.generated import plan_pb2
from .cpu_ranges import RangeRecords
from .libraries import address_of
from .limits import malformed

STEP_WORDS = 8
TILES, PARALLEL = 4, 5  # which of them
_END, _RUN, _BRANCH, _JUMP, _SWITCH = range(5)


class StepRows:
    """Rows and slots of a plan's steps; UserError where the plan names what it does not hold.

    read: sizes that kernels read, where a call decides them. tables: slots that point to them, with
    the number in `read`. tiles: rows whose tiles are the value of a formula, with its number.
    in_arena: slots of the arena, with their buffers. in_worker: those of the only worker's memory.
    patches: (slot, number among a call's
    pointers, offset). targets: of all switches; `switches` are their rows.
    """

    def __init__(
        self, plan: plan_pb2.Plan, homes: Sequence[tuple[int, int]], image: int, threads: int
    ) -> None:
        """homes: place and address, or number among a call's pointers, of each buffer. image: where
        the code begins. threads: the most workers of a call."""
        self._plan, self._homes, self._image, self._threads = plan, homes, image, threads
        self.rows: list[list[int]] = []
        self.slots: list[int] = []
        self.read: list[int] = []
        self.tables: list[tuple[int, int]] = []
        self.tiles: dict[int, int] = {}
        self.in_arena: dict[int, int] = {}
        self.in_worker: list[int] = []
        self.patches: list[tuple[int, int, int]] = []
        self.targets: list[int] = []
        self.switches: list[int] = []
        self.ranges = RangeRecords(plan, threads)
        jumps: list[int] = []
        for step in plan.steps:
            jumps += self._add(step)
        if any(target > len(self.rows) for target in (*jumps, *self.targets)):
            raise malformed("a jump leads out of its steps")
        for target in (*jumps, *self.targets):
            self.ranges.check_target(target)
        self.rows.append([_END] + [0] * (STEP_WORDS - 1))

    def _add(self, step: plan_pb2.Step) -> list[int]:
        """The row of a step; where it may lead to, but for a switch."""
        action = step.WhichOneof("action")
        if action == "run":
            self.rows.append(self._run(step.run))
        elif action == "branch_if_false":
            branch = step.branch_if_false
            where = self._slot(branch.condition)
            how = self._how(branch, branch.condition)
            self.rows.append([_BRANCH, branch.wait, where, branch.target, 0, 0, *how])
            return [branch.target]
        elif action == "jump":
            self.rows.append([_JUMP, 0, 0, step.jump.target, 0, 0, 0, 0])
            return [step.jump.target]
        elif action == "switch":
            switch, first = step.switch, len(self.targets)
            self.switches.append(len(self.rows))
            where = self._slot(switch.index)
            how = self._how(switch, switch.index)
            count = len(switch.targets)
            self.rows.append([_SWITCH, switch.wait, where, first, count, 0, *how])
            self.targets.extend(switch.targets)
        elif action in ("exchange", "collective"):  # native code stops; a Walker goes on
            if not self._plan.processes:
                raise malformed("one process has nobody to exchange with")
            moved = getattr(step, action)
            operand, result = self._slot(moved.operand), self._slot(moved.result)
            self.rows.append([_END, 0, operand, result, 0, 0, 0, 0])
        else:
            raise malformed(f"step {len(self.rows)} has no action")
        return []

    def _run(self, run: plan_pb2.Run) -> list[int]:
        if run.sizes:
            self.tables.append((len(self.slots), len(self.read)))
            self.read.extend(run.sizes)
            self.slots.append(0)
        if run.tiles_formula:
            self.tiles[len(self.rows)] = run.tiles_formula - 1
        first = len(self.slots)
        for argument in run.arguments:
            self._slot(argument)
        kernel = self._plan.kernels[run.kernel]
        self.slots.extend(map(address_of, kernel.functions))
        fixed = 0 if run.tiles_formula else run.tiles
        number, given = len(self.rows), len(self.slots) - first
        own = [n for n, one in enumerate(run.arguments) if self._is_own(one)]
        whole = run.tiles <= 1 and not run.tiles_formula
        counted = run.each or run.signal
        if (own and (run.sizes or not counted)) or (run.each and not whole):
            raise malformed(f"step {number} is none for each worker")
        if run.waits and not run.signal:
            raise malformed(f"step {number} waits for counters outside of task ranges")
        record = self._record(number, run.waits, own, given)
        size = -1 if run.each else self.ranges.sizes.get(number, 0)
        entry = self._image + kernel.entry
        return [_RUN, run.wait, entry, first, fixed, run.parallel, size, record]

    def _how(
        self, step: plan_pb2.BranchIfFalse | plan_pb2.Switch, read: plan_pb2.Argument
    ) -> tuple[int, int]:
        """The last words of a branch's row."""
        if step.each != self._is_own(read):
            raise malformed(f"step {len(self.rows)} decides in another's memory")
        alone = step.each and self._threads > 1
        return -int(alone), self._record(len(self.rows), step.waits, (), 0)

    def _record(
        self, number: int, waits: Iterable[plan_pb2.Wait], own: Sequence[int], arguments: int
    ) -> int:
        """The offset of a step's record. One worker needs none: its own memory is at one place."""
        offset = self.ranges.add(number, waits, own, arguments)
        return offset if self._threads > 1 else 0

    def _is_own(self, argument: plan_pb2.Argument) -> bool:
        return self._homes[argument.buffer][0] == plan_pb2.WORKER

    def _slot(self, argument: plan_pb2.Argument) -> int:
        """The number of a new slot, which points to an argument."""
        place, value = self._homes[argument.buffer]
        if argument.offset > self._plan.buffers[argument.buffer].bytes:
            raise malformed("an argument lies outside its buffer")
        index = len(self.slots)
        self.slots.append(value + argument.offset)
        if place == plan_pb2.ARENA:
            self.in_arena[index] = argument.buffer
        elif place == plan_pb2.WORKER and self._threads == 1:
            self.in_worker.append(index)
        elif place in (plan_pb2.INPUT, plan_pb2.OUTPUT):
            self.patches.append((index, value, argument.offset))
        return index
