"""Write hlo/op_attributes.py from the operation rooms: `python -m girih.specs.op_attributes`."""

from __future__ import annotations

from pathlib import Path

from ..hlo import ops
from ..hlo.room import ANY, AttributeSpec

FILE = Path(__file__).resolve().parent.parent / "hlo" / "op_attributes.py"

_HEAD = '''"""Names that an operation's operands, attributes and regions have, with their types.

Written from the rooms in `hlo/ops/` by `python -m girih.specs.op_attributes`; do not edit. A type
checker knows by this class what `op.permutation` is, and that there is no `op.permutaton`. What a
name is of an operation at hand, and whether it has it, says its room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .graph import Region, Value


class OpAttributes:
    """What `Op.__getattr__` finds. Names that mean several things are of any type."""

    __slots__ = ()

    if TYPE_CHECKING:
'''


def text() -> str:
    """The file."""
    found: dict[str, set[str]] = {}
    for room in ops.DEFINITIONS:
        for operand in room.operands:
            kind = "tuple[Value, ...]" if operand.variadic else "Value"
            found.setdefault(operand.name, set()).add(kind)
        for name, spec in room.attributes.items():
            found.setdefault(name, set()).add(_type(spec))
        for name in room.regions:
            found.setdefault(name, set()).add("Region")
    names = sorted(name for name in found if name.isidentifier())
    rows = [
        f"        {name}: {'Any' if len(found[name]) > 1 else next(iter(found[name]))}\n"
        for name in names
    ]
    return _HEAD + "".join(rows)


def _type(spec: AttributeSpec) -> str:
    if spec.kind is ANY:
        return "Any"
    names = {tuple: "tuple[Any, ...]", dict: "dict[str, Any]"}
    name = names.get(spec.kind) or str(spec.kind.__name__)
    return f"{name} | None" if spec.default is None else name


if __name__ == "__main__":
    FILE.write_text(text())
