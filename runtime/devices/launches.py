"""A plan's steps as a GPU's device walks them, checked against the memory that they name."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ...hlo.errors import UserError
from ...hlo.types import element_type
from ...specs.generated import plan_pb2
from ..profile import origin_text
from .driver import LaunchConfiguration, Limits, TensorMapBox
from .exchanges import Collect, Communicate, collective_step, exchange_steps
from .gpu_steps import Array, Choose, Jump, KernelStep, Mapped, Parameter, Started, Where, volume
from .limits import check_buffers, malformed
from .merged_steps import merge_steps
from .persistent_launch import persistent_launch
from .starts import check_start

ALIGNMENT = 256  # of whatever a device allocates
ARENA, SCRATCH, WEIGHTS, CALL = range(4)  # bases: CALL and on are arguments, then results
_MAP_ALIGNMENT = 16
_SWIZZLES = (0, 32, 64, 128)


Step = KernelStep | Choose | Jump | Communicate | Collect


class LaunchProgram(NamedTuple):
    """A plan ready for a driver: `weights`: name -> offset behind WEIGHTS, of all that are given,
    so that plans of the same weights find them in the same places. Exchanges are several steps, so
    that numbers of steps are not the plan's."""

    steps: tuple[Step, ...]
    weights: Mapping[str, int]
    weight_bytes: int
    inputs: tuple[int, ...]  # bytes of each
    outputs: tuple[int, ...]
    results: tuple[Where, ...]  # where each result lies when all steps are done
    scratch_bytes: int  # behind SCRATCH, for plans that do not say where scratch lies
    persistent: Started | None = None  # all steps as one launch


def decode(
    plan: plan_pb2.Plan,
    weights: Mapping[str, np.ndarray],
    rank: int = 0,
    sizes: Sequence[int] = (),
) -> LaunchProgram:
    """The plan's steps, as process number `rank` of several takes them; UserError where it
    contradicts itself or lacks weights. sizes: the values of its formulas."""
    try:
        return _PlanReader(plan, weights, rank, sizes).read()
    except (IndexError, OverflowError) as error:
        raise malformed(f"it names what it does not hold ({error})") from error


def _moved(step: Step, first: Sequence[int]) -> Step:
    """The step, whose targets are steps of the plan, where step n begins at first[n]."""
    targets = step.targets if isinstance(step, Choose) else ()
    targets = (step.target,) if isinstance(step, Jump) else targets
    if any(target >= len(first) for target in targets):
        raise malformed("a jump leads out of its steps")
    if isinstance(step, Choose):
        return step._replace(targets=tuple(first[target] for target in targets))
    if isinstance(step, KernelStep) and step.after:
        return step._replace(after=tuple(first[other] for other in step.after))
    return step._replace(target=first[step.target]) if isinstance(step, Jump) else step


def check_device(program: LaunchProgram, limits: Limits, device: str) -> None:
    """UserError where a launch asks for more than the device has."""
    for step in program.steps:
        if not isinstance(step, KernelStep):
            continue
        for start, *_ in step.launches:
            if start.shared_bytes > limits.shared_bytes:
                raise UserError(
                    f"kernel {step.kernel} needs {start.shared_bytes} bytes of shared memory, "
                    f"{device} gives a block {limits.shared_bytes}; compile it for this device"
                )
            if volume(start.cluster) > limits.cluster:
                raise UserError(
                    f"kernel {step.kernel} runs in clusters of {volume(start.cluster)} blocks, "
                    f"{device} takes at most {limits.cluster}; compile it for this device"
                )


