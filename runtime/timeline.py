"""Where a program's memory goes, step by step: what lives at the peak, why, and what would help.

All of it is read from a plan, so no compiler is needed: `girih explain memory` shows it, and the
error where a GPU has too little memory is made of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

from ..specs.generated import plan_pb2
from ..workers import step_time
from .profile import origin_text

_LISTED = 6  # buffers that an error names


class TimelineRow(NamedTuple):
    """A buffer that lives at the peak.

    bytes: that it takes in the arena. made: the step that wrote it last before the peak. line,
    kernel: of that step. read: the last step that needs it; reader: that kernel and its line.
    steps: from the peak to there. why: what keeps it alive, in words. seconds: predicted for
    computing it again. spared: bytes by which the peak falls if its last use is gone.
    """

    buffer: int
    bytes: int
    type: str
    made: int
    line: str
    kernel: str
    read: int
    reader: str
    steps: int
    why: str
    seconds: float
    spared: int


class BufferUse(NamedTuple):
    """A step that touches a buffer, and whether it writes it."""

    step: int
    writes: bool


class Timeline:
    """The arena of a plan over its steps. live: bytes at each step, as buffers lie."""

    def __init__(self, plan: plan_pb2.Plan) -> None:
        self.plan = plan
        count = max(1, len(plan.steps))
        changes = [0] * (count + 1)
        for buffer in plan.buffers:
            if buffer.place == plan_pb2.ARENA and buffer.bytes:
                changes[min(buffer.first_step, count)] += self.padded(buffer)
                changes[min(buffer.last_step + 1, count)] -= self.padded(buffer)
        self.live: list[int] = []
        now = 0
        for change in changes[:count]:
            now += change
            self.live.append(now)

    @cached_property
    def peak(self) -> int:
        """The first step with the most bytes."""
        return self.live.index(max(self.live))

    @cached_property
    def uses(self) -> dict[int, list[BufferUse]]:
        """The steps that touch each buffer by its number, in order; memory inside of an output is
        the output's."""
        found: dict[int, list[BufferUse]] = {}

        def touch(argument: plan_pb2.Argument, step: int, writes: bool) -> None:
            found.setdefault(argument.buffer, []).append(BufferUse(step, writes))

        for number, step in enumerate(self.plan.steps):
            action = step.WhichOneof("action")
            if action == "run":
                for slot, argument in enumerate(step.run.arguments):
                    told = step.run.operands or len(step.run.arguments) - 1
                    touch(argument, number, slot >= told)
                if step.run.HasField("scratch"):
                    touch(step.run.scratch, number, True)
            elif action == "branch_if_false":
                touch(step.branch_if_false.condition, number, False)
            elif action == "switch":
                touch(step.switch.index, number, False)
            elif action in ("exchange", "collective"):
                moved = getattr(step, action)
                touch(moved.operand, number, False)
                touch(moved.result, number, True)
                if action == "exchange" and moved.HasField("scratch"):
                    touch(moved.scratch, number, True)
        return found

    @cached_property
    def loops(self) -> list[tuple[int, int]]:
        """First and last step of each loop."""
        jumps = [
            (step.jump.target, number)
            for number, step in enumerate(self.plan.steps)
            if step.WhichOneof("action") == "jump"
        ]
        return [(begin, end) for begin, end in jumps if begin <= end]

    def padded(self, buffer: plan_pb2.Buffer) -> int:
        """The bytes that a buffer takes in the arena."""
        alignment = self.plan.arena_alignment or 1
        return -(-buffer.bytes // alignment) * alignment

    def rows(self) -> list[TimelineRow]:
        """What lives at the peak: what is large and lives on for long comes first."""
        found = [
            self.row(number)
            for number, buffer in enumerate(self.plan.buffers)
            if buffer.place == plan_pb2.ARENA
            and buffer.bytes
            and buffer.first_step <= self.peak <= buffer.last_step
        ]
        return sorted(found, key=lambda row: (-row.bytes * (1 + row.steps), row.buffer))

    def row(self, number: int) -> TimelineRow:
        buffer, uses, peak = self.plan.buffers[number], self.uses.get(number, []), self.peak
        size = self.padded(buffer)
        written = [use.step for use in uses if use.writes and use.step <= peak]
        made = written[-1] if written else buffer.first_step
        later = self.later(number)
        read = later[-1] if later else buffer.last_step
        if any(use.step == peak for use in uses):
            why = "in use at the peak"
            if later:
                why += f", then by {self.name(read)}, {read - peak} steps later"
        elif later:
            others = f", the last of {len(later)} uses" if len(later) > 1 else ""
            why = f"read by {self.name(read)}, {read - peak} steps later{others}"
        else:
            why = f"read in the next turn of a loop, up to step {buffer.last_step}"
        return TimelineRow(
            number, size, self.type(buffer), made, self.line(made), self.kernel(made), read,
            self.name(read), max(read, buffer.last_step) - peak, why, self.seconds(made),
            self.spared(number),
        )  # fmt: skip

    def later(self, number: int) -> list[int]:
        """The steps after the peak that touch the value which a buffer holds at it. What is written
        anew is another value in the same memory."""
        found: dict[int, None] = {}
        for use in self.uses.get(number, []):
            if use.step > self.peak:
                found[use.step] = None
                if use.writes:
                    break
        return list(found)

    def spared(self, number: int) -> int:
        """Bytes by which the peak falls if the only use after it goes, and with it a value that
        nothing else reads; 0 where other uses, or the next turn of a loop, keep the buffer."""
        buffer, uses = self.plan.buffers[number], self.uses.get(number, [])
        before, later = [use for use in uses if use.step <= self.peak], self.later(number)
        if len(later) != 1 or not before or BufferUse(later[0], False) not in uses:
            return 0
        taken = BufferUse(later[0], True) in uses  # the reader's result lies there from then on
        for begin, end in self.loops:
            stays = buffer.first_step < begin <= later[0] <= end  # from turn to turn
            if stays and (taken or before[-1].step >= begin):
                return 0  # the next turn needs it
        stop = later[0] - 1 if taken else buffer.last_step
        alone = len(before) == 1 and before[0].writes
        start = before[0].step if alone else before[-1].step + 1
        size = self.padded(buffer)
        rest = max(
            live - (size if start <= step <= stop else 0) for step, live in enumerate(self.live)
        )
        return self.live[self.peak] - rest

    def type(self, buffer: plan_pb2.Buffer) -> str:
        return f"{buffer.element_type}[{','.join(map(str, buffer.dims))}]"

    def run(self, step: int) -> Any:
        """The run of a step; None for a jump or a branch."""
        if step < len(self.plan.steps) and self.plan.steps[step].WhichOneof("action") == "run":
            return self.plan.steps[step].run
        return None

    def kernel(self, step: int) -> str:
        run = self.run(step)
        return "" if run is None else self.plan.kernels[run.kernel].name

    def line(self, step: int) -> str:
        """The user's line that a step computes for."""
        run = self.run(step)
        if run is None:
            return ""
        if run.HasField("origin"):
            return origin_text(plan_pb2.Kernel(origins=[run.origin]))
        return origin_text(self.plan.kernels[run.kernel])

    def name(self, step: int) -> str:
        """A step in words: its kernel and its line."""
        kernel, line = self.kernel(step), self.line(step)
        return f"{kernel or f'step {step}'}{line and f' ({line})'}"

    def seconds(self, step: int) -> float:
        """What running a step once more is predicted to take."""
        run = self.run(step)
        if run is None:
            return 0.0
        return step_time(run.flops, run.bytes) / 1e6

    def remedies(self) -> Iterator[tuple[int, str]]:
        """What would lower the peak, or what is needed beside it: bytes, and what to do."""
        for row in sorted(self.rows(), key=lambda row: -row.spared):
            if row.spared:
                made = f"{row.kernel}{row.line and f', {row.line}'}"
                words = (
                    f"do without the late use of {row.type} (made by {made}) in {row.reader}; or "
                    f"compute it again there, for {1e3 * row.seconds:.3g} ms"
                )
                yield row.spared, words
        plan = self.plan
        replaced = {b.replaces for b in plan.buffers if b.HasField("replaces")}
        free = [plan.buffers[number] for number in plan.outputs]
        free = [b for b in free if b.place == plan_pb2.OUTPUT and not b.HasField("replaces")]
        for index, number in enumerate(plan.inputs):
            given = plan.buffers[number]
            taken = [b for b in free if self.type(b) == self.type(given) and b.bytes]
            if index not in replaced and taken:
                free.remove(taken[0])
                yield (
                    given.bytes,
                    (
                        f"donate argument {index}, {self.type(given)}: result {taken[0].index} can "
                        "have its memory"
                    ),
                )


def totals(plan: plan_pb2.Plan, workers: int = 1) -> dict[str, int]:
    """The bytes of one call at a time by what they are for, where what can be donated is."""
    memory = plan.memory
    replaced = sum(buffer.bytes for buffer in plan.buffers if buffer.HasField("replaces"))
    return {
        "arguments": memory.argument_bytes,
        "results": memory.output_bytes - replaced,
        "weights": memory.constant_bytes,
        "temporaries": memory.arena_bytes,
        "scratch": memory.scratch_bytes * workers,
    }


def memory_need(plan: plan_pb2.Plan, parts: dict[str, int]) -> str:
    """The bytes of each part, and what lives at the step at which temporaries are largest."""
    total = sum(parts.values())
    listed = ", ".join(f"{name} {_megabytes(size)}" for name, size in parts.items() if size)
    need = f"The program needs {_megabytes(total)} for one call at a time: {listed or 'nothing'}."
    line = Timeline(plan)
    live = sorted(line.rows(), key=lambda row: -row.bytes)
    if not live:
        return need
    shown = "; ".join(
        f"{row.type} {_megabytes(row.bytes)} (steps {plan.buffers[row.buffer].first_step} to "
        f"{plan.buffers[row.buffer].last_step})"
        for row in live[:_LISTED]
    )
    more = f"; {len(live) - _LISTED} more" if len(live) > _LISTED else ""
    size = _megabytes(line.live[line.peak])
    at = f"step {line.peak}"
    if line.kernel(line.peak):
        at += f", kernel {line.name(line.peak)}"
    return f"{need} Temporaries are largest at {at}: {size} in {shown}{more}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
