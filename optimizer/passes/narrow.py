"""narrow: what nobody reads is not computed.

From the results backwards, every value learns which box of its elements is read at all (the union
over its users); forwards, operations are rebuilt on their boxes. A classifier that reads one token
of its last layer then computes that layer for one token. Nothing is computed twice. Of sizes that
calls decide, boxes are expressions of them: the last token of a sequence is one as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...hlo.assumptions import Assumptions
from ...hlo.build import make_op
from ...hlo.graph import Module, Op, Region, Value
from ...hlo.symbols import Dim, minimum
from ...hlo.types import TensorType
from ...hlo.verify import INLINED, Level
from ..licence import BITWISE, Ledger
from ..rewrite import copied_region
from ..rules.common import groups, inverse, map_of_ones
from ..rules.contractions import DotSides

Span = tuple[Dim, Dim]  # the first element and the one after the last
Box = tuple[Span, ...]  # per dimension

_UNLIMITED = 1 << 16  # elements that are counted where nothing limits a size


@dataclass(frozen=True)
class Narrow:
    """INLINED -> INLINED: an operation computes at most twice the elements of the box that is read.

    `least` is how many multiplications or elements the program must be spared, at its largest
    sizes, for it to be worth the slices.
    """

    name: ClassVar[str] = "narrow"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED
    least: int = 1 << 16
    ledger: Ledger = field(default_factory=Ledger, compare=False)

    def __call__(self, module: Module) -> Module:
        if not any(op.name == "slice" for op in module.body.ops):
            return module
        narrower = _Narrower(module.body, module.assumptions)
        if not narrower.narrowed or narrower.spared < self.least:
            return module
        for op in narrower.narrowed:
            self.ledger.record("narrow", BITWISE, op)
        return module.with_main(narrower.rebuilt())


class _Narrower:
    def __init__(self, region: Region, facts: Assumptions) -> None:
        self.region, self.facts = region, facts
        self.spared = 0.0  # multiplications or elements
        self.read: dict[Value, Box] = {}  # the box of a value that something reads
        self.narrowed: dict[Op, Box] = {}  # the box that an operation will compute, if not all
        for value in region.results:
            self.demand(value, None)
        for op in reversed(region.ops):
            self.visit(op)
        self.new: dict[Value, Value] = {}

    # Backwards: who reads what.

    def demand(self, value: Value, box: Box | None) -> None:
        """Note that a box of a value is read; None stands for all of it."""
        if not isinstance(value.type, TensorType):
            return
        box = _whole(value) if box is None else box
        before = self.read.get(value)
        if before is not None:
            box = tuple(map(self.union, before, box, value.dims))
        self.read[value] = box

    def union(self, one: Span, other: Span, size: Dim) -> Span:
        """The smallest span that holds both, as far as is known; else the whole dim."""
        if one == other:
            return one
        first = self.ordered(one[0], other[0])
        last = self.ordered(one[1], other[1])
        return (0, size) if first is None or last is None else (first[0], last[1])

    def ordered(self, left: Dim, right: Dim) -> tuple[Dim, Dim] | None:
        """Both, the smaller one first; None where that is not known for all sizes."""
        known = self.facts.at_most(left, right)
        if known:
            return left, right
        return (right, left) if known is False or self.facts.at_most(right, left) else None

    def most(self, size: Dim) -> int:
        """The largest that a size can be."""
        if isinstance(size, int):
            return size
        return self.facts.maximum(size).value or _UNLIMITED

    def share(self, op: Op, box: Box) -> float:
        """The part of an operation's elements that a box is, at the largest sizes."""
        spans = zip(box, op.type.dims, strict=True)
        return math.prod(
            1.0 if span == (0, size) else self.most(span[1] - span[0]) / max(self.most(size), 1)
            for span, size in spans
        )

    def work(self, op: Op) -> float:
        """Multiplications of a product, elements that another operation reads or makes; at the
        largest sizes."""
        if op.name == "dot_general":
            summed = (op.lhs.dims[d] for d in op.lhs_contracting_dimensions)
            return float(math.prod(map(self.most, (*op.type.dims, *summed))))
        tensors = (value.dims for value in (*op.operands, *op.results))
        return float(max(math.prod(map(self.most, dims)) for dims in tensors))

    def visit(self, op: Op) -> None:
        box = self.read.get(op.results[0]) if len(op.results) == 1 else None
        boxes: Sequence[Box | None] | None = None
        if box is not None and box != _whole(op.results[0]) and _may_narrow(op):
            box = _widened(op, box)
            share = self.share(op, box)
            if share <= 0.5:
                boxes = _operand_boxes(op, box)
                self.narrowed[op] = box
                self.spared += self.work(op) * (1 - share)
        if op.name == "slice" and boxes is None:
            boxes = _operand_boxes(op, _whole(op.results[0]))
        for number, operand in enumerate(op.operands):
            self.demand(operand, None if boxes is None else boxes[number])
        for region in op.regions:
            for value in region.captures():
                self.demand(value, None)

    # Forwards: operations on their boxes.

    def rebuilt(self) -> Region:
        ops: list[Op] = []
        for op in self.region.ops:
            box = self.narrowed.get(op)
            if box is not None:
                fresh = self.on_box(op, box, ops)
                if fresh is not None:
                    self.new[op.results[0]] = fresh
                continue
            if op.name == "slice" and self.is_narrow(op.operands[0]):
                self.new[op.results[0]] = self.shifted(op, ops)
                continue
            operands = [self.new.get(value, value) for value in op.operands]
            captured = any(v in self.new for region in op.regions for v in region.captures())
            regions = [copied_region(r, self.new) for r in op.regions] if captured else op.regions
            same = op.with_operands(operands, regions)
            ops.append(same)
            for old, new in zip(op.results, same.results, strict=True):
                if old is not new:
                    self.new[old] = new
        results = [self.new.get(value, value) for value in self.region.results]
        return Region(self.region.arguments, ops, results)

    def shifted(self, op: Op, ops: list[Op]) -> Value:
        """A slice of a narrowed value."""
        held = self.held(op.operands[0])
        start = [s - lo for s, (lo, _) in zip(op.start_indices, held, strict=True)]
        limit = [minimum(e, hi) - lo for e, (lo, hi) in zip(op.limit_indices, held, strict=True)]
        cut = {
            "start_indices": tuple(start),
            "limit_indices": tuple(limit),
            "strides": op.strides,
        }
        fresh = make_op("slice", [self.new[op.operands[0]]], cut, origin=op.origin, check=False)
        ops.append(fresh)
        return fresh.result

    def is_narrow(self, value: Value) -> bool:
        return value.op is not None and value.op in self.narrowed

    def held(self, value: Value) -> Box:
        """The box of a value that the new program has."""
        return self.narrowed[value.op] if self.is_narrow(value) else _whole(value)  # type: ignore[index]

    def fetch(self, value: Value, box: Box | None, op: Op, ops: list[Op]) -> Value:
        """A box of an old value, in the new program."""
        fresh = self.new.get(value, value)
        if box is None:
            return fresh
        held = self.held(value)
        if box == held:
            return fresh
        cut = {
            "start_indices": tuple(a - lo for (a, _), (lo, _) in zip(box, held, strict=True)),
            "limit_indices": tuple(b - lo for (_, b), (lo, _) in zip(box, held, strict=True)),
            "strides": (1,) * len(box),
        }
        made = make_op("slice", [fresh], cut, origin=op.origin, check=False)
        ops.append(made)
        return made.result

    def on_box(self, op: Op, box: Box, ops: list[Op]) -> Value | None:
        """The box of an operation's result."""
        boxes = _operand_boxes(op, box)
        operands = [
            self.fetch(value, part, op, ops) for value, part in zip(op.operands, boxes, strict=True)
        ]
        attributes: dict[str, Any] = dict(op.attributes)
        type = TensorType([b - a for a, b in box], op.type.element)
        if op.name == "slice":
            steps = op.strides
            if all(step == 1 for step in steps):
                return operands[0]
            attributes |= {
                "start_indices": (0,) * len(box),
                "limit_indices": operands[0].dims,
            }
        fresh = Op(op.definition, operands, attributes, op.regions, (type,), op.origin)
        ops.append(fresh)
        return fresh.result


