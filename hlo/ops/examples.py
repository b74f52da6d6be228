"""What the rooms' cases are made of: telling arrays and small regions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..graph import Region
from ..room import BuildRegion
from ..types import TensorType
from . import numerics


def f32(values: Any) -> Any:
    return np.asarray(values, np.float32)


def f64(values: Any) -> Any:
    return np.asarray(values, np.float64)


def i8(values: Any) -> Any:
    return np.asarray(values, np.int8)


def i32(values: Any) -> Any:
    return np.asarray(values, np.int32)


def i64(values: Any) -> Any:
    return np.asarray(values, np.int64)


def i1(values: Any) -> Any:
    return np.asarray(values, np.bool_)


def counting(*dims: int, dtype: Any = np.float32) -> Any:
    """An array 0, 1, 2, ... of those dims: tells every element apart."""
    size = int(np.prod(dims, dtype=np.int64))
    return np.arange(size).astype(np.int64).astype(dtype).reshape(dims)


TOLERANCES = {"f16": 2e-3, "bf16": 1.6e-2, "f8E4M3FN": 0.13, "f64": 1e-12}


def hostile(element: Any, count: int, domain: str = "all") -> tuple[Any, ...]:
    """All combinations of `count` telling values of an element type, one array per operand.

    `domain` leaves values out: `ordered` has no NaN, `finite` no infinity either, `small` nothing
    whose result depends on the library for far-away or complex infinite arguments.
    """
    if element.is_bool:
        values: Any = [False, True]
    elif element.is_integer:
        low, high = numerics.integer_bounds(element)
        values = sorted({0, 1, 2, 3, 5, high, high - 1, low, low + 1, *((-1, -2) if low else ())})
    elif element.is_complex:
        values = [0, 1, -1, 1j, -1j, 0.5 + 2j, -3 + 0.25j, 1e-3 - 1e-3j]
    else:
        values = [0.0, -0.0, 1.0, -1.0, 0.5, -1.5, 2.5, 3.0, 1e-3, -0.125, 7.0]
        if domain in ("all", "ordered", "infinite"):
            values += [100.0, np.inf, -np.inf]
        if domain == "all":
            values += [np.nan]
    with np.errstate(all="ignore"):
        line = np.asarray(values).astype(element.dtype)
    grids = np.meshgrid(*[np.arange(len(line))] * count, indexing="ij")
    return tuple(line[grid.reshape(-1)] for grid in grids)


def scalar_body(
    body: Callable[..., Any], *elements: Any
) -> Callable[[BuildRegion], tuple[Region, ...]]:
    """For cases: a region over scalars of those element types, from a function like Builder's."""

    def regions(build: BuildRegion) -> tuple[Region, ...]:
        return (build([TensorType((), element) for element in elements], body),)

    return regions


def binary_body(name: str, element: Any) -> Callable[[BuildRegion], tuple[Region, ...]]:
    """For cases: the body of one two-operand operation."""
    return scalar_body(lambda b, x, y: [b(name, x, y)], element, element)
