"""The plan of a schedule: buffers placed, kernels numbered, steps with their barriers.

Generic over targets: what a kernel costs and how it may be split comes from the backend as
`KernelFacts`. The message that is filled here is specs/plan.proto's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..hlo.build import make_op
from ..hlo.deciding import at_hint, codeable, decided_by, largest
from ..hlo.errors import UnsupportedError, UserError
from ..hlo.graph import Op, Origin, Region, arguments, symbols_in
from ..hlo.messages import most_staged
from ..hlo.ops.collectives import members
from ..hlo.ops.exchange import transfers
from ..hlo.regions import shared_parts
from ..hlo.sizes import SizeConstraint
from ..hlo.symbols import Dim, SymbolicDim
from ..hlo.text import canonical_op
from ..hlo.tiling import TILE_OPS
from ..hlo.types import UI8, TensorType
from ..specs.generated import plan_pb2
from ..workers import step_pays
from .certify import ReusedPlace, check_plan
from .counted import count_runs, counted, step_time
from .hazards import BufferPlaces, Hazards, in_arena, places
from .library import BETWEEN, able
from .machine import Machine
from .memory import ALIGNMENT, SEARCH_NODES, Placement
from .merges import NOT_FIXED, Candidate, Merged, Merging, candidate, merged
from .output_reuse import Reused
from .persistent import Persistence, persistent
from .prove import prove
from .schedule import (
    BranchStep,
    Buffer,
    CopyStep,
    JumpStep,
    RunStep,
    Schedule,
    Step,
    SwitchStep,
    reads,
    writes,
)
from .schedule_choice import choose_schedule
from .windows import updated
from .worker_memory import WorkerMemory

# What a plan needs of its runtime, as little as it can: a newer minor version adds something, a
# newer major one changes what is there, such as the tables that workers of all programs share.
PLAN_FORMAT, WITH_FUNCTIONS, WITH_LAUNCHES, WITH_STEPS = "1.0", "1.1", "1.2", "1.3"
WITH_SCRATCH = "1.4"  # the runs of a GPU say where their scratch lies
WITH_SIZES = "1.6"  # calls decide sizes
WITH_PROCESSES = "1.5"  # several processes run it, and exchange
WITH_BOXES = "1.6"  # exchanges of GPUs, whose boxes are copied by entries of the module
WITH_UNDO = "1.7"  # results are followed by what is kept of state
WITH_RANGES = "1.8"  # task ranges, whose steps wait for counters
ADDRESSABLE = 1 << 57  # bytes of the largest address space of 64-bit processors
COPY = "exchange_copy$"  # what these entries begin with; no kernel's name is so
_CHEAP = 256  # operations, and bytes
UPDATED_BY = {"dynamic_update_slice": 1, "scatter": 2}  # the operand that says what is written


class KernelFacts(NamedTuple):
    """What a plan needs to know of a kernel: see specs/plan.proto, `Kernel` and `Run`."""

    tiles: Dim
    scratch_bytes: Dim = 0
    flops: float = 0.0
    bytes: float = 0.0
    parallel: bool = True
    notes: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    launches: tuple[Any, ...] = ()  # plan_pb2.Launch, on a GPU
    approximate: tuple[str, ...] = ()
    sizes: tuple[SymbolicDim, ...] = ()  # that the call decides
    guards: tuple[SizeConstraint, ...] = ()  # of calls that it is for


@dataclass
class KernelEntry:
    """One distinct kernel of a program: `key` is its canonical text."""

    key: str
    op: Op
    facts: KernelFacts
    index: int
    origins: dict[Origin, None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What it is called in its plan."""
        return f"{kernel_kind(self.op)}_{headline(kernel_ops(self.op))}_{self.index}"


Facts = Callable[[str, Op], KernelFacts]  # (canonical text, operation); UnsupportedError if none


