"""Contractions as tile functions: products and convolutions with what is fused around them.

A fusion becomes the kernel_call that computes a tile of its result, walking along the sum. Tile
sizes come from a small model: waves of blocks times the longer of arithmetic and operand traffic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ....hlo.deciding import at_hint, surely_at_most
from ....hlo.graph import Op, Region
from ....hlo.symbols import Dim, SymbolicDim
from ....optimizer.tiles.build import Group, build_kernel, make_group
from ....optimizer.tiles.streaming import Stream, streams
from ....optimizer.tiles.write import Unwritable, writable
from .. import implicit
from ..frame import Unfit
from ..launch import KernelCode
from ..target import Architecture, Target
from . import kernel
from .matrix import atoms_of

_SIDES = (16, 32, 64, 128)
_FEATURES = (8, *_SIDES)  # of a convolution's tile
_STEP_BYTES = 128  # of a row of an operand, in one turn of the loop
_SCALAR_RATE = 64.0  # multiply-adds per clock and multiprocessor without matrix instructions
# Of the rate, by the size of a tile: up to 256 elements, 512, ... 16384: operands are used again.
_SHARES = (0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8)
_TOGETHER = 4  # blocks of a multiprocessor at once
_WARPS = 4  # a multiprocessor has four places where products are done
_SECTOR = 32  # bytes that memory is read in
_TURN = 400.0  # clocks of a turn of the loop at least: nothing is faster than memory answers
_TRAFFIC = 64.0  # bytes per clock and multiprocessor from the L2 cache
_FIXED = 2000.0  # clocks of a block around its loop
_TRIES = 6
CONTRACTIONS = ("dot_general", "convolution")


def emit(op: Op, region: Region, target: Target, shares: bool = False) -> KernelCode:
    """The kernel of a fusion around one contraction; Unfit where it has no tile function."""
    reason = "no tile of its result stands alone"
    for call in calls(op, region, target):
        try:
            return kernel.emit(call, target, shares)
        except Unfit as unfit:
            reason = str(unfit)
    raise Unfit(reason)


def calls(op: Op, region: Region, target: Target) -> Iterator[Op]:
    """The kernel_calls of a fusion around one contraction, best first."""
    main = [inner for inner in region.ops if inner.name in CONTRACTIONS]
    if len(main) != 1:
        raise Unfit(f"{len(main)} contractions in one kernel")
    if main[0].name == "convolution" and all(value.tensor.size for value in main[0].operands):
        yield from _convolution(op, region, main[0], target.architecture)
    unwritable = [inner for inner in region.ops if not writable(inner)]
    if unwritable:
        raise Unfit(f"{unwritable[0].name} has no form on tiles")
    roots = region.results
    if any(root.dims != roots[0].dims or root.owner is region for root in roots):
        raise Unfit("results of several shapes")
    if not all(roots[0].dims):
        raise Unfit("an empty result")
    if not all(value.tensor.size for value in main[0].operands):
        raise Unfit("a sum of nothing")
    if main[0].name == "dot_general" and not main[0].lhs_contracting_dimensions:
        raise Unfit("a product that sums nothing")
    group = make_group(region.ops, region.arguments, roots)
    (contraction,) = (inner for inner in group.ops if inner.name == main[0].name)
    stream, step = _stream(group, contraction)
    for _, sizes in _sizes(group.roots[0].dims, contraction, target.architecture):
        try:
            yield build_kernel(group, op.operands, sizes, "contraction", stream, step)
        except Unwritable:
            continue


def clocks(region: Region, target: Target) -> float:
    """What a region around one contraction is predicted to take."""
    (main,) = (op for op in region.ops if op.name in CONTRACTIONS)
    if main.name == "convolution":
        price = _pixel_price(main, target.architecture)
        return implicit.least(region, _SIDES, _FEATURES, price)
    return _sizes(region.results[0].dims, main, target.architecture)[0][0]


def _stream(group: Group, contraction: Op) -> tuple[Stream | None, int]:
    """How the sum is walked, and how much of it in one turn."""
    element = contraction.operands[0].element
    step = max(8, _STEP_BYTES // element.itemsize)
    ways = [way for way in streams(group.ops, group.roots) if contraction in way.inner]
    if contraction.name == "dot_general":
        dims = contraction.lhs_contracting_dimensions
        sizes = [n for n in (contraction.operands[0].dims[d] for d in dims) if n != 1]
        for stream in ways:
            # A matrix has one summed dim: of two, the turn has one index of the other.
            other = at_hint(math.prod(sizes)) // at_hint(stream.extent)
            if len(sizes) == 2 and step // 2 <= other <= 4 * step:
                return stream, 1
    for stream in ways:
        if not surely_at_most(stream.extent, step):
            return stream, step
    return None, 0


def _sizes(
    dims: Sequence[int], contraction: Op, architecture: Architecture
) -> list[tuple[float, tuple[int, ...]]]:
    """Tile sizes of a result, best first, and the clocks that they are predicted to take."""
    left = contraction.operands[0]
    rate, least = _rate(contraction, architecture)
    flops, count = contraction.definition.flops(contraction), contraction.result.tensor.size
    depth = max(1.0, flops / 2 / max(1, at_hint(count)))
    same = tuple(dims) == contraction.result.dims and contraction.name == "dot_general"
    batches = len(contraction.lhs_batching_dimensions) if same else 0
    scored: list[tuple[float, tuple[int, ...]]] = []
    for rows in _SIDES:
        for columns in _SIDES:
            sizes = _cut(dims, rows, columns, batches)
            pairs = zip(map(at_hint, dims), sizes, strict=True)
            tiles = max(1, math.prod(-(-n // size) for n, size in pairs))
            own = max(math.prod(sizes[:-1]), least[0]), max(sizes[-1] if sizes else 1, least[1])
            lost = _lost(contraction, own)
            price = _price(own, tiles, depth, left.element.itemsize, rate, architecture, lost)
            scored.append((price, sizes))
    known: dict[tuple[int, ...], float] = {}
    for score, sizes in sorted(scored):
        known.setdefault(sizes, score)
    return [(score, sizes) for sizes, score in known.items()][:_TRIES]


def _price(
    own: tuple[int, int],
    tiles: int,
    depth: float,
    size: int,
    rate: float,
    architecture: Architecture,
    lost: int = 0,
) -> float:
    """Clocks of so many tiles of (rows, columns), with elements of `size` bytes; `lost`: bytes that
    are read and not used, for each step along the sum."""
    each = -(-tiles // architecture.multiprocessors)  # tiles of a multiprocessor
    share = _SHARES[min(len(_SHARES), max(1, (own[0] * own[1] // 256).bit_length())) - 1]
    warps = min(each, _TOGETHER) * max(1, own[0] * own[1] // 512)
    arithmetic = own[0] * own[1] / (rate * share) * depth
    traffic = ((own[0] + own[1]) * size + lost) / _TRAFFIC * depth
    time = max(arithmetic, traffic) / min(1.0, warps / _WARPS)
    time = max(time, depth * size / _STEP_BYTES * _TURN)
    return each * (time + _FIXED / min(each, _TOGETHER))


def _convolution(op: Op, region: Region, main: Op, architecture: Architecture) -> Iterator[Op]:
    """A convolution as a product over its taps, best tile first; nothing where it is none."""
    with suppress(Unfit):
        price = _pixel_price(main, architecture)
        yield from implicit.calls(op.operands, region, _SIDES, _FEATURES, price)


def _pixel_price(main: Op, architecture: Architecture) -> implicit.Price:
    """What tiles of a convolution's pixels and features cost."""
    rate, least = _rate(main, architecture)
    size = main.operands[0].element.itemsize

    def price(rows: int, columns: int, tiles: int, depth: float) -> float:
        own = max(rows, least[0]), max(columns, least[1])
        return _price(own, tiles, depth, size, rate, architecture)

    return price


