"""Whether random results have one distribution: what draws has no value to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

FEWEST, MOST, DRAWS = 8, 100, 20_000
"""How often both are called: until they have drawn so much, within limits."""
DOUBT = 1e-6
"""Samples of one distribution are called different so seldom."""


def difference(ours: Callable[[int], Sequence[Any]], theirs: Callable[[], Sequence[Any]]) -> str:
    """What is different between the results of many calls of both, "" for nothing. ours: of the
    call of that number."""
    right = [[np.asarray(x) for x in theirs()]]
    runs = DRAWS // max(1, sum(x.size for x in right[0]))
    runs = min(max(runs, FEWEST), MOST)
    right += [[np.asarray(x) for x in theirs()] for _ in range(1, runs)]
    left = [[np.asarray(x) for x in ours(number)] for number in range(runs)]
    if len(left[0]) != len(right[0]):
        return f"{len(left[0])} results, not {len(right[0])}"
    for number, (one, other) in enumerate(zip(left[0], right[0], strict=True)):
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"{one.dtype}{one.shape} not {other.dtype}{other.shape}"
        for part in (np.real, np.imag) if one.dtype.kind == "c" else (_float,):
            pair = [
                np.concatenate([part(run[number]).ravel() for run in runs]).astype(np.float64)
                for runs in (left, right)
            ]
            if (doubt := _doubt(*pair)) < DOUBT:
                means = " and ".join(f"{values.mean():.4g}" for values in pair)
                return f"result {number}: means {means}, the same by chance {doubt:.1e}"
    return ""


def _float(x: Any) -> Any:
    return x.astype(np.float64)


def _doubt(one: Any, other: Any) -> float:
    """How probable so large a difference of the distributions of two samples is (Kolmogorov and
    Smirnov); equal ones are of one distribution."""
    one, other = np.nan_to_num(one), np.nan_to_num(other)
    if not one.size or np.array_equal(one, other):
        return 1.0
    every = np.sort(np.concatenate([one, other]))
    parts = [np.searchsorted(np.sort(x), every, "right") / x.size for x in (one, other)]
    gap = float(np.abs(parts[0] - parts[1]).max())
    count = one.size * other.size / (one.size + other.size)
    scaled = gap * (np.sqrt(count) + 0.12 + 0.11 / np.sqrt(count))
    if scaled < 0.3:
        return 1.0
    turns = np.arange(1, 101)
    terms = (-1.0) ** (turns - 1) * np.exp(-2 * (turns * scaled) ** 2)
    return float(np.clip(2 * terms.sum(), 0, 1))
