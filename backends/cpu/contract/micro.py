"""The innermost loop of a contraction: a block of accumulators in registers over the whole depth.

    tile[i, v] = sum over k of left[i, k] * right[k, v]        rows i, vectors v of lanes

All strides are constants of the kernel, so every address is one register plus a displacement.
Accumulators never leave registers before the sum is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .. import llvm
from ..codegen import Target

Value = llvm.Value

# Copies of a step in one loop turn, so that the loop's own instructions weigh little.
_STEP_PRODUCTS = 48
LINE = 64


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

    @property
    def unroll(self) -> int:
        """Steps of one turn of the innermost loop."""
        products = self.rows * len(self.vectors)
        size = self.depth[-1].size if self.depth else 1
        return min(max(2, _STEP_PRODUCTS // products), 8, size)


def largest_rows(target: Target, vectors: int) -> int:
    """Rows whose accumulators, with the right side's vectors and one left value, fit registers."""
    return (target.vector_registers - 1 - vectors) // vectors


def emit_micro(module: llvm.Module, name: str, micro: Micro) -> None:
    """Defines name(left, right, tile, ahead): pointers to the first elements, and to what the next
    calls will read."""
    parameters = [
        ("ptr noalias readonly", "left"),
        ("ptr noalias readonly", "right"),
        ("ptr noalias", "tile"),
        ("ptr", "ahead"),
    ]
    f = module.helper(name, parameters, inline="noinline")
    left, right, tile, ahead = f.arguments
    vector = llvm.vector(micro.lanes, micro.element)
    zeros = [llvm.constant(vector, 0)] * (micro.rows * len(micro.vectors))
    sums = _emit_depth(f, micro, list(micro.depth), left, right, ahead, zeros)
    for row in range(micro.rows):
        for number in range(len(micro.vectors)):
            place = row * micro.tile_stride + number * micro.lanes
            value = sums[row * len(micro.vectors) + number]
            f.store(value, f.pointer(tile, place, micro.element))
    f.ret()


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
        return _emit_step(f, micro, left, right, sums)
    loop, inner = depth[0], depth[1:]
    unroll = 1 if inner else micro.unroll
    whole = loop.size // unroll * unroll if unroll else 0
    if whole:
        start = [left, right, ahead, *sums]
        with f.for_range(0, whole, unroll, start, at_least_once=True) as body:
            a, b, c, *carried = body.carried
            for line in range(micro.ahead):
                f.prefetch(f.pointer(c, line * LINE, "i8"), locality=2)
            for turn in range(unroll):
                at = f.pointer(a, turn * loop.left, micro.element)
                bt = f.pointer(b, turn * loop.right, micro.element)
                carried = _emit_depth(f, micro, inner, at, bt, c, carried)
            body.carry(
                f.pointer(a, unroll * loop.left, micro.element),
                f.pointer(b, unroll * loop.right, micro.element),
                f.pointer(c, micro.ahead * LINE, "i8"),
                *carried,
            )
        left, right, _, *sums = body.results
    for turn in range(loop.size - whole):
        at = f.pointer(left, turn * loop.left, micro.element)
        bt = f.pointer(right, turn * loop.right, micro.element)
        sums = _emit_depth(f, micro, inner, at, bt, ahead, sums)
    return sums


def _emit_step(
    f: llvm.Function, micro: Micro, left: Value, right: Value, sums: Sequence[Value]
) -> list[Value]:
    """One rank-1 update of all accumulators."""
    vector = llvm.vector(micro.lanes, micro.element)
    loaded = []
    for number, offset in enumerate(micro.vectors):
        pointer = f.pointer(right, offset, micro.element)
        if micro.tail_lanes and number == len(micro.vectors) - 1:
            mask = llvm.vector_constant("i1", [i < micro.tail_lanes for i in range(micro.lanes)])
            loaded.append(f.masked_load(vector, pointer, mask))
        else:
            loaded.append(f.load(vector, pointer))
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
