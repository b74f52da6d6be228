"""How a tile function runs on the machine: roles, rings, budgets of registers, order of tiles.

One warp group copies, one to three multiply. Panels of the loop lie in rings: stages that are
filled and released in turn. A product's result is awaited as late as its style allows:

CHAIN       products that only add to sums: the next one is issued before the last one is done
ROTATE      a product of a value that was computed from another product: that of the round before
            runs while the round's own values are computed
SEQUENCE    each is awaited at once
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ...hlo.deciding import at_hint, surely_at_most
from ...hlo.graph import Op, Value
from ...hlo.symbols import Dim, minimum
from ..tiles.raster import Raster, raster
from .analysis import mapped
from .epilogue_loads import EpilogueLoad, find_epilogue_loads
from .work import (
    COLUMN,
    Panel,
    PipelineProduct,
    PipelineWork,
    Roles,
    is_row,
    part_of,
    splat_of,
    trips,
)

if TYPE_CHECKING:
    from ...backends.capabilities import BoxCopies, Capabilities

_BARRIER = 8  # bytes
_MOST_STAGES = 8
_MOST_STAYING = 2  # stages of what stays for a tile
_MOST_ACCUMULATORS = 208  # registers of a thread that products may hold at once
_MOST_OF_THREE = 136, 96  # with three warp groups that multiply: of all, of one product
_GROUP = {1: 16, 2: 8}  # rows of tiles that are walked together, by blocks of a cluster
# Registers of a thread of (the copying, a multiplying) warp group, by multiplying groups: those of
# all threads are 64 K. Two groups in all have as many as a thread can have anyway.
_BUDGETS = {1: (0, 0), 2: (40, 232), 3: (32, 160)}
_BUDGETS_WIDE = {1: (0, 0), 2: (24, 240), 3: (32, 160)}


class Style(Enum):
    CHAIN = "chain"
    ROTATE = "rotate"
    SEQUENCE = "sequence"


@dataclass(frozen=True, eq=False)
class Ring:
    """Stages of panels that are filled together, at `offset`; its barriers stand at `barriers`:
    first those that say "full", one per stage, then those that say "empty"."""

    panels: tuple[Panel, ...]
    stages: int
    offset: int
    barriers: int
    moves: bool
    shares: tuple[int, ...]  # of each panel: blocks of the cluster that bring it together
    alignment: int  # bytes, of panels

    @property
    def stage_bytes(self) -> int:
        return _stage_bytes(self.panels, self.alignment)

    def place(self, panel: Panel) -> int:
        """The panel's offset in a stage."""
        at = 0
        for one in self.panels:
            if one is panel:
                return at
            at += _padded(one.bytes, self.alignment)
        raise KeyError(panel)


@dataclass(frozen=True, eq=False)
class StagedStore:
    """A store through shared memory, in chunks of `swizzle` bytes a row, `chunks` at a time. `box`:
    what of each dim in `order` the rows of a warp group and one chunk are; `strides`: rows from one
    to the next along each of them, 0 where it has one."""

    store: Op
    order: tuple[int, ...]
    box: tuple[int, ...]
    strides: tuple[int, ...]
    swizzle: int
    chunks: int


@dataclass(frozen=True, eq=False)
class PipelineConfiguration:
    """The decisions; offsets and sizes in bytes of shared memory."""

    work: PipelineWork
    style: Style
    groups: int  # warp groups that multiply
    rings: tuple[Ring, ...]
    first_products: tuple[PipelineProduct, ...]  # of the loop; ROTATE: those of windows alone
    second_products: tuple[PipelineProduct, ...]
    stores: dict[Op, StagedStore]  # those that are not here are direct
    staging: int  # offset
    staging_bytes: int  # of one group
    shared_bytes: int
    budget: tuple[int, int]
    cluster: int
    cluster_axis: int
    raster: Raster  # of the grid's tiles, or clusters of them
    reversed_axes: frozenset[int]  # axes that are walked from their end
    blocks: Dim
    ping_pong: bool
    epilogue_loads: tuple[EpilogueLoad, ...]

    @property
    def threads(self) -> int:
        return self.work.products[0].kind.threads * (1 + self.groups)

    @property
    def rows(self) -> int:
        """Rows of one warp group."""
        return self.work.rows // self.groups

    @property
    def tiles(self) -> Dim:
        """Of the whole grid, in clusters."""
        total: Dim = 1
        for size in self.work.kernel.grid:
            total *= size
        return total // self.cluster

    @property
    def walks(self) -> bool:
        """Whether a block may have several tiles."""
        return not surely_at_most(self.tiles * self.cluster, self.blocks)

    @property
    def epilogue_ring(self) -> Ring:
        """The ring that windows of the epilogue come through."""
        return next(ring for ring in self.rings if ring.moves)

    def ring(self, panel: Panel) -> Ring:
        return next(ring for ring in self.rings if panel in ring.panels)

    @property
    def overlaps(self) -> bool:
        """Whether products run while windows come or other products run."""
        return self.style is not Style.SEQUENCE or self.work.loop is None


