"""Tile values in registers: what an element is computed from, wherever layouts put it.

A value is asked for in a layout, which says what element each register of a thread holds, and is
made of its operands in the layouts that fit. So one evaluator serves all ways in which threads
share a tile: blocks of threads (`tile/`) and warp groups that multiply (`pipeline/`). What was made
is kept for the region it was made in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, Self, TypeVar

from ...hlo.errors import CompilerBug, UserError
from ...hlo.graph import Op, Value
from ...hlo.offsets import Offset, Offsets
from ...hlo.types import I32
from .. import llvm
from ..llvm import arithmetic, elements, elementwise
from ..llvm.elements import Register
from ..llvm.index import Affine
from ..plain.monoid import flat, unflat
from .layout_code import as_i64


class ElementLayout(Protocol):
    """Which elements a thread holds."""

    def vector(self, most: int) -> int:
        """Neighbours along the last dim in registers that follow each other, at most so many."""
        ...


class RegisterLayout(ElementLayout, Protocol):
    """Which element each register of a thread holds."""

    def operand(self, op: Op) -> tuple[Self, Sequence[int]] | None:
        """The layout of the operand of an operation that moves dims, whose result lies so; and for
        each register of this one which of that one has its element. None if there is none."""
        ...


Elements = TypeVar("Elements", bound=ElementLayout)
Layout = TypeVar("Layout", bound=RegisterLayout)
Tile = TypeVar("Tile", bound=Sequence[Register | None])  # by register


@dataclass
class ValueScope(Generic[Layout, Tile]):
    """What the code of one region knows; regions inside see it through `outer`."""

    outer: Self | None = None
    tiles: dict[Value, dict[Layout, Tile]] = field(default_factory=dict)
    known: dict[Hashable, Any] = field(default_factory=dict)

    def chain(self) -> Iterator[Self]:
        """This scope and those around it."""
        scope: Self | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    def tile(self, value: Value, layout: Layout) -> Tile | None:
        """The registers of a value in a layout."""
        found = (scope.tiles.get(value, {}).get(layout) for scope in self.chain())
        return next((tile for tile in found if tile is not None), None)

    def any_tile(self, value: Value) -> tuple[Layout, Tile] | None:
        """The registers of a value in the layout that it was made in."""
        found = (scope.tiles[value] for scope in self.chain() if value in scope.tiles)
        return next((next(iter(tiles.items())) for tiles in found), None)


Scope = TypeVar("Scope", bound=ValueScope[Any, Any])


class ThreadValues(ABC, Generic[Elements, Tile]):
    """What a thread knows of values of a tile function: where its elements are, and numbers."""

    def __init__(self, f: llvm.Function, offsets: Offsets) -> None:
        self.f, self.offsets = f, offsets

    @abstractmethod
    def registers(self, layout: Elements, element: Callable[[int], Register]) -> Tile:
        """A tile of element(number) for each register that holds one."""

    def taken(self, layout: Elements, registers: Iterator[Register]) -> Tile:
        """A tile of the next registers."""
        return self.registers(layout, lambda _: next(registers))

    @abstractmethod
    def index(self, layout: Elements, number: int) -> Sequence[Affine]:
        """The index of a register's element."""

    @abstractmethod
    def held(self, layout: Elements, number: int) -> llvm.Value | None:
        """Whether a register's element lies in the tile; None: always."""

    @abstractmethod
    def owner(self, layout: Elements) -> llvm.Value | None:
        """Whether this thread is the first of those that hold the same; None where there are no
        others."""

    @abstractmethod
    def base(self, memory: Value) -> llvm.Value:
        """The address of a memory of the kernel."""

    @abstractmethod
    def once(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """What is computed at most once in a region."""

    @abstractmethod
    def scalar(self, value: Value) -> Register:
        """The register of a scalar."""

    def number(self, value: Value) -> llvm.Value:
        """The register of a scalar that is no complex number."""
        register = self.scalar(value)
        assert isinstance(register, llvm.Value)
        return register

    def integer(self, value: Value) -> llvm.Value:
        """An i32 scalar, as an i64."""
        return self.f.cast("sext", self.number(value), "i64")

    def sum(self, offset: Offset, kind: str) -> llvm.Value:
        """A sum of numbers, an i32 or an i64."""
        f = self.f
        total: llvm.Value = f.constant(kind, offset.constant)
        for variable, factor in offset.terms:
            one = self.number(variable) if kind == "i32" else self.integer(variable)
            total = f.add(total, f.mul(one, factor))
        return total

    def both(self, a: llvm.Value | None, b: llvm.Value | None) -> llvm.Value | None:
        """a and b, where None is true."""
        if a is None or b is None:
            return a if b is None else b
        return self.f.land(a, b)


class TileEvaluator(ThreadValues[Layout, Tile], Generic[Layout, Tile, Scope]):
    """The values of one tile function in the registers of a thread. `uniform` is the layout of a
    scalar, `ids` the numbers of the thread's tile along the axes of the grid."""

    def __init__(self, f: llvm.Function, offsets: Offsets, uniform: Layout, scope: Scope) -> None:
        super().__init__(f, offsets)
        self.uniform, self.scope = uniform, scope
        self.ids: Sequence[llvm.Value] = ()

    @abstractmethod
    def layout(self, value: Value) -> Layout:
        """The layout that a value is made in."""

    def position(self, layout: Layout, number: int, d: int) -> llvm.Value:
        """The index along dim d of a register's element, i32."""
        return self.f.cast("trunc", as_i64(self.f, self.index(layout, number)[d]), "i32")

    def moved(self, layout: Layout, tile: Tile, numbers: Sequence[int]) -> Tile:
        """The registers of these numbers."""
        return self.registers(layout, lambda number: tile[numbers[number]])  # type: ignore[return-value]

    def made(self, value: Value, layout: Layout) -> Tile:
        """A value that is not known in a layout."""
        return self.computed(value, layout)

    def by_index(self, op: Op, value: Value, layout: Layout) -> Tile:
        """A value whose elements are no formula of registers."""
        raise arithmetic.unsupported(op)

    # Values.

    @contextmanager
    def inside(self) -> Iterator[None]:
        """A region inside: what is made there is forgotten behind it."""
        outer = self.scope
        self.scope = type(outer)(outer)
        yield
        self.scope = outer

    def once(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        for scope in self.scope.chain():
            if key in scope.known:
                return scope.known[key]
        found = self.scope.known[key] = compute()
        return found

    def bind(self, value: Value, tile: Tile, layout: Layout | None = None) -> None:
        """States where a value is."""
        own = layout if layout is not None and value.rank else self.layout(value)
        self.scope.tiles.setdefault(value, {})[own] = tile

    def tile(self, value: Value, layout: Layout | None = None) -> Tile:
        """The registers of a value in a layout, its own by default."""
        layout = self.layout(value) if layout is None else layout
        found = self.scope.tile(value, layout)
        if found is None:
            found = self.made(value, layout)
            self.scope.tiles.setdefault(value, {})[layout] = found
        return found

    def scalar(self, value: Value) -> Register:
        register = self.tile(value, self.uniform)[0]
        assert register is not None
        return register

    def computed(self, value: Value, layout: Layout) -> Tile:
        """A value that nothing has made yet, of its operands in fitting layouts."""
        if value.op is None:
            raise CompilerBug(f"a tile function has no tile {value}")
        with self.f.within(value.op):
            return self.by_operation(value.op, value, layout)

    def by_operation(self, op: Op, value: Value, layout: Layout) -> Tile:
        """The result of an operation of registers."""
        if is_splat(op):
            number = op.attributes["value"].splat_value
            one = elements.register_constant(value.element, number, 1)
            return self.registers(layout, lambda _: one)
        if op.name == "tile_bound":
            return self.registers(layout, lambda _: self.f.constant("i32", op.size))
        if op.name == "tile_id":
            return self.registers(layout, lambda _: along_grid(op, self.ids))
        if op.name == "iota":
            d, element = op.iota_dimension, value.element
            return self.registers(
                layout,
                lambda n: arithmetic.convert(self.f, self.position(layout, n, d), I32, element),
            )
        if op.definition.views:
            (operand,) = op.operands
            if operand.rank == 0:
                return self.registers(layout, lambda _: self.scalar(operand))
            found = layout.operand(op)
            if found is not None:
                return self.moved(layout, self.tile(operand, found[0]), found[1])
        elif is_elementwise(op):
            return self.elementwise(op, layout)
        return self.by_index(op, value, layout)

    def elementwise(self, op: Op, layout: Layout) -> Tile:
        """An elementwise operation, whatever there is a shorter way for."""
        tiles = [
            (self.tile(operand, layout if operand.rank else self.uniform), operand.rank > 0)
            for operand in op.operands
        ]
        return self.registers(
            layout,
            lambda n: elementwise.applied(self.f, op, [t[n if full else 0] for t, full in tiles]),  # type: ignore[misc]
        )


class CarriedRegisters:
    """Values that a loop or a branch gives, in the layouts of `like`. `start` puts values there and
    gives their registers; `again` does so with values that are computed from those that lie there;
    `bind` states that values lie there, in these registers."""

    def __init__(self, e: TileEvaluator[Any, Any, Any], like: Sequence[Value]) -> None:
        self.e, self.layouts = e, [e.layout(value) for value in like]
        self.registers: list[Register] = []

    def start(self, values: Sequence[Value]) -> list[llvm.Value]:
        tiles = map(self.e.tile, values, self.layouts)
        self.registers = [one for tile in tiles for one in tile if one is not None]
        return flat(self.registers)

    again = start

    def bind(self, values: Sequence[Value], found: Sequence[llvm.Value]) -> None:
        registers = iter(unflat(found, self.registers))
        for value, layout in zip(values, self.layouts, strict=True):
            self.e.bind(value, self.e.taken(layout, registers), layout)


def along_grid(op: Op, ids: Sequence[llvm.Value]) -> llvm.Value:
    """The number of the block along the axis of a tile_id."""
    if op.axis >= len(ids):
        raise UserError(f"{op.place}tile_id: axis {op.axis} of a grid of {len(ids)} axes")
    return ids[op.axis]


def is_splat(op: Op) -> bool:
    """Whether it is a constant that is one number everywhere."""
    return op.name == "constant" and op.attributes["value"].is_splat


def is_elementwise(op: Op) -> bool:
    """Whether each element of the result is computed from those at the same index."""
    if op.definition.pattern != "elementwise" or len(op.results) != 1:
        return False
    if op.name == "bitcast_convert":
        return op.operands[0].dims == op.result.dims
    return elementwise.supports(op)


def computes(op: Op) -> bool:
    """Whether the evaluator makes the operation's result of registers."""
    number = op.name == "iota" or op.definition.uniform or is_splat(op)
    return number or bool(op.definition.views) or is_elementwise(op)
