"""Fitting a program into less memory: values are computed a second time, right before they are next
needed, instead of being kept over the steps that need most.

A *move* ends the life of a value after one use and computes it again before the next one: its
kernel is repeated, or the part of it that makes this one result (partial.py). What that reads has
to be there: it lives then anyway, is small enough to be kept, or is computed again as well, to a
depth of twelve. Moves are chosen by predicted time for each byte and step that is above the limit,
and every one is judged by the schedule that it leads to. A repeated kernel is the same kernel, so
no result changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..hlo.graph import Module, Op, Region, Value
from ..hlo.regions import alias_roots, aliases, rename
from ..hlo.tiling import trips
from .cost.assumed import SECONDS_PER_BYTE, SECONDS_PER_FLOP
from .measure import Measure, size_of
from .partial import partial
from .schedule import Buffer, RunStep
from .windows import moved_bytes

DEPTH = 12  # kernels in a row that are computed again for one value
SMALL = 16  # so many times smaller than the value: rather kept than computed again
STEP = 0.1  # of the arena: what the search tries to spare at a time
TRIED = 50  # moves that are judged by a schedule before the search gives up
_COUNTED = ("elementwise", "index", "reduce", "contract")

Judge = Callable[[Module], Measure]


class Fitted(NamedTuple):
    """A module that needs less memory. `moves` in words: what is computed again. `seconds`: the
    predicted time that they cost. `measure`: the memory that the module needs."""

    module: Module
    measure: Measure
    moves: tuple[str, ...]
    seconds: float


class Clone(NamedTuple):
    """A kernel that is repeated, on values of the old region; `stands`: which values its results
    stand for, None for those that nobody needs again."""

    op: Op
    stands: tuple[Value | None, ...]


class Rematerialization(NamedTuple):
    """Compute a value again before the operation at `position`, by clones in their order."""

    position: int
    value: Value
    clones: tuple[Clone, ...]
    seconds: float
    freed: int  # bytes times steps above the limit, estimated


def fit(module: Module, budget: int, judge: Judge) -> Fitted:
    """The module with so many values computed again that it needs at most `budget` bytes by `judge`
    (its `total_bytes`: arena, and outputs of their own); with as many as help where that cannot be.
    """
    measured = judge(module)
    moves: list[str] = []
    seconds = 0.0
    refused: set[tuple[int, int]] = set()
    while measured.total_bytes > budget:
        # A little at a time: what is highest goes first.
        goal = max(budget, measured.total_bytes - round(STEP * measured.arena_bytes))
        excess = _excess(measured, goal)
        found = [
            move
            for move in _RematerializationSearch(module, measured, goal).moves()
            if (move.position, move.freed) not in refused
        ]
        found.sort(key=lambda move: (move.seconds / move.freed, move.position))
        for move in found[:TRIED]:
            changed = applied(module, move)
            after = judge(changed)
            if _excess(after, goal) < excess:
                moves.append(_words(move))
                seconds += move.seconds
                module, measured = changed, after
                refused.clear()
                break
            refused.add((move.position, move.freed))
        else:
            break
    return Fitted(module, measured, tuple(moves), seconds)


def _words(move: Rematerialization) -> str:
    op = move.value.op
    assert op is not None
    kernels = f"{len(move.clones)} kernels" if len(move.clones) > 1 else "its kernel"
    return f"{op.place}{move.value.type} is computed again ({kernels})"


def _excess(measured: Measure, budget: int) -> int:
    """Bytes above the budget, added up over the steps."""
    return sum(max(live - _arena(measured, budget), 0) for live in measured.live)


def _arena(measured: Measure, budget: int) -> int:
    return budget - measured.output_bytes


@dataclass(frozen=True)
class Life:
    """Where a value with a buffer of its own in the arena is made and read: positions of operations
    of the region, in order."""

    value: Value
    maker: int
    users: tuple[int, ...]
    bytes: int


class _RematerializationSearch:
    """The moves that a module allows."""

    def __init__(self, module: Module, measured: Measure, budget: int) -> None:
        self.region = module.body
        self.position = {op: number for number, op in enumerate(self.region.ops)}
        self.roots = alias_roots(self.region)
        self.live = measured.live
        self.limit = _arena(measured, budget)
        self.steps = self.step_numbers(measured)
        self.users = self.all_users()
        self.replaced = self.replacing(module)
        self.lives = {life.value: life for life in self.all_lives(measured)}

    def step_numbers(self, measured: Measure) -> list[int]:
        """The last step of each operation of the region; an operation without steps of its own
        stands with the one before it."""
        found = [-1] * len(self.region.ops)
        for number, step in enumerate(measured.schedule.steps):
            if isinstance(step, RunStep) and step.op in self.position:
                found[self.position[step.op]] = number
        for number in range(1, len(found)):
            found[number] = max(found[number], found[number - 1])
        return found

    def all_users(self) -> dict[Value, list[int]]:
        """The positions of all operations that need the bytes of a value; the number of operations
        stands for the region's end."""
        users: dict[Value, set[int]] = {}
        for number, op in enumerate(self.region.ops):
            if aliases(op):
                continue
            for value in _needed(op):
                users.setdefault(self.roots.get(value, value), set()).add(number)
        for value in self.region.results:
            users.setdefault(self.roots.get(value, value), set()).add(len(self.region.ops))
        return {value: sorted(numbers) for value, numbers in users.items()}

    def replacing(self, module: Module) -> dict[Value, int]:
        """For donated arguments the position of the operation that makes what replaces them."""
        found: dict[Value, int] = {}
        signature = module.signature
        for index, leaf in enumerate(signature.arguments if signature is not None else ()):
            if leaf.donated and leaf.aliases is not None:
                result = self.region.results[leaf.aliases]
                maker = self.roots.get(result, result).op
                if maker in self.position:
                    found[self.region.arguments[index]] = self.position[maker]
        return found

    def all_lives(self, measured: Measure) -> Iterator[Life]:
        homes: dict[Value, Buffer] = {}
        for step in measured.schedule.steps:
            if isinstance(step, RunStep):
                homes.update(zip(step.op.results, step.results, strict=False))
        for number, op in enumerate(self.region.ops):
            if aliases(op) or not _repeatable(op):
                continue
            for value in op.results:
                home = homes.get(value)
                if home is None or home.place != "arena" or home in measured.reused:
                    continue
                yield Life(value, number, tuple(self.users.get(value, ())), size_of(home.bytes))

    def moves(self) -> Iterator[Rematerialization]:
        """Of each value the moves that would end one of its idle times."""
        end = len(self.region.ops)
        for life in self.lives.values():
            stops = [life.maker, *life.users]
            for before, after in zip(stops, stops[1:], strict=False):
                if after == end or after - before < 2:
                    continue
                freed = self.freed(life.bytes, self.steps[before], self.steps[after])
                move = freed and self.move(life, after, freed)
                if move:
                    yield move

    def freed(self, size: int, first: int, last: int) -> int:
        """Bytes above the limit that are gone if nothing of that size lives between two steps."""
        between = self.live[first + 1 : last]
        return sum(min(size, live - self.limit) for live in between if live > self.limit)

    def move(self, life: Life, position: int, freed: int) -> Rematerialization | None:
        """Computing the value again before `position`; None where something for it is gone."""
        wanted: dict[Op, set[Value]] = {}
        kept: set[Value] = set()
        if not self.again(life.value, position, life.bytes, wanted, kept, DEPTH):
            return None
        for value in kept:
            last = self.steps[self.users[value][-1]]
            freed -= self.freed(size_of(value.tensor.bytes), last, self.steps[position])
        if freed <= 0:
            return None
        order = sorted(wanted, key=self.position.__getitem__)
        clones = tuple(self.clone(op, wanted[op], position) for op in order)
        return Rematerialization(
            position, life.value, clones, sum(price(c.op) for c in clones), freed
        )

    def clone(self, op: Op, values: set[Value], position: int) -> Clone:
        """The part of a kernel that makes the values."""
        if len(values) == 1:
            (value,) = values
            part = self.part(value, position)
            if part is not op:
                return Clone(part, (value,))
        return Clone(op, tuple(v if v in values else None for v in op.results))

    def part(self, value: Value, position: int) -> Op:
        """What makes one result, where others of the kernel that live at `position` are read."""
        op = value.op
        assert op is not None
        others = [v.index for v in op.results if v is not value and self.last(v) >= position]
        return partial(op, value.index, others)

    def again(
        self, value: Value, position: int, size: int, wanted: dict[Op, set[Value]],
        kept: set[Value], depth: int,
    ) -> bool:  # fmt: skip
        """Whether a value can be computed again; adds which results of which kernels are wanted,
        and what has to be kept for them."""
        op = value.op
        if op is None or op not in self.position or not depth or not _repeatable(op):
            return False
        values = wanted.setdefault(op, set())
        if value in values:
            return True
        values.add(value)
        part = self.part(value, position) if len(values) == 1 else op
        sources = dict.fromkeys(self.roots.get(v, v) for v in _needed(part))
        return all(self.there(v, position, size, wanted, kept, depth) for v in sources)

    def there(
        self, value: Value, position: int, size: int, wanted: dict[Op, set[Value]],
        kept: set[Value], depth: int,
    ) -> bool:  # fmt: skip
        """Whether a value can be read at `position`, with what that takes."""
        op = value.op
        if op is None:
            return self.replaced.get(value, position) >= position
        if _external(op) or value in kept or self.last(value) >= position:
            return True
        if value in self.lives and size_of(value.tensor.bytes) * SMALL <= size:
            kept.add(value)
            return True
        return self.again(value, position, size, wanted, kept, depth - 1)

    def last(self, value: Value) -> int:
        """The position of a value's last reader."""
        users = self.users.get(value)
        return users[-1] if users else -1


