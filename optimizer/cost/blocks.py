"""How long a group takes where executors run blocks of threads, as a GPU's multiprocessors do.

Sums and what is computed from them stand in registers, windows of products in the executor's first
level of memory, in which nothing is kept from tile to tile. Products come in grains. Tiles go over
the executors in waves; few of them reach neither all units nor all of the bandwidth.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ...hlo.graph import Op, Value, constant_of
from ...hlo.precision import TF32, may_use_tf32
from ..machine import BlockExecution, Machine, Unit
from ..tiles.access import Box, compose
from ..tiles.expressions import Expression
from ..tiles.implicit import refusal
from .estimate import Counter, volume
from .model import Features, Numbers, Traffic, efficiency, home

_TURN = 128  # bytes of a pixel that one turn of a walk over taps takes
_SECTOR = 32  # bytes that memory is read in
_STAGES = 2  # of windows that move, at least
_REGISTERS = 0.5  # of all, that sums and results take
_ROOM = 16 << 10  # bytes of a block that has no windows: threads and registers limit these
_MOST_BLOCKS = 4  # of one executor that hide each other's waiting
_STARVED = 0.1  # of a unit's rate, where elements of its operands are copied one by one
_SINGLE_STORES = 2.0  # times as long, stores of elements one by one
_ROWS_OF_WARP, _WARPS = 16, 8  # of a warp; that keep an executor busy


def counter_of(machine: Machine) -> type[Counter]:
    """What counts for a machine, products by the units of the smallest grains."""
    return Counter if machine.blocks is None else BlockCounter


class BlockCounter(Counter):
    """Products by the unit of the smallest grain that has their elements; windows are padded to
    powers of two."""

    whole_rows = True
    largest: ClassVar[bool] = False  # whether products go to the unit of the largest grain
    # What a turn of the walk takes at least, in answers of the second level: in a block all threads
    # wait for windows, load them from the first level, and for the products that the next add to.
    answered: ClassVar[float] = 1.0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.multiplying = np.zeros(self.count)  # seconds of products, of one task
        self.products = [
            op
            for op in self.group.ops
            if op.definition.pattern == "contract" and op.results[0] in self.parts.boxes
        ]

    @property
    def blocks(self) -> BlockExecution:
        assert self.machine.blocks is not None
        return self.machine.blocks

    # What is there.

    def fits(self) -> Any:
        most = _REGISTERS * self.blocks.registers
        room = self.footprint() <= self.machine.levels[0].capacity
        return room & (self.held() <= most) & (self.widest() <= most)

    def widest(self) -> Any:
        """Elements of the largest value that threads hold: what is computed from others, and what
        is read for that, but for windows of products."""
        most: Any = np.zeros(self.count)
        for op in self.group.ops:
            box = self.parts.boxes.get(op.results[0])
            if box is not None and op.operands and op.name != "broadcast_in_dim":
                inputs = [] if op in self.products else self.inputs_of(op)
                for one in (box, *(self.read(op, number) for number in inputs)):
                    most = np.maximum(most, self.area(one))
        return most

    def inputs_of(self, op: Op) -> list[int]:
        """The operands that are read of memory."""
        return [
            number
            for number, value in enumerate(op.operands)
            if value not in self.computed and constant_of(value) is None
        ]

    def area(self, box: Box) -> Any:
        """Elements of a box, each dim padded."""
        size: Any = 1.0
        for span in box.spans:
            size = size * self.padded(self.number(span.size))
        return size

    def held(self) -> Any:
        """Elements of results, and of sums that are none."""
        kept = [v for op in self.group.ops for v in op.results if self.materialised(op)]
        values = dict.fromkeys((*kept, *self.group.roots))
        return sum(self.numbers(volume(self.parts.boxes[v]) for v in values), np.zeros(self.count))

    def footprint(self) -> Any:
        """Bytes of the windows of products; what was computed from a product stays in
        registers."""
        total: Any = np.zeros(self.count)
        walked = [op for op in self.products if self.walks_taps(op)]
        for op in walked:
            total = total + sum(self.sides(op)) * _TURN * _STAGES
        for value in dict.fromkeys(v for op in self.products for v in op.operands[:2]):
            if value not in self.after_products and not walked:
                area = self.area(self.parts.boxes[value])
                total = total + area * value.element.bits / 8 * self.stages(value)
        return total

    def padded(self, size: Any) -> Any:
        return 2.0 ** np.ceil(np.log2(np.maximum(size, 1)))

    def stages(self, value: Value) -> int:
        return _STAGES if self.moves(value) else 1

    def moves(self, value: Value) -> bool:
        """Whether a value is another one in each turn of the walk."""
        return self.stream is not None and value in self.stream.dims

    @cached_property
    def after_products(self) -> set[Value]:
        found: set[Value] = set()
        for op in self.group.ops:
            if op in self.products or any(value in found for value in op.operands):
                found.update(op.results)
        return found

    # What is done.

    def operation(self, op: Op, scratch: Any) -> None:
        before = self.busy
        super().operation(op, scratch)
        if op in self.products:
            self.multiplying = self.multiplying + self.busy - before
            self.busy = before

    def intermediate(self, bytes: Any, scratch: Any) -> None:
        """It stands in registers."""

    def contraction(self, op: Op, size: Any) -> Any:
        """Seconds of a product or a convolution of one task."""
        depth, columns = self.right_side(op)
        unit = self.unit_of(op)
        rows = size / columns
        padded = np.minimum(_grains(unit, rows, columns, depth, self.largest),
                            _grains(unit, columns, rows, depth, self.largest))  # fmt: skip
        return 2 * padded / (unit.flops * reached(unit, rows, columns))

    def unit_of(self, op: Op) -> Unit:
        if op.name == "convolution" and not self.alone:
            return self.unit  # windows of a tile lie in no grains
        return unit_of(op, self.machine, self.largest) or self.unit

    def loads(self, footprint: Any) -> None:
        """What is read of the inputs: each byte once from where it lies, then from the second
        level. Where there is no room for a second block, what does not move is waited for."""
        reads: dict[tuple[Value, Any], None] = {}
        for op in self.group.ops:
            if op.results[0] not in self.parts.boxes:
                continue
            for number in self.inputs_of(op):
                side = op if self.walks_taps(op) else self.read(op, number)
                reads[op.operands[number], side] = None
        alone = self.resident(footprint) < 2
        for value, box in reads:
            moves = self.moves(value) or isinstance(box, Op)
            size, sectors = self.loaded(value, box)
            width = value.element.bits / 8
            total = value.tensor.size * width
            bytes = size * width * (self.trips if self.moves(value) else 1.0) * self.tasks
            first = np.minimum(bytes, total)
            again = (bytes * sectors - first) / self.receivers(value)
            waited = alone & (not moves) & (not self.largest)
            for part, level in ((first, home(self.machine, total)), (again, 1)):
                self.traffic.append(Traffic(np.where(waited, 0.0, part), level))
                if np.any(waited):
                    late = np.where(waited, part, 0.0)
                    self.traffic.append(Traffic(late, level, overlapped=False))

    def walks_taps(self, op: Op) -> bool:
        """Whether it is a convolution that is a product over its taps (`tiles/implicit.py`)."""
        return op.name == "convolution" and self.alone and not refusal(op)

    def loaded(self, value: Value, read: Box | Op) -> tuple[Any, Any]:
        """Elements of an input that one task, or one turn of it, reads, and how many times as many
        bytes as these move, in whole sectors. A product over taps reads its image for each."""
        if isinstance(read, Op):
            depth, _ = self.right_side(read)
            return depth * self.sides(read)[value is not read.operands[0]], 1.0
        row: Any = value.element.bits / 8
        for span, dim in zip(reversed(read.spans), reversed(value.dims), strict=True):
            (size,) = self.numbers([span.size])
            row = row * size
            if not isinstance(dim, int) or np.any(size < dim):
                break
        (size,) = self.numbers([volume(read)])
        return size, np.maximum(1.0, np.ceil(row / _SECTOR) * _SECTOR / np.maximum(row, 1))

    def sides(self, op: Op) -> tuple[Any, Any]:
        """Rows and columns of a contraction's tile."""
        _, columns = self.right_side(op)
        (size,) = self.numbers([volume(self.parts.boxes[op.results[0]])])
        return size / columns, columns

    def turns(self) -> Any:
        """Of the walk along the sum."""
        turns = self.trips
        for op in self.products:
            if self.walks_taps(op):
                turns = np.ceil(self.right_side(op)[0] * op.operands[0].element.bits / 8 / _TURN)
        return turns

    def receivers(self, value: Value) -> Any:
        """How many blocks one read of the second level serves."""
        return 1.0

    def read(self, op: Op, number: int) -> Box:
        """What one operation reads of an input: others may read another part."""
        value, access = op.operands[number], self.parts.accesses.get(op)
        hull = self.parts.boxes[value]
        if access is None or sum(value in other.operands for other in self.group.ops) < 2:
            return hull

        def named(*_: Any) -> Expression:
            raise _AtRunTime

        try:
            box, inner = self.parts.boxes[op.results[0]], self.parts.inner[op]
            return compose(access, number, box, value.dims, inner, named)
        except _AtRunTime:
            return hull

    def resident(self, footprint: Any) -> Any:
        """How many blocks an executor has at once."""
        room = self.machine.levels[0].capacity / np.maximum(footprint, _ROOM)
        registers = _REGISTERS * self.blocks.registers / np.maximum(self.held(), 1)
        return np.clip(np.floor(np.minimum(room, registers)), 1, _MOST_BLOCKS)

    def features(self) -> Features:
        resident = self.resident(self.count_all())
        return Features(
            flops=self.busy * self.tasks, rate=1.0, traffic=tuple(self.traffic), issue=0.0,
            tasks=self.tasks, multiplying=self.multiplying * self.tasks, resident=resident,
            share=self.share(np.minimum(resident, np.ceil(self.tasks / self.executors))),
            elements=sum(self.numbers(volume(self.parts.boxes[v]) for v in self.group.roots)),
            answers=self.turns() * self.answered * self.machine.levels[1].latency, launches=1,
        )  # fmt: skip

    def share(self, blocks: Any) -> Any:
        """The part of an executor that so many blocks of it keep busy. Where products follow each
        other every warp has rows of its own, so that few rows are few warps."""
        grained = [op for op in self.products if self.unit_of(op).grain]
        if not any(v in self.after_products for op in grained for v in op.operands[:2]):
            return 1.0
        warps: Any = 1.0
        for op in grained:
            warps = np.maximum(warps, self.padded(self.sides(op)[0]) / _ROWS_OF_WARP)
        return np.minimum(1.0, blocks * np.minimum(warps, _WARPS) / _WARPS)


