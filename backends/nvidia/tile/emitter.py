"""Walks a tile function and emits it for one block of threads.

A value is a scalar (equal in all threads) or a tile in registers (`DistributedLayout`), with a copy
in shared memory where an operation needs elements of other threads. What is asked for in another
layout is made from what there is: constants and the like anew, registers renamed or shuffled, else
through shared memory. What was made is kept for the region it was made in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from ....hlo.graph import Op, Region, Value
from ....hlo.tiling import MEMORY_OPS
from ....optimizer.tiles.raster import Raster, raster
from ... import llvm
from ...llvm import elementwise
from ...llvm.elements import Register
from ...llvm.elementwise import ElementEmitter, Mask, given
from ...llvm.index import Affine, linear
from ..atoms import ACCESS_BYTES
from ..evaluator import (
    CarriedRegisters,
    TileEvaluator,
    computes,
)
from ..frame import where
from ..layout_code import as_i64
from ..windows import load, store
from .analysis import OperandSource
from .assign import Assignment
from .block import KernelBlock
from .block_wide import emit_block_wide
from .distributed_layout import DistributedLayout, blocked, way
from .scope import RegionScope, Tile
from .shared import MemoryPiece, PaddedTile

if TYPE_CHECKING:
    from .ring import Ring

TOGETHER = 8  # rows of tiles of a product that are walked together


class Rules(NamedTuple):
    """What is emitted by code that asks the emitter for values in turn: operations of these names;
    a window in a layout; a tile in another layout; a product's window in rows of shared memory;
    what a loop does ahead of its turns."""

    operations: Mapping[str, Callable[[Emitter, Op], None]]
    loaded: Callable[[Emitter, Op, DistributedLayout], Tile]
    converted: Callable[[Emitter, Value, DistributedLayout, Tile, DistributedLayout], Tile]
    copy: Callable[[Emitter, OperandSource, PaddedTile], None]
    ahead: Callable[[Emitter, Op], Ring | None]


class Emitter(TileEvaluator[DistributedLayout, Tile, RegionScope]):
    """The code of one kernel_call."""

    def __init__(self, assignment: Assignment, rules: Rules, shares: bool = False) -> None:
        self.assignment, self.rules = assignment, rules
        self.facts, self.target = assignment.facts, assignment.target
        self.kernel = self.facts.kernel
        self.order = self._order()
        self.rings: list[Ring] = []
        self.block = KernelBlock(
            self.kernel, self.target, assignment.threads, shares, assignment.crowded, self.order
        )
        uniform = blocked((), 1, assignment.threads)
        super().__init__(self.block.f, self.facts.offsets, uniform, RegionScope())
        self.ids, self.hazards = self.block.ids, self.block.hazards
        self.contended = self._contended()

    def _order(self) -> Raster:
        """Tiles of products are walked in blocks of rows by columns."""
        lefts: set[int] = set()
        rights: set[int] = set()
        rank = len(self.kernel.grid)
        for product in self.facts.products:
            for side, source in ((lefts, product.left), (rights, product.right)):
                if source.window is None:
                    return Raster(tuple(range(rank)))
                for offset in source.window.offsets:
                    made = [variable.op for variable in offset.variables]
                    side.update(op.axis for op in made if op is not None and op.name == "tile_id")
        return raster(rank, lefts, rights, TOGETHER)

    def _contended(self) -> frozenset[Value]:
        """Results that more than one access touches: their order is that of the program."""
        region = self.facts.region
        touched: dict[Value, int] = {}
        for op in region.walk():
            if op.name in MEMORY_OPS:
                # In a loop one operation is many accesses.
                count = 1 if op in region.ops else 2
                touched[op.operands[0]] = touched.get(op.operands[0], 0) + count
        return frozenset(v for v in self.facts.results if touched.get(v, 0) > 1)

    def body(self) -> None:
        """Emits the whole body."""
        self.region(self.facts.region)

    def region(self, region: Region) -> None:
        """The operations of a region, in the current scope."""
        self.scope.last = _last_uses(region)
        rules = self.rules.operations
        for op in region.ops:
            with self.f.within(op):
                rule = rules.get(op.name)
                if op in self.assignment.fused:
                    rules["dot_general"](self, op)
                elif rule is not None:
                    rule(self, op)
                elif not is_scalar(op) and (self.is_flexible(op) or op in self.assignment.skipped):
                    pass  # made where it is asked for
                elif computes(op):
                    self.tile(op.result)
                else:
                    self.all_by_index(op)
            self.release(op)

    def release(self, op: Op) -> None:
        """Gives back the shared memory of what is used for the last time."""
        scope = self.scope
        for value in scope.last.get(op, ()):
            if value in scope.shared:
                self.block.arena.give(scope.shared.pop(value))
            for key in [key for key in scope.staged if key[0] is value]:
                self.block.arena.give(scope.staged.pop(key).piece)

    @contextmanager
    def inside(self) -> Iterator[None]:
        with super().inside():
            yield
            for rows in self.scope.staged.values():
                self.block.arena.give(rows.piece)
            for piece in self.scope.shared.values():
                self.block.arena.give(piece)

    # Control flow.

    def carried(self, op: Op) -> CarriedRegisters:
        return CarriedRegisters(self, op.results)

    def ahead(self, op: Op) -> Ring | None:
        return self.rules.ahead(self, op)

    def know(self, value: Value, number: llvm.Value) -> None:
        self.bind(value, [number])

    # Values.

    def is_flexible(self, op: Op) -> bool:
        """Whether the value is made in any layout at no cost worth a conversion."""
        return self.assignment.is_flexible(op)

    def layout(self, value: Value) -> DistributedLayout:
        if not value.rank:
            return self.uniform
        return self.assignment.tile_layouts.get(value) or self.assignment.blocked(value.dims)

    def registers(self, layout: DistributedLayout, element: Callable[[int], Register]) -> Tile:
        return [
            None if place is None else element(number) for number, place in enumerate(layout.places)
        ]

    def index(self, layout: DistributedLayout, number: int) -> list[Affine]:
        return self.block.index(layout, _place(layout, number))

    def held(self, layout: DistributedLayout, number: int) -> llvm.Value | None:
        return self.block.inside(layout, _place(layout, number))

    def owner(self, layout: DistributedLayout) -> llvm.Value | None:
        return self.block.owner(layout.copies)

    def base(self, memory: Value) -> llvm.Value:
        return self.block.memory[memory]

    def made(self, value: Value, layout: DistributedLayout) -> Tile:
        if value.rank == 0 and layout != self.uniform:
            return [self.scalar(value)] * layout.count
        known = self.scope.any_tile(value)
        if known is None and self.scope.piece(value) is None:
            return self.computed(value, layout)
        if known is not None and self._reloads(value):
            assert value.op is not None
            return self.rules.loaded(self, value.op, layout)
        op = value.op
        renamed = known is not None and way(value, known[0], layout).registers
        if not renamed and op is not None and self.is_flexible(op):
            return self.computed(value, layout)
        if known is None or not renamed and self.scope.piece(value) is not None:
            return self.from_shared(value, layout)
        source, tile = known
        return self.rules.converted(self, value, source, tile, layout)

    def _reloads(self, value: Value) -> bool:
        """Whether a small window of an input is read again rather than exchanged."""
        op = value.op
        return (
            op is not None
            and op.name == "tile_load"
            and value.rank == 1
            and op.operands[0] in self.facts.inputs
        )

    # Shared memory.

    def pointer(self, piece: MemoryPiece, offset: int = 0) -> llvm.Value:
        """The address of a byte of a piece of shared memory."""
        return self.block.entry.shared(piece.start + offset)

    def shared(self, *values: Value) -> list[llvm.Value]:
        """The addresses of copies of values in shared memory, row-major, that all may read now."""
        pieces = [self.scope.piece(value) or self._to_shared(value) for value in values]
        self.block.hazards.read(*pieces)
        return [self.pointer(piece) for piece in pieces]

    def _to_shared(self, value: Value) -> MemoryPiece:
        known = self.scope.any_tile(value)
        layout = known[0] if known else self.layout(value)
        tile = self.tile(value, layout)
        piece = self.block.arena.take(value.tensor.bytes)
        self.scope.shared[value] = piece
        self.hazards.write(piece)
        base, owner = self.pointer(piece), self.owner(layout)
        width = self._width(value, layout)
        for number in range(0, layout.count, width):
            if layout.places[number] is None:
                continue
            held = self.both(owner, self.held(layout, number))
            at = self.address(base, linear(self.index(layout, number), value.dims), value)
            registers = [one for one in tile[number : number + width] if one is not None]
            with where(self.f, held):
                store(self.f, at, registers, value.element, True)
        return piece

    def from_shared(self, value: Value, layout: DistributedLayout) -> Tile:
        """The registers of a value, read from its copy in shared memory."""
        (base,) = self.shared(value)
        width = self._width(value, layout)
        tile: Tile = [None] * layout.count
        for number in range(0, layout.count, width):
            if layout.places[number] is None:
                continue
            at = as_i64(self.f, linear(self.index(layout, number), value.dims))
            held = self.held(layout, number)
            if held is not None:
                at = self.f.select(held, at, 0)
            pointer = self.f.pointer(base, self.f.mul(at, value.element.itemsize), "i8")
            tile[number : number + width] = load(self.f, pointer, value.element, width, True)
        return tile

    def _width(self, value: Value, layout: DistributedLayout) -> int:
        """Neighbours of a row-major copy that one access moves."""
        width = layout.vector(max(1, ACCESS_BYTES // value.element.itemsize))
        while width > 1 and value.dims[-1] % width:
            width //= 2
        return width

    def address(self, base: llvm.Value, place: Affine, value: Value) -> llvm.Value:
        """The address of an element: the thread's part first, so that the rest is a constant."""
        f = self.f
        size = value.element.itemsize
        own = as_i64(f, Affine(place.terms, 0))
        at = f.pointer(base, f.mul(own, size), "i8") if place.terms else base
        return f.pointer(at, place.constant * size, "i8")

    # Operations that move elements, or compute them one at a time from memory.

    def all_by_index(self, op: Op) -> None:
        """An operation whose elements are computed at their index from shared memory; what has no
        formula of elements is done by all threads together."""
        if not elementwise.supports(op):
            emit_block_wide(self, op)
            return
        layout = self.layout(op.result)
        self.bind(op.result, self.by_index(op, op.result, layout))

    def by_index(self, op: Op, value: Value, layout: DistributedLayout) -> Tile:
        tiles = [operand for operand in op.operands if operand.rank]
        pointers = dict(zip(tiles, self.shared(*tiles), strict=True))
        if op.name == "constant":  # many numbers, read from where the module holds them
            content = op.attributes["value"].array.tobytes()
            pointers[value] = self.block.unit.module.data(content)

        def element(number: int) -> Register:
            emitter = ElementEmitter(self.f, None)
            for one, pointer in pointers.items():
                emitter.bind(one, pointer)
            for operand in op.operands:
                if not operand.rank:
                    emitter.overrides[operand] = given(self.scalar(operand))
            held = self.held(layout, number)
            index = zip(self.index(layout, number), value.dims, strict=True)
            mask = Mask(held, 0) if held is not None else None
            return emitter.at(value, tuple(at.within(0, n - 1) for at, n in index), 1, mask)

        return self.registers(layout, element)


def _place(layout: DistributedLayout, number: int) -> Sequence[int]:
    place = layout.places[number]
    assert place is not None
    return place


def is_scalar(op: Op) -> bool:
    """Whether an operation is of scalars alone; all threads compute it."""
    return bool(op.results) and not any(v.rank for v in (*op.results, *op.operands))


def _last_uses(region: Region) -> dict[Op, list[Value]]:
    """For each operation the values of this region that nothing behind it uses."""
    last: dict[Value, Op] = {}
    for op in region.ops:
        for value in (*op.operands, *(v for inner in op.regions for v in inner.captures())):
            last[value] = op
    returned, ops = set(region.results), set(region.ops)
    found: dict[Op, list[Value]] = {}
    for value, op in last.items():
        own = value.owner is region or value.op in ops
        if own and value not in returned:
            found.setdefault(op, []).append(value)
    return found
