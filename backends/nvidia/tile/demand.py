"""How much shared memory a tile function needs at most, asked before it is emitted.

Pieces are placed first fit (`shared.Arena`): each at the beginning, or behind one that is there. So
one ends no later than the heaviest chain of pieces, of which each was placed when the next was
there. What code may need is counted as needed, until its region ends: more pieces, or longer ones,
make no chain lighter.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from ....hlo.deciding import largest
from ....hlo.graph import Op, Region, Value
from ...llvm import elementwise
from ...plain.monoid import Reduction
from ...plain.opaque import WITH_SCRATCH
from ...plain.single import as_region, explained
from ..atoms import ACCESS_BYTES, thread_copy
from ..evaluator import is_elementwise
from ..plain import opaque
from ..target import WARP
from .assign import Assignment
from .block_wide import SLOT, simpler
from .distributed_layout import DistributedLayout, conversion, layout_of, padded, way
from .exchange import stored
from .matrix import ProductLowering
from .operands import ProductOperand
from .reduce import summed_bytes
from .shared import ALIGNMENT, LINE, bytes_of

MOST_STAGES = 4  # of a ring
SHARE = 2  # blocks that a multiprocessor should hold at once


class RunningAhead(NamedTuple):
    """The operands whose windows a loop can load ahead, and how many stages they are worth."""

    operands: tuple[ProductOperand, ...]
    stages: int


def running_ahead(assignment: Assignment, op: Op) -> RunningAhead | None:
    """What of a loop can run ahead; None where nothing can. Fewer than two stages are none, unless
    there is room for two."""
    architecture = assignment.target.architecture
    if thread_copy(architecture, "global", "shared", ACCESS_BYTES) is None:
        return None
    facts, body = assignment.facts, op.regions[0]
    trips = facts.trips(op)
    if trips is not None and trips < 2:
        return None
    found: dict[Op, ProductOperand] = {}
    for plan in assignment.products.values():
        for operand in plan.operands if plan.product.op in body.ops else ():
            window = operand.source.window
            if window is None or window.op not in assignment.direct or window.op not in body.ops:
                continue
            if facts.follows(window, op):
                found.setdefault(window.op, operand)
    if not found:
        return None
    operands = tuple(found.values())
    total = sum(bytes_of(operand.tile, operand.size) for operand in operands)
    stages = min(MOST_STAGES, architecture.shared_bytes // SHARE // total)
    return RunningAhead(operands, stages if trips is None else min(stages, trips))


class Demand:
    """`bytes` of a block at most; `stages` of the rings of loops."""

    def __init__(self, assignment: Assignment, limit: int) -> None:
        self.assignment, self.limit = assignment, limit
        self.facts = assignment.facts
        self.ends: dict[Hashable, int] = {}  # of what is there, at most
        self.bytes = 0
        self.stages: dict[Op, int] = {}
        self.region(self.facts.region)

    # Pieces.

    def place(self, size: int, line: int = LINE) -> int:
        """Where a piece ends at most that is placed now."""
        start = -(-max(self.ends.values(), default=0) // line) * line
        end = start + -(-max(size, 1) // LINE) * LINE
        self.bytes = max(self.bytes, end)
        return end

    def keep(self, key: Hashable, size: int, line: int = LINE) -> None:
        """A piece that is there until its region ends."""
        if key not in self.ends:
            self.ends[key] = self.place(size, line)

    def leave(self, before: Sequence[Hashable]) -> None:
        """What was placed since is there no more."""
        kept = set(before)
        self.ends = {key: end for key, end in self.ends.items() if key in kept}

    # Operations, in the order of the emitter.

    def region(self, region: Region) -> None:
        for op in region.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        a = self.assignment
        if op in a.fused.values() or op in a.skipped or op in a.direct:
            return
        if op.definition.pattern == "contract" or op in a.fused:
            self.contraction(op)
        elif op.name == "tile_for":
            self.loop(op)
        elif op.regions and op.definition.pattern == "control":
            self.branches(op)
        elif op.definition.loads or op.definition.stores:
            self.access(op)
        elif op.name == "reduce":
            self.reduce(op)
        elif all(value.rank == 0 for value in (*op.results, *op.operands)):
            if not elementwise.supports(op) and op.definition.pattern != "tile":
                self.block_wide(op)
        elif a.is_flexible(op):
            pass
        elif is_elementwise(op) or op.definition.views == "once":
            self.made(op, self.layout(op.result))
        elif op.name == "constant":
            pass
        elif elementwise.supports(op):
            self.copies(op.operands)
        else:
            self.block_wide(op)

    def access(self, op: Op) -> None:
        """Windows that threads read or write."""
        if op.definition.stores:
            value = op.operands[1]
            layout, masked = self.layout(value), op.name == "tile_store" and op.masked
            if op.name == "tile_store" and not masked and not op.combine:
                layout = stored(self.assignment, value, layout)
            self.asked(value, layout)
            if masked:
                self.asked(op.operands[-1], layout)
        if op.definition.numbered:
            self.exchanged(op.rows)

    def reduce(self, op: Op) -> None:
        reduction, operand = Reduction(op), op.operands[0]
        if reduction.single is None or len(op.results) != 1 or not operand.rank:
            self.block_wide(op)
            return
        source = self.layout(operand)
        self.asked(operand, source)
        layout = source.without(op.dimensions)[0]
        warps = (layout.copies & ~source.copies) // WARP
        if warps:
            self.place(summed_bytes(reduction, layout, 1 << warps.bit_count()))

    def contraction(self, op: Op) -> None:
        a = self.assignment
        product = a.fused.get(op, op)
        plan = a.products.get(product)
        if product is not op:
            (other,) = (value for value in op.operands if value is not product.result)
            self.asked(other, plan.sums if plan is not None else self.layout(product.result))
        if plan is None:
            self.copies(product.operands)
            return
        for number, operand in enumerate(plan.operands):
            if number or not self.held(plan):
                self.staged(operand)

    def held(self, plan: ProductLowering) -> bool:
        """Whether a left operand is multiplied as registers have it."""
        operand, a = plan.operands[0], self.assignment
        source, value = operand.source, operand.source.origin
        own = a.tile_layouts.get(value)
        if plan.atom is None or own is None or a.goes_direct(source):
            return False
        kept = [{source.own: 0, source.depth: 1}.get(d) for d in range(value.rank)]
        wanted = layout_of(value.dims, operand.value, kept)
        if conversion(own, wanted, 8 * operand.size).kind == "shared":
            return False
        self.asked(value, wanted)
        return True

    def staged(self, operand: ProductOperand) -> None:
        origin = operand.source.origin
        if ("ring", origin) in self.ends:
            return
        if not self.assignment.goes_direct(operand.source):
            self.asked(origin, self.layout(origin))
        self.keep((origin, operand.tile), bytes_of(operand.tile, operand.size), ALIGNMENT)

    # Control flow.

    def loop(self, op: Op) -> None:
        for value, result in zip(op.operands[2:], op.results, strict=True):
            self.asked(value, self.layout(result))
        inside = set(op.regions[0].walk())
        for plan in self.assignment.products.values():
            for operand in plan.operands if plan.product.op in inside else ():
                owner = operand.source.origin.op
                if owner is not None and owner not in inside:
                    self.staged(operand)
        outside = list(self.ends)
        found = running_ahead(self.assignment, op)
        if found is not None:
            stages, sizes = found.stages, [bytes_of(one.tile, one.size) for one in found.operands]
            if stages < 2:
                stages = 2 if 2 * sum(sizes) + self.bytes <= self.limit else 0
            self.stages[op] = stages
            for operand, size in zip(found.operands, sizes, strict=True) if stages else ():
                self.keep(("ring", operand.source.origin), stages * size, ALIGNMENT)
        self.turn(op.regions[0], op.results)
        self.leave(outside)

    def branches(self, op: Op) -> None:
        if op.definition.flow == "loop":
            for value, result in zip(op.operands, op.results, strict=True):
                self.asked(value, self.layout(result))
        for region in op.regions:
            self.turn(region, op.results)

    def turn(self, region: Region, results: Sequence[Value]) -> None:
        """A region inside, whose results are asked for as those of its operation."""
        outside = list(self.ends)
        self.region(region)
        if len(region.results) == len(results):
            for value, result in zip(region.results, results, strict=True):
                self.asked(value, self.layout(result))
        self.leave(outside)

    # Tiles in a layout.

    def layout(self, value: Value) -> DistributedLayout:
        return self.assignment.tile_layouts.get(value) or self.assignment.blocked(value.dims)

    def asked(self, value: Value, layout: DistributedLayout) -> None:
        """A value in a layout, by its own or made of what it is computed from."""
        own = self.assignment.tile_layouts.get(value)
        if not value.rank:
            return
        if own is not None or value.op is None:
            if own is None or way(value, own, layout).kind not in ("none", "registers"):
                self.exchanged(value)
        else:
            self.made(value.op, layout)

    def made(self, op: Op, layout: DistributedLayout) -> None:
        """The operands of an operation that is computed in a layout."""
        operands = [value for value in op.operands if value.rank]
        if op.definition.views:
            source = layout.operand(op)
            if operands and source is not None:
                self.asked(operands[0], source[0])
            else:
                self.copies(operands)
        elif is_elementwise(op):
            for value in operands:
                self.asked(value, layout)
        elif not op.definition.known and not op.definition.loads:
            self.copies(operands)

    def exchanged(self, value: Value) -> None:
        self.place(math.prod(padded(value.dims)) * value.element.itemsize)

    def copies(self, values: Sequence[Value]) -> None:
        """Row-major copies that all threads may read."""
        for value in values:
            if value.rank:
                self.asked(value, self.layout(value))
                self.keep(("copy", value), value.tensor.bytes)

    def block_wide(self, op: Op) -> None:
        """An operation that all threads do from memory to memory."""
        self.copies(op.operands)
        for value in op.results:
            self.keep(("copy", value), value.tensor.bytes)
        outside = list(self.ends)
        region = simpler(op) or as_region(op)
        parts = 2 * SLOT * self.assignment.threads  # of a sum of pairs
        for inner in _every(region.ops):
            if inner.name in WITH_SCRATCH:  # its plain kernel says how much
                code = opaque.single(inner, self.assignment.target)
                threads, room = opaque.shares(code, self.assignment.threads)
                self.keep((op, inner), largest(threads * room))
            if not elementwise.supports(inner):
                for value in (*inner.operands, *inner.results):
                    if value.op is not None:
                        self.keep((op, value), max(parts, value.tensor.bytes))
        self.leave(outside)


def _every(ops: Sequence[Op]) -> Iterator[Op]:
    """Operations, and those that they are computed by where they have no formula of elements."""
    for op in ops:
        yield op
        instead = None if elementwise.supports(op) else explained(op)
        if instead is not None:
            yield from _every(instead.ops)
