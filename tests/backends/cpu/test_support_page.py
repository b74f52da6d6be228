"""docs/support.md says what runs: some of its cells are tried again."""

from __future__ import annotations

import pytest

from girih.docs.support import ELEMENTS, PAGE, SECTION, WRONG, cell, page, read_page, rooms

CELLS = read_page(PAGE.read_text())
SHARDS = 8
SAMPLE = [place for place in sorted(CELLS) if CELLS[place]][::37]


def test_the_page_has_a_row_for_every_operation() -> None:
    assert {name for name, _ in CELLS} == {room.name for room in rooms()}, (
        "run python docs/support.py OPERATION... for the missing ones"
    )
    assert {element for _, element in CELLS} == set(ELEMENTS)
    assert PAGE.read_text().partition(SECTION)[0] == page(CELLS)


def test_nothing_is_wrong() -> None:
    assert not [place for place, mark in CELLS.items() if mark == WRONG]


@pytest.mark.parametrize("shard", range(SHARDS))
def test_cells_say_what_happens(shard: int) -> None:
    for name, element in SAMPLE[shard::SHARDS]:
        assert cell(name, element) == CELLS[name, element], (name, element)
