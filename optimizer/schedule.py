"""From a fused module to a list of steps over buffers: order, in-place results, control flow.

A *step* runs one operation, copies a buffer, or jumps. A *buffer* is a place for bytes; several
values may share one (reshapes, results computed in place, values carried by a loop). Offsets are
given later, by memory.py, from the live ranges that `live_ranges` finds here.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..hlo.build import make_op
from ..hlo.deciding import Decisions, current
from ..hlo.errors import CompilerBug, UnsupportedError
from ..hlo.graph import Dense, Module, Op, Region, Value
from ..hlo.processes import grid_of
from ..hlo.regions import alias_roots, aliases
from ..hlo.symbols import Dim
from ..hlo.types import TensorType
from .carried import KnownTurns, known_turns, turns
from .overwriting import Hinders, fills, hinders_of, hindrances
from .passes.require_static import require_static
from .windows import updated

# Attributes that the pass `order` leaves: bytes of the arena that any order needs, what is proven.
ORDER_BOUND, ORDER_PROOF = "girih.order_bound", "girih.order_proof"
UNDO = "girih.undo"  # what `undo-log` leaves: an `Overwritten` for each update of state, as a tuple

INLINE_SPLAT_BYTES = 1024  # smaller splats are stored; larger ones are filled at run time


class Overwritten(NamedTuple):
    """What is kept of state that a program overwrites: see specs/plan.proto, `Undo`."""

    argument: int
    rows: int = 0
    saved: int = 0
    starts: tuple[int, ...] = ()
    dims: tuple[int, ...] = ()
    base: tuple[int, ...] = ()


@dataclass(eq=False)
class Buffer:
    """Bytes in the arena, of an input, of an output, or of a weight."""

    place: str  # "arena", "input", "output", "weight"
    type: TensorType
    index: int = 0
    weight: str = ""
    replaces: Buffer | None = None  # an output's: the donated input whose memory it may have

    @property
    def bytes(self) -> int:
        return self.type.bytes


@dataclass(eq=False)
class RunStep:
    """One operation on buffers."""

    op: Op
    operands: list[Buffer]
    results: list[Buffer]


@dataclass(eq=False)
class CopyStep:
    """target = source, byte for byte."""

    source: Buffer
    target: Buffer


@dataclass(eq=False)
class Label:
    """A place that jumps name; not a step."""


@dataclass(eq=False)
class BranchStep:
    """Go on at `target` if the condition is false."""

    condition: Buffer
    target: Label
    known: KnownTurns | None = None


@dataclass(eq=False)
class JumpStep:
    target: Label
    back: bool = False


@dataclass(eq=False)
class SwitchStep:
    """Go on at targets[index]; an index out of range takes the last one."""

    index: Buffer
    targets: list[Label]


Carry = tuple[Value, int, Buffer]  # an argument, the result that replaces it, its memory
Step = RunStep | CopyStep | BranchStep | JumpStep | SwitchStep


@dataclass(eq=False)
class Schedule:
    """Steps in order; `labels` gives the step number of each label."""

    steps: list[Step] = field(default_factory=list)
    labels: dict[Label, int] = field(default_factory=dict)
    inputs: list[Buffer] = field(default_factory=list)
    outputs: list[Buffer] = field(default_factory=list)
    constants: dict[str, Dense] = field(default_factory=dict)  # by weight name
    weights: list[str] = field(default_factory=list)  # used, in order of first use
    notes: list[str] = field(default_factory=list)  # donated memory that no result takes over
    processes: int = 0  # that run it together; 0: one alone
    decisions: Decisions | None = None  # about sizes that calls decide
    order_bound: int = 0  # bytes of the arena that any order of the operations needs
    order_proof: str = ""  # how it is known that no order is better, or that it is not; "": unknown
    undo: Sequence[Overwritten] = ()
    # Lives of arena buffers, and of those the places that reuse_outputs has found in outputs.
    lives: tuple[Mapping[Buffer, tuple[int, int]], Mapping[Buffer, tuple[Buffer, int]]] | None = (
        None
    )

    def add(self, step: Step) -> None:
        self.steps.append(step)

    def mark(self, label: Label) -> None:
        self.labels[label] = len(self.steps)


def schedule(module: Module, in_tiles: bool = False, hinders: Hinders | None = None) -> Schedule:
    """The steps of the module's entry; UnsupportedError for symbolic dims and unknown control.

    in_tiles: the target's tile functions write results where operands lie, too.
    hinders: `hinders_of(in_tiles)`, where many orders of a program of fixed sizes are scheduled.
    """
    known = _KNOWN.get(module)
    if known is not None and known[0] == in_tiles:
        return known[1]
    if hinders is None:
        require_static(module)
    made = _Scheduler(hinders or hinders_of(in_tiles)).run(module)
    made.decisions = current()
    return made


_KNOWN: weakref.WeakKeyDictionary[Module, tuple[bool, Schedule]] = weakref.WeakKeyDictionary()


def remember(module: Module, in_tiles: bool, steps: Schedule) -> None:
    """`schedule` of this module gives these steps, which were made for the same operations."""
    _KNOWN[module] = in_tiles, with_bound(steps, module)


def with_bound(steps: Schedule, module: Module) -> Schedule:
    """The steps, with what the module says of its order, and of what it keeps of state."""
    steps.undo = tuple(Overwritten(*one) for one in module.attributes.get(UNDO, ()))
    steps.order_bound = module.attributes.get(ORDER_BOUND, 0)
    steps.order_proof = module.attributes.get(ORDER_PROOF, "")
    return steps


def schedule_alone(op: Op, hinders: Hinders) -> Schedule:
    """The steps of one operation of control flow whose operands and captures lie elsewhere."""
    return _Scheduler(hinders).alone(op)


def schedule_body(region: Region, carries: bool, hinders: Hinders) -> Schedule:
    """The steps of one turn of a region of control flow: all that it takes lies elsewhere.

    carries: its results go where its arguments lie, as in the body of a loop.
    """
    return _Scheduler(hinders).turn(region, carries)


class _Scheduler:
    def __init__(self, hinders: Hinders) -> None:
        self.hinders = hinders
        self.out = Schedule()
        self.buffers: dict[Value, Buffer] = {}
        # Until which operation of the current region any value in an arena buffer is used.
        self.ends: dict[Buffer, int] = {}
        self.weights: dict[str, Buffer] = {}
        self.pinned: set[Buffer] = set()  # belong to an enclosing region: never overwritten
        self.fills: dict[Value, Op] = {}  # values that a kernel fills where they are needed

    def alone(self, op: Op) -> Schedule:
        return self.turn(Region((), (op,), op.results), carries=False)

    def turn(self, region: Region, carries: bool) -> Schedule:
        taken = [*region.arguments, *region.captures()]
        self.buffers = {value: Buffer("input", value.tensor) for value in taken}
        if not carries:
            self.region(region, {})
            return self.out
        carried = [self.buffers[argument] for argument in region.arguments]
        self.region(region, self.overwritten(region, _pairs(region, carried)))
        self.deliver(region.results, carried)
        return self.out

    def run(self, module: Module) -> Schedule:
        body = module.body
        for index, argument in enumerate(body.arguments):
            buffer = Buffer("input", argument.tensor, index)
            self.buffers[argument] = buffer
            self.out.inputs.append(buffer)
        donated = self.donated(module)
        self.region(body, self.overwritten(body, donated))
        self.fill(body.results)
        taken: set[Buffer] = set()
        for index, value in enumerate(body.results):
            buffer = self.buffers[value]
            if buffer.place == "output" and buffer.index == index:  # it replaces an input
                self.out.outputs.append(buffer)
            elif buffer.place == "arena" and buffer not in taken:
                buffer.place, buffer.index = "output", index
                buffer.type = value.tensor
                taken.add(buffer)
                self.out.outputs.append(buffer)
            else:
                output = Buffer("output", value.tensor, index)
                self.out.add(CopyStep(buffer, output))
                self.out.outputs.append(output)
        self.out.notes = self.lost(module, donated)
        replicas, partitions = grid_of(module)
        self.out.processes = replicas * partitions if replicas * partitions > 1 else 0
        return with_bound(self.out, module)

    def donated(self, module: Module) -> list[Carry]:
        """The arguments whose memory the caller gave up for a result, and that result's memory,
        which may be the same."""
        signature, body = module.signature, module.body
        if signature is None:
            return []
        found: list[Carry] = []
        for index, argument in enumerate(signature.arguments):
            if argument.donated and (result := argument.aliases) is not None:
                given = self.out.inputs[index]
                memory = Buffer("output", body.results[result].tensor, result, replaces=given)
                found.append((body.arguments[index], result, memory))
        return found

    def overwritten(self, body: Region, carries: Sequence[Carry]) -> dict[Value, Buffer]:
        """Values that are computed straight into the buffer of the argument that they replace."""
        roots = alias_roots(body)
        reasons = hindrances(body, carries, self.hinders)
        return {
            roots.get(body.results[index], body.results[index]): buffer
            for (_, index, buffer), reason in zip(carries, reasons, strict=True)
            if not reason
        }

    def lost(self, module: Module, donated: Sequence[Carry]) -> list[str]:
        """A sentence for each donated argument whose memory no result takes over."""
        signature, body = module.signature, module.body
        given = () if signature is None else signature.arguments
        reasons = {
            argument.index: reason
            for (argument, *_), reason in zip(
                donated, hindrances(body, donated, self.hinders), strict=True
            )
        }
        replaced = {output.replaces for output in self.out.outputs}
        return [
            f"{leaf.path} is donated, but its {_spelled(buffer.bytes)} bytes are not overwritten: "
            f"{reasons.get(index) or 'no result takes its place'}"
            for index, (leaf, buffer) in enumerate(zip(given, self.out.inputs, strict=False))
            if leaf.donated and buffer not in replaced
        ]

    # Regions.

    def region(self, region: Region, wanted: Mapping[Value, Buffer]) -> None:
        """Steps of a region's operations; `wanted` names buffers for some of its values."""
        last = last_uses(region)
        outside, self.ends = self.ends, {}
        for position, op in enumerate(region.ops):
            for buffer, value in self.fill(read_first(op)):
                self.ends[buffer] = last.get(value, -1)
            if op.name == "while":
                self.loop(op, position, wanted)
            elif op.definition.flow == "branch":
                self.branch(op, wanted)
            elif op.name == "constant":
                self.constant(op)
            elif op.name == "weight":
                self.weight(op)
            elif aliases(op):
                for operand, result in zip(op.operands, op.results, strict=True):
                    self.buffers[result] = self.buffers[operand]
            elif fills(op) and op.result not in wanted:
                self.await_fill(op.result, op)
            else:
                self.single(op, position, wanted)
            for result in op.results:
                if (buffer := self.buffers.get(result)) is not None:
                    self.ends[buffer] = max(self.ends.get(buffer, -1), last[result])
        self.ends = outside

    def await_fill(self, value: Value, op: Op) -> None:
        """The value is to be filled by `op`, anew where steps of a region are made twice."""
        self.fills[value] = op
        self.buffers.pop(value, None)

    def fill(self, values: Iterable[Value]) -> list[tuple[Buffer, Value]]:
        """Steps for those of the values that are filled where they are first read."""
        filled: list[tuple[Buffer, Value]] = []
        for value in values:
            if value in self.fills and value not in self.buffers:
                buffer = self.buffers[value] = Buffer("arena", value.tensor)
                self.out.add(RunStep(self.fills[value], [], [buffer]))
                filled.append((buffer, value))
        return filled

    def deliver(self, values: Sequence[Value], targets: Sequence[Buffer]) -> None:
        """A region's results where they belong."""
        moves: list[tuple[Buffer, Buffer]] = []
        filled: list[RunStep] = []
        for value, target in zip(values, targets, strict=True):
            if value in self.fills and value not in self.buffers:
                filled.append(RunStep(self.fills[value], [], [target]))
            elif self.buffers[value] is not target:
                moves.append((self.buffers[value], target))
        self.move(moves)
        for step in filled:
            self.out.add(step)

    def move(self, moves: Sequence[tuple[Buffer, Buffer]]) -> None:
        """Copies from each buffer to the other, all at once: through temporaries if they swap."""
        moves = [(source, target) for source, target in moves if source is not target]
        while moves:
            sources = {source for source, _ in moves}
            source, target = next((m for m in moves if m[1] not in sources), moves[0])
            if target in sources:  # a cycle: what is overwritten is kept
                kept = Buffer("arena", target.type)
                self.out.add(CopyStep(target, kept))
                moves = [(kept if s is target else s, t) for s, t in moves]
            self.out.add(CopyStep(source, target))
            moves = [move for move in moves if move[1] is not target]

    def single(self, op: Op, position: int, wanted: Mapping[Value, Buffer]) -> None:
        operands = [self.buffers[value] for value in op.operands]
        results: list[Buffer] = []
        for result in op.results:
            if not isinstance(result.type, TensorType):
                raise UnsupportedError(f"{op.place}{op.name}: {result.type} results cannot run")
            buffer = wanted.get(result)
            if buffer is None:
                buffer = self.in_place(op, result, position, results)
            if buffer is None:
                buffer = Buffer("arena", result.type)
            self.buffers[result] = buffer
            results.append(buffer)
        for number, operand in updated(op).items():  # the rest of what is updated has to be there
            if operands[operand] is not results[number]:
                self.out.add(CopyStep(operands[operand], results[number]))
                operands[operand] = results[number]
        self.out.add(RunStep(op, operands, results))

    def in_place(
        self, op: Op, result: Value, position: int, taken: Sequence[Buffer]
    ) -> Buffer | None:
        """An operand's buffer that nobody reads any more and that `op` may overwrite."""
        for number, operand in enumerate(op.operands):
            buffer = self.buffers[operand]
            if (
                buffer.place == "arena"
                and buffer not in taken
                and buffer.bytes == result.tensor.bytes
                and self.ends.get(buffer, -1) <= position
                and sum(self.buffers[other] is buffer for other in op.operands) == 1
                and not self.hinders(op, number, result.index)
                and buffer not in self.pinned
            ):
                return buffer
        return None

    def constant(self, op: Op) -> None:
        dense: Dense = op.attributes["value"]
        if dense.is_splat and dense.type.bytes > INLINE_SPLAT_BYTES:
            own = Op(op.definition, (), op.attributes, (), op.result_types, op.origin)
            body = Region((), (own,), own.results)
            fill = make_op("fusion", (), {"kind": "loop"}, (body,), None, op.origin, check=False)
            self.await_fill(op.result, fill)
            return
        name = f"constant:{dense.digest.hex()}:{dense.type}"
        if name not in self.weights:
            self.weights[name] = Buffer("weight", dense.type, weight=name)
            self.out.constants[name] = dense
        self.buffers[op.result] = self.weights[name]

    def weight(self, op: Op) -> None:
        name = op.weight
        if name not in self.weights:
            self.weights[name] = Buffer("weight", op.result.tensor, weight=name)
            self.out.weights.append(name)
        self.buffers[op.result] = self.weights[name]

    # Control flow.

    def loop(self, op: Op, position: int, wanted: Mapping[Value, Buffer]) -> None:
        outer = self.captured(op)
        given = [self.buffers.get(operand) for operand in op.operands]
        carried: list[Buffer] = []
        for operand, source, result in zip(op.operands, given, op.results, strict=True):
            reusable = source is not None and (
                source.place == "arena"
                and source not in carried
                and source not in outer  # read anew in every turn
                and source not in self.pinned
                and result not in wanted
                and self.ends.get(source, -1) <= position
                and given.count(source) == 1
            )
            if source is not None and reusable:
                carried.append(source)
                continue
            buffer = wanted.get(result) or Buffer("arena", result.tensor)
            if operand in self.fills:  # straight into the memory of each carried value
                self.out.add(RunStep(self.fills[operand], [], [buffer]))
            elif source is not None and source is not buffer:
                self.out.add(CopyStep(source, buffer))
            carried.append(buffer)
        body = op.regions[1]
        places = turns(body, carried, self.hinders, lambda n: Buffer("arena", op.results[n].tensor))
        before, self.pinned = self.pinned, self.pinned | outer
        self.pinned = self.pinned.union(*places)
        begin, end = Label(), Label()
        ends = [end, *(Label() for _ in places[1:])]  # where turns go that are not made
        self.out.mark(begin)
        for number, known in enumerate(known_turns(op, len(places))):
            following = places[(number + 1) % len(places)]
            self.iterate(op, places[number], following, ends[number], known)
        self.out.add(JumpStep(begin, back=True))
        for given, left in zip(places[1:], ends[1:], strict=True):
            self.out.mark(left)
            self.move(list(zip(given, carried, strict=True)))
            if given is not places[-1]:
                self.out.add(JumpStep(end))
        self.out.mark(end)
        self.pinned = before
        self.buffers.update(zip(op.results, carried, strict=True))

    def iterate(
        self,
        op: Op,
        given: Sequence[Buffer],
        new: Sequence[Buffer],
        left: Label,
        known: KnownTurns | None,
    ) -> None:
        """One turn of a loop, from the carried values' memory to that of the next ones, or on to
        `left`."""
        condition, body = op.regions
        self.buffers.update(zip(condition.arguments, given, strict=True))
        self.region(condition, {})
        self.fill(condition.results)
        self.out.add(BranchStep(self.buffers[condition.results[0]], left, known))
        self.buffers.update(zip(body.arguments, given, strict=True))
        holders = dict(zip(given, body.arguments, strict=True))
        carries = [(holders[b], n, b) for n, b in enumerate(new) if b in holders]
        wanted = self.overwritten(body, carries)
        roots = alias_roots(body)
        for number, buffer in enumerate(new):
            if buffer not in holders:  # memory of its own: nothing hinders
                value = body.results[number]
                wanted[roots.get(value, value)] = buffer
        self.region(body, wanted)
        self.deliver(body.results, new)

    def captured(self, op: Op) -> set[Buffer]:
        """The memory that an operation's regions read of those around them."""
        values = (value for region in op.regions for value in region.captures())
        return {self.buffers[value] for value in values if value in self.buffers}

    def branch(self, op: Op, wanted: Mapping[Value, Buffer]) -> None:
        results = [wanted.get(r) or Buffer("arena", r.tensor) for r in op.results]
        selector = self.buffers[op.operands[0]]
        end = Label()
        labels = [Label() for _ in op.regions]
        if op.name == "if":
            self.out.add(BranchStep(selector, labels[1]))
        else:
            self.out.add(SwitchStep(selector, labels))
        before, self.pinned = self.pinned, self.pinned | set(results) | self.captured(op)
        for region, label in zip(op.regions, labels, strict=True):
            self.out.mark(label)
            self.region(region, self.branch_targets(region, results))
            self.deliver(region.results, results)
            if region is not op.regions[-1]:
                self.out.add(JumpStep(end))
        self.out.mark(end)
        self.pinned = before
        self.buffers.update(zip(op.results, results, strict=True))

    def branch_targets(self, region: Region, results: Sequence[Buffer]) -> dict[Value, Buffer]:
        roots = alias_roots(region)
        wanted = [roots.get(value, value) for value in region.results]
        inside = set(region.ops)
        return {
            root: buffer
            for root, buffer in zip(wanted, results, strict=True)
            if root.op in inside
            and wanted.count(root) == 1
            and root.op is not None
            and not root.op.definition.stored
        }


