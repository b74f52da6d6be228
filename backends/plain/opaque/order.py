"""Sorting by keys: records of a key's bits and a position, put in order by counting.

A comparator that compares one function of either side is known by its key, an integer whose order
is the comparator's. With the position behind it no two records are equal, so their order is the
stable one. Few records are counted against each other in vectors; more are spread by the bytes of
their keys, the lowest byte first, in a time that does not depend on the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ....hlo.graph import Region, Value
from ... import llvm
from ...llvm import elements
from ...llvm.elements import Register
from ...llvm.elementwise import ElementEmitter, Override, supports

FEW = {32: 128, 64: 16}  # records that are counted against each other, by the bits of a key
BUCKETS = 256
_GROUP = 4  # vectors of counts that stand in registers


@dataclass(frozen=True)
class Key:
    """`value` of the comparator's region, made of one side's arguments: `inputs` in their order."""

    value: Value
    inputs: tuple[Value, ...]
    descending: bool

    def words(
        self, f: llvm.Function, load: Callable[[int, int], Register], width: int
    ) -> llvm.Value:
        """The keys of `width` elements, `load(number, width)` of the inputs, as unsigned ints."""

        def given(number: int) -> Override:
            return lambda index, lanes, mask: load(number, lanes)

        overrides = {value: given(number) for number, value in enumerate(self.inputs)}
        emitter = ElementEmitter(f, Region((), (), ()), (), overrides, lanewise=True)
        register = emitter.value(self.value, (), width)
        assert isinstance(register, llvm.Value)
        return ordered_bits(f, register, self.value.element, self.descending)


def key_of(comparator: Region) -> Key | None:
    """The key by which a comparator orders; None if it is not known to order by one."""
    op = comparator.results[0].op
    direction = op.attributes.get("comparison_direction") if op is not None else None
    if op is None or op.name != "compare" or direction not in ("LT", "GT"):
        return None
    element = op.operands[0].element
    total = op.attributes.get("compare_type") == "TOTALORDER"
    if element.is_complex or (element.is_float and not total):
        return None
    left, right = op.operands
    sides = comparator.arguments[::2], comparator.arguments[1::2]
    for own, other in (sides, sides[::-1]):
        if _mirrored(left, right, dict(zip(own, other, strict=True))):
            return Key(left, own, (direction == "GT") == (own is sides[0]))
    return None


def _mirrored(left: Value, right: Value, sides: Mapping[Value, Value]) -> bool:
    """Whether `right` is computed from the values of `sides` as `left` is from its keys."""
    if left.op is None or right.op is None:
        return left in sides and sides[left] is right
    if left.op is right.op and not left.op.operands:
        return True
    a, b = left.op, right.op
    if a.definition is not b.definition or a.regions or not supports(a) or not a.operands:
        return False
    same = dict(a.attributes) == dict(b.attributes) and left.type is right.type
    return same and all(_mirrored(x, y, sides) for x, y in zip(a.operands, b.operands, strict=True))


def ordered_bits(
    f: llvm.Function, register: llvm.Value, element: object, descending: bool
) -> llvm.Value:
    """Unsigned integers of 32 or 64 bits in the values' order, of floats the total one."""
    bits = 64 if llvm.bits_of(register.type) > 32 else 32
    kind, sign = f"i{bits}", -(1 << (bits - 1))
    if element.is_float:  # type: ignore[attr-defined]
        raw = f.bitcast(register, llvm.vector(register.lanes, kind))
        word = f.xor(raw, f.lor(f.ashr(raw, bits - 1), sign))
    elif element.kind == "int":  # type: ignore[attr-defined]
        word = f.xor(f.cast("sext", register, kind), sign)
    else:
        word = f.cast("zext", register, kind)
    return f.xor(word, -1) if descending else word


def key_bits(element: object) -> int:
    """The bits of a key of that element type."""
    return 64 if llvm.bits_of(elements.register_type(element)) > 32 else 32


