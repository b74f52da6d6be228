"""The innermost loop of a contraction: a block of accumulators in registers over the whole depth.

    tile[i, v] = sum over k of left[i, k] * right[k, v]        rows i, vectors v of lanes

All strides are constants of the kernel, so every address is one register plus a displacement.
Accumulators never leave registers before the sum is complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ... import llvm

Value = llvm.Value

# Copies of a step in one loop turn, so that the loop's own instructions weigh little.
_STEP_PRODUCTS = 48
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

    @property
    def unroll(self) -> int:
        """Steps of one turn of the innermost loop."""
        size = self.depth[-1].size if self.depth else 1
        return Micro.turns(self.rows * len(self.vectors), size)

    @staticmethod
    def turns(products: int, size: int) -> int:
        """Steps of one turn of a loop of `size` steps, each of so many products of vectors."""
        return min(max(2, _STEP_PRODUCTS // products), 8, size)


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
    sums) does what follows in place of stores to the tile."""
    parameters = [
        ("ptr noalias readonly", "left"),
        ("ptr noalias readonly", "right"),
        ("ptr noalias", "tile"),
        ("ptr", "ahead"),
        ("i64", "step"),
        ("i64", "steps"),
    ]
    if finish is not None:
        parameters.append(("ptr noalias readonly", "args"))
        parameters += [("i64", "outer"), ("i64", "row"), ("i64", "column")]
    f = module.helper(name, parameters, inline="noinline")
    left, right, tile, ahead, step, steps = f.arguments[:6]
    vector = llvm.vector(micro.lanes, micro.element)
    places = [
        row * micro.tile_stride + number * micro.lanes
        for row in range(micro.rows)
        for number in range(len(micro.vectors))
    ]
    zeros: Sequence[Value] = [llvm.constant(vector, 0)] * len(places)
    if micro.cut:
        # Each part is summed by itself: rounding grows with the length of what is summed at once.
        sums = _emit_part(f, micro, left, right, ahead, steps, zeros)
        branch = f.if_else(f.compare("eq", step, 0))
        with branch.then():
            branch.give(*sums)
        with branch.otherwise():
            before = [f.load(vector, f.pointer(tile, p, micro.element)) for p in places]
            branch.give(*map(f.add, before, sums))
        sums = branch.results
    else:
        sums = _emit_parts(f, micro, left, right, ahead, zeros)
    if finish is not None:
        finish(f, f.arguments[6:], sums)
        places, sums = [], []
    for place, value in zip(places, sums, strict=True):
        f.store(value, f.pointer(tile, place, micro.element))
    f.ret()


def _emit_part(
    f: llvm.Function,
    micro: Micro,
    left: Value,
    right: Value,
    ahead: Value,
    steps: Value,
    sums: Sequence[Value],
) -> Sequence[Value]:
    """`steps` steps of the one depth loop."""
    unroll = micro.unroll
    whole = f.mul(f.udiv(steps, unroll), unroll)
    first = [left, right, ahead, *sums]
    with f.for_range(0, whole, unroll, first) as body:
        body.carry(*_emit_turn(f, micro, micro.depth[0], [], unroll, body.carried))
    with f.for_range(whole, steps, 1, body.results) as rest:
        a, b, c, *carried = rest.carried
        carried = _emit_step(f, micro, a, b, c, carried)
        loop = micro.depth[0]
        a, b = f.pointer(a, loop.left, micro.element), f.pointer(b, loop.right, micro.element)
        rest.carry(a, b, c, *carried)
    return rest.results[3:]


