"""Layouts of values in registers: blocked for memory, fragments of matrix instructions.

Fragments as the PTX ISA draws them (mma.sync, wgmma): 32-bit words hold `32 / bits` elements that
are neighbours along the last dimension, except B, where they are neighbours along k.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from .bits import log2
from .linear import LinearLayout, Repeated, layout, tensor_outputs

LANE_BITS = 5


def dealt(
    shape: Sequence[int],
    warps: int,
    first: Sequence[tuple[int, int]] = (),
    last: Sequence[tuple[int, int]] = (),
) -> LinearLayout:
    """The bits of an index dealt out: the low bits that `first` names to registers, then lanes,
    warps and registers again along the last dimension and those before it, and the high bits that
    `last` names to registers; each is (dimension, bits). Small tiles have copies."""
    empty = LinearLayout((), tensor_outputs(shape))
    free: dict[int, list[int]] = {}
    for dimension in reversed(range(len(shape))):
        start, count = empty.tensor_dimension(dimension)
        free[dimension] = [1 << start + bit for bit in range(count)]

    def inner(count: int) -> list[int]:
        found: list[int] = []
        for bits in free.values():
            while bits and len(found) < count:
                found.append(bits.pop(0))
        return found

    register = [free[d].pop(0) for d, count in first for _ in range(min(count, len(free[d])))]
    high = [free[d].pop() for d, count in last for _ in range(min(count, len(free[d])))]
    lane, warp = inner(LANE_BITS), inner(log2(warps))
    register += [*inner(empty.output_bits), *reversed(high)]
    lane += [0] * (LANE_BITS - len(lane))
    warp += [0] * (log2(warps) - len(warp))
    inputs = (("register", tuple(register)), ("lane", tuple(lane)), ("warp", tuple(warp)))
    return LinearLayout(inputs, empty.outputs)


def _spare(shape: Sequence[int], warps: int) -> int:
    """Bits of registers where no element is held twice."""
    return max(0, sum(map(log2, shape)) - LANE_BITS - log2(warps))


def blocked(shape: Sequence[int], warps: int, vector: int) -> LinearLayout:
    """A layout for coalesced memory access of a tile: neighbouring lanes touch neighbouring
    vectors of the last dimension. Small tiles: shorter vectors, then copies in lanes and warps."""
    first = [(len(shape) - 1, min(log2(vector), _spare(shape, warps)))] if shape else []
    return dealt(shape, warps, first)


def patches(shape: Sequence[int], warps: int, across_lanes: Sequence[int] = ()) -> LinearLayout:
    """Each thread has up to 8 rows and 8 columns of a matrix (the last two dimensions), so that it
    multiplies what it loads often: neighbours in fours, and fours far apart; along the dimensions
    `across_lanes` none are neighbours, but neighbouring lanes have neighbours."""
    spare = _spare(shape, warps)
    first: list[tuple[int, int]] = []
    last: list[tuple[int, int]] = []
    taken = [0] * len(shape)
    for dimension, most in ((-1, 2), (-2, 3), (-1, 1)):
        own = len(shape) + dimension
        if own >= 0:
            count = min(most, spare, log2(shape[own]) - taken[own])
            near = own not in across_lanes and not taken[own]
            (first if near else last).append((own, count))
            taken[own] += count
            spare -= count
    return dealt(shape, warps, first, last)


def _rows_of_words(rows: int, columns: int, bits: int, rows_first: bool) -> LinearLayout:
    """(rows, columns) with a word's elements along the columns: the pattern of all fragments.
    Lane bits 0-1 count words in 4 columns of words, bits 2-4 rows; registers: rows 8.., columns."""
    per_word = max(1, 32 // bits)
    words = log2(per_word)
    in_word = [(0, 1 << i) for i in range(words)]
    more_rows = [(8 << i, 0) for i in range(log2(rows) - 3)]
    more_columns = [(0, 4 * per_word << i) for i in range(log2(columns) - words - 2)]
    outer = more_rows + more_columns if rows_first else more_columns + more_rows
    return layout(
        (rows, columns),
        register=[*in_word, *outer],
        lane=[(0, per_word), (0, 2 * per_word), (1, 0), (2, 0), (4, 0)],
    )


def mma_a(m: int, k: int, bits: int) -> LinearLayout:
    """A of mma.sync, (m, k): m 16 (f64: 8 or 16), elements of `bits`; registers are elements."""
    return _rows_of_words(m, k, bits, rows_first=True)


def mma_b(k: int, n: int, bits: int) -> LinearLayout:
    """B of mma.sync, (k, n): n 8; a word's elements are neighbours along k."""
    return _rows_of_words(n, k, bits, rows_first=True).transpose((1, 0))


