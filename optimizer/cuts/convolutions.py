"""Which blocking a convolution gets: a product whose left side is windows of an image.

Windows of a row block are unfolded into scratch for each tile, one by one or as lines that
neighbours share; single pixels may be read where they lie. A tile is one row block of some column
groups, and the depth is not cut.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..cost import assumed
from ..cost.construct import score
from ..cost.model import Features, Traffic
from ..machine import Machine
from . import products
from .product_prices import ProductCounts
from .products import Blocking, ProductShape

FIELDS = np.dtype([*((name, products.FIELDS[name]) for name in products.FIELDS.names or ()),
                   ("way", np.int64)])  # fmt: skip
MOST_PACKED = 19 << 15  # bytes of a row block that is packed: what workers may hold each


@dataclass(frozen=True)
class Unfolding:
    """A way to bring rows. row_bytes: of scratch, of a row; 0: it is read in place. runs: that are
    copied for a row. Of lines: the rows of a panel, and panels that a row block has a multiple of;
    panel 0: rows one by one, in panels of what registers hold. several: whether a row block may
    have several such units."""

    row_bytes: float
    runs: float
    panel: int = 0
    unit: int = 1
    several: bool = True


@dataclass(frozen=True)
class ConvolutionShape:
    """What decides which blockings a convolution has, and what they cost. image_bytes: what all
    rows see. share: of the kernel's results, those that this part of it computes."""

    product: ProductShape
    ways: tuple[Unfolding, ...]
    image_bytes: int
    share: float = 1.0


def candidates(shape: ConvolutionShape) -> np.ndarray:
    """All eligible blockings, elements of `FIELDS`, each once and in a fixed order."""
    product = shape.product
    found = []
    for number, way in enumerate(shape.ways):
        for vectors in products.vector_choices(product):
            most = products.most_rows(product, vectors, way.row_bytes > 0)
            if way.panel > most:
                continue
            rows = way.panel or most
            panels = products.row_panels(product.rows, rows)[0]
            groups = -(-product.columns // (vectors * product.lanes))
            axes = _powers(-(-panels // way.unit)) if way.several else [1], _powers(groups)
            for units, some in itertools.product(*axes):
                if units > 1 and units * way.unit * rows * way.row_bytes > MOST_PACKED:
                    continue
                found.append((
                    rows, vectors, product.depth, min(panels, units * way.unit), 1, some,
                    way.row_bytes > 0, False, number,
                ))  # fmt: skip
    return np.array(found, FIELDS)


def _powers(limit: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ... and `limit` itself."""
    steps = [n << bit for bit in range(limit.bit_length()) for n in (2, 3)]
    return sorted({1, limit, *(n for n in steps if n < limit)})


class ConvolutionCut(NamedTuple):
    """How a convolution is cut; way: the number of that in which rows are brought."""

    blocking: Blocking
    way: int


@functools.lru_cache(4096)
def choose(shape: ConvolutionShape, machine: Machine) -> ConvolutionCut:
    """The fastest predicted cut for 1, 2, ... of the machine's executors: how many there will be is
    not known, and few large tiles suit few of these counts."""
    problem = ConvolutionProblem(shape)
    every = problem.configurations
    most = math.ceil(machine.executors * shape.share)
    tasks = np.asarray(problem.features(every, machine, 1).tasks)
    total = np.zeros(len(every))
    for count in range(1, most + 1):
        found = score(problem, every, machine, count)
        time = found.time + (assumed.LATER * found.area / tasks if count > 1 else 0.0)
        total = total + time / time.min()
    return cut_of(every[int(np.argmin(total))])


def cut_of(row: np.void) -> ConvolutionCut:
    """One element of `candidates`."""
    values: Any = row.item()
    return ConvolutionCut(Blocking(*values[:-1]), values[-1])


@dataclass(frozen=True)
class ConvolutionProblem:
    """The choice of a convolution's blocking."""

    shape: ConvolutionShape

    @property
    def configurations(self) -> np.ndarray:
        return candidates(self.shape)

    def footprint(self, configurations: np.ndarray) -> np.ndarray:
        return (
            _row_bytes(self.shape, configurations)
            * configurations["panels"]
            * (configurations["rows"])
        )

    def features(self, configurations: np.ndarray, machine: Machine, executors: int) -> Features:
        """See products.py for the order of the loops."""
        return _WindowCounts(self.shape, configurations, machine, executors).features()


def _row_bytes(shape: ConvolutionShape, cuts: np.ndarray) -> np.ndarray:
    return np.array([way.row_bytes for way in shape.ways])[cuts["way"]]


class _WindowCounts(ProductCounts):
    """Of a product whose left side is unfolded for each tile."""

    def __init__(
        self, shape: ConvolutionShape, cuts: np.ndarray, machine: Machine, executors: int
    ) -> None:
        super().__init__(shape.product, cuts, machine, executors)
        self.windows = shape
        self.unfolded = _row_bytes(shape, cuts)
        self.row = np.where(self.unfolded > 0, self.unfolded, self.depth * self.bytes)
        self.runs = np.array([way.runs for way in shape.ways])[cuts["way"]]
        self.block = np.minimum(cuts["panels"] * self.rows, shape.product.rows)  # rows
        self.all_rows = float(shape.product.outer * shape.product.rows)

    def packed(self) -> np.ndarray:
        vectors = self.unfolded / (self.shape.lanes * self.bytes)
        each = assumed.UNFOLDED * vectors + assumed.RUN * self.runs
        return self.column_parts * self.all_rows * each

    def left(self) -> list[Traffic]:
        in_place, stride = self.unfolded == 0, abs(self.shape.left_row_stride) * self.bytes
        image = float(self.windows.image_bytes) * self.column_parts
        source = self.level(self.windows.image_bytes)
        copied = self.all_rows * self.unfolded * self.column_parts
        groups = self.all_rows * self.row * (self.groups - np.where(in_place, self.column_parts, 0))
        block = self.block * self.row  # bytes
        stride = np.where(in_place, stride, 0)
        inner = self.level(block + 2 * self.right_panel, stride=stride, run=self.row)
        return [
            Traffic(np.where(in_place, image, 0.0), source),
            Traffic(np.where(in_place, 0.0, image), source, overlapped=False),
            Traffic(copied, self.level(block), "write", assumed.COPIES, False),
            Traffic(np.where(inner > 0, assumed.FETCHED * groups, 0.0), inner),
            self.crowded(stride),
        ]

    def right(self) -> list[Traffic]:
        """Packed panels, once per row block. Row panels read them again."""
        shape = self.shape
        near = self.slice * shape.depth + self.block * self.row
        source = np.maximum(self.level(self.right_all + near), self.level(near))
        inner = self.level(self.right_panel + self.rows * self.row)
        again = float(self.right_all) * (self.panels - self.row_parts)
        again = np.where(inner > 0, assumed.STREAMED * again, 0.0)
        return [
            Traffic(float(self.right_all) * self.row_parts, source),
            Traffic(again, inner),
        ]
