"""Computes elements of the values of a region on the fly: `ElementEmitter.value(v, index, width)`.

Elementwise operations become register code; operations that move elements become index
arithmetic. With width > 1, what is computed are `width` neighbours along an axis whose lanes are
consecutive; accesses become plain vector loads, splats or gathers by the stride that remains.

    emitter = ElementEmitter(function, region, pointers)
    with emitter.scopes.loop(0, 4096, 16, extent=4096, lanes=CONSECUTIVE, multiple=16) as (j, _):
        x = emitter.value(region.results[0], [row, j], 16)
        emitter.store(target, x, F32, emitter.offset([row, j], dims), 16)

An index entry is an `Affine`, a Python int, or an i64 `llvm.Value`. Of plain values the last entry
counts as consecutive in the lanes when width > 1, all others as equal. Register code is emitted at
the outermost loop of `scopes` on which it depends, and at most once per loop body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal

from ...hlo.deciding import surely_at_most, surely_below
from ...hlo.errors import CompilerBug
from ...hlo.expansion import expansion
from ...hlo.graph import Op, Region, Value
from ...hlo.ops.decomposed import Decomposed
from .. import llvm
from . import arithmetic, elements, moves
from .elements import Pair, Register
from .index import (
    CONSECUTIVE,
    GENERAL,
    SAME,
    ZERO,
    Affine,
    Indexer,
    LoopAxis,
    Scopes,
    linear,
    number,
    of_axis,
)

IndexEntry = Affine | llvm.Value | int


class Mask:
    """Lanes that are wanted: <width x i1> (i1 for width 1), and the loop depth it belongs to.
    `one` is the i1 that all lanes share, where they do; `some`: at least one is wanted."""

    __slots__ = ("value", "depth", "one", "some")

    def __init__(
        self, value: llvm.Value, depth: int, one: llvm.Value | None = None, some: bool = False
    ) -> None:
        self.value, self.depth, self.some = value, depth, some
        self.one = value if value.lanes == 1 else one


Inside = Mask | None | Literal[False]  # some lanes, all of them, none
Override = Callable[[Sequence[Affine], int, Mask | None], Register]  # as `ElementEmitter.value`


class ElementEmitter:
    """Code for elements of one region's values, in one function.

    `pointers` are the base addresses of the region's arguments (None where an override stands
    for it; without a region all that is read is bound). `overrides` give a value otherwise.
    `lanewise`: values of rank 0 may differ between lanes (bodies of reductions).
    """

    def __init__(
        self,
        function: llvm.Function,
        region: Region | None,
        pointers: Sequence[llvm.Value | None] = (),
        overrides: Mapping[Value, Override] | None = None,
        *,
        scopes: Scopes | None = None,
        lanewise: bool = False,
    ) -> None:
        self.function = function
        self.scopes = scopes or Scopes(function)
        self.indexer = Indexer(self.scopes)
        self.overrides: dict[Value, Override] = dict(overrides or {})
        self.lanewise = lanewise
        self.base = 0  # loop depth that nothing may be moved out of, see `rows`
        arguments = region.arguments if region is not None else ()
        self._pointers = dict(zip(arguments, pointers, strict=False))
        self._axes: dict[tuple[str, int], Affine] = {}

    def bind(self, value: Value, pointer: llvm.Value) -> None:
        """Where an array lies that is not among the region's arguments."""
        self._pointers[value] = pointer

    # What callers use.

    def value(
        self,
        value: Value,
        index: Sequence[IndexEntry],
        width: int = 1,
        mask: Mask | llvm.Value | None = None,
    ) -> Register:
        """The register of `width` elements from the index on; lanes off the mask are undefined."""
        if isinstance(mask, llvm.Value):
            mask = Mask(mask, self.scopes.depth)
        return self.at(value, self.index(index, value.dims, width), width, mask)

    def index(
        self, entries: Sequence[IndexEntry], dims: Sequence[int], width: int
    ) -> tuple[Affine, ...]:
        """Index entries as affine expressions."""
        last = len(entries) - 1
        return tuple(
            self._entry(entry, size, width > 1 and position == last)
            for position, (entry, size) in enumerate(zip(entries, dims, strict=True))
        )

    def _entry(self, entry: IndexEntry, size: int, consecutive: bool) -> Affine:
        if isinstance(entry, Affine):
            return entry
        if isinstance(entry, int):
            return number(entry)
        if entry.number is not None and not consecutive:
            return number(int(entry.number))
        key = entry.name, size * 2 + consecutive
        found = self._axes.get(key)
        if found is None:
            lanes = CONSECUTIVE if consecutive else SAME
            found = self._axes[key] = of_axis(LoopAxis(entry, size, lanes, self.scopes.depth))
        return found

    def offset(self, index: Sequence[IndexEntry], dims: Sequence[int], width: int = 1) -> Affine:
        """The row-major position of an index."""
        return linear(self.index(index, dims, width), dims)

    def load(
        self,
        pointer: llvm.Value,
        element: Any,
        offset: Affine,
        width: int = 1,
        mask: Mask | None = None,
    ) -> Register:
        """`width` elements at a position (in elements) of an array."""
        f = self.function
        kind = elements.memory_type(f, element)
        if not element.is_complex:
            return elements.widen(f, self._load(pointer, kind, offset, width, mask), element)
        if self.beside(offset, width, mask):
            both = self.neighbours(pointer, kind, offset * 2, 2 * width, mask)
            return Pair(*(f.shuffle(both, None, range(n, 2 * width, 2)) for n in (0, 1)))
        parts = (self._load(pointer, kind, offset * 2 + i, width, mask) for i in (0, 1))
        return Pair(*parts)

    def store(
        self,
        pointer: llvm.Value,
        register: Register,
        element: Any,
        offset: Affine,
        width: int = 1,
        mask: Mask | None = None,
    ) -> None:
        """Writes `width` elements (`elements.rounded`) at a position of an array."""
        f = self.function
        kind = elements.memory_type(f, element)
        if isinstance(register, llvm.Value):
            self._store(pointer, elements.narrow(f, register, element), kind, offset, mask)
        elif self.beside(offset, width, mask):
            both = interleaved(f, register)
            self.store_neighbours(pointer, both, kind, offset * 2, mask)
        else:
            for part, raw in enumerate(register):
                self._store(pointer, raw, kind, offset * 2 + part, mask)

    # Memory. A target says which lanes move together, and how; all others move one by one.

    def together(self, mask: Mask | None) -> bool:
        """Whether neighbours under a mask are read and written as one."""
        return mask is None

    def beside(self, offset: Affine, width: int, mask: Mask | None) -> bool:
        """Whether both parts of complex numbers move in one access."""
        return width > 1 and offset.lane_stride == 1 and self.together(mask)

    def neighbours(
        self, pointer: llvm.Value, kind: str, offset: Affine, width: int, mask: Mask | None
    ) -> llvm.Value:
        """A vector of neighbours, the first of them at the offset of lane 0."""
        del mask  # there is none
        f = self.function
        return f.load(
            llvm.vector(width, kind), f.pointer(pointer, self.indexer.scalar(offset), kind)
        )

    def store_neighbours(
        self, pointer: llvm.Value, raw: llvm.Value, kind: str, offset: Affine, mask: Mask | None
    ) -> None:
        del mask  # there is none
        f = self.function
        f.store(raw, f.pointer(pointer, self.indexer.scalar(offset), kind))

    def gathered(
        self, pointer: llvm.Value, kind: str, offset: Affine, width: int, mask: Mask | None
    ) -> llvm.Value:
        """A vector of lanes that do not move together."""
        f, indexer = self.function, self.indexer
        vector, wanted = llvm.vector(width, kind), mask.value if mask else None
        if offset.lane_stride == 1 and wanted is not None:
            address = f.pointer(pointer, indexer.scalar(offset), kind)
            return f.masked_load(vector, address, wanted)
        return f.gather(vector, f.pointer(pointer, indexer.vector(offset, width), kind), wanted)

    def scattered(
        self, pointer: llvm.Value, raw: llvm.Value, kind: str, offset: Affine, mask: Mask | None
    ) -> None:
        f, indexer = self.function, self.indexer
        wanted = mask.value if mask else None
        if offset.lane_stride == 1 and wanted is not None:
            f.masked_store(raw, f.pointer(pointer, indexer.scalar(offset), kind), wanted)
            return
        addresses = f.pointer(pointer, indexer.vector(offset, raw.lanes), kind)
        f.scatter(raw, addresses, wanted)

    def _load(
        self, pointer: llvm.Value, kind: str, offset: Affine, width: int, mask: Mask | None
    ) -> llvm.Value:
        f = self.function
        if width == 1 or (offset.lanes == SAME and mask is None):
            at = self.indexer.scalar(offset)
            if mask is not None:
                at = f.select(mask.value, at, 0)
            return f.splat(f.load(kind, f.pointer(pointer, at, kind)), width)
        stride = offset.lane_stride
        if stride == 1 and self.together(mask):
            return self.neighbours(pointer, kind, offset, width, mask)
        if stride == -1 and self.together(mask):
            raw = self.neighbours(pointer, kind, offset + (1 - width), width, mask)
            return backwards(f, raw)
        return self.gathered(pointer, kind, offset, width, mask)

    def _store(
        self, pointer: llvm.Value, raw: llvm.Value, kind: str, offset: Affine, mask: Mask | None
    ) -> None:
        f, stride = self.function, offset.lane_stride
        if raw.lanes == 1:
            address = f.pointer(pointer, self.indexer.scalar(offset), kind)
            with nullcontext() if mask is None else f.if_then(mask.value):
                f.store(raw, address)
        elif stride == 1 and self.together(mask):
            self.store_neighbours(pointer, raw, kind, offset, mask)
        elif stride == -1 and self.together(mask):
            first = offset + (1 - raw.lanes)
            self.store_neighbours(pointer, backwards(f, raw), kind, first, mask)
        else:
            self.scattered(pointer, raw, kind, offset, mask)

    # Values, each computed once per scope.

    def at(
        self, value: Value, index: tuple[Affine, ...], width: int, mask: Mask | None
    ) -> Register:
        """`value` of indices that are affine already."""
        depth = max([self.base, *(at.depth for at in index)])
        if mask is not None:
            depth = max(depth, mask.depth)
        depth = min(depth, self.scopes.depth)
        key = (value, width, mask.value.name if mask else "", *(at.key for at in index))
        found = self.scopes.known(depth).get(key)
        if found is None:
            same = width > 1 and not self.lanewise and all(at.lanes == SAME for at in index)
            with self.scopes.place(depth):
                if same:
                    scalar = self.at(value, index, 1, self._any(mask))
                    found = splat(self.function, scalar, width)
                else:
                    found = self._compute(value, index, width, mask)
            self.scopes.known(depth)[key] = found
        return found

    def _compute(
        self, value: Value, index: tuple[Affine, ...], width: int, mask: Mask | None
    ) -> Register:
        override = self.overrides.get(value)
        if override is not None:
            return override(index, width, mask)
        with self.function.within(value.op):
            return self._made(value, index, width, mask)

    def _made(
        self, value: Value, index: tuple[Affine, ...], width: int, mask: Mask | None
    ) -> Register:
        op = value.op
        pointer = self._pointers.get(value)
        if pointer is not None:
            return self.load(pointer, value.element, linear(index, value.dims), width, mask)
        if op is None:
            raise CompilerBug(f"a kernel has no address of its operand {value}")
        rule = RULES.get(arithmetic.short_name(op))
        if rule is not None:
            return rule(self, op, index, width, mask)
        operands = [
            self.at(operand, index if operand.rank == len(index) else (), width, mask)
            for operand in op.operands
        ]
        if not arithmetic.supports(op):
            return self._expanded(op, operands, index, width)
        return arithmetic.apply(self.function, op, operands)

    def _expanded(
        self, op: Op, operands: Sequence[Register], index: tuple[Affine, ...], width: int
    ) -> Register:
        """An elementwise operation that its room explains by simpler ones."""
        region = expansion(op) if isinstance(op.definition, Decomposed) else None
        if region is None or op.definition.pattern != "elementwise":
            raise arithmetic.unsupported(op)

        overrides = {a: given(r) for a, r in zip(region.arguments, operands, strict=True)}
        # A place of its own: what is computed here belongs to these operands.
        emitter = ElementEmitter(self.function, region, (), overrides, lanewise=True)
        return emitter.at(region.results[0], index, width, None)

    # Masks and positions known at run time.

    def _any(self, mask: Mask | None) -> Mask | None:
        """Whether any lane is wanted, for what all lanes share."""
        if mask is None or mask.some:
            return None
        if mask.value.lanes == 1:
            return mask
        known = self.scopes.known(mask.depth)
        key = "any", mask.value.name
        if key not in known:
            with self.scopes.place(mask.depth):
                name = "llvm.vector.reduce.or"
                one = mask.one
                if one is None:
                    one = self.function.intrinsic(name, mask.value.type, mask.value, returns="i1")
            known[key] = Mask(one, mask.depth)
        return known[key]

    def in_range(self, at: Affine, low: int, high: int, width: int) -> Inside:
        """The lanes with low <= at < high; None for all of them, False for none."""
        if surely_at_most(low, at.low) and surely_below(at.high, high):
            return None
        if surely_below(at.high, low) or surely_at_most(high, at.low):
            return False
        key = "range", at.key, low, high, width
        known = self.scopes.known(at.depth)
        if key not in known:
            f = self.function
            with self.scopes.place(at.depth):
                shifted = at + -low
                wide = width > 1 and at.lanes != SAME
                indexer = self.indexer
                place = indexer.vector(shifted, width) if wide else indexer.scalar(shifted)
                inside = f.compare("ult", place, high - low)
                one = None if wide else inside
                inside = inside if wide else f.splat(inside, width)
            known = self.scopes.known(at.depth)
            known[key] = Mask(inside, min(at.depth, self.scopes.depth), one)
        return known[key]

    def both(self, a: Mask | None, b: Mask | None) -> Mask | None:
        """The lanes of both masks."""
        if a is None or b is None:
            return a or b
        depth = max(a.depth, b.depth)
        key = "both", a.value.name, b.value.name
        known = self.scopes.known(depth)
        if key not in known:
            f, one = self.function, None
            with self.scopes.place(depth):
                if a.one is not None and b.one is not None:
                    one = f.land(a.one, b.one)
                    value = f.splat(one, a.value.lanes)
                else:
                    value = f.land(a.value, b.value)
            known = self.scopes.known(depth)
            known[key] = Mask(value, depth, one)
        return known[key]

    def clamped(
        self, value: Value, index: tuple[Affine, ...], high: int, width: int, mask: Mask | None
    ) -> Affine:
        """An integer value of the program, clamped to [0, high], as an index."""
        if surely_at_most(high, 0):
            return ZERO
        wide = width > 1 and any(at.lanes != SAME for at in index)
        lanes = width if wide else 1
        wanted = mask if wide else self._any(mask)
        depth = max([self.base, *(at.depth for at in index), wanted.depth if wanted else 0])
        key = ("clamped", value, high, lanes, wanted.value.name if wanted else "")
        key = (*key, *(at.key for at in index))
        known = self.scopes.known(depth)
        if key not in known:
            register = self.at(value, index, lanes, wanted)
            assert isinstance(register, llvm.Value)
            with self.scopes.place(depth):
                place = self._clamp(register, value.element.kind == "int", high, wide)
            known = self.scopes.known(depth)
            lane_kind = GENERAL if wide else SAME
            axis = LoopAxis(place, high + 1, lane_kind, min(depth, self.scopes.depth))
            known[key] = of_axis(axis)
        return known[key]

    def _clamp(self, register: llvm.Value, signed: bool, high: int, wide: bool) -> llvm.Value:
        f = self.function
        bits = llvm.bits_of(register.type)
        target = 32 if wide and surely_below(high, 2**31) else 64
        widest = max(bits, target)
        register = f.cast("sext" if signed else "zext", register, f"i{widest}")
        if signed:
            register = f.max(register, 0)
        register = f.min(register, high, signed=False)
        return f.cast("trunc", register, f"i{target}")