class Records:
    """Records of keys of `bits` bits in a kernel: `kind` is a record's integer type."""

    def __init__(self, f: llvm.Function, bits: int, vector_bits: int) -> None:
        self.f, self.bits, self.kind = f, bits, f"i{2 * bits}"
        self.size = bits // 4  # bytes of a record
        self.lanes = max(2, vector_bits // 64)

    def room(self, count: int) -> int:
        """Bytes of a place for so many records, and what `ranked` needs behind them."""
        return -(-(count + self.lanes + 1) * self.size // 64) * 64

    def counts_room(self) -> int:
        """Bytes of the counts of `spread`."""
        return self.bits // 8 * BUCKETS * 4

    def at(self, place: llvm.Value, number: llvm.Operand) -> llvm.Value:
        return self.f.pointer(place, number, self.kind)

    def packed(self, words: llvm.Value, position: llvm.Operand) -> llvm.Value:
        """Records of neighbouring positions, the first as given."""
        f, lanes = self.f, words.lanes
        first = f.splat(f.lift(position, "i64"), lanes)
        places = f.add(first, f.iota(lanes, "i64")) if lanes > 1 else first
        high = f.shl(f.cast("zext", words, self.kind), self.bits)
        return f.lor(high, f.cast("zext", places, self.kind))

    def position(self, record: llvm.Value) -> llvm.Value:
        low = self.f.cast("trunc", record, f"i{self.bits}")
        return self.f.cast("zext", low, "i64")

    def word(self, record: llvm.Value) -> llvm.Value:
        return self.f.cast("trunc", self.f.lshr(record, self.bits), f"i{self.bits}")

    def sort(
        self, first: llvm.Value, second: llvm.Value, counts: llvm.Value, count: llvm.Operand
    ) -> llvm.Value:
        """Sorts the records at `first`; where they lie then, `first` or `second`."""
        if isinstance(count, int) and count <= FEW[self.bits]:
            self.ranked(first, second, count)
            return second
        self.define_spread()
        return self.f.call("spread", "ptr", first, second, counts, self.f.lift(count, "i64"))

    def ranked(self, source: llvm.Value, target: llvm.Value, count: int) -> None:
        """Stores each record at the number of records that are less."""
        f, lanes = self.f, self.lanes
        vector = llvm.vector(lanes, self.kind)
        f.store(llvm.constant(vector, -1), self.at(source, count))
        for begin in range(0, count, lanes * _GROUP):
            places = range(begin, min(count, begin + lanes * _GROUP), lanes)
            own = [f.load(vector, self.at(source, place)) for place in places]
            zeros = [llvm.constant(vector, 0)] * len(own)
            with f.for_range(0, count, 1, zeros) as loop:
                one = f.splat(f.load(self.kind, self.at(source, loop.index)), lanes)
                less = [f.cast("sext", f.compare("ult", one, mine), self.kind) for mine in own]
                loop.carry(*map(f.sub, loop.carried, less))
            for mine, rank in zip(own, loop.results, strict=True):
                places_of = f.cast("trunc", rank, "i64") if self.bits > 32 else rank
                for lane in range(lanes):
                    place = self.at(target, f.extract(places_of, lane))
                    f.store(f.extract(mine, lane), place)

    def define_spread(self) -> None:
        """Once a module: spread(first, second, counts, count), by one byte of keys at a time."""
        parameters = [("ptr", "first"), ("ptr", "second"), ("ptr", "counts"), ("i64", "count")]
        module = self.f.module
        if module.has("spread"):
            return
        f = module.helper("spread", parameters, "ptr", inline="noinline")
        own = Records(f, self.bits, 64 * self.lanes)
        source, target, counts, count = f.arguments
        passes = self.bits // 8
        zero = llvm.constant("<16 x i32>", 0)
        with f.for_range(0, passes * BUCKETS, 16) as each:
            f.store(zero, f.pointer(counts, each.index, "i32"))
        with f.for_range(0, count) as each:
            record = f.load(self.kind, own.at(source, each.index))
            for number in range(passes):
                slot = own.slot(counts, record, number)
                f.store(f.add(f.load("i32", slot), 1), slot)
        for number in range(passes):
            # Where all keys have the same byte, nothing moves.
            some = f.load(self.kind, source)
            same = f.cast("zext", f.load("i32", own.slot(counts, some, number)), "i64")
            branch = f.if_else(f.compare("eq", same, count))
            with branch.then():
                branch.give(source, target)
            with branch.otherwise():
                own.move(source, target, counts, count, number)
                branch.give(target, source)
            source, target = branch.results
        f.ret(source)

    def slot(self, counts: llvm.Value, record: llvm.Value, number: int) -> llvm.Value:
        """The count of a record's bucket, by a byte of its key."""
        f = self.f
        byte = f.cast("trunc", f.lshr(record, self.bits + 8 * number), "i64")
        return f.pointer(counts, f.add(f.land(byte, BUCKETS - 1), number * BUCKETS), "i32")

    def move(
        self,
        source: llvm.Value,
        target: llvm.Value,
        counts: llvm.Value,
        count: llvm.Value,
        number: int,
    ) -> None:
        """Counts become the buckets' places, records go there."""
        f = self.f
        begin = llvm.constant("i32", 0)
        with f.for_range(number * BUCKETS, (number + 1) * BUCKETS, 1, [begin]) as each:
            slot = f.pointer(counts, each.index, "i32")
            size = f.load("i32", slot)
            f.store(each.carried[0], slot)
            each.carry(f.add(each.carried[0], size))
        with f.for_range(0, count) as each:
            record = f.load(self.kind, self.at(source, each.index))
            slot = self.slot(counts, record, number)
            place = f.load("i32", slot)
            f.store(f.add(place, 1), slot)
            f.store(record, self.at(target, f.cast("zext", place, "i64")))


def fill(
    records: Records,
    key: Key,
    load: Callable[[int, llvm.Value, int], Register],
    place: llvm.Value,
    count: int,
    width: int,
) -> None:
    """The records of positions 0 .. count - 1; `load(number, position, width)` reads an input."""
    f = records.f
    whole = count - count % width if width > 1 else 0
    for begin, end, lanes in ((0, whole, width), (whole, count, 1)):
        if begin == end:
            continue
        with f.for_range(begin, end, lanes) as each:
            at = each.index
            words = key.words(f, lambda number, n, at=at: load(number, at, n), lanes)
            f.store(records.packed(words, at), records.at(place, at))
