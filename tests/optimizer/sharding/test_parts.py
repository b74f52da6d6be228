"""Lists of parts of axes: prefixes, overlaps, what two lists agree on."""

from __future__ import annotations

import pytest

from girih.hlo.sharding import Axis, Mesh, parse_sharding
from girih.optimizer.sharding.parts import (
    Part,
    Prefix,
    append,
    coexist,
    compatible,
    of_axes,
    prefix,
    to_axes,
    without,
    without_units,
)

MESH = Mesh((("a", 16), ("b", 4), ("one", 1)))
A: Part = ("a", 1, 16)
B: Part = ("b", 1, 4)


def a(low: int, high: int) -> Part:
    return "a", low, high


def test_axes_become_parts_and_back() -> None:
    axes = (Axis("a", 2, 4), Axis("b"))
    assert of_axes(MESH, axes) == (a(2, 8), B)
    assert to_axes(MESH, (a(2, 8), B)) == axes


@pytest.mark.parametrize(
    ("part", "taken", "left"),
    [
        (A, [B], A),
        (A, [a(2, 4)], a(1, 2)),
        (a(2, 16), [a(4, 8)], a(2, 4)),
        (a(1, 4), [a(4, 8)], a(1, 4)),
        (a(2, 4), [a(2, 4)], None),
        (a(2, 8), [a(1, 4)], None),
        (a(1, 8), [a(4, 8), a(2, 4)], a(1, 2)),
    ],
)
def test_without_gives_the_major_part_that_is_free(
    part: Part, taken: list[Part], left: Part | None
) -> None:
    assert without(part, taken) == left


def test_parts_whose_bounds_do_not_divide_cannot_coexist() -> None:
    assert coexist(a(1, 2), a(2, 16)) and coexist(a(1, 4), a(2, 4)) and coexist(A, B)
    assert not coexist(("a", 1, 2), ("a", 1, 3))
    assert not coexist(("a", 1, 2), ("a", 3, 6))
    assert without(("a", 1, 2), [("a", 3, 6)]) is None


def test_a_list_begins_another() -> None:
    assert prefix((), ()) is Prefix.EQUAL
    assert prefix((), (A,)) is Prefix.STRICT
    assert prefix((a(1, 4),), (A, B)) is Prefix.STRICT
    assert prefix((A,), (A,)) is Prefix.EQUAL
    assert prefix((B,), (A, B)) is Prefix.NONE
    assert prefix((A, B), (A,)) is Prefix.NONE
    assert prefix((a(1, 4), B), (A, B)) is Prefix.NONE


@pytest.mark.parametrize(
    ("old", "new", "grow", "found"),
    [
        ((A,), (A, B), True, ((A, B), True)),
        ((A,), (A, B), False, ((A,), False)),
        ((A, B), (A,), True, ((A, B), True)),
        ((A,), (B,), True, ((), False)),
        ((a(1, 4),), (A,), True, ((A,), True)),
        ((a(1, 4),), (A,), False, ((a(1, 4),), False)),
        ((a(1, 4), B), (A, B), True, ((a(1, 4),), False)),
        ((A, B), (a(1, 4), B), True, ((a(1, 4),), False)),
    ],
)
def test_lists_agree_on_major_parts(
    old: tuple[Part, ...], new: tuple[Part, ...], grow: bool, found: object
) -> None:
    assert compatible(old, new, grow) == found


def test_neighbours_are_joined() -> None:
    parts = [a(1, 2)]
    append(parts, a(2, 8))
    append(parts, B)
    assert parts == [a(1, 8), B]


def test_axes_of_size_one_are_dropped() -> None:
    sharding = parse_sharding('<@m, [{"a", "one"}, {?}]>')
    assert str(without_units(sharding, MESH)) == '<@m, [{"a"}, {?}]>'
