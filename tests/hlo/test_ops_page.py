"""specs/ops.md says what the rooms say."""

from girih.hlo.ops import DEFINITIONS
from girih.specs.ops_page import PAGE, page


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text() == page(), "run python -m girih.specs.ops_page"


def test_every_operation_and_clause_is_on_the_page() -> None:
    sections = {part.partition("\n")[0]: part for part in page().split("\n### ")[1:]}
    assert set(sections) == {room.name for room in DEFINITIONS}
    for room in DEFINITIONS:
        for clause in room.constraints:
            assert f"- {clause.clause}: {clause.text}" in sections[room.name]
