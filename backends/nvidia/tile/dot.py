"""Products and convolutions of tiles: by matrix instructions, by patches of sums whose operands lie
in rows of shared memory, or as formulas of any dims and element types that read copies there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....hlo.graph import Op, Value
from ... import llvm
from ...llvm import arithmetic, elements
from ...llvm.elements import Register
from ...llvm.elementwise import ElementEmitter, Mask
from ...llvm.index import Affine, LoopAxis, delinear, linear, of_axis
from ...plain.monoid import flat, unflat
from ..atoms import ACCESS_BYTES
from ..frame import rolled
from ..layout_code import as_i64
from ..plain.products import ConvolutionWindow, Sum, window_of
from ..windows import load
from . import matrix, patches
from .block_wide import emit_block_wide
from .distributed_layout import DistributedLayout
from .emitter import Emitter
from .scope import Tile

_UNROLLED = 16  # places of a convolution's window whose loads may stand side by side


def dot(e: Emitter, op: Op) -> None:
    """dot_general, by matrix instructions where the assignment says so; or an addition to what one
    gives, which starts from the other operand. Or a convolution."""
    if op in e.assignment.fused.values():
        return
    if op.name == "convolution" and (
        any(n != 1 for n in op.lhs_dilation) or op.batch_group_count > 1
    ):
        emit_block_wide(e, op)  # most of what threads would read in registers is no element
        return
    product = e.assignment.fused.get(op, op)
    plan = e.assignment.products.get(product)
    layout = plan.sums if plan is not None else e.layout(product.result)
    start: Tile | None = None
    if product is not op:
        (other,) = (value for value in op.operands if value is not product.result)
        start = e.tile(other, layout)
    if plan is None:
        tile = _summed(e, product, layout, start)
    else:
        tile = (matrix if plan.atom else patches).product(e, plan, start)
    e.bind(op.result, tile, layout)


def _summed(e: Emitter, op: Op, layout: DistributedLayout, start: Tile | None) -> Tile:
    """Sums of a contraction in registers: a place of its window a turn."""
    f, total, sides = e.f, Sum(e.f, op), _Operands(e, op)
    first = [total.zero] * len(layout.alive)
    if start is not None:
        result = op.result.element
        given = [one for one in start if one is not None]
        first = [arithmetic.convert(f, one, result, total.element) for one in given]
    # Loads of many places side by side would fill the registers.
    slides = isinstance(sides.window, ConvolutionWindow) and sides.turns > _UNROLLED
    metadata = rolled(f) if slides else ""
    with f.for_range(0, sides.turns, 1, flat(first), metadata=metadata) as loop:
        sums = unflat(loop.carried, first)
        for number, left, right in sides.turn(loop.index, layout):
            sums[number] = total.add(sums[number], [left, right])
        loop.carry(*flat(sums))
    found = dict(zip(layout.alive, unflat(loop.results, first), strict=True))
    return e.registers(layout, lambda number: total.finished(found[number]))


class _Operands:
    """The elements that a contraction multiplies, read from copies in shared memory: several at
    once where they are neighbours."""

    def __init__(self, e: Emitter, op: Op) -> None:
        self.e, self.op, self.f = e, op, e.f
        tiles = [value for value in op.operands if value.rank]
        self.pointers = dict(zip(tiles, e.shared(*tiles), strict=True))
        self.emitter = ElementEmitter(e.f, None)
        self.window = window_of(self.emitter, op)
        self.turns = math.prod(self.window.extents)

    def turn(
        self, number: llvm.Value, layout: DistributedLayout
    ) -> Iterator[tuple[int, Register, Register]]:
        """The elements of both operands at a place of the window, by the number of the sum; sums
        that it lies in the padding of have none."""
        at = of_axis(LoopAxis(number, max(1, self.turns)))
        walked = delinear(self.emitter.indexer, at, self.window.extents, 1)
        kept: list[int] = []
        masks: list[Mask | None] = []
        lefts: list[Sequence[Affine]] = []
        rights: list[Sequence[Affine]] = []
        for n, place in enumerate(place for place in layout.places if place is not None):
            index = self.e.block.index(layout, place)
            left, right, inside = self.window.indices(index, walked)
            if inside is not False:
                kept.append(n)
                masks.append(inside)
                lefts.append(left)
                rights.append(right)
        first, second = self.op.operands
        read = self._side(first, layout, lefts, masks)
        return zip(kept, read, self._side(second, layout, rights, [None] * len(kept)), strict=True)

    def _side(
        self, value: Value, layout: DistributedLayout, indices: Sequence[Sequence[Affine]],
        masks: Sequence[Mask | None],
    ) -> list[Register]:  # fmt: skip
        """The elements of an operand at some indices, 0 where masks do not hold."""
        if not value.rank:
            return [self.e.scalar(value)] * len(indices)
        offsets = [linear(index, value.dims) for index in indices]
        most = layout.vector(max(1, ACCESS_BYTES // value.element.itemsize))
        known: dict[object, Register] = {}
        for first, (offset, mask) in enumerate(zip(offsets, masks, strict=True)):
            if (offset.key, mask) in known:
                continue
            width = most
            while width > 1 and not _neighbours(offsets, masks, first, width, value.tensor.size):
                width //= 2
            for lane, one in enumerate(self._read(value, offset, width, mask)):
                known[offsets[first + lane].key if lane else offset.key, mask] = one
        return [known[at.key, mask] for at, mask in zip(offsets, masks, strict=True)]

    def _read(
        self, value: Value, offset: Affine, count: int, mask: Mask | None
    ) -> Sequence[Register]:
        f, element = self.f, value.element
        place = as_i64(f, offset)
        # Results outside of the tile read anything.
        if mask is not None:
            place = f.select(mask.value, place, 0)
        elif offset.high + count > value.tensor.size:
            place = f.min(place, value.tensor.size - count)
        pointer = f.pointer(self.pointers[value], f.mul(place, element.itemsize), "i8")
        found = load(f, pointer, element, count, True)
        if mask is None:
            return found
        zero = elements.register_constant(element, element.dtype.type(0), 1)
        return [arithmetic.select(f, mask.value, one, zero) for one in found]


def _neighbours(
    offsets: Sequence[Affine], masks: Sequence[Mask | None], first: int, width: int, size: int
) -> bool:
    """Whether so many elements from one on follow each other in memory, aligned to as many."""
    begin = offsets[first]
    steps = [begin.constant, size, *(factor * axis.multiple for axis, factor in begin.terms)]
    return (
        all(step % width == 0 for step in steps)
        and [at.key for at in offsets[first : first + width]]
        == [(begin + lane).key for lane in range(width)]
        and all(mask is masks[first] for mask in masks[first : first + width])
    )
