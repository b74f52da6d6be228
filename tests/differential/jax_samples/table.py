"""How samples are written down: names of functions, arguments as placeholders, element types."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

FLOATS = ("float32", "float64", "bfloat16", "float16")
COMPLEX = ("complex64",)
INTEGERS = ("int32", "int64", "uint8")
REAL = (*FLOATS, *INTEGERS)
INEXACT = (*FLOATS, *COMPLEX)
NUMBERS = (*REAL, *COMPLEX)
BITS = (*INTEGERS, "bool")
ALL = (*NUMBERS, "bool")
SINGLE = ("float32",)
WIDE = ("float64", "int64", "uint64", "complex128")
"""What JAX has with 64-bit types enabled only."""


@dataclass(frozen=True)
class Array:
    """An argument: values of the sample's element type, or of a type of its own.

    kind: normal, positive (0.1 to 3), unit (-0.95 to 0.95), part (0.05 to 0.95), whole
    (integers of [low, high)), rising, matrix (symmetric, positive definite).
    """

    dims: tuple[int, ...]
    kind: str = "normal"
    low: int = -9
    high: int = 10
    dtype: str = ""

    def make(self, dtype: str, number: int) -> np.ndarray:
        """The array; number: which argument it is, so that two of one shape differ."""
        wanted = np.dtype(getattr(ml_dtypes, self.dtype or dtype, self.dtype or dtype))
        seed = zlib.crc32(repr((self.dims, self.kind, number)).encode())
        generator = np.random.default_rng(seed)
        if self.kind == "whole" or wanted.kind in "iub":
            low, high = self.low, self.high
            if self.kind != "whole":
                low, high = {"positive": (1, 9), "unit": (0, 2)}.get(self.kind, (-9, 10))
            low = max(low, 0) if wanted.kind in "ub" else low
            values: Any = generator.integers(low, 2 if wanted.kind == "b" else high, self.dims)
        elif self.kind == "positive":
            values = generator.uniform(0.1, 3.0, self.dims)
        elif self.kind == "unit":
            values = generator.uniform(-0.95, 0.95, self.dims)
        elif self.kind == "part":
            values = generator.uniform(0.05, 0.95, self.dims)
        else:
            values = generator.standard_normal(self.dims)
            if wanted.kind == "c":
                values = values + 1j * generator.standard_normal(self.dims)
        if self.kind == "matrix":
            wide = np.asarray(values)
            values = wide @ np.conj(np.swapaxes(wide, -1, -2)) + np.eye(self.dims[-1])
        if self.kind == "rising":
            values = np.sort(values, -1)
        return np.asarray(values).astype(wanted)


def n(*dims: int) -> Array:
    return Array(dims)


def p(*dims: int) -> Array:
    return Array(dims, "positive")


def u(*dims: int) -> Array:
    return Array(dims, "unit")


def part(*dims: int) -> Array:
    return Array(dims, "part")


def rising(*dims: int) -> Array:
    return Array(dims, "rising")


def matrix(*dims: int) -> Array:
    return Array(dims, "matrix")


def w(*dims: int, low: int = -9, high: int = 10) -> Array:
    """Whole numbers, of the sample's type."""
    return Array(dims, "whole", low, high)


def i(*dims: int, low: int = 0, high: int = 4, dtype: str = "int32") -> Array:
    """Integers of a type of their own."""
    return Array(dims, "whole", low, high, dtype)


def f(*dims: int, kind: str = "normal", dtype: str = "float32") -> Array:
    """Numbers of a type of their own."""
    return Array(dims, kind, dtype=dtype)


def truth(*dims: int) -> Array:
    return Array(dims, "whole", 0, 2, "bool")


@dataclass(frozen=True)
class Sample:
    """A call; what is no Array among its arguments is part of the program."""

    function: Callable[..., Any] | None  # None: the public function itself
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    types: tuple[str, ...]


class Table:
    """Samples of the functions of one module."""

    def __init__(self, module: str, types: tuple[str, ...] = ALL) -> None:
        self.module, self.types = module, types
        self.samples: defaultdict[str, list[Sample]] = defaultdict(list)
        self.without: dict[str, str] = {}

    def __call__(
        self, names: str, *arguments: Any, types: tuple[str, ...] = (), **keywords: Any
    ) -> None:
        """One sample of each of these functions."""
        for name in names.split():
            sample = Sample(None, arguments, keywords, types or self.types)
            self.samples[name].append(sample)

    def by(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        types: tuple[str, ...] = (),
    ) -> None:
        """One sample of what is called in a way of its own."""
        for each in name.split():
            self.samples[each].append(Sample(function, arguments, {}, types or self.types))

    def none(self, reason: str, names: str) -> None:
        """Public names that compute nothing, or nothing that a program may hold."""
        self.without.update(dict.fromkeys(names.split(), reason))

    def __iter__(self) -> Iterator[tuple[str, list[Sample]]]:
        return iter(self.samples.items())
