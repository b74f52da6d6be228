"""Steps on a simulated device, in any order that their edges allow.

Memory that has no defined contents is overwritten: a step's scratch before it, and what lies in
the arena once all that may read it are done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...hlo.errors import CompilerBug, UserError
from .driver import Counted, Counters, LaunchArray, Simulator
from .edges import latest_first, step_edges
from .gpu_steps import Choose, KernelStep, Where, chosen
from .launches import ARENA, Step
from .persistent_launch import Meeting
from .regions import Again, BranchRegion, Region, StepRange


class Mark(NamedTuple):
    """A step that has run: its number, the events around it, and what was counted."""

    at: int
    begin: Any
    end: Any
    counted: Counted = Counted({}, {})


class SimulatedSteps:
    """Those of one call, on memory at `bases`. launches: of a step, prepared. in_order: as they
    stand. room: bytes for an array of so many."""

    def __init__(
        self,
        driver: Simulator,
        stream: Any,
        steps: Sequence[Step],
        launches: Callable[[int], Sequence[Any]],
        bases: list[int],
        in_order: bool,
        room: Callable[[int], int],
    ) -> None:
        self.driver, self.stream, self.steps, self.launches = driver, stream, steps, launches
        self.bases, self.room = bases, room
        self.choose = min if in_order else driver.choose
        self.goes_on: dict[int, bool] = {}  # by loop

    def region(self, region: Region) -> None:
        """Runs it as a graph with conditional nodes does."""
        for item in region:
            if isinstance(item, StepRange):
                self.stretch(item.begin, item.end, False)
            elif isinstance(item, Again):
                self.goes_on[item.loop] = (
                    item.where is not None and self.value(item.where, 1, 2) > 0
                )
            elif isinstance(item, BranchRegion):
                self.region(item.arms[self.value(item.where, item.size, len(item.arms))])
            else:
                while self.goes_on[item.number]:
                    self.region(item.body)

    def value(self, where: Where, size: int, count: int) -> int:
        """What a branch reads there."""
        return chosen(self.driver.span(self.address(where), size), count)

    def confirm(self, step: Choose, value: int) -> None:
        """CompilerBug where a branch would not read what is known of it."""
        if self.value(step.where, step.size, len(step.targets)) != value:
            raise CompilerBug("a loop makes not as many turns as its plan says")

    def address(self, where: Where) -> int:
        return self.bases[where.base] + where.offset

    def stretch(self, begin: int, end: int, count: bool) -> list[Mark]:
        """Runs steps without a branch between them; count: what they do is counted."""
        steps = [step for step in self.steps[begin:end] if isinstance(step, KernelStep)]
        marks: list[Mark] = []
        done: set[int] = set()
        complete = 0  # steps before this one all are
        for place in latest_first(step_edges(steps, begin), self.choose):
            step = steps[place]
            for where, size in _scratches(step):
                self.driver.fill(self.address(where), size, self.stream)
            at = self.driver.record(self.stream, timed=True)
            counted = self.simulate(step, self.launches(begin + place), count)
            then = self.driver.record(self.stream, timed=True)
            marks.append(Mark(begin + place, at, then, counted))
            done.add(place)
            while complete in done:
                self.forget(steps[complete], [steps[n] for n in done if n > complete])
                complete += 1
        return marks

    def persistent(self, prepared: Any, meeting: Meeting) -> None:
        """Runs all steps as one launch, which may touch what any of them may."""
        steps = [step for step in self.steps if isinstance(step, KernelStep)]
        windows = [window for step in steps for window in self.windows(step)]
        windows += [
            LaunchArray(meeting.address, meeting.BYTES, "the blocks' barrier", "8 bytes", (), 0),
            LaunchArray(meeting.flag_address, 4, "the host's word", "4 bytes", (), 0),
        ]
        windows += [
            LaunchArray(self.address(step.where), step.size, "a condition", "", (), 0)
            for step in self.steps
            if isinstance(step, Choose)
        ]
        try:
            self.driver.simulate(prepared, windows, False)
        except UserError as error:
            line = getattr(error, "source", "")
            raise UserError(
                f"{line}{': ' if line else ''}the persistent launch: {error}"
            ) from error

    def forget(self, step: KernelStep, early: Sequence[KernelStep]) -> None:
        """Overwrites what nobody reads after a step, but for what steps use that came early."""
        for offset, size in step.dead:
            if not any(_touches(other, offset, size) for other in early):
                self.driver.fill(self.bases[ARENA] + offset, size, self.stream)

    def simulate(self, step: KernelStep, launches: Sequence[Any], count: bool) -> Counted:
        """Runs a step's launches; UserError for a fault, which begins with the line that it is in
        and names the line that the kernel is for."""
        counters: dict[str, int] = {}
        lines: dict[str, dict[str, int]] = {}
        windows = self.windows(step)
        try:
            for prepared in launches:
                counted = self.driver.simulate(prepared, windows, count)
                _add(counters, counted.total)
                for line, counts in counted.lines.items():
                    _add(lines.setdefault(line, {}), counts)
        except UserError as error:
            line = getattr(error, "source", "")
            place = f"{line or step.origin}: " if line or step.origin else ""
            called = f" of {step.origin}" if line and step.origin not in ("", line) else ""
            raise UserError(f"{place}kernel {step.kernel}{called}: {error}") from error
        return Counted(counters, lines)

    def windows(self, step: KernelStep) -> list[LaunchArray]:
        """What a step's kernel may touch."""
        found = [
            LaunchArray(self.address(one.where), self.room(one.nbytes), *one[2:])
            for one in step.arrays
            if self.room(one.nbytes)
        ]
        found += [
            LaunchArray(self.address(where), size, "the kernel's scratch", f"{size} bytes", (), 0)
            for where, size in _scratches(step)
        ]
        return found


def _add(total: dict[str, int], counts: Counters) -> None:
    for name, count in counts.items():
        total[name] = total.get(name, 0) + count


def _scratches(step: KernelStep) -> list[tuple[Where, int]]:
    """The scratch of a step's kernels; that of a merged one is with the step that starts it."""
    own = [(step.scratch, step.scratch_bytes)] if step.scratch_bytes and step.launches else []
    return [*own, *step.others]


def _touches(step: KernelStep, offset: int, size: int) -> bool:
    """Whether a step touches these bytes of the arena."""
    places = [(one.where, one.nbytes) for one in step.arrays]
    return any(
        where.base == ARENA and where.offset < offset + size and offset < where.offset + nbytes
        for where, nbytes in [*places, *_scratches(step)]
    )
