"""Axes that every tensor of an operation can take along a factor.

For each factor: the longest list of axes that all tensors agree on, in the direction of
propagation, cut where an axis is closed off, barred, taken by another factor of some tensor, or
does not divide a factor that is not its dim's minor-most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .parts import Part, Parts, Prefix, begins, compatible, contains, prefix, size, without
from .projection import FactorSharding, TensorFactors

NONE, FORWARD, BACKWARD, BOTH = range(4)
"""From operands to results, from results to operands; `|` and `&` join them."""


def agreed(
    operands: Sequence[TensorFactors],
    results: Sequence[TensorFactors],
    factor: int,
    direction: int,
) -> Parts:
    """The axes of the factor on which the tensors agree; only those that propagation starts from
    may lengthen them."""
    if direction == NONE:
        return ()
    axes: Parts = ()
    expand = True
    sides = (results, operands) if direction == BACKWARD else (operands, results)
    for number, side in enumerate(sides):
        if number and direction != BOTH:
            expand = False
        for tensor in side:
            found = tensor.factors.get(factor)
            if found is not None:
                axes, expand = compatible(axes, found.axes, expand)
    return axes


def across(part: Part, tensor: TensorFactors, factor: int) -> Part | None:
    """What of the axis no other factor of the tensor has."""
    found: Part | None = part
    for other, cut in tensor.factors.items():
        if other != factor:
            found = without(found, cut.overflow)
            found = None if found is None else without(found, cut.axes)
            if found is None:
                return None
    return found


def within(
    part: Part, tensor: TensorFactors, cut: FactorSharding, before: int, length: int
) -> Part | None:
    """What of the axis the factor itself can take, behind axes that cut it into `before` parts."""
    found = without(part, tensor.barred)
    if found is None:
        return None
    if any(contains(axis, found) for axis in cut.axes):
        return found
    if not cut.closed and not cut.overflow:
        if cut.minor:
            return found
        if length % before == 0:
            common = math.gcd(length // before, size(found))
            if common > 1:
                return (found[0], found[1], found[1] * common)
    if cut.axes and begins(cut.axes[-1], found):
        return cut.axes[-1]
    return None


def truncated(axes: Parts, fit: Callable[[Part, int], Part | None]) -> Parts:
    """The axes up to the first that does not fit whole, of which the fitting part stays."""
    before = 1
    for number, axis in enumerate(axes):
        found = fit(axis, before)
        if found is None:
            return axes[:number]
        if found != axis:
            return (*axes[:number], found)
        before *= size(found)
    return axes


def expand(tensor: TensorFactors, factor: int, axes: Parts) -> bool:
    """Give the factor these axes where they continue what it has; whether that changed it."""
    cut = tensor.factors.get(factor)
    if cut is None or prefix(cut.axes, axes) is not Prefix.STRICT:
        return False
    cut.axes = axes
    return True


def propagate_basic(
    operands: Sequence[TensorFactors],
    results: Sequence[TensorFactors],
    sizes: Sequence[int],
    directions: Sequence[int],
    elementwise: bool,
) -> list[bool]:
    """Give all tensors what fits all of them; says which have changed, operands first."""
    tensors = (*operands, *results)
    changed = [False] * len(tensors)
    for factor, length in enumerate(sizes):
        axes = agreed(operands, results, factor, directions[factor])
        if not axes:
            continue

        def fit(part: Part, before: int, factor: int = factor, length: int = length) -> Part | None:
            found: Part | None = part
            for tensor in tensors:
                found = across(found, tensor, factor)
                cut = tensor.factors.get(factor)
                if found is not None and cut is not None:
                    found = within(found, tensor, cut, before, length)
                if found is None:
                    return None
            return found

        axes = truncated(axes, fit)
        for number, tensor in enumerate(tensors):
            changed[number] |= expand(tensor, factor, axes)
    return changed
