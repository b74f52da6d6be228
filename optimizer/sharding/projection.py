"""The sharding of a tensor seen by the factors of an operation, and back.

    [{"x", "y"}] with x=4, y=2, by the dim [ij] of i=2, j=4:  i: "x":(1)2   j: "x":(2)2, "y"

A dim's axes go to its factors, major to minor; each takes what divides it, if need be a part of an
axis, and the minor-most the rest. Axes that do not divide a factor before it is used up are its
overflow: they are kept, and no factor behind it can be cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...hlo.factors import Dims
from ...hlo.sharding import DimSharding, Mesh, Sharding
from .parts import Part, Parts, append, of_axes, product, to_axes


@dataclass
class FactorSharding:
    """How one tensor cuts one factor; `minor`: nothing of its dim lies behind it."""

    axes: Parts = ()
    closed: bool = False
    minor: bool = False
    overflow: Parts = ()


@dataclass
class TensorFactors:
    """How one tensor cuts each of its factors; `barred` are axes that they may not be cut by: those
    that are replicated, unreduced, or cut a dim without factors."""

    factors: dict[int, FactorSharding] = field(default_factory=dict)
    barred: Parts = ()


MERGING = frozenset(("reshape",))
"""Operations that send what lies in other blocks, where axes cut across a dim's factors."""


def project(
    dims: Dims,
    sharding: Sharding | None,
    sizes: Sequence[int],
    mesh: Mesh,
    across: bool = False,
) -> TensorFactors:
    """What a sharding says about each factor; a missing one leaves all open.

    across: axes that do not divide the factors of a dim are all its first one's, and no overflow.
    """
    found = TensorFactors()
    for number, factors in enumerate(dims):
        if not factors:
            if sharding is not None:
                found.barred += of_axes(mesh, sharding.dims[number].axes)
            continue
        cut = None if sharding is None else sharding.dims[number]
        axes = list(of_axes(mesh, cut.axes)) if cut is not None else []
        closed = cut is not None and not cut.open
        for factor in factors[:-1]:
            part = found.factors[factor] = FactorSharding(closed=closed)
            taken, left = [], sizes[factor]
            while axes:
                common = math.gcd(left, axes[0][2] // axes[0][1])
                if common == 1:
                    break
                name, low, high = axes[0]
                taken.append((name, low, low * common))
                left //= common
                if low * common < high:
                    axes[0] = (name, low * common, high)
                else:
                    del axes[0]
            part.axes = tuple(taken)
            if left > 1 and axes:
                part.overflow = tuple(axes)
                behind = factors[factors.index(factor) + 1]
                found.factors[behind] = FactorSharding(closed=True, minor=behind == factors[-1])
                break
        else:
            found.factors[factors[-1]] = FactorSharding(tuple(axes), closed, minor=True)
        if across and cut is not None and _uneven(factors, found, sizes):
            for other in factors:
                found.factors[other] = FactorSharding(closed=closed)
            found.factors[factors[0]].axes = of_axes(mesh, cut.axes)
    if sharding is not None:
        found.barred += of_axes(mesh, sharding.replicated + sharding.unreduced)
    return found


def _uneven(factors: Sequence[int], found: TensorFactors, sizes: Sequence[int]) -> bool:
    """Whether the blocks of a dim of several factors are no parts of these."""
    if len(factors) == 1:
        return False
    last = found.factors.get(factors[-1], FactorSharding())
    overflows = any(found.factors[n].overflow for n in factors if n in found.factors)
    return overflows or sizes[factors[-1]] % product(last.axes) > 0


def unproject(
    dims: Dims,
    found: TensorFactors,
    old: Sharding | None,
    sizes: Sequence[int],
    mesh: Mesh,
    name: str,
) -> Sharding:
    """The sharding that the factors' axes make together; dims without factors stay as they are.

    Where a factor is not used up, those behind it would cut with a stride: they are left out.
    """
    made: list[DimSharding] = []
    for number, factors in enumerate(dims):
        if not factors:
            made.append(DimSharding(open=True) if old is None else old.dims[number])
            continue
        axes: list[Part] = []
        closed = False
        for factor in factors:
            part = found.factors[factor]
            closed = closed or part.closed
            join(axes, part.axes)
            if part.overflow:
                join(axes, part.overflow)
                break
            if product(part.axes) < sizes[factor]:
                break
        made.append(DimSharding(to_axes(mesh, axes), not closed))
    if old is None:
        return Sharding(name, tuple(made))
    return Sharding(name, tuple(made), old.replicated, old.unreduced, old.reduction)


def join(axes: list[Part], more: Parts) -> None:
    """Add parts behind those of a major factor; the first may continue the last of those."""
    if more:
        append(axes, more[0])
        axes.extend(more[1:])
