"""Operands of products in shared memory: how they lie there, and how threads get their parts.

An operand lies in rows as its tile has them, in the swizzle of the copy engine; products see it as
(own dim, summed dim). How a thread's part is loaded follows from the layouts: by ldmatrix where
that is legal, else by the widest loads, from chunks that then change places so that banks differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ... import llvm
from ...llvm import elements
from .. import layouts
from ..atoms import ACCESS_BYTES
from ..frame import load_matrices, where
from ..layouts import Addresses, LinearLayout, MatrixAccess, SharedAccess
from .analysis import OperandSource
from .distributed_layout import DistributedLayout, copies
from .shared import ALIGNMENT, PaddedTile, bytes_of

if TYPE_CHECKING:
    from .emitter import Emitter

LEAST = 32  # bytes of a row
LINE = 128  # bytes that a swizzle permutes


@dataclass(frozen=True, eq=False)
class ProductOperand:
    """`value`: which elements (own, depth) a thread takes; `tile`: which (row, column) lies at an
    offset of shared memory, in elements of `size` bytes."""

    source: OperandSource
    value: LinearLayout
    size: int
    matrices: bool = True  # whether ldmatrix may load it

    @cached_property
    def tile(self) -> LinearLayout:
        """The swizzle that ldmatrix can read if there is one, with the fewest bank conflicts."""
        found = [self._swizzled(chunk) for chunk in (ACCESS_BYTES, 2 * ACCESS_BYTES)]
        return min(found, key=self._cost)

    def _swizzled(self, chunk: int) -> LinearLayout:
        rows, columns = self.value.shape if self.source.along else self.value.shape[::-1]
        columns = max(columns, LEAST // self.size)
        return layouts.swizzled((rows, columns), self.size, min(LINE, columns * self.size), chunk)

    def _cost(self, tile: LinearLayout) -> tuple[bool, int]:
        seen, matrices = self.seen(tile), self.loads(tile)[0]
        if matrices is not None:
            return False, layouts.matrix_wavefronts(matrices)
        return True, layouts.wavefronts(self.value.resized(seen.shape), seen, self.size)

    def seen(self, tile: LinearLayout) -> LinearLayout:
        """A tile of rows and columns as (own, depth)."""
        return tile if self.source.along else tile.transpose((1, 0))

    def loads(self, tile: LinearLayout) -> tuple[MatrixAccess | None, Addresses]:
        """How threads load their parts from a tile: by ldmatrix if there is such an access."""
        seen = self.seen(tile)
        value = self.value.resized(seen.shape)
        if self.matrices:
            return layouts.accesses(value, seen, self.size)
        return None, layouts.addresses(value, seen, self.size)


def copies_as_it_lies(operand: ProductOperand) -> bool:
    """Whether threads can copy a window to the operand's tile: its dims are the operand's, or the
    tile has no more rows and columns than these, which are powers of two then."""
    source = operand.source
    dims = source.origin.dims
    whole = tuple(dims[d] for d in sorted((source.own, source.depth)))
    same = source.window is not None and source.window.tile.dims == dims
    return same or operand.tile.shape == whole


def as_dims(tile: LinearLayout, source: OperandSource) -> LinearLayout:
    """A tile of rows and columns in the dims of the operand's origin."""
    kept = source.rows_and_columns
    return tile.mapped([1 if d is None else tile.shape[d] for d in kept], kept)


def staged(e: Emitter, operand: ProductOperand) -> PaddedTile:
    """The operand in shared memory, written if it is not there yet."""
    source = operand.source
    rows = e.scope.ring(source.origin) or e.scope.stage((source.origin, operand.tile))
    if rows is None:
        piece = e.block.arena.take(bytes_of(operand.tile, operand.size), ALIGNMENT)
        rows = PaddedTile(piece, operand.tile, operand.size)
        e.scope.staged[source.origin, operand.tile] = rows
        e.block.hazards.write(piece)
        if e.assignment.goes_direct(source):
            e.rules.copy(e, source, rows)
        else:
            _write(e, source, rows)
    return rows


