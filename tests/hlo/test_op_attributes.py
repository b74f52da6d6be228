"""hlo/op_attributes.py says what the rooms say."""

from girih.hlo.graph import Op
from girih.hlo.ops import DEFINITIONS
from girih.specs.op_attributes import FILE, text


def test_the_file_is_fresh() -> None:
    assert FILE.read_text() == text(), "run python -m girih.specs.op_attributes"


def test_no_name_hides_a_part_of_operations() -> None:
    own = {name for name in dir(Op) if not name.startswith("__")}
    for room in DEFINITIONS:
        names = {operand.name for operand in room.operands}.union(room.attributes, room.regions)
        assert not names & own
