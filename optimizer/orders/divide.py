"""A task that is comparable with all others divides the problem: what comes before and what comes
after are ordered alone, with what lives across added."""

from __future__ import annotations

from typing import NamedTuple

from .exact import best_moves
from .graph import TaskGraph, bits

WORK = 600_000  # moves that are looked at


class Searched(NamedTuple):
    """The best order that is known, its peak, what no order can be below, and how many states were
    followed."""

    order: list[int]
    peak: int
    bound: int
    states: int


def parts_of(graph: TaskGraph) -> list[int]:
    """Sets of tasks that run one set after the other in any order; what only waits to be asked for
    belongs to none."""
    moving = graph.all & ~graph.lazy
    parts: list[int] = []
    done = 0
    for number in graph.topological:
        before = graph.ancestors[number]
        if (before | graph.descendants[number] | 1 << number) & moving == moving:
            part = (before | 1 << number) & moving & ~done
            if part:
                parts.append(part)
                done |= part
    if moving & ~done:
        parts.append(moving & ~done)
    return parts


def search(graph: TaskGraph, order: list[int], floor: int, work: int = WORK) -> Searched:
    """The best order, or what is known of it after looking at so many moves.

    order: of all tasks, the best that is known so far. floor: bytes that any order needs.
    """
    lazy = graph.lazy
    moves = [number for number in order if not lazy >> number & 1]
    parts = parts_of(graph)
    home = {number: index for index, part in enumerate(parts) for number in bits(part)}
    ways: list[list[int]] = [[] for _ in parts]
    for number in moves:
        ways[home[number]].append(number)
    starts, peaks = _walked(graph, ways)
    floor = max(floor, graph.end_bytes)
    bound, states, left = floor, 0, work
    for index in sorted(range(len(parts)), key=lambda i: (-peaks[i], i)):
        if peaks[index] <= bound:
            break
        found = best_moves(graph, parts[index], *starts[index], bound, peaks[index], left)
        bound, states, left = max(bound, found.bound), states + found.states, left - found.tried
        if found.moves is not None:
            ways[index] = found.moves
    best = graph.tasks_of([number for way in ways for number in way])
    peak = graph.peak(best)
    if peak > graph.peak(order):
        best, peak = order, graph.peak(order)
    return Searched(best, peak, bound, states)


def _walked(graph: TaskGraph, ways: list[list[int]]) -> tuple[list[tuple[int, int]], list[int]]:
    """What has run and lives where each part begins, and the part's peak."""
    done = live = 0
    starts: list[tuple[int, int]] = []
    peaks: list[int] = []
    for way in ways:
        starts.append((done, live))
        peak = 0
        for number in way:
            need, live, done = graph.move(done, live, number)
            peak = max(peak, need)
        peaks.append(peak)
    return starts, peaks