class _PlanReader:
    """Decodes one plan."""

    def __init__(
        self,
        plan: plan_pb2.Plan,
        weights: Mapping[str, np.ndarray],
        rank: int,
        sizes: Sequence[int] = (),
    ) -> None:
        self.plan, self.given, self.rank, self.sizes = plan, weights, rank, sizes
        self.weights: dict[str, int] = {}
        self.weight_bytes = 0

    def read(self) -> LaunchProgram:
        plan = self.plan
        check_buffers(plan)
        for name, array in self.given.items():
            self.weights[name] = self.weight_bytes
            self.weight_bytes += aligned(array.nbytes)
        self.homes = [self.home(buffer) for buffer in plan.buffers]
        dead = self.dying()
        counted = [(step.run.signal, n) for n, step in enumerate(plan.steps) if step.run.signal]
        self.counted = dict(counted)
        if len(self.counted) < len(counted):
            raise malformed("several steps have one counter")
        pieces = [self.step(index, step, dead) for index, step in enumerate(plan.steps)]
        for merge in plan.merges:
            merge_steps(plan, merge, pieces)
        first = list(accumulate(map(len, pieces), initial=0))
        steps = tuple(_moved(step, first) for piece in pieces for step in piece)
        works = [step for step in steps if isinstance(step, KernelStep)]
        return LaunchProgram(
            steps,
            self.weights,
            self.weight_bytes,
            tuple(plan.buffers[index].bytes for index in plan.inputs),
            tuple(plan.buffers[index].bytes for index in plan.outputs),
            tuple(self.homes[index] for index in plan.outputs),
            max((step.scratch_bytes for step in works if step.scratch.base == SCRATCH), default=0),
            persistent_launch(plan, steps) if plan.HasField("persistent") else None,
        )

    def home(self, buffer: plan_pb2.Buffer) -> Where:
        """Where a buffer begins."""
        if buffer.place == plan_pb2.ARENA:
            return Where(ARENA, buffer.offset)
        if buffer.place == plan_pb2.INPUT:
            return Where(CALL + buffer.index, 0)
        if buffer.place == plan_pb2.OUTPUT:
            return Where(CALL + len(self.plan.inputs) + buffer.index, 0)
        if buffer.place == plan_pb2.WEIGHT:
            return Where(WEIGHTS, self.weight(buffer))
        raise malformed(f"a buffer has the place {buffer.place}")

    def weight(self, buffer: plan_pb2.Buffer) -> int:
        """The offset of a weight among all weights on the device."""
        array = self.given.get(buffer.weight)
        if array is None:
            raise UserError(f"the bundle holds no weight '{buffer.weight}' that its plan names")
        if array.nbytes != buffer.bytes or not array.flags.c_contiguous:
            raise UserError(
                f"weight '{buffer.weight}' has {array.nbytes} bytes, the plan needs "
                f"{buffer.bytes} contiguous ones"
            )
        return self.weights[buffer.weight]

    def dying(self) -> dict[int, list[tuple[int, int]]]:
        """Step -> the arena's buffers of which it is the last reader or writer."""
        found: dict[int, list[tuple[int, int]]] = {}
        for buffer in self.plan.buffers:
            if buffer.place == plan_pb2.ARENA and buffer.bytes:
                found.setdefault(buffer.last_step, []).append((buffer.offset, buffer.bytes))
        return found

    def step(self, index: int, step: plan_pb2.Step, dead: Mapping[int, Sequence]) -> Sequence[Step]:
        action = step.WhichOneof("action")
        if action == "run":
            kernel = self.plan.kernels[step.run.kernel]
            slots = [self.slot(argument) for argument in step.run.arguments]
            own = Where(SCRATCH, 0), kernel.scratch_bytes
            if step.run.HasField("scratch"):
                scratch, room = self.slot(step.run.scratch)
                needed = min(room, kernel.scratch_bytes) if step.run.sizes else kernel.scratch_bytes
                if scratch.base != ARENA or room < needed:
                    raise malformed(
                        f"the scratch of kernel {kernel.name} lies outside of the arena"
                    )
                own = scratch, needed
            sizes = [self.sizes[number] for number in step.run.sizes]
            launches = tuple(
                _launch(launch, _Given(slots, own, kernel, sizes)) for launch in kernel.launches
            )
            origin = origin_text(kernel)
            arrays = tuple(
                self.array(number, argument, where, room)
                for number, (argument, (where, room)) in enumerate(
                    zip(step.run.arguments, slots, strict=True)
                )
            )
            # A scratch that all kernels have is used by one at a time.
            waits = step.run.wait or (own[0].base == SCRATCH and kernel.scratch_bytes > 0)
            return [
                KernelStep(
                    kernel.name, origin, launches, tuple(dead.get(index, ())), arrays, *own, index,
                    after=self.after(step.run), wait=waits,
                )
            ]  # fmt: skip
        if action in ("exchange", "collective"):
            return self.communication(step, tuple(dead.get(index, ())))
        if action == "branch_if_false":
            where, room = self.slot(step.branch_if_false.condition)
            if room < 1:
                raise malformed("a condition lies outside its buffer")
            known, holds = step.branch_if_false.known, None
            if step.branch_if_false.HasField("known"):
                holds = known.turns if known.here else -1
            return [Choose(where, 1, (step.branch_if_false.target, index + 1), holds)]
        if action == "switch":
            where, room = self.slot(step.switch.index)
            if room < 4 or not step.switch.targets:
                raise malformed("a switch has no index, or nowhere to go")
            return [Choose(where, 4, tuple(step.switch.targets))]
        if action == "jump":
            return [Jump(step.jump.target)]
        raise malformed(f"step {index} has no action")

    def after(self, run: plan_pb2.Run) -> tuple[int, ...]:
        """The steps of this turn that a run waits for; those of earlier ones are complete."""
        found = [self.counted.get(wait.counter + 1) for wait in run.waits if wait.threshold]
        if None in found:
            raise malformed("a step waits for a counter that no step has")
        return tuple(step for step in found if step is not None)

    def communication(self, step: plan_pb2.Step, dead: tuple[tuple[int, int], ...]) -> list[Step]:
        """What this process does in a step that several take together."""
        if not self.plan.processes:
            raise malformed("one process has nobody to exchange with")
        if step.WhichOneof("action") == "collective":
            one = step.collective
            places = self.slot(one.operand)[0], self.slot(one.result)[0]
            return [collective_step(self.plan, one, self.rank, *places, dead)]
        one = step.exchange
        scratch = self.slot(one.scratch) if one.HasField("scratch") else None
        operand, result = self.slot(one.operand), self.slot(one.result)
        found = exchange_steps(self.plan, one, self.rank, operand, result, scratch, dead)
        return [*found]

    def array(self, number: int, argument: plan_pb2.Argument, where: Where, room: int) -> Array:
        """What a message says of an argument of a step."""
        buffer = self.plan.buffers[argument.buffer]
        whose = {
            plan_pb2.INPUT: f"input {buffer.index} of the program",
            plan_pb2.OUTPUT: f"result {buffer.index} of the program",
            plan_pb2.WEIGHT: f"weight {buffer.weight!r}",
        }.get(buffer.place, "a temporary")
        dims = tuple(buffer.dims)
        spelt = f"{buffer.element_type}[{','.join(map(str, dims))}]"
        count = int(np.prod(dims, dtype=object))
        itemsize = buffer.bytes // count if count > 0 and buffer.bytes % count == 0 else 0
        name = f"argument {number} of the kernel ({whose})"
        if argument.offset or not itemsize:
            return Array(where, room, name, f"{room} bytes", (), 0)
        return Array(where, room, name, spelt, dims, itemsize)

    def slot(self, argument: plan_pb2.Argument) -> tuple[Where, int]:
        """Where an argument of a step begins, and how many bytes are there."""
        home, size = self.homes[argument.buffer], self.plan.buffers[argument.buffer].bytes
        if argument.offset > size:
            raise malformed("an argument lies outside its buffer")
        return Where(home.base, home.offset + argument.offset), size - argument.offset