def _write(e: Emitter, source: OperandSource, rows: PaddedTile) -> None:
    """From registers; what pads the tile becomes 0."""
    value = source.origin
    known = e.scope.any_tile(value)
    layout = known[0] if known else e.layout(value)
    tile = e.tile(value, layout)
    place = as_dims(rows.layout, source)
    if place.shape != value.dims:
        _clear(e, rows)
        e.block.hazards.write(rows.piece)
    width = ACCESS_BYTES
    while width > rows.size and value.dims[max(source.own, source.depth)] * rows.size % width:
        width //= 2
    written = layout.linear.resized(place.shape)
    plan = layouts.addresses(written, place, rows.size, width)
    common = e.block.common_address(rows, plan.terms)
    owner = e.block.owner(copies(written))
    for access in plan.accesses:
        at = layout.places[access.registers[0]]
        if at is None:
            continue
        held = e.both(owner, e.block.inside(layout, at))
        raw = [raw_bits(e.f, tile[number], value.element) for number in access.registers]
        pointer = e.block.place(rows, common, access)
        with where(e.f, held):
            e.f.store(e.f.joined(raw), pointer, align=rows.size * len(raw))


def _clear(e: Emitter, rows: PaddedTile) -> None:
    """Zeros everywhere."""
    f = e.f
    zero = llvm.Value("<4 x i32>", "zeroinitializer")
    at = f.mul(e.block.thread, ACCESS_BYTES)
    for start in range(0, rows.bytes, e.block.threads * ACCESS_BYTES):
        held = None
        if start + e.block.threads * ACCESS_BYTES > rows.bytes:
            held = f.compare("ult", at, rows.bytes - start)
        pointer = e.block.place(rows, at, SharedAccess((), 0, start))
        with where(e.f, held):
            f.store(zero, pointer, align=ACCESS_BYTES)


def raw_bits(f: llvm.Function, register: object, element: object) -> llvm.Value:
    """The bits of an element as memory has them."""
    assert isinstance(register, llvm.Value)
    raw = elements.narrow(f, register, element)
    return f.bitcast(raw, f"i{llvm.bits_of(raw.type)}")


Place = tuple[int, ...]  # own, depth


class Words:
    """A thread's part of an operand in words of 4 bytes (8 of f64), each loaded when it is first
    asked for since `again`; `shift`: bytes from where the layouts put it, i32."""

    def __init__(self, e: Emitter, operand: ProductOperand) -> None:
        self.e, self.f = e, e.f
        self.rows = staged(e, operand)
        self.seen = operand.seen(self.rows.layout)
        self.matrices, plan = operand.loads(self.rows.layout)
        self.common = self.shifted = e.block.common_address(self.rows, plan.terms)
        self.known: dict[SharedAccess, list[llvm.Value]] = {}
        per = max(1, 4 // operand.size)
        self.kind = "double" if operand.size == 8 else "i32"
        self.places: dict[Place, tuple[SharedAccess, int]] = {}
        for access in plan.accesses:
            for number in range(0, len(access.registers), per):
                place = operand.value.registers[access.registers[number]]
                self.places[place] = access, number // per

    def again(self, shift: llvm.Value | None = None) -> None:
        self.known.clear()
        self.shifted = self.common if shift is None else self.f.add(self.common, shift)

    def word(self, own: int, depth: int) -> llvm.Value:
        """The word that begins with an element."""
        access, number = self.places[own, depth]
        if access not in self.known:
            pointer = self.e.block.place(self.rows, self.shifted, access)
            if self.matrices is not None:
                count, transposed = self.matrices.count, self.matrices.transposed
                self.known[access] = load_matrices(self.f, pointer, count, transposed)
            else:
                words = sum(one is access for one, _ in self.places.values())
                kind = llvm.vector(words, self.kind)
                size = llvm.bits_of(self.kind) // 8
                raw = self.f.load(kind, pointer, align=words * size)
                self.known[access] = [self.f.extract(raw, n) for n in range(words)]
        return self.known[access][number]

    def advance(self, depth: int) -> int:
        """Bytes from one part of the sum to the next, where it is a multiple of a swizzle's period
        long."""
        return self.seen.inverse().apply(dim1=depth) * self.rows.size


def held_words(
    e: Emitter, operand: ProductOperand, layout: DistributedLayout, tile: Sequence[object]
) -> dict[Place, llvm.Value]:
    """A thread's part by its words, of an operand that registers hold as the product takes it."""
    f, source, size = e.f, operand.source, operand.size
    raw: list[llvm.Value] = []
    for number, one in enumerate(tile):
        place = layout.places[number]
        if one is None or place is None:
            raw.append(llvm.constant(f"i{8 * size}", 0))
            continue
        bits = raw_bits(f, one, source.origin.element)
        inside = e.block.inside(layout, place, (source.depth,))
        raw.append(bits if inside is None else f.select(inside, bits, 0))
    per = max(1, 4 // size)
    kind = "double" if size == 8 else "i32"
    return {
        operand.value.registers[n]: f.bitcast(f.joined(raw[n : n + per]), kind)
        for n in range(0, len(raw), per)
    }
