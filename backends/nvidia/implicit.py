"""Convolutions as products over their taps: which boxes of pixels and which columns make a tile.

Both ways to a product, Hopper's pipeline and a block of threads, price tiles of rows and columns;
here are the tiles of a convolution, whose rows are a box of pixels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from ...hlo.deciding import at_hint
from ...hlo.graph import Op, Region, Value
from ...optimizer.tiles.build import make_group, tile_counts
from ...optimizer.tiles.implicit import (
    boxes,
    build_implicit,
    group_features,
    pixel_dims,
    refusal,
    step_of,
    taps,
)
from ...optimizer.tiles.write import Unwritable, writable
from .frame import Unfit

Price = Callable[[int, int, int, float], float]
"""What tiles of so many (rows, columns) cost, so many of them, with a sum of that depth."""

_STEP_BYTES = 128  # of a pixel's features, in one turn of the loop
_LEAST_BYTES = 32  # that a matrix instruction takes
_TRIES = 8
_BOXES = 2  # ways to lay the rows of a tile over pixels


def calls(
    operands: Sequence[Value],
    region: Region,
    rows: Sequence[int],
    columns: Sequence[int],
    price: Price,
) -> Iterator[Op]:
    """The kernel_calls of a region around one convolution, cheapest first; Unfit where it is no
    product over its taps."""
    (main,) = (op for op in region.ops if op.name == "convolution")
    reason = refusal(main)
    if reason:
        raise Unfit(reason)
    if not all(map(writable, region.ops)):
        raise Unfit("an operation of it has no form on tiles")
    if any(root.owner is region for root in region.results):
        raise Unfit("a result that is an operand")
    group = make_group(region.ops, region.arguments, region.results)
    (main,) = (op for op in group.ops if op.name == "convolution")
    step = step_bytes(main) // main.operands[0].element.itemsize
    for _, sizes in _sizes(main, step, rows, columns, price):
        try:
            yield build_implicit(group, operands, sizes, "convolution", step)
        except Unwritable as unfit:
            reason = str(unfit)
    if reason:
        raise Unfit(reason)


def least(region: Region, rows: Sequence[int], columns: Sequence[int], price: Price) -> float:
    """The price of the cheapest tiles of a region around one convolution."""
    (main,) = (op for op in region.ops if op.name == "convolution")
    step = step_bytes(main) // main.operands[0].element.itemsize
    return min((cost for cost, _ in _sizes(main, step, rows, columns, price)), default=math.inf)


def step_bytes(main: Op) -> int:
    """Bytes of a pixel that one turn of the loop multiplies."""
    size = main.operands[0].element.itemsize
    depth, _ = group_features(main)
    return step_of(depth, _STEP_BYTES // size, _LEAST_BYTES // size) * size


def _sizes(
    main: Op, step: int, rows: Sequence[int], columns: Sequence[int], price: Price
) -> list[tuple[float, tuple[int, ...]]]:
    """Tiles of the convolution's result and their prices, cheapest first."""
    dims, pixels = main.result.dims, pixel_dims(main)
    depth, features = group_features(main)
    deep = math.prod(taps(main)) * -(-depth // step) * step
    scored: list[tuple[float, tuple[int, ...]]] = []
    for down, across in itertools.product(rows, columns):
        if main.feature_group_count != 1 and features % across:
            continue
        if across >= 2 * features and across > min(columns):
            continue
        for box in itertools.islice(boxes([at_hint(dims[d]) for d in pixels], down), _BOXES):
            sizes = [across] * len(dims)
            for d, size in zip(pixels, box, strict=True):
                sizes[d] = size
            tiles = at_hint(math.prod(tile_counts(dims, sizes)))
            scored.append((price(down, across, tiles, deep), tuple(sizes)))
    scored.sort(key=lambda one: one[0])  # of equal prices the first
    return scored[:_TRIES]