class _Given(NamedTuple):
    """What launches of a kernel name in one of its runs: memory, and sizes of the call."""

    slots: Sequence[tuple[Where, int]]
    scratch: tuple[Where, int]
    kernel: plan_pb2.Kernel
    sizes: Sequence[int]

    def size(self, formula: int, otherwise: int) -> int:
        """The value of formula number `formula` - 1 of the run; of 0 what the launch says."""
        return self.sizes[formula - 1] if formula else otherwise

    def all_sizes(self, formulas: Sequence[int], otherwise: Sequence[int]) -> tuple[int, ...]:
        """The same of several sizes; no formulas: what the launch says."""
        if not formulas:
            return tuple(otherwise)
        if len(formulas) != len(otherwise):
            raise malformed(f"kernel {self.kernel.name} has not as many formulas as sizes")
        return tuple(map(self.size, formulas, otherwise))


def _launch(launch: plan_pb2.Launch, given: _Given) -> Started:
    kernel, grid = given.kernel, given.all_sizes(launch.grid_formulas, launch.grid)
    start = LaunchConfiguration(
        launch.entry,
        _extent(grid),
        _extent(launch.block),
        _extent(launch.cluster or (1, 1, 1)),
        launch.shared_bytes,
    )
    parameters = tuple(_parameter(one, given) for one in launch.arguments)
    check_start(start, parameters, kernel.name)
    return Started(start, parameters, launch.persistent)


