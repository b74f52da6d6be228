"""Freezes the programs of the current format: `python -m tests.corpus.make` writes <version>.zip.

Every case of every operation's room, and programs of the operations that need company, as wire
bytes with inputs and outputs in raw little-endian bytes (types are the program's own). A released
version's file is never written again, only a new version gets a new one.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from girih.hlo.versions import FORMAT_VERSION

from .programs import entries, frozen

HERE = Path(__file__).parent


def main() -> None:
    path = HERE / f"{FORMAT_VERSION}.zip"
    if path.exists():
        raise SystemExit(f"{path.name} is frozen; a new format needs a step in hlo/versions/")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in entries():
            for name, data in (frozen(entry) or {}).items():
                info = zipfile.ZipInfo(f"{entry.name}/{name}", (1980, 1, 1, 0, 0, 0))
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, data)


if __name__ == "__main__":
    main()
