"""Products without matrix instructions whose operands lie in rows of shared memory.

Each thread has a patch of sums. In one turn it loads 16 bytes along the sum of every row of an
operand whose rows run along the sum, else the patch's part of as many rows, and multiplies all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ... import llvm
from ...llvm import arithmetic, elements
from ...llvm.elements import Register
from ..atoms import ACCESS_BYTES
from ..layouts import LinearLayout
from ..target import NvidiaTarget
from .analysis import OperandSource, TileProduct
from .distributed_layout import DistributedLayout, log2, padded, patches
from .matrix import ProductLowering
from .operands import ProductOperand, staged

if TYPE_CHECKING:
    from .emitter import Emitter
    from .scope import Tile

LEAST = 1024  # multiply-adds of a product that is worth it


def plan(product: TileProduct, target: NvidiaTarget, threads: int) -> ProductLowering | None:
    """The plan of a product of elements of one size that are no complex numbers."""
    left, right = product.left.value.element, product.right.value.element
    sizes = {left.itemsize, right.itemsize}
    if len(sizes) != 1 or max(sizes) > 8 or left.is_complex or product.op.result.element.is_bool:
        return None
    if product.rows * product.columns * product.depth < LEAST:
        return None
    sides = (product.row, product.left), (product.column, product.right)
    # Lanes that read rows along the sum read neighbouring ones: their swizzles differ.
    across_lanes = [dim for dim, source in sides if source.along]
    sums, size = patches(product.op.result.dims, threads, across_lanes), max(sizes)
    operands = [
        ProductOperand(source, _part(sums, dim, source, size), size, matrices=False)
        for dim, source in sides
    ]
    return ProductLowering(product, None, (operands[0], operands[1]), sums)


def _part(sums: DistributedLayout, dim: int, source: OperandSource, size: int) -> LinearLayout:
    """What a thread takes in the turn `depth` of an operand: (own, depth)."""
    depth = padded([max(source.origin.dims[source.depth], ACCESS_BYTES // size)])[0]
    own, _ = sums.linear.mapped((sums.linear.shape[dim], depth), (dim, None)).condensed()
    each = log2(ACCESS_BYTES // size)
    along = [1 << bit for bit in range(log2(depth))]
    return own.with_inputs(
        register=(*along[:each], *own.bits("register")), depth=(*[0] * each, *along[each:])
    )


class _PatchOperand:
    """One operand: for a step along the sum, its elements by their place along the own dim."""

    def __init__(self, e: Emitter, plan: ProductLowering, side: int) -> None:
        self.e, self.f, self.size = e, e.f, plan.size
        self.operand = plan.operands[side]
        self.source = self.operand.source
        self.rows = staged(e, self.operand)
        _, self.plan = self.operand.loads(self.rows.layout)
        own = (plan.product.row, plan.product.column)[side]
        self.places = {place[own] for place in plan.sums.places if place is not None}

    def load(self, depth: llvm.Value, element: Any) -> list[dict[int, Register]]:
        """For each of the steps from `depth` on (an i32), the elements by place."""
        f, value = self.f, self.source.value
        found: list[dict[int, Register]] = [{} for _ in range(ACCESS_BYTES // self.size)]
        common = self.e.block.common_address(self.rows, self.plan.terms, depth=depth)
        kind = elements.memory_type(f, value.element)
        for access in self.plan.accesses:
            coordinates = [self.operand.value.registers[n] for n in access.registers]
            if not any(own in self.places for own, _ in coordinates):
                continue
            pointer = self.e.block.place(self.rows, common, access)
            raw = f.load(llvm.vector(len(coordinates), kind), pointer, align=self.plan.bytes)
            for lane, (own, step) in enumerate(coordinates):
                one = elements.widen(f, f.extract(raw, lane), value.element)
                found[step][own] = arithmetic.convert(f, one, value.element, element)
        return found


def product(e: Emitter, plan: ProductLowering, start: Tile | None) -> Tile:
    """start + left * right, in the layout of the plan's sums; None starts from 0."""
    f, layout = e.f, plan.sums
    op = plan.product.op
    element = op.result.element
    read = op.operands[0].element if elements.is_rounded(element) else element
    first = [llvm.constant(elements.register_type(element), 0)] * len(layout.alive)
    if start is not None:
        first = [one for one in start if isinstance(one, llvm.Value)]
    left, right = _PatchOperand(e, plan, 0), _PatchOperand(e, plan, 1)
    e.block.hazards.read(left.rows.piece, right.rows.piece)
    each = ACCESS_BYTES // plan.size
    end = llvm.constant("i32", -(-plan.product.depth // each) * each)
    row, column = plan.product.row, plan.product.column
    with f.for_range(llvm.constant("i32", 0), end, each, first) as loop:
        a, b = left.load(loop.index, read), right.load(loop.index, read)
        sums: Sequence[llvm.Value] = loop.carried
        for step in range(each):
            new = []
            for total, number in zip(sums, layout.alive, strict=True):
                place = layout.places[number]
                assert place is not None
                x, y = a[step][place[row]], b[step][place[column]]
                assert isinstance(x, llvm.Value) and isinstance(y, llvm.Value)
                if element.is_float:
                    new.append(f.fma(x, y, total))
                else:
                    new.append(elements.wrapped(f, f.add(total, f.mul(x, y)), element))
            sums = new
        loop.carry(*sums)
    tile: Tile = [None] * layout.count
    for number, one in zip(layout.alive, loop.results, strict=True):
        tile[number] = elements.rounded(f, one, element)
    return tile
