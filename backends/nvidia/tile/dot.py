"""Products of tiles without matrix instructions: patches of sums in registers, operands in shared
memory, any dims and any element type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....hlo.graph import Op
from ... import llvm
from ...llvm import arithmetic, complex_math, elements
from ...llvm.elements import Pair, Register
from ...llvm.index import Affine, Indexer, LoopAxis, Scopes, delinear, linear, of_axis
from ...plain.monoid import flat, unflat
from ..windows import load
from . import matrix, patches
from .distributed_layout import DistributedLayout
from .emitter import Emitter
from .scope import Tile


def dot(e: Emitter, op: Op) -> None:
    """dot_general, by matrix instructions where the assignment says so; or an addition to what one
    gives, which starts from the other operand."""
    if op in e.assignment.fused.values():
        return
    product = e.assignment.fused.get(op, op)
    plan = e.assignment.products.get(product)
    layout = plan.sums if plan is not None else e.layout(product.result)
    if not product.result.rank:
        layout = e.uniform
    start: Tile | None = None
    if product is not op:
        (other,) = (value for value in op.operands if value is not product.result)
        start = e.tile(other, layout)
    if plan is None:
        tile = _patches(e, product, layout, start)
    else:
        tile = (matrix if plan.atom else patches).product(e, plan, start)
    e.bind(op.result, tile, layout)


class _Side:
    """An operand: where its element for an index of the result and of the sums lies."""

    def __init__(self, e: Emitter, op: Op, number: int) -> None:
        self.e, self.value = e, op.operands[number]
        side = "lhs" if number == 0 else "rhs"
        self.batches = tuple(getattr(op, f"{side}_batching_dimensions"))
        self.contracted = tuple(getattr(op, f"{side}_contracting_dimensions"))
        rank = self.value.rank
        self.free = [d for d in range(rank) if d not in (*self.batches, *self.contracted)]
        before = 0
        if number == 1:
            left = op.operands[0].rank
            before = left - len(self.batches) - len(self.contracted)
        # The dims of the result that this operand has, and which of its own they are.
        places = [*range(len(self.batches))]
        places += [len(self.batches) + before + n for n in range(len(self.free))]
        self.places = dict(zip(places, [*self.batches, *self.free], strict=True))
        self.pointer: llvm.Value | None = None

    def offset(self, index: Sequence[Affine], walked: Sequence[Affine]) -> Affine:
        own: dict[int, Affine] = {d: index[place] for place, d in self.places.items()}
        own.update(zip(self.contracted, walked, strict=True))
        return linear([own[d] for d in range(self.value.rank)], self.value.dims)


def sum_type(op: Op) -> Any:
    """The element type that sums are kept in: registers of small floats hold f32."""
    return op.result.element


def _patches(e: Emitter, op: Op, layout: DistributedLayout, first: Tile | None) -> Tile:
    f, block = e.f, e.block
    left, right = _Side(e, op, 0), _Side(e, op, 1)
    sides = [side for side in (left, right) if side.value.rank]
    for side, pointer in zip(sides, e.shared(*(side.value for side in sides)), strict=True):
        side.pointer = pointer
    element = sum_type(op)
    inner = [left.value.dims[d] for d in left.contracted]
    depth = math.prod(inner)
    zero = elements.register_constant(element, element.dtype.type(0), 1)
    start: list[Register] = [zero] * len(layout.alive)
    if first is not None:
        start = [one for one in first if one is not None]
    with f.for_range(0, depth, 1, flat(start)) as loop:
        old = unflat(loop.carried, start)
        at = of_axis(LoopAxis(loop.index, max(1, depth)))
        walked = delinear(Indexer(Scopes(f)), at, inner, 1)
        known: dict[tuple[int, Any], Register] = {}

        def operand(side: _Side, number: int, index: Sequence[Affine]) -> Register:
            offset = side.offset(index, walked)
            key = (id(side), offset.key)
            if key not in known:
                known[key] = _element(e, side, offset, layout, number, element)
            return known[key]

        new: list[Register] = []
        for total, number in zip(old, layout.alive, strict=True):
            place = layout.places[number]
            assert place is not None
            index = block.index(layout, place)
            a, b = operand(left, number, index), operand(right, number, index)
            new.append(added(e, op, total, a, b))
        loop.carry(*flat(new))
    tile: Tile = [None] * layout.count
    for number, one in zip(layout.alive, unflat(loop.results, start), strict=True):
        tile[number] = elements.rounded(f, one, element) if isinstance(one, llvm.Value) else one
    return tile


def _element(
    e: Emitter, side: _Side, offset: Affine, layout: DistributedLayout, number: int, element: Any
) -> Register:
    value, f = side.value, e.f
    if side.pointer is None:
        return arithmetic.convert(f, e.scalar(value), value.element, element)
    place = layout.places[number]
    assert place is not None
    at = e.block.scalar(offset)
    # Outside of the tile anything may be read that lies in the operand.
    if offset.high >= math.prod(value.dims):
        at = f.min(at, math.prod(value.dims) - 1)
    pointer = f.pointer(side.pointer, f.mul(at, value.element.itemsize), "i8")
    register = load(f, pointer, value.element, 1, False)[0]
    return arithmetic.convert(f, register, value.element, widened(element, value.element))


def widened(element: Any, source: Any) -> Any:
    """Small floats are multiplied as they are: f32 registers hold them exactly."""
    return source if elements.is_rounded(element) else element


def added(e: Emitter, op: Op, total: Register, a: Register, b: Register) -> Register:
    """total + a * b in the type of the operation's sums."""
    f = e.f
    if isinstance(total, Pair):
        product = complex_math.apply(f, "multiply", [a, b])
        assert isinstance(product, Pair)
        return Pair(f.add(total.real, product.real), f.add(total.imaginary, product.imaginary))
    assert isinstance(a, llvm.Value) and isinstance(b, llvm.Value)
    if op.result.element.is_float:
        return f.fma(a, b, total)
    if op.result.element.is_bool:
        return f.lor(total, f.land(a, b))
    return elements.wrapped(f, f.add(total, f.mul(a, b)), op.result.element)