def configure(work: PipelineWork, able: Capabilities) -> PipelineConfiguration | str:
    """The configuration of a tile function; or why the machine is too small for it."""
    assert able.boxes is not None
    style, first, second = _style(work)
    groups = _groups(work, style, first, second)
    if isinstance(groups, str):
        return groups
    cluster, axis = _cluster(work, style, able)
    bundles = _bundles(work, style, first, second)
    memory = _memory(work, groups, bundles, able)
    if isinstance(memory, str):
        return memory
    stores, staging, stages = memory
    alignment, fixed = able.boxes.alignment, groups * staging
    rings: list[Ring] = []
    offset = barriers = 0
    starts = []
    for (panels, moves), count in zip(bundles, stages, strict=True):
        starts.append((panels, moves, count, offset, barriers))
        offset += count * _stage_bytes(panels, alignment)
        barriers += 2 * count * _BARRIER
    base = offset + fixed
    for panels, moves, count, at, barrier in starts:
        shares = tuple(
            cluster if cluster > 1 and axis not in work.depends(p.op.offsets) else 1 for p in panels
        )
        rings.append(Ring(panels, count, at, base + barrier, moves, shares, alignment))
    moving = [ring for ring in rings if ring.moves]
    total = base + barriers
    clusters = _tiles(work) // cluster
    wide = style is Style.ROTATE
    return PipelineConfiguration(
        work, style, groups, tuple(rings), first, second, stores, offset, staging, total,
        (_BUDGETS_WIDE if wide else _BUDGETS)[groups], cluster, axis,
        _order(work, cluster), _reversed_axes(work),
        cluster * minimum(clusters, able.processors // cluster),
        wide and groups == 2,
        find_epilogue_loads(work, moving[0].stages, moving[0].stage_bytes, able)
        if style is Style.CHAIN else (),
    )  # fmt: skip


def _tiles(work: PipelineWork) -> Dim:
    total: Dim = 1
    for size in work.kernel.grid:
        total *= size
    return total


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _stage_bytes(panels: Sequence[Panel], alignment: int) -> int:
    return sum(_padded(panel.bytes, alignment) for panel in panels)


# Styles.


def _style(
    work: PipelineWork,
) -> tuple[Style, tuple[PipelineProduct, ...], tuple[PipelineProduct, ...]]:
    inner = work.inner
    if work.loop is None or not inner:
        return Style.SEQUENCE, inner, ()
    least = trips(work)
    runs = least is not None and surely_at_most(1, least[0])
    if runs and all(_chains(work, product) for product in inner):
        return Style.CHAIN, inner, ()
    first = tuple(p for p in inner if isinstance(p.left, Panel) and p.addend is None)
    second = tuple(p for p in inner if p not in first)
    if runs and first and len(second) == 1 and _rotates(work, first, second[0]):
        return Style.ROTATE, first, second
    return Style.SEQUENCE, inner, ()


def _chains(work: PipelineWork, product: PipelineProduct) -> bool:
    """Whether the product only adds windows' product to a sum that the loop carries."""
    loop = work.loop
    assert loop is not None
    body, addend = loop.regions[0], product.addend
    if addend is None or not isinstance(product.left, Panel) or addend.owner is not body:
        return False
    return (
        addend.index > 0
        and body.results[addend.index - 1] is product.result
        and len(body.uses[addend]) == 1
        and len(body.uses[product.result]) == 1
    )


def _rotates(work: PipelineWork, first: Sequence[PipelineProduct], second: PipelineProduct) -> bool:
    """Whether the second product's result is only carried on, so that it may come a round later."""
    loop = work.loop
    assert loop is not None
    body = loop.regions[0]
    uses = body.uses[second.result]
    return (
        isinstance(second.left, Value)
        and len(uses) == 1
        and uses[0][0] is None
        and not ({p for h in first for p in h.panels} & set(second.panels))
    )


def carried_zero(work: PipelineWork, product: PipelineProduct) -> bool:
    """Whether the sum that a product adds to starts as zeros."""
    loop, addend = work.loop, product.addend
    assert loop is not None and addend is not None
    number = splat_of(loop.operands[2 + addend.index - 1])
    return number is not None and number == 0


# Machine.


def _groups(
    work: PipelineWork,
    style: Style,
    first: Sequence[PipelineProduct],
    second: Sequence[PipelineProduct],
) -> int | str:
    """Warp groups that multiply: enough for the sums to fit their registers; or why none are."""
    blocks = work.rows // work.products[0].kind.grain[0]
    live = sum(product.columns for product in work.products) // 2
    if style is Style.ROTATE:  # results, and operands of 16 bits
        live = (
            sum(p.columns for p in first) // 2 + sum(p.columns + p.depth // 2 for p in second) // 2
        )
    widest = max(product.columns for product in work.products) // 2
    for groups in (2, 3, 1):
        each = blocks // groups
        if blocks % groups or each * live > _MOST_ACCUMULATORS:
            continue
        if groups < 3 or each * live <= _MOST_OF_THREE[0] and each * widest <= _MOST_OF_THREE[1]:
            return groups
    return f"sums of {work.rows} rows and {2 * live} columns do not fit the registers"


def _cluster(work: PipelineWork, style: Style, able: Capabilities) -> tuple[int, int]:
    """(blocks of a cluster, the axis of the grid along which they stand): neighbours share panels
    of the loop that do not depend on that axis. Only where tiles come in several waves."""
    alone = (1, -1)
    if style is not Style.CHAIN or not able.clusters:
        return alone
    if at_hint(_tiles(work)) < 2 * able.processors:
        return alone
    assert work.loop is not None
    bounds = work.depends(work.loop.operands[:2])
    panels = [panel for panel in work.panels if panel.moves]
    best = alone
    most = 0
    for axis, size in enumerate(work.kernel.grid):
        if size % 2 or axis in bounds:
            continue
        shared = [p for p in panels if axis not in work.depends(p.op.offsets)]
        bytes_ = sum(panel.bytes for panel in shared)
        if bytes_ > most and all(map(_halves, shared)):
            best, most = (2, axis), bytes_
    return best


def _halves(panel: Panel) -> bool:
    """Whether two blocks can bring a half of the panel each."""
    slowest = panel.sizes[panel.order[panel.outer_places[-1]]]
    return slowest % 2 == 0 and panel.outer % 16 == 0


def _order(work: PipelineWork, cluster: int) -> Raster:
    """Of the tiles: blocks of rows by columns where panels move in the loop."""
    lefts: set[int] = set()
    rights: set[int] = set()
    for product in work.inner:
        if isinstance(product.left, Panel):
            lefts |= work.depends(product.left.op.offsets)
        rights |= work.depends(product.right.op.offsets)
    rank = len(work.kernel.grid)
    if not any(panel.moves for panel in work.panels):
        return Raster(tuple(range(rank)))
    return raster(rank, lefts, rights, _GROUP[cluster])


def _reversed_axes(work: PipelineWork) -> frozenset[int]:
    """Axes on which the length of the walk depends: where tiles grow along them, as under a
    diagonal, the long ones come first and the short ones fill what is left at the end."""
    if work.loop is None:
        return frozenset()
    lower, upper = (work.depends([value]) for value in work.loop.operands[:2])
    return frozenset(upper - lower)


def _bundles(
    work: PipelineWork,
    style: Style,
    first: Sequence[PipelineProduct],
    second: Sequence[PipelineProduct],
) -> list[tuple[tuple[Panel, ...], bool]]:
    """Panels that are filled together: those that stay, then those of first and of second
    products."""
    staying = tuple(panel for panel in work.panels if not panel.moves)
    found: list[tuple[tuple[Panel, ...], bool]] = [((panel,), False) for panel in staying]
    for products in (first, second) if style is not Style.SEQUENCE else [(p,) for p in first]:
        known = {panel for panels, _ in found for panel in panels}
        panels = tuple(
            dict.fromkeys(p for one in products for p in one.panels if p.moves and p not in known)
        )
        if panels:
            found.append((panels, True))
    return found


def _memory(
    work: PipelineWork, groups: int, bundles: Sequence[tuple[tuple[Panel, ...], bool]],
    able: Capabilities,
) -> tuple[dict[Op, StagedStore], int, list[int]] | str:  # fmt: skip
    """(staged stores, bytes of staging of one warp group, stages): with less staging, or none,
    where the windows would not fit else; or why they do not."""
    assert able.boxes is not None
    rows, reason = work.rows // groups, ""
    sizes = [_stage_bytes(panels, able.boxes.alignment) for panels, _ in bundles]
    for chunks in (2, 1, 0):
        stores = _stores(work, groups, chunks, able.boxes)
        staging = max((rows * s.swizzle * s.chunks for s in stores.values()), default=0)
        moving = [moves for _, moves in bundles]
        stages = _stages(work, moving, sizes, able.shared_bytes - groups * staging)
        if not isinstance(stages, str):
            return stores, staging, stages
        reason = stages
    return reason


def _stages(
    work: PipelineWork, moving: Sequence[bool], sizes: Sequence[int], free: int
) -> list[int] | str:
    """Stages of each ring: one for what stays, and for the others as many as fit; or why they do
    not. moving: whether rings are filled in the loop; sizes: bytes of a stage of each."""
    known = trips(work)
    least = 2 if known is None or not surely_at_most(known[1], 1) else 1
    counts = [least if moves else 1 for moves in moving]
    # What stays for a tile is brought ahead for the next one where nothing moves in a loop.
    most = [_MOST_STAGES if moves else 1 for moves in moving]
    if not any(moving):
        most = [_MOST_STAYING] * len(sizes)
    free -= 2 * _BARRIER * sum(most)

    def used() -> int:
        return sum(count * size for count, size in zip(counts, sizes, strict=True))

    if used() > free:
        return f"its windows need {used()} bytes of shared memory, {free} are there"
    growing = True
    while growing:
        growing = False
        for place, limit in enumerate(most):
            if counts[place] < limit and used() + sizes[place] <= free:
                counts[place] += 1
                growing = True
    return counts


def _stores(
    work: PipelineWork, groups: int, chunks: int, boxes: BoxCopies
) -> dict[Op, StagedStore]:
    """The stores that go through shared memory and the copy engine, at most so many chunks at a
    time."""
    found: dict[Op, StagedStore] = {}
    for store in work.stores if chunks else ():
        staged = _staged(work, store, work.rows // groups, chunks, boxes)
        if staged is not None:
            found[store] = staged
    return found


def _staged(
    work: PipelineWork, store: Op, rows: int, most: int, boxes: BoxCopies
) -> StagedStore | None:
    memory, value = store.operands[:2]
    roles: Roles = work.roles[value]
    order, places, reason = mapped(memory, value.dims, boxes)
    if reason or memory.element.bits not in (16, 32) or not memory.element.is_float:
        return None
    if roles[order[0]] != COLUMN or rows > boxes.box:
        return None
    box, strides = [1] * len(order), [0] * len(order)
    for place in places:
        role, size = roles[order[place]], value.dims[order[place]]
        if not is_row(role):
            return None
        strides[place] = part_of(role, size).stride
        box[place] = min(size, max(1, rows // strides[place]))
    if math.prod(box) != rows or [s for s in strides if s] != sorted(s for s in strides if s):
        return None
    width = memory.element.bits // 8
    columns = value.dims[order[0]]
    swizzle = next((s for s in boxes.swizzles if columns * width % s == 0), 0)
    if not swizzle or columns % 16:
        return None
    chunks = columns * width // swizzle
    box[0] = swizzle // width
    at_once = most if chunks % most == 0 else 1
    return StagedStore(store, order, tuple(box), tuple(strides), swizzle, at_once)
