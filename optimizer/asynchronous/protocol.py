"""What roles do to rings, in order, and whether that always ends and no stage is overwritten early.

A role's program is made of verbs and of repeats of verbs, for each tile and for each round of the
loop. Emitters write them down as they emit (`backends/nvidia/pipeline/rings.py`):

fill      copies begin into the ring's next stage, once all who read it have released it
wait      until the current stage is full
start     products begin that read the current stages of rings
await     all but so many of the products begun last are done
release   the stage `back` stages behind the current one is read no more
advance   the next stage is the current one
give      the turn of this or of the other group that multiplies; take: a turn of one's own

Whoever waits, waits for what others have done, and nobody takes back what he has done: so in every
order of running the roles get equally far, and `check` decides by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

TILE, FIRST, ROUND = "each tile", "the first round", "each round"


class Verb(NamedTuple):
    """`rings`: their numbers. count: of `await`; `back` of `release`; of `give`, how many groups
    further the turn goes. late: not in the first round; alone: by the first group alone."""

    kind: str
    rings: tuple[int, ...] = ()
    count: int = 0
    late: bool = False
    alone: bool = False

    def __str__(self) -> str:
        words = [self.kind, *(f"ring {ring}" for ring in self.rings)]
        if self.kind == "await":
            words.append(f"all but {self.count}" if self.count else "all")
        elif self.kind == "give":
            words.append("the other group's turn" if self.count else "the own turn")
        elif self.count:
            words.append(f"{self.count} back")
        words += ["but in the first round"] * self.late + ["by the first group"] * self.alone
        return " ".join(words)


@dataclass(frozen=True)
class Repeat:
    """Verbs for each tile, for the first round of its loop, or for each other round of it."""

    each: str
    steps: list[Verb | Repeat] = field(default_factory=list)


Program = Sequence[Verb | Repeat]


class Recorder:
    """Writes a program down while it is emitted."""

    def __init__(self) -> None:
        self.program: list[Verb | Repeat] = []
        self.inner = self.program

    def note(self, verb: Verb) -> None:
        """The next verb."""
        self.inner.append(verb)

    @contextmanager
    def repeated(self, each: str) -> Iterator[None]:
        """Verbs inside are a repeat's."""
        outer, made = self.inner, Repeat(each)
        outer.append(made)
        self.inner = made.steps
        yield
        self.inner = outer


def lines(program: Program, indent: str = "") -> Iterator[str]:
    """One a verb."""
    for step in program:
        if isinstance(step, Repeat):
            yield f"{indent}{step.each}:"
            yield from lines(step.steps, indent + "  ")
        else:
            yield f"{indent}{step}"


def check(
    copies: Program, multiplies: Program, stages: Sequence[int], groups: int, tiles: int,
    rounds: int,
) -> str:  # fmt: skip
    """What goes wrong in a block of so many tiles with so many rounds each, "" if nothing does.
    stages: of each ring; groups: that multiply."""
    repeats = [step.each for step in _inside(multiplies) if isinstance(step, Repeat)]
    parts, left = repeats.count(ROUND), rounds - repeats.count(FIRST)
    for first in range(left + 1) if parts > 1 else [left]:
        split = [first, left - first][:parts]
        run = _Run(stages, groups)
        copied = list(_unrolled(copies, tiles, [rounds]))
        multiplied = [list(_unrolled(multiplies, tiles, split, n > 0)) for n in range(groups)]
        found = run.all([copied, *multiplied])
        if found:
            return found
    return ""


def _inside(program: Program) -> Iterator[Verb | Repeat]:
    for step in program:
        yield step
        if isinstance(step, Repeat):
            yield from _inside(step.steps)


def _unrolled(
    program: Program, tiles: int, rounds: Sequence[int], further: bool = False
) -> Iterator[tuple[Verb, str]]:
    """The verbs of a role one by one, with their places. rounds: of each part of the loop;
    further: not of the first group."""
    left = iter(rounds)
    for step in program:
        if isinstance(step, Verb):
            if not (step.alone and further):
                yield step, "outside"
            continue
        inner: Sequence[int] = rounds
        count = tiles
        if step.each != TILE:
            inner, count = (), 1 if step.each == FIRST else next(left)
        for number in range(count):
            for verb, place in _unrolled(step.steps, 1, inner, further):
                if not (verb.late and place == "outside" and number == 0):
                    own = f"{step.each.split()[-1]} {number}"
                    yield verb, own if place == "outside" else f"{own}, {place}"