class _AtRunTime(Exception):
    """A place that is known at run time alone."""


class LargestGrain(BlockCounter):
    """Products by the unit of the largest grain; windows are what they are. Some warps bring them
    while others multiply, for all tiles of an executor, one after the other."""

    largest = True
    answered = 0.5

    def fits(self) -> Any:
        """Whole grains alone: units that large are not fed with parts of them. Sides change places
        only where no product's result is a side of another."""
        found = super().fits()
        chained = any(v in self.after_products for op in self.products for v in op.operands[:2])
        for op in self.products:
            depth, _ = self.right_side(op)
            rows, columns = self.sides(op)
            first, second, third = self.unit_of(op).grain or (1, 1, 1)
            whole = (rows % first == 0) & (columns % second == 0)
            swapped = (columns % first == 0) & (rows % second == 0)
            found = found & (whole if chained else whole | swapped) & (depth % third == 0)
        return found

    def widest(self) -> Any:
        return 0.0

    def padded(self, size: Any) -> Any:
        return size

    def share(self, blocks: Any) -> Any:
        return 1.0

    def resident(self, footprint: Any) -> Any:
        return 1.0

    def receivers(self, value: Value) -> Any:
        """Of several waves of a lone product's tiles two neighbours read its larger window once."""
        shared: Any = np.zeros(self.count, bool)
        for op in self.products if self.alone else ():
            rows, columns = self.sides(op)
            if value in op.operands[:2]:
                shared = rows > columns if value is op.operands[0] else rows <= columns
        return np.where(shared & (self.tasks >= 2 * self.executors), 2.0, 1.0)

    def stores(self, root: Value) -> None:
        """Rows that lie along the last dim are stored with more, smaller accesses."""
        total = self.whole(root)
        swapped: Any = np.zeros(self.count, bool)
        for op in self.products:
            swapped = swapped | (self.sides(op)[0] % (self.unit_of(op).grain or (1,))[0] != 0)
        smaller = np.where(swapped, _SINGLE_STORES, 1.0)
        self.traffic.append(Traffic(total, home(self.machine, total), "write", conflict=smaller))


