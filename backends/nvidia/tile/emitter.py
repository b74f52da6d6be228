"""Walks a tile function and emits it for one block of threads.

A value is a scalar (equal in all threads) or a tile in registers (`DistributedLayout`), with a copy
in shared memory where an operation needs elements of other threads. What is asked for in another
layout is made from what there is: constants and the like anew, registers renamed or shuffled, else
through shared memory. What was made is kept for the region it was made in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ....hlo.errors import CompilerBug
from ....hlo.expansion import expansion
from ....hlo.graph import Op, Region, Value
from ....hlo.ops.decomposed import Decomposed
from ....hlo.tiling import MEMORY_OPS
from ....hlo.types import I32
from ... import llvm
from ...llvm import arithmetic, elements
from ...llvm.elements import Register
from ...llvm.elementwise import ElementEmitter, Mask, Override, scalar_region
from ...llvm.elementwise import supports as computes
from ...llvm.index import Affine, linear
from ...plain.monoid import flat, unflat
from ..frame import Unit
from ..launch import KernelMemory
from ..raster import Raster, raster
from ..target import NvidiaTarget
from .analysis import Facts, OperandSource
from .assign import Assignment, is_elementwise, moves_dims
from .block import KernelBlock, along_grid
from .block_wide import emit_block_wide
from .distributed_layout import DistributedLayout, way
from .scope import RegionScope, Tile
from .shared import CHUNK, MemoryPiece, PaddedTile

if TYPE_CHECKING:
    from .ring import Ring

TOGETHER = 8  # rows of tiles of a product that are walked together


class Rules(NamedTuple):
    """What is emitted by code that asks the emitter for values in turn: operations of these names;
    a window in a layout; a tile in another layout; a product's window in rows of shared memory."""

    operations: Mapping[str, Callable[[Emitter, Op], None]]
    loaded: Callable[[Emitter, Op, DistributedLayout], Tile]
    converted: Callable[[Emitter, Value, DistributedLayout, Tile, DistributedLayout], Tile]
    copy: Callable[[Emitter, OperandSource, PaddedTile], None]


