"""Lists of mesh axes as propagation compares and splits them.

A part is (axis, low, high): of the axis seen as [low, high / low, size / high], the middle. A whole
axis of n is (axis, 1, n), so that it needs no case of its own. Parts of one axis may stand beside
each other in a mesh of devices only where their bounds divide one another (`coexist`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum

from ...hlo.sharding import Axis, Mesh, Sharding

Part = tuple[str, int, int]
Parts = tuple[Part, ...]


class Prefix(Enum):
    """How one list of parts begins another."""

    NONE, STRICT, EQUAL = range(3)


def of_axes(mesh: Mesh, axes: Iterable[Axis]) -> Parts:
    """The axes with their bounds in the mesh, whose sizes are known."""
    return tuple((axis.name, *mesh.bounds(axis)) for axis in axes)


def to_axes(mesh: Mesh, parts: Iterable[Part]) -> tuple[Axis, ...]:
    return tuple(mesh.part(*part) for part in parts)


def size(part: Part) -> int:
    """Into how many parts it cuts."""
    return part[2] // part[1]


def product(parts: Iterable[Part]) -> int:
    return math.prod(map(size, parts))


def contains(whole: Part, part: Part) -> bool:
    return whole[0] == part[0] and whole[1] <= part[1] and part[2] <= whole[2]


def begins(part: Part, whole: Part) -> bool:
    """Whether it is `whole`, or its major part."""
    return part[0] == whole[0] and part[1] == whole[1] and part[2] <= whole[2]


def overlap(one: Part, other: Part) -> bool:
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]


def coexist(one: Part, other: Part) -> bool:
    """Whether devices have coordinates along both, and along what lies between them."""
    if one[0] != other[0]:
        return True
    low, high = sorted((one[1], other[1]))
    end, far = sorted((one[2], other[2]))
    if end > high:
        return end % high == 0 and high % low == 0 and far % end == 0
    return high % end == 0


def without(part: Part, taken: Iterable[Part]) -> Part | None:
    """The largest major part of it that overlaps none of `taken`; None where there is none."""
    for other in taken:
        if part[0] != other[0]:
            continue
        if not coexist(part, other):
            return None
        if overlap(part, other):
            if part[1] >= other[1]:
                return None
            part = (part[0], part[1], other[1])
    return part


def prefix(first: Sequence[Part], second: Sequence[Part]) -> Prefix:
    """Whether `first` begins `second`; its last part may be the major part of its counterpart."""
    count = len(first)
    if count > len(second):
        return Prefix.NONE
    if not count:
        return Prefix.STRICT if second else Prefix.EQUAL
    if tuple(first[:-1]) != tuple(second[: count - 1]):
        return Prefix.NONE
    if first[-1] == second[count - 1]:
        return Prefix.EQUAL if count == len(second) else Prefix.STRICT
    return Prefix.STRICT if begins(first[-1], second[count - 1]) else Prefix.NONE


def append(parts: list[Part], part: Part) -> None:
    """Add it as the minor-most; joined with the last one where it continues that."""
    if parts and parts[-1][0] == part[0] and parts[-1][2] == part[1]:
        parts[-1] = (part[0], parts[-1][1], part[2])
    else:
        parts.append(part)


def compatible(old: Parts, new: Parts, expand: bool) -> tuple[Parts, bool]:
    """The major parts on which two lists agree, and whether a further list may lengthen them.

    Without a conflict that is the longer of the two; with `expand` off, `old` at most.
    """
    found: list[Part] = []
    for number in range(min(len(old), len(new))):
        one, other = old[number], new[number]
        if one == other:
            found.append(one)
        elif begins(other, one):
            # What follows a shorter part cannot continue the longer one, or both would be joined.
            if number + 1 < len(new):
                return (*found, other), False
            found.append(one)
        elif begins(one, other):
            if not expand or number + 1 < len(old):
                return (*found, one), False
            found.append(other)
        else:
            return tuple(found), False
    found.extend(old[len(new) :])
    if expand:
        found.extend(new[len(old) :])
    return tuple(found), expand


def without_units(sharding: Sharding, mesh: Mesh) -> Sharding:
    """Without axes of size 1, which cut nothing."""
    units = {name for name, length in mesh.axes if length == 1}
    if not units:
        return sharding

    def kept(axes: Iterable[Axis]) -> tuple[Axis, ...]:
        return tuple(axis for axis in axes if axis.name not in units)

    return replace(
        sharding,
        dims=tuple(replace(dim, axes=kept(dim.axes)) for dim in sharding.dims),
        replicated=kept(sharding.replicated),
        unreduced=kept(sharding.unreduced),
    )
