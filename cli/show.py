"""How numbers and tables look on a terminal."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ..hlo.errors import UserError
from ..runtime.entries import chosen

if TYPE_CHECKING:
    from ..runtime.program import Program

console = Console(soft_wrap=True, highlight=False, markup=False)
if not console.is_terminal:
    console.width = 160  # files and pipes have no width; narrow tables would wrap in vain
progress_console = Console(stderr=True, highlight=False)


def chosen_entry(source: object, entries: Sequence[str], name: str | None) -> str:
    """The entry point that `--entry` names, by default the one that a call runs; UserError that
    begins with the source."""
    try:
        return chosen(name, entries)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def speaks_for_all(program: Program) -> bool:
    """Whether this process is the one of a mesh that shows results; the others show nothing."""
    if program.mesh is None or program.rank == 0:
        return True
    console.quiet = True
    return False


def print_json(data: Any) -> None:
    """One JSON document on stdout."""
    if not console.quiet:
        print(json_text(data))


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """Print a table; columns whose heading starts with `>` are right-aligned."""
    shown = Table(title=title or None, title_justify="left", title_style="bold", box=None)
    shown.show_header = any(headings)
    for heading in headings:
        right = heading.startswith(">")
        shown.add_column(
            heading.lstrip(">"),
            justify="right" if right else "left",
            no_wrap=right,
            overflow="fold",
        )
    for row in rows:
        shown.add_row(*(str(cell) for cell in row))
    console.print(shown)


def facts(rows: Iterable[tuple[str, Any]], title: str = "") -> None:
    """Print names and values below each other."""
    table(("", ""), rows, title)


def size(count: int | float) -> str:
    """Bytes for people: `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return ""


def signed_size(count: float) -> str:
    """A difference of bytes, for people."""
    if not count:
        return "as many bytes"
    return f"{size(abs(count))} {'more' if count > 0 else 'fewer'}"


def time(microseconds: float) -> str:
    """A duration for people: `3.2 ms`."""
    if microseconds < 1000:
        return f"{microseconds:.3g} us"
    if microseconds < 1e6:
        return f"{microseconds / 1e3:.3g} ms"
    return f"{microseconds / 1e6:.3g} s"


def write(path: Path, text: str) -> None:
    """The whole file or none of it; UserError where it cannot be written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot write: {error.strerror or error}") from error


def json_text(data: Any) -> str:
    """The text of `print_json`; JSON has no infinities and no NaN, so they are strings."""
    return json.dumps(_finite(data), indent=1, allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data
