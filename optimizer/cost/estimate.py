"""How long a group takes as one tile function: all aligned tile sizes at once.

What the group does in a tile of sizes (s0, s1, ...) is counted from its boxes, as expressions that
are evaluated for thousands of sizes together; `cost.seconds` makes times of the counts. A group of
one kernel is counted in the same way, so that a difference of two estimates is a gain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...hlo.access import access_of
from ...hlo.deciding import at_hint, current, estimating, once
from ...hlo.graph import Op, Value, constant_of
from ...hlo.ops.convolution import window_attributes
from ...hlo.symbols import Dim, SymbolicDim
from ..machine import Machine, Unit
from ..tiles.access import Box, Span, TilePropagation, inner_spans, propagate
from ..tiles.build import TileGroup
from ..tiles.expressions import AtSizes, Expression, evaluator, expression, sizes_in, variable
from ..tiles.streaming import StreamedGroup, StreamStage
from .model import Features, Traffic, home, level_of, rates, seconds

MOST_SIZES = 4096
ALIGNED = (1, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
STEPS = (64, 128, 256, 512)
SHORTEST_WALK = 128  # a dim that is shorter is not worth walking
_NARROW = frozenset(("f16", "bf16", "f8E4M3FN", "f8E5M2", "i8", "ui8"))
_TASK = 1e-7  # seconds around a task
_MASK = 3  # simple operations by which what lies behind the end of a walk is hidden
_CROSSING = 2.5e-9  # seconds of writing a vector that lies in two lines
_PASSES = 3  # over an intermediate value in scratch: stored, read, and about one pass in place
_PASSES_OF_FOLDED = 2  # of a product that is only folded: what lies between is its epilogue
# Of the efficiency of a product of the same size; the second in a tile function whose features are
# innermost, where windows of many channels are copied for each tile.
_CONVOLUTION_SHARE, _CONVOLUTION_SHARE_OF_TILES = 0.7, 0.45
# Of a convolution's, where groups keep features apart; the second in a tile function whose features
# are innermost, but whose weights lie as they came.
_GROUPED_SHARE, _GROUPED_SHARE_OF_TILES = 0.5, 0.08
_WHOLE_ROWS = 12  # rows of a full block of accumulators
_DEPTH_OVERHEAD = 6  # steps of depth that storing a block of accumulators costs


class Tiling(NamedTuple):
    """Tile sizes of the roots' dims, and the predicted seconds. step: of the stream's dim; way: the
    number of the stream among those that were asked about."""

    time: float
    sizes: tuple[int, ...]
    stream: StreamedGroup | None = None
    step: int = 0
    way: int = 0

    @property
    def choice(self) -> dict[str, Any]:
        """What a tuning keeps of it."""
        return {"sizes": [*self.sizes], "step": self.step, "way": self.way}


@dataclass(frozen=True)
class _Candidates:
    """Every combination of sizes as columns, one per root dim, then the step. dims: where a call
    decides them those at the hints."""

    columns: tuple[Any, ...]
    dims: tuple[int, ...]

    def values(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """What variables are where a call decides these sizes."""
        named = {f"s{d}": column for d, column in enumerate(self.columns[:-1])}
        zeros = {f"t{d}": 0 for d in range(len(self.dims))}
        return AtSizes({**named, **zeros, "sk": self.columns[-1], "k": 0}, sizes)

    @property
    def tasks(self) -> Any:
        tasks: Any = np.ones(len(self.columns[-1]))
        for column, dim in zip(self.columns, self.dims, strict=False):
            tasks = tasks * -(-dim // column)
        return tasks


def plans(
    group: TileGroup,
    machine: Machine,
    ways: Sequence[StreamedGroup | None],
    most: int = 8,
    counter: type[Counter] | None = None,
    written: bool = True,
) -> list[Tiling]:
    """The best tilings by predicted time, over all ways to walk the group. `counter`: what counts
    for the machine (`blocks.counter_of`), that of executors with caches by default. `written`:
    whether they will be tile functions, whose tiles have sizes that no call decides."""
    found: list[Tiling] = []
    for way, stream in enumerate(ways):
        if stream is not None and isinstance(stream.extent, int) and stream.extent < SHORTEST_WALK:
            continue
        kind = counter or Counter
        for whole in (False, True) if kind.whole_rows else (False,):
            counted = _plans(group, machine, stream, most, kind, whole, written)
            found += [plan._replace(way=way) for plan in counted]
    return sorted(found, key=lambda plan: plan.time)[:most]


def _plans(
    group: TileGroup,
    machine: Machine,
    stream: StreamedGroup | None,
    most: int,
    kind: type[Counter],
    whole: bool,
    written: bool,
) -> list[Tiling]:
    dims = group.roots[0].dims
    if whole and isinstance(dims[-1], SymbolicDim):
        return []
    candidates = _candidates(dims, stream, whole)
    parts = _symbolic(group, stream, whole)
    fixed = _fixed(parts, candidates) if written else np.True_
    if not np.any(fixed):
        return []
    with estimating():
        counter = kind(group, machine, stream, candidates, parts)
        times = np.where(fixed & counter.fits(), counter.seconds(), np.inf)
    order = np.lexsort((np.arange(len(times)), np.round(times, 12)))[:most]
    return [
        Tiling(
            float(times[i]),
            tuple(int(column[i]) for column in candidates.columns[:-1]),
            stream,
            int(candidates.columns[-1][i]) if stream else 0,
        )
        for i in order
        if times[i] < np.inf
    ]


def retimed(
    group: TileGroup,
    machine: Machine,
    plan: Tiling,
    clipped: bool,
    calls: Sequence[Mapping[str, int]],
    kind: type[Counter],
) -> Any:
    """How long a tiling of a group takes in calls of other sizes than it was chosen for: seconds in
    each. clipped: whether its tiles end where the tensors do, as those of kernels with exact tails.
    """
    sizes = {name: np.array([call[name] for call in calls]) for name in calls[0]}
    at_sizes = evaluator(AtSizes({}, sizes))
    own = group.roots[0].dims
    dims: list[Any] = [np.broadcast_to(at_sizes(expression(dim)), len(calls)) for dim in own]
    tiles = [
        np.maximum(1, np.minimum(n, dim)) if clipped else np.full(len(calls), n)
        for n, dim in zip(plan.sizes, dims, strict=True)
    ]
    steps = np.full(len(calls), plan.step)
    if clipped and plan.stream is not None:
        steps = np.maximum(1, np.minimum(steps, at_sizes(expression(plan.stream.extent))))
    candidates = _Candidates((*tiles, steps), tuple(dims))
    parts = _symbolic(group, plan.stream)
    with estimating():
        return kind(group, machine, plan.stream, candidates, parts, sizes).seconds()


def priced(
    group: TileGroup, machine: Machine, kind: type[Counter], sizes: Sequence[Sequence[int]],
    stream: StreamedGroup | None, step: int,
) -> Any:  # fmt: skip
    """Seconds of a group as a kernel, for each of some tile sizes of its roots' dims."""
    with estimating():
        return _counter(group, machine, kind, sizes, stream, step).seconds()


