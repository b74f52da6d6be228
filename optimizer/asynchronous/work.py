"""A tile function as units see it that multiply while windows come: panels, products, and roles of
dims."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...hlo.graph import Op, Value, constant_of
from ...hlo.offsets import Offsets
from ...hlo.symbols import Dim, ceildiv, maximum

if TYPE_CHECKING:
    from ...backends.capabilities import MatrixUnit

ROW, COLUMN, UNIT = "row", "column", ""
Roles = tuple[str, ...]


class RowDim(NamedTuple):
    """One of several dims that together count the `rows`: row // stride % size."""

    stride: int
    size: int
    rows: int

    @property
    def role(self) -> str:
        whole = self.stride == 1 and self.size == self.rows
        return ROW if whole else f"{ROW} {self.stride} {self.size} {self.rows}"


def is_row(role: str) -> bool:
    """Whether a dim is, or is part of, the rows."""
    return role.startswith(ROW)


def part_of(role: str, size: int) -> RowDim:
    """What of the rows a dim of `size` is that has a row's role."""
    if role == ROW:
        return RowDim(1, size, size)
    _, stride, own, rows = role.split()
    return RowDim(int(stride), int(own), int(rows))


@dataclass(frozen=True, eq=False)
class Panel:
    """A window in shared memory: `outer` rows of `inner` neighbouring elements.

    It lies as chunks of `swizzle` bytes, one behind the other, each with all rows. `order` are the
    memory's dims that count, fastest first: the first is the inner one; those at `outer_places`
    together count the rows. `sizes` and `steps` are of all dims of the memory: every so many-th
    element of the window is there.
    """

    op: Op
    slot: int  # of the memory among the kernel's operands and results
    outer: int
    inner: int
    order: tuple[int, ...]
    outer_places: tuple[int, ...]
    swizzle: int
    moves: bool  # in the loop
    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def element(self) -> str:
        return self.op.result.element.name

    @property
    def width(self) -> int:
        """Bytes of one element."""
        return self.op.result.element.bits // 8

    @property
    def chunk(self) -> int:
        """Elements of a row of one chunk."""
        return self.swizzle // self.width

    @property
    def chunks(self) -> int:
        return self.inner // self.chunk

    @property
    def bytes(self) -> int:
        return self.outer * self.inner * self.width


def box_width(size: int, step: int) -> int:
    """How wide a box has to be of which the copy engine takes `size` elements, every so many-th."""
    return size * step


@dataclass(frozen=True, eq=False)
class PipelineProduct:
    """A dot: `result` is rows x columns in registers.

    left: a panel, or a value of the threads themselves. `*_depth_first`: the panel's inner dim is
    not the depth. `addend` is what the product is added to; `result` is that sum then.
    """

    op: Op
    kind: MatrixUnit
    rows: int
    columns: int
    depth: int
    left: Panel | Value
    right: Panel
    left_depth_first: bool
    right_depth_first: bool
    result: Value
    addend: Value | None

    @property
    def panels(self) -> tuple[Panel, ...]:
        return (self.left, self.right) if isinstance(self.left, Panel) else (self.right,)


@dataclass(frozen=True, eq=False)
class PipelineWork:
    """A tile function as the pipeline sees it. `rows` of all products; `loop` is None where there
    is one window along the depth."""

    kernel: Op
    rows: int
    loop: Op | None
    products: tuple[PipelineProduct, ...]
    roles: dict[Value, Roles]
    offsets: Offsets
    stores: tuple[Op, ...]

    @property
    def inner(self) -> tuple[PipelineProduct, ...]:
        """The products of the loop, in order."""
        return tuple(p for p in self.products if self.in_loop(p.op))

    @property
    def outer(self) -> tuple[PipelineProduct, ...]:
        return tuple(p for p in self.products if not self.in_loop(p.op))

    def in_loop(self, op: Op) -> bool:
        return self.loop is not None and op in self.loop.regions[0].ops

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Each panel once, in order of first use."""
        return tuple(dict.fromkeys(panel for p in self.products for panel in p.panels))

    def slot(self, memory: Value) -> int:
        return memory.index

    def of(self, value: Value) -> PipelineProduct | None:
        """The product that gives a value."""
        for product in self.products:
            if value in (product.result, product.op.result):
                return product
        return None

    def depends(self, values: Iterable[Value]) -> set[int]:
        """The axes of the grid on which values depend."""
        axes: set[int] = set()
        seen: set[Value] = set()
        pending = list(values)
        while pending:
            value = pending.pop()
            if value in seen or value.op is None:
                continue
            seen.add(value)
            if value.op.name == "tile_id":
                axes.add(value.op.axis)
            pending.extend(value.op.operands)
        return axes


def shape(value: Value) -> tuple[int, ...]:
    """The dims that are not 1."""
    return tuple(n for n in value.dims if n != 1)


def trips(work: PipelineWork) -> tuple[Dim, Dim] | None:
    """(least, most) rounds of the loop; None where the bounds say nothing."""
    if work.loop is None:
        return None
    lower, upper = (work.offsets.of(value) for value in work.loop.operands[:2])
    low, high = work.offsets.range(upper.plus(lower, -1))
    step = work.loop.step
    return maximum(0, ceildiv(low, step)), maximum(0, ceildiv(high, step))


def splat_of(value: Value) -> object | None:
    """The number of a constant that is one number everywhere."""
    dense = constant_of(value)
    return dense.splat_value if dense is not None and dense.is_splat else None