def _whole(value: Value) -> Box:
    return tuple((0, size) for size in value.dims)


def _replaced(box: Box, d: int, span: Span) -> Box:
    return (*box[:d], span, *box[d + 1 :])


NARROWED = frozenset(
    {"broadcast_in_dim", "reshape", "transpose", "slice", "reduce", "dot_general", "concatenate"}
)


def _may_narrow(op: Op) -> bool:
    """Whether the operation can be had on a box, from boxes of its operands."""
    values = (*op.operands, *op.results)
    if not all(isinstance(value.type, TensorType) for value in values):
        return False
    if any(v.tensor.sharding is not None for v in values):
        return False
    if any(region.captures() for region in op.regions):
        return False
    if op.definition.pattern == "elementwise":
        return all(value.dims in ((), op.type.dims) for value in op.operands)
    return op.name in NARROWED


def _widened(op: Op, box: Box) -> Box:
    """The smallest box around another one that the operation can be had on."""
    if op.name == "concatenate":
        d = op.dimension
        return _replaced(box, d, (0, op.type.dims[d]))
    if op.name != "reshape":
        return box
    wide = list(box)
    dims, source = op.type.dims, op.operands[0].dims
    for before, after in groups(source, dims):
        places = map_of_ones([dims[d] for d in after], [source[d] for d in before])
        if places is None:
            for d in after:
                wide[d] = (0, dims[d])
    return tuple(wide)


