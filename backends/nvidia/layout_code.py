"""Linear maps of layouts as code: what a thread's number adds to an address or an index."""

from __future__ import annotations

from collections.abc import Sequence

from .. import llvm
from ..llvm.index import Affine
from . import layouts
from .layouts import LANE_BITS, AddressTerm


def sum_of(
    f: llvm.Function,
    terms: Sequence[AddressTerm],
    thread: llvm.Value,
    threads: int,
    **inputs: llvm.Value,
) -> llvm.Value:
    """The sum (xor) of the terms of a linear map of lane and warp, which are the bits of `thread`
    (an i32 below `threads`, a power of two), and of `inputs`, i32."""
    masks: dict[tuple[str, int], int] = {}
    for term in terms:
        start = {"lane": 0, "warp": LANE_BITS}.get(term.name)
        key = (term.name, term.shift) if start is None else ("", term.shift - start)
        masks[key] = masks.get(key, 0) | term.mask << (start or 0)
    total: llvm.Value = llvm.constant("i32", 0)
    for (name, shift), mask in masks.items():
        one = inputs[name] if name else thread
        if name or mask != threads - 1:
            one = f.land(one, mask)
        one = f.shl(one, shift) if shift >= 0 else f.lshr(one, -shift)
        total = f.xor(total, one)
    return total


def along(value: layouts.LinearLayout, dimension: int) -> tuple[AddressTerm, ...]:
    """The terms of lane and warp in a layout's coordinate along a dimension."""
    return layouts.terms(
        [
            (name, [value.split(image)[dimension] for image in value.bits(name)])
            for name in ("lane", "warp")
        ]
    )


def as_i64(f: llvm.Function, index: Affine) -> llvm.Value:
    """An index as a number of the code."""
    total: llvm.Value = llvm.constant("i64", 0)
    for axis, factor in index.terms:
        total = f.add(total, f.mul(axis.value, factor))
    return f.add(total, index.constant)