def unit_of(op: Op, machine: Machine, largest: bool) -> Unit | None:
    """What multiplies a contraction's elements: the unit of the largest grain that has them, or of
    the smallest; one without grains where there is no other. None where no unit has them."""
    name = TF32 if may_use_tf32(op) else op.operands[0].element.name
    units = [unit for unit in machine.units if name in unit.elements]
    if not units and name == TF32:
        return machine.unit("f32")
    sign = 1 if largest else -1
    return max(units, key=lambda unit: [sign * n for n in unit.grain], default=None)


def reached(unit: Unit, rows: Numbers, columns: Numbers) -> Numbers:
    """The fraction of a unit's rate that it reaches with tiles of rows x columns, either of which
    may lie along its own rows."""
    long, short = np.maximum(rows, columns), np.minimum(rows, columns)
    first = (unit.grain or (1, 1, 1))[0]
    down = np.where(short >= first, short, long)
    across = np.where(short >= first, long, short)
    return efficiency(unit, np.maximum(down, first), np.maximum(1, across // 8))


def multiplied(flops: float, unit: Unit, machine: Machine, starved: bool = False) -> float:
    """Seconds in which all executors do so many flops; `starved`: operands come one by one."""
    return flops / (unit.flops * machine.executors) / (_STARVED if starved else 1.0)


def _grains(unit: Unit, rows: Any, columns: Any, depth: Any, exact: bool) -> Numbers:
    """Elements of rows x columns x depth in whole grains; to powers of two unless `exact`."""
    first, second, third = unit.grain or (1, 1, 1)
    if not exact:
        rows, columns = (2.0 ** np.ceil(np.log2(np.maximum(n, 1))) for n in (rows, columns))
    return (
        np.ceil(rows / first) * first * np.ceil(columns / second) * second
        * np.ceil(depth / third) * third
    )  # fmt: skip
