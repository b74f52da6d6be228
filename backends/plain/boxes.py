"""How the index space of an elementwise region is cut, and what is read across it.

The space is cut into boxes at the seams of concatenations and paddings, so that inside a box no
element needs a test. In each box neighbouring dims run as one where every access allows it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...hlo.deciding import at_hint
from ...hlo.graph import Region
from ..llvm.elementwise import ElementEmitter
from ..llvm.index import Affine, delinear
from .probe import Findings, argument, box_index, collapse, probe

MAXIMUM_BOXES = 8
MAXIMUM_OPERATIONS = 48  # in all boxes together, where these are more
MAXIMUM_PIECES = 64  # boxes that compute little each
_MORE = 2  # times what one box computes, that such boxes may have together


@dataclass
class IndexBox:
    """A part of the roots' index space and the groups of dims that run as one there."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    groups: list[list[int]]
    found: Findings

    def extents(self) -> list[int]:
        return [math.prod(self.sizes[d] for d in group) for group in self.groups]

    def index(
        self, emitter: ElementEmitter, at: Sequence[Affine], width: int
    ) -> tuple[Affine, ...]:
        """The roots' index for a position in each group."""
        parts: list[Affine] = []
        for group, position in zip(self.groups, at, strict=True):
            parts.extend(delinear(emitter.indexer, position, [self.sizes[d] for d in group], width))
        return box_index(parts, self.starts, self.sizes)


def boxes(region: Region) -> list[IndexBox]:
    """The parts of the index space, in row-major order of their starts."""
    dims = region.results[0].dims
    whole = (0,) * len(dims)
    found = probe(region, whole, dims)
    most = max(MAXIMUM_BOXES, MAXIMUM_OPERATIONS // (1 + len(region.ops)))
    few, every = _ranges(dims, found, most), _ranges(dims, found, MAXIMUM_PIECES)
    if few != every:
        # Pieces of a long concatenation compute little each: all together hardly more than one
        # box, in which each element is chosen among all of them.
        made = _cut(region, every)
        if sum(box.found.work for box in made) <= _MORE * found.work:
            return made
    if all(len(parts) == 1 for parts in few):
        return [IndexBox(whole, dims, collapse(dims, found), found)]
    return _cut(region, few)


def _ranges(dims: Sequence[int], found: Findings, most: int) -> list[list[tuple[int, int]]]:
    """Where each dim is cut: at all of its seams, while these are no more than `most` boxes."""
    ranges: list[list[tuple[int, int]]] = []
    count = 1
    for size, cuts in zip(dims, found.cuts, strict=True):
        seams = sorted({cut for cut in cuts if 0 < cut < size})
        if count * (len(seams) + 1) > most:
            seams = []
        count *= len(seams) + 1
        ranges.append(list(itertools.pairwise([0, *seams, size])))
    return ranges


def _cut(region: Region, ranges: Sequence[Sequence[tuple[int, int]]]) -> list[IndexBox]:
    dims = region.results[0].dims
    made: list[IndexBox] = []
    for part in itertools.product(*ranges):
        starts = tuple(low for low, _ in part)
        sizes = tuple(high - low for low, high in part)
        inside = probe(region, starts, sizes)
        coefficients = [*inside.coefficients, _strides(dims)]
        merged = collapse(sizes, Findings(coefficients))
        made.append(IndexBox(starts, sizes, merged, inside))
    return made


def _strides(dims: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides: where the box is stored."""
    return tuple(math.prod(dims[d + 1 :]) for d in range(len(dims)))


class Crossing(NamedTuple):
    """`group` is the group of dims along which the arguments are contiguous; their numbers and,
    per argument, the stride of each group, and the constant."""

    group: int
    strides: dict[int, tuple[tuple[int, ...], int]]


def crossing(
    region: Region, groups: Sequence[Sequence[int]], sizes: Sequence[int], found: Findings
) -> Crossing | None:
    """The crossing accesses of a box of `sizes`, if there are any that blocks can serve."""
    extents = [math.prod(sizes[d] for d in group) for group in groups]
    if len(groups) < 2 or at_hint(extents[-1]) < 8:
        return None
    # The innermost dim of a group has its stride; what dims of size 1 would step over is nothing.
    last = [next((d for d in reversed(group) if sizes[d] != 1), group[-1]) for group in groups]
    by_group: dict[int, dict[int, tuple[tuple[int, ...], int]]] = {}
    for number, value in enumerate(region.arguments):
        name = argument(number)
        accesses = {access for access in found.loads if access.pointer == name}
        if len(accesses) != 1 or value.element.is_complex:
            continue
        (access,) = accesses
        strides = tuple(access.row[d] for d in last)
        if not access.plain or strides[-1] in (0, 1):
            continue
        for group in range(len(groups) - 1):
            if strides[group] == 1 and at_hint(extents[group]) >= 8:
                by_group.setdefault(group, {})[number] = (strides, access.constant)
    if not by_group:
        return None
    group = max(by_group, key=lambda g: len(by_group[g]))
    return Crossing(group, by_group[group])
