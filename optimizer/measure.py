"""What an order of operations costs in memory: counted on its schedule, as the plan will have it.

Every size is rounded to the arena's alignment. Arguments and weights have memory of their own in
any order, and so has a result that takes over a donated argument's; they are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..hlo.deciding import largest
from ..hlo.graph import Module, Op, Region
from ..hlo.symbols import Dim
from .memory import rounded
from .output_reuse import Reused, lives
from .overwriting import Hinders, hinders_of
from .schedule import (
    Buffer,
    RunStep,
    Schedule,
    live_ranges,
    schedule,
    schedule_alone,
    schedule_body,
)

Scratch = Callable[[Op], int]  # bytes that a kernel needs in the arena while it runs


@dataclass(frozen=True)
class Measure:
    """The memory of one order.

    arena_bytes: the most that lives in the arena at one step, scratch included, reused values not.
    output_bytes: results that take over no argument's memory; the caller holds them all the time.
    live_bytes: the most of both that is in use at one step, outputs from their first write on:
        what the order would need if everything that fits into an idle output could lie there.
    peak_step: the first step at which `arena_bytes` are live.
    at_peak: the arena buffers that live then, the largest first.
    scratch_bytes: what the kernel of that step needs beside them.
    live: bytes of the arena that live at each step.
    """

    schedule: Schedule
    ranges: Mapping[Buffer, tuple[int, int]]
    reused: Mapping[Buffer, Reused]
    arena_bytes: int
    output_bytes: int
    live_bytes: int
    peak_step: int
    at_peak: tuple[Buffer, ...]
    scratch_bytes: int
    live: tuple[int, ...]

    @property
    def total_bytes(self) -> int:
        """Arena and outputs; what orders of one program are compared by."""
        return self.arena_bytes + self.output_bytes


def measure(
    module: Module,
    in_tiles: bool = False,
    scratch: Scratch | None = None,
    hinders: Hinders | None = None,
) -> Measure:
    """The memory of a fused module's entry in the order of its operations.

    in_tiles, hinders: see `schedule`.
    """
    return measure_schedule(schedule(module, in_tiles, hinders), scratch)


def measure_alone(
    op: Op, scratch: Scratch | None = None, hinders: Hinders | None = None
) -> Measure:
    """The memory of one operation of control flow, its results included, where all that it reads
    lies elsewhere and stays."""
    return measure_schedule(schedule_alone(op, hinders or hinders_of(False)), scratch)


def measure_body(
    region: Region, carries: bool, scratch: Scratch | None = None, hinders: Hinders | None = None
) -> Measure:
    """The memory of one turn of a region of control flow, where all that it takes lies elsewhere;
    `carries`: its results go there, too, as in the body of a loop."""
    return measure_schedule(schedule_body(region, carries, hinders or hinders_of(False)), scratch)


def measure_schedule(steps: Schedule, scratch: Scratch | None = None) -> Measure:
    """The memory that steps need: where calls decide sizes, the most."""
    ranges, reused = lives(steps)
    count = len(steps.steps)
    needs = [0] * count
    if scratch is not None:
        for number, step in enumerate(steps.steps):
            if isinstance(step, RunStep):
                needs[number] = most_of(scratch(step.op))
    arena, every = [0] * (count + 1), [0] * (count + 1)
    for buffer, (first, last) in ranges.items():
        for changes in (every,) if buffer in reused else (arena, every):
            changes[first] += most_of(buffer.bytes)
            changes[last + 1] -= most_of(buffer.bytes)
    own = [buffer for buffer in steps.outputs if buffer.replaces is None]
    written = live_ranges(steps, "output")
    for buffer in own:
        every[written[buffer][0]] += most_of(buffer.bytes)
    live, highest = _sums(arena, needs), _sums(every, needs)
    peak = max(live, default=0)
    step = live.index(peak) if live else 0
    there = [b for b, (first, last) in ranges.items() if first <= step <= last and b not in reused]
    return Measure(
        steps,
        ranges,
        reused,
        peak,
        sum(most_of(buffer.bytes) for buffer in own),
        max(highest, default=0),
        step,
        tuple(sorted(there, key=lambda buffer: -largest(buffer.bytes))),
        needs[step] if needs else 0,
        tuple(live),
    )


def size_of(count: int) -> int:
    """What `count` bytes take in the arena."""
    return rounded(count) if count else 0


def most_of(count: Dim) -> int:
    """The most that `count` bytes can take in the arena, where a call decides them."""
    return size_of(largest(count))


def _sums(changes: list[int], needs: list[int]) -> list[int]:
    """Bytes at each step of what is there from step to step and of what a step needs alone."""
    sums, live = [], 0
    for change, need in zip(changes, needs, strict=False):
        live += change
        sums.append(live + need)
    return sums
