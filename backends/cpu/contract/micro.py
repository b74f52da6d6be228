"""The innermost loop of a contraction: a block of accumulators in registers over the whole depth.

    tile[i, v] = sum over k of left[i, k] * right[k, v]        rows i, vectors v of lanes

Strides are constants of the kernel where sizes are numbers, so every address is one register plus
a displacement; those that the call decides are registers too. Accumulators never leave registers
before the sum is complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ....hlo.deciding import at_hint, surely_below
from ....hlo.symbols import SymbolicDim
from ... import llvm

Value = llvm.Value

# Copies of a step in one loop turn, so that the loop's own instructions weigh little.
STEP_PRODUCTS = 48
FEW_PRODUCTS = 24  # the same where there are many micro-kernels
REST_PRODUCTS = 8  # the same of those that compute the rest of the rows
_STRAIGHT = 8  # steps of a loop within another that are straight-line code
LINE = 64
PART = 512  # steps of depth whose products are summed by themselves


@dataclass(frozen=True)
class Depth:
    """One loop of the summed dimensions, with strides in elements."""

    size: int
    left: int
    right: int


@dataclass(frozen=True)
class Micro:
    """What one micro-kernel computes. `vectors` are element offsets of the right side's vectors."""

    element: str  # LLVM type of sources and accumulators
    lanes: int
    rows: int
    row_stride: int
    vectors: tuple[int, ...]
    depth: tuple[Depth, ...]  # outermost first
    tile_stride: int  # elements from one row of the tile to the next
    tail_lanes: int = 0  # if not 0, lanes of the last vector that may be read
    ahead: int = 0  # lines of 64 bytes to bring into L2 per turn of the loop; a single loop only
    cut: bool = False  # sums only a part of the (one) depth loop, on top of what the tile holds
    stream: int = 0  # if not 0, bytes ahead that the right side is brought into L1
    copies: bool = False  # `ahead` is where the right side's vectors are stored, one after another
    masked: bool = False  # the caller says how many lanes of the last vector may be read
    most_products: int = STEP_PRODUCTS  # of a loop turn, about
    least: int = 0  # if not 0, the caller says how many rows there are, at least so many

    @property
    def is_open(self) -> bool:
        """Whether the call decides sizes that it computes with."""
        loops = [size for loop in self.depth for size in (loop.size, loop.left, loop.right)]
        every = (self.row_stride, self.tile_stride, self.stream, *loops)
        return any(isinstance(size, SymbolicDim) for size in every)

    @property
    def unroll(self) -> int:
        """Steps of one turn of the innermost loop; a short one within others is no loop."""
        size = at_hint(self.depth[-1].size) if self.depth else 1
        if len(self.depth) > 1 and size <= _STRAIGHT and self.most_products >= STEP_PRODUCTS:
            return size
        return Micro.turns(self.rows * len(self.vectors), size, self.most_products)

    @staticmethod
    def turns(products: int, size: int, most: int = STEP_PRODUCTS) -> int:
        """Steps of one turn of a loop of `size` steps, each of so many products of vectors."""
        least = 2 if most >= STEP_PRODUCTS else 1
        return min(max(least, most // products), 8, size)


def emit_micro(
    module: llvm.Module,
    name: str,
    micro: Micro,
    finish: Callable[[llvm.Function, Sequence[Value], Sequence[Value]], None] | None = None,
) -> None:
    """Defines name(left, right, tile, ahead, step, steps): pointers to the first elements, and to
    what the next calls will read. Where the depth is cut, `steps` are summed, and `step`, the
    number of the first one, tells whether the tile holds sums already.

    With `finish` the function takes (args, outer, row, column) too, and finish(function, these,
    sums) does what follows in place of stores to the tile. Where the call decides sizes it takes
    args as well, with `least` the number of rows, and with `masked` the real lanes of the last
    vector at the end. Of fewer rows than there may be, the last is computed again in their place.
    """
    parameters = [
        ("ptr noalias readonly", "left"),
        ("ptr noalias readonly", "right"),
        ("ptr noalias", "tile"),
        ("ptr", "ahead"),
        ("i64", "step"),
        ("i64", "steps"),
    ]
    if finish is not None or micro.is_open:
        parameters.append(("ptr noalias readonly", "args"))
    if finish is not None:
        parameters += [("i64", "outer"), ("i64", "row"), ("i64", "column")]
    if micro.least:
        parameters.append(("i64", "count"))
    if micro.masked:
        parameters.append(("i64", "real"))
    f = module.helper(name, parameters, inline="noinline")
    left, right, tile, ahead, step, steps = f.arguments[:6]
    real = f.arguments[-1] if micro.masked else None
    count = f.arguments[-2 if micro.masked else -1] if micro.least else None
    emitter = _MicroKernelEmitter(f, micro, real, count)
    vector = llvm.vector(micro.lanes, micro.element)
    zeros: Sequence[Value] = [llvm.constant(vector, 0)] * (micro.rows * len(micro.vectors))
    if micro.cut:
        # Each part is summed by itself: rounding grows with the length of what is summed at once.
        state = emitter.steps(micro.depth[0], [], steps, [left, right, ahead, *zeros])
        sums: Sequence[Value] = state[3:]
        branch = f.if_else(f.compare("eq", step, 0))
        with branch.then():
            branch.give(*sums)
        with branch.otherwise():
            before = [f.load(vector, place) for place in emitter.places(tile)]
            branch.give(*map(f.add, before, sums))
        sums = branch.results
    else:
        sums = emitter.parts(left, right, ahead, zeros)
    if finish is not None:
        finish(f, f.arguments[6:10], sums)
    else:
        emitter.store(tile, sums)
    f.ret()


def rest_micros(micro: Micro, heights: Sequence[int]) -> dict[int, Micro]:
    """The micro-kernels of these heights, least first, that compute all numbers of rows up to the
    largest."""
    below = (0, *heights)
    return {
        rows: replace(micro, rows=rows, least=one + 1, most_products=REST_PRODUCTS)
        for one, rows in zip(below, heights, strict=False)
    }


def emit_rest(
    f: llvm.Function,
    heights: Sequence[int],
    count: Value,
    call: Callable[[int, Value, Value], None],
) -> None:
    """`count` rows, fewer than a panel's, in parts that are equal but for one row, by micro-kernels
    of these heights, least first: call(height, rows, those above)."""
    most = heights[-1]
    parts = f.udiv(f.add(count, most - 1), most)
    size = f.udiv(count, parts)
    larger = f.sub(count, f.mul(size, parts))
    with f.for_range(0, parts) as loop:
        above = f.add(f.mul(loop.index, size), f.min(loop.index, larger))
        one_more = f.cast("zext", f.compare("ult", loop.index, larger), "i64")
        rows = height = f.add(size, one_more)
        for one in reversed(heights if len(heights) < most else ()):
            height = f.select(f.compare("sle", rows, one), one, height)
        f.switch(height, {one: partial(call, one, rows, above) for one in heights})


class _MicroKernelEmitter:
    """The body of one micro-kernel. The state of its loops are three pointers, then the sums."""

    def __init__(
        self, f: llvm.Function, micro: Micro, real: Value | None, count: Value | None
    ) -> None:
        self.f, self.micro = f, micro
        self.vector = llvm.vector(micro.lanes, micro.element)
        self.mask: Value | None = None
        if real is not None:
            self.mask = f.tail_mask(real, micro.lanes)
        elif micro.tail_lanes:
            kept = [lane < micro.tail_lanes for lane in range(micro.lanes)]
            self.mask = llvm.vector_constant("i1", kept)
        self.last = None if count is None else f.sub(count, 1)
        self.rows = self._multiples(micro.row_stride)

    def _multiples(self, stride: int) -> list[llvm.Operand]:
        """The offsets of all rows; of those that there may not be, that of the last one then."""
        f, micro = self.f, self.micro
        # Not as sizes: each of them would be one more load where the function begins.
        one = f.constant("i64", stride) if isinstance(stride, SymbolicDim) else None
        found: list[llvm.Operand] = [0]
        for row in range(1, micro.rows):
            if self.last is not None and row >= micro.least:
                found.append(f.mul(f.min(self.last, row), stride if one is None else one))
            elif one is None:
                found.append(row * stride)
            else:
                found.append(f.binary("add", found[-1], one) if row > 1 else one)
        return found

    def _next(self, pointer: Value, stride: int) -> Value:
        return self.f.pointer(pointer, stride, self.micro.element)

    def _after(self, pointer: Value, stride: int, count: int) -> Value:
        """`count` strides behind a pointer."""
        if not isinstance(stride, SymbolicDim):
            return self._next(pointer, count * stride)
        for _ in range(count):
            pointer = self._next(pointer, stride)
        return pointer

    def places(self, tile: Value) -> Iterator[Value]:
        """Where the sums stand in the tile."""
        micro = self.micro
        stride: Any = micro.tile_stride
        if 0 < micro.least < micro.rows:
            for offset in self._multiples(stride):
                row_of = self.f.pointer(tile, offset, micro.element)
                yield from (self._next(row_of, n * micro.lanes) for n in range(len(micro.vectors)))
            return
        for row in range(micro.rows):
            for number in range(len(micro.vectors)):
                at = number * micro.lanes
                if isinstance(stride, SymbolicDim):
                    yield self._next(tile, at)
                else:
                    yield self._next(tile, row * stride + at)
            if isinstance(stride, SymbolicDim):
                tile = self._next(tile, micro.tile_stride)

    def store(self, tile: Value, sums: Sequence[Value]) -> None:
        for place, value in zip(self.places(tile), sums, strict=True):
            self.f.store(value, place)

    def steps(
        self, loop: Depth, inner: Sequence[Depth], steps: Value, state: Sequence[Value]
    ) -> Sequence[Value]:
        """`steps` steps of a loop, a number that is known when the code runs."""
        f = self.f
        unroll = 1 if inner else max(1, self.micro.unroll)
        whole = f.mul(f.udiv(steps, unroll), unroll)
        with f.for_range(0, whole, unroll, state) as body:
            body.carry(*self.turn(loop, inner, unroll, body.carried))
        if unroll == 1:
            return body.results
        with f.for_range(whole, steps, 1, body.results) as rest:
            a, b, c, *carried = rest.carried
            carried = self.step(a, b, c, carried)
            a, b = self._next(a, loop.left), self._next(b, loop.right)
            rest.carry(a, b, self._next(c, self._copied), *carried)
        return rest.results

    def parts(
        self, left: Value, right: Value, ahead: Value, zeros: Sequence[Value]
    ) -> Sequence[Value]:
        """The whole depth; a long one in parts of about `PART` steps, each summed by itself."""
        micro, f = self.micro, self.f
        loop, *inner = micro.depth or (Depth(1, 0, 0),)
        within = max(1, at_hint(math.prod(one.size for one in inner)))
        unroll = 1 if inner else max(1, micro.unroll)
        part = max(unroll, PART // within // unroll * unroll)
        state = [left, right, ahead, *zeros]
        if not llvm.is_float(micro.element) or surely_below(loop.size, 2 * part):
            return self.depth(list(micro.depth), state)[3:]
        if isinstance(loop.size, SymbolicDim):
            return self._open_parts(loop, inner, part, state)
        whole = loop.size // part
        vector = self.vector
        totals = f.alloca(vector, len(zeros))
        for number, zero in enumerate(zeros):
            f.store(zero, f.pointer(totals, number, vector))
        with f.for_range(0, whole, 1, [left, right, ahead], at_least_once=True) as parts:
            start = [*parts.carried, *zeros]
            with f.for_range(0, part, unroll, start, at_least_once=True) as body:
                body.carry(*self.turn(loop, inner, unroll, body.carried))
            left, right, ahead, *sums = body.results
            for number, value in enumerate(sums):
                place = f.pointer(totals, number, vector)
                f.store(f.add(f.load(vector, place), value), place)
            parts.carry(left, right, ahead)
        rest = replace(loop, size=loop.size - whole * part)
        found = zeros
        if rest.size:
            found = self.depth([rest, *inner], [*parts.results, *zeros])[3:]
        kept = [f.load(vector, f.pointer(totals, number, vector)) for number in range(len(zeros))]
        return kept if found is zeros else [f.add(a, b) for a, b in zip(kept, found, strict=True)]

    def _open_parts(
        self, loop: Depth, inner: Sequence[Depth], part: int, state: Sequence[Value]
    ) -> Sequence[Value]:
        """The same where the call decides how long it is: one loop over all parts, the sums of the
        last one in registers. What is no longer than two parts is one."""
        f, vector, zeros = self.f, self.vector, state[3:]
        count = f.constant("i64", loop.size)
        length = f.select(f.compare("slt", count, 2 * part), count, part)
        several = f.compare("slt", length, count)
        totals = f.alloca(vector, len(zeros))
        places = [f.pointer(totals, number, vector) for number in range(len(zeros))]
        with f.if_then(several):
            for zero, place in zip(zeros, places, strict=True):
                f.store(zero, place)
        with f.for_range(0, count, length, state) as parts:
            steps = f.min(f.sub(count, parts.index), length)
            found = self.steps(loop, inner, steps, [*parts.carried[:3], *zeros])
            with f.if_then(f.compare("slt", f.add(parts.index, steps), count)):
                for value, place in zip(found[3:], places, strict=True):
                    f.store(f.add(f.load(vector, place), value), place)
            parts.carry(*found)
        sums = parts.results[3:]
        branch = f.if_else(several)
        with branch.then():
            branch.give(*(f.add(f.load(vector, p), s) for p, s in zip(places, sums, strict=True)))
        with branch.otherwise():
            branch.give(*sums)
        return branch.results

    @property
    def _copied(self) -> int:
        """Elements that a step copies."""
        return len(self.micro.vectors) * self.micro.lanes if self.micro.copies else 0

    def turn(
        self,
        loop: Depth,
        inner: Sequence[Depth],
        unroll: int,
        state: Sequence[Value],
        fetches: bool = True,
    ) -> list[Value]:
        """`unroll` steps of a loop."""
        f, micro = self.f, self.micro
        left, right, ahead, *sums = state
        lines = micro.ahead if fetches else 0
        for line in range(lines):
            f.prefetch(f.pointer(ahead, line * LINE, "i8"), locality=2)
        for turn in range(unroll):
            at = self._after(left, loop.left, turn)
            if any(self._meets(ahead * loop.left) for ahead in range(1, turn + 1)):
                at = f.hidden(at)
            bt = self._after(right, loop.right, turn)
            ct = f.pointer(ahead, turn * self._copied, micro.element)
            sums = self.depth(inner, [at, bt, ct, *sums])[3:]
        ahead = f.pointer(ahead, lines * LINE, "i8")
        return [
            self._after(left, loop.left, unroll),
            self._after(right, loop.right, unroll),
            f.pointer(ahead, unroll * self._copied, micro.element),
            *sums,
        ]

    def _meets(self, ahead: int) -> bool:
        """Whether a row reads so many elements ahead what another one reads now: to read it again
        is nothing, to keep what all rows read in registers until then takes more than there are."""
        stride = self.micro.row_stride
        known = not isinstance(stride, SymbolicDim) and not isinstance(ahead, SymbolicDim)
        return known and stride != 0 == ahead % stride and ahead // stride < self.micro.rows

    def depth(self, loops: Sequence[Depth], state: Sequence[Value]) -> Sequence[Value]:
        """The loops over the depth, with the accumulators carried through them."""
        f = self.f
        if not loops:
            left, right, ahead, *sums = state
            return [left, right, ahead, *self.step(left, right, ahead, sums)]
        loop, inner = loops[0], loops[1:]
        if isinstance(loop.size, SymbolicDim):
            return self.steps(loop, inner, f.constant("i64", loop.size), state)
        unroll = 1 if inner else self.micro.unroll
        whole = loop.size // unroll * unroll if unroll else 0
        if not inner and 0 < whole == unroll:
            state = self.turn(loop, inner, unroll, state)
        elif whole:
            with f.for_range(0, whole, unroll, state, at_least_once=True) as body:
                body.carry(*self.turn(loop, inner, unroll, body.carried))
            state = body.results
        for _ in range(loop.size - whole):
            state = self.turn(loop, inner, 1, state, fetches=False)
        return state

    def step(self, left: Value, right: Value, ahead: Value, sums: Sequence[Value]) -> list[Value]:
        """One rank-1 update of all accumulators."""
        f, micro = self.f, self.micro
        loaded = []
        for number, offset in enumerate(micro.vectors):
            pointer = self._next(right, offset)
            if micro.stream:
                f.prefetch(f.pointer(pointer, micro.stream, "i8"))
            if self.mask is not None and number == len(micro.vectors) - 1:
                loaded.append(f.masked_load(self.vector, pointer, self.mask))
            else:
                loaded.append(f.load(self.vector, pointer))
            if micro.copies:
                f.store(loaded[-1], f.pointer(ahead, number * micro.lanes, micro.element))
        updated = []
        for row in range(micro.rows):
            place = f.pointer(left, self.rows[row], micro.element)
            spread = f.splat(f.load(micro.element, place), micro.lanes)
            for number, value in enumerate(loaded):
                total = sums[row * len(loaded) + number]
                if llvm.is_float(micro.element):
                    updated.append(f.fma(spread, value, total))
                else:
                    updated.append(f.add(f.mul(spread, value), total))
        return updated
