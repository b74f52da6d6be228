"""Products of a fusion as tile functions for the pipeline, with the tile that suits the machine.

A tile's time is the longer of its products and of what it reads from the L2 cache, and something
fixed around them; the tiles go over the multiprocessors in waves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ....hlo.deciding import at_hint, surely_at_most
from ....hlo.graph import Op, Region
from ....optimizer.tiles.build import Group, build_kernel, make_group
from ....optimizer.tiles.streaming import Stream, streams
from ....optimizer.tiles.write import Unwritable, writable
from .. import implicit
from ..frame import Unfit
from ..launch import KernelCode
from ..target import Architecture, Target
from .emit import code_of, plan_of
from .instructions import KINDS, ROWS
from .schedule import Schedule

_ROWS = (128, 64, 256, 192)
_PIXELS = (128, 64, 256)  # of a convolution's tile: boxes of powers of two
_COLUMNS = (256, 128, 192, 64, 96, 160, 32, 16, 8)
_LARGEST = 128 * 256  # elements; larger ones leave too few stages of windows
_STEP_BYTES = 128  # of a row of an operand, in one turn of the loop
_MOST_DEPTH = 4  # times that, where another summed dim is whole
_STEP_CLOCKS = 8  # of 64 rows, 16 columns and 32 bytes of depth on the matrix units
_CACHE = 64.0  # bytes per clock and multiprocessor from the L2 cache
_POWER = 0.3  # of the time of reads that is lost though products hide them: less clock
_FIXED = 900.0  # clocks of a tile around its loop, of 128 x 128 elements
_TRIES = 8


def emit(op: Op, region: Region, target: Target) -> KernelCode:
    """The kernel of a fusion around one product; Unfit, with the reason, where it is none for the
    pipeline."""
    reason = "no tile of its result stands alone"
    for call in calls(op, region, target):
        try:
            return code_of(plan_of(call, target), target)
        except Unfit as unfit:
            reason = str(unfit)
    raise Unfit(reason)


def clocks(region: Region, target: Target) -> float:
    """What a region around one product is predicted to take."""
    convolutions = [inner for inner in region.ops if inner.name == "convolution"]
    if convolutions:
        price = _pixel_price(convolutions[0], target.architecture)
        return implicit.least(region, _PIXELS, _COLUMNS, price)
    roots = region.results
    group = make_group(region.ops, region.arguments, roots)
    (inner,) = (one for one in group.ops if one.name == "dot_general")
    found = _sizes(group, inner, target.architecture)
    return found[0][0] if found else math.inf


def plan(op: Op, region: Region, target: Target) -> Schedule:
    """What `emit` would run."""
    reason = "no tile of its result stands alone"
    for call in calls(op, region, target):
        try:
            return plan_of(call, target)
        except Unfit as unfit:
            reason = str(unfit)
    raise Unfit(reason)


def calls(op: Op, region: Region, target: Target) -> Iterator[Op]:
    """The fusion as kernel_calls, best tile first."""
    convolutions = [inner for inner in region.ops if inner.name == "convolution"]
    products = [inner for inner in region.ops if inner.name == "dot_general"]
    if len(convolutions) == 1 and not products:
        yield from _convolution(op, region, convolutions[0], target.architecture)
        return
    if len(products) != 1:
        raise Unfit(f"{len(products)} products in one kernel")
    (product,) = products
    kinds = tuple(value.element.name for value in product.operands)
    if kinds not in KINDS or not product.result.tensor.size:
        raise Unfit(f"a product of {' and '.join(kinds)}")
    if not all(map(writable, region.ops)):
        raise Unfit("an operation of it has no form on tiles")
    roots = region.results
    dims = roots[0].dims
    if any(root.dims != dims or root.owner is region for root in roots) or len(dims) < 2:
        raise Unfit("results of several shapes, or of less than two dims")
    group = make_group(region.ops, region.arguments, roots)
    (inner,) = (one for one in group.ops if one.name == "dot_general")
    stream, step = _stream(group, inner)
    for _, sizes in _sizes(group, inner, target.architecture):
        try:
            yield build_kernel(group, op.operands, sizes, "contraction", stream, step)
        except Unwritable:
            continue


def _stream(group: Group, product: Op) -> tuple[Stream | None, int]:
    """How the sum is walked, and how much of it in one turn; other summed dims are whole then."""
    step = _STEP_BYTES // product.operands[0].element.itemsize
    depths = product.lhs_contracting_dimensions
    total = math.prod(product.operands[0].dims[dim] for dim in depths)
    ways = [way for way in streams(group.ops, group.roots) if product in way.inner]
    if not ways or surely_at_most(total, step):
        return None, 0
    # Of several summed dims, one whose others are whole in a row of the window.
    others = [(way, total // way.extent) for way in ways]
    others = [(way, count) for way, count in others if isinstance(count, int)]
    if not others:
        raise Unfit("calls decide several of its summed dims")
    way, count = min(others, key=lambda one: not _fills(one[1], step))
    return way, max(1, step // count)


def _fills(others: int, step: int) -> bool:
    return step % others == 0 or others % step == 0 and others <= _MOST_DEPTH * step


def _sizes(
    group: Group, product: Op, architecture: Architecture
) -> list[tuple[float, tuple[int, ...]]]:
    """Tile sizes of the result, best first, and the clocks that they are predicted to take: the
    last dim is columns, the one before rows, or the other way round."""
    dims = group.roots[0].dims
    element = product.operands[0].element
    count = max(1, at_hint(product.result.tensor.size))
    depth = product.definition.flops(product) / 2 / count
    likely = [at_hint(dim) for dim in dims]
    scored: list[tuple[float, tuple[int, ...]]] = []
    for rows in _ROWS:
        for columns in _COLUMNS:
            if rows * columns > _LARGEST:
                continue
            for first, second in ((rows, columns), (columns, rows)):
                if _wasteful(first, likely[-2]) or _wasteful(second, likely[-1]):
                    continue
                if first < ROWS and first != columns:
                    continue
                tiles = math.prod(likely[:-2]) * -(-likely[-2] // first) * -(-likely[-1] // second)
                price = _price(rows, columns, tiles, depth * element.itemsize, architecture)
                # Rows that lie along the last dim are stored with more, smaller accesses.
                turned = 1.3 if first == columns and rows != columns else 1.0
                sizes = (*(1 for _ in dims[:-2]), first, second)
                scored.append((price * turned, sizes))
    known: dict[tuple[int, ...], float] = {}
    for score, sizes in sorted(scored):
        known.setdefault(sizes, score)
    return [(score, sizes) for sizes, score in known.items()][:_TRIES]


def _price(rows: int, columns: int, tiles: int, depth: float, architecture: Architecture) -> float:
    """Clocks of so many tiles whose sums are over `depth` bytes of each operand."""
    steps = rows / ROWS * columns / 16 * depth / 32
    traffic = (rows + columns) * depth / _CACHE
    around = _FIXED * (0.3 + 0.7 * rows * columns / (128 * 128))
    each = max(_STEP_CLOCKS * steps, traffic) + _POWER * traffic + around
    waves = -(-tiles // architecture.multiprocessors)
    # Tiles that are no powers of two have fewer choices of what neighbours share.
    return waves * each * (1.03 if rows == 192 or columns & (columns - 1) else 1.0)


def _convolution(op: Op, region: Region, main: Op, architecture: Architecture) -> Iterator[Op]:
    """A convolution as kernel_calls, best tile first."""
    kinds = tuple(value.element.name for value in main.operands)
    if kinds not in KINDS or not main.result.tensor.size:
        raise Unfit(f"a convolution of {' and '.join(kinds)}")
    price = _pixel_price(main, architecture)
    return implicit.calls(op.operands, region, _PIXELS, _COLUMNS, price)


def _pixel_price(main: Op, architecture: Architecture) -> implicit.Price:
    """What tiles of a convolution's pixels and features cost."""
    size = main.operands[0].element.itemsize

    def price(rows: int, columns: int, tiles: int, depth: float) -> float:
        if rows * columns > _LARGEST:
            return math.inf
        return _price(rows, columns, tiles, depth * size, architecture)

    return price


def _wasteful(size: int, dim: int) -> bool:
    """Whether a tile is more than twice what the dim needs."""
    return size >= 2 * dim and size > 8
