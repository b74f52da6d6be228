"""A product or a convolution with what is fused around it, as a tile function of its own.

For units of the largest grain, which copies and products of other warps keep busy, and for blocks
whose threads do both: how the sum is walked, which sizes of tiles there are, and what they cost.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from ...hlo.deciding import at_hint, surely_at_most
from ...hlo.graph import Op
from ...hlo.symbols import Dim, SymbolicDim
from ..cost.blocks import BlockCounter
from ..cost.estimate import Tiling, priced
from ..machine import Machine
from .build import TileGroup, make_group
from .implicit import boxes, group_features, pixel_dims, refusal, step_of
from .streaming import StreamedGroup
from .write import Unwritable

TURN = 128  # bytes of a row of an operand, in one turn of the loop
_LEAST_TURN = 32  # bytes that a matrix instruction takes
_MOST_DEPTH = 4  # turns of one summed dim that is whole in each
_LARGEST = 128 * 256  # elements of a tile; larger ones leave too few stages of windows
NOISE = 1.02  # times that differ by less are one
_BOXES = 2  # ways to lay the rows of a tile over pixels


class ContractionSides(NamedTuple):
    """Sizes that tiles may have; of convolutions, pixels are boxes of powers of two."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    pixels: tuple[int, ...]
    features: tuple[int, ...]


_OF_BLOCKS = ContractionSides(
    (16, 32, 64, 128), (16, 32, 64, 128), (16, 32, 64, 128), (8, 16, 32, 64, 128)
)
_WIDE = (256, 128, 192, 64, 96, 160, 32, 16, 8)
_OF_LARGEST = ContractionSides((128, 64, 256, 192), _WIDE, (128, 64, 256), _WIDE)


def lone_contraction(group: TileGroup) -> Op | None:
    """The contraction of a group that has one, and no reduction; None in others."""
    found = [op for op in group.ops if op.definition.pattern in ("contract", "reduce")]
    return found[0] if len(found) == 1 and found[0].definition.pattern == "contract" else None


def tilings(group: TileGroup, main: Op, machine: Machine, kind: type[BlockCounter]) -> list[Tiling]:
    """Tilings of a group around one contraction, best first; of a convolution that is a product
    over its taps, those of that product. Unwritable where there are none."""
    if _over_taps(main):
        return _implicit(group, main, machine, kind)
    if main.name == "convolution" and kind.largest:
        raise Unwritable(refusal(main))
    return _direct(group, main, machine, kind)


def others(group: TileGroup, main: Op, machine: Machine, kind: type[BlockCounter]) -> list[Tiling]:
    """Tilings of a convolution that has some as a product over its taps, by its plain form: for
    blocks whose threads do all, best first."""
    if kind.largest or not _over_taps(main):
        return []
    with suppress(Unwritable):
        return _direct(group, main, machine, kind)
    return []


def _over_taps(main: Op) -> bool:
    return main.name == "convolution" and not refusal(main)


def _direct(group: TileGroup, main: Op, machine: Machine, kind: type[BlockCounter]) -> list[Tiling]:
    ways = [None, *group.streams()]
    way, step = _walk(ways, main, kind)
    sizes = (_wide if kind.largest else _cut_sizes)(group, main)
    return _sorted(group, machine, kind, sizes, ways[way], step, way)


def _sorted(
    group: TileGroup, machine: Machine, kind: type[BlockCounter], sizes: Iterator[tuple[int, ...]],
    stream: StreamedGroup | None, step: int, way: int = 0,
) -> list[Tiling]:  # fmt: skip
    tiles = list(dict.fromkeys(sizes))
    if not tiles:
        raise Unwritable("no tile suits its result")
    times = priced(group, machine, kind, tiles, stream, step)
    found = [Tiling(float(t), one, stream, step, way) for t, one in zip(times, tiles, strict=True)]
    least = NOISE * min(plan.time for plan in found)
    # Of times that a prediction does not tell apart, the larger tile: it moves less.
    return sorted(found, key=lambda p: (max(p.time, least), -math.prod(p.sizes), p.sizes))


# Products.


