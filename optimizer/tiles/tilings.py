"""Tilings as fusions bear them, and the tile functions that they name.

A contraction's fusion says in its attributes how it may be tiled, best first, for each kind of
units: rows (way, step, sizes of a tile ...), or why there are none. The pass `kernels` has chosen
them; whoever emits code takes the first that it has registers and shared memory for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from ...hlo.deciding import at_hint
from ...hlo.graph import Op, Region, Value
from ..cost.merging import Tile
from .build import TileGroup, build_kernel, make_group
from .implicit import build_implicit
from .write import Unwritable, writable

BLOCK_TILINGS = "girih.tilings"
"""Of a contraction: tilings for blocks of threads that copy and multiply; none of a convolution
whose windows are slid over, since a result sums one input feature."""

LARGEST_TILINGS = "girih.tilings_of_largest"
"""Of a contraction: tilings for units of the largest grain, which windows are brought for."""


def contraction_group(region: Region) -> tuple[TileGroup, Op]:
    """A region around one contraction as a group, and the contraction in it; Unwritable, with the
    reason, where that has no tiles."""
    mains = [op for op in region.ops if op.definition.pattern == "contract"]
    if len(mains) != 1:
        raise Unwritable(f"{len(mains)} contractions in one kernel")
    unwritable = [op for op in region.ops if not writable(op)]
    if unwritable:
        raise Unwritable(f"{unwritable[0].name} has no form on tiles")
    roots = region.results
    if any(root.dims != roots[0].dims or root.owner is region for root in roots):
        raise Unwritable("results of several shapes")
    if not all(roots[0].dims):
        raise Unwritable("an empty result")
    if not all(value.tensor.size for value in mains[0].operands):
        raise Unwritable("a sum of nothing")
    group = make_group(region.ops, region.arguments, roots)
    (main,) = (op for op in group.ops if op.name == mains[0].name)
    return group, main


def built(
    group: TileGroup,
    operands: Sequence[Value],
    name: str,
    sizes: Iterable[int],
    step: int,
    way: int,
) -> Op:
    """The kernel_call of a tiling of this group or an equal one."""
    if way == 0 and step:
        return build_implicit(group, operands, tuple(sizes), name, step)
    stream = group.streams()[way - 1] if way else None
    return build_kernel(group, operands, tuple(sizes), name, stream, step)


def tile_functions(op: Op, tilings: str) -> Iterator[Op | str]:
    """The kernel_calls of a contraction's fusion by the tilings of an attribute, best first; a text
    in place of one that cannot be written."""
    rows = op.attributes[tilings]
    if isinstance(rows, str):
        yield rows
        return
    group, main = contraction_group(op.regions[0])
    name = "convolution" if main.name == "convolution" else "contraction"
    for way, step, *sizes in rows:
        try:
            yield built(group, op.operands, name, sizes, step, way)
        except Unwritable as unwritable:
            yield str(unwritable)


def tile_of(op: Op, blocks: int, largest: bool) -> Tile | None:
    """The tile of a kernel's products where so many blocks run it: of a tile function that of its
    first product; of a contraction's fusion the first one of its tilings that makes as many blocks,
    or, where blocks walk over tiles, the first. largest: of those for units of the largest grain.
    None where there is none."""
    if op.name == "kernel_call":
        found = (one for one in op.regions[0].walk() if one.definition.pattern == "contract")
        main = next(found, None)
        return None if main is None else _sides(main)
    rows = op.attributes.get(LARGEST_TILINGS if largest else BLOCK_TILINGS, ())
    rows = () if isinstance(rows, str) else rows
    tilings = [sizes for _, _, *sizes in rows if len(sizes) == len(op.results[0].dims)]
    dims = [at_hint(dim) for dim in op.results[0].dims]
    counts = [math.prod(-(-d // s) for d, s in zip(dims, sizes, strict=True)) for sizes in tilings]
    if not tilings or not dims:
        return None
    sizes = tilings[counts.index(blocks) if blocks in counts else 0]
    *down, across = (min(size, max(dim, 1)) for size, dim in zip(sizes, dims, strict=True))
    return Tile(math.prod(down), across)


def _sides(main: Op) -> Tile:
    """Rows and columns of a product, or of a convolution, of tiles."""
    dims = [at_hint(dim) for dim in main.result.dims]
    if main.name != "dot_general":
        return Tile(math.prod(dims[:-1]), dims[-1])
    batches = len(main.lhs_batching_dimensions)
    summed = len(main.lhs_contracting_dimensions)
    free = batches + main.operands[0].rank - batches - summed
    return Tile(math.prod(dims[batches:free]), math.prod(dims[free:]))