def interleaved(f: llvm.Function, pair: Pair) -> llvm.Value:
    """Real and imaginary parts in turn, as complex numbers lie in memory."""
    width = pair.real.lanes
    if width == 1:
        first = f.insert(llvm.poison(llvm.vector(2, pair.real.type)), pair.real, 0)
        return f.insert(first, pair.imaginary, 1)
    return f.shuffle(*pair, [lane // 2 + lane % 2 * width for lane in range(2 * width)])


def backwards(f: llvm.Function, raw: llvm.Value) -> llvm.Value:
    """The lanes of a vector in the other order."""
    return f.shuffle(raw, None, range(raw.lanes - 1, -1, -1))


def splat(f: llvm.Function, register: Register, width: int) -> Register:
    """A scalar register in every lane."""
    if isinstance(register, Pair):
        return Pair(f.splat(register.real, width), f.splat(register.imaginary, width))
    return f.splat(register, width)


def given(register: Register) -> Override:
    """The register for a value, wherever it is asked for."""
    return lambda index, width, mask: register


def applied(f: llvm.Function, op: Op, operands: Sequence[Register]) -> Register:
    """An elementwise operation on an element of each operand."""
    if arithmetic.supports(op):
        return arithmetic.apply(f, op, operands)
    overrides = {v: given(r) for v, r in zip(op.operands, operands, strict=True)}
    emitter = ElementEmitter(f, None, (), overrides, lanewise=True)
    return emitter.at(op.result, (ZERO,) * op.result.rank, 1, None)


def scalar_region(
    f: llvm.Function, region: Region, operands: Sequence[Register], width: int
) -> list[Register]:
    """The results of a region on scalars, for `width` independent lanes."""
    overrides = {a: given(r) for a, r in zip(region.arguments, operands, strict=True)}
    emitter = ElementEmitter(f, region, (), overrides, lanewise=True)
    return [emitter.at(result, (), width, None) for result in region.results]


def _map(
    e: ElementEmitter, op: Op, index: tuple[Affine, ...], width: int, mask: Mask | None
) -> Register:
    operands = [e.at(operand, index, width, mask) for operand in op.operands]
    return scalar_region(e.function, op.regions[0], operands, width)[0]


RULES: dict[str, moves.Rule] = {**moves.RULES, "map": _map}


def supports(op: Op) -> bool:
    """Whether `ElementEmitter` computes the operation on the fly."""
    name = arithmetic.short_name(op)
    if name == "map":
        return all(supports(inner) for inner in op.regions[0].ops)
    if name == "reduce" or len(op.results) != 1:
        return False
    if name in RULES or arithmetic.supports(op):
        return True
    if not isinstance(op.definition, Decomposed) or op.definition.pattern != "elementwise":
        return False
    region = expansion(op)
    return region is not None and all(supports(inner) for inner in region.ops)