def _parameter(argument: plan_pb2.LaunchArgument, given: _Given) -> Parameter:
    kind = argument.WhichOneof("value")
    if kind == "immediate":
        return argument.immediate
    if kind == "size":
        return struct.pack("<q", given.sizes[argument.size])
    if kind == "memory":
        return _memory(argument.memory, given)[0]
    if kind == "tensor_map":
        return _tensor_map(argument.tensor_map, given)
    raise malformed(f"a parameter of kernel {given.kernel.name} has no value")


def _memory(memory: plan_pb2.LaunchMemory, given: _Given) -> tuple[Where, int]:
    """Where a parameter points, and how many bytes are there."""
    where, room = given.scratch if memory.scratch else given.slots[memory.slot]
    offset = given.size(memory.offset_formula, memory.offset)
    if not 0 <= offset <= room:
        raise malformed(f"a parameter of kernel {given.kernel.name} points outside its memory")
    return Where(where.base, where.offset + offset), room - offset


def _tensor_map(message: plan_pb2.LaunchTensorMap, given: _Given) -> Mapped:
    kernel = given.kernel
    where, room = _memory(message.memory, given)
    box = TensorMapBox(
        message.element_type,
        given.all_sizes(message.dim_formulas, message.dims),
        given.all_sizes(message.stride_formulas, message.strides),
        tuple(message.box),
        message.swizzle,
        tuple(message.steps),
    )
    try:
        size = element_type(box.element).dtype.itemsize
    except (UserError, KeyError, ValueError):
        raise malformed(f"it names the element type {box.element[:40]!r}") from None
    rank = len(box.dims)
    legal = 1 <= rank <= 5 and len(box.strides) == rank - 1 and len(box.box) == rank
    legal = legal and all(1 <= dim <= 1 << 32 for dim in box.dims)
    legal = legal and all(1 <= extent <= 256 for extent in box.box)
    legal = legal and not any(stride % 16 or stride >= 1 << 40 for stride in box.strides)
    # A row of neighbours: steps are along the other dims.
    legal = legal and len(box.steps) in (0, rank) and all(1 <= n <= 8 for n in box.steps)
    legal = legal and box.steps[:1] in ((), (1,))
    legal = legal and box.swizzle in _SWIZZLES and box.box[0] * size % 16 == 0
    legal = legal and (not box.swizzle or box.box[0] * size <= box.swizzle)
    if not legal or where.offset % _MAP_ALIGNMENT:
        raise malformed(f"kernel {kernel.name} maps a box that no GPU can copy")
    far = sum((dim - 1) * stride for dim, stride in zip(box.dims[1:], box.strides, strict=True))
    if far + box.dims[0] * size > room:
        raise malformed(f"kernel {kernel.name} maps a box outside its memory")
    return Mapped(box, where)


def _extent(values: Sequence[int]) -> tuple[int, int, int]:
    if len(values) != 3 or min(values) < 1:
        raise malformed("an extent is not three positive numbers")
    x, y, z = values
    return x, y, z


def aligned(size: int) -> int:
    """The size rounded up, so that what follows is aligned."""
    return -(-size // ALIGNMENT) * ALIGNMENT
