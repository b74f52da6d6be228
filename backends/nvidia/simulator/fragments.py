"""Words of fragments <-> matrices, as the PTX ISA draws the operands of mma.sync and wgmma.

Written from the figures, apart from `layouts`, so that one checks the other.
"""

from __future__ import annotations

from functools import lru_cache

import ml_dtypes
import numpy as np

# Element type of PTX -> (bits, numpy type of its products).
ELEMENTS: dict[str, tuple[int, type]] = {
    "f16": (16, np.float32),
    "bf16": (16, np.float32),
    "tf32": (32, np.float32),
    "f32": (32, np.float32),
    "f64": (64, np.float64),
    "e4m3": (8, np.float32),
    "e5m2": (8, np.float32),
    "s8": (8, np.float64),  # sums of products of 8 bits are exact
    "u8": (8, np.float64),
    "s4": (4, np.float64),
    "u4": (4, np.float64),
    "s32": (32, np.int64),
}
_E4M3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
_E5M2 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e5m2).astype(np.float32)


def decode(words: np.ndarray, element: str) -> np.ndarray:
    """Values of packed words (uint32; uint64 of f64): the last axis grows by elements per word."""
    if element == "f64":
        return words.view(np.float64)
    if element == "tf32":
        return (words & np.uint32(0xFFFFE000)).view(np.float32)
    if element == "f32":
        return words.view(np.float32)
    if element == "s32":
        return words.view(np.int32)
    words = np.ascontiguousarray(words)
    if element == "f16":
        return words.view(np.float16).astype(np.float32)
    if element == "bf16":
        return (words.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    data = words.view(np.uint8)
    if element == "e4m3":
        return _E4M3[data]
    if element == "e5m2":
        return _E5M2[data]
    if element == "s8":
        return data.view(np.int8).astype(np.float64)
    if element == "u8":
        return data.astype(np.float64)
    nibbles = np.stack((data & 15, data >> 4), -1).reshape(*data.shape[:-1], -1)
    if element == "s4":
        nibbles = (nibbles ^ 8).astype(np.int8) - np.int8(8)
    return nibbles.astype(np.float64)


@lru_cache(maxsize=256)
def operand_places(rows: int, columns: int, bits: int, lanes: int = 32) -> np.ndarray:
    """Flat place in (rows, columns) of [lane, element] of A; of B with rows = n, columns = k.

    Words count rows + 8 first, then further along the columns; `lanes` 128: four warps, 16 rows
    each (wgmma)."""
    per = max(1, 32 // bits)
    of_warp = rows * 32 // lanes  # rows
    count = of_warp * columns // 32
    thread, element = np.meshgrid(np.arange(lanes), np.arange(count), indexing="ij")
    lane, word = thread % 32, element // per
    tall = max(1, of_warp // 8)
    row = of_warp * (thread // 32) + lane // 4 + 8 * (word % tall)
    column = lane % 4 * per + element % per + 4 * per * (word // tall)
    return row * columns + column


@lru_cache(maxsize=256)
def accumulator_places(rows: int, columns: int, lanes: int = 32) -> np.ndarray:
    """Flat place in (rows, columns) of [lane, element] of C and D."""
    of_warp = rows * 32 // lanes
    tall = max(1, of_warp // 8)
    count = of_warp * columns // 32
    thread, element = np.meshgrid(np.arange(lanes), np.arange(count), indexing="ij")
    lane, pair = thread % 32, element // 2
    row = of_warp * (thread // 32) + lane // 4 + 8 * (pair % tall)
    column = 8 * (pair // tall) + lane % 4 * 2 + element % 2
    return row * columns + column


def to_matrix(values: np.ndarray, places: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """[group, lane, element] -> [group, rows, columns]."""
    matrix = np.empty((values.shape[0], rows * columns), values.dtype)
    matrix[:, places] = values
    return matrix.reshape(-1, rows, columns)


def from_matrix(matrix: np.ndarray, places: np.ndarray) -> np.ndarray:
    """[group, rows, columns] -> [group, lane, element]."""
    return matrix.reshape(matrix.shape[0], -1)[:, places]


def product(a: np.ndarray, b: np.ndarray, c: np.ndarray | None, kind: str, saturate: bool = False
            ) -> np.ndarray:  # fmt: skip
    """a @ b + c in the accumulator's type: `f32`, `f16`, `f64` or `s32`.

    Floats are summed in f32 (f64 for f64) and rounded once at the end for f16; the order of the
    hardware's sum is not known, so results agree up to rounding.
    """
    with np.errstate(all="ignore"):
        total = a @ b
        if kind == "s32":
            exact = np.rint(total).astype(np.int64)
            if c is not None:
                exact = exact + c.astype(np.int64)
            if saturate:
                exact = np.clip(exact, -(1 << 31), (1 << 31) - 1)
            return exact.astype(np.int32)
        if c is not None:
            total = total + c
        if kind == "f16":
            return total.astype(np.float16)
        return total.astype(np.float64 if kind == "f64" else np.float32)