class Emitter:
    """The code of one kernel_call."""

    def __init__(
        self,
        kernel: Op,
        target: NvidiaTarget,
        rules: Rules,
        shares: bool = False,
        places: Sequence[KernelMemory] | None = None,
        unit: Unit | None = None,
    ) -> None:
        self.kernel, self.target, self.rules = kernel, target, rules
        self.facts = Facts(kernel)
        self.assignment = Assignment(self.facts, target)
        assignment = self.assignment
        self.order = self._order()
        self.rings: list[Ring] = []
        self.block = KernelBlock(
            kernel,
            target,
            assignment.threads,
            shares,
            assignment.crowded,
            places,
            unit,
            self.order,
        )
        self.f = self.block.f
        self.scope = RegionScope()
        self.uniform = self.assignment.blocked(())  # of a scalar
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
                elif op.results and all(value.rank == 0 for value in (*op.results, *op.operands)):
                    self.scalar_op(op)
                elif self.is_flexible(op) or op in self.assignment.skipped:
                    pass  # made where it is asked for
                elif is_elementwise(op) or op.name in ("reshape", "transpose"):
                    self.tile(op.result, self.layout(op.result))
                else:
                    self.by_index(op)
            self.release(op)

    def release(self, op: Op) -> None:
        """Gives back the shared memory of what is used for the last time."""
        scope = self.scope
        for value in scope.last.get(op, ()):
            if value in scope.shared:
                self.block.arena.give(scope.shared.pop(value))
            for key in [key for key in scope.staged if key[0] is value]:
                self.block.arena.give(scope.staged.pop(key).piece)

    def enter(self) -> RegionScope:
        """A region inside begins; returns what `leave` takes."""
        outer = self.scope
        self.scope = RegionScope(outer)
        return outer

    def leave(self, outer: RegionScope) -> None:
        staged = [rows.piece for rows in self.scope.staged.values()]
        for piece in (*self.scope.shared.values(), *staged):
            self.block.arena.give(piece)
        self.scope = outer

    # Values.

    def is_flexible(self, op: Op) -> bool:
        """Whether the value is made in any layout at no cost worth a conversion."""
        if op.name == "constant":
            return op.attributes["value"].is_splat
        if op.name in ("iota", "broadcast_in_dim"):
            return True
        if moves_dims(op):
            return op.result not in self.assignment.tile_layouts
        return is_elementwise(op) and op.result not in self.assignment.tile_layouts

    def layout(self, value: Value) -> DistributedLayout:
        """The layout that a value is made in."""
        return self.assignment.tile_layouts.get(value) or self.assignment.blocked(value.dims)

    def set(self, value: Value, layout: DistributedLayout, tile: Tile) -> None:
        """States where a value is."""
        if value.rank == 0:
            register = tile[0]
            assert register is not None
            self.scope.scalars[value] = register
        else:
            self.scope.tiles.setdefault(value, {})[layout] = tile

    def scalar(self, value: Value) -> Register:
        """The register of a scalar."""
        found = self.scope.scalar(value)
        if found is None:
            op = value.op
            if op is None:
                raise CompilerBug(f"a tile function has no scalar {value}")
            with self.f.within(op):
                self.scalar_op(op)
            found = self.scope.scalars[value]
        return found

    def integer(self, value: Value) -> llvm.Value:
        """An i32 scalar, as an i64."""
        register = self.scalar(value)
        assert isinstance(register, llvm.Value)
        return self.f.cast("sext", register, "i64")

    def scalar_op(self, op: Op) -> None:
        """An operation of scalars alone; all threads compute it."""
        if op.name == "constant":
            number = op.attributes["value"].splat_value
            register = elements.register_constant(op.result.element, number, 1)
        elif op.name == "tile_bound":
            register = self.f.constant("i32", op.size)
        elif op.name == "tile_id":
            register = along_grid(op, self.block.ids)
        elif op.name in ("reshape", "broadcast_in_dim", "transpose"):
            register = self.single(op.operands[0])
        elif is_elementwise(op):
            register = self.apply(op, [self.scalar(value) for value in op.operands])
        else:
            self.by_index(op)
            return
        self.scope.scalars[op.result] = register

    def single(self, value: Value) -> Register:
        """The one element of a scalar or of a tile of one element."""
        if not value.rank:
            return self.scalar(value)
        layout = self.uniform.reshaped(value.dims)
        assert layout is not None
        register = self.tile(value, layout)[0]
        assert register is not None
        return register

    def apply(self, op: Op, registers: Sequence[Register]) -> Register:
        """An elementwise operation on one element."""
        if arithmetic.supports(op):
            return arithmetic.apply(self.f, op, registers)
        if op.name == "bitcast_convert":
            return self._bits(op, registers[0])
        region = expansion(op) if isinstance(op.definition, Decomposed) else None
        if region is None:
            raise arithmetic.unsupported(op)
        return scalar_region(self.f, region, registers, 1)[0]

    def _bits(self, op: Op, register: Register) -> Register:
        """The same bits as another element type of the same size."""
        source, target = op.operands[0].element, op.result.element
        if not isinstance(register, llvm.Value) or target.is_complex:
            raise arithmetic.unsupported(op)
        raw = elements.narrow(self.f, register, source)
        raw = self.f.bitcast(raw, elements.memory_type(self.f, target))
        return elements.widen(self.f, raw, target)

    # Tiles in a layout.

    def tile(self, value: Value, layout: DistributedLayout) -> Tile:
        """The registers of a value in a layout."""
        found = self.scope.tile(value, layout)
        if found is None:
            found = self._made(value, layout)
            self.scope.tiles.setdefault(value, {})[layout] = found
        return found

    def _made(self, value: Value, layout: DistributedLayout) -> Tile:
        if value.rank == 0:
            return [self.scalar(value)] * layout.count
        known = self.scope.any_tile(value)
        if known is None and self.scope.piece(value) is None:
            return self._computed(value, layout)
        if known is not None and self._reloads(value):
            assert value.op is not None
            return self.rules.loaded(self, value.op, layout)
        op = value.op
        renamed = known is not None and way(value, known[0], layout).registers
        if not renamed and op is not None and self.is_flexible(op):
            return self._computed(value, layout)
        if known is None or not renamed and self.scope.piece(value) is not None:
            return self.from_shared(value, layout)
        return self.rules.converted(self, value, *known, layout)

    def _reloads(self, value: Value) -> bool:
        """Whether a small window of an input is read again rather than exchanged."""
        op = value.op
        return (
            op is not None
            and op.name == "tile_load"
            and value.rank == 1
            and op.operands[0] in self.facts.inputs
        )

    def _computed(self, value: Value, layout: DistributedLayout) -> Tile:
        """A value that nothing has made yet, of its operands in fitting layouts."""
        op = value.op
        if op is None:
            raise CompilerBug(f"a tile function has no tile {value}")
        with self.f.within(op):
            return self._computed_by(op, layout)

    def _computed_by(self, op: Op, layout: DistributedLayout) -> Tile:
        value = op.result
        if op.name == "constant":
            number = op.attributes["value"].splat_value
            one = elements.register_constant(value.element, number, 1)
            return [None if place is None else one for place in layout.places]
        if op.name == "broadcast_in_dim":
            (operand,) = op.operands
            if operand.rank == 0:
                one = self.scalar(operand)
                return [None if place is None else one for place in layout.places]
            mapped = tuple(op.broadcast_dimensions)
            source, numbers = layout.broadcast(operand.dims, mapped)
            tile = self.tile(operand, source)
            return self._taken(tile, numbers, layout)
        if op.name == "iota":
            return self.each(layout, lambda index: self._iota(op, index))
        if op.name == "transpose":
            inverse = [op.permutation.index(d) for d in range(value.rank)]
            return self.tile(op.operands[0], layout.permuted(inverse))
        if op.name == "reshape":
            (operand,) = op.operands
            source = layout.reshaped(operand.dims)
            if source is not None:
                return self.tile(operand, source)
        elif is_elementwise(op):
            tiles = [
                self.tile(operand, layout)
                if operand.rank
                else [self.scalar(operand)] * layout.count
                for operand in op.operands
            ]
            return [
                self.apply(op, [tile[number] for tile in tiles])  # type: ignore[misc]
                if place is not None
                else None
                for number, place in enumerate(layout.places)
            ]
        return self._elements(op, value, layout)

    def _taken(self, tile: Tile, numbers: Sequence[int], layout: DistributedLayout) -> Tile:
        return [
            tile[number] if place is not None else None
            for number, place in zip(numbers, layout.places, strict=True)
        ]

    def each(
        self, layout: DistributedLayout, element: Callable[[Sequence[Affine]], Register]
    ) -> Tile:
        """element(index) for each register."""
        return [
            None if place is None else element(self.block.index(layout, place))
            for place in layout.places
        ]

    def _iota(self, op: Op, index: Sequence[Affine]) -> Register:
        at = self.f.cast("trunc", self.block.scalar(index[op.iota_dimension]), "i32")
        return arithmetic.convert(self.f, at, I32, op.result.element)

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
        self.block.hazards.write(piece)
        base = self.pointer(piece)
        size = value.element.itemsize
        width = layout.vector(max(1, CHUNK // size))
        while width > 1 and value.dims[-1] % width:
            width //= 2
        owner = self.block.owner(layout.copies)
        for number in range(0, layout.count, width):
            place = layout.places[number]
            if place is None:
                continue
            index = self.block.index(layout, place)
            held = self.block.both(owner, self.block.inside(layout, place))
            at = self.address(base, linear(index, value.dims), value)
            registers = [one for one in tile[number : number + width] if one is not None]
            self.guarded(
                held, lambda at=at, r=registers: self.block.store(at, r, value.element, True)
            )
        return piece

    def from_shared(self, value: Value, layout: DistributedLayout) -> Tile:
        """The registers of a value, read from its copy in shared memory."""
        (base,) = self.shared(value)
        width = layout.vector(max(1, CHUNK // value.element.itemsize))
        while width > 1 and value.dims[-1] % width:
            width //= 2
        tile: Tile = [None] * layout.count
        for number in range(0, layout.count, width):
            place = layout.places[number]
            if place is None:
                continue
            index = linear(self.block.index(layout, place), value.dims)
            at = self.block.scalar(index)
            held = self.block.inside(layout, place)
            if held is not None:
                at = self.f.select(held, at, 0)
            pointer = self.f.pointer(base, self._scaled(at, value), "i8")
            tile[number : number + width] = self.block.load(pointer, value.element, width, True)
        return tile

    def address(self, base: llvm.Value, place: Affine, value: Value) -> llvm.Value:
        """The address of an element: the thread's part first, so that the rest is a constant."""
        f = self.f
        size = value.element.itemsize
        own = self.block.scalar(Affine(place.terms, 0))
        at = f.pointer(base, f.mul(own, size), "i8") if place.terms else base
        return f.pointer(at, place.constant * size, "i8")

    def _scaled(self, at: llvm.Value, value: Value) -> llvm.Value:
        return self.f.mul(at, value.element.itemsize)

    def guarded(self, condition: llvm.Value | None, code: Callable[[], None]) -> None:
        """Runs code where the condition holds; None always holds."""
        if condition is None:
            code()
            return
        with self.f.if_then(condition):
            code()

    # Operations that move elements, or compute them one at a time from memory.

    def by_index(self, op: Op) -> None:
        """An operation whose elements are computed at their index from shared memory; what has no
        formula of elements is done by all threads together."""
        if op.name != "constant" and not computes(op):
            emit_block_wide(self, op)
            return
        for value in op.results:
            layout = self.layout(value) if value.rank else self.uniform
            self.set(value, layout, self._elements(op, value, layout))

    def _elements(self, op: Op, value: Value, layout: DistributedLayout) -> Tile:
        if op.name == "constant":
            return self._table(op, value, layout)
        tiles = [operand for operand in op.operands if operand.rank]
        pointers = dict(zip(tiles, self.shared(*tiles), strict=True))
        f = self.f

        def element(place: Sequence[int]) -> Register:
            emitter = ElementEmitter(f, self.facts.region, ())
            for operand in op.operands:
                if operand.rank:
                    emitter.bind(operand, pointers[operand])
                else:
                    emitter.overrides[operand] = _given(self.scalar(operand))
            index = tuple(self.block.index(layout, place))
            held = self.block.inside(layout, place)
            index = tuple(at.within(0, n - 1) for at, n in zip(index, value.dims, strict=True))
            mask = Mask(held, 0) if held is not None else None
            return emitter.at(value, index, 1, mask)

        return [None if place is None else element(place) for place in layout.places]

    def _table(self, op: Op, value: Value, layout: DistributedLayout) -> Tile:
        """A constant of many numbers, read from where the module holds it."""
        dense = op.attributes["value"]
        base = self.block.unit.module.data(dense.array.tobytes())

        def element(place: Sequence[int]) -> Register:
            at = self.block.scalar(linear(self.block.index(layout, place), value.dims))
            held = self.block.inside(layout, place)
            if held is not None:
                at = self.f.select(held, at, 0)
            pointer = self.f.pointer(base, self._scaled(at, value), "i8")
            return self.block.load(pointer, value.element, 1, False)[0]

        return [None if place is None else element(place) for place in layout.places]

    # Registers as lists of LLVM values, for loops and branches.

    def opened(self, value: Value, layout: DistributedLayout | None) -> list[llvm.Value]:
        """The LLVM values of a scalar, or of a tile in a layout."""
        if layout is None:
            return flat([self.scalar(value)])
        return flat([one for one in self.tile(value, layout) if one is not None])

    def closed(
        self, value: Value, layout: DistributedLayout | None, values: Sequence[llvm.Value]
    ) -> None:
        """States that a value is made of LLVM values."""
        like = elements.register_constant(value.element, value.element.dtype.type(0), 1)
        if layout is None:
            self.scope.scalars[value] = unflat(values, [like])[0]
            return
        registers = iter(unflat(values, [like] * len(layout.alive)))
        tile: Tile = [None if place is None else next(registers) for place in layout.places]
        self.scope.tiles.setdefault(value, {})[layout] = tile


def _given(register: Register) -> Override:
    return lambda index, width: register


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
