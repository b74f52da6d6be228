"""Windows of memory that threads read and write themselves, whatever layout their tiles have."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from ...hlo.deciding import surely_at_most, surely_below, surely_divides
from ...hlo.graph import Op, Value
from ...hlo.symbols import SymbolicDim
from .. import llvm
from ..llvm import arithmetic, elements
from ..llvm.elements import Pair, Register
from ..llvm.index import Affine
from .atoms import ACCESS_BYTES
from .evaluator import ThreadValues, Tile
from .frame import where
from .layout_code import as_i64


class WindowAccess:
    """One memory operation: where its elements lie, and which of them do."""

    def __init__(
        self,
        e: ThreadValues[Any, Any],
        op: Op,
        tile: Value,
        layout: Any,
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
        self.affine = [e.offsets.of(value) for value in values]
        self.starts = list(offsets or [e.integer(value) for value in values])
        self.every = tuple(every or (1,) * rank)
        self.strides = [
            math.prod(self.memory.dims[d + 1 :]) * every for d, every in enumerate(self.every)
        ]
        self.axis: int | None = None  # along which rows go by number

    def row(self, number: int) -> llvm.Value:
        """The place along `axis` of a register's element, i64."""
        raise NotImplementedError

    @cached_property
    def width(self) -> int:
        """Neighbours of one access: aligned, and all inside or all outside."""
        if not self.memory.rank or self.axis == self.memory.rank - 1 or self.every[-1] != 1:
            return 1
        width = self.layout.vector(max(1, ACCESS_BYTES // self.element.itemsize))
        last = self.affine[-1]
        numbers = [last.constant, self.memory.dims[-1], self.tile.dims[-1]]
        numbers += [factor for _, factor in last.terms]
        while width > 1 and not all(surely_divides(width, n) for n in numbers):
            width //= 2
        return width

    def guards(self, d: int) -> bool:
        """Whether the window may reach outside along dim d."""
        low, high = self.e.offsets.range(self.affine[d])
        last = high + (self.tile.dims[d] - 1) * self.every[d]
        return not (surely_at_most(0, low) and surely_below(last, self.memory.dims[d]))

    def inside(self, number: int) -> llvm.Value | None:
        """Whether a register's element lies in the memory and in the tile; None: always."""
        held = self.e.held(self.layout, number)
        index = self.e.index(self.layout, number)
        for d in range(self.memory.rank):
            if d == self.axis or self.guards(d):
                held = self.e.both(held, self._test(d, index[d], number))
        return held

    def _test(self, d: int, index: Affine, number: int) -> llvm.Value:
        row = self.row(number) if d == self.axis else None

        def test() -> llvm.Value:
            place = row
            if place is None:
                inner = self.f.mul(as_i64(self.f, index), self.every[d])
                place = self.f.add(self.starts[d], inner)
            return self.f.compare("ult", place, self.memory.dims[d])

        return self.e.once((self, d, row.name if row is not None else index.key), test)

    @property
    def start(self) -> llvm.Value:
        """The address of the memory."""
        return self.e.base(self.memory)

    def _first(self, index: Sequence[Affine]) -> llvm.Value:
        """The address of the first element of the window, for this thread."""
        f, size = self.f, self.element.itemsize
        uniform: llvm.Value = llvm.constant("i64", 0)
        own: llvm.Value = llvm.constant("i64", 0)
        for d, (stride, every) in enumerate(zip(self.strides, self.every, strict=True)):
            if d == self.axis:
                continue
            uniform = f.add(uniform, f.mul(self.starts[d], stride // every))
            own = f.add(own, f.mul(as_i64(f, Affine(index[d].terms, 0)), stride))
        pointer = f.pointer(self.start, f.mul(uniform, size), "i8")
        return f.pointer(pointer, f.mul(own, size), "i8")

    def pointer(self, number: int) -> llvm.Value:
        """The address of a register's element: the thread's part first, which registers share."""
        f, size = self.f, self.element.itemsize
        index = self.e.index(self.layout, number)
        key = self, "first", *(at.terms for at in index)
        pointer, constant = self.e.once(key, lambda: self._first(index)), 0
        for d, (at, stride) in enumerate(zip(index, self.strides, strict=True)):
            if d != self.axis and isinstance(stride, SymbolicDim):
                far = f.mul(f.constant("i64", stride * size), at.constant)
                pointer = f.pointer(pointer, far, "i8")
            elif d != self.axis:
                constant += at.constant * stride
        pointer = f.pointer(pointer, constant * size, "i8")
        if self.axis is not None:
            far = f.mul(self.row(number), self.strides[self.axis] * size)
            pointer = f.pointer(pointer, far, "i8")
        return pointer


def loaded(e: ThreadValues[Any, Tile], access: WindowAccess) -> Tile:
    """The window of a load in the access's layout; elements outside of the memory are `fill`."""
    f, element, width = e.f, access.element, access.width
    number = bool(access.op.fill) if element.is_bool else element.dtype.type(access.op.fill)
    fill = elements.register_constant(element, number, 1)
    if not math.prod(access.memory.dims):
        return e.registers(access.layout, lambda _: fill)

    def read(first: int) -> list[Register]:
        held, pointer = access.inside(first), access.pointer(first)
        if held is None:
            return load(f, pointer, element, width, True)
        # Outside, the first element of the memory is read, and forgotten.
        found = load(f, f.select(held, pointer, access.start), element, width, True)
        return [arithmetic.select(f, held, one, fill) for one in found]

    def one(number: int) -> Register:
        first = number - number % width
        return e.once((access, "read", first), lambda: read(first))[number - first]

    return e.registers(access.layout, one)


def write(
    access: WindowAccess,
    tile: Sequence[Register | None],
    masks: Sequence[Register | None] = (),
    combine: Callable[[llvm.Value, Register], None] | None = None,
) -> None:
    """Stores a tile where its elements are inside of the memory and masks hold; `combine` does so
    with one element, if not by overwriting what is there."""
    e, element = access.e, access.element
    owner = e.owner(access.layout)
    if owner is not None:
        tile = list(tile)  # all threads compute it, before one of them stores
    width = 1 if masks or combine else access.width
    for first in range(0, len(tile), width):
        if access.layout.places[first] is None:
            continue
        held = e.both(owner, access.inside(first))
        if masks:
            wanted = masks[first]
            assert isinstance(wanted, llvm.Value)
            held = e.both(held, wanted)
        own = (tile[number] for number in range(first, first + width))
        registers = [one for one in own if one is not None]
        # The address is computed outside of the test, where others share it.
        pointer = access.pointer(first)
        with where(e.f, held):
            if combine is not None:
                combine(pointer, registers[0])
            else:
                store(e.f, pointer, registers, element, True)


def load(
    f: llvm.Function, pointer: llvm.Value, element: Any, count: int, aligned: bool
) -> list[Register]:
    """`count` neighbours from a pointer on, as registers."""
    kind = elements.memory_type(f, element)
    parts = 2 if element.is_complex else 1
    total = count * parts
    size = max(1, llvm.bits_of(kind) // 8)
    raw: list[llvm.Value] = []
    width = total if aligned else parts
    while width * size > ACCESS_BYTES:
        width //= 2
    for first in range(0, total, width):
        at = f.pointer(pointer, first, kind)
        one = f.load(llvm.vector(width, kind), at, align=width * size)
        raw += [f.extract(one, lane) for lane in range(width)] if width > 1 else [one]
    wide = [elements.widen(f, one, element) for one in raw]
    if parts == 1:
        return list(wide)
    return [Pair(*wide[n : n + 2]) for n in range(0, total, 2)]


def store(
    f: llvm.Function,
    pointer: llvm.Value,
    registers: Sequence[Register],
    element: Any,
    aligned: bool,
) -> None:
    """Neighbours to a pointer on."""
    kind = elements.memory_type(f, element)
    raw: list[llvm.Value] = []
    for register in registers:
        parts = register if isinstance(register, Pair) else (register,)
        raw += [elements.narrow(f, part, element) for part in parts]
    size = max(1, llvm.bits_of(kind) // 8)
    width = len(raw) if aligned else len(raw) // len(registers)
    while width * size > ACCESS_BYTES:
        width //= 2
    for first in range(0, len(raw), width):
        at = f.pointer(pointer, first, kind)
        f.store(f.joined(raw[first : first + width]), at, align=width * size)
