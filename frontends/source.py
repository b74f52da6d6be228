"""Finds out what a source is and hands it to the frontend that reads it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from stat import S_ISREG
from types import MethodType
from typing import Any

from ..hlo.errors import SeveralEntries, UserError
from ..hlo.extras import require
from ..hlo.files import kind_of_bytes, kind_of_file
from ..hlo.graph import Module
from ..runtime.bundle import ENTRY_NAME, MAIN, Bundle
from ..runtime.entries import unknown_entry
from ..runtime.parts import decode_module, decode_modules

_BYTECODE = b"ML\xefR"
_ZIP = b"PK\x03\x04"
_PROBED = 64  # bytes that tell a bundle
_KINDS = (
    "a girih.Module, a path (.mlir, .mlirbc, .hlo, .hlo.pb, .pt2, a jax.export file, .girih), "
    "StableHLO or HLO as text or bytes, a jax.export.Exported, a torch.export.ExportedProgram, a "
    "torch.nn.Module or a function that JAX can trace (the last two with example inputs)"
)


def _frontend(name: str) -> Any:
    """A frontend's module, imported when a source is for it."""
    return import_module(f".{name}", __package__)


def read_source(source: Any, *examples: Any, **keywords: Any) -> Module:
    """The module of any kind of source; UserError where it is none."""
    if isinstance(source, Module):
        return source
    if isinstance(source, (str, os.PathLike)):
        return _read_text_or_path(source, examples, keywords)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return read_bytes(memoryview(source), "", examples, keywords)
    origin = _library_of(source)
    if origin == "torch" and isinstance(source, MethodType):
        source = _frontend("torch.methods").module_of(source)
    if origin == "girih" and isinstance(module := getattr(source, "module", None), Module):
        _no_examples(examples, keywords, "a girih.Program")
        return module
    if origin == "torch":
        return _frontend("torch.importing").import_torch(source, *examples, **keywords)
    if origin == "jax" or callable(source):
        require("jax", "tracing a function")

        return _frontend("jax.importing").import_jax(source, *examples, **keywords)
    raise UserError(f"cannot import a {type(source).__name__}; a source is {_KINDS}")


def read_all(
    source: Any, examples: Sequence[Any], keywords: Mapping[str, Any]
) -> dict[str, Module]:
    """The modules of all entry points of a source by name: of a bundle, a girih.Program, or
    StableHLO with several public functions and no `main`; else what `read_source` gives."""
    if _library_of(source) == "girih" and hasattr(source, "entry_name"):
        _no_examples(examples, keywords, "a girih.Program")
        return {name: source.entry(name).module for name in source.entries}
    data = source
    if isinstance(source, (str, os.PathLike)):
        text = isinstance(source, str) and _is_text(source)
        data = None if text else Path(os.fspath(source))
    if data is not None and _starts_as_bundle(data):
        _no_examples(examples, keywords, "a bundle")
        return decode_modules(Bundle(data))
    try:
        return {MAIN: read_source(source, *examples, **keywords)}
    except SeveralEntries as error:
        if not error.names or not all(map(ENTRY_NAME.fullmatch, error.names)):
            raise
        return {name: error.read(name) for name in error.names}


def _starts_as_bundle(source: Any) -> bool:
    if isinstance(source, Path):
        with contextlib.suppress(OSError, ValueError), source.open("rb") as file:
            return _is_bundle(file.read(_PROBED))
        return False
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _is_bundle(bytes(memoryview(source)[:_PROBED]))
    return False


def tuning_in(source: Any) -> tuple[str, Any] | None:
    """The label and the document of the tuning in a source that is a bundle, its parts or a
    girih.Program; None where there is none."""
    if isinstance(source, str) and "\n" in source:
        return None
    if isinstance(source, (str, os.PathLike)):
        path = Path(os.fspath(source))
        with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
            if _is_bundle(file.read(_PROBED)):
                return _tuning_of(path)
        return None
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = memoryview(source)
        return _tuning_of(data) if _is_bundle(bytes(data[:_PROBED])) else None
    if _library_of(source) == "girih":
        tuning = getattr(getattr(source, "parts", source), "tuning", None)
        return None if tuning is None else ("the program", tuning)
    return None


def _tuning_of(source: Path | memoryview) -> tuple[str, Any] | None:
    bundle = Bundle(source)
    return None if bundle.tuning is None else (bundle.label, bundle.tuning)


def _library_of(source: Any) -> str:
    """The framework whose class the source is an instance of, or a method of one, without importing
    any."""
    if isinstance(source, MethodType):
        source = source.__self__
    for kind in type(source).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in ("torch", "girih"):
            return package
        if package in ("jax", "jaxlib"):
            return "jax"
    return ""