class Planner:
    """Builds one plan. `plan` and `kernels` are its results after `run`."""

    def __init__(
        self,
        schedule: Schedule,
        target: str,
        facts: Facts,
        notes: Sequence[str] = (),
        machine: Machine | None = None,
        overlap: float = 0.0,
        merging: Merging | None = None,
        persistence: Persistence | None = None,
    ) -> None:
        """machine: that of a target whose workers can count what is complete, step by step; None:
        they meet. overlap: the part of its bound by which the arena may be larger for that.
        merging: what steps are merged for; None: none is. persistence: what all steps are one
        launch for; None: they are not."""
        self.persistence, self.waiting = persistence, set[int]()
        # What calls decide of places and tiles, and what processes do together, needs barriers.
        self.fixed = fixed = schedule.decisions is None and not schedule.processes
        self.machine, self.overlap = machine if fixed else None, overlap
        self.own, self.kept = WorkerMemory({}, 0, frozenset()), 0
        self.merging, self.merged = merging, Merged(schedule)
        self.schedule, self.facts = schedule, facts
        self.kernels: dict[str, KernelEntry] = {}
        self.same: dict[Any, tuple[KernelEntry, Op]] = {}  # by what copies of a kernel share
        self.numbers: dict[Buffer, int] = {}
        self.offsets: Mapping[Buffer, int] = {}
        self.ranges: dict[Buffer, tuple[int, int]] = {}  # of arena buffers, and of those in outputs
        self.reused: Mapping[Buffer, Reused] = {}
        self.places = BufferPlaces({}, {})
        self.scratch: dict[int, Buffer] = {}  # by step
        self.interfering: dict[
            Buffer, set[Buffer]
        ] = {}  # that must not overlap, though at other times
        self.formulas: dict[str, int] = {}
        self.plan = plan_pb2.Plan(format_version=PLAN_FORMAT, target=target, notes=notes)
        self.on_gpu = target.partition(":")[0] == "nvidia"

    def run(self) -> Any:
        """The plan; its kernels have no entries yet. UnsupportedError lists all missing kernels."""
        decisions = self.schedule.decisions
        with decided_by(decisions):
            plan = self._run()
        if decisions is not None:
            for guard in decisions.guards:
                plan.guards.add(text=str(guard), origin=guard.origin)
        return plan

    def _run(self) -> Any:
        if self.schedule.processes:
            self.plan.processes = self.schedule.processes
            self.require(WITH_PROCESSES)
        runs = self.collect()
        counts = False
        if self.machine is not None:
            runs, counts = self.coschedule(runs, self.machine)
        if self.merging is not None:
            runs = self.merge(runs, self.merging)
        placement = self.place(runs)
        self.steps(runs)
        if counts:
            count_runs(self.plan, self.schedule, self.places, self.own)
            self.require(WITH_RANGES)
        elif self.on_gpu and self.fixed and len(runs) > 1:
            # Waits are edges of graphs there, of which a node may have any number. A runtime that
            # knows none runs one step after the other, as every order of the waits is.
            most = len(self.schedule.steps)
            count_runs(self.plan, self.schedule, self.places, self.own, self.scratch, most)
        plan = self.plan
        self.merged.describe(plan)
        plan.inputs.extend([self.number(buffer) for buffer in self.schedule.inputs])
        plan.outputs.extend([self.number(buffer) for buffer in self.schedule.outputs])
        for one in self.schedule.undo:
            plan.undo.add(**one._asdict())
        if any(one.rows for one in self.schedule.undo):
            self.require(WITH_UNDO)
        plan.arena_alignment = ALIGNMENT
        if self.schedule.decisions is not None:
            self.above()
            self.require(WITH_SIZES)
        for entry in self.kernels.values():
            self.describe(entry)
        self.summarise(placement)
        check_plan(plan, self.results(), self.reused_places(), parts=self.parts())
        resident = 0
        if self.persistence is not None:
            persistent(plan, self.waiting, self.persistence)
            resident = self.persistence.blocks
        prove(plan, self.results(), self.reused_places(), resident)
        if self.merging is not None and not self.merging.forced and self.fixed:
            self.choose(runs, self.merging)
        return plan

    # Kernels.

    def collect(self) -> dict[int, KernelEntry]:
        """The kernel of each step that runs one; all missing kernels at once in one error."""
        runs: dict[int, KernelEntry] = {}
        missing: dict[str, None] = {}
        for number, step in enumerate(self.schedule.steps):
            if exchanges(step):
                continue
            if isinstance(step, RunStep):
                op = step.op
            elif isinstance(step, CopyStep):
                op = copy_op(step.target.bytes)
            else:
                continue
            try:
                runs[number] = self.kernel(op)
            except UnsupportedError as error:
                missing[str(error)] = None
        if missing:
            raise UnsupportedError("\n".join(missing))
        return runs

    def kernel(self, op: Op) -> KernelEntry:
        shared = shared_parts(op)
        known = self.same.get(shared) if shared else None
        if known is not None:
            entry = known[0]
        else:
            key, names = canonical_op(op), ()
            if self.schedule.decisions is not None:  # code is made by what is known of its sizes
                names = symbols_in(op)
                key += self.schedule.decisions.said_of(names)
            entry = self.kernels.get(key)
            if entry is None:
                with codeable(op.place, headline(kernel_ops(op)), names):
                    facts = self.facts(key, op)
                entry = self.kernels[key] = KernelEntry(key, op, facts, len(self.kernels))
            if shared:
                self.same[shared] = entry, op
        entry.origins.update(dict.fromkeys(op.origin))
        return entry

    def describe(self, entry: KernelEntry) -> None:
        ops = kernel_ops(entry.op)
        message = self.plan.kernels.add()
        message.kind = kernel_kind(entry.op)
        message.name = entry.name
        message.scratch_bytes = largest(entry.facts.scratch_bytes)
        message.ops.extend(ops)
        for origin in list(entry.origins)[:16]:
            message.origins.add(file=origin.file, line=origin.line, name=origin.name)
        message.engine = "library" if entry.facts.functions else "compiler"
        message.notes.extend(entry.facts.notes)
        message.functions.extend(entry.facts.functions)
        message.launches.extend(entry.facts.launches)
        message.approximate.extend(entry.facts.approximate)
        if entry.facts.functions:
            self.require(WITH_FUNCTIONS)
        if entry.facts.launches:
            self.require(WITH_LAUNCHES)
        if any(a.tensor_map.steps for one in entry.facts.launches for a in one.arguments):
            self.require(WITH_STEPS)

    def require(self, version: str) -> None:
        """The plan uses what came with this format; versions differ in one digit."""
        self.plan.format_version = max(self.plan.format_version, version)

    def coschedule(
        self, runs: dict[int, KernelEntry], machine: Machine
    ) -> tuple[dict[int, KernelEntry], bool]:
        """Takes the order in which steps share workers best: the kernels of its steps, and whether
        workers count what is complete; they should rather meet where they do not."""
        cheap = {number for number, entry in runs.items() if is_cheap(entry.facts)}
        times = {
            number: step_time(
                machine, facts.flops, facts.bytes, at_hint(facts.tiles) if facts.parallel else 1
            )
            for number, facts in ((number, entry.facts) for number, entry in runs.items())
        }
        found = counted(self.schedule, times, cheap.__contains__, machine, self.overlap)
        if found is None:
            return runs, False
        self.schedule, self.own, self.kept = found.schedule, found.own, found.kept
        moved = {number: runs[old] for number, old in enumerate(found.order) if old in runs}
        return moved, True

    def merge(self, runs: dict[int, KernelEntry], merging: Merging) -> dict[int, KernelEntry]:
        """Takes the order in which merged steps follow each other: the kernels of its steps."""
        steps = self.schedule.steps

        def made(number: int) -> Candidate:
            step, entry = steps[number], runs[number]
            op = step.op if isinstance(step, RunStep) else entry.op
            return candidate(number, op, entry.index, entry.facts, merging)

        sizes = {number: largest(entry.facts.scratch_bytes) for number, entry in runs.items()}
        scratch = {number: size for number, size in sizes.items() if size}
        why = "" if self.fixed else NOT_FIXED[self.schedule.processes > 0]
        self.merged = merged(self.schedule, made, scratch, merging, why)
        self.schedule = self.merged.schedule
        order = self.merged.order or range(len(steps))
        return {number: runs[old] for number, old in enumerate(order) if old in runs}

    def choose(self, runs: Mapping[int, KernelEntry], merging: Merging) -> None:
        """Says what each way to run the plan is predicted to take, and which is taken."""
        works = {}
        for number, entry in runs.items():
            if entry.index not in works:
                made = candidate(number, entry.op, entry.index, entry.facts, merging)
                works[entry.index] = made.work
        choose_schedule(self.plan, works, self.waiting, merging.machine, merging.most)

    # Buffers.

    def formula(self, size: Any) -> int:
        """1 + the number of a size that the call decides; 0 for numbers."""
        if not isinstance(size, SymbolicDim):
            return 0
        text = repr(size)
        if text not in self.formulas:
            self.formulas[text] = len(self.formulas) + 1
            self.plan.formulas.append(text)
        return self.formulas[text]

    def number(self, buffer: Buffer) -> int:
        known = self.numbers.get(buffer)
        if known is None:
            offset, size = self.offsets.get(buffer, 0), largest(buffer.bytes)
            offset = self.own.offsets.get(buffer, offset)
            dims = [largest(dim) for dim in buffer.type.dims]
            if max(offset + size, *dims, 0) > ADDRESSABLE:
                raise UserError(
                    f"a program with a {buffer.type} needs more memory than there are addresses: "
                    "make it smaller, or the ranges of its sizes (sizes=)"
                )
            known = self.numbers[buffer] = len(self.plan.buffers)
            place = {
                "arena": plan_pb2.ARENA, "input": plan_pb2.INPUT,
                "output": plan_pb2.OUTPUT, "weight": plan_pb2.WEIGHT,
            }[buffer.place]  # fmt: skip
            self.plan.buffers.add(
                place=plan_pb2.WORKER if buffer in self.own.offsets else place,
                offset=offset, bytes=size, index=buffer.index, weight=buffer.weight,
                element_type=buffer.type.element.name, dims=dims,
                bytes_formula=self.formula(buffer.bytes),
            )  # fmt: skip
            if not buffer.type.is_static:
                dims = map(self.formula, buffer.type.dims)
                self.plan.buffers[known].dim_formulas.extend(dims)
            if buffer in self.ranges:
                first, last = self.ranges[buffer]
                self.plan.buffers[known].first_step = first
                self.plan.buffers[known].last_step = last
            if buffer.replaces is not None:
                self.plan.buffers[known].replaces = buffer.replaces.index
        return known

    def place(self, runs: dict[int, KernelEntry]) -> Placement:
        self.places = places(self.schedule, self.own.offsets, self.kept, self.merged.spans)
        self.ranges, self.reused = dict(self.places.lives), self.places.reused
        self.places.lives = self.ranges
        for number, entry in runs.items():
            if entry.facts.launches and entry.facts.scratch_bytes:
                scratch = Buffer("arena", TensorType((entry.facts.scratch_bytes,), UI8))
                self.scratch[number], self.ranges[scratch] = scratch, (number, number)
        for number, size in self.staged().items():
            scratch = Buffer("arena", TensorType((size,), UI8))
            self.scratch[number], self.ranges[scratch] = scratch, (number, number)
        placement = in_arena(self.places, SEARCH_NODES)
        self.offsets = self.places.offsets
        return placement

    def above(self) -> None:
        """Which buffers lie above which: those that live together, or that steps touch which do not
        wait for each other, keep their order at all sizes. What follows from others is left out."""
        placed = sorted(self.offsets, key=lambda b: self.offsets[b])
        below = [0] * len(placed)  # all that a buffer lies above, as bits
        for number, buffer in enumerate(placed):
            first, last = self.ranges[buffer]
            message = self.plan.buffers[self.number(buffer)]
            for nearest in range(number - 1, -1, -1):
                other = placed[nearest]
                begin, end = self.ranges[other]
                together = begin <= last and first <= end
                if below[number] >> nearest & 1:
                    continue
                if together or other in self.interfering.get(buffer, ()):
                    message.above.append(self.number(other))
                    below[number] |= below[nearest] | 1 << nearest

    def staged(self) -> dict[int, int]:
        """Of each exchange of GPUs the bytes that the process needs for messages which needs most;
        processes on a CPU have memory of their own for them."""
        found: dict[int, int] = {}
        if self.on_gpu and self.schedule.processes:
            for number, step in enumerate(self.schedule.steps):
                if isinstance(step, RunStep) and step.op.name == "exchange":
                    op = step.op
                    found[number] = most_staged(
                        transfers(op), self.schedule.processes, op.operands[0].dims,
                        op.result.dims, op.result.element.dtype.itemsize, ALIGNMENT,
                    )  # fmt: skip
        return {number: size for number, size in found.items() if size}

    def argument(self, buffer: Buffer) -> Any:
        owner, offset = self.reused.get(buffer, (buffer, 0))
        return plan_pb2.Argument(buffer=self.number(owner), offset=offset)

    def reused_places(self) -> list[ReusedPlace]:
        """The buffers that live in outputs, as the checker takes them."""
        return [
            ReusedPlace(self.number(owner), offset, buffer.bytes, *self.ranges[buffer])
            for buffer, (owner, offset) in self.reused.items()
        ]

    # Steps.

    def results(self) -> dict[int, int]:
        """Of each step that runs a kernel, how many of its arguments it writes."""
        return {
            number: len(step.results) if isinstance(step, RunStep) else 1
            for number, step in enumerate(self.schedule.steps)
            if isinstance(step, RunStep | CopyStep) and not exchanges(step)
        }

    def parts(self) -> dict[int, dict[int, int]]:
        """Of each step that writes results in part, the operands that hold the rest."""
        return {
            number: partly
            for number, step in enumerate(self.schedule.steps)
            if isinstance(step, RunStep) and (partly := updated(step.op))
        }

    def steps(self, runs: dict[int, KernelEntry]) -> None:
        starts = set(self.schedule.labels.values())
        hazards = Hazards(self.places)
        labels = self.schedule.labels
        for number, step in enumerate(self.schedule.steps):
            message = self.plan.steps.add()
            if number in starts:
                hazards.unknown()
            if isinstance(step, BranchStep):
                message.branch_if_false.condition.CopyFrom(self.argument(step.condition))
                message.branch_if_false.target = labels[step.target]
                message.branch_if_false.wait = hazards.step([step.condition], [])
                if step.known is not None:
                    message.branch_if_false.known.turns = step.known.turns
                    message.branch_if_false.known.here = step.known.here
            elif isinstance(step, SwitchStep):
                message.switch.index.CopyFrom(self.argument(step.index))
                message.switch.targets.extend([labels[target] for target in step.targets])
                message.switch.wait = hazards.step([step.index], [])
            elif isinstance(step, JumpStep):
                message.jump.target = labels[step.target]
            elif isinstance(step, RunStep) and exchanges(step):
                if step.op.name == "exchange":
                    self.exchange_step(message.exchange, step, self.scratch.get(number))
                else:
                    self.collective_step(message.collective, step)
                hazards.unknown()  # what it waits for, it has waited for
            else:
                scratch = [self.scratch[number]] if number in self.scratch else []
                self.kernel_step(message.run, step, runs[number], hazards, scratch)
                if scratch:
                    message.run.scratch.CopyFrom(self.argument(*scratch))
                    self.require(WITH_SCRATCH)
            action = getattr(message, message.WhichOneof("action") or "")
            if getattr(action, "wait", False):
                self.waiting.add(number)
        self.interfering = hazards.interfering

    def kernel_step(
        self, run: Any, step: Step, entry: KernelEntry, hazards: Hazards, scratch: Sequence[Buffer]
    ) -> None:
        read, written = reads(step), writes(step)
        facts = entry.facts
        moved = judged = facts.bytes
        update = UPDATED_BY.get(step.op.name) if isinstance(step, RunStep) else None
        last = written[-1]
        if update is not None and len(written) == 1 and read[0] in (last, last.replaces):
            # The rest of what is updated stays where it is; of a donated argument, if it is given.
            moved += at_hint(read[update].bytes - read[0].bytes - last.bytes)
            if read[0] is last:
                judged = moved
        several = facts.parallel and at_hint(facts.tiles) > 1
        parallel = several and step_pays(facts.flops, judged)
        if isinstance(facts.tiles, SymbolicDim):  # the runtime judges it at each size
            parallel = facts.parallel
        run.kernel = entry.index
        run.arguments.extend([self.argument(buffer) for buffer in [*read, *written]])
        run.operands = len(read)
        if isinstance(step, RunStep) and step.op.origin and len(entry.origins) > 1:
            place = step.op.origin[0]
            run.origin.file, run.origin.line, run.origin.name = place
        run.tiles, run.parallel = largest(facts.tiles), parallel
        run.tiles_formula = self.formula(facts.tiles)
        run.sizes.extend([self.formula(size) - 1 for size in facts.sizes])
        run.flops, run.bytes = facts.flops, moved
        run.wait = hazards.step(read, [*written, *scratch])

    def exchange_step(self, message: Any, step: RunStep, scratch: Buffer | None) -> None:
        if self.on_gpu:
            message.copy = COPY
            self.require(WITH_BOXES)
        if scratch is not None:
            message.scratch.CopyFrom(self.argument(scratch))
        message.operand.CopyFrom(self.argument(step.operands[0]))
        message.result.CopyFrom(self.argument(step.results[0]))
        message.element_bytes = step.op.result.element.dtype.itemsize
        message.part_of = step.op.part_of
        message.operand_dims.extend(step.op.operands[0].dims)
        message.result_dims.extend(step.op.result.dims)
        for transfer in transfers(step.op):
            message.transfers.add(**transfer._asdict())
        if step.op.origin:
            place = step.op.origin[0]
            message.origin.file, message.origin.line, message.origin.name = place

    def collective_step(self, message: Any, step: RunStep) -> None:
        if self.on_gpu:
            self.require(WITH_BOXES)
        op = step.op
        groups = members(op) or (tuple(range(self.plan.processes)),)
        if not able(op, groups):
            raise UnsupportedError(f"{op.place}{op.name}: no library of processes does it")
        message.kind, message.element_type = op.name, op.result.element.name
        message.operand.CopyFrom(self.argument(step.operands[0]))
        message.result.CopyFrom(self.argument(step.results[0]))
        message.elements = op.operands[0].tensor.size
        for group in groups:
            message.groups.add().processes.extend(group)
        if op.origin:
            place = op.origin[0]
            message.origin.file, message.origin.line, message.origin.name = place

    def summarise(self, placement: Placement) -> None:
        schedule, memory = self.schedule, self.plan.memory
        memory.argument_bytes = sum(largest(buffer.bytes) for buffer in schedule.inputs)
        memory.output_bytes = sum(largest(buffer.bytes) for buffer in schedule.outputs)
        weights = [b for b in self.numbers if b.place == "weight"]
        memory.constant_bytes = sum(buffer.bytes for buffer in weights)
        memory.temporary_bytes = placement.live_bytes
        memory.lower_bound_bytes = placement.bound_bytes
        memory.arena_bytes = placement.arena_bytes
        memory.placement_proof = placement.proof
        memory.peak_step = placement.peak_step
        memory.order_bound_bytes = schedule.order_bound
        memory.order_proof = schedule.order_proof
        memory.scratch_bytes = max(
            (largest(e.facts.scratch_bytes) for e in self.kernels.values() if not e.facts.launches),
            default=0,
        )


