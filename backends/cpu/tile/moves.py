"""Windows that may reach outside their memory, copied to and from tiles in scratch.

One helper function per kind of move, `move(tile, memory, rows, mask, offsets...)`, for tile_load,
tile_gather, tile_store and tile_scatter. Elements are moved as they lie; only `combine` computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....hlo.build import make_op
from ....hlo.graph import Op, arguments
from ....hlo.symbols import Dim, SymbolicDim
from ....hlo.types import TensorType
from ... import llvm
from ...llvm import arithmetic, elements
from ..codegen import Target

Value = llvm.Value
_LINES = 4  # registers of one turn of a copying loop


@dataclass(frozen=True)
class TileMove:
    """`sizes` of the tile, `dims` of the memory; `axis` of indexed rows, or -1."""

    element: Any
    dims: tuple[Dim, ...]
    sizes: tuple[Dim, ...]
    store: bool
    axis: int = -1
    fill: float = 0.0
    combine: str = ""
    masked: bool = False

    @property
    def sizes_to_give(self) -> tuple[SymbolicDim, ...]:
        """What the function has to be told: sizes that are no numbers."""
        every = dict.fromkeys((*self.dims, *self.sizes))
        return tuple(size for size in every if isinstance(size, SymbolicDim))


def move_of(op: Op) -> TileMove:
    """What a memory operation moves."""
    memory = op.operands[0]
    store = op.definition.stores
    axis = op.axis if op.definition.numbered else -1
    sizes = op.operands[1].dims if store else op.sizes
    if store:
        masked = op.name == "tile_store" and op.masked
        return TileMove(memory.element, memory.dims, sizes, True, axis, 0.0, op.combine, masked)
    return TileMove(memory.element, memory.dims, sizes, False, axis, op.fill)


def emit_move(module: llvm.Module, name: str, move: TileMove, target: Target) -> None:
    """Defines name(tile, memory, rows, mask, offset of each dim, `sizes_to_give`)."""
    rank = len(move.dims)
    parameters = [("ptr", "tile"), ("ptr", "memory"), ("ptr", "rows"), ("ptr", "mask")]
    parameters += [("i64", f"offset{d}") for d in range(rank)]
    parameters += [("i64", f"size{n}") for n in range(len(move.sizes_to_give))]
    f = module.helper(name, parameters, inline="noinline")
    if 0 not in move.sizes:
        _Mover(f, move, target).emit()
    f.ret()


class _Mover:
    def __init__(self, f: llvm.Function, move: TileMove, target: Target) -> None:
        self.f, self.move = f, move
        rank = len(move.dims)
        self.tile, self.memory, self.rows, self.mask, *self.offsets = f.arguments[: 4 + rank]
        told = dict(zip(move.sizes_to_give, f.arguments[4 + rank :], strict=True))
        self.dims: list[Any] = [told.get(d, d) for d in move.dims]  # type: ignore[call-overload]
        self.sizes: list[Any] = [told.get(n, n) for n in move.sizes]  # type: ignore[call-overload]
        size = max(1, move.element.itemsize)
        self.parts = 2 if size > 8 else 1  # complex128 is moved in halves
        self.kind = f"i{8 * size // self.parts}"
        self.lanes = max(1, target.vector_bits // llvm.bits_of(self.kind))
        self.target = target

    def emit(self) -> None:
        f, move = self.f, self.move
        bounds = [self.bounds(d) for d in range(len(move.dims))]
        if not move.store:
            inside = None
            for (first, last), size in zip(bounds, self.sizes, strict=True):
                whole = f.land(f.compare("eq", first, 0), f.compare("eq", last, size))
                inside = whole if inside is None else f.land(inside, whole)
            if inside is not None and move.axis < 0:
                with f.if_then(f.lnot(inside)):
                    self.fill()
            elif inside is not None:
                self.fill()
        zero = llvm.constant("i64", 0)
        self.nest(0, bounds, zero, zero)

    def product(self, sizes: Sequence[Any], times: int = 1) -> Any:
        """Elements of some dims."""
        total: Any = math.prod([n for n in sizes if isinstance(n, int)]) * times
        for size in sizes:
            if isinstance(size, llvm.Value):
                total = self.f.mul(size, total)
        return total

    def bounds(self, d: int) -> tuple[Value, Value]:
        """The indices of a tile's dim that lie inside the memory; all of indexed rows."""
        f, offset, size = self.f, self.offsets[d], self.sizes[d]
        if d == self.move.axis:
            return llvm.constant("i64", 0), f.lift(size, "i64")
        first = f.max(f.sub(llvm.constant("i64", 0), offset), 0)
        last = f.min(f.sub(f.lift(self.dims[d], "i64"), offset), size)
        return first, last

    def fill(self) -> None:
        f = self.f
        dtype = TensorType((), self.move.element).dtype
        raw = np.asarray(self.move.fill).astype(dtype).tobytes()
        half = len(raw) // self.parts
        numbers = [
            int.from_bytes(raw[p * half : (p + 1) * half], "little") for p in range(self.parts)
        ]
        count = self.product(self.sizes, self.parts)
        if self.parts == 1 or not any(numbers):
            whole = (
                f.mul(f.udiv(count, self.lanes), self.lanes)
                if isinstance(count, llvm.Value)
                else count // self.lanes * self.lanes
            )
            wide = llvm.constant(llvm.vector(self.lanes, self.kind), numbers[0])
            with f.for_range(0, whole, self.lanes) as loop:
                f.store(wide, f.pointer(self.tile, loop.index, self.kind))
            with f.for_range(whole, count) as loop:
                number = llvm.constant(self.kind, numbers[0])
                f.store(number, f.pointer(self.tile, loop.index, self.kind))
            return
        with f.for_range(0, count, 2) as loop:
            for part, number in enumerate(numbers):
                at = f.pointer(self.tile, f.add(loop.index, part), self.kind)
                f.store(llvm.constant(self.kind, number), at)

    def nest(
        self, d: int, bounds: Sequence[tuple[Value, Value]], tile: Value, memory: Value
    ) -> None:
        """Loops over dim d and those inside; `tile` and `memory` are positions so far."""
        f, move = self.f, self.move
        rank = len(move.dims)
        if d == rank:
            self.run(tile, memory, llvm.constant("i64", 1))
            return
        first, last = bounds[d]
        tile_step, memory_step = self.product(self.sizes[d + 1 :]), self.product(self.dims[d + 1 :])
        if d == rank - 1 and d != move.axis:
            start = f.add(memory, f.add(self.offsets[d], first))
            self.run(f.add(tile, first), start, f.sub(last, first))
            return
        with f.for_range(first, last) as loop:
            place = self.offsets[d]
            if d == move.axis:
                row = f.load("i32", f.pointer(self.rows, loop.index, "i32"))
                place = f.add(place, f.cast("sext", row, "i64"))
                inside = f.compare("ult", place, self.dims[d])
            else:
                place, inside = f.add(place, loop.index), None
            at = f.add(tile, f.mul(loop.index, tile_step))
            if inside is None:
                self.nest(d + 1, bounds, at, f.add(memory, f.mul(place, memory_step)))
            else:
                with f.if_then(inside):
                    self.nest(d + 1, bounds, at, f.add(memory, f.mul(place, memory_step)))

    def run(self, tile: Value, memory: Value, count: Value) -> None:
        """`count` neighbours, from these positions on."""
        if self.move.combine or self.move.masked:
            with self.f.for_range(0, count) as loop:
                self.one(self.f.add(tile, loop.index), self.f.add(memory, loop.index))
            return
        f = self.f
        if self.parts > 1:
            tile, memory, count = (f.mul(one, self.parts) for one in (tile, memory, count))
        source, target = (self.tile, self.memory) if self.move.store else (self.memory, self.tile)
        read, written = (tile, memory) if self.move.store else (memory, tile)
        source, target = (
            f.pointer(source, read, self.kind),
            f.pointer(target, written, self.kind),
        )
        begin: llvm.Operand = 0
        for copies in (_LINES, 1):
            step = self.lanes * copies
            end = f.mul(f.udiv(f.max(count, 0), step), step)
            vector = llvm.vector(self.lanes, self.kind)
            with f.for_range(begin, end, step) as loop:
                places = [f.add(loop.index, n * self.lanes) for n in range(copies)]
                values = [f.load(vector, f.pointer(source, p, self.kind)) for p in places]
                for place, value in zip(places, values, strict=True):
                    f.store(value, f.pointer(target, place, self.kind))
            begin = end
        with f.for_range(begin, count) as loop:
            value = f.load(self.kind, f.pointer(source, loop.index, self.kind))
            f.store(value, f.pointer(target, loop.index, self.kind))

    def one(self, tile: Value, memory: Value) -> None:
        """A single element, masked or combined with what stands there."""
        f, move = self.f, self.move
        if move.masked:
            held = f.load("i8", f.pointer(self.mask, tile, "i8"))
            with f.if_then(f.compare("ne", held, 0)):
                self.combined(tile, memory)
        else:
            self.combined(tile, memory)

    def combined(self, tile: Value, memory: Value) -> None:
        f, move = self.f, self.move
        element = move.element
        kind = elements.memory_type(f, element)
        count = 2 if element.is_complex else 1
        parts = []
        for base, position in ((self.memory, memory), (self.tile, tile)):
            at = f.mul(position, count)
            raw = [f.load(kind, f.pointer(base, f.add(at, n), kind)) for n in range(count)]
            wide = [elements.widen(f, one, element) for one in raw]
            parts.append(elements.Pair(*wide) if count == 2 else wide[0])
        old, new = parts
        if move.combine:
            scalar = TensorType((), element)
            op = make_op(move.combine, arguments([scalar, scalar]))
            new = arithmetic.apply(f, op, [old, new])
        at = f.mul(memory, count)
        for number, one in enumerate(new if isinstance(new, elements.Pair) else [new]):
            raw = elements.narrow(f, one, element)
            f.store(raw, f.pointer(self.memory, f.add(at, number), kind))
