"""The task graph of a region: who waits for whom, and what lives while and after a task runs.

A task is an operation with steps of its own. What lives between two tasks depends only on which
tasks have run, so a search needs no more than that set and its peak. Memory is counted as
`Measure.live_bytes` counts it: values with memory of their own live from their task to the last
that reads them, results to the end; a result may lie where an operand lies that dies there. What
control flow needs inside is measured once, on its own schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from ...hlo.graph import Op, Region, Value
from ...hlo.regions import alias_roots, aliases
from ..measure import Scratch, measure_alone, most_of, size_of
from ..overwriting import Hinders, fills, hindrances
from ..schedule import INLINE_SPLAT_BYTES, Buffer, read_first

Pairs = Sequence[tuple[int, int]]  # (argument, result that takes over its memory)
Role = Literal["entry", "loop", "other"]  # of a region: of a program, the body of a `while`


class Task(NamedTuple):
    """One operation. Values are numbers of `TaskGraph.values`; only those that need memory count.

    inside: bytes that are needed while it runs alone: a kernel's scratch, the body of a loop.
    over: for each made value that may lie where an operand lies, those operands, the first that
        dies here is taken.
    gone: operands that are over, if they die here, before what is inside begins.
    """

    op: Op
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    inside: int = 0
    over: tuple[tuple[int, tuple[int, ...]], ...] = ()
    gone: frozenset[int] = frozenset()


class Moved(NamedTuple):
    """What a move needs while it runs, what lives after it, and the tasks that have run then."""

    need: int
    live: int
    done: int


@dataclass(eq=False)
class TaskGraph:
    """Tasks by number in the order of their region; sets of tasks are bits of integers.

    sizes: bytes of each value. before, after: the tasks that a task waits for, or lets wait.
    end_bytes: what is needed when all tasks have run: results, and copies of them.
    """

    region: Region
    tasks: list[Task]
    values: list[Value]
    sizes: list[int]
    before: list[int]
    kept: list[bool]
    end_bytes: int

    def __post_init__(self) -> None:
        count = len(self.tasks)
        self.after = [0] * count
        for number, mask in enumerate(self.before):
            for other in bits(mask):
                self.after[other] |= 1 << number
        # A result of the region is read at its end: by task number `count`, which never runs.
        self.users = [(1 << count) if kept else 0 for kept in self.kept]
        for number, task in enumerate(self.tasks):
            for value in task.reads:
                self.users[value] |= 1 << number
        self.made = [sum(self.sizes[v] for v in task.makes) for task in self.tasks]
        self.unread = [
            sum(self.sizes[v] for v in task.makes if not self.users[v]) for task in self.tasks
        ]
        # What waits for nothing and needs no more than what it leaves is best run when the first
        # task asks for it: until then it only takes memory.
        self.lazy = sum(
            1 << number
            for number, task in enumerate(self.tasks)
            if not (self.before[number] or task.inside or self.unread[number])
        )
        self.asks = [tuple(bits(mask & self.lazy)) for mask in self.before]
        self.all = (1 << count) - 1

    @cached_property
    def topological(self) -> tuple[int, ...]:
        """All tasks as they stand in the region, but after those that they wait for."""
        done = 0
        order: list[int] = []
        for first in range(len(self.tasks)):
            stack = [first]
            while stack:
                number = stack[-1]
                missing = self.before[number] & ~done
                if done >> number & 1:
                    stack.pop()
                elif missing:
                    stack += reversed([*bits(missing)])
                else:
                    done |= 1 << number
                    order.append(stack.pop())
        return tuple(order)

    @cached_property
    def ancestors(self) -> list[int]:
        """For each task the set of those that have to run before it."""
        return _closed(self.before, self.topological)

    @cached_property
    def descendants(self) -> list[int]:
        """For each task the set of those that have to run after it."""
        return _closed(self.after, self.topological[::-1])

    @cached_property
    def growing(self) -> list[bool]:
        """For each task whether more lives after it than before, wherever it runs."""

        def freed(number: int) -> int:
            reads = dict.fromkeys(self.tasks[number].reads)
            return sum(self.sizes[value] for value in reads if not self.kept[value])

        return [
            self.made[number] - self.unread[number]
            > freed(number) + sum(freed(asked) for asked in self.asks[number])
            for number in range(len(self.tasks))
        ]

    def step(self, done: int, live: int, number: int) -> tuple[int, int]:
        """Bytes that are needed while a task runs after those of `done`, and that live after it."""
        task, pending, bit = self.tasks[number], ~done, 1 << number
        users, sizes = self.users, self.sizes
        dead = [value for value in task.reads if users[value] & pending == bit]
        need = live + self.made[number]
        after = need - self.unread[number]
        if not dead:
            return need + task.inside, after
        taken: list[int] = []
        for _, operands in task.over:
            for value in operands:
                if value in dead and value not in taken:
                    taken.append(value)
                    need -= sizes[value]
                    break
        early = 0
        for value in dead:
            after -= sizes[value]
            if value in task.gone and value not in taken:
                early += sizes[value]
        return max(need, need - early + task.inside), after

    def move(self, done: int, live: int, number: int) -> Moved:
        """The same for a task with those before it that were only waiting to be asked for."""
        need = 0
        for asked in self.asks[number]:
            if not done >> asked & 1:
                above, live = self.step(done, live, asked)
                need = max(need, above)
                done |= 1 << asked
        above, live = self.step(done, live, number)
        return Moved(max(need, above), live, done | 1 << number)

    def tasks_of(self, moves: Sequence[int]) -> list[int]:
        """The order of all tasks that the moves stand for; what nobody asks for is a result, and
        comes last."""
        order: dict[int, None] = {}
        for number in moves:
            if not self.lazy >> number & 1:
                order.update(dict.fromkeys(self.asks[number]))
                order[number] = None
        order.update(dict.fromkeys(bits(self.lazy)))
        return list(order)

    def ready(self, done: int, among: int) -> list[int]:
        """Of the tasks `among`, in order, those that wait for nothing but what is asked for."""
        done |= self.lazy
        return [number for number in bits(among) if not self.before[number] & ~done]

    def peak(self, order: Sequence[int]) -> int:
        """The most bytes that live at one time in an order of all tasks."""
        done = live = peak = 0
        for number in order:
            need, live = self.step(done, live, number)
            peak = max(peak, need)
            done |= 1 << number
        return max(peak, self.end_bytes)

    def ops(self, order: Sequence[int]) -> list[Op]:
        """The region's operations in an order of its tasks; what has no step of its own comes
        before the first that needs it."""
        source = {value: op for op in self.region.ops for value in op.results}
        running = {task.op for task in self.tasks}
        placed: dict[Op, None] = {}

        def place(op: Op) -> None:
            stack = [op]
            while stack:
                missing = [
                    source[value]
                    for value in _needed(stack[-1])
                    if value in source and source[value] not in placed
                ]
                if missing:
                    stack.append(missing[0])
                else:
                    placed[stack.pop()] = None

        for number in order:
            place(self.tasks[number].op)
        for op in self.region.ops:
            if op not in running and op not in placed:
                place(op)
        return list(placed)


def _closed(near: Sequence[int], order: Sequence[int]) -> list[int]:
    far = [0] * len(near)
    for number in order:
        mask = near[number]
        for other in bits(mask):
            mask |= far[other]
        far[number] = mask
    return far


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, the lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def task_graph(
    region: Region,
    pairs: Pairs,
    hinders: Hinders,
    scratch: Scratch | None = None,
    role: Role = "entry",
) -> TaskGraph:
    """The task graph of a region whose results take over the memory of arguments as `pairs` say.

    Where they can, who reads such an argument has to run before what replaces it does. role: where
    the results go in the end: each into an output, into the arguments of a loop's body, or nowhere.
    """
    roots = alias_roots(region)
    ops = [op for op in region.ops if not (aliases(op) or _stored(op))]
    number = {op: index for index, op in enumerate(ops)}
    filled = {op.result for op in ops if op.name == "constant" or fills(op)}
    needs = {op: _needs(op, filled) for op in region.ops}
    before = _waits(region, number, needs)
    effects = [index for index, op in enumerate(ops) if op.definition.effects]
    for first, second in zip(effects, effects[1:], strict=False):
        before[second] |= 1 << first
    readers = _readers(ops, roots, needs)
    free = _donate(region, pairs, hinders, roots, number, readers, before)
    values = [value for op in ops for value in op.results]
    known = {value: index for index, value in enumerate(values)}
    kept = [roots.get(value, value) for value in region.results]
    held = {value for value in kept if value in known}
    if role != "entry":  # what is filled is filled where it belongs
        held -= {value for value in held & filled if value in region.results}
    free |= {value for value in filled if value not in readers and value not in held}
    sizes = [0 if value in free else most_of(value.tensor.bytes) for value in values]
    tasks = [_task(op, needs[op], known, free, roots, hinders, scratch) for op in ops]
    end = sum(sizes[known[value]] for value in held)
    for index, value in enumerate(kept):
        if role == "entry":
            copied = value not in known or value in kept[:index]
        else:  # a loop's value that goes where another argument lies is kept apart until then
            copied = (
                role == "loop"
                and value in region.arguments
                and value is not region.arguments[index]
            )
        if copied:
            end += most_of(value.tensor.bytes)
    return TaskGraph(region, tasks, values, sizes, before, [v in held for v in values], end)


def _needed(op: Op) -> list[Value]:
    return [*op.operands, *(value for body in op.regions for value in body.captures())]


def _stored(op: Op) -> bool:
    """Whether the result lies among the weights: no step computes it."""
    if op.name != "constant":
        return op.name == "weight"
    dense = op.attributes["value"]
    return not (dense.is_splat and dense.type.bytes > INLINE_SPLAT_BYTES)


def _needs(op: Op, filled: set[Value]) -> list[Value]:
    """What has to be there before an operation begins, operands and captures; values that are
    filled where they are needed are not copied to where a loop starts with them."""
    needed = _needed(op)
    if op.definition.flow and not filled.isdisjoint(needed):
        first = set(read_first(op))
        return [value for value in needed if value not in filled or value in first]
    return needed


def _waits(
    region: Region, number: Mapping[Op, int], needs: Mapping[Op, Sequence[Value]]
) -> list[int]:
    """The tasks that each waits for, since they make what it needs; what a barrier renames is there
    when all that the barrier takes is."""
    makers: dict[Value, int] = {}
    before = [0] * len(number)
    for op in region.ops:
        mask = 0
        for value in needs[op]:
            mask |= makers.get(value, 0)
        if op in number:
            before[number[op]] = mask
            mask = 1 << number[op]
        makers.update(dict.fromkeys(op.results, mask))
    return before


def _readers(
    ops: Sequence[Op], roots: Mapping[Value, Value], needs: Mapping[Op, Sequence[Value]]
) -> dict[Value, list[int]]:
    """The tasks that read each value or another name of it."""
    readers: dict[Value, list[int]] = {}
    for index, op in enumerate(ops):
        for value in dict.fromkeys(roots.get(value, value) for value in needs[op]):
            readers.setdefault(value, []).append(index)
    return readers


def _donate(
    region: Region,
    pairs: Pairs,
    hinders: Hinders,
    roots: dict[Value, Value],
    number: dict[Op, int],
    readers: dict[Value, list[int]],
    before: list[int],
) -> set[Value]:
    """The values that are computed straight into the memory of arguments; their tasks then wait for
    all other readers of those: added to `before`."""
    carries = [
        (region.arguments[argument], result, Buffer("input", region.results[result].tensor))
        for argument, result in pairs
    ]
    wanted: list[tuple[int, int, Value]] = []  # a task, those that have to run before, its value
    earlier = _closed(before, range(len(before)))
    reasons = hindrances(region, carries, hinders, in_order=False)
    for carry, reason in zip(carries, reasons, strict=True):
        value = roots.get(region.results[carry[1]], region.results[carry[1]])
        if reason or value.op is None:
            continue
        maker = number[value.op]
        waits = [reader for reader in readers.get(carry[0], ()) if reader != maker]
        if not any(earlier[reader] >> maker & 1 for reader in waits):
            wanted.append((maker, sum(1 << reader for reader in waits), value))
    alone = list(before)
    for maker, waits, _ in wanted:
        before[maker] |= waits
    if _acyclic(before):
        return {value for *_, value in wanted}
    before[:] = alone
    free: set[Value] = set()
    for maker, waits, value in wanted:
        if not _leads_to(maker, waits, before):
            before[maker] |= waits
            free.add(value)
    return free


def _acyclic(before: Sequence[int]) -> bool:
    """Whether there is an order in which all tasks come after those they wait for."""
    after: list[list[int]] = [[] for _ in before]
    for number, mask in enumerate(before):
        for other in bits(mask):
            after[other].append(number)
    missing = [mask.bit_count() for mask in before]
    ready = [number for number, count in enumerate(missing) if not count]
    for number in ready:
        for other in after[number]:
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    return len(ready) == len(before)


def _leads_to(start: int, ends: int, before: Sequence[int]) -> bool:
    """Whether one of the tasks `ends` has to run after `start`."""
    seen = stack = ends
    while stack:
        if seen >> start & 1:
            return True
        found = 0
        for number in bits(stack):
            found |= before[number]
        stack = found & ~seen
        seen |= found
    return False


def _task(
    op: Op,
    needs: Sequence[Value],
    known: dict[Value, int],
    free: set[Value],
    roots: dict[Value, Value],
    hinders: Hinders,
    scratch: Scratch | None,
) -> Task:
    operands = [roots.get(value, value) for value in op.operands]
    captured = {roots.get(v, v) for body in op.regions for v in body.captures()}
    there = {roots.get(value, value) for value in needs}
    counted = [v for v in operands if v in known and v not in free and v in there]
    reads = tuple(
        known[v]
        for v in dict.fromkeys(roots.get(v, v) for v in needs)
        if v in known and v not in free
    )
    makes = tuple(known[value] for value in op.results)
    single = [value for value in counted if operands.count(value) == 1 and value not in captured]
    loop, nested = op.name == "while", op.definition.flow
    over: list[tuple[int, tuple[int, ...]]] = []
    for index, result in enumerate(op.results):
        if result in free or (nested and not loop):
            continue
        lies = [
            known[value]
            for place, value in enumerate(operands)
            if value in single
            and size_of(value.tensor.bytes) == size_of(result.tensor.bytes)
            and (place == index if loop else not hinders(op, place, index))
        ]
        if lies:
            over.append((known[result], tuple(lies)))
    if nested:
        made = sum(most_of(value.tensor.bytes) for value in op.results)
        inside = measure_alone(op, scratch, hinders).arena_bytes - made
        gone = frozenset(known[v] for v in counted if v not in captured) if loop else frozenset()
        return Task(op, reads, makes, inside, tuple(over), gone)
    inside = most_of(scratch(op)) if scratch is not None else 0
    return Task(op, reads, makes, inside, tuple(over))