def _counter(
    group: TileGroup, machine: Machine, kind: type[Counter], sizes: Sequence[Sequence[int]],
    stream: StreamedGroup | None, step: int,
) -> Counter:  # fmt: skip
    columns = tuple(np.array([(*one, step) for one in sizes], np.int64).T)
    candidates = _Candidates(columns, tuple(map(at_hint, group.roots[0].dims)))
    return kind(group, machine, stream, candidates, _symbolic(group, stream))


def level_bytes(group: TileGroup, machine: Machine, plan: Tiling) -> dict[str, float]:
    """Bytes that all tiles of a plan move, by the level that serves them; intermediate values in
    scratch included."""
    with estimating():
        counter = _counter(group, machine, Counter, [plan.sizes], plan.stream, plan.step)
        features = counter.features()
    found = dict.fromkeys((level.name for level in machine.levels), 0.0)
    for part in features.traffic:
        level = int(np.broadcast_to(part.level, (1,))[0])
        found[machine.levels[level].name] += float(np.broadcast_to(part.bytes, (1,))[0])
    return found


def _candidates(dims: Sequence[Dim], stream: StreamedGroup | None, whole: bool) -> _Candidates:
    choices: list[list[int]] = []
    for place, dim in enumerate(dims):
        last = place == len(dims) - 1
        if not isinstance(dim, int):
            choices.append(_upto(at_hint(dim), [n for n in ALIGNED if n >= 16 or not last]))
            continue
        sizes = [n for n in ALIGNED if n < dim and (n >= 16 or not last)]
        if last and whole:
            sizes = []
        choices.append([*sizes, dim])
    while math.prod(map(len, choices)) > MOST_SIZES:
        # Leading dims are batches: one at a time, or all of them.
        longest = max(range(len(choices)), key=lambda d: (len(choices[d]), -d))
        kept = choices[longest]
        choices[longest] = [*kept[:-1:2], kept[-1]]
    extent = stream.extent if stream else 0
    if isinstance(extent, int):
        steps = [n for n in STEPS if n < extent] or [extent]
    else:
        steps = [n for n in STEPS if n < at_hint(extent)] or [STEPS[0]]
    grid = np.array(list(itertools.product(*choices, steps)), np.int64)
    return _Candidates(tuple(grid.T), tuple(map(at_hint, dims)))


