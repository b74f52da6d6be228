"""Loops that carry registers through several dims."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...llvm.elements import Register
from ...llvm.index import ZERO, Affine, Scopes
from ...plain.monoid import flat, unflat

Body = Callable[[list[Affine], list[Register]], list[Register]]


def nested(
    scopes: Scopes, extents: Sequence[int], start: Sequence[Register], body: Body
) -> list[Register]:
    """body(index, values) over a box in row-major order; what it gives is carried on."""

    def level(index: list[Affine], values: list[Register]) -> list[Register]:
        if len(index) == len(extents):
            return body(index, values)
        extent = extents[len(index)]
        if extent == 1:
            return level([*index, ZERO], values)
        with scopes.loop(0, extent, 1, flat(values), extent=extent) as (at, loop):
            carried = unflat(loop.carried, values)
            loop.carry(*flat(level([*index, at], carried)))
        return unflat(loop.results, values)

    return level([], list(start))
