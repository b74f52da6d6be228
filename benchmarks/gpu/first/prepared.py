"""What is made ahead, on a machine without a GPU: a folder with the code, the inputs and the
results of every check, so that a run on a GPU compiles nothing and simulates nothing.

A folder belongs to one version of the compiler and one architecture; another one is refused.
Values are pickled: read only folders that you made.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from pathlib import Path
from typing import Any

import girih
from girih.hlo.errors import UserError

_HEAD = "prepared.json"
_SOURCES = ("hlo", "optimizer", "backends", "specs", "benchmarks/gpu/first")
_LARGEST = 1 << 20  # bytes of one array that is kept; larger ones are made again on the GPU's host


class Folder:
    """Values by name. Each lies in a file of its own, which appears whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def create(path: Path, architecture: str) -> Folder:
        """The folder to fill; what another compiler or architecture left there is dropped."""
        folder, head = Folder(path), _head(architecture)
        path.mkdir(parents=True, exist_ok=True)
        if folder._read_head() != head:
            for old in path.iterdir():
                if old.suffix in (".pickle", ".girih", ".part"):
                    old.unlink()
            (path / _HEAD).write_text(json.dumps(head, indent=1) + "\n")
        return folder

    @staticmethod
    def open(path: Path, architecture: str) -> Folder:
        """The folder to read; UserError where it was made by something else."""
        folder, head = Folder(path), _head(architecture)
        found = folder._read_head()
        if found != head:
            said = "nothing was prepared there" if found is None else f"it is of {found}"
            raise UserError(
                f"{path}: {said}, this run needs {head}; run first_run.py --prepare {path}"
            )
        return folder

    def file(self, name: str, suffix: str = ".pickle") -> Path:
        return self.path / (hashlib.sha256(name.encode()).hexdigest()[:24] + suffix)

    def has(self, name: str) -> bool:
        return self.file(name).exists()

    def put(self, name: str, value: Any) -> None:
        file = self.file(name)
        part = file.with_suffix(".part")
        part.write_bytes(pickle.dumps((name, value), pickle.HIGHEST_PROTOCOL))
        os.replace(part, file)

    def get(self, name: str) -> Any:
        """The value; UserError where it is not there."""
        try:
            data = self.file(name).read_bytes()
        except FileNotFoundError:
            raise UserError(
                f"{name!r} is not in {self.path}; run first_run.py --prepare {self.path}"
            ) from None
        return pickle.loads(data)[1]

    def _read_head(self) -> dict[str, str] | None:
        try:
            return json.loads((self.path / _HEAD).read_text())
        except (OSError, ValueError):
            return None


def _head(architecture: str) -> dict[str, str]:
    return {"architecture": architecture, "compiler": sources()}


def sources() -> str:
    """A digest of what code depends on: the compiler's and these checks' files. LLVM is none of
    it: machines with and without a GPU may have different versions."""
    root, state = Path(girih.__file__).parent, hashlib.sha256()
    for name in _SOURCES:
        for file in sorted((root / name).rglob("*.py")):
            state.update(f"{file.relative_to(root).as_posix()}\0".encode())
            state.update(hashlib.sha256(file.read_bytes()).digest())
    return state.hexdigest()[:16]


def is_small(arrays: Any) -> bool:
    """Whether arrays are kept in a folder."""
    return sum(array.nbytes for array in arrays) <= _LARGEST
