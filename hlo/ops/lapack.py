"""LAPACK as numpy arrays see it: what the rooms of matrix factorisations evaluate with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import UserError

PREFIXES = {"f32": "s", "f64": "d", "complex<f32>": "c", "complex<f64>": "z"}
"""Element type -> first letter of its routines."""


def routine(name: str, prefix: str) -> str:
    """The name of a routine for an element type: `orgqr` is `ungqr` and `sy..` `he..` for complex
    numbers."""
    if prefix in "cz":
        name = {"or": "un", "sy": "he"}.get(name[:2], name[:2]) + name[2:]
    return prefix + name


def function(name: str, dtype: np.dtype[Any]) -> Callable[..., Any]:
    """scipy's wrapper of a routine; UserError where scipy is not installed."""
    try:
        from scipy.linalg import lapack
    except ImportError as error:
        raise UserError(
            f"{name}: matrices are factorised by LAPACK through scipy, which is not installed: "
            "pip install 'girih[linalg]'"
        ) from error
    prefix = {"f": "s", "d": "d", "F": "c", "D": "z"}[dtype.char]
    return getattr(lapack, routine(name, prefix))


def batched(
    call: Callable[..., Sequence[Any]],
    inputs: Sequence[tuple[Any, int]],
    outputs: Sequence[tuple[Sequence[int], Any]],
) -> tuple[Any, ...]:
    """`call` on each element of the batch. `inputs` are arrays with the rank of one element,
    `outputs` the dims of all elements and their dtype.

    Where an element has no entry at all, its results are zero (info 0: nothing failed).
    """
    batch = inputs[0][0].shape[: inputs[0][0].ndim - inputs[0][1]]
    results = [np.zeros(tuple(dims), dtype) for dims, dtype in outputs]
    if any(array.size == 0 for array, _ in inputs):
        return tuple(results)
    for index in np.ndindex(*batch):
        with np.errstate(all="ignore"):
            found = call(*(array[index] for array, _ in inputs))
        for result, value in zip(results, found, strict=True):
            result[index] = value
    return tuple(results)
