"""Kernels that read and write parts of arrays where they lie.

A *window* is a run of an array's elements, as many as a slice of it has: of one row, or of rows
that follow each other, beginning where values of the program say. A fusion writes one if a root
of it is a `dynamic_update_slice` of an argument that nothing else in it reads: such a root has to
lie where the argument does, and the rest of that memory stays as it is. A contraction reads one if
all that it does with an argument is one `dynamic_slice`.

`opened` gives the fusion that computes the same elements on the windows alone, which is what
emitters take, and says where the windows begin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..hlo.build import make_op
from ..hlo.graph import Op, Region, Value, arguments, constant_of
from ..hlo.regions import extract, in_order_of_demand

UPDATE, SLICE = "dynamic_update_slice", "dynamic_slice"


@dataclass(frozen=True)
class WindowStart:
    """One index of a window's beginning: the scalar operand that holds it, which counts from 0 to
    `last` (values beyond are clamped), and the bytes from one to the next."""

    operand: int
    last: int
    stride: int


@dataclass(frozen=True)
class Window:
    """Where a window begins in its array: so many bytes behind the first, and what `starts` add."""

    constant: int
    starts: tuple[WindowStart, ...]

    @property
    def step(self) -> int:
        """Bytes of which every distance from the array's beginning is a multiple; 0: there is
        none."""
        return math.gcd(self.constant, *(start.stride for start in self.starts))


# Windows by the number of the operand or, behind the operands, of the result.
Windows = Mapping[int, Window]
NONE: Windows = {}


class Opened(NamedTuple):
    """A fusion on windows, and where these begin. Operands and results keep their numbers."""

    op: Op
    windows: Windows


def contiguous(dims: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether a slice of these sizes is a run of an array's elements: of one index, or several, of
    one dim, all that lies behind it whole."""
    split = next((d for d, size in enumerate(sizes) if size != 1), len(sizes))
    return 0 not in sizes and tuple(sizes[split + 1 :]) == tuple(dims[split + 1 :])


def unshaped(value: Value) -> Value:
    """The value that has the same elements in the same order, before reshapes of it."""
    while value.op is not None and value.op.name == "reshape":
        value = value.op.operands[0]
    return value


def updated(op: Op) -> dict[int, int]:
    """For each result of a kernel that is a window's update: the operand that it has to lie in."""
    if op.name != "fusion":
        return {}
    region = op.regions[0]
    return {
        number: root.op.operands[0].index
        for number, root in enumerate(region.results)
        if root.op is not None and root.op.name == UPDATE and _in_place(root.op, region)
    }


def opened(op: Op) -> Opened:
    """The operation on windows; itself if it has none."""
    if op.name != "fusion" or not any(o.name in (UPDATE, SLICE) for o in op.regions[0].ops):
        return Opened(op, NONE)
    region = op.regions[0]
    windows: dict[int, Window] = {}
    inputs, roots = list(region.arguments), list(region.results)
    for number in updated(op):
        update = region.results[number].op
        assert update is not None
        roots[number] = unshaped(update.operands[1])
        windows[len(inputs) + number] = _window(update, 2, update.operands[1].dims)
    for argument in region.arguments if op.kind == "contract" else ():
        read = _only_slice(argument, region)
        if read is not None:
            inputs[argument.index] = read.result
            windows[argument.index] = _window(read, 1, read.result.dims)
    if not windows:
        return Opened(op, NONE)
    inside = set(region.ops) - {value.op for value in inputs}
    members, _ = in_order_of_demand(inside, roots)
    body = extract(members, inputs, roots)
    own = arguments(body.argument_types)
    new = make_op("fusion", own, op.attributes, (body,), body.result_types, op.origin, check=False)
    return Opened(new, windows)


def moved_bytes(op: Op) -> int:
    """What a kernel reads and writes, each array or window of one once."""
    inside, windows = opened(op)
    kept = inside.regions[0].uses if windows else None
    read = [
        value
        for number, value in enumerate(inside.operands)
        if kept is None or inside.regions[0].arguments[number] in kept
    ]
    return sum(value.tensor.bytes for value in (*read, *inside.results))


def _in_place(op: Op, region: Region) -> bool:
    """Whether an update changes a window of an argument that nothing else reads."""
    target, update, *starts = op.operands
    alone = target in region.arguments and list(region.uses[target]) == [(op, 0)]
    returned = list(region.uses[op.result]) == [(None, region.results.index(op.result))]
    run = contiguous(target.dims, update.dims) and _placed(starts, region)
    return alone and returned and run


def _only_slice(argument: Value, region: Region) -> Op | None:
    """The operation that reads a window of an argument, if it is all that reads it."""
    uses = region.uses.get(argument, ())
    op = uses[0][0] if len(uses) == 1 else None
    if op is None or op.name != SLICE or uses[0][1]:
        return None
    run = contiguous(argument.dims, op.slice_sizes) and _placed(op.operands[1:], region)
    return op if run else None


def _placed(starts: Sequence[Value], region: Region) -> bool:
    """Whether every index is an argument or a constant."""
    return all(v in region.arguments or constant_of(v) is not None for v in starts)


def _window(op: Op, first: int, sizes: Sequence[int]) -> Window:
    """The window that `op`, whose operands from `first` on are starts, reads or writes."""
    array = op.operands[0]
    constant, starts = 0, []
    for d, start in enumerate(op.operands[first:]):
        last = array.dims[d] - sizes[d]
        stride = math.prod(array.dims[d + 1 :]) * array.element.itemsize
        known = constant_of(start)
        if known is not None:
            constant += min(max(int(known.splat_value), 0), last) * stride
        elif last:
            starts.append(WindowStart(start.index, last, stride))
    return Window(constant, tuple(starts))
