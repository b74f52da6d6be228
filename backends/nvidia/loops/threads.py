"""Elements as one thread of a GPU computes them: 32-bit indices, accesses of up to 16 bytes."""

from __future__ import annotations

import itertools
from contextlib import ExitStack

from ....hlo.deciding import common_divisor, surely_at_most, surely_below
from ....hlo.graph import Region
from ....hlo.symbols import maximum, minimum
from ... import llvm
from ...llvm.elementwise import ElementEmitter, Mask
from ...llvm.index import CONSECUTIVE, GENERAL, SAME, Affine, Indexer, LoopAxis, of_axis
from ..atoms import ACCESS_BYTES
from ..frame import Entry

SECTOR_BYTES = 32  # that memory hands out at once
MOST_STRIDE = 8  # of lanes whose vectors are read with all that lies between


class NarrowIndexer(Indexer):
    """Sums and quotients in 32 bits wherever their bounds allow it; addresses stay 64 bits wide,
    with the constant part last, where a load's immediate offset takes it."""

    def _sum(self, index: Affine) -> llvm.Value:
        f = self.function
        terms = Affine(index.terms, 0)
        if not index.terms:
            return f.constant("i64", index.constant)
        if not fits(terms):
            return super()._sum(self.widened(index))
        key = "wide", terms.key
        known = self.scopes.known(index.depth)
        if key not in known:
            opcode = "zext" if surely_at_most(0, terms.low) else "sext"
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
                    own = LoopAxis(wide, axis.extent, axis.lanes, axis.depth, axis.multiple)
                    known = self.scopes.known(axis.depth)
                    known[key] = own
                axis = known[key]
            terms.append((axis, factor))
        return Affine(tuple(terms), index.constant, (index.low, index.high))

    def narrow(self, index: Affine) -> llvm.Value:
        """The i32 of lane 0, of an index that fits."""
        if not index.terms:
            return self.function.constant("i32", index.constant)
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

    def quotient(self, index: Affine, divisor: int, width: int) -> tuple[LoopAxis, Affine]:
        depth = index.depth
        plain = width == 1 or self._same_quotient(index, divisor, width)
        known = surely_at_most(0, index.low) and fits(index) and fits(Affine(index.terms, 0))
        if not plain or not known:
            return super().quotient(index, divisor, width)
        key = "quotient", index.key, divisor, width
        found = self.scopes.known(depth).get(key)
        if found is None:
            with self.scopes.place(depth):
                value = self.function.udiv(self.narrow(index), divisor)
            atom = LoopAxis(value, index.high // divisor + 1, SAME, min(depth, self.scopes.depth))
            rest = (index + of_axis(atom) * -divisor).within(0, divisor - 1)
            found = atom, rest
            self.scopes.known(depth)[key] = found
        return found


def fits(index: Affine) -> bool:
    """Whether it can be computed in 32 bits, whatever the order of the additions."""
    return surely_at_most(-(2**31), index.low) and surely_below(index.high, 2**31)


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
        # Elements of arrays (parts of complex ones), where it is known.
        self.sizes = {
            pointer.name: value.tensor.size * (1 + value.element.is_complex)
            for value, pointer in zip(region.arguments, pointers, strict=False)
        }

    def together(self, mask: Mask | None) -> bool:
        """Lanes that all are wanted or none: then the first elements are read instead, or nothing
        is written."""
        return mask is None or mask.one is not None

    def beside(self, offset: Affine, width: int, mask: Mask | None) -> bool:
        if width == 1:
            return mask is None
        return super().beside(offset, width, mask)

    def neighbours(
        self, pointer: llvm.Value, kind: str, offset: Affine, width: int, mask: Mask | None = None
    ) -> llvm.Value:
        """In as few accesses as alignment allows."""
        f = self.function
        unit = aligned_lanes(kind, offset, width)
        shift = offset.constant % unit
        if shift and isinstance(shift, int):
            count = -(-(shift + width) // unit)
            room = self.sizes.get(pointer.name, 0)
            if surely_at_most(furthest(offset) - shift + count * unit, room):
                parts = self.accesses(pointer, kind, offset + -shift, count, unit, mask)
                lanes = range(shift, shift + unit)
                pairs = [f.shuffle(*pair, lanes) for pair in itertools.pairwise(parts)]
                # Where elements begin in the middle, the last access has what the others miss.
                return joined(f, pairs[: width // unit])
        lanes = access_lanes(kind, offset, width)
        return joined(f, self.accesses(pointer, kind, offset, width // lanes, lanes, mask))

    def accesses(
        self,
        pointer: llvm.Value,
        kind: str,
        offset: Affine,
        count: int,
        lanes: int,
        mask: Mask | None,
    ) -> list[llvm.Value]:
        """Vectors that follow each other, each of one access."""
        f = self.function
        at = self.indexer.scalar(offset)
        if mask is not None:
            assert mask.one is not None
            at = f.select(mask.one, at, 0)
        vector, parts = llvm.vector(lanes, kind), []
        for number in range(count):
            place = f.pointer(pointer, f.add(at, number * lanes), kind)
            parts.append(f.load(vector, place, align=_bytes(kind) * lanes))
        return parts

    def store_neighbours(
        self,
        pointer: llvm.Value,
        raw: llvm.Value,
        kind: str,
        offset: Affine,
        mask: Mask | None = None,
    ) -> None:
        f = self.function
        at = self.indexer.scalar(offset)
        lanes = access_lanes(kind, offset, raw.lanes)
        with ExitStack() as stack:
            if mask is not None:
                assert mask.one is not None
                stack.enter_context(f.if_then(mask.one))
            for first in range(0, raw.lanes, lanes):
                part = raw
                if lanes < raw.lanes:
                    part = f.shuffle(raw, None, range(first, first + lanes))
                place = f.pointer(pointer, f.add(at, first), kind)
                f.store(part, place, align=_bytes(kind) * lanes)

    def gathered(
        self, pointer: llvm.Value, kind: str, offset: Affine, width: int, mask: Mask | None
    ) -> llvm.Value:
        f, stride = self.function, offset.lane_stride
        if mask is None and stride is not None and self.near(pointer, kind, offset, width, stride):
            return self.strided(pointer, kind, offset, width, stride)
        found = llvm.poison(llvm.vector(width, kind))
        for lane, at in enumerate(self.places(offset, width)):
            if mask is not None:
                # What lies off the mask may be read, as long as it is memory.
                at = f.select(f.extract(mask.value, lane), at, 0)
            found = f.insert(found, f.load(kind, f.pointer(pointer, at, kind)), lane)
        return found

    def near(self, pointer: llvm.Value, kind: str, offset: Affine, width: int, stride: int) -> bool:
        """Whether lanes are so near that what lies between is in the same sectors, and may be read
        as well."""
        most = min(MOST_STRIDE, SECTOR_BYTES // _bytes(kind))
        room = self.sizes.get(pointer.name, 0)
        if not isinstance(stride, int) or not 1 < stride <= most:
            return False
        return surely_at_most(furthest(offset) + width * stride, room)

    def strided(
        self, pointer: llvm.Value, kind: str, offset: Affine, width: int, stride: int
    ) -> llvm.Value:
        """Lanes that are `stride` apart, out of all elements between them."""
        f = self.function
        if not stride & (stride - 1):
            whole = self.neighbours(pointer, kind, offset, width * stride)
            return f.shuffle(whole, None, range(0, width * stride, stride))
        found = llvm.poison(llvm.vector(width, kind))
        for number in range(stride):
            part = self.neighbours(pointer, kind, offset + number * width, width)
            places = [lane * stride - number * width for lane in range(width)]
            lanes = [width + at if 0 <= at < width else n for n, at in enumerate(places)]
            found = f.shuffle(found, part, lanes)
        return found

    def scattered(
        self, pointer: llvm.Value, raw: llvm.Value, kind: str, offset: Affine, mask: Mask | None
    ) -> None:
        f = self.function
        for lane, at in enumerate(self.places(offset, raw.lanes)):
            one, place = f.extract(raw, lane), f.pointer(pointer, at, kind)
            with ExitStack() as stack:
                if mask is not None:
                    stack.enter_context(f.if_then(f.extract(mask.value, lane)))
                f.store(one, place)

    def places(self, offset: Affine, width: int) -> list[llvm.Value]:
        """The position of each lane."""
        f = self.function
        stride = offset.lane_stride
        if stride is not None:
            at = self.indexer.scalar(offset)
            return [f.add(at, lane * stride) for lane in range(width)]
        vector = self.indexer.vector(offset, width)
        return [f.extract(vector, lane) for lane in range(width)]


def _bytes(kind: str) -> int:
    return max(1, llvm.bits_of(kind) // 8)


def access_lanes(kind: str, offset: Affine, width: int) -> int:
    """Lanes of one access: a power of two that divides the position and the width."""
    step = common_divisor(aligned_lanes(kind, offset, width), offset.constant)
    return step & -step


def aligned_lanes(kind: str, offset: Affine, width: int) -> int:
    """Lanes of the widest accesses whose distance from the position is always the same."""
    step = width
    for axis, factor in offset.terms:
        step = common_divisor(step, factor * axis.multiple)
    step &= -step
    return min(step, max(1, ACCESS_BYTES // _bytes(kind)))


def furthest(offset: Affine) -> int:
    """The last position that the first lane may have."""
    reach = offset.constant
    for axis, factor in offset.terms:
        reach += maximum(0, factor) * ((axis.extent - 1) // axis.multiple * axis.multiple)
    return minimum(reach, offset.high)


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
    return of_axis(LoopAxis(value, extent, CONSECUTIVE if width > 1 else SAME, depth, multiple))
