"""Tile values in the registers of a warp group, as the results of `wgmma` lie there (fragment.py).

So lies every other tile value; what has no rows is the same in all rows, what has no columns the
same in all columns. Elements are computed when they are asked for, and once in each scope.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ....hlo.deciding import surely_below
from ....hlo.errors import CompilerBug
from ....hlo.graph import APPROXIMATE, Op, Value, constant_of
from ....hlo.offsets import Offset
from ....hlo.ops.bodies import monoid
from ....hlo.positions import linear
from ....hlo.types import BF16, F16, F32, I32
from ... import llvm
from ...llvm import Function, arithmetic, elements
from ..frame import shuffle
from . import fragment
from .functions import FUNCTIONS, folded, multiple_of, plain, resolved
from .instructions import pack
from .roles import through
from .windows import WindowAddresses
from .work import COLUMN, ROW, PipelineWork, Roles, is_row, part_of, splat_of

Element = llvm.Value
Fetch = Callable[[int, int], Element]

_HALVES = {BF16: "bfloat", F16: "half"}
_PREDICATES = {"EQ": "eq", "NE": "ne", "GE": "sge", "GT": "sgt", "LE": "sle", "LT": "slt"}
_CHAINS = 4  # independent sums of a thread


@dataclass(frozen=True)
class ThreadPosition:
    """Where a thread stands in its tile: i32 of its first row and its first column, and how many
    rows its warp group has."""

    row: Element
    column: Element
    rows: int


class Registers:
    """One tile value of a thread: `rows` x `columns` elements, 1 where it is the same in all."""

    _serials = itertools.count()

    def __init__(
        self, owner: Evaluator, rows: int, columns: int, fetch: Fetch, word: Fetch | None = None
    ) -> None:
        self.owner, self.rows, self.columns = owner, rows, columns
        self._fetch, self._word = fetch, word
        self._mark = owner.function.mark  # of the operation that elements are computed for
        self._serial = next(Registers._serials)

    def at(self, i: int, j: int) -> Element:
        """The element in the register form of its type."""
        i, j = min(i, self.rows - 1), min(j, self.columns - 1)
        return self.owner.once((self._serial, i, j), lambda: self._marked(self._fetch, i, j))

    def word(self, i: int, pair: int, element: Any) -> Element:
        """Two neighbours of a row as 16-bit floats in one word."""
        word = self._word
        if word is not None:
            key = self._serial, i, pair, "word"
            return self.owner.once(key, lambda: self._marked(word, i, pair))
        f, kind = self.owner.function, _HALVES[element]
        return pack(f, self.at(i, 2 * pair), self.at(i, 2 * pair + 1), kind)

    def _marked(self, fetch: Fetch, i: int, j: int) -> Element:
        function = self.owner.function
        outer, function.mark = function.mark, self._mark
        found = fetch(i, j)
        function.mark = outer
        return found

    def all(self) -> list[Element]:
        """Every element, in the order of accumulators where it has rows and columns."""
        if self.rows > 1 and self.columns > 1:
            return [self.at(i, j) for i, j in fragment.order(self.rows, self.columns)]
        return [self.at(i, j) for i in range(self.rows) for j in range(self.columns)]


class Evaluator:
    """Computes tile values of one role of a kernel.

    `bound` values (what loops carry, ids of tiles) are given; `products` gives what a product is.
    Without a place only numbers can be computed.
    """

    def __init__(
        self,
        function: Function,
        work: PipelineWork,
        pointers: dict[int, Element],
        place: ThreadPosition | None,
    ) -> None:
        self.function, self.work, self.pointers, self.place = function, work, pointers, place
        self.scopes: list[dict[Any, Any]] = [{}]
        self.product: Callable[[Op, Roles], Registers] | None = None
        self.ids: Sequence[Element] = ()  # of the tile, along each axis of the grid
        self.arrived: dict[Op, Registers] = {}  # windows that the copy engine has brought
        self.holds: frozenset[Value] = frozenset()  # masks that are true in all elements here

    # Scopes: what is computed inside one is forgotten behind it.

    @contextmanager
    def scope(self) -> Iterator[None]:
        self.scopes.append({})
        yield
        self.scopes.pop()

    def once(self, key: Any, compute: Callable[[], Any]) -> Any:
        for scope in reversed(self.scopes):
            if key in scope:
                return scope[key]
        found = compute()
        self.scopes[-1][key] = found
        return found

    def bind(self, value: Value, registers: Registers) -> None:
        self.scopes[-1][(value, self.roles(value))] = registers

    def roles(self, value: Value) -> Roles:
        return self.work.roles.get(value, ("",) * value.rank)

    def counts(self, value: Value, roles: Roles) -> tuple[int, int]:
        """Rows and columns of a thread."""
        rows = columns = 1
        for size, role in zip(value.dims, roles, strict=True):
            if is_row(role) and self.place is not None:
                rows = fragment.rows(self.place.rows)
            elif role == COLUMN:
                columns = fragment.columns(size)
        return rows, columns

    def given(self, value: Value, found: Sequence[Element]) -> Registers:
        """Registers of elements that stand in the order of `Registers.all`."""
        rows, columns = self.counts(value, self.roles(value))
        if rows > 1 and columns > 1:
            table = dict(zip(fragment.order(rows, columns), found, strict=True))
        else:
            places = [(i, j) for i in range(rows) for j in range(columns)]
            table = dict(zip(places, found, strict=True))
        return Registers(self, rows, columns, lambda i, j: table[i, j])

    def scalar(self, value: Value) -> Element:
        """A value that all threads share."""
        return self.tile(value, ("",) * value.rank).at(0, 0)

    def tile(self, value: Value, roles: Roles | None = None) -> Registers:
        """The registers of a value."""
        wanted = self.roles(value) if roles is None else roles
        return self.once((value, wanted), lambda: self._tile(value, wanted))

    def _tile(self, value: Value, roles: Roles) -> Registers:
        with self.function.within(value.op):
            return self._made(value, roles)

    def _made(self, value: Value, roles: Roles) -> Registers:
        op = value.op
        if op is None:
            raise CompilerBug(f"nothing gives {value} in a pipeline")
        if self.work.of(value) is not None or op.name == "tile_for":
            if self.product is None:
                raise CompilerBug(f"{value} is no number of the tile")
            return self.product(op, roles)
        rule = _RULES.get(op.name)
        if rule is not None:
            return rule(self, op, roles)
        return self._elementwise(op, roles)

    def known(self, value: Value) -> bool:
        """Whether a mask is true in all elements."""
        op = value.op
        if value in self.holds:
            return True
        if op is None:
            return False
        if op.name in ("and", "broadcast_in_dim", "reshape", "transpose"):
            return all(map(self.known, op.operands))
        return op.name == "constant" and value.element.is_bool and bool(splat_of(value))

    def _make(self, value: Value, roles: Roles, fetch: Fetch) -> Registers:
        rows, columns = self.counts(value, roles)
        return Registers(self, rows, columns, fetch)

    # Rules.

    def _elementwise(self, op: Op, roles: Roles) -> Registers:
        operands = [
            self.tile(v, roles if v.rank == len(roles) else ("",) * v.rank) for v in op.operands
        ]
        return self._make(
            op.result, roles,
            lambda i, j: plain(
                arithmetic.apply(self.function, op, [one.at(i, j) for one in operands])
            ),
        )  # fmt: skip

    def _compare(self, op: Op, roles: Roles) -> Registers:
        """Of positions: one number a row, and a constant a column."""
        predicate = _PREDICATES.get(op.comparison_direction)
        if self.place is None or not op.result.rank:
            return self._elementwise(op, roles)
        left, right = (linear(self.work.offsets, operand) for operand in op.operands)
        if left is None or right is None or predicate is None:
            return self._elementwise(op, roles)
        (a, a_steps), (b, b_steps) = left, right
        base = a.plus(b, -1)
        low, high = self.work.offsets.range(base)
        near = surely_below(-low, 2**30) and surely_below(high, 2**30)
        if not near:  # the difference might wrap around
            return self._elementwise(op, roles)
        if any(is_row(role) and role != ROW for role in roles):
            return self._elementwise(op, roles)
        steps = {ROW: 0, COLUMN: 0, "": 0}
        for role, one, other in zip(roles, a_steps, b_steps, strict=True):
            steps[role] += one - other
        f, place = self.function, self.place

        def start(i: int) -> Element:
            total = self.offset(base)
            total = f.add(total, f.mul(place.column, steps[COLUMN]))
            return f.add(total, f.mul(self.row(i), steps[ROW])) if steps[ROW] else total

        def fetch(i: int, j: int) -> Element:
            here = self.once((op, i, "difference"), lambda: start(i))
            return f.compare(predicate, here, -steps[COLUMN] * fragment.column(j))

        return self._make(op.result, roles, fetch)

    def offset(self, offset: Offset) -> Element:
        """The i32 of a sum of numbers."""
        f = self.function
        total: Element = f.constant("i32", offset.constant)
        for variable, factor in offset.terms:
            total = f.add(total, f.mul(self.scalar(variable), factor))
        return total

    def _select(self, op: Op, roles: Roles) -> Registers:
        value = resolved(op.result, self.known)
        if value is not op.result and value.dims == op.result.dims:
            return self.tile(value, roles)
        return self._elementwise(op, roles)

    def _constant(self, op: Op, roles: Roles) -> Registers:
        dense = constant_of(op.result)
        assert dense is not None
        number = plain(elements.register_constant(dense.type.element, dense.splat_value, 1))
        return Registers(self, 1, 1, lambda i, j: number)

    def _iota(self, op: Op, roles: Roles) -> Registers:
        role = roles[op.iota_dimension]
        element = op.result.element

        def fetch(i: int, j: int) -> Element:
            place = self.along(role, i, j)
            number = place if place is not None else llvm.constant("i32", 0)
            return plain(arithmetic.convert(self.function, number, I32, element))

        return self._make(op.result, roles, fetch)

    def row(self, i: int) -> Element:
        """The tile's row of a thread's row."""
        assert self.place is not None
        start = self.place.row
        return self.once(("row", i), lambda: self.function.add(start, fragment.row(i)))

    def along(self, role: str, i: int, j: int) -> Element | None:
        """Where a thread's element stands along a dim of that role; None at its only place."""
        if role == COLUMN:
            return self.column(j)
        if not is_row(role) or role == ROW:
            return self.row(i) if role == ROW else None
        stride, size, rows = part_of(role, 0)
        f = self.function

        def place() -> Element:
            row = f.udiv(self.row(i), stride)
            return f.urem(row, size) if stride * size < rows else row

        return self.once((role, i), place)

    def column(self, j: int) -> Element:
        assert self.place is not None
        start = self.place.column
        return self.once(("column", j), lambda: self.function.add(start, fragment.column(j)))

    def _moved(self, op: Op, roles: Roles) -> Registers:
        """Dims that change their places change nothing in registers."""
        source = self.tile(op.operands[0], through(op, roles, False))
        rows, columns = self.counts(op.result, roles)
        return Registers(self, rows, columns, source.at, source._word)

    def _convert(self, op: Op, roles: Roles) -> Registers:
        element, source_element = op.result.element, op.operands[0].element
        if element not in _HALVES or source_element is not F32:
            return self._elementwise(op, roles)
        f = self.function
        source = self.tile(op.operands[0], roles)
        kind = _HALVES[element]

        def word(i: int, pair: int) -> Element:
            return pack(f, source.at(i, 2 * pair), source.at(i, 2 * pair + 1), kind)

        def fetch(i: int, j: int) -> Element:
            narrow = f.cast("fptrunc", source.at(i, j), kind)
            return f.cast("fpext", narrow, "float")

        rows, columns = self.counts(op.result, roles)
        if columns == 1:
            return Registers(self, rows, columns, fetch)
        return Registers(self, rows, columns, fetch, word)

    def _function(self, op: Op, roles: Roles) -> Registers:
        """Transcendental functions, by the special function unit where they may."""
        f, element = self.function, op.result.element
        if APPROXIMATE not in op.attributes or (element is not F32 and element not in _HALVES):
            return self._elementwise(op, roles)
        rule = FUNCTIONS[op.name]
        source = self.tile(op.operands[0], roles)

        def fetch(i: int, j: int) -> Element:
            return elements.rounded(f, rule(f, source.at(i, j)), element)

        return self._make(op.result, roles, fetch)

    def _subtract(self, op: Op, roles: Roles) -> Registers:
        """x * c - y in one instruction, where it may be rounded once."""
        f = self.function
        scaled = multiple_of(resolved(op.operands[0], self.known))
        if APPROXIMATE not in op.attributes or scaled is None:
            return self._elementwise(op, roles)
        factor = llvm.constant("float", scaled[1])
        left, right = self.tile(scaled[0], roles), self.tile(op.operands[1], roles)
        return self._make(
            op.result, roles, lambda i, j: f.fma(left.at(i, j), factor, f.neg(right.at(i, j)))
        )

    def _divide(self, op: Op, roles: Roles) -> Registers:
        """By what is the same along a row: one reciprocal, then products, where it may."""
        if APPROXIMATE not in op.attributes:
            return self._elementwise(op, roles)
        f = self.function
        left = self.tile(op.operands[0], roles)
        spread = op.operands[1].op
        if spread is None or spread.name != "broadcast_in_dim" or COLUMN not in roles:
            return self._elementwise(op, roles)
        inner = self.tile(spread.operands[0], through(spread, roles, False))
        if inner.columns != 1:
            return self._elementwise(op, roles)
        one = llvm.constant("float", 1.0)
        rows = Registers(self, inner.rows, 1, lambda i, j: f.div(one, inner.at(i, 0)))
        return self._make(op.result, roles, lambda i, j: f.mul(left.at(i, j), rows.at(i, 0)))

    def _reduce(self, op: Op, roles: Roles) -> Registers:
        """Along columns: the thread's own first, then those of the four lanes of a row."""
        f = self.function
        inner = through(op, roles, False)
        initial = self.scalar(op.operands[1])
        columns = self.counts(op.operands[0], inner)[1]
        element = op.result.element
        name = monoid(op.regions[0])
        operand, factor = resolved(op.operands[0], self.known), 1.0
        scaled = multiple_of(operand) if name in ("maximum", "minimum") else None
        if scaled is not None and scaled[1] > 0 and element is F32:
            operand, factor = scaled  # the largest of products is the product of the largest
        source = self.tile(operand, inner)

        def join(a: Element, b: Element) -> Element:
            return folded(f, name, element, a, b)

        along = COLUMN in inner and COLUMN not in roles

        def fetch(i: int, j: int) -> Element:
            if not along:
                one = source.at(i, j)
                return join(one if factor == 1.0 else f.mul(one, factor), initial)
            chains: list[Element] = []
            for column in range(columns):
                one = source.at(i, column)
                if column < _CHAINS:
                    chains.append(one)
                else:
                    chains[column % _CHAINS] = join(chains[column % _CHAINS], one)
            while len(chains) > 1:
                chains = [
                    join(*chains[n : n + 2]) if n + 1 < len(chains) else chains[n]
                    for n in range(0, len(chains), 2)
                ]
            total = chains[0]
            for distance in (1, 2):
                total = join(total, shuffle(f, "bfly", total, distance))
            if factor != 1.0:
                total = f.mul(total, factor)
            total = join(total, initial)
            return elements.rounded(f, total, element) if element.is_float else total

        return self._make(op.result, roles, fetch)

    def _bound(self, op: Op, roles: Roles) -> Registers:
        number = self.function.constant("i32", op.size)
        return Registers(self, 1, 1, lambda i, j: number)

    def _tile_id(self, op: Op, roles: Roles) -> Registers:
        number = self.ids[op.axis]
        return Registers(self, 1, 1, lambda i, j: number)

    def _load(self, op: Op, roles: Roles) -> Registers:
        """A window that was brought, or straight from global memory, element for element or in
        pairs of columns."""
        if op in self.arrived:
            return self.arrived[op]
        f, memory = self.function, op.operands[0]
        element = memory.element
        kind = elements.memory_type(f, element)
        window = WindowAddresses(self, memory, op.offsets, op.sizes, roles)
        base = self.pointers[memory.index]
        fill = plain(elements.register_constant(element, element.dtype.type(op.fill), 1))

        def pair(i: int, first: int) -> Element:
            index, inside = window.at(i, first)
            if inside is not None:
                index = f.select(inside, index, 0)
            address = f.pointer(base, index, kind)
            both = f.load(llvm.vector(2, kind), address, align=2 * llvm.bits_of(kind) // 8)
            return both

        def fetch(i: int, j: int) -> Element:
            index, inside = window.at(i, j)
            if window.pairs:
                key = window, "pair", i, j // 2
                both = self.once(key, lambda: pair(i, j - j % 2))
                raw = f.extract(both, j % 2)
            else:
                if inside is not None:
                    index = f.select(inside, index, 0)
                raw = f.load(kind, f.pointer(base, index, kind))
            found = plain(elements.widen(f, raw, element))
            return found if inside is None else f.select(inside, found, fill)

        return self._make(op.result, roles, fetch)


_RULES: dict[str, Callable[[Evaluator, Op, Roles], Registers]] = {
    "constant": Evaluator._constant,
    "iota": Evaluator._iota,
    "broadcast_in_dim": Evaluator._moved,
    "reshape": Evaluator._moved,
    "transpose": Evaluator._moved,
    "convert": Evaluator._convert,
    "exponential": Evaluator._function,
    "logistic": Evaluator._function,
    "tanh": Evaluator._function,
    "subtract": Evaluator._subtract,
    "select": Evaluator._select,
    "compare": Evaluator._compare,
    "divide": Evaluator._divide,
    "reduce": Evaluator._reduce,
    "tile_bound": Evaluator._bound,
    "tile_id": Evaluator._tile_id,
    "tile_load": Evaluator._load,
}
