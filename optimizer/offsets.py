"""Search for offsets within a capacity: finds a placement, proves that there is none, or stops.

The steps are first reduced to *sections*: the largest sets of buffers that live at once. A state is
the height of what lies in each section, and the buffers that are left. Placements are pushed
down: a buffer lies on another or on the ground. A run of sections lower than both neighbours is a
*niche*; only buffers that live wholly within it can lie on its ground, whatever happens elsewhere.
So each of its sections has few alternatives: one of these buffers lies on the ground there, or none
does, and bytes are lost up to the next height at which one can begin. They exclude each other and
are all there are, so a search over them is exhaustive and meets no placement twice.

What keeps it small: the section with the fewest alternatives for how often it failed comes first; a
section that loses more bytes than it can spare fails at once; what no buffer connects is
solved apart; a state that failed is remembered, whoever meets it again. Several orders of the
alternatives take turns with growing numbers of nodes. No clock and no hash order is asked.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

FIRST_TURN, GROWTH = 300, 1.5  # nodes of a turn, and by how much the next round's have more
_OPEN = 1 << 62  # the height of a wall at the end of a part


class Outcome(NamedTuple):
    """`offsets` in bytes if a placement was found; `exhausted` if there is proven to be none; if
    neither, the search stopped after so many `nodes`."""

    offsets: tuple[int, ...] | None
    exhausted: bool
    nodes: int


class _ConnectedSections(NamedTuple):
    """Sections [begin, end) that buffers connect: the height of each, the bytes that each can
    lose, and the buffers that are left, as bits."""

    begin: int
    end: int
    heights: list[int]
    spare: list[int]
    left: int


class _NicheChoice(NamedTuple):
    """A section in a niche: the buffers that can lie on its ground, as bits, and the height at
    which it goes on if none does, 0 if it has not the bytes for that."""

    section: int
    height: int
    candidates: int
    otherwise: int


class _SearchFrame(NamedTuple):
    """One decision on the way from the root: alternatives not tried yet, parts that the current
    one has still to solve, and the state's digest."""

    alternatives: Iterator[list[_ConnectedSections]]
    parts: list[_ConnectedSections]
    state: bytes


