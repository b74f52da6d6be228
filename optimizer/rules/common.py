"""What structural rules ask again and again about dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...hlo.graph import Op, Value
from ...hlo.symbols import Dim


def made_by(value: Value, *names: str) -> Op | None:
    """The operation that makes a value, if it has one of these names."""
    owner = value.owner
    if isinstance(owner, Op) and owner.definition.name in names:
        return owner
    return None


def inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes another one."""
    result = [0] * len(permutation)
    for position, source in enumerate(permutation):
        result[source] = position
    return tuple(result)


def without(items: Sequence[Any], dropped: Sequence[int]) -> tuple[Any, ...]:
    """The items whose positions are not in `dropped`."""
    gone = set(dropped)
    return tuple(item for position, item in enumerate(items) if position not in gone)


def only_ones_differ(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two lists of dimensions are equal but for dimensions of size one."""
    return [d for d in left if d != 1] == [d for d in right if d != 1]


def map_of_ones(source: Sequence[Any], target: Sequence[Any]) -> list[int | None] | None:
    """source dim -> equal target dim in order; size-1 dims without a partner map to None.

    None if the two differ in more than dimensions of size one.
    """
    if not only_ones_differ(source, target):
        return None
    found: list[int | None] = []
    position = 0
    for size in source:
        if size == 1:
            # A one goes with a one that stands at the same place between the other dimensions.
            if position < len(target) and target[position] == 1:
                found.append(position)
                position += 1
            else:
                found.append(None)
            continue
        while target[position] == 1:
            position += 1
        found.append(position)
        position += 1
    return found


Runs = list[tuple[tuple[int, ...], tuple[int, ...]]]


def groups(source: Sequence[Dim], target: Sequence[Dim]) -> Runs:
    """The finest split of a reshape: runs of source dims and of target dims of equal product.

    A run of ones alone joins the run before it (or after it, at the start). With sizes that calls
    decide, dims that are equal from either end stand alone, and what lies between is one run where
    one of it is open.
    """
    if all(isinstance(size, int) for size in (*source, *target)):
        return _groups_of_numbers(source, target)
    shorter = min(len(source), len(target))
    front = next((d for d in range(shorter) if source[d] != target[d]), shorter)
    left = shorter - front
    back = next((n for n in range(left) if source[-1 - n] != target[-1 - n]), left)
    inner, outer = source[front : len(source) - back], target[front : len(target) - back]
    between: Runs = [(tuple(range(len(inner))), tuple(range(len(outer))))]
    if all(isinstance(size, int) for size in (*inner, *outer)):
        between = _groups_of_numbers(inner, outer)
    return [
        *(((d,), (d,)) for d in range(front)),
        *((tuple(d + front for d in a), tuple(d + front for d in b)) for a, b in between),
        *(((len(source) - n,), (len(target) - n,)) for n in range(back, 0, -1)),
    ]


def _groups_of_numbers(source: Sequence[Any], target: Sequence[Any]) -> Runs:
    pairs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        left, right = [], []
        if i < len(source):
            left.append(i)
            i += 1
        if j < len(target):
            right.append(j)
            j += 1
        a = math.prod(source[d] for d in left)
        b = math.prod(target[d] for d in right)
        while a != b:
            if a < b and i < len(source):
                a *= source[i]
                left.append(i)
                i += 1
            elif j < len(target):
                b *= target[j]
                right.append(j)
                j += 1
            else:
                break
        pairs.append((left, right))
    merged: list[tuple[list[int], list[int]]] = []
    for left, right in pairs:
        if merged and (not left or not right):
            merged[-1][0].extend(left)
            merged[-1][1].extend(right)
        else:
            merged.append((left, right))
    return [(tuple(left), tuple(right)) for left, right in merged]
