"""Tile values in the registers of a warp group, as the results of `wgmma` lie there (fragment.py).

Elements are computed when they are asked for, so that few are alive at once, and once in each
scope.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ....hlo.deciding import surely_below
from ....hlo.errors import CompilerBug
from ....hlo.graph import APPROXIMATE, Op, Value
from ....hlo.positions import linear
from ....hlo.types import BF16, F16, F32
from ....optimizer.asynchronous.work import COLUMN, ROW, PipelineWork, is_row, part_of, splat_of
from ... import llvm
from ...llvm import Function, elements
from ...llvm.elements import Register
from ...llvm.index import ZERO, Affine, LoopAxis, of_axis
from ...plain.monoid import Reduction
from ..evaluator import TileEvaluator, ValueScope, is_splat
from ..tile.reduce import across, concluded, joined
from ..windows import WindowAccess, loaded
from . import fragment
from .fragment import FragmentLayout
from .functions import FUNCTIONS, multiple_of, plain, resolved
from .instructions import pack

Element = llvm.Value
Fetch = Callable[[int, int], Element]  # of a row and a column, see `fragment.py`

_HALVES = {BF16: "bfloat", F16: "half"}
_PREDICATES = {"EQ": "eq", "NE": "ne", "GE": "sge", "GT": "sgt", "LE": "sle", "LT": "slt"}
_CHAINS = 4  # independent sums of a thread


@dataclass(frozen=True)
class ThreadPosition:
    """Where a thread stands in its tile: i32 of its first row and its first column, how many rows
    its warp group has, the group's number, and the thread's in its group."""

    row: Element
    column: Element
    rows: int
    group: Element
    thread: Element


class LazyTile(Sequence[Element]):
    """The registers of a value in a layout, each computed when it is asked for. `word`: gives two
    neighbours of a row, from a register on, as 16-bit floats in one word."""

    def __init__(
        self,
        owner: FragmentEvaluator,
        layout: FragmentLayout,
        fetch: Callable[[int], Element],
        word: Callable[[int], Element] | None = None,
    ) -> None:
        self.owner, self.layout, self.fetch, self.pack = owner, layout, fetch, word
        self._mark = owner.f.mark  # of the operation that elements are computed for

    def __len__(self) -> int:
        return len(self.layout.places)

    def __getitem__(self, number: Any) -> Any:
        return self.owner.once((self, number), lambda: self._marked(self.fetch, number))

    def __iter__(self) -> Iterator[Element]:
        return map(self.__getitem__, range(len(self)))

    def at(self, row: int, column: int) -> Element:
        """The element in a row and a column, in the register form of its type."""
        return self[self.layout.register(row, column)]

    def word(self, row: int, column: int, element: Any) -> Element:
        """The elements in a row and two columns as 16-bit floats in one word."""
        number, word = self.layout.register(row, column), self.pack
        if word is not None:
            key = self, number, "word"
            return self.owner.once(key, lambda: self._marked(word, number))
        return pack(self.owner.f, self[number], self.at(row, column + 1), _HALVES[element])

    def _marked(self, fetch: Callable[[int], Element], number: int) -> Element:
        f = self.owner.f
        outer, f.mark = f.mark, self._mark
        found = fetch(number)
        f.mark = outer
        return found


FragmentScope = ValueScope[FragmentLayout, LazyTile]


class FragmentEvaluator(TileEvaluator[FragmentLayout, LazyTile, FragmentScope]):
    """Computes tile values of one role of a kernel.

    Bound values (what loops carry) are given; `product` gives what a product is. Without a place
    only numbers can be computed.
    """

    def __init__(
        self,
        f: Function,
        work: PipelineWork,
        pointers: dict[int, Element],
        place: ThreadPosition | None,
    ) -> None:
        self.rows = place.rows if place is not None else 0
        super().__init__(f, work.offsets, FragmentLayout((), (), self.rows), FragmentScope())
        self.work, self.pointers, self.place = work, pointers, place
        self.product: Callable[[Op], LazyTile] | None = None
        self.arrived: dict[Op, Fetch] = {}  # windows that the copy engine has brought
        self.holds: frozenset[Value] = frozenset()  # masks that are true in all elements here

    def layout(self, value: Value) -> FragmentLayout:
        roles = self.work.roles.get(value, ("",) * value.rank)
        return FragmentLayout(value.dims, roles, self.rows)

    def registers(
        self,
        layout: FragmentLayout,
        element: Callable[[int], Register],
        word: Callable[[int], Element] | None = None,
    ) -> LazyTile:
        return LazyTile(self, layout, lambda number: plain(element(number)), word)

    def fetched(self, layout: FragmentLayout, fetch: Fetch) -> LazyTile:
        """A tile of elements by row and column."""
        return LazyTile(self, layout, lambda number: fetch(*layout.places[number]))

    def moved(self, layout: FragmentLayout, tile: LazyTile, numbers: Sequence[int]) -> LazyTile:
        def element(number: int) -> Element:
            return tile[numbers[number]]

        word = tile.pack
        if word is None or tile.layout.columns != layout.columns:
            return self.registers(layout, element)
        return self.registers(layout, element, lambda number: word(numbers[number]))

    def taken(self, layout: FragmentLayout, registers: Iterator[Register]) -> LazyTile:
        found = list(itertools.islice(registers, len(layout.places)))
        return self.registers(layout, lambda number: found[number])

    def given(self, value: Value, found: Sequence[Element]) -> LazyTile:
        """The tile of these registers."""
        return self.taken(self.layout(value), iter(found))

    def index(self, layout: FragmentLayout, number: int) -> list[Affine]:
        return [self._affine(role, *layout.places[number]) for role in layout.roles]

    def _affine(self, role: str, row: int, column: int) -> Affine:
        place = self.place
        if role == COLUMN and place is not None:
            start, size, own = place.column, fragment.TILE.shape[1], column
        elif role == ROW and place is not None:
            start, size, own = place.row, self.work.rows, row
        else:
            inner = self.along(role, row, column)
            if inner is None:
                return ZERO
            start, size, own = inner, part_of(role, 0).size, 0

        def axis() -> Affine:
            return of_axis(LoopAxis(self.f.cast("zext", start, "i64"), size))

        return self.once(("axis", start.name), axis) + own

    def held(self, layout: FragmentLayout, number: int) -> None:
        """Tiles are as large as what the threads have."""

    def owner(self, layout: FragmentLayout) -> Element | None:
        f, place = self.f, self.place
        if place is None or not layout.copies:
            return None
        own = f.land(place.thread, layout.copies)
        if not any(map(is_row, layout.roles)):
            own = f.lor(own, place.group)
        return f.compare("eq", own, 0)

    def base(self, memory: Value) -> Element:
        return self.pointers[memory.index]

    def position(self, layout: FragmentLayout, number: int, d: int) -> Element:
        place = self.along(layout.roles[d], *layout.places[number])
        return place if place is not None else llvm.constant("i32", 0)

    def made(self, value: Value, layout: FragmentLayout) -> LazyTile:
        op = value.op
        if op is None:
            raise CompilerBug(f"nothing gives {value} in a pipeline")
        if self.work.of(value) is None and op.name != "tile_for":
            return self.computed(value, layout)
        if self.product is None:
            raise CompilerBug(f"{value} is no number of the tile")
        return self.product(op)

    def by_operation(self, op: Op, value: Value, layout: FragmentLayout) -> LazyTile:
        rule = _RULES.get(op.name)
        return rule(self, op, layout) if rule else super().by_operation(op, value, layout)

    def known(self, value: Value) -> bool:
        """Whether a mask is true in all elements."""
        op = value.op
        if value in self.holds:
            return True
        if op is None:
            return False
        if op.name == "and" or op.definition.views:
            return all(map(self.known, op.operands))
        return is_splat(op) and value.element.is_bool and bool(splat_of(value))

    # Rules.

    def _compare(self, op: Op, layout: FragmentLayout) -> LazyTile:
        """Of positions: one number a row, and a constant a column."""
        predicate = _PREDICATES.get(op.comparison_direction)
        if self.place is None or not op.result.rank:
            return self.elementwise(op, layout)
        left, right = (linear(self.work.offsets, operand) for operand in op.operands)
        if left is None or right is None or predicate is None:
            return self.elementwise(op, layout)
        (a, a_steps), (b, b_steps) = left, right
        base = a.plus(b, -1)
        low, high = self.work.offsets.range(base)
        near = surely_below(-low, 2**30) and surely_below(high, 2**30)
        if not near:  # the difference might wrap around
            return self.elementwise(op, layout)
        if any(is_row(role) and role != ROW for role in layout.roles):
            return self.elementwise(op, layout)
        steps = {ROW: 0, COLUMN: 0, "": 0}
        for role, one, other in zip(layout.roles, a_steps, b_steps, strict=True):
            steps[role] += one - other
        f, place = self.f, self.place

        def start(row: int) -> Element:
            total = self.sum(base, "i32")
            total = f.add(total, f.mul(place.column, steps[COLUMN]))
            return f.add(total, f.mul(self.row(row), steps[ROW])) if steps[ROW] else total

        def fetch(row: int, column: int) -> Element:
            here = self.once((op, row, "difference"), lambda: start(row))
            return f.compare(predicate, here, -steps[COLUMN] * column)

        return self.fetched(layout, fetch)

    def _select(self, op: Op, layout: FragmentLayout) -> LazyTile:
        value = resolved(op.result, self.known)
        if value is not op.result and value.dims == op.result.dims:
            return self.tile(value, layout)
        return self.elementwise(op, layout)

    def row(self, row: int) -> Element:
        """Where a row of the thread stands in the tile."""
        assert self.place is not None
        start = self.place.row
        return self.once(("row", row), lambda: self.f.add(start, row))

    def along(self, role: str, row: int, column: int) -> Element | None:
        """Where a thread's element stands along a dim of that role; None at its only place."""
        f, place = self.f, self.place
        if role == COLUMN:
            assert place is not None
            return self.once(("column", column), lambda: f.add(place.column, column))
        if not is_row(role) or role == ROW:
            return self.row(row) if role == ROW else None
        stride, size, rows = part_of(role, 0)

        def part() -> Element:
            at = f.udiv(self.row(row), stride)
            return f.urem(at, size) if stride * size < rows else at

        return self.once((role, row), part)

    def _convert(self, op: Op, layout: FragmentLayout) -> LazyTile:
        element, source_element = op.result.element, op.operands[0].element
        if element not in _HALVES or source_element is not F32:
            return self.elementwise(op, layout)
        f = self.f
        source = self.tile(op.operands[0], layout)
        kind = _HALVES[element]

        def word(number: int) -> Element:
            return pack(f, source[number], source[number + 1], kind)

        def narrow(number: int) -> Element:
            return f.cast("fpext", f.cast("fptrunc", source[number], kind), "float")

        return self.registers(layout, narrow, word if layout.columns > 1 else None)

    def _function(self, op: Op, layout: FragmentLayout) -> LazyTile:
        """Transcendental functions, by the special function unit where they may."""
        f, element = self.f, op.result.element
        if APPROXIMATE not in op.attributes or (element is not F32 and element not in _HALVES):
            return self.elementwise(op, layout)
        rule = FUNCTIONS[op.name]
        source = self.tile(op.operands[0], layout)
        return self.registers(layout, lambda n: elements.rounded(f, rule(f, source[n]), element))

    def _subtract(self, op: Op, layout: FragmentLayout) -> LazyTile:
        """x * c - y in one instruction, where it may be rounded once."""
        f = self.f
        scaled = multiple_of(resolved(op.operands[0], self.known))
        if APPROXIMATE not in op.attributes or scaled is None:
            return self.elementwise(op, layout)
        factor = llvm.constant("float", scaled[1])
        left, right = self.tile(scaled[0], layout), self.tile(op.operands[1], layout)
        return self.registers(layout, lambda n: f.fma(left[n], factor, f.neg(right[n])))

    def _divide(self, op: Op, layout: FragmentLayout) -> LazyTile:
        """By what is the same along a row: one reciprocal, then products, where it may."""
        if APPROXIMATE not in op.attributes:
            return self.elementwise(op, layout)
        f = self.f
        left = self.tile(op.operands[0], layout)
        spread = op.operands[1].op
        if spread is None or spread.name != "broadcast_in_dim" or COLUMN not in layout.roles:
            return self.elementwise(op, layout)
        inner, numbers = layout.operand(spread)
        if inner.columns != 1:
            return self.elementwise(op, layout)
        below = self.tile(spread.operands[0], inner)
        one = llvm.constant("float", 1.0)
        rows = self.registers(inner, lambda n: f.div(one, below[n]))
        return self.registers(layout, lambda n: f.mul(left[n], rows[numbers[n]]))

    def _reduce(self, op: Op, layout: FragmentLayout) -> LazyTile:
        """Along columns: the thread's own first, then those of the four lanes of a row."""
        f, reduction = self.f, Reduction(op)
        inner, _ = layout.operand(op)
        operand, factor = resolved(op.operands[0], self.known), 1.0
        assert reduction.single is not None
        extreme = reduction.single.definition.idempotent
        scaled = multiple_of(operand) if extreme else None
        if scaled is not None and scaled[1] > 0 and op.result.element is F32:
            operand, factor = scaled  # the largest of products is the product of the largest
        source = self.tile(operand, inner)
        own: dict[int, list[int]] = {}
        for number, place in enumerate(inner.places):
            own.setdefault(layout.register(*place), []).append(number)

        def total(number: int) -> Register:
            parts = (reduction.read(f, [source[one]])[0] for one in own[number])
            found = across(f, reduction, joined(f, reduction, parts, _CHAINS), summed)
            if factor != 1.0:
                found = f.mul(plain(found), factor)
            return concluded(f, reduction, found, self.number)

        summed = layout.copies & ~inner.copies
        return self.registers(layout, total)

    def _load(self, op: Op, layout: FragmentLayout) -> LazyTile:
        """A window that was brought, or straight from global memory."""
        if op in self.arrived:
            return self.fetched(layout, self.arrived[op])
        return loaded(self, WindowAccess(self, op, op.result, layout))


_RULES: dict[str, Callable[[FragmentEvaluator, Op, FragmentLayout], LazyTile]] = {
    "convert": FragmentEvaluator._convert,
    "exponential": FragmentEvaluator._function,
    "logistic": FragmentEvaluator._function,
    "tanh": FragmentEvaluator._function,
    "subtract": FragmentEvaluator._subtract,
    "select": FragmentEvaluator._select,
    "compare": FragmentEvaluator._compare,
    "divide": FragmentEvaluator._divide,
    "reduce": FragmentEvaluator._reduce,
    "tile_load": FragmentEvaluator._load,
}