def _operand_boxes(op: Op, box: Box) -> list[Box | None]:
    """Which boxes of its operands an operation reads for a box of its result; None: everything."""
    name, operands = op.name, op.operands
    if op.definition.pattern == "elementwise":
        return [box if value.dims == op.type.dims else None for value in operands]
    if name == "concatenate":
        d = op.dimension
        return [_replaced(box, d, (0, value.dims[d])) for value in operands]
    if name == "dot_general":
        return list(_dot_boxes(op, box))
    if name == "reduce":
        kept = iter(box)
        gone = set(op.dimensions)
        dims = operands[0].dims
        inner: Box = tuple((0, size) if d in gone else next(kept) for d, size in enumerate(dims))
        return [inner, *([None] * (len(operands) - 1))]
    (value,) = operands
    if name == "broadcast_in_dim":
        spread: list[Span] = []
        for size, d in zip(value.dims, op.broadcast_dimensions, strict=True):
            spread.append(box[int(d)] if size == op.type.dims[d] else (0, 1))
        return [tuple(spread)]
    if name == "transpose":
        return [tuple(box[d] for d in inverse(op.permutation))]
    if name == "slice":
        rows = zip(box, op.start_indices, op.strides, strict=True)
        return [tuple((s + a * n, s + (b - 1) * n + 1) for (a, b), s, n in rows)]
    return [_reshaped_box(op, box)]


def _reshaped_box(op: Op, box: Box) -> Box:
    source, dims = op.operands[0].dims, op.type.dims
    inner = [(0, size) for size in source]
    for before, after in groups(source, dims):
        places = map_of_ones([dims[d] for d in after], [source[d] for d in before])
        if places is None:
            continue
        for d, place in zip(after, places, strict=True):
            if place is not None:
                inner[before[place]] = box[d]
    return tuple(inner)


def _dot_boxes(op: Op, box: Box) -> tuple[Box, Box]:
    sides = DotSides(op)
    found = []
    count, first = len(sides.batch[0]), len(sides.batch[0])
    for side in (0, 1):
        inner = list(_whole(op.operands[side]))
        for i in range(count):
            inner[sides.batch[side][i]] = box[i]
        for i, d in enumerate(sides.free(side)):
            inner[d] = box[first + i]
        first += len(sides.free(side))
        found.append(tuple(inner))
    return found[0], found[1]
