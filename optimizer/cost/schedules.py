"""What it costs to run a plan by each of the ways in which a GPU can run it.

A plan is taken as stretches of launches, between which something decides where control goes on. In
a stretch, launches begin one after the other, each once those that it follows are complete, and all
together take no less than their parts of the device. What differs is what starts them and who
decides: the host, launch by launch or graph by graph, after it has read a number back, unless it
knows how many turns a loop makes; a node of one graph; or the blocks of one launch, of which a
multiprocessor holds one, and which meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..machine import BlockExecution, Machine

TURNS = 16.0  # of a loop of which nothing is known


class LaunchPrice(NamedTuple):
    """The launches of a step: how many, one after the other; seconds of them once they run, and
    where a multiprocessor holds one block; the part of the device that they take. after: the
    places in its stretch of those that it follows."""

    launches: int
    seconds: float
    resident: float
    part: float
    after: Sequence[int] = ()
    meets: bool = False  # in a persistent launch, before it


class Stretch(NamedTuple):
    """Launches without a decision between them. times: how often it is come to. read: whether the
    host has read a number back just before."""

    steps: Sequence[LaunchPrice]
    times: float
    read: bool


class Decisions(NamedTuple):
    """How often a branch is decided; read: those of which the host does not know the outcome;
    persistent: those before which blocks meet."""

    all: float
    read: float
    meeting: float


def schedule_seconds(
    stretches: Sequence[Stretch], decisions: Decisions, machine: Machine
) -> dict[str, float]:
    """Predicted seconds by schedule; machine: one that runs blocks of threads."""
    blocks, sync = machine.blocks, machine.sync
    assert blocks is not None
    launches = host = sync.dispatch * (not stretches)
    graph = sync.dispatch + decisions.all * (blocks.conditional + sync.step + blocks.fill)
    persistent = sync.dispatch + sync.step + blocks.fill + decisions.meeting * sync.barrier
    for steps, times, read in stretches:
        count = sum(one.launches for one in steps)
        alone = sum(one.seconds for one in steps) + count * (sync.step + blocks.fill)
        together = _together(steps, machine, blocks)
        begin = sync.dispatch if read else 0.0  # nothing runs until then
        launches += times * (begin + max(alone, count * sync.dispatch))
        host += times * (begin + max(together, sync.dispatch))
        graph += times * together
        met = sum(one.meets + max(one.launches - 1, 0) for one in steps)
        persistent += times * (sum(one.resident for one in steps) + met * sync.barrier)
    polled = decisions.read * blocks.poll
    return {
        "host": host + polled, "launches": launches + polled, "graph": graph,
        "persistent": persistent,
    }  # fmt: skip


def _together(steps: Sequence[LaunchPrice], machine: Machine, blocks: BlockExecution) -> float:
    """Seconds of launches of which some follow others, as nodes of a graph."""
    issued = 0.0
    ends: list[float] = []
    for one in steps:
        begin = max((ends[place] for place in one.after), default=0.0)
        if one.launches:
            issued += one.launches * machine.sync.step
            each = machine.sync.step + blocks.fill
            begin = max(issued - machine.sync.step, begin) + one.launches * each + one.seconds
        ends.append(begin)
    return max(max(ends, default=0.0), issued + sum(one.seconds * one.part for one in steps))
