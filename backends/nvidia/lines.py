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
_LOC = re.compile(r"^([ \t]*\.loc[ \t]+)(\d+)[ \t]+(\d+)([ \t]+\d+)([^\n]*)$", re.MULTILINE)
_INLINED = re.compile(r"(inlined_at[ \t]+)(\d+)")
_OURS = re.compile(rf'^[ \t]*\.file[ \t]+1[ \t]+"{FILE}"$', re.MULTILINE)


class Files:
    """The files that a module names, numbered from 1."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers) + 1)

    def directives(self) -> list[str]:
        """The module's `.file` directives."""
        return [f'.file {number} "{name}"' for name, number in self._numbers.items()]


def located(ptx: str, places: Sequence[Origin | None], files: Files) -> str:
    """A kernel's PTX without `.file`, and with lines of `files`: numbers of operations become the
    origins that `places` gives them; a user's own PTX keeps its lines."""
    if ".loc" not in ptx:
        return _FILE.sub("", ptx)
    if _OURS.search(ptx):
        found = _LOC.sub(lambda match: _line(match, places, files), _FILE.sub("", ptx))
        return _without_repeats(found)
    own = {match[1]: files.number(match[2]) for match in _FILE.finditer(ptx)}

    def renumbered(match: re.Match[str]) -> str:
        start, file, line, column, rest = match.groups()
        if file not in own:
            return ""
        rest = _INLINED.sub(lambda found: f"{found[1]}{own.get(found[2], own[file])}", rest)
        return f"{start}{own[file]} {line}{column}{rest}"

    return _LOC.sub(renumbered, _FILE.sub("", ptx))


def _line(match: re.Match[str], places: Sequence[Origin | None], files: Files) -> str:
    number = int(match[3])
    origin = places[number] if number < len(places) else None
    if origin is None:
        return ""
    # A path of any system: programs travel.
    name = PureWindowsPath(PurePosixPath(origin.file).name).name.replace('"', "'")
    return f"{match[1]}{files.number(name)} {max(origin.line, 0)} 0"


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
