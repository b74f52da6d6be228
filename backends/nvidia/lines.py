"""Lines of the user's program in a PTX module: `.file` and `.loc`.

A compiled kernel counts operations as lines (`llvm/places.py`). Here they become lines of files,
when the kernel's program is known. Files are named without folders, so that equal programs give
equal modules wherever they are compiled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath, PureWindowsPath

from ...hlo.graph import Origin
from ..llvm.places import FILE

_FILE = re.compile(r'^[ \t]*\.file[ \t]+(\d+)[ \t]+"([^"\n]*)"[^\n]*\n', re.MULTILINE)
_LOC = re.compile(r"^[ \t]*\.loc[ \t]+(\d+)[ \t]+(\d+)[ \t]+(\d+)[^\n]*$", re.MULTILINE)
_OURS = re.compile(rf'^[ \t]*\.file[ \t]+1[ \t]+"{FILE}"$', re.MULTILINE)


class Files:
    """The files that a module names, numbered from 1."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, path: str) -> int:
        """The number of the file at a path of any system: programs travel."""
        name = PureWindowsPath(PurePosixPath(path).name).name.replace('"', "'")
        return self._numbers.setdefault(name, len(self._numbers) + 1)

    def directives(self) -> list[str]:
        """The module's `.file` directives."""
        return [f'.file {number} "{name}"' for name, number in self._numbers.items()]


def located(ptx: str, places: Sequence[Origin | None], files: Files) -> str:
    """A kernel's PTX without `.file`, and with lines of `files`: numbers of operations become the
    origins that `places` gives them; a user's own PTX keeps its lines."""
    if ".loc" not in ptx:
        return _FILE.sub("", ptx)
    ours = _OURS.search(ptx) is not None
    own = {match[1]: match[2] for match in _FILE.finditer(ptx)}

    def line(match: re.Match[str]) -> str:
        file, number, column = match.groups()
        if not ours:
            return _directive(files, own.get(file, ""), int(number), int(column))
        place = places[int(number)] if int(number) < len(places) else None
        return _directive(files, place.file, place.line) if place is not None else ""

    return _without_repeats(_LOC.sub(line, _FILE.sub("", ptx)))


def _directive(files: Files, path: str, line: int, column: int = 0) -> str:
    return f"\t.loc\t{files.number(path)} {max(line, 0)} {column}" if path else ""


def _without_repeats(ptx: str) -> str:
    """Without `.loc` that say what the one before in their function has said."""
    kept, last = [], ""
    for line in ptx.splitlines():
        if line.startswith("\t.loc"):
            if line == last:
                continue
            last = line
        elif line[:1] in ("{", "}"):
            last = ""
        if line:
            kept.append(line)
    return "\n".join([*kept, ""])
