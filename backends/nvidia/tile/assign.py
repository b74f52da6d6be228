"""Which layout each value of a tile function has, and how many threads a block has.

Products decide first: the sums of matrix instructions lie as the machine has it. An elementwise
operation takes the layout of an operand, sums of rows take the slice of their operand, loads of
memory take what their first user has. Constants, indices and broadcasts have no layout: they are
made in whatever layout they are asked for, and so is what is computed from them alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from ....hlo.graph import Op, Region, Value
from ....optimizer.asynchronous.work import shape
from ...llvm import elements
from ..atoms import ACCESS_BYTES
from ..evaluator import is_elementwise, is_splat
from ..target import WARP, NvidiaTarget
from . import matrix
from .analysis import Facts, OperandSource
from .distributed_layout import DistributedLayout, blocked, log2, patches
from .matrix import ProductLowering
from .operands import copies_as_it_lies
from .patches import plan as rows_plan

ELEMENTS = 16  # of the largest tile, that a thread holds where there are threads enough
MOST_ELEMENTS = 64  # of a tile, before a block gets more than THREADS threads
THREADS = 256


def moves_dims(op: Op) -> bool:
    """Whether each element of the operand is one of the result's."""
    return op.definition.views == "once"


def repeats(op: Op) -> bool:
    """Whether any thread has its elements without a conversion: numbers, and what is repeated."""
    return is_splat(op) or op.name == "iota" or op.definition.views == "repeated"


