"""Which blocking a product gets: all candidates scored by the cost model for a machine."""

from __future__ import annotations

import functools
from dataclasses import astuple, dataclass

import numpy as np

from ..cost import assumed
from ..cost.construct import ranked, score
from ..cost.model import Features, Traffic, efficiency, level_of, scattered
from ..machine import Machine, Unit
from . import products
from .products import Blocking, ProductShape

Array = np.ndarray

_PAGE, _PAGES = 4096, 48  # bytes of a page, and how many are known at a time
_FILLED = 0.9  # of the best register block's efficiency
_CLEARLY = 0.9  # of the usual blocking's time; smaller gains are within the model's error
_CROWDED = 0.04  # of the lines of rows that meet in one place, those that are lost


@functools.lru_cache(4096)
def choose(shape: ProductShape, machine: Machine) -> Blocking:
    """The fastest predicted blocking; `products.default` where no other is clearly faster, and
    where a side is unfolded while it is packed, whose cost the model does not know."""
    empty = not (shape.outer and shape.rows and shape.columns and shape.depth)
    if empty or shape.left_must_pack or shape.right_must_pack:
        return products.default(shape)
    problem = ProductProblem(shape)
    every = problem.configurations
    # Register blocks that leave the unit idle lose whatever is around them.
    panels = -(-shape.rows // every["rows"])
    filled = efficiency(unit_of(shape, machine), shape.rows / panels, every["vectors"])
    every = every[filled >= _FILLED * filled.max()]
    usual = products.default(shape)
    if usual.pack_right:
        # Long columns read in place, and sums that leave registers before they are complete, lose
        # by more than the model knows where there are rows enough for a tidy copy.
        every = every[every["pack_right"] & (every["depth"] == usual.depth)]
    scores = score(problem, every, machine)
    best = int(scores.order[0])
    row = np.array([astuple(usual)], products.FIELDS)
    time = score(problem, row, machine).time[0]
    return usual if scores.time[best] > _CLEARLY * time else products.blocking_of(every[best])


def chosen(shape: ProductShape, machine: Machine) -> Blocking:
    """The blocking that a kernel gets without a measurement."""
    return products.streaming(shape) or choose(shape, machine)


def best(shape: ProductShape, machine: Machine, most: int) -> list[tuple[Blocking, float]]:
    """The best predicted blockings with their seconds, at most `most`; first is the one that a
    kernel gets without a measurement."""
    usual = chosen(shape, machine)
    problem = ProductProblem(shape)
    row = np.array([astuple(usual)], products.FIELDS)
    found = {usual: float(score(problem, row, machine).time[0])}
    every, times = ranked(problem, machine)
    for configuration, time in zip(every[:most], times[:most], strict=True):
        found.setdefault(products.blocking_of(configuration), float(time))
    return list(found.items())[:most]


def is_candidate(shape: ProductShape, machine: Machine, cut: Blocking) -> bool:
    """Whether a product can be cut so, within the bounds of scratch that all choices keep."""
    if cut == chosen(shape, machine):
        return True
    return bool(np.any(products.candidates(shape) == np.array(astuple(cut), products.FIELDS)))


def unit_of(shape: ProductShape, machine: Machine) -> Unit:
    return machine.unit("f64" if shape.element_bytes == 8 else "f32")


@dataclass(frozen=True)
class ProductProblem:
    """The choice of a product's blocking."""

    shape: ProductShape

    @property
    def configurations(self) -> Array:
        return products.candidates(self.shape)

    def footprint(self, configurations: Array) -> Array:
        return products.scratch_bytes(self.shape, configurations)

    def features(self, configurations: Array, machine: Machine, executors: int) -> Features:
        """See products.py for the order of the loops."""
        return ProductCounts(self.shape, configurations, machine, executors).features()


class ProductCounts:
    """How often what is touched, for arrays of blockings. Sizes in bytes."""

    def __init__(self, shape: ProductShape, cuts: Array, machine: Machine, executors: int) -> None:
        self.shape, self.cuts, self.machine, self.executors = shape, cuts, machine, executors
        self.unit = unit_of(shape, machine)
        self.bytes = shape.element_bytes
        self.width = cuts["vectors"] * shape.lanes
        self.panels = -(-shape.rows // cuts["rows"])
        self.rows = shape.rows / self.panels  # of a panel, on average
        self.blocks = -(-self.panels // cuts["panels"])
        self.groups = -(-shape.columns // self.width)
        self.row_parts = -(-self.blocks // cuts["blocks"])
        self.column_parts = -(-self.groups // cuts["groups"])
        self.depths = -(-shape.depth // cuts["depth"])
        self.last = -(-(shape.columns - (self.groups - 1) * self.width) // shape.lanes)
        self.vectors = (self.groups - 1) * cuts["vectors"] + self.last
        # What one row block, and one tile, reads of each side.
        depth = np.minimum(cuts["depth"], shape.depth)
        self.depth = depth
        self.right_panel = depth * self.width * self.bytes
        self.left_block = np.minimum(cuts["panels"] * self.rows, shape.rows) * self.bytes
        self.slice = np.minimum(cuts["groups"] * self.width, shape.columns) * self.bytes
        self.left_all = shape.outer * shape.rows * shape.depth * self.bytes
        self.right_all = shape.outer * shape.depth * shape.columns * self.bytes
        self.result_all = shape.outer * shape.rows * shape.columns * self.bytes
        self.everything = self.level(self.left_all + self.right_all + self.result_all)

    def level(self, size: Array | float, **options: Array | float) -> Array:
        return level_of(self.machine, size, self.executors, **options)  # type: ignore[arg-type]

    def features(self) -> Features:
        shape = self.shape
        tasks = shape.outer * self.row_parts * self.column_parts
        flops = 2.0 * shape.outer * shape.rows * self.vectors * shape.lanes * shape.depth
        traffic = (*self.right(), *self.left(), *self.result())
        return Features(flops, self.rate(), traffic, self.issue(tasks), tasks)

    def rate(self) -> Array:
        """Flops per second of full and last column groups together."""
        cuts = self.cuts
        full = efficiency(self.unit, self.rows, cuts["vectors"])
        last = efficiency(self.unit, self.rows, self.last)
        share = (self.groups - 1) * cuts["vectors"] / self.vectors
        return self.unit.flops / (share / full + (1 - share) / last)

    def issue(self, tasks: Array) -> Array:
        """Seconds of calls, of accumulators that go to memory, and of copying packed sides."""
        shape, cuts = self.shape, self.cuts
        one = 2.0 * shape.lanes / self.unit.flops  # of a vector product
        calls = shape.outer * self.panels * self.groups * self.depths
        sums = shape.outer * shape.rows * self.vectors
        count = assumed.CALL * calls + assumed.STORED * sums
        count = count + (assumed.STORED + assumed.LOADED) * sums * (self.depths - 1)
        if not shape.plain_result:
            count = count + (assumed.STORED + assumed.LOADED) * sums
        slow = shape.right_must_pack and not shape.right_by_vector
        packed = np.where(cuts["pack_right"], self.row_parts, 0) * shape.depth * self.vectors
        copied = assumed.PACKED_SLOWLY if slow else assumed.PACKED
        count = count + shape.outer * packed * copied
        count = count + self.packed() + assumed.TILE * tasks
        # Columns of a right side in place lie far apart: each step is on another page. Few pages
        # stay known to the next panel and the next group; many are looked up again.
        far = abs(shape.right_depth_stride) * self.bytes >= assumed.FAR_BYTES
        pages = self.column_parts * (1 + self.slice // _PAGE)
        visits = np.where(self.depth <= _PAGES, self.blocks * pages, self.panels * self.groups)
        steps = np.where(cuts["pack_right"], 0, shape.outer * visits)
        return one * (count + (assumed.FAR if far else 0.0) * steps * shape.depth)

    def packed(self) -> Array:
        """Vector products in the time of copying the left side."""
        shape, cuts = self.shape, self.cuts
        slow = shape.left_must_pack and shape.left_depth_stride != 1
        steps = shape.depth if slow else -(-shape.depth // shape.lanes)
        packed = np.where(cuts["pack_left"], self.column_parts, 0) * shape.rows * steps
        return shape.outer * packed * assumed.PACKED

    def right(self) -> list[Traffic]:
        shape, cuts = self.shape, self.cuts
        run = self.width * self.bytes
        stride = abs(shape.right_depth_stride) * self.bytes
        far = (stride > run) & ~cuts["pack_right"]
        packed = cuts["pack_right"]
        loose = np.where(stride > run, run, 1 << 20)  # bytes that lie in a row in the operand
        lies = {"stride": np.where(far, stride, 0), "run": run}
        near = self.slice * shape.depth + self.left_block * shape.depth
        block = self.level(near, **lies)  # between two row blocks of a tile
        matrix = self.right_all / shape.outer
        again = np.maximum(self.level(matrix + near), block)
        source = np.where(self.row_parts > 1, again, self.everything)
        per_part = float(self.right_all) * self.row_parts
        conflict = scattered(self.machine, source, loose, self.executors, assumed.OUTSTANDING)
        # A panel once per row block, then once more per row panel.
        blocks = float(self.right_all) * (self.blocks - np.where(packed, 0, self.row_parts))
        panels = float(self.right_all) * (self.panels - self.blocks)
        inner = self.level(self.right_panel + self.rows * self.depth * self.bytes, **lies)
        steps = np.where(far, run, 1 << 20)
        slow = scattered(self.machine, block, steps, self.executors, assumed.OUTSTANDING)
        slower = scattered(self.machine, inner, steps, self.executors, assumed.OUTSTANDING)
        return [
            Traffic(np.where(packed, 0.0, per_part), source, "read", conflict),
            Traffic(np.where(packed, per_part, 0.0), source, "read", conflict, False),
            Traffic(np.where(packed, per_part, 0.0), self.level(near), "write", 1.0, False),
            Traffic(np.where(block > 0, assumed.STREAMED * blocks, 0.0), block, "read", slow),
            Traffic(np.where(inner > 0, assumed.STREAMED * panels, 0.0), inner, "read", slower),
        ]

    def left(self) -> list[Traffic]:
        shape, cuts = self.shape, self.cuts
        packed = cuts["pack_left"]
        stride = np.where(packed, 0, abs(shape.left_row_stride) * self.bytes)
        run = self.depth * self.bytes
        lies = {"stride": stride, "run": run}
        tile = np.minimum(cuts["blocks"] * self.left_block, shape.rows * self.bytes)
        between = self.level(tile * shape.depth + self.slice * shape.depth)
        once, again = float(self.left_all), float(self.left_all) * (self.column_parts - 1)
        groups = float(self.left_all) * (self.groups - np.where(packed, 0, self.column_parts))
        inner = self.level(self.left_block * self.depth + 2 * self.right_panel, **lies)
        written = assumed.COPIES * np.where(packed, once + again, 0.0)
        return [
            Traffic(once, self.everything, "read", 1.0),
            Traffic(again, between),
            Traffic(written, self.level(self.left_block * shape.depth), "write", 1.0, False),
            Traffic(np.where(inner > 0, groups, 0.0), inner),
            self.crowded(stride),
        ]

    def crowded(self, stride: Array) -> Traffic:
        """Lines of all rows of a panel are read at the same time: too many in one place push each
        other out before their next element is needed."""
        line = self.machine.levels[0].line
        active = self.level(self.rows * line, stride=stride, run=line, usable=1.0)
        lost = _CROWDED * float(self.left_all) * self.groups * line / self.bytes
        return Traffic(np.where(active > 0, lost, 0.0), active)

    def result(self) -> list[Traffic]:
        cuts = self.cuts
        tile = self.left_block * np.minimum(cuts["groups"] * self.width, self.shape.columns)
        partial = self.level(tile + 2 * self.right_panel)
        again = 2.0 * self.result_all * (self.depths - 1)
        return [
            Traffic(float(self.result_all), self.everything, "write"),
            Traffic(np.where(partial > 0, again, 0.0), partial, "copy"),
        ]
