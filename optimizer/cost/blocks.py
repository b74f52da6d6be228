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
from ..machine import Blocks, Level, Unit
from ..tiles.access import Box, compose
from ..tiles.expressions import Expression
from .estimate import Counter, volume
from .model import UNEVEN, Numbers, Traffic, efficiency

_STAGES = 2  # of windows that move, at least
_REGISTERS = 0.5  # of all, that sums and results take
_TILE = 128 * 128  # elements of the tile that `Blocks.tile` is about
_ROOM = 16 << 10  # bytes of a block that has no windows: threads and registers limit these
_MOST_BLOCKS = 4  # of one executor that hide each other's waiting
_ROWS_OF_WARP, _WARPS = 16, 8  # of a warp; that keep an executor busy
_WAITING = 0.3  # of the shorter of multiplying and other arithmetic that is not hidden


class BlockCounter(Counter):
    """Products by the unit of the smallest grain that has their elements; windows are padded to
    powers of two."""

    whole_rows = True
    largest: ClassVar[bool] = False  # whether products go to the unit of the largest grain

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.multiplying = np.zeros(self.count)  # seconds of products, of one task
        self.products = [
            op
            for op in self.group.ops
            if op.definition.pattern == "contract" and op.results[0] in self.parts.boxes
        ]

    @property
    def blocks(self) -> Blocks:
        assert self.machine.blocks is not None
        return self.machine.blocks

    # What is there.

    def fits(self) -> Any:
        most = _REGISTERS * self.blocks.registers
        room = self.footprint() <= self.machine.levels[0].capacity
        return room & (self.held() <= most) & (self.widest() <= most)

    def widest(self) -> Any:
        """Elements of the largest value that is computed from others."""
        most: Any = np.zeros(self.count)
        for op in self.group.ops:
            box = self.parts.boxes.get(op.results[0])
            if box is not None and op.operands and op.name != "broadcast_in_dim":
                most = np.maximum(most, self.area(op.results[0]))
        return most

    def area(self, value: Value) -> Any:
        """Elements of a value's box, each dim padded."""
        size: Any = 1.0
        for span in self.parts.boxes[value].spans:
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
        for value in dict.fromkeys(v for op in self.products for v in op.operands[:2]):
            if value in self.after_products:
                continue
            total = total + self.area(value) * value.element.bits / 8 * self.stages(value)
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
        long, short = np.maximum(rows, columns), np.minimum(rows, columns)
        first = (unit.grain or (1, 1, 1))[0]
        down = np.where(short >= first, short, long)
        across = np.where(short >= first, long, short)
        reached = efficiency(unit, np.maximum(down, first), np.maximum(1, across // 8))
        return 2 * padded / (unit.flops * reached)

    def unit_of(self, op: Op) -> Unit:
        name = op.operands[0].element.name
        if op.name == "convolution" and not self.alone:
            return self.unit  # windows of a tile lie in no grains
        units = [unit for unit in self.machine.units if name in unit.elements]
        if not units:
            return self.unit
        key = (lambda unit: unit.grain) if self.largest else (lambda unit: [-n for n in unit.grain])
        return max(units, key=key)

    def loads(self, footprint: Any) -> None:
        """What is read of the inputs: each byte once from where it lies, then from the second
        level. Where there is no room for a second block, what does not move is waited for."""
        reads: dict[tuple[Value, Box], None] = {}
        for op in self.group.ops:
            if op.results[0] not in self.parts.boxes:
                continue
            for number, value in enumerate(op.operands):
                if value not in self.computed and constant_of(value) is None:
                    reads[value, self.read(op, number)] = None
        alone = self.resident(footprint) < 2
        for value, box in reads:
            (size,) = self.numbers([volume(box)])
            width = value.element.bits / 8
            total = value.tensor.size * width
            turns = self.trips if self.moves(value) else 1.0
            bytes = size * width * turns * self.tasks
            first = np.minimum(bytes, total)
            waited = alone & (not self.moves(value)) & (not self.largest)
            for part, level in ((first, self.home(total)), (bytes - first, 1)):
                self.traffic.append(Traffic(np.where(waited, 0.0, part), level))
                if np.any(waited):
                    late = np.where(waited, part, 0.0)
                    self.traffic.append(Traffic(late, level, overlapped=False))

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

    def seconds(self) -> Any:
        footprint = self.footprint()
        for op in self.group.ops:
            if op.results[0] in self.parts.boxes:
                self.operation(op, None)
        self.loads(footprint)
        for root in self.group.roots:
            self.stores(root)
        tasks = np.maximum(self.tasks, 1)  # a likely call may have none
        active = np.minimum(tasks, self.executors)
        moving, waiting = np.zeros(self.count), np.zeros(self.count)
        for one in self.traffic:
            taken = one.bytes / tasks / self.reached(one, active)
            if one.overlapped:
                moving = moving + taken
            else:
                waiting = waiting + taken
        resident = self.resident(footprint)
        share = self.share(np.minimum(resident, np.ceil(tasks / self.executors)))
        products, others = self.multiplying, self.busy
        computing = np.maximum(products, others) + _WAITING * np.minimum(products, others)
        slow, fast = np.maximum(computing, moving), np.minimum(computing, moving)
        elements = sum(self.numbers(volume(self.parts.boxes[v]) for v in self.group.roots))
        around = self.blocks.tile * (0.3 + 0.7 * np.minimum(1.0, elements / _TILE)) / resident
        each = (slow + (1 - self.machine.overlap) * fast + waiting) / share + around
        whole = tasks / self.executors
        even = np.maximum(1.0, whole + UNEVEN)
        rounds = np.where(resident > 1, np.where(whole <= 1, 1.0, even), np.ceil(whole))
        return rounds * each + self.blocks.fill + self.machine.sync.step

    def share(self, blocks: Any) -> Any:
        """The part of an executor that so many blocks of it keep busy. Where products follow each
        other every warp has rows of its own, so that few rows are few warps."""
        grained = [op for op in self.products if self.unit_of(op).grain]
        if not any(v in self.after_products for op in grained for v in op.operands[:2]):
            return 1.0
        warps: Any = 1.0
        for op in grained:
            columns = self.right_side(op)[1]
            (size,) = self.numbers([volume(self.parts.boxes[op.results[0]])])
            warps = np.maximum(warps, self.padded(size / columns) / _ROWS_OF_WARP)
        return np.minimum(1.0, blocks * np.minimum(warps, _WARPS) / _WARPS)

    def reached(self, one: Traffic, active: Any) -> Any:
        """Bytes per second of one of the active executors at the level of some traffic."""
        rates = np.stack([_rate(level, active, one.kind) for level in self.machine.levels])
        index = np.broadcast_to(np.asarray(one.level), active.shape)
        return np.take_along_axis(rates, index[None], 0)[0]


class _AtRunTime(Exception):
    """A place that is known at run time alone."""


class LargestGrain(BlockCounter):
    """Products by the unit of the largest grain; windows are what they are."""

    largest = True

    def fits(self) -> Any:
        """Whole grains alone: units that large are not fed with parts of them. Sides change places
        only where no product's result is a side of another."""
        found = super().fits()
        chained = any(v in self.after_products for op in self.products for v in op.operands[:2])
        for op in self.products:
            depth, columns = self.right_side(op)
            (size,) = self.numbers([volume(self.parts.boxes[op.results[0]])])
            rows = size / columns
            first, second, third = self.unit_of(op).grain or (1, 1, 1)
            whole = (rows % first == 0) & (columns % second == 0)
            turned = (columns % first == 0) & (rows % second == 0)
            found = found & (whole if chained else whole | turned) & (depth % third == 0)
        return found

    def widest(self) -> Any:
        return 0.0

    def padded(self, size: Any) -> Any:
        return size

    def share(self, blocks: Any) -> Any:
        return 1.0


def _rate(level: Level, active: Any, kind: str) -> Any:
    known = [row.executors for row in level.bandwidth]
    totals = [getattr(row, kind) for row in level.bandwidth]
    return np.interp(active, known, totals) / np.maximum(active, known[0])


def _grains(unit: Unit, rows: Any, columns: Any, depth: Any, exact: bool) -> Numbers:
    """Elements of rows x columns x depth in whole grains; to powers of two unless `exact`."""
    first, second, third = unit.grain or (1, 1, 1)
    if not exact:
        rows, columns = (2.0 ** np.ceil(np.log2(np.maximum(n, 1))) for n in (rows, columns))
    return (
        np.ceil(rows / first) * first * np.ceil(columns / second) * second
        * np.ceil(depth / third) * third
    )  # fmt: skip