def _lost(contraction: Op, own: tuple[int, int]) -> int:
    """Bytes of sectors that a tile reads for nothing in each step along the sum: parts of rows of
    operands that lie across it."""
    found = 0
    if contraction.name == "dot_general":
        for side, count in zip(("lhs", "rhs"), own, strict=True):
            value = contraction.operands[side == "rhs"]
            if value.rank - 1 not in getattr(contraction, f"{side}_contracting_dimensions"):
                found += -count * value.element.itemsize % _SECTOR
    return found


def _rate(contraction: Op, architecture: Architecture) -> tuple[float, tuple[int, int]]:
    """Multiply-adds per clock and multiprocessor, and the least rows and columns of a tile."""
    rates = [atom.rate(architecture) for atom in atoms_of(contraction, architecture)]
    return (max(rates), (16, 8)) if rates else (_SCALAR_RATE, (1, 1))


def _cut(dims: Sequence[int], rows: int, columns: int, batches: int) -> tuple[int, ...]:
    """A tile of so many rows and columns: the last dim is columns, and the last one before that is
    more than 1 is rows. The first `batches` dims are walked one by one."""
    sizes = [1] * len(dims)
    if dims:
        sizes[-1] = _of_dim(columns, dims[-1])
    for d in range(len(dims) - 2, batches - 1, -1):
        if dims[d] != 1:
            sizes[d] = _of_dim(rows, dims[d])
            break
    return tuple(sizes)


def _of_dim(size: int, dim: Dim) -> int:
    """The size of a tile along a dim: no more than the dim has, where that is a number."""
    return size if isinstance(dim, SymbolicDim) else min(size, dim)