def _emit_parts(
    f: llvm.Function,
    micro: Micro,
    left: Value,
    right: Value,
    ahead: Value,
    zeros: Sequence[Value],
) -> Sequence[Value]:
    """The whole depth; a long one in parts of about `PART` steps, each summed by itself."""
    loop, *inner = micro.depth or (Depth(1, 0, 0),)
    within = max(1, math.prod(one.size for one in inner))
    unroll = 1 if inner else max(1, micro.unroll)
    part = max(unroll, PART // within // unroll * unroll)
    whole = loop.size // part
    if whole < 2 or not llvm.is_float(micro.element):
        return _emit_depth(f, micro, list(micro.depth), left, right, ahead, zeros)
    vector = llvm.vector(micro.lanes, micro.element)
    totals = f.alloca(vector, len(zeros))
    for number, zero in enumerate(zeros):
        f.store(zero, f.pointer(totals, number, vector))
    with f.for_range(0, whole, 1, [left, right, ahead], at_least_once=True) as parts:
        start = [*parts.carried, *zeros]
        with f.for_range(0, part, unroll, start, at_least_once=True) as body:
            body.carry(*_emit_turn(f, micro, loop, inner, unroll, body.carried))
        left, right, ahead, *sums = body.results
        for number, value in enumerate(sums):
            place = f.pointer(totals, number, vector)
            f.store(f.add(f.load(vector, place), value), place)
        parts.carry(left, right, ahead)
    left, right, ahead = parts.results
    rest = replace(loop, size=loop.size - whole * part)
    sums = zeros
    if rest.size:
        sums = _emit_depth(f, micro, [rest, *inner], left, right, ahead, zeros)
    kept = [f.load(vector, f.pointer(totals, number, vector)) for number in range(len(zeros))]
    return kept if sums is zeros else [f.add(a, b) for a, b in zip(kept, sums, strict=True)]


def _emit_turn(
    f: llvm.Function,
    micro: Micro,
    loop: Depth,
    inner: list[Depth],
    unroll: int,
    state: Sequence[Value],
) -> list[Value]:
    """`unroll` steps of a loop; the state are the three pointers, then the sums."""
    left, right, ahead, *sums = state
    for line in range(micro.ahead):
        f.prefetch(f.pointer(ahead, line * LINE, "i8"), locality=2)
    copied = len(micro.vectors) * micro.lanes if micro.copies else 0  # elements per step
    for turn in range(unroll):
        at = f.pointer(left, turn * loop.left, micro.element)
        bt = f.pointer(right, turn * loop.right, micro.element)
        ct = f.pointer(ahead, turn * copied, micro.element)
        sums = _emit_depth(f, micro, inner, at, bt, ct, sums)
    ahead = f.pointer(ahead, micro.ahead * LINE, "i8")
    return [
        f.pointer(left, unroll * loop.left, micro.element),
        f.pointer(right, unroll * loop.right, micro.element),
        f.pointer(ahead, unroll * copied, micro.element),
        *sums,
    ]


def _emit_depth(
    f: llvm.Function,
    micro: Micro,
    depth: list[Depth],
    left: Value,
    right: Value,
    ahead: Value,
    sums: Sequence[Value],
) -> Sequence[Value]:
    """The loops over `depth`, with the accumulators carried through them."""
    if not depth:
        return _emit_step(f, micro, left, right, ahead, sums)
    loop, inner = depth[0], depth[1:]
    unroll = 1 if inner else micro.unroll
    whole = loop.size // unroll * unroll if unroll else 0
    if whole:
        start = [left, right, ahead, *sums]
        with f.for_range(0, whole, unroll, start, at_least_once=True) as body:
            body.carry(*_emit_turn(f, micro, loop, inner, unroll, body.carried))
        left, right, ahead, *sums = body.results
    for _ in range(loop.size - whole):
        left, right, ahead, *sums = _emit_turn(
            f, replace(micro, ahead=0), loop, inner, 1, [left, right, ahead, *sums]
        )
    return sums


def _emit_step(
    f: llvm.Function,
    micro: Micro,
    left: Value,
    right: Value,
    ahead: Value,
    sums: Sequence[Value],
) -> list[Value]:
    """One rank-1 update of all accumulators."""
    vector = llvm.vector(micro.lanes, micro.element)
    loaded = []
    for number, offset in enumerate(micro.vectors):
        pointer = f.pointer(right, offset, micro.element)
        if micro.stream:
            f.prefetch(f.pointer(pointer, micro.stream, "i8"))
        if micro.tail_lanes and number == len(micro.vectors) - 1:
            mask = llvm.vector_constant("i1", [i < micro.tail_lanes for i in range(micro.lanes)])
            loaded.append(f.masked_load(vector, pointer, mask))
        else:
            loaded.append(f.load(vector, pointer))
        if micro.copies:
            f.store(loaded[-1], f.pointer(ahead, number * micro.lanes, micro.element))
    updated = []
    for row in range(micro.rows):
        scalar = f.load(micro.element, f.pointer(left, row * micro.row_stride, micro.element))
        spread = f.splat(scalar, micro.lanes)
        for number, value in enumerate(loaded):
            total = sums[row * len(loaded) + number]
            if llvm.is_float(micro.element):
                updated.append(f.fma(spread, value, total))
            else:
                updated.append(f.add(f.mul(spread, value), total))
    return updated