def mma_accumulator(m: int, n: int) -> LinearLayout:
    """C and D of mma.sync, (m, n): two neighbours along n, then row + 8."""
    return layout(
        (m, n),
        register=[(0, 1), *((8 << i, 0) for i in range(log2(m) - 3))],
        lane=[(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)],
    )


def repeat(
    tile: LinearLayout,
    shape: Sequence[int],
    warps: Sequence[int] = (),
    order: Sequence[int] | None = None,
) -> LinearLayout:
    """`tile` repeated to `shape`: over `warps` along each dimension (the first has the lowest warp
    bits), then in registers, so that padding at the end is whole registers of all warps. A
    dimension that `warps` covers more often than the shape needs holds copies. `order`: which
    dimension's register repeats come first."""
    rank = len(tile.shape)
    warps = tuple(warps) or (1,) * rank
    order = list(order) if order is not None else list(reversed(range(rank)))
    counts = [log2(n) - log2(t) for n, t in zip(shape, tile.shape, strict=True)]
    if min(counts, default=0) < 0:
        raise ValueError(f"a tile of {tile.shape} does not fit into {tuple(shape)}")
    outer = tuple(1 << count for count in counts)
    across = [min(log2(w), count) for w, count in zip(warps, counts, strict=True)]

    def unit(dimension: int, bit: int) -> list[int]:
        return [1 << bit if d == dimension else 0 for d in range(rank)]

    register = [unit(d, b) for d in order for b in range(across[d], counts[d])]
    warp: list[int | list[int]] = []
    for d in range(rank):
        warp += [unit(d, b) for b in range(across[d])]
        warp += [0] * (log2(warps[d]) - across[d])
    return tile * layout(outer, register=register, warp=warp)


@functools.lru_cache(maxsize=1024)
def mma_tiles(
    shape: tuple[int, ...],
    atom: tuple[int, ...],
    a_bits: int,
    b_bits: int,
    warps: tuple[int, int],
) -> tuple[LinearLayout, LinearLayout, LinearLayout]:
    """Layouts of A (m, k), B (k, n) and the accumulator (m, n) for a product of `shape` (m, n, k)
    through atoms (m, n, k) of mma.sync, shared by `warps` (along m, along n)."""
    m, n, k = shape
    atom_m, atom_n, atom_k = atom
    across_m, across_n = warps
    a = repeat(mma_a(atom_m, atom_k, a_bits), (m, k), (across_m, 1))
    b = repeat(mma_b(atom_k, atom_n, b_bits), (k, n), (1, across_n), order=(1, 0))
    c = repeat(mma_accumulator(atom_m, atom_n), (m, n), (across_m, across_n))
    idle_m, idle_n = (0,) * log2(across_m), (0,) * log2(across_n)
    a = a.with_inputs(warp=(*a.bits("warp"), *idle_n))
    b = b.with_inputs(warp=(*idle_m, *b.bits("warp")))
    return a, b, c


def wgmma_accumulator(n: int, warpgroups: int = 1) -> LinearLayout:
    """D of wgmma m64nN, n a power of two: (64 * warpgroups, n); register = index of the element."""
    tile = layout(
        (64, n),
        register=[(0, 1), (8, 0), *((0, 8 << i) for i in range(log2(n) - 3))],
        lane=[(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)],
        warp=[(16, 0), (32, 0)],
    )
    return repeat(tile, (64 * warpgroups, n), (warpgroups, 1))


def wgmma_accumulator_tiles(n: int, rows: int = 64) -> Repeated:
    """D of wgmma for any n (a multiple of 8) and any blocks of 64 rows of one warp group, as
    repeats of 64 x 8."""
    return Repeated(wgmma_accumulator(8), (rows, n))


def wgmma_a(k: int, bits: int, warpgroups: int = 1) -> LinearLayout:
    """A of wgmma in registers, (64 * warpgroups, k); registers are elements, 32-byte steps along
    k outermost."""
    step = 256 // bits
    base = _rows_of_words(16, step, bits, rows_first=True)
    base = base * layout((4, 1), warp=[(1, 0), (2, 0)])
    return repeat(base, (64 * warpgroups, k), (warpgroups, 1))
