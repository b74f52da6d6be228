"""A fusion as several kernels after one another, where it is none as a whole.

Around a contraction: its operands are computed into scratch, then it runs with what follows it, or
alone and what follows it after that. Each part has the emitter that is best for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from ...hlo.deciding import estimating
from ...hlo.graph import Op, Region, Value, arguments
from ...hlo.symbols import ceildiv, maximum
from ...optimizer.regions import extract, in_order_of_demand
from .frame import SHARED, Unfit
from .launch import SCRATCH, Argument, Immediate, KernelCode, Launch, Memory, Size, TensorMap

ALIGNMENT = 256  # bytes, of values in scratch
_DEFINED = re.compile(r"^(?:define [^@\n]*)?@([\w.]+)(?: =|\()", re.MULTILINE)
_NAMED = re.compile(r"@([\w.]+)")
_COMMON = ("declare ", "attributes ", "!", f"@{SHARED} =")  # lines that modules share

Emit = Callable[[str, Region], KernelCode]  # of a fusion's kind and region; Unfit if "contract"


def emit(
    region: Region,
    names: Collection[str],
    kernel: Emit,
    taken: frozenset[int],
    flops: float,
    notes: tuple[str, ...],
    first: Sequence[Value] | None = None,
) -> KernelCode:
    """The kernel of a region around operations called `names`. `taken`: results that may lie in the
    memory of an operand, written last. `first`: values that are computed first, by default the
    operands of these operations."""
    work = _Work(region, kernel, taken)
    main = [op for op in region.ops if op.name in names]
    for value in first or ():
        work.part("loop", [value])
    if len(main) == 1 and first is None:
        work.operands(main[0])
    if len(main) != 1 or not work.together():
        for op in main:
            if first is None:
                work.operands(op)
            work.part("product", op.results)
        work.rest()
    return work.finished(flops, notes)


def emit_after(
    region: Region,
    values: Sequence[Value],
    kernel: Emit,
    taken: frozenset[int],
    flops: float,
    notes: tuple[str, ...],
) -> KernelCode:
    """The kernel of a region around a contraction that computes some values first; Unfit if what
    is left is no contraction's kernel."""
    work = _Work(region, kernel, taken)
    for value in values:
        work.part("loop", [value])
    if not work.together():
        raise Unfit("what follows the copies of its operands is no contraction")
    return work.finished(flops, notes)


@dataclass
class Parts:
    """Kernels that run one after another as one. `codes`: each with the places of its operands and
    results, which are slots of the whole or lie in its scratch."""

    codes: list[tuple[KernelCode, list[Memory]]] = field(default_factory=list)
    scratch: int = 0

    def add(self, code: KernelCode, places: Sequence[Memory]) -> None:
        self.codes.append((code, list(places)))

    def reserve(self, size: int) -> Memory:
        """Scratch of so many bytes, for a value between parts."""
        place = Memory(SCRATCH, self.scratch)
        self.scratch += ceildiv(maximum(size, 1), ALIGNMENT) * ALIGNMENT
        return place

    def code(self, flops: float, moved: float, notes: tuple[str, ...]) -> KernelCode:
        """All parts as one kernel."""
        found = dict.fromkeys((*notes, *(note for code, _ in self.codes for note in code.notes)))
        most = maximum(0, *(code.scratch_bytes for code, _ in self.codes))  # all use the same
        scratch = self.scratch + most
        approximate = sorted({name for code, _ in self.codes for name in code.approximate})
        return KernelCode(
            self.text(), tuple(self.launches), flops, moved, scratch, tuple(found),
            approximate=tuple(approximate),
        )  # fmt: skip

    @property
    def launches(self) -> list[Launch]:
        return [
            replace(
                launch,
                symbol=f"part{number}_{launch.symbol}",
                arguments=tuple(self.moved(one, places) for one in launch.arguments),
            )
            for number, (code, places) in enumerate(self.codes)
            for launch in code.launches
        ]

    def moved(self, argument: Argument, places: Sequence[Memory]) -> Argument:
        """An argument of a part as one of the whole kernel."""
        if isinstance(argument, Immediate | Size):
            return argument
        if isinstance(argument, TensorMap):
            memory = self.moved(argument.memory, places)
            assert isinstance(memory, Memory)
            return replace(argument, memory=memory)
        if argument.slot < 0:
            return Memory(SCRATCH, self.scratch + argument.offset)
        place = places[argument.slot]
        return Memory(place.slot, place.offset + argument.offset)

    def text(self) -> str:
        """One module: names of each part begin with its number, what all have stands once."""
        common: dict[str, None] = {}
        bodies: list[str] = []
        for number, (code, _) in enumerate(self.codes):
            names = {name for name in _DEFINED.findall(code.text) if name != SHARED}
            text = _NAMED.sub(_renaming(names, f"part{number}_"), code.text)
            lines = text.splitlines()
            common.update((line, None) for line in lines if line.startswith(_COMMON))
            bodies += [line for line in lines if not line.startswith(_COMMON)]
        return "\n".join([*bodies, *common]) + "\n"


