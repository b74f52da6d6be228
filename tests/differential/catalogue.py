"""The catalogue of functions that girih and JAX both run: how a case is written down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Case:
    """One function with example inputs.

    wide: traced with 64-bit types enabled.
    loose: factor on the tolerance of the result's type, for sums over many values and steep maths.
    long: left out of an ordinary test run.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    wide: bool = False
    loose: float = 1.0
    long: bool = False


CASES: dict[str, Case] = {}


def case(*inputs: Any, name: str = "", **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Write a function into the catalogue under its own name."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        label = name or function.__name__
        assert label not in CASES, f"two cases are named {label}"
        CASES[label] = Case(label, function, inputs, **options)
        return function

    return add


def add_all(functions: dict[str, Callable[..., Any]], *inputs: Any, **options: Any) -> None:
    """Write functions of the same inputs into the catalogue."""
    for name, function in functions.items():
        case(*inputs, name=name, **options)(function)


def normal(*dims: int, dtype: Any = np.float32, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Normally distributed values of any float or complex type."""
    generator = np.random.default_rng([seed, *dims])
    values = generator.standard_normal(dims) * scale
    if np.dtype(dtype).kind == "c":
        values = values + 1j * generator.standard_normal(dims) * scale
    return values.astype(dtype)


def positive(*dims: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Values in [0.1, 3]."""
    return np.random.default_rng([seed, *dims]).uniform(0.1, 3.0, dims).astype(dtype)


def unit(*dims: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Values in [-0.95, 0.95]."""
    return np.random.default_rng([seed, *dims]).uniform(-0.95, 0.95, dims).astype(dtype)


def whole(
    *dims: int, low: int = -9, high: int = 10, dtype: Any = np.int32, seed: int = 0
) -> np.ndarray:
    """Integers in [low, high)."""
    return np.random.default_rng([seed, *dims]).integers(low, high, dims).astype(dtype)


def truth(*dims: int, seed: int = 0) -> np.ndarray:
    """Booleans."""
    return np.random.default_rng([seed, *dims]).integers(0, 2, dims).astype(bool)


# Without subnormals, which XLA takes for zero.
HOSTILE = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        1e-30,
        1e30,
        -1e30,
        8e37,
        np.inf,
        -np.inf,
        np.nan,
        88.0,
        89.0,
        -88.0,
        -104.0,
        1e-7,
        100.5,
        1e5,
        16777217.0,
    ],
    np.float32,
)

RELATIVE = {
    "float64": 1e-9,
    "float32": 2e-5,
    "float16": 4e-3,
    "bfloat16": 3e-2,
    "complex64": 2e-5,
    "complex128": 1e-9,
}


def difference(expected: np.ndarray, found: np.ndarray, loose: float = 1.0) -> str:
    """In which way `found` is not what JAX gave, or ""."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return f"{found.dtype}{found.shape} instead of {expected.dtype}{expected.shape}"
    if expected.size == 0:
        return ""
    relative = RELATIVE.get(expected.dtype.name)
    if relative is None:
        wrong = expected != found
        return _first(expected, found, wrong) if wrong.any() else ""
    is_complex = expected.dtype.kind == "c"
    e, f = (a.astype(np.complex128 if is_complex else np.float64) for a in (expected, found))
    with np.errstate(all="ignore"):
        special = ~np.isfinite(e) | ~np.isfinite(f)
        same = (e == f) | (np.isnan(e) & np.isnan(f))
        finite = np.abs(e[np.isfinite(e)])
        scale = min(float(finite.max()), 1.0) if finite.size else 0.0
        wrong = np.abs(e - f) > relative * loose * (np.abs(e) + scale)
    wrong = np.where(special, ~same, wrong)
    return _first(expected, found, wrong) if wrong.any() else ""


def _first(expected: np.ndarray, found: np.ndarray, wrong: np.ndarray) -> str:
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} of {wrong.size} differ, first at {at}: "
        f"{found[at]!r} instead of {expected[at]!r}"
    )


def leaves(tree: Any) -> list[np.ndarray]:
    """The arrays of a result, in JAX's order."""
    import jax

    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


BF16 = ml_dtypes.bfloat16
