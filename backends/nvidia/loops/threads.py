"""Elements as one thread of a GPU computes them: 32-bit indices, accesses of up to 16 bytes."""

from __future__ import annotations

import math
from typing import Any

from ....hlo.graph import Region
from ... import llvm
from ...llvm import elements
from ...llvm.elements import Pair, Register
from ...llvm.elementwise import ElementEmitter, Mask
from ...llvm.index import CONSECUTIVE, GENERAL, SAME, Affine, Axis, Indexer, of_axis
from ..frame import Entry

ACCESS_BYTES = 16  # of one load or store of a thread


class NarrowIndexer(Indexer):
    """Sums and quotients in 32 bits wherever their bounds allow it; addresses stay 64 bits wide,
    with the constant part last, where a load's immediate offset takes it."""

    def _sum(self, index: Affine) -> llvm.Value:
        f = self.function
        terms = Affine(index.terms, 0)
        if not index.terms:
            return llvm.constant("i64", index.constant)
        if not fits(terms):
            return super()._sum(self.widened(index))
        key = "wide", terms.key
        known = self.scopes.known(index.depth)
        if key not in known:
            opcode = "zext" if terms.low >= 0 else "sext"
            known[key] = f.cast(opcode, self.narrow(terms), "i64")
        return f.add(known[key], index.constant)

    def widened(self, index: Affine) -> Affine:
        """The index over axes of 64 bits."""
        f, terms = self.function, []
        for axis, factor in index.terms:
            if axis.value.type == "i32":
                key = "axis", axis.serial
                known = self.scopes.known(axis.depth)
                if key not in known:
                    with self.scopes.place(axis.depth):
                        wide = f.cast("zext", axis.value, "i64")
                    own = Axis(wide, axis.extent, axis.lanes, axis.depth, axis.multiple)
                    known = self.scopes.known(axis.depth)
                    known[key] = own
                axis = known[key]
            terms.append((axis, factor))
        return Affine(tuple(terms), index.constant, (index.low, index.high))

    def narrow(self, index: Affine) -> llvm.Value:
        """The i32 of lane 0, of an index that fits."""
        if not index.terms:
            return llvm.constant("i32", index.constant)
        key = "i32", index.key
        known = self.scopes.known(index.depth)
        found = known.get(key)
        if found is None:
            with self.scopes.place(index.depth):
                found = self._narrow_sum(index)
            known = self.scopes.known(index.depth)
            known[key] = found
        return found

    def _narrow_sum(self, index: Affine) -> llvm.Value:
        f = self.function
        deepest = index.depth
        inner = [term for term in index.terms if term[0].depth == deepest]
        outer = Affine(tuple(term for term in index.terms if term[0].depth != deepest), 0)
        total = self.narrow(outer)
        for axis, factor in inner:
            value = f.extract(axis.value, 0) if axis.lanes == GENERAL else axis.value
            total = f.add(total, f.mul(_resized(f, value, "i32"), factor))
        return f.add(total, index.constant)

    def splat(self, index: Affine, width: int, element: str = "i64") -> llvm.Value:
        if element == "i32" and fits(index) and fits(Affine(index.terms, 0)):
            return self.function.splat(self.narrow(index), width)
        return super().splat(index, width, element)

    def _quotient(self, index: Affine, divisor: int, width: int) -> tuple[Axis, Affine]:
        depth = index.depth
        plain = width == 1 or self._same_quotient(index, divisor, width)
        if not plain or index.low < 0 or not fits(index) or not fits(Affine(index.terms, 0)):
            return super()._quotient(index, divisor, width)
        key = "quotient", index.key, divisor, width
        found = self.scopes.known(depth).get(key)
        if found is None:
            with self.scopes.place(depth):
                value = self.function.udiv(self.narrow(index), divisor)
            atom = Axis(value, index.high // divisor + 1, SAME, min(depth, self.scopes.depth))
            rest = (index + of_axis(atom) * -divisor).within(0, divisor - 1)
            found = atom, rest
            self.scopes.known(depth)[key] = found
        return found


def fits(index: Affine) -> bool:
    """Whether it can be computed in 32 bits, whatever the order of the additions."""
    return index.low >= -(2**31) and index.high < 2**31


def _resized(f: llvm.Function, value: llvm.Value, kind: str) -> llvm.Value:
    if value.type == kind:
        return value
    return f.cast("trunc" if llvm.bits_of(value.type) > llvm.bits_of(kind) else "zext", value, kind)


class ThreadEmitter(ElementEmitter):
    """Elements of a region's values in a thread. Neighbours are read and written in accesses of up
    to 16 bytes, as far as the index is known to be a multiple of so many elements."""

    def __init__(self, entry: Entry, region: Region, pointers: list[llvm.Value]) -> None:
        super().__init__(entry.function, region, pointers, scopes=entry.scopes)
        self.indexer = NarrowIndexer(self.scopes)

    def load(
        self,
        pointer: llvm.Value,
        element: Any,
        offset: Affine,
        width: int = 1,
        mask: Mask | None = None,
    ) -> Register:
        if not element.is_complex:
            return super().load(pointer, element, offset, width, mask)
        f, kind = self.function, elements.memory_type(self.function, element)
        if offset.lanes == SAME or mask is not None or offset.lane_stride != 1:
            parts = (self._load(pointer, kind, offset * 2 + i, width, mask) for i in (0, 1))
            return Pair(*parts)
        both = self.neighbours(pointer, kind, offset * 2, 2 * width)
        even = f.shuffle(both, None, range(0, 2 * width, 2))
        return Pair(even, f.shuffle(both, None, range(1, 2 * width, 2)))

    def store(
        self,
        pointer: llvm.Value,
        register: Register,
        element: Any,
        offset: Affine,
        width: int = 1,
        mask: Mask | None = None,
    ) -> None:
        if isinstance(register, llvm.Value) or offset.lane_stride != 1:
            return super().store(pointer, register, element, offset, width, mask)
        f, kind = self.function, elements.memory_type(self.function, element)
        numbers = [lane // 2 + lane % 2 * width for lane in range(2 * width)]
        if width == 1:
            both = f.insert(llvm.poison(llvm.vector(2, kind)), register.real, 0)
            both = f.insert(both, register.imaginary, 1)
        else:
            both = f.shuffle(register.real, register.imaginary, numbers)
        self.store_neighbours(pointer, both, kind, offset * 2)

    def neighbours(self, pointer: llvm.Value, kind: str, offset: Affine, width: int) -> llvm.Value:
        """A vector of neighbours, in as few accesses as alignment allows."""
        f = self.function
        at = self.indexer.scalar(offset)
        lanes = access_lanes(kind, offset, width)
        parts = []
        for first in range(0, width, lanes):
            place = f.pointer(pointer, f.add(at, first), kind)
            parts.append(f.load(llvm.vector(lanes, kind), place, align=_bytes(kind) * lanes))
        return joined(f, parts)

    def store_neighbours(
        self, pointer: llvm.Value, raw: llvm.Value, kind: str, offset: Affine
    ) -> None:
        f = self.function
        at = self.indexer.scalar(offset)
        lanes = access_lanes(kind, offset, raw.lanes)
        for first in range(0, raw.lanes, lanes):
            part = raw
            if lanes < raw.lanes:
                part = f.shuffle(raw, None, range(first, first + lanes))
            place = f.pointer(pointer, f.add(at, first), kind)
            f.store(part, place, align=_bytes(kind) * lanes)

    def _load(
        self, pointer: llvm.Value, kind: str, offset: Affine, width: int, mask: Mask | None
    ) -> llvm.Value:
        f = self.function
        if width == 1 or (offset.lanes == SAME and mask is None):
            return super()._load(pointer, kind, offset, width, mask)
        stride = offset.lane_stride
        if mask is None and stride == 1:
            return self.neighbours(pointer, kind, offset, width)
        if mask is None and stride == -1:
            raw = self.neighbours(pointer, kind, offset + (1 - width), width)
            return f.shuffle(raw, None, range(width - 1, -1, -1))
        found = llvm.poison(llvm.vector(width, kind))
        for lane, at in enumerate(self.places(offset, width, mask)):
            found = f.insert(found, f.load(kind, f.pointer(pointer, at, kind)), lane)
        return found

    def places(self, offset: Affine, width: int, mask: Mask | None) -> list[llvm.Value]:
        """The position of each lane; 0 for those off the mask, which may be read."""
        f = self.function
        stride = offset.lane_stride
        if stride is not None:
            at = self.indexer.scalar(offset)
            found = [f.add(at, lane * stride) for lane in range(width)]
        else:
            vector = self.indexer.vector(offset, width)
            found = [f.extract(vector, lane) for lane in range(width)]
        if mask is None:
            return found
        return [f.select(f.extract(mask.value, n), at, 0) for n, at in enumerate(found)]

    def _store(
        self, pointer: llvm.Value, raw: llvm.Value, kind: str, offset: Affine, mask: Mask | None
    ) -> None:
        f = self.function
        if raw.lanes == 1 or mask is not None:
            return super()._store(pointer, raw, kind, offset, mask)
        if offset.lane_stride == 1:
            return self.store_neighbours(pointer, raw, kind, offset)
        if offset.lane_stride == -1:
            raw = f.shuffle(raw, None, range(raw.lanes - 1, -1, -1))
            return self.store_neighbours(pointer, raw, kind, offset + (1 - raw.lanes))
        for lane, at in enumerate(self.places(offset, raw.lanes, None)):
            f.store(f.extract(raw, lane), f.pointer(pointer, at, kind))
        return None


def _bytes(kind: str) -> int:
    return max(1, llvm.bits_of(kind) // 8)


def access_lanes(kind: str, offset: Affine, width: int) -> int:
    """Lanes of one access: a power of two that divides the position and the width."""
    step = math.gcd(offset.constant, width)
    for axis, factor in offset.terms:
        step = math.gcd(step, factor * axis.multiple)
    step &= -step
    return min(step, max(1, ACCESS_BYTES // _bytes(kind)))


def joined(f: llvm.Function, parts: list[llvm.Value]) -> llvm.Value:
    """One vector of vectors or scalars of equal type, whose number is a power of two."""
    if len(parts) == 1:
        return parts[0]
    if parts[0].lanes == 1:
        total = llvm.poison(llvm.vector(len(parts), parts[0].type))
        for lane, part in enumerate(parts):
            total = f.insert(total, part, lane)
        return total
    while len(parts) > 1:
        lanes = parts[0].lanes
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [f.shuffle(a, b, range(2 * lanes)) for a, b in pairs]
    return parts[0]


def lanes_axis(value: llvm.Value, extent: int, width: int, depth: int, multiple: int) -> Affine:
    """An i32 of the code as an index whose lanes are neighbours."""
    return of_axis(Axis(value, extent, CONSECUTIVE if width > 1 else SAME, depth, multiple))
