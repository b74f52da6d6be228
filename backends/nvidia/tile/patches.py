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
from ..target import Target
from . import matrix
from .analysis import Product, Source
from .matrix import Plan
from .shared import CHUNK
from .spread import Spread, log2, patches

if TYPE_CHECKING:
    from .emitter import Emitter
    from .scope import Tile

LEAST = 1024  # multiply-adds of a product that is worth it


def plan(product: Product, target: Target, threads: int) -> Plan | None:
    """The plan of a product of elements of one size that are no complex numbers."""
    left, right = product.left.value.element, product.right.value.element
    sizes = {left.itemsize, right.itemsize}
    if len(sizes) != 1 or max(sizes) > 8 or left.is_complex or product.op.result.element.is_bool:
        return None
    if product.rows * product.columns * product.depth < LEAST:
        return None
    return Plan(product, None, (1, 1), patches(product.op.result.dims, threads))


class _Operand:
    """One operand: for a step along the sum, its elements by their place along the own dim."""

    def __init__(self, e: Emitter, plan: Plan, side: int) -> None:
        self.e, self.f, self.size = e, e.f, plan.size
        product, spread = plan.product, plan.sums
        self.source: Source = (product.left, product.right)[side]
        self.own = (product.row, product.column)[side]
        self.rows = matrix.staged(e, self.source, plan.size, plan.unit(self.source))
        steps = [basis[self.own] for basis in spread.threads]
        none = [0] * len(steps)
        if self.source.along:
            self.thread = matrix.offset_of(e, self.rows, steps, none)
        else:
            self.thread = matrix.offset_of(e, self.rows, none, [n * plan.size for n in steps])
        self.places = self._places(spread)
        self.width = 1 if self.source.along else self._width()

    def _places(self, spread: Spread) -> list[int]:
        """The patch's places along the own dim."""
        found = {place[self.own] for place in spread.places if place is not None}
        return sorted(found)

    def _width(self) -> int:
        """Neighbours along the own dim in one load."""
        width = CHUNK // self.size
        while width > 1 and any(
            place - place % width + lane not in self.places
            for place in self.places
            for lane in range(width)
        ):
            width //= 2
        return width

    def load(self, depth: llvm.Value, element: Any) -> list[dict[int, Register]]:
        """For each of the steps from `depth` on (an i32), the elements by place."""
        f, each = self.f, CHUNK // self.size
        found: list[dict[int, Register]] = [{} for _ in range(each)]
        if self.source.along:
            thread = f.xor(self.thread, f.mul(depth, self.size))
            for place in self.places:
                for step, one in enumerate(self._vector(thread, place, 0, each, element)):
                    found[step][place] = one
            return found
        shift, mask = self.rows.permutation
        swizzle = f.shl(f.land(f.lshr(depth, shift), mask), log2(self.rows.unit))
        thread = f.add(f.xor(self.thread, swizzle), f.mul(depth, self.rows.row_bytes))
        for step in range(each):
            for place in self.places:
                if place % self.width == 0:
                    loaded = self._vector(thread, step, place, self.width, element)
                    found[step].update(zip(range(place, place + self.width), loaded, strict=True))
        return found

    def _vector(
        self, thread: llvm.Value, row: int, column: int, width: int, element: Any
    ) -> list[Register]:
        f, value = self.f, self.source.value
        constant = self.rows.offset(row, column * self.size)
        pointer = matrix.place_of(self.e, self.rows, thread, constant)
        kind = elements.memory_type(f, value.element)
        raw = f.load(f"<{width} x {kind}>" if width > 1 else kind, pointer, align=width * self.size)
        wide = [elements.widen(f, f.extract(raw, lane), value.element) for lane in range(width)]
        return [arithmetic.convert(f, one, value.element, element) for one in wide]


def product(e: Emitter, plan: Plan, start: Tile | None) -> Tile:
    """start + left * right, in the layout of the plan's sums; None starts from 0."""
    f, spread = e.f, plan.sums
    op = plan.product.op
    element = op.result.element
    read = op.operands[0].element if elements.is_rounded(element) else element
    zero = llvm.constant(elements.register_type(element), 0)
    first: list[llvm.Value] = []
    for number in spread.alive:
        one = start[number] if start is not None else zero
        assert isinstance(one, llvm.Value)
        first.append(one)
    left, right = _Operand(e, plan, 0), _Operand(e, plan, 1)
    e.block.hazards.read(left.rows.piece, right.rows.piece)
    each = CHUNK // plan.size
    end = llvm.constant("i32", -(-plan.product.depth // each) * each)
    row, column = plan.product.row, plan.product.column
    with f.for_range(llvm.constant("i32", 0), end, each, first) as loop:
        a, b = left.load(loop.index, read), right.load(loop.index, read)
        sums: Sequence[llvm.Value] = loop.carried
        for step in range(each):
            new = []
            for total, number in zip(sums, spread.alive, strict=True):
                place = spread.places[number]
                assert place is not None
                x, y = a[step][place[row]], b[step][place[column]]
                assert isinstance(x, llvm.Value) and isinstance(y, llvm.Value)
                if element.is_float:
                    new.append(f.fma(x, y, total))
                else:
                    new.append(elements.wrapped(f, f.add(total, f.mul(x, y)), element))
            sums = new
        loop.carry(*sums)
    tile: Tile = [None] * spread.count
    for number, one in zip(spread.alive, loop.results, strict=True):
        tile[number] = elements.rounded(f, one, element)
    return tile