def _walk(
    ways: Sequence[StreamedGroup | None], main: Op, kind: type[BlockCounter]
) -> tuple[int, int]:
    """The way along which the sum is walked, and how much of it in one turn; other summed dims are
    whole then."""
    step = max(8, TURN // main.operands[0].element.itemsize)
    along = [(n, way) for n, way in enumerate(ways) if way is not None and main in way.inner]
    if main.name == "dot_general":
        left = main.operands[0].dims
        sizes = [left[d] for d in main.lhs_contracting_dimensions if left[d] != 1]
        if not main.lhs_contracting_dimensions:
            raise Unwritable("a product that sums nothing")
        if kind.largest:
            return _whole_rows(along, math.prod(sizes), step)
        for number, stream in along:
            # A matrix has one summed dim: of two, the turn has one index of the other.
            other = at_hint(math.prod(sizes)) // at_hint(stream.extent)
            if len(sizes) == 2 and step // 2 <= other <= 4 * step:
                return number, 1
    for number, stream in along:
        if not surely_at_most(stream.extent, step):
            return number, step
    return 0, 0


def _whole_rows(
    along: Sequence[tuple[int, StreamedGroup]], total: Dim, step: int
) -> tuple[int, int]:
    """Of several summed dims, one whose others are whole in a row of the window."""
    if not along or surely_at_most(total, step):
        return 0, 0
    others = [(number, total // way.extent) for number, way in along]
    others = [(number, count) for number, count in others if isinstance(count, int)]
    if not others:
        raise Unwritable("calls decide several of its summed dims")

    def fills(count: int) -> bool:
        return step % count == 0 or count % step == 0 and count <= _MOST_DEPTH * step

    number, count = min(others, key=lambda one: not fills(one[1]))
    return number, max(1, step // count)


def _wide(group: TileGroup, main: Op) -> Iterator[tuple[int, ...]]:
    """Tiles of the last two dims, of which one is whole grains of rows."""
    dims = group.roots[0].dims
    if len(dims) < 2:
        raise Unwritable("a result of less than two dims")
    likely = [at_hint(dim) for dim in dims]
    for rows, columns in itertools.product(_OF_LARGEST.rows, _OF_LARGEST.columns):
        for first, second in ((rows, columns), (columns, rows)):
            small = rows * columns <= _LARGEST and (first >= 64 or first == columns)
            needed = zip((first, second), likely[-2:], strict=True)
            if small and all(size < 2 * dim or size <= 8 for size, dim in needed):
                yield (*(1 for _ in dims[:-2]), first, second)


def _cut_sizes(group: TileGroup, main: Op) -> Iterator[tuple[int, ...]]:
    """Tiles of rows and columns: the last dim is columns, and the last one before that is more than
    1 is rows. Batches are walked one by one."""
    dims = group.roots[0].dims
    same = dims == main.result.dims and main.name == "dot_general"
    batches = len(main.lhs_batching_dimensions) if same else 0
    down = next((d for d in range(len(dims) - 2, batches - 1, -1) if dims[d] != 1), None)
    for rows, columns in itertools.product(_OF_BLOCKS.rows, _OF_BLOCKS.columns):
        sizes = [1] * len(dims)
        for d, size in ((len(dims) - 1, columns), (down, rows)):
            if d is not None and d >= 0:
                sizes[d] = size if isinstance(dims[d], SymbolicDim) else min(size, dims[d])
        yield tuple(sizes)


# Convolutions.


def _implicit(
    group: TileGroup, main: Op, machine: Machine, kind: type[BlockCounter]
) -> list[Tiling]:
    size = main.operands[0].element.itemsize
    step = step_of(group_features(main)[0], TURN // size, _LEAST_TURN // size)
    if group.roots[0].dims != main.result.dims:
        group = make_group([main], main.operands, [main.result])
    sizes = _pixels(main, _OF_LARGEST if kind.largest else _OF_BLOCKS)
    return _sorted(group, machine, kind, sizes, None, step)


def _pixels(main: Op, sides: ContractionSides) -> Iterator[tuple[int, ...]]:
    """Tiles of a convolution's result: boxes of pixels by features."""
    dims, pixels = main.result.dims, pixel_dims(main)
    _, features = group_features(main)
    for down, across in itertools.product(sides.pixels, sides.features):
        apart = main.feature_group_count != 1 and features % across
        wide = across >= 2 * features and across > min(sides.features)
        if apart or wide or down * across > _LARGEST:
            continue
        for box in itertools.islice(boxes([at_hint(dims[d]) for d in pixels], down), _BOXES):
            sizes = [across] * len(dims)
            for d, size in zip(pixels, box, strict=True):
                sizes[d] = size
            yield tuple(sizes)
