"""Which of StableHLO's own test programs are committed here, and where.

`python tests/conformance/programs.py ARCHIVE` chooses them from openxla/stablehlo's
`stablehlo/tests/testdata` (a .tar.xz of it): of every operation and element type the smallest.
The tests of StableHLO's interpreter and of its mathematics are here as a whole.
Programs are Apache-2.0, (c) The StableHLO Authors.
"""

from __future__ import annotations

import io
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

CHOSEN = Path(__file__).parent / "stablehlo_testdata.tar.xz"
INTERPRETER = Path(__file__).parent / "stablehlo_interpret.tar.xz"
LARGEST = 12_000  # characters of a program

_KIND = re.compile(r"(bfloat16|float\d+|complex\d+|uint\d+|int\d+|bool)")


def read_programs(path: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of every program of a .tar.xz archive."""
    with tarfile.open(path) as archive:
        for member in sorted(archive.getmembers(), key=lambda item: item.name):
            file = archive.extractfile(member) if member.name.endswith(".mlir") else None
            if file is not None:
                yield Path(member.name).stem, file.read().decode()


def choose(archive: Path) -> dict[str, str]:
    """The smallest program with checks for each leading operation name and element type."""
    best: dict[tuple[str, str], tuple[str, str]] = {}
    for name, text in read_programs(archive):
        if len(text) > LARGEST or "@check." not in text:
            continue
        kind = _KIND.search(name)
        key = (name[: kind.start()] if kind else name, kind[0] if kind else "")
        if "!quant" in text:
            key = (key[0], "quantised")
        if key not in best or len(text) < len(best[key][1]):
            best[key] = (name, text)
    return dict(sorted(best.values()))


def main() -> None:
    with tarfile.open(CHOSEN, "w:xz") as archive:
        for name, text in choose(Path(sys.argv[1])).items():
            info = tarfile.TarInfo(f"{name}.mlir")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))


if __name__ == "__main__":
    main()