def applied(module: Module, move: Rematerialization) -> Module:
    """The module after a move."""
    region = module.body
    roots = alias_roots(region)
    ops: list[Op] = []
    names: dict[Value, Value] = {}  # values of the old region in the new one
    again: dict[Value, Value] = {}  # those that have been computed again, and their aliases

    def name(value: Value) -> Value:
        """What a reader behind the clones takes for a value."""
        if roots.get(value, value) not in again:
            return names.get(value, value)
        if value not in again:  # an alias of what was computed again
            alias = value.op
            assert alias is not None
            copy = _copy(alias, [name(operand) for operand in alias.operands])
            ops.append(copy)
            again.update(zip(alias.results, copy.results, strict=True))
        return again[value]

    for number, op in enumerate(region.ops):
        if number == move.position:
            for clone in move.clones:
                copy = _copy(clone.op, [name(value) for value in clone.op.operands])
                ops.append(copy)
                for value, made in zip(clone.stands, copy.results, strict=True):
                    if value is not None:
                        again[value] = made
            again = {move.value: again[move.value]}
        own = {value: name(value) for value in _needed(op)}
        bodies = [rename(body, own) for body in op.regions] if op.definition.flow else ()
        new = op.with_operands([own[value] for value in op.operands], bodies)
        ops.append(new)
        names.update(zip(op.results, new.results, strict=True))
    return module.with_main(Region(region.arguments, ops, [name(v) for v in region.results]))