@dataclass
class _Group:
    """A group that multiplies: by ring, the use of a stage that is the current one, those that it
    has waited for and released; the uses that products in flight read; turns that it may take."""

    current: list[int]
    full: list[int]
    released: list[int]
    flying: list[list[tuple[int, int]]] = field(default_factory=list)
    turns: int = 0


class _Run:
    """Roles that run as far as they get, one after the other, until none gets further."""

    def __init__(self, stages: Sequence[int], groups: int) -> None:
        self.stages = stages
        self.next, self.filled = _zeros(stages, 2)  # by who copies
        self.groups = [_Group(*_zeros(stages, 3)) for _ in range(groups)]

    def all(self, programs: Sequence[Sequence[tuple[Verb, str]]]) -> str:
        """What goes wrong, "" if nothing does."""
        at = [0 for _ in programs]
        moved = True
        while moved:
            moved = False
            for role, program in enumerate(programs):
                while at[role] < len(program):
                    verb, place = program[at[role]]
                    found = self.copied(verb) if role == 0 else self.multiplied(verb, role - 1)
                    if found is False:
                        break
                    if found:
                        return f"{_name(role)} at {place}: {verb}: {found}"
                    at[role], moved = at[role] + 1, True
        stuck = [
            f"{_name(role)} waits at {program[at[role]][1]}: {program[at[role]][0]}"
            for role, program in enumerate(programs)
            if at[role] < len(program)
        ]
        return "deadlock: " + "; ".join(stuck) if stuck else self.left()

    def copied(self, verb: Verb) -> str | bool:
        """A verb of the role that copies: False where it has to wait, what is wrong, or ""."""
        (ring,) = verb.rings
        if verb.kind == "advance":
            self.next[ring] += 1
            return ""
        if self.next[ring] != self.filled[ring]:
            return "not the stage behind the last one that was filled"
        before = self.next[ring] - self.stages[ring]  # the use whose stage it is
        if any(group.released[ring] <= before for group in self.groups):
            return False
        self.filled[ring] += 1
        return ""

    def multiplied(self, verb: Verb, number: int) -> str | bool:
        """The same of a group that multiplies."""
        group = self.groups[number]
        if verb.kind == "take":
            if not group.turns:
                return False
            group.turns -= 1
        elif verb.kind == "give":
            self.groups[(number + verb.count) % len(self.groups)].turns += 1
        elif verb.kind == "start":
            unread = [ring for ring in verb.rings if group.full[ring] <= group.current[ring]]
            if unread:
                return f"ring {unread[0]} has not been waited for"
            group.flying.append([(ring, group.current[ring]) for ring in verb.rings])
        elif verb.kind == "await":
            group.flying = group.flying[len(group.flying) - verb.count :] if verb.count else []
        else:
            return self.ring(verb, verb.rings[0], group)
        return ""

    def ring(self, verb: Verb, ring: int, group: _Group) -> str | bool:
        use = group.current[ring] - verb.count
        if verb.kind == "wait":
            if self.filled[ring] <= use:
                return False
            group.full[ring] = use + 1
        elif verb.kind == "advance":
            group.current[ring] += 1
        elif any((ring, use) in read for read in group.flying):
            return "products in flight read it"
        elif use != group.released[ring] or use >= group.full[ring]:
            return "not the stage that is to be released next"
        else:
            group.released[ring] += 1
        return ""

    def left(self) -> str:
        """What roles owe each other behind all tiles."""
        for number, group in enumerate(self.groups):
            if group.flying or group.turns:
                return f"{_name(number + 1)} leaves products or turns behind"
            if group.released != self.filled or group.current != self.filled:
                return f"{_name(number + 1)} leaves stages behind"
        return ""


def _zeros(stages: Sequence[int], count: int) -> Any:
    """So many lists of a number for each ring."""
    return [[0 for _ in stages] for _ in range(count)]


def _name(role: int) -> str:
    return f"group {role - 1} that multiplies" if role else "the role that copies"