def _pairs(body: Region, carried: Sequence[Buffer]) -> list[Carry]:
    """A loop's body replaces each carried value by the result of the same number."""
    return [(a, n, b) for n, (a, b) in enumerate(zip(body.arguments, carried, strict=True))]


def last_uses(region: Region) -> dict[Value, int]:
    """The position of each value's last use; results of the region are used at its end."""
    last: dict[Value, int] = {}
    for position, op in enumerate(region.ops):
        for value in op.operands:
            last[value] = position
        for nested in op.regions:
            for value in nested.captures():
                last[value] = position
        for result in op.results:
            last.setdefault(result, position)
    for value in region.results:
        last[value] = len(region.ops)
    return last


def read_first(op: Op) -> Iterator[Value]:
    """The values that have to be there when an operation begins; what a loop starts with has not,
    where it can be filled, and neither has what a region returns."""
    if op.name != "while":
        yield from op.operands
    if op.definition.flow:
        for inner in (inner for region in op.regions for inner in region.ops):
            yield from read_first(inner)


def live_ranges(plan: Schedule, place: str = "arena") -> dict[Buffer, tuple[int, int]]:
    """First and last step of every buffer of a place, loops counted as one: what is live where a
    loop begins and is touched inside stays live to its end."""
    ranges: dict[Buffer, tuple[int, int]] = {}
    for number, step in enumerate(plan.steps):
        for buffer in touched(step):
            if buffer.place == place:
                first, _ = ranges.get(buffer, (number, number))
                ranges[buffer] = (first, number)
    loops = [
        (plan.labels[step.target], number)
        for number, step in enumerate(plan.steps)
        if isinstance(step, JumpStep) and step.back
    ]
    changed = True
    while changed:
        changed = False
        for begin, end in loops:
            for buffer, (first, last) in ranges.items():
                if first < begin <= last < end:
                    ranges[buffer] = (first, end)
                    changed = True
    return ranges


def _spelled(size: Dim) -> str:
    return f"{size:,}" if isinstance(size, int) else str(size)


def reads(step: Step) -> list[Buffer]:
    """Every buffer that a step reads."""
    if isinstance(step, RunStep):
        return list(step.operands)
    if isinstance(step, CopyStep):
        return [step.source]
    if isinstance(step, BranchStep):
        return [step.condition]
    if isinstance(step, SwitchStep):
        return [step.index]
    if isinstance(step, JumpStep):
        return []
    raise CompilerBug(f"unknown step {step}")


def writes(step: Step) -> list[Buffer]:
    """Every buffer that a step writes."""
    if isinstance(step, RunStep):
        return list(step.results)
    return [step.target] if isinstance(step, CopyStep) else []


def touched(step: Step) -> list[Buffer]:
    """Every buffer that a step reads or writes."""
    return [*reads(step), *writes(step)]
