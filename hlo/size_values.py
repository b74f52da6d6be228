"""All values of a size where its variables have few: what bounds are then, without a proof."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from .symbols import Atom, Dim

MAXIMUM_VALUES = 1 << 15  # of all variables together
_EXACT = 1 << 62  # what intermediate results stay below

Array = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class ValueAxes(NamedTuple):
    """Variables that begin at 0: their last values, and all of each along an axis of its own."""

    limits: Mapping[str, int]
    axes: Mapping[str, Array]


def grid(limits: Mapping[str, int | None]) -> ValueAxes | None:
    """All values of variables of 0 .. limit; None where these are too many, or without end."""
    ends = {name: limit for name, limit in limits.items() if limit is not None}
    if len(ends) < len(limits) or math.prod(n + 1 for n in ends.values()) > MAXIMUM_VALUES:
        return None
    axes: dict[str, Array] = {}
    for axis, (name, limit) in enumerate(ends.items()):
        shape = [1] * len(ends)
        shape[axis] = limit + 1
        axes[name] = np.arange(limit + 1, dtype=np.int64).reshape(shape)
    return ValueAxes(ends, axes)


def values_on(size: Dim, grid: ValueAxes) -> Array | None:
    """The values of a size, along the axes of the variables that are in it; None where they may be
    too large, or where a divisor is 0."""
    try:
        return _values(size, grid.axes) if _most(size, grid.limits) < _EXACT else None
    except ZeroDivisionError:
        return None


def _most(size: Dim, limits: Mapping[str, int]) -> int:
    """What neither the size nor anything on the way to it exceeds, with either sign."""
    if isinstance(size, int):
        return abs(size)
    total = 0
    for monomial, coefficient in size.terms:
        total += abs(coefficient) * math.prod(max(1, _most_of(a, limits)) for a in monomial)
    return total


def _most_of(atom: Atom, limits: Mapping[str, int]) -> int:
    if not atom.function:
        return limits[atom.text]
    return max(_most(operand, limits) for operand in atom.operands)


def _values(size: Dim, axes: Mapping[str, Array]) -> Array:
    if isinstance(size, int):
        return np.array(size, np.int64)
    total = np.array(0, np.int64)
    for monomial, coefficient in size.terms:
        term = np.array(coefficient, np.int64)
        for atom in monomial:
            term = term * _values_of(atom, axes)
        total = total + term
    return total


def _values_of(atom: Atom, axes: Mapping[str, Array]) -> Array:
    if not atom.function:
        return axes[atom.text]
    operands = [_values(operand, axes) for operand in atom.operands]
    if atom.function != "//":
        return functools.reduce(np.maximum if atom.function == "max" else np.minimum, operands)
    numerator, divisor = operands
    if not divisor.all():
        raise ZeroDivisionError
    return np.floor_divide(numerator, divisor)