def _upto(size: int, sizes: Sequence[int]) -> list[int]:
    """The sizes up to the first that is not below `size`."""
    return [n for place, n in enumerate(sizes) if place == 0 or sizes[place - 1] < size]


def _fixed(parts: TilePropagation, candidates: _Candidates) -> Any:
    """The candidates in which tiles have sizes that no call decides."""
    every = {span.size for box in parts.boxes.values() for span in box.spans}
    every |= {span.size for spans in parts.inner.values() for span in spans}
    sizes = [size for size in every if sizes_in(size)]
    decisions = current()
    fixed: Any = np.ones(len(candidates.columns[-1]), bool)
    if not sizes or decisions is None:
        return fixed
    other = {name: 3 * size + 7 for name, size in decisions.hints.items()}
    here, there = (evaluator(candidates.values(one)) for one in (decisions.hints, other))
    for size in sizes:
        fixed = fixed & (here(size) == there(size))
    return fixed


def _symbolic(
    group: TileGroup, stream: StreamedGroup | None, whole: bool = False
) -> TilePropagation:
    """The group's boxes with symbols for sizes; `whole`: the last dim is not cut, which keeps boxes
    small that come from reshapes of it. They are the same for all likely calls."""
    key = "boxes", stream, whole
    return once(group.known, key, lambda: _boxes(group, stream, whole))


def _boxes(group: TileGroup, stream: StreamedGroup | None, whole: bool) -> TilePropagation:
    dims = group.roots[0].dims
    spans = []
    for d, dim in enumerate(dims):
        if whole and d == len(dims) - 1:
            spans.append(Span(expression(0), expression(dim), 1, dim))
            continue
        if isinstance(dim, int):
            size, most = variable(f"s{d}", 1, dim), max(dim - 1, 0)
        else:
            size, most = variable(f"s{d}", 1, ALIGNED[-1]), dim
        spans.append(Span(variable(f"t{d}", 0, most) * size, size, 1, dim))
    inner: dict[Op, tuple[Span, ...]] = {}
    if stream is not None:
        step = variable("sk", 1, stream.extent if isinstance(stream.extent, int) else STEPS[-1])
        along = Span(variable("k", 0, stream.extent) * step, step, 1, stream.extent)
        for op, place in stream.inner.items():
            access = access_of(op)
            if access is not None:
                every = inner_spans(access)
                inner[op] = (*every[:place], along, *every[place + 1 :])
    return propagate(group.ops, {root: Box(tuple(spans)) for root in group.roots}, inner)


