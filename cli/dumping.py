"""`girih dump`: the program and its kernels at each stage of a compilation, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..backends import find
from ..compilation import tuner_for
from ..hlo.errors import UserError
from ..hlo.graph import Module
from ..hlo.stated_sizes import read_stated_sizes
from ..stages import IMPORT, Stages, Text, names, read, written
from . import show
from .compiling import import_source, read_options, with_tuning

ALL = "all"


@dataclass(frozen=True)
class Wanted:
    """What is shown: of a stage or pass ("all" for every stage), of all kernels or of one; `since`:
    the stage that the source is the text of; `origins`: whether operations say theirs."""

    stage: str = IMPORT
    kernel: str | None = None
    since: str | None = None
    origins: bool = False


def dump_source(
    source: str,
    wanted: Wanted,
    output: Path | None,
    target: str,
    settings: Sequence[str],
    as_json: bool,
    entry: str | None = None,
    sizes: Sequence[str] = (),
) -> None:
    """Print the text of a stage, or write that of every stage to a file in a folder. sizes: what
    open sizes are, as `--size` says it."""
    options = with_tuning(read_options(settings), source)
    stated = read_stated_sizes(sizes)
    module = import_source(source, entry, stated) if wanted.since is None else None
    backend = find(target, options, tuner_for(module, options))
    since = wanted.since or IMPORT
    given: Any = module or read(_text_of(source), since, backend)
    stages = Stages(backend, options, wanted.origins, wanted.kernel)
    order = names(backend)
    if wanted.stage == ALL:
        if output is None:
            raise UserError("--stage all: say with -o which folder gets the files")
        found = stages.texts(given, stages.behind(since), since)
        return _write_all(output, {f"{order.index(n):02d}-{n}": one for n, one in found.items()})
    if wanted.stage in order:
        text = stages.texts(given, [wanted.stage], since)[wanted.stage]
    elif isinstance(given, Module):
        text = stages.after(given, wanted.stage, since)
    else:
        raise UserError(f"no pass goes on from the text of stage '{since}'")
    if wanted.kernel is not None and not isinstance(text, str):
        text = text[wanted.kernel]
    shown = written(text)
    if as_json:
        shown = show.json_text({"stage": wanted.stage, "text": text})
    if output is None:
        print(shown, end="" if shown.endswith("\n") else "\n")
    else:
        show.write(output, shown if shown.endswith("\n") else f"{shown}\n")


def _text_of(source: str) -> str:
    try:
        return Path(source).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UserError(f"{source}: cannot read: {reason}") from error


def _write_all(folder: Path, texts: Mapping[str, Text]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot make the folder: {error.strerror}") from error
    for name, text in texts.items():
        show.write(folder / f"{name}.txt", written(text))
