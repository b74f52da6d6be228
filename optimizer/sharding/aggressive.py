"""Axes that each tensor of an operation can take, whatever the others can.

Conflicts between factors of one tensor are resolved by an order of factors: the larger tensor that
an axis comes from goes first, in elementwise operations then the factor that is cut more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .basic import across, agreed, expand, truncated, within
from .parts import Parts, Prefix, prefix, product
from .projection import TensorFactors


def propagate_aggressive(
    operands: Sequence[TensorFactors],
    results: Sequence[TensorFactors],
    sizes: Sequence[int],
    directions: Sequence[int],
    elementwise: bool,
) -> list[bool]:
    """Give each tensor what fits it; says which have changed, operands first."""
    wanted = [agreed(operands, results, n, directions[n]) for n in range(len(sizes))]
    changed = [False] * (len(operands) + len(results))
    if not any(wanted):
        return changed
    order = [n for n in _order(operands, results, sizes, wanted, elementwise) if wanted[n]]
    for number, tensor in enumerate(results):
        for factor in order:
            axes = _fitting(tensor, factor, wanted[factor], sizes[factor])
            if axes:
                changed[len(operands) + number] |= expand(tensor, factor, axes)
    for number, tensor in enumerate(operands):
        for factor in order:
            axes = _fitting(tensor, factor, wanted[factor], sizes[factor])
            if not axes:
                continue
            if elementwise:
                # What the results could not take is of no use in one more operand.
                for result in results:
                    cut = result.factors.get(factor)
                    if cut is not None and prefix(cut.axes, axes) is Prefix.STRICT:
                        axes = cut.axes
            changed[number] |= expand(tensor, factor, axes)
    return changed


def _fitting(tensor: TensorFactors, factor: int, axes: Parts, length: int) -> Parts:
    """What of the axes lengthens the tensor's; nothing where they do not continue them."""
    cut = tensor.factors.get(factor)
    if cut is None:
        return ()
    axes = truncated(axes, lambda part, before: within(part, tensor, cut, before, length))
    if prefix(cut.axes, axes) is not Prefix.STRICT:
        return ()
    return truncated(axes, lambda part, before: across(part, tensor, factor))


def _order(
    operands: Sequence[TensorFactors],
    results: Sequence[TensorFactors],
    sizes: Sequence[int],
    wanted: Sequence[Parts],
    elementwise: bool,
) -> list[int]:
    """The factors, those first whose axes win a conflict."""
    sources = [(-1, -1)] * len(sizes)  # size and number of the largest tensor that has the axes
    for number, tensor in enumerate((*operands, *results)):
        elements = math.prod(sizes[factor] for factor in tensor.factors)
        for factor, cut in tensor.factors.items():
            if (
                wanted[factor]
                and elements > sources[factor][0]
                and prefix(wanted[factor], cut.axes) is not Prefix.NONE
            ):
                sources[factor] = (elements, number)

    def key(factor: int) -> tuple[int, int, int, int]:
        elements, number = sources[factor]
        cuts = product(wanted[factor]) if elementwise else 0
        return -elements, -cuts, number, factor

    return sorted(range(len(sizes)), key=key)
