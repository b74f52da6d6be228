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
import re
from pathlib import Path
from typing import Any

import girih
from girih.hlo.errors import UserError

_HEAD = "prepared.json"
_SOURCES = ("hlo", "optimizer", "backends", "specs", "benchmarks/gpu/first")
_OURS = re.compile(r"[0-9a-f]{24}\.(pickle|girih|part)")
_LARGEST = 1 << 20  # bytes of one array that is kept; larger ones are made again on the GPU's host


class Missing(UserError):
    """What a check takes is not in its folder; the device had no part in it."""


class Folder:
    """Values by name. Each lies in a file of its own, which appears whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def create(path: Path, architecture: str) -> Folder:
        """The folder to fill; what another compiler or architecture left there is dropped, and
        nothing else. UserError where it cannot be written."""
        folder, head = Folder(path), _head(architecture)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if folder._read_head() != head:
                for old in path.iterdir():
                    if _OURS.fullmatch(old.name):
                        old.unlink()
                (path / _HEAD).write_text(json.dumps(head, indent=1) + "\n")
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}") from error
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

    def bundle(self, name: str) -> Path:
        """The file of a program; `Missing` where it is not there."""
        file = self.file(name, ".girih")
        if not file.is_file():
            raise self._missing(name)
        return file

    def _missing(self, name: str) -> Missing:
        return Missing(f"{name!r} is not in {self.path}; run first_run.py --prepare {self.path}")

    def has(self, name: str) -> bool:
        return self.file(name).exists()

    def put(self, name: str, value: Any) -> None:
        file = self.file(name)
        part = file.with_suffix(".part")
        part.write_bytes(pickle.dumps((name, value), pickle.HIGHEST_PROTOCOL))
        os.replace(part, file)

    def get(self, name: str) -> Any:
        """The value; `Missing` where it is not there, or damaged."""
        try:
            data = self.file(name).read_bytes()
        except OSError:
            raise self._missing(name) from None
        try:
            return pickle.loads(data)[1]
        except Exception as error:  # noqa: BLE001  # whatever damaged bytes make of it
            raise Missing(
                f"{self.file(name)}, which {name!r} takes, is damaged ({error}); delete it, then "
                f"run first_run.py --prepare {self.path}"
            ) from error

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
