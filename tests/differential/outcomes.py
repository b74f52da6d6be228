"""What becomes of a framework's operator samples in girih, and how it is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

RELATIVE = {"float64": 1e-8, "complex128": 1e-8, "bfloat16": 3e-2, "float16": 4e-3}
"""How far results may be off, as part of the largest; 1e-4 where nothing else is said."""


class Outcome(NamedTuple):
    verdict: str  # agrees, differs, blocked, refused, bug, no export
    words: str = ""
    targets: frozenset[str] = frozenset()


def compare(
    found: Sequence[Any],
    wanted: Sequence[Any],
    targets: frozenset[str] = frozenset(),
    single: bool = False,
) -> Outcome:
    """Whether all results agree: types, shapes, integers exactly, other numbers about. single: the
    program computes in float32, also what it gives as float64."""
    if len(found) != len(wanted):
        return Outcome("differs", f"{len(found)} results, not {len(wanted)}")
    for ours, theirs in zip(map(np.asarray, found), map(np.asarray, wanted), strict=True):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return Outcome("differs", f"{ours.dtype}{ours.shape} not {theirs.dtype}{theirs.shape}")
        if theirs.dtype.kind in "biu":
            if not np.array_equal(ours, theirs):
                at = np.argwhere(np.atleast_1d(ours != theirs))[0]
                pair = np.atleast_1d(ours)[tuple(at)], np.atleast_1d(theirs)[tuple(at)]
                return Outcome("differs", f"{pair[0]} not {pair[1]}", targets)
            continue
        limit = RELATIVE.get(theirs.dtype.name, 1e-4)
        limit = max(limit, 1e-4) if single else limit
        wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
        x, y = ours.astype(wide).ravel(), theirs.astype(wide).ravel()
        finite = np.isfinite(y)
        scale = max(1.0, float(np.abs(y[finite]).max(initial=0.0)))
        near = np.where(
            finite, np.abs(x - y) <= limit * scale, (x == y) | (np.isnan(x) & np.isnan(y))
        )
        if not near.all():
            at = int(np.argmin(near))
            return Outcome("differs", f"{x[at]} not {y[at]} ({theirs.dtype.name})", targets)
    return Outcome("agrees", "", targets)


PAGE = Path(__file__).resolve().parents[2] / "docs" / "support.md"
_NEXT = "\n## "


def section(head: str) -> str:
    """What stands behind `head` in docs/support.md, until the next heading of that rank."""
    return PAGE.read_text().partition(head)[2].partition(_NEXT)[0]


def write_section(head: str, text: str) -> None:
    """Puts `text` behind `head` into docs/support.md, in place of what stands there until the next
    heading of that rank; at its end if it is new."""
    before, _, after = PAGE.read_text().partition(head)
    _, found, rest = after.partition(_NEXT)
    PAGE.write_text(before + head + text + found + rest)


def rows_of(text: str) -> list[tuple[str, ...]]:
    """The rows of the table in a section, without its titles."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[2:]]


def failures(reasons: Mapping[str, Sequence[str]]) -> str:
    """The list of what does not work, each reason with where that is."""
    lines = [f"- {words} ({'; '.join(places)})\n" for words, places in sorted(reasons.items())]
    return "\nWhat does not work, with the first reason:\n\n" + "".join(lines) if lines else ""


def failures_of(text: str) -> dict[str, list[str]]:
    """The list in a section, read back."""
    lines = [line[2:-1] for line in text.splitlines() if line.startswith("- `")]
    pairs = [line.rpartition(" (") for line in lines]
    return {words: places.split("; ") for words, _, places in pairs}


def markdown_rows(*rows: Sequence[str]) -> str:
    """A table; the first row are its titles."""
    every = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    return "".join("| " + " | ".join(row) + " |\n" for row in every)


def print_blockers(blockers: Counter[str]) -> None:
    """Each reason with the number of samples that it blocked."""
    print("\nblockers:")
    for words, times in blockers.most_common():
        print(f"  {times:4} {words}")