def search(
    intervals: Sequence[tuple[int, int, int]], capacity: int, nodes: int, alignment: int = 1
) -> Outcome:
    """Offsets of (bytes, first step, last step) below `capacity`, multiples of `alignment`.

    Sizes are rounded up to the alignment, so that every pushed-down offset is a multiple of it.
    Stops after `nodes` states. ValueError for sizes or lives of nothing.
    """
    sizes = [-(-size // alignment) * alignment for size, _, _ in intervals]
    if any(size <= 0 for size in sizes) or any(last < first for _, first, last in intervals):
        raise ValueError("a buffer has bytes and lives at least one step")
    if not intervals:
        return Outcome((), False, 0)
    return _OffsetSearch(
        [(s, i[1], i[2]) for s, i in zip(sizes, intervals, strict=True)], capacity
    ).run(nodes)


def sections(intervals: Sequence[tuple[int, int, int]]) -> list[int]:
    """Steps at which all largest sets of live buffers are seen: a step at which one begins, before
    the next one begins after one ends."""
    starts = sorted({first for _, first, _ in intervals})
    ends = sorted({last for _, _, last in intervals})
    following = [*starts[1:], ends[-1] + 1]
    return [
        start
        for start, next_start in zip(starts, following, strict=True)
        if bisect_left(ends, start) < bisect_left(ends, next_start)
    ]


class _OffsetSearch:
    def __init__(self, intervals: Sequence[tuple[int, int, int]], capacity: int) -> None:
        self.capacity = capacity
        # Bits in order of size: the lowest one of a set is its smallest buffer.
        self.order = sorted(range(len(intervals)), key=lambda i: (*intervals[i], i))
        steps = sections(intervals)
        ordered = [intervals[i] for i in self.order]
        self.size = [size for size, _, _ in ordered]
        self.first = [bisect_left(steps, first) for _, first, _ in ordered]
        self.end = [bisect_right(steps, last) for _, _, last in ordered]
        count = self.sections = len(steps)
        self.total = [0] * count
        self.cover = [0] * count  # buffers that live in the section
        self.cross = [0] * count  # and in the one before
        self.since = [0] * (count + 1)  # buffers that begin here or later
        self.until = [0] * (count + 1)  # buffers that end here or before
        for number, (size, begin, end) in enumerate(
            zip(self.size, self.first, self.end, strict=True)
        ):
            bit = 1 << number
            self.since[begin] |= bit
            self.until[end] |= bit
            for section in range(begin, end):
                self.total[section] += size
                self.cover[section] |= bit
                if section > begin:
                    self.cross[section] |= bit
        for section in range(count):
            self.until[section + 1] |= self.until[section]
            self.since[count - 1 - section] |= self.since[count - section]
        self.offsets = [0] * len(intervals)
        self.failed: set[bytes] = set()
        self.weight: list[int] = []
        self.rank: list[int] = []

    def run(self, nodes: int) -> Outcome:
        """Turns of all orders until one of them ends or `nodes` are spent."""
        if max(self.total) > self.capacity:
            return Outcome(None, True, 0)
        ranks = self.ranks()
        weights = [[1] * self.sections for _ in ranks]
        spent, turn = 0, float(FIRST_TURN + len(self.order))
        while spent < nodes:
            for self.rank, self.weight in zip(ranks, weights, strict=True):
                limit = min(int(turn), nodes - spent)
                found, used = self.turn(limit)
                spent += used
                if found:
                    offsets = [0] * len(self.order)
                    for number, index in enumerate(self.order):
                        offsets[index] = self.offsets[number]
                    return Outcome(tuple(offsets), False, spent)
                if found is False:
                    return Outcome(None, True, spent)
                if spent >= nodes:
                    break
            turn *= GROWTH
        return Outcome(None, False, spent)

    def ranks(self) -> list[list[int]]:
        """For several orders, the place of each buffer: long, large in area and full first."""
        width = [begin - end for begin, end in zip(self.first, self.end, strict=True)]
        area = [size * wide for size, wide in zip(self.size, width, strict=True)]
        full = [-max(self.total[b:e]) for b, e in zip(self.first, self.end, strict=True)]
        orders: list[Callable[[int], tuple[int, ...]]] = [
            lambda i: (width[i], area[i], full[i]),
            lambda i: (full[i], area[i], width[i]),
            lambda i: (full[i], width[i], area[i]),
            lambda i: (-self.size[i], width[i]),
        ]
        found: list[list[int]] = []
        for order in orders:
            rank = [0] * len(width)
            for place, number in enumerate(sorted(range(len(width)), key=order)):
                rank[number] = place
            found.append(rank)
        return found

    def turn(self, limit: int) -> tuple[bool | None, int]:
        """Whether there is a placement, None if `limit` was too little; and the nodes spent."""
        spent = 0
        spare = [self.capacity - total for total in self.total]
        everything = (1 << len(self.order)) - 1
        parts = self.split(
            _ConnectedSections(0, self.sections, [0] * self.sections, spare, everything)
        )
        stack = [_SearchFrame(iter(()), parts, b"")]
        while stack:
            alternatives, parts, state = stack[-1]
            if not parts:  # this decision holds: so does what it was made for
                stack.pop()
                continue
            if spent == limit:
                return None, spent
            spent += 1
            part = parts.pop()
            digest = self.digest(part)
            choice = None
            if digest not in self.failed:
                part, choice = self.settle(part)
            if choice is not None:
                alternatives = self.alternatives(part, choice)
                stack.append(_SearchFrame(alternatives, next(alternatives), digest))
                continue
            while stack:  # back to a decision that has another alternative
                alternatives, parts, state = stack[-1]
                other = next(alternatives, None)
                if other is not None:
                    parts[:] = other
                    break
                self.failed.add(state)
                stack.pop()
            else:
                return False, spent
        return True, spent

    def digest(self, part: _ConnectedSections) -> bytes:
        text = array("q", part.heights).tobytes() + part.left.to_bytes(len(self.order) // 8 + 1)
        return blake2b(text + part.begin.to_bytes(8), digest_size=16).digest()

    def split(self, part: _ConnectedSections) -> list[_ConnectedSections]:
        """The parts that no buffer which is left connects."""
        begin, end, heights, spare, left = part
        found: list[_ConnectedSections] = []
        here = begin
        while here < end:
            if not self.cover[here] & left:
                here += 1
                continue
            stop = here + 1
            while stop < end and self.cross[stop] & left:
                stop += 1
            inside = left & self.since[here] & self.until[stop]
            low, high = here - begin, stop - begin
            found.append(_ConnectedSections(here, stop, heights[low:high], spare[low:high], inside))
            here = stop
        return found

    def settle(self, part: _ConnectedSections) -> tuple[_ConnectedSections, _NicheChoice | None]:
        """Raises every section on whose ground nothing can lie, until none is left; then the
        section to decide next. None if one loses more bytes than it can spare."""
        begin, end, heights, spare, left = part
        heights, spare = heights[:], spare[:]
        cover, since, until, weight = self.cover, self.since, self.until, self.weight
        changed = True
        choice: tuple[int, int, int, int] | None = None
        while changed:
            changed, choice, fewest = False, None, float("inf")
            for start, stop, height, low, high, wall in _runs(heights):
                inside = left & since[begin + low] & until[begin + high]
                niche = start == low and stop == high
                for section in range(start, stop):
                    candidates = inside & cover[begin + section]
                    if not candidates:
                        lost = wall - height
                        if lost > spare[section]:
                            weight[begin + section] += 1
                            return part, None
                        heights[section] = wall
                        spare[section] -= lost
                        changed = True
                    elif niche and not changed:
                        count = candidates.bit_count()
                        if count > fewest * weight[begin + section]:
                            continue
                        above = self.above(inside & ~candidates, height, wall)
                        if above - height <= spare[section]:
                            count += 1
                        else:
                            above = 0
                        score = count / weight[begin + section]
                        if score < fewest or (
                            score == fewest and choice is not None and height < choice[1]
                        ):
                            fewest, choice = score, (section, height, candidates, above)
        assert choice is not None  # a lowest run is a niche
        return _ConnectedSections(begin, end, heights, spare, left), _NicheChoice(*choice)

    def above(self, others: int, height: int, wall: int) -> int:
        """The lowest height at which a buffer can begin in a section, if none lies on its ground:
        on the smallest of the niche's others, or on the wall."""
        if not others:
            return wall
        return min(wall, height + self.size[(others & -others).bit_length() - 1])

    def alternatives(
        self, part: _ConnectedSections, choice: _NicheChoice
    ) -> Iterator[list[_ConnectedSections]]:
        """What is left to solve, for each way to decide."""
        candidates: list[int] = []
        rest = choice.candidates
        while rest:
            bit = rest & -rest
            candidates.append(bit.bit_length() - 1)
            rest ^= bit
        candidates.sort(key=self.rank.__getitem__)
        tried: set[tuple[int, int, int]] = set()
        for number in candidates:
            alike = self.first[number], self.end[number], self.size[number]
            if alike not in tried:
                tried.add(alike)
                yield self.put(part, number, choice.height)
        if choice.otherwise:
            heights, spare = part.heights[:], part.spare[:]
            heights[choice.section] = choice.otherwise
            spare[choice.section] -= choice.otherwise - choice.height
            yield [part._replace(heights=heights, spare=spare)]

    def put(self, part: _ConnectedSections, number: int, offset: int) -> list[_ConnectedSections]:
        """The parts that are left when the buffer lies at `offset`."""
        begin, end, heights, spare, left = part
        self.offsets[number] = offset  # of all attempts the last one stays
        low, high = self.first[number], self.end[number]
        heights = heights[:]
        heights[low - begin : high - begin] = [offset + self.size[number]] * (high - low)
        left ^= 1 << number
        rest = _ConnectedSections(begin, end, heights, spare, left)
        whole = all(left & self.cover[s] for s in range(low, high)) and all(
            left & self.cross[s] for s in range(max(low, begin + 1), min(high + 1, end))
        )
        return [rest] if whole else self.split(rest)


def _runs(heights: Sequence[int]) -> list[tuple[int, int, int, int, int, int]]:
    """Sections of one height: begin, end, height; around them the sections that are not higher:
    begin, end; and the height of the lower of the two walls there."""
    starts: list[int] = []
    levels: list[int] = []
    for section, height in enumerate(heights):
        if not levels or levels[-1] != height:
            starts.append(section)
            levels.append(height)
    count = len(starts)
    starts.append(len(heights))
    left, right = [-1] * count, [count] * count  # the next higher runs
    open_runs: list[int] = []
    for run, level in enumerate(levels):
        while open_runs and levels[open_runs[-1]] < level:
            right[open_runs.pop()] = run
        left[run] = open_runs[-1] if open_runs else -1
        if open_runs and levels[open_runs[-1]] == level:
            left[run] = left[open_runs[-1]]
        open_runs.append(run)
    found: list[tuple[int, int, int, int, int, int]] = []
    for run, level in enumerate(levels):
        lower, upper = left[run], right[run]
        wall = min(
            levels[lower] if lower >= 0 else _OPEN, levels[upper] if upper < count else _OPEN
        )
        begin = starts[lower + 1] if lower >= 0 else 0
        found.append((starts[run], starts[run + 1], level, begin, starts[upper], wall))
    return found
