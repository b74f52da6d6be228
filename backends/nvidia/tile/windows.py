"""Windows of memory: loads with fills, masked and combining stores, gathers and scatters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

from ....hlo.deciding import surely_at_most, surely_below, surely_divides
from ....hlo.graph import Op, Value
from ....hlo.symbols import SymbolicDim
from ... import llvm
from ...llvm import arithmetic, elements
from ...llvm.elements import Register
from .atomics import combined
from .distributed_layout import DistributedLayout
from .emitter import Emitter
from .exchange import stored
from .scope import Tile
from .shared import CHUNK, EVERYTHING, MemoryPiece


class WindowAccess:
    """One memory operation: where its elements lie, and which of them do."""

    def __init__(
        self,
        e: Emitter,
        op: Op,
        tile: Value,
        layout: DistributedLayout,
        offsets: Sequence[llvm.Value] | None = None,
        every: Sequence[int] | None = None,
    ) -> None:
        """`every`: the tile has every so many-th element along each dim, all by default."""
        self.e, self.op, self.tile, self.layout = e, op, tile, layout
        self.f = e.f
        self.memory = op.operands[0]
        self.element = self.memory.element
        rank = self.memory.rank
        values = op.offsets[:rank]
        self.affine = [e.facts.offsets.of(value) for value in values]
        self.offsets = list(offsets or [e.integer(value) for value in values])
        self.every = tuple(every or (1,) * rank)
        self.strides = [
            math.prod(self.memory.dims[d + 1 :]) * every for d, every in enumerate(self.every)
        ]
        self.axis: int | None = op.axis if op.name in ("tile_gather", "tile_scatter") else None
        self.rows: Tile = []
        self.row_numbers: tuple[int, ...] = ()
        if self.axis is not None:
            axis = self.axis
            number = 1 if op.name == "tile_gather" else 2
            rows, self.row_numbers = layout.project((layout.dims[axis],), (axis,))
            self.rows = e.tile(op.operands[number], rows)
        self._tests: dict[tuple[int, int | str], llvm.Value] = {}

    @cached_property
    def width(self) -> int:
        """Neighbours of one access: aligned, and all inside or all outside."""
        if not self.memory.rank or self.axis == self.memory.rank - 1 or self.every[-1] != 1:
            return 1
        width = self.layout.vector(max(1, CHUNK // self.element.itemsize))
        last = self.affine[-1]
        numbers = [last.constant, self.memory.dims[-1], self.tile.dims[-1]]
        numbers += [factor for _, factor in last.terms]
        while width > 1 and not all(surely_divides(width, n) for n in numbers):
            width //= 2
        return width

    def guards(self, d: int) -> bool:
        """Whether the window may reach outside along dim d."""
        low, high = self.e.facts.offsets.range(self.affine[d])
        last = high + (self.tile.dims[d] - 1) * self.every[d]
        return not (surely_at_most(0, low) and surely_below(last, self.memory.dims[d]))

    def inside(self, number: int) -> llvm.Value | None:
        """Whether a register's element lies in the memory and in the tile; None: always."""
        place = self.layout.places[number]
        assert place is not None
        held = self.e.block.inside(self.layout, place)
        for d in range(self.memory.rank):
            if d == self.axis or self.guards(d):
                held = self.e.block.both(held, self._test(d, place[d], number))
        return held

    def _test(self, d: int, at: int, number: int) -> llvm.Value:
        row = self._row(number) if d == self.axis else None
        key = (d, row.name if row is not None else at)
        found = self._tests.get(key)
        if found is None:
            place = row
            if place is None:
                index = self.e.block.part(self.layout, d) + at
                inner = self.f.mul(self.e.block.scalar(index), self.every[d])
                place = self.f.add(self.offsets[d], inner)
            found = self._tests[key] = self.f.compare("ult", place, self.memory.dims[d])
        return found

    def _row(self, number: int) -> llvm.Value:
        """The place along the axis that a gather or scatter goes to."""
        assert self.axis is not None
        row = self.rows[self.row_numbers[number]]
        assert isinstance(row, llvm.Value)
        return self.f.add(self.f.cast("sext", row, "i64"), self.offsets[self.axis])

    @cached_property
    def base(self) -> llvm.Value:
        """The address of the first element of the window, for this thread."""
        f, block = self.f, self.e.block
        uniform: llvm.Value = llvm.constant("i64", 0)
        own: llvm.Value = llvm.constant("i64", 0)
        for d, (stride, every) in enumerate(zip(self.strides, self.every, strict=True)):
            if d == self.axis:
                continue
            uniform = f.add(uniform, f.mul(self.offsets[d], stride // every))
            own = f.add(own, f.mul(block.scalar(block.part(self.layout, d)), stride))
        size = self.element.itemsize
        pointer = f.pointer(block.memory[self.memory], f.mul(uniform, size), "i8")
        return f.pointer(pointer, f.mul(own, size), "i8")

    def pointer(self, number: int) -> llvm.Value:
        """The address of a register's element."""
        place = self.layout.places[number]
        assert place is not None
        f, size = self.f, self.element.itemsize
        constant, pointer = 0, self.base
        for d, (at, stride) in enumerate(zip(place, self.strides, strict=True)):
            if d != self.axis and isinstance(stride, SymbolicDim):
                pointer = f.pointer(pointer, f.mul(f.constant("i64", stride * size), at), "i8")
            elif d != self.axis:
                constant += at * stride
        pointer = f.pointer(pointer, constant * size, "i8")
        if self.axis is not None:
            far = f.mul(self._row(number), self.strides[self.axis] * size)
            pointer = f.pointer(pointer, far, "i8")
        return pointer

    @property
    def piece(self) -> MemoryPiece:
        return MemoryPiece(self.memory, 0, EVERYTHING)


def load(e: Emitter, op: Op) -> None:
    """tile_load and tile_gather, in the layout of their first user."""
    if op in e.assignment.direct:
        return  # products copy it to shared memory
    layout = e.layout(op.result)
    e.bind(op.result, loaded(e, op, layout), layout)


def loaded(e: Emitter, op: Op, layout: DistributedLayout) -> Tile:
    """The window in a layout; elements outside of the memory are `fill`."""
    f, access = e.f, WindowAccess(e, op, op.result, layout)
    if access.memory in e.contended:
        e.block.hazards.read(access.piece)
    element = access.element
    number = element.dtype.type(op.fill) if not element.is_bool else bool(op.fill)
    fill = elements.register_constant(element, number, 1)
    tile: Tile = [None] * layout.count
    empty = not math.prod(access.memory.dims)
    width = access.width
    for first in range(0, layout.count, width):
        if layout.places[first] is None:
            continue
        if empty:
            tile[first : first + width] = [fill] * width
            continue
        held = access.inside(first)
        pointer = access.pointer(first)
        if held is not None:
            # Outside, the first element of the memory is read, and forgotten.
            pointer = f.select(held, pointer, e.block.memory[access.memory])
        registers = e.block.load(pointer, element, width, True)
        if held is not None:
            registers = [arithmetic.select(f, held, one, fill) for one in registers]
        tile[first : first + width] = registers
    return tile


def store(e: Emitter, op: Op) -> None:
    """tile_store and tile_scatter."""
    value = op.operands[1]
    layout = e.layout(value)
    if value.rank and op.name == "tile_store" and not (op.masked or op.combine):
        layout = stored(e, value, layout)
    tile = e.tile(value, layout)
    access = WindowAccess(e, op, value, layout)
    if access.memory in e.contended and not op.combine:
        e.block.hazards.write(access.piece)
    owner = e.block.owner(layout.copies)
    masks: Tile = []
    if op.name == "tile_store" and op.masked:
        mask = op.operands[-1]
        masks = e.tile(mask, layout)
    width = 1 if op.combine or masks else access.width
    for first in range(0, layout.count, width):
        if layout.places[first] is None:
            continue
        held = e.block.both(owner, access.inside(first))
        if masks:
            wanted = masks[first]
            assert isinstance(wanted, llvm.Value)
            held = e.block.both(held, wanted)
        registers = [one for one in tile[first : first + width] if one is not None]
        code = _storing(e, access, first, registers, op.combine)
        e.guarded(held, code)


def _storing(
    e: Emitter, access: WindowAccess, first: int, registers: Sequence[Register], combine: str
) -> Callable[[], None]:
    # The address is computed outside of the test, where others share it.
    pointer = access.pointer(first)
    if not combine:
        return lambda: e.block.store(pointer, registers, access.element, True)
    return lambda: combined(e.f, pointer, registers[0], access.element, combine)