class Counter:
    """Counts flops and bytes of every candidate. whole_rows: whether tilings that leave the last
    dim whole are looked at on their own. sizes: what symbols stand for, the hints by default."""

    whole_rows: ClassVar[bool] = False

    def __init__(
        self,
        group: TileGroup,
        machine: Machine,
        stream: StreamedGroup | None,
        candidates: _Candidates,
        parts: TilePropagation,
        sizes: Mapping[str, Any] | None = None,
    ) -> None:
        self.group, self.machine, self.stream = group, machine, stream
        self.candidates, self.parts = candidates, parts
        self.executors = machine.executors
        self.count = len(candidates.columns[-1])
        self.tasks = candidates.tasks
        decisions = current()
        if sizes is None:
            sizes = decisions.hints if decisions else {}
        self.evaluated = evaluator(candidates.values(sizes))
        self.floats: dict[Expression, Any] = {}
        self.trips: Any = 1.0
        if stream is not None:
            extent = self.evaluated(expression(stream.extent))
            self.trips = -(-extent // np.maximum(candidates.columns[-1], 1))
        self.unit = machine.unit("f32")
        self.busy = np.zeros(self.count)  # seconds of computing, of one task
        self.traffic: list[Traffic] = []
        self.computed = {result for op in group.ops for result in op.results}
        self.users: dict[Value, list[Op]] = {}
        for op in group.ops:
            for value in dict.fromkeys(op.operands):
                self.users.setdefault(value, []).append(op)

    def numbers(self, values: Iterable[Expression]) -> list[Any]:
        return [self.number(value) for value in values]

    def number(self, value: Expression) -> Any:
        """An expression's value for every candidate; for all the same where it is one number."""
        found = self.floats.get(value)
        if found is None:
            found = self.floats[value] = np.asarray(self.evaluated(value), float)
        return found

    def repeats(self, op: Op) -> Any:
        """How often the operation runs in one task."""
        if self.stream is None:
            return 1.0
        stage = self.stream.stages[op.results[0]]
        return (
            self.trips
            if stage in (StreamStage.ALONG, StreamStage.FOLD, StreamStage.RUNNING)
            else 1.0
        )

    def seconds(self) -> Any:
        return seconds(self.features(), self.machine, self.executors)

    def features(self) -> Features:
        """What each candidate does."""
        self.count_all()
        return Features(
            flops=self.busy * self.tasks, rate=1.0, traffic=tuple(self.traffic),
            issue=self.tasks * _TASK, tasks=self.tasks, launches=1,
        )  # fmt: skip

    def count_all(self) -> Any:
        """Count operations and traffic; the footprint."""
        footprint = self.footprint()
        scratch = level_of(self.machine, footprint)
        for op in self.group.ops:
            if op.results[0] in self.parts.boxes:
                self.operation(op, scratch)
        self.loads(footprint)
        for root in self.group.roots:
            self.stores(root)
        return footprint

    def footprint(self) -> Any:
        """Bytes of what stays in scratch."""
        total: Any = np.zeros(self.count)
        kept = [v for op in self.group.ops for v in op.results if self.materialised(op)]
        sizes = self.numbers(volume(self.parts.boxes[v]) for v in kept)
        for value, size in zip(kept, sizes, strict=True):
            total = total + size * value.element.bits / 8
        for op in self.group.ops:
            if op.results[0] in self.parts.boxes and self.packs(op):
                depth, columns = self.right_side(op)
                total = total + depth * columns * op.operands[1].element.bits / 8
        return total

    def fits(self) -> Any:
        """Which candidates an executor has room for: its scratch stays within the caches."""
        return (
            level_of(self.machine, self.footprint(), self.executors) < len(self.machine.levels) - 1
        )

    def packs(self, op: Op) -> bool:
        """Whether the right side of a contraction is brought in order for each tile."""
        if op.definition.pattern != "contract":
            return False
        return op.operands[1] in self.computed or not self.alone

    def right_side(self, op: Op) -> tuple[Any, Any]:
        """Depth and columns of a contraction."""
        box = self.parts.boxes[op.results[0]]
        place = op.output_feature_dimension if op.name == "convolution" else len(box.spans) - 1
        columns = box.spans[place : place + 1]  # none of a product of two vectors
        sizes = ((span.size for span in spans) for spans in (self.parts.inner[op], columns))
        depth, width = self.numbers(map(_product, sizes))
        return depth, width

    def materialised(self, op: Op) -> bool:
        if op.results[0] in self.group.roots or op.results[0] not in self.parts.boxes:
            return False
        return op.definition.pattern in ("contract", "reduce")

    def operation(self, op: Op, scratch: Any) -> None:
        times = self.repeats(op)
        (size,) = self.numbers([volume(self.parts.boxes[op.results[0]])])
        if op.definition.pattern == "contract":
            self.busy = self.busy + times * self.contraction(op, size)
        elif op.name == "reduce":
            spans = self.parts.inner[op]
            (inner,) = self.numbers([_product(span.size for span in spans)])
            self.busy = self.busy + times * size * inner / self.machine.math.simple
        elif op.definition.pattern == "elementwise":
            self.busy = self.busy + times * size / self.rate(op)
        elif op.name == "transpose":
            self.busy = self.busy + times * size * 2 / self.machine.math.simple
        if self.stream is not None and op in self.stream.inner:
            self.busy = self.busy + times * self.masking(op, self.stream)
        if self.materialised(op):
            passes = _PASSES_OF_FOLDED if self.is_folded(op) else _PASSES
            bytes = size * times * op.results[0].element.bits / 8
            self.intermediate(bytes * passes, scratch)

    def masking(self, op: Op, stream: StreamedGroup) -> Any:
        """Seconds in which one step hides what lies behind the end of the walk, of what it has
        computed: where the last step is shorter than others, all do."""
        extent = stream.extent
        # Blocks of threads mask in registers. What a call makes as long as it likes is rather
        # masked than stored.
        if self.machine.blocks is not None or not isinstance(extent, int):
            return 0.0
        boxes = [self.parts.boxes[value] for value in op.operands if value in self.computed]
        elements = sum(self.numbers(map(volume, boxes)), np.zeros(self.count))
        shorter = extent % self.candidates.columns[-1] != 0
        return shorter * elements * _MASK / self.machine.math.simple

    def intermediate(self, bytes: Any, scratch: Any) -> None:
        """What all passes over a value of a task move that other operations of it read."""
        # The operations on a tile wait for it; nothing else is there to be done meanwhile.
        total = bytes * self.tasks
        self.traffic.append(Traffic(total, scratch, "copy", overlapped=False))

    def is_folded(self, op: Op) -> bool:
        """Whether a contraction's result is only folded, behind what its epilogue computes."""
        users = self.users.get(op.results[0], ())
        while len(users) == 1 and users[0].definition.pattern == "elementwise":
            users = self.users.get(users[0].results[0], ())
        folded = len(users) == 1 and users[0].name == "reduce"
        return folded and op.definition.pattern == "contract"

    def rate(self, op: Op) -> float:
        math = self.machine.math
        if op.definition.cost_class == "transcendental":
            return math.exp
        return math.div if op.definition.cost_class == "division" else math.simple

    def contraction(self, op: Op, size: Any) -> Any:
        """Seconds of a product or a convolution of one task, with bringing its right side in
        order."""
        depth, columns = self.right_side(op)
        share = 1.0
        if op.name == "convolution" and not is_pointwise(op):
            innermost = op.output_feature_dimension == op.type.rank - 1
            tiled = innermost and not self.alone
            share = _CONVOLUTION_SHARE_OF_TILES if tiled else _CONVOLUTION_SHARE
            if op.feature_group_count > 1:
                share *= _GROUPED_SHARE_OF_TILES if tiled else _GROUPED_SHARE
        rows = size / columns
        lanes = self.unit.lanes
        filled = columns / (np.ceil(columns / lanes) * lanes)
        block = np.minimum(1.0, np.maximum(rows, 1) / _WHOLE_ROWS)
        efficiency = 0.9 * share * filled * (0.25 + 0.75 * block)
        time = 2 * size * (depth + _DEPTH_OVERHEAD) / (self.unit_of(op).flops * efficiency)
        if self.packs(op):
            right = depth * columns * op.operands[1].element.bits / 8
            time = time + 2 * right / rates(self.machine, self.executors, "copy")[1]
        if op.name == "convolution" and is_pointwise(op) and not self.alone:
            copied = rows * depth * op.operands[0].element.bits / 8 * self.cut(op)
            time = time + 2 * copied / rates(self.machine, self.executors, "copy")[1]
        if gathers(op):
            lines = rows * depth * self.machine.levels[0].line
            time = time + lines / rates(self.machine, self.executors, "read")[1]
        return time

    def cut(self, op: Op) -> Any:
        """Whether the pixels of a tile lie on several lines of an image in memory, and not one
        behind the other: then they are copied before they are multiplied."""
        image = op.operands[0]
        box = self.parts.boxes[image]
        inner: Any = np.True_  # whether all further in is whole
        found: Any = np.False_
        for d in reversed(range(image.rank)):
            if d == op.input_feature_dimension:
                continue
            (size,) = self.numbers([box.spans[d].size])
            found = found | ~inner & (size > 1)
            (whole,) = self.numbers([expression(image.dims[d])])
            inner = inner & (size >= whole)
        return found & (image not in self.computed)

    def unit_of(self, op: Op) -> Unit:
        """What multiplies an operation's operands: narrow floats may have a unit of their own."""
        element = op.operands[0].element.name
        known = any(element in unit.elements for unit in self.machine.units)
        return self.machine.unit(element) if known and element in _NARROW else self.unit

    @property
    def alone(self) -> bool:
        """Whether the group is a kernel of one contraction, whose weights are packed before."""
        contractions = [op for op in self.group.ops if op.definition.pattern == "contract"]
        reductions = [op for op in self.group.ops if op.definition.pattern == "reduce"]
        return len(contractions) == 1 and not reductions

    def loads(self, footprint: Any) -> None:
        """What is read of the inputs: each byte once from where it lies, then from a cache."""
        reads: dict[tuple[Value, Box], Any] = {}
        for op in self.group.ops:
            if op.results[0] not in self.parts.boxes:
                continue
            for value in op.operands:
                if value in self.computed or constant_of(value) is not None:
                    continue
                key = value, self.parts.boxes[value]
                along = self.stream is not None and value in self.stream.dims
                reads[key] = self.trips if along else 1.0
        sizes = self.numbers(volume(box) for _, box in reads)
        near = level_of(self.machine, footprint + sum(sizes, np.zeros(self.count)) * 4)
        for (value, _), size, times in zip(reads, sizes, reads.values(), strict=True):
            width = value.element.bits / 8
            total = self.whole(value)
            bytes = size * width * times * self.tasks
            first = np.minimum(bytes, total)
            self.traffic.append(Traffic(first, home(self.machine, total)))
            self.traffic.append(Traffic(bytes - first, np.maximum(near, 1)))

    def stores(self, root: Value) -> None:
        total = self.whole(root)
        self.traffic.append(Traffic(total, home(self.machine, total), "write"))
        patterns = {op.definition.pattern for op in self.group.ops}
        if not patterns.isdisjoint(("contract", "reduce")):  # row by row
            crossed = crossing(self.machine, root) * self.executors
            self.busy = self.busy + crossed / np.maximum(self.tasks, 1)

    def whole(self, value: Value) -> Any:
        """Bytes of a tensor."""
        size = value.tensor.size
        count = size if isinstance(size, int) else self.number(expression(size))
        return count * (value.element.bits / 8)


def crossing(machine: Machine, value: Value) -> float:
    """Seconds in which all executors write a tensor row by row, beyond those of its bytes: where
    rows are no whole lines of the cache, each vector lies in two."""
    size, width = value.tensor.size, value.element.bits // 8
    row = value.dims[-1] if value.rank > 1 else 0
    lanes = machine.unit("f32").lanes
    if not isinstance(size, int) or not isinstance(row, int) or row < lanes:
        return 0.0
    if row * width % machine.levels[0].line == 0:
        return 0.0
    return size / lanes * _CROSSING / machine.executors


def is_pointwise(op: Op) -> bool:
    """Whether a convolution is a product of its image's rows, read where they lie: one tap, no
    padding, and features innermost on both sides."""
    strides, padding, base, _, _ = window_attributes(op)
    return (
        op.feature_group_count == op.batch_group_count == 1
        and op.input_feature_dimension == op.output_feature_dimension == op.type.rank - 1
        and all(op.rhs.dims[d] == 1 for d in op.kernel_spatial_dimensions)
        and all(one == 1 for one in (*strides, *base))
        and not any(map(any, padding))
    )


def gathers(op: Op) -> bool:
    """Whether windows of an image are brought in order element by element, for each block of
    columns: what is summed over does not lie side by side."""
    return (
        op.name == "convolution"
        and op.output_feature_dimension == op.type.rank - 1
        and op.input_feature_dimension != op.lhs.rank - 1
    )


def volume(box: Box) -> Expression:
    """Elements of a tile, those outside of the tensor included: they are computed as well."""
    return _product(span.size for span in box.spans)


def _product(values: Iterable[Expression]) -> Expression:
    result = expression(1)
    for value in values:
        result = result * value
    return result