class Assignment:
    """`threads` of a block; `tile_layouts` of values, where a flexible value has none; `products`:
    those whose operands lie in rows of shared memory, by matrix instructions or not."""

    def __init__(self, facts: Facts, target: NvidiaTarget) -> None:
        self.facts, self.target = facts, target
        self.vectors = self._vectors()
        self.products: dict[Op, ProductLowering] = {}
        self.chained = self._chained()
        self.threads = self._threads()
        self._plan_products()
        self.fused = self._sums()
        self.direct = self._direct()
        self.skipped = frozenset(
            move for source in self._sources if self.goes_direct(source) for move in source.moves
        )
        self.tile_layouts: dict[Value, DistributedLayout] = {}
        self.stages: dict[Op, int] = {}  # of the rings of loops, as shared memory has room for
        self._loads: list[Value] = []
        self._region(facts.region)
        for value in self._loads:
            self.tile_layouts.setdefault(value, self.blocked(value.dims))

    def blocked(self, dims: Sequence[int]) -> DistributedLayout:
        """The layout for coalesced access of a tile of these dims."""
        return blocked(dims, self.vectors.get(tuple(dims), 4), self.threads)

    def _vectors(self) -> dict[tuple[int, ...], int]:
        """Elements of 16 bytes of the narrowest type that tiles of some dims have in memory."""
        found: dict[tuple[int, ...], int] = {}
        for op in self.facts.region.walk():
            values = op.results if op.definition.loads else op.operands[1:2]
            if op.definition.loads or op.definition.stores:
                for value in values:
                    width = max(1, ACCESS_BYTES // value.element.itemsize)
                    found[value.dims] = max(found.get(value.dims, 1), width)
        return found

    def _threads(self) -> int:
        largest = 1
        windows = self._windows_of_products()
        for op in self.facts.region.walk():
            if op.name == "constant":
                continue
            for value in op.results:
                if value.rank and value not in windows:
                    largest = max(largest, math.prod(1 << log2(n) for n in value.dims))
        threads = max(WARP, min(THREADS, 1 << log2(-(-largest // ELEMENTS))))
        if self.chained:
            # Each warp has rows of its own, and no two have the same.
            rows = max(product.rows for product in self.facts.products)
            threads = max(WARP, min(threads, WARP * (1 << log2(-(-rows // 16)))))
        while threads < 1024 and largest // threads > MOST_ELEMENTS:
            threads *= 2
        return threads

    @cached_property
    def _sources(self) -> list[OperandSource]:
        """Where operands of products come from."""
        return [one for product in self.facts.products for one in (product.left, product.right)]

    def _windows_of_products(self) -> set[Value]:
        """Operands that go from memory to shared memory: no thread has them in registers."""
        loads = [one for one in self._sources if one.window is not None]
        found = {move.result for one in loads for move in one.moves}
        return found | {one.window.op.result for one in loads if one.window is not None}

    def is_flexible(self, op: Op) -> bool:
        """Whether the value is made in any layout at no cost worth a conversion."""
        if repeats(op):
            return True
        moves = moves_dims(op) or is_elementwise(op)
        return moves and op.result not in self.tile_layouts

    def goes_direct(self, source: OperandSource) -> bool:
        """Whether an operand goes from memory to shared memory past registers."""
        return source.window is not None and source.window.op in self.direct

    def _chained(self) -> bool:
        """Whether a product takes what another gave: rows stay in their warps then, so that no
        warp asks another for anything."""
        products = [
            product
            for product in self.facts.products
            if matrix.plan(product, self.target, 1, False) is not None
        ]
        made = {product.op.result for product in products}
        return any(self._reaches(product.left.origin, made, 0) for product in products)

    def _plan_products(self) -> None:
        for product in self.facts.products:
            found = matrix.plan(product, self.target, self.threads // WARP, self.chained)
            found = found or rows_plan(product, self.target, self.threads)
            if found is not None:
                self.products[product.op] = found

    @property
    def crowded(self) -> bool:
        """Whether a thread's sums and what is multiplied into them fill its registers."""
        return any(
            plan.atom is None and len(plan.sums.alive) >= MOST_ELEMENTS
            for plan in self.products.values()
        ) or any(op.name == "convolution" for op in self.facts.region.walk())

    def _reaches(self, value: Value, made: set[Value], depth: int) -> bool:
        if value in made:
            return True
        op = value.op
        if op is None or depth > 16 or not is_elementwise(op):
            return False
        return any(self._reaches(operand, made, depth + 1) for operand in op.operands)

    def _sums(self) -> dict[Op, Op]:
        """Additions whose product starts from what it is added to, and their products."""
        found: dict[Op, Op] = {}
        for region in self._regions:
            for op in region.ops:
                if op.name != "dot_general" or elements.is_rounded(op.result.element):
                    continue
                users = region.uses.get(op.result, ())
                if len(users) != 1 or users[0][0] is None or not op.result.rank:
                    continue
                user = users[0][0]
                if user.name == "add" and user in region.ops and user not in found:
                    found[user] = op
        return found

    def _direct(self) -> frozenset[Op]:
        """Loads that matrix products alone read: they go to shared memory past registers."""
        inputs = set(self.facts.inputs)
        operands = [operand for plan in self.products.values() for operand in plan.operands]
        windows = [(one, one.source.window) for one in operands]
        origins = {window.op for _, window in windows if window is not None}
        others = {window.op for one, window in windows if window and not copies_as_it_lies(one)}
        return frozenset(
            op
            for op in origins - others
            if op.operands[0] in inputs and op.fill == 0 and self._feeds_products(op.result)
        )

    def _feeds_products(self, value: Value) -> bool:
        owner = value.op
        regions = [r for r in self._regions if owner in r.ops]
        for region in regions:
            if value in region.results or any(
                value in inner.captures() for op in region.ops for inner in op.regions
            ):
                return False
            for user, _ in region.uses.get(value, ()):
                if user in self.products:
                    continue
                if user not in self._moves or not self._feeds_products(user.result):
                    return False
        return True

    @cached_property
    def _moves(self) -> frozenset[Op]:
        """What a copy of a window to shared memory has done: what moves its elements on the way to
        products."""
        return frozenset(move for source in self._sources for move in source.moves)

    @cached_property
    def _regions(self) -> list[Region]:
        inner = [region for op in self.facts.region.walk() for region in op.regions]
        return [self.facts.region, *inner]

    # Layouts, in the order of the program.

    def _region(self, region: Region) -> None:
        for op in region.ops:
            self._op(op)

    def _op(self, op: Op) -> None:
        if op.definition.loops:
            self._loop(op)
        elif op.definition.flow == "branch":
            self._branches(op)
        elif op.definition.stores:
            self._anchor(op.operands[1])
        elif op.results and all(value.rank == 0 for value in op.results):
            self._scalars(op)
        elif op.definition.loads:
            self._loads.append(op.result)
        elif repeats(op):
            pass
        elif moves_dims(op):
            self._move(op)
        elif op.name == "reduce":
            self._reduce(op)
        elif op in self.products:
            self.tile_layouts[op.result] = self.products[op].sums
        elif op.definition.pattern == "contract":
            self.tile_layouts[op.result] = patches(op.result.dims, self.threads)
        elif is_elementwise(op):
            self._elementwise(op)
        else:
            for value in op.results:
                self.tile_layouts[value] = self.blocked(value.dims)

    def _scalars(self, op: Op) -> None:
        if op.name == "reduce":
            for value in op.operands[: len(op.results)]:
                self._anchor(value)

    def _anchor(self, value: Value) -> DistributedLayout:
        """The layout of a value, decided now if it is open."""
        found = self.tile_layouts.get(value)
        if found is None:
            found = self.tile_layouts[value] = self.blocked(value.dims)
        return found

    def _is_open(self, value: Value) -> bool:
        """Whether it is memory that can be loaded in any layout."""
        return value.op is not None and value.op.definition.loads

    def _elementwise(self, op: Op) -> None:
        known = [self.tile_layouts[value] for value in op.operands if value in self.tile_layouts]
        opened = [
            v for v in op.operands if v.rank and v not in self.tile_layouts and self._is_open(v)
        ]
        if not known and not opened:
            return
        chosen = self._best(known) if known else self.blocked(op.result.dims)
        for value in opened:
            self.tile_layouts[value] = chosen
        self.tile_layouts[op.result] = chosen

    def _best(self, tile_layouts: Sequence[DistributedLayout]) -> DistributedLayout:
        """That of a matrix product if there is one, else the first."""
        sums = {found.sums for found in self.products.values()}
        return next((one for one in tile_layouts if one in sums), tile_layouts[0])

    def _move(self, op: Op) -> None:
        operand = op.operands[0]
        if operand not in self.tile_layouts:
            if operand.rank and self._is_open(operand):
                self._anchor(operand)
            elif operand.rank == 0 or op.name == "transpose" or shape(operand) == shape(op.result):
                return
        source = self.tile_layouts.get(operand) or self.blocked(operand.dims)
        if op.name == "transpose":
            moved = source.permuted(op.permutation)
        else:
            moved = source.reshaped(op.result.dims)
        self.tile_layouts[op.result] = moved or self.blocked(op.result.dims)

    def _reduce(self, op: Op) -> None:
        count = len(op.results)
        source = self._anchor(op.operands[0])
        for value in op.operands[1:count]:
            self.tile_layouts.setdefault(value, source)
        for value in op.results:
            self.tile_layouts[value] = source.without(op.dimensions)[0]

    # Control flow: carried values keep their layout.

    def _loop(self, op: Op) -> None:
        skip = 2 if op.name == "tile_for" else 0
        body = op.regions[-1]
        inside = [region.arguments[min(skip, 1) :] for region in op.regions]
        carried: dict[int, DistributedLayout] = {}
        for number, value in enumerate(op.operands[skip:]):
            if value.rank and value in self.tile_layouts and not self._is_open(value):
                carried[number] = self.tile_layouts[value]
        for _ in range(3):
            before = dict(carried)
            for arguments in inside:
                for number, layout in carried.items():
                    self.tile_layouts[arguments[number]] = layout
            for region in op.regions:
                self._region(region)
            for number, value in enumerate(body.results):
                if value.rank and value in self.tile_layouts:
                    own = self.tile_layouts[value]
                    carried[number] = self._best([carried.get(number, own), own])
            if carried == before:
                break
        for number, value in enumerate(body.results):
            if value.rank:
                layout = carried.setdefault(number, self.blocked(value.dims))
                self.tile_layouts[op.results[number]] = layout
                for arguments in inside:
                    self.tile_layouts[arguments[number]] = layout

    def _branches(self, op: Op) -> None:
        for region in op.regions:
            self._region(region)
        for number, result in enumerate(op.results):
            if result.rank:
                sides = [region.results[number] for region in op.regions]
                known = [
                    self.tile_layouts[value]
                    for value in sides
                    if value in self.tile_layouts and not self._is_open(value)
                ]
                self.tile_layouts[result] = (
                    self._best(known) if known else self.blocked(result.dims)
                )
