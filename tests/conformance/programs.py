"""StableHLO's own test programs: how they are chosen, read and turned into checks.

`python tests/conformance/programs.py ARCHIVE` chooses the committed ones from openxla/stablehlo's
`stablehlo/tests/testdata` (a .tar.xz of it): of every operation and element type the smallest.
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
LARGEST = 12_000  # characters of a program

_CHECK = re.compile(
    r"^\s*stablehlo\.custom_call @check\.(?:expect_\w+)\((%[\w#]+), (%[\w#]+)\)[^\n]*?"
    r": \((tensor<.*?>), (tensor<.*?>)\) -> \(\)\n",
    re.MULTILINE,
)
_MAIN = re.compile(r"(func\.func public @main\(\)) -> (?:\([^\n]*\)|[^\n{]*) \{\n")
_KIND = re.compile(r"(bfloat16|float\d+|complex\d+|uint\d+|int\d+|bool)")


def read_programs(path: Path = CHOSEN) -> Iterator[tuple[str, str]]:
    """(name, text) of every program of an archive."""
    with tarfile.open(path) as archive:
        for member in sorted(archive.getmembers(), key=lambda item: item.name):
            file = archive.extractfile(member)
            if file is not None and member.name.endswith(".mlir"):
                yield Path(member.name).stem, file.read().decode()


def as_results(text: str) -> tuple[str, int] | None:
    """The program with (actual, expected) of each check as results, and the number of checks;
    None where `main` takes inputs or holds no such check."""
    checks = _CHECK.findall(text)
    if not checks or not _MAIN.search(text):
        return None
    types = ", ".join(f"{left}, {right}" for _, _, left, right in checks)
    values = ", ".join(f"{left}, {right}" for left, right, _, _ in checks)
    text = _MAIN.sub(lambda found: f"{found[1]} -> ({types}) {{\n", text, count=1)
    text = _CHECK.sub("", text)
    body = text.index("@main()")
    end = re.compile(r"^\s*return\b[^\n]*\n", re.MULTILINE).search(text, body)
    if end is None:
        return None
    text = f"{text[: end.start()]}    return {values} : {types}\n{text[end.end() :]}"
    return text, len(checks)


def choose(archive: Path) -> dict[str, str]:
    """The smallest program for each leading operation name and element type."""
    best: dict[tuple[str, str], tuple[str, str]] = {}
    for name, text in read_programs(archive):
        if len(text) > LARGEST or as_results(text) is None or "!quant" in text:
            continue
        kind = _KIND.search(name)
        key = (name[: kind.start()] if kind else name, kind[0] if kind else "")
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
