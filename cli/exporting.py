"""`girih export`: a program in another compiler's format."""

from __future__ import annotations

from pathlib import Path

from ..frontends.stablehlo.versions import parse_version, version_text
from ..frontends.stablehlo.write import write_artifact, write_text
from ..hlo.errors import UserError
from . import show
from .compiling import import_source

_TEXT = (".mlir", ".txt")
_ARTIFACT = (".mlirbc", ".bc")


def export_source(
    source: str,
    to: str,
    version: str | None,
    output: Path | None,
    weights: str,
    as_json: bool,
    entry: str | None = None,
) -> None:
    """Write the program as StableHLO: text or an artifact, by the output's suffix."""
    if to != "stablehlo":
        raise UserError(f"--to: '{to}' is no format that girih writes; it writes stablehlo")
    if weights not in ("constants", "arguments"):
        raise UserError(f"--weights: constants or arguments, not '{weights}'")
    suffix = ".mlir" if output is None else output.suffix
    if suffix not in _TEXT + _ARTIFACT:
        raise UserError(f"{output}: name it .mlir for text or .mlirbc for a portable artifact")
    chosen = None if version is None else parse_version(version)
    module = import_source(source, entry)
    outside = weights == "arguments"
    if suffix in _ARTIFACT:
        made = write_artifact(module, chosen, outside)
        data, needed = made.data, made.version
    else:
        made = write_text(module, chosen, outside)
        data, needed = made.text.encode(), chosen
    if output is None and not as_json:
        return print(data.decode(), end="")
    if output is not None:
        _write(output, data)
    stored = sum(weight.type.bytes for weight in module.weights.values())
    if as_json:
        return show.print_json(
            {
                "file": None if output is None else str(output),
                "bytes": len(data),
                "form": "artifact" if suffix in _ARTIFACT else "text",
                "version": None if needed is None else version_text(needed),
                "weights": weights,
                "weight_bytes": stored,
                "weight_arguments": list(made.weights),
                "notes": list(made.notes),
            }
        )
    which = "text" if needed is None else f"StableHLO {version_text(needed)}"
    count = len(module.weights)
    held = f"{count} weight{'' if count == 1 else 's'} ({show.size(stored)})"
    place = "as arguments after the inputs" if outside else "inside"
    show.console.print(f"{output}: {show.size(len(data))}, {which}, {held} {place}")
    for note in made.notes:
        show.console.print(f"note: {note}")


def _write(output: Path, data: bytes) -> None:
    try:
        output.write_bytes(data)
    except OSError as error:
        raise UserError(f"{output}: cannot write: {error.strerror or error}") from error
