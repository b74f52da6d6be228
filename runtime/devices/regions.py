"""A plan's steps as regions that nest: what graphs need that decide where control goes on.

Steps have branches and jumps. A loop is what a jump leads back to the beginning of; its condition
stands before it once and at the end of each turn. Where a turn has several ways out of the loop,
as one of a loop that alternates between two memories, the rest of the turn is an arm of a branch,
and the other arm ends the loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from ...hlo.errors import UserError
from .gpu_steps import Choose, Jump, KernelStep, Where
from .launches import Step


class StepRange(NamedTuple):
    """Steps [begin, end), all of which run kernels."""

    begin: int
    end: int


class Again(NamedTuple):
    """Says whether a loop goes on: as the boolean at `where` does, or, without one, not."""

    loop: int
    where: Where | None


class BranchRegion(NamedTuple):
    """Takes the arm of that number: a boolean's or an index's, `size` bytes at `where`."""

    where: Where
    size: int
    arms: tuple[Region, ...]


class LoopRegion(NamedTuple):
    """Runs its body as long as what was said last says so (`Again`)."""

    number: int
    body: Region


Region = tuple[StepRange | Again | BranchRegion | LoopRegion, ...]


class NoRegions(UserError):
    """The steps are no regions that nest; the message says which step is not, and why."""


def regions(steps: Sequence[Step]) -> Region:
    """The steps as regions; NoRegions where processes exchange (which the compiler refuses
    before, by line), or jumps lead anywhere."""
    return _RegionReader(steps).read(0, len(steps))


class _OpenLoop(NamedTuple):
    """A loop that is being read: its first step, the jump back to that, and where it leads to."""

    number: int
    begin: int
    back: int
    left: int


class _RegionReader:
    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps, self.numbers = steps, itertools.count()
        self.backs: dict[int, int] = {}  # first steps of loops -> the jump back
        for at, step in enumerate(steps):
            if isinstance(step, Jump) and step.target <= at:
                if step.target in self.backs:
                    raise NoRegions(f"step {step.target} begins two loops")
                self.backs[step.target] = at
        self.open: list[_OpenLoop] = []

    def read(self, at: int, stop: int) -> Region:
        """From a step until `stop`, or until the turn of the loop that is open ends."""
        found: list[StepRange | Again | BranchRegion | LoopRegion] = []
        while at != stop:
            if not 0 <= at < len(self.steps) or 0 <= stop < at:
                raise NoRegions(f"step {at} is reached from another region")
            step = self.steps[at]
            if at in self.backs and all(one.begin != at for one in self.open):
                items, at = self.loop(at)
                found += items
            elif isinstance(step, KernelStep):
                end = self.end(at, stop)
                found.append(StepRange(at, end))
                at = end
            elif isinstance(step, Jump) and step.target <= at:
                if not self.open or self.open[-1].back != at:
                    raise NoRegions(f"step {at} jumps into another loop")
                return (*found, *self.again())
            elif isinstance(step, Jump):
                at = step.target
            elif isinstance(step, Choose) and self.leaves(step):
                if stop >= 0:
                    raise NoRegions(f"step {at} leaves a loop from within a branch")
                return (*found, self.way_out(step, at))
            elif isinstance(step, Choose):
                arms, at = self.arms(step)
                found.append(arms)
            else:
                raise NoRegions(f"step {at}: processes exchange, which no graph of kernels does")
        return tuple(found)

    def end(self, at: int, stop: int) -> int:
        """Where the stretch ends that begins with a step."""
        end = at + 1
        while end != stop and end < len(self.steps) and end not in self.backs:
            if not isinstance(self.steps[end], KernelStep):
                break
            end += 1
        return end

    def leaves(self, step: Choose) -> bool:
        """Whether a branch may leave the loop that is open."""
        return bool(self.open) and any(target > self.open[-1].back for target in step.targets)

    def loop(self, begin: int) -> tuple[Region, int]:
        """What stands before a loop that begins at a step, and it; where control goes on."""
        number, back = next(self.numbers), self.backs[begin]
        self.open.append(_OpenLoop(number, begin, back, -1))
        head, at = self.head()
        step = self.steps[at]
        assert isinstance(step, Choose)
        self.open[-1] = self.open[-1]._replace(left=step.targets[0])
        body = self.read(step.targets[1], -1)
        left = self.open.pop().left
        return (*head, Again(number, step.where), LoopRegion(number, body)), left

    def head(self) -> tuple[Region, int]:
        """What the condition of the open loop needs, and the step that asks for it."""
        at, found = self.open[-1].begin, []
        while True:
            step = self.steps[at]
            if isinstance(step, Choose) and self.leaves(step):
                if step.size != 1:
                    raise NoRegions(f"step {at} leaves a loop by an index")
                return tuple(found), at
            if at in self.backs and at != self.open[-1].begin:
                items, at = self.loop(at)
            elif isinstance(step, Choose):
                arms, at = self.arms(step)
                items = (arms,)
            elif isinstance(step, KernelStep):
                end = self.end(at, -1)
                items, at = (StepRange(at, end),), end
            else:
                raise NoRegions(f"step {at}: a loop without a condition")
            found += items

    def again(self) -> Region:
        """The end of a turn: the condition once more."""
        head, at = self.head()
        step = self.steps[at]
        assert isinstance(step, Choose)
        if step.targets[0] != self.open[-1].left:
            raise NoRegions(f"step {at} leaves its loop to where its first turn does not")
        return (*head, Again(self.open[-1].number, step.where))

    def way_out(self, step: Choose, at: int) -> BranchRegion:
        """A branch that leaves the open loop in the midst of a turn."""
        one = self.open[-1]
        left, on = (*step.targets, -1)[:2]
        if len(step.targets) != 2 or on != at + 1 or left <= one.back:
            raise NoRegions(f"step {at} leaves a loop by more than one way")
        self.open.pop()  # what follows is outside of it
        leaving = self.read(left, one.left)
        self.open.append(one)
        return BranchRegion(
            step.where, step.size, ((*leaving, Again(one.number, None)), self.read(on, -1))
        )

    def arms(self, step: Choose) -> tuple[BranchRegion, int]:
        """A branch whose arms meet again, and where they do."""
        begins = sorted(set(step.targets))
        joins = {self.joined(begin - 1) for begin in begins[1:]} or {begins[0]}
        if len(joins) != 1:
            raise NoRegions(f"the arms of a branch to step {begins[0]} do not meet")
        (join,) = joins
        arms = {begin: self.read(begin, join) for begin in begins}
        return BranchRegion(step.where, step.size, tuple(arms[one] for one in step.targets)), join

    def joined(self, at: int) -> int:
        """Where the arm that ends with a step goes on."""
        step = self.steps[at]
        if not isinstance(step, Jump) or step.target <= at:
            raise NoRegions(f"step {at} ends no arm of a branch")
        return step.target