def is_cheap(facts: KernelFacts) -> bool:
    """Whether each worker may run such a kernel for itself: it takes less than to meet."""
    plain = not (facts.functions or facts.sizes or facts.launches)
    return plain and facts.tiles == 1 and facts.flops <= _CHEAP and facts.bytes <= _CHEAP


def exchanges(step: Step) -> bool:
    """Whether processes communicate in this step; no kernel runs."""
    return isinstance(step, RunStep) and step.op.name in BETWEEN


def copy_op(size: int) -> Op:
    """A kernel that copies `size` bytes."""
    type = TensorType((size,), UI8)
    own = arguments([type])
    region = Region(own, (), own)
    return make_op("fusion", arguments([type]), {"kind": "loop"}, (region,), check=False)


def kernel_kind(op: Op) -> str:
    """What a kernel is made from: a fusion's kind, "tile" for a tile function, "foreign" for code
    that was written elsewhere, else "opaque"."""
    if op.name == "kernel_call":
        return "tile"
    if op.name == "foreign_call":
        return "foreign"
    return op.kind if op.name == "fusion" else "opaque"


def kernel_ops(op: Op) -> list[str]:
    """The names of what a kernel computes; a tile function's begin with its own name."""
    if op.name == "fusion":
        return [inner.name for inner in op.regions[0].ops]
    if op.name == "foreign_call":
        return [op.kernel]
    if op.name != "kernel_call":
        return [op.name]
    walked = [inner for inner in op.regions[0].walk() if inner.name not in TILE_OPS]
    tiled = [inner.name for inner in walked if inner.results and inner.results[0].rank]
    return [op.kernel, *tiled]


_PLAIN = frozenset(
    {"constant", "broadcast_in_dim", "reshape", "convert", "iota", "dynamic_update_slice"}
)


def headline(ops: Sequence[str]) -> str:
    """What a kernel is about, in a few words of its operations."""
    counts: dict[str, int] = {}
    for name in ops:
        if name not in _PLAIN:
            counts[name] = counts.get(name, 0) + 1
    rare = [name.replace("chlo.", "") for name in counts][-3:]
    return "_".join(rare) or (ops[-1] if ops else "copy")