class _Work(Parts):
    def __init__(self, region: Region, kernel: Emit, taken: frozenset[int]) -> None:
        super().__init__()
        self.region, self.kernel, self.taken = region, kernel, taken
        self.places = {value: Memory(n) for n, value in enumerate(region.arguments)}

    def finished(self, flops: float, notes: tuple[str, ...]) -> KernelCode:
        """All parts as one kernel, behind copies of results that are given twice."""
        self.copies()
        values = (*self.region.arguments, *self.region.results)
        with estimating():
            moved = float(sum(value.tensor.bytes for value in values))
        return self.code(flops, moved, notes)

    # Parts.

    def operands(self, op: Op) -> None:
        """Computes those of an operation's operands that are not in memory yet."""
        for value in op.operands:
            if value not in self.places:
                self.part("loop", [value])

    def together(self) -> bool:
        """Everything that is left as one kernel, if it is one."""
        roots = list(dict.fromkeys(self.region.results))
        try:
            self.part("contract", roots, [self.outputs(root)[0] for root in roots])
        except Unfit:
            return False
        return True

    def rest(self) -> None:
        """The results that are left, those of one shape together."""
        left: dict[tuple[int, ...], list[Value]] = {}
        for value in dict.fromkeys(self.region.results):
            if value not in self.places or self.places[value] not in self.outputs(value):
                left.setdefault(value.dims, []).append(value)
        for values in left.values():
            outputs = [self.outputs(value)[0] for value in values]
            self.part("loop", values, outputs)

    def copies(self) -> None:
        """Results that are given twice."""
        for value in dict.fromkeys(self.region.results):
            first, *others = self.outputs(value)
            for memory in others:
                own = arguments([value.type])
                code = self.kernel("loop", Region(own, (), own))
                self.add(code, [first, memory])

    def outputs(self, value: Value) -> list[Memory]:
        """The kernel's results that are this value."""
        first = len(self.region.arguments)
        return [Memory(first + n) for n, root in enumerate(self.region.results) if root is value]

    def part(
        self, kind: str, values: Sequence[Value], outputs: Sequence[Memory] | None = None
    ) -> None:
        """Computes values of one shape from those in memory."""
        members = {op for op in self.region.ops if not set(op.results) <= set(self.places)}
        ops, inputs = in_order_of_demand(members, values)
        if outputs is None:
            outputs = [self.output(value) for value in values]
        code = self.kernel(kind, extract(ops, inputs, values))
        self.add(code, [*(self.places[value] for value in inputs), *outputs])
        self.places.update(zip(values, outputs, strict=True))

    def output(self, value: Value) -> Memory:
        """Where a value lies that others read: its own place if no operand shares that."""
        for memory in self.outputs(value):
            if memory.slot - len(self.region.arguments) not in self.taken:
                return memory
        return self.reserve(value.tensor.bytes)


def _renaming(names: set[str], prefix: str) -> Callable[[re.Match[str]], str]:
    return lambda match: f"@{prefix}{match[1]}" if match[1] in names else match[0]
