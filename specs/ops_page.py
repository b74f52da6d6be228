"""Write specs/ops.md from the operation rooms: `python -m girih.specs.ops_page`.

`--check` writes nothing and fails where the page is stale.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from ..hlo import ops
from ..hlo.graph import Dense
from ..hlo.room import ANY, REQUIRED, AttributeSpec, OpDefinition

PAGE = Path(__file__).resolve().parent / "ops.md"

_HEAD = """# Operations

Written from the rooms in `hlo/ops/` by `python -m girih.specs.ops_page`; do not edit.

Names and meanings are StableHLO's; attributes are laid flat. Clause numbers are those of errors and
tests (`concatenate.C2`). The *pattern* says how an operation touches its operands: `elementwise`,
`index` (moves elements), `reduce`, `contract` (sums of products), `source`, `control`, `opaque`.
*Decomposed* operations are explained by simpler ones, which is their only arithmetic.

Every operation states which elements of its operands an element of its result needs
(`hlo/access.py`), so that it can be computed tile by tile, but for those of *Computed whole*. The
operations of tile functions name windows of memory themselves. It also states what it means to cut
its tensors among devices (`hlo/factors.py`), but for those of *Not cut*.
"""

_KINDS = ("bool", "int", "uint", "float", "complex")


def main(arguments: list[str] | None = None) -> int:
    """Write or check the page; 1 if it was stale and may not be written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say whether the page is stale")
    check = parser.parse_args(arguments).check
    text = page()
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print(f"{'stale' if check else 'wrote'}: specs/{PAGE.name}")
    if not check:
        PAGE.write_text(text)
    return int(check)


def page() -> str:
    """The text of specs/ops.md."""
    parts = [_HEAD]
    for module, rooms in families():
        title = (module.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        parts.append(f"\n## {title}\n")
        parts += [_room(room) for room in rooms]
    parts.append(_opaque())
    parts.append(_uncut())
    return "\n".join(parts)


def families() -> Iterator[tuple[ModuleType, tuple[OpDefinition, ...]]]:
    """The modules of rooms in the table's order, each with its rooms."""
    names = dict.fromkeys(type(room).__module__ for room in ops.DEFINITIONS)
    for name in names:
        rooms = tuple(room for room in ops.DEFINITIONS if type(room).__module__ == name)
        yield sys.modules[name], rooms


def _room(room: OpDefinition) -> str:
    lines = [f"### {room.name}", "", _paragraphs(room.__doc__ or "")]
    facts = [f"Pattern: {room.pattern}"]
    facts += [word for word, holds in (
        ("commutative", room.commutative),
        ("has effects", room.effects),
        ("decomposed", type(room).decompose is not OpDefinition.decompose),
    ) if holds]  # fmt: skip
    lines += ["", ", ".join(facts) + "."]
    operands = [f"`{o.name}`{'...' if o.variadic else ''}" for o in room.operands]
    if operands:
        lines += ["", "Operands: " + ", ".join(operands) + "."]
    kinds = getattr(room, "kinds", ())
    if kinds:
        lines += ["", f"Element kinds: {', '.join(k for k in _KINDS if k in kinds)}."]
    if room.attributes:
        shown = [_attribute(name, spec) for name, spec in room.attributes.items()]
        lines += ["", "Attributes: " + ", ".join(shown) + "."]
    if room.regions:
        regions = ["any number" if name == "*" else f"`{name}`" for name in room.regions]
        lines += ["", "Regions: " + ", ".join(regions) + "."]
    if room.constraints:
        lines += ["", *(f"- {clause.clause}: {clause.text}" for clause in room.constraints)]
    return "\n".join(lines) + "\n"


def _opaque() -> str:
    """The operations without an access, and why."""
    return _reasons("Computed whole", {room.name: room.opaque for room in ops.DEFINITIONS})


def _uncut() -> str:
    """The operations without factors, and why."""
    return _reasons("Not cut", {room.name: room.uncut for room in ops.DEFINITIONS})


def _reasons(title: str, reasons: dict[str, str]) -> str:
    rows = [f"| {name} | {reason} |" for name, reason in reasons.items() if reason]
    return "\n".join([f"\n## {title}\n", "| operation | because |", "|---|---|", *rows]) + "\n"


def _paragraphs(text: str) -> str:
    """A docstring without its indentation."""
    return "\n".join(line.strip() for line in text.strip().splitlines())


def _attribute(name: str, spec: AttributeSpec) -> str:
    kind = "any" if spec.kind is ANY else "tensor" if spec.kind is Dense else spec.kind.__name__
    if spec.default is REQUIRED:
        return f"`{name}` ({kind})"
    return f"`{name}` ({kind}, default `{spec.default!r}`)"


if __name__ == "__main__":
    sys.exit(main())