def _copy(op: Op, operands: Sequence[Value]) -> Op:
    return Op(op.definition, operands, op.attributes, op.regions, op.result_types, op.origin)


def _needed(op: Op) -> list[Value]:
    """What an operation reads, also inside its bodies."""
    return [*op.operands, *(value for body in op.regions for value in body.captures())]


def _external(op: Op) -> bool:
    """Whether a value lies in no memory of the arena, or is a splat that any reader may fill."""
    return op.definition.stored


def _repeatable(op: Op) -> bool:
    """Whether an operation gives the same again, and is one kernel."""
    return (
        not op.definition.flow
        and not _external(op)
        and not op.definition.effects
        and (op.definition.pattern not in ("control", "source") or op.name == "fusion")
        and op.name != "foreign_call"
    )


def price(op: Op) -> float:
    """Predicted seconds of a kernel, by what it computes and moves."""
    moved = moved_bytes(op)
    if op.name == "kernel_call":
        counted: Iterable[tuple[Op, float]] = trips(op)
    else:
        counted = ((inner, 1.0) for region in op.regions or () for inner in region.ops)
    work = 0.0
    for inner, count in counted:
        pattern = inner.definition.pattern
        if pattern in _COUNTED and inner.results[0].rank:
            kind = "contract" if pattern == "contract" else "other"
            work += count * inner.definition.flops(inner) * SECONDS_PER_FLOP[kind]
    if not op.regions:
        work = op.definition.flops(op) * SECONDS_PER_FLOP["other"]
    return work + moved * SECONDS_PER_BYTE
