"""Freezes the programs of the current format: `python tests/corpus/make.py` writes <version>.zip.

One case of each operation's room, or more, as wire bytes with inputs and outputs in raw
little-endian bytes (types are the program's own). A released version's file is never written
again, only a new version gets a new one.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from girih.hlo.cases import all_examples
from girih.hlo.interpret import interpret
from girih.hlo.wire import FORMAT_VERSION, encode

HERE = Path(__file__).parent
LARGEST = 1 << 14  # bytes of a case; the corpus is for the format, not for load


def main() -> None:
    path = HERE / f"{FORMAT_VERSION}.zip"
    if path.exists():
        raise SystemExit(f"{path.name} is frozen; raise FORMAT_VERSION first")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for example in all_examples():
            outputs = interpret(example.module, example.inputs)
            arrays = {
                **{f"in{i}": a for i, a in enumerate(example.inputs)},
                **{f"out{i}": np.asarray(a) for i, a in enumerate(outputs)},
            }
            if sum(array.nbytes for array in arrays.values()) > LARGEST:
                continue
            members = {"program.pb": encode(example.module)}
            members |= {name: np.ascontiguousarray(a).tobytes() for name, a in arrays.items()}
            for name, data in members.items():
                info = zipfile.ZipInfo(f"{example.name}/{name}", (1980, 1, 1, 0, 0, 0))
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, data)


if __name__ == "__main__":
    main()