def _read_text_or_path(source: Any, examples: Any, keywords: Any) -> Module:
    text = os.fspath(source)
    if isinstance(source, str) and _is_text(text):
        return _read_text(text, examples, keywords)
    path = Path(text)
    if (kind := kind_of_file(path)) is not None and not kind.source:
        raise UserError(f"{path}: {kind}")
    try:
        if not S_ISREG(path.stat().st_mode):
            raise UserError(f"{path}: this is no regular file; write what it gives to one")
    except FileNotFoundError:
        if not isinstance(source, str):
            raise UserError(f"{path}: there is no such file") from None
        raise UserError(f"there is no file '{text}'; a source is {_KINDS}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{text[:200]}: cannot be read: {reason}") from error
    if path.suffix == ".girih":
        return _read_bundle(path, examples, keywords)
    return read_file(path, examples, keywords)


def _is_text(text: str) -> bool:
    """Whether it is a program, and no path."""
    return "\n" in text or "func.func" in text or "module {" in text


def _read_text(text: str, examples: Any, keywords: Any) -> Module:
    """The module of HLO text, which says so first, or of StableHLO text."""
    if _frontend("xla").is_hlo_text(text):
        _no_examples(examples, keywords, "HLO")
        return _frontend("xla").read_hlo(text)
    entry, keywords = _entry_of(keywords)
    _no_examples((), keywords, "StableHLO, whose inputs have no names")
    return _frontend("stablehlo").read_stablehlo(text, "", examples, entry)


def read_file(path: Path, examples: Any = (), keywords: Any = None) -> Module:
    """The module of a file, by what its first bytes say."""
    try:
        with path.open("rb") as file:
            head = file.read(len(_ZIP) + 64)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    if head.startswith(_ZIP):
        if _is_bundle(head):
            return _read_bundle(path, examples, keywords)
        return _frontend("torch.importing").import_torch(path, *examples, **(keywords or {}))
    return read_bytes(memoryview(path.read_bytes()), path.name, examples, keywords)


def read_bytes(
    data: memoryview, name: str = "", examples: Any = (), keywords: Any = None
) -> Module:
    """The module of bytes: portable artifact, bundle, .pt2, jax.export file, StableHLO text, HLO.

    A jax.export file, a .pt2 archive and StableHLO take examples, which fix the sizes left free.
    """
    if (kind := kind_of_bytes(bytes(data))) is not None and not kind.source:
        raise UserError(f"{name or 'the bytes'}: {kind}")
    head = bytes(data[:4])
    probe = bytes(data[:4096])
    if head != _ZIP and head != _BYTECODE and _frontend("xla").is_hlo(data):
        _no_examples(examples, keywords, "HLO")
        return _frontend("xla").read_hlo(data, name)
    if head != _ZIP and head != _BYTECODE and b"\0" in probe:
        return _frontend("jax.importing").read_exported(data, name, *examples, **(keywords or {}))
    if head == _ZIP:
        if _is_bundle(probe):
            return _read_bundle(data, examples, keywords)
        return _frontend("torch.importing").import_torch(data, *examples, **(keywords or {}))
    entry, keywords = _entry_of(keywords)
    _no_examples((), keywords, "StableHLO, whose inputs have no names")
    return _frontend("stablehlo").read_stablehlo(data, name, examples, entry)


def _is_bundle(head: bytes) -> bool:
    """Whether a zip's first member, which a local header of 30 bytes precedes, is a bundle's."""
    return head.startswith(_ZIP) and head[30:].startswith(b"program.pb")


def _read_bundle(source: Path | memoryview, examples: Any, keywords: Any) -> Module:
    entry, keywords = _entry_of(keywords)
    _no_examples(examples, keywords, "a bundle")

    bundle = Bundle(source)
    names = tuple(bundle.signatures)
    if entry is None and len(names) > 1:
        raise SeveralEntries(
            f"{bundle.label}: it has the entry points {', '.join(names)}; name one: "
            f"import_model(source, entry={names[0]!r})",
            names,
            lambda name: decode_module(bundle, name),
        )
    if entry is not None and entry not in names:
        raise UserError(f"{bundle.label}: {unknown_entry(entry, names)}")
    return decode_module(bundle, entry)


def _entry_of(keywords: Any) -> tuple[str | None, dict[str, Any]]:
    """The entry point that is asked for, and all other keywords."""
    others = dict(keywords or {})
    return others.pop("entry", None), others


def _no_examples(examples: Any, keywords: Any, what: str) -> None:
    if examples or keywords:
        raise UserError(f"example inputs are for functions and torch modules, not for {what}")
