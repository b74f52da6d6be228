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
from ..optimizer.machine import Machine
from ..optimizer.places import Edge, EdgePlace, runner_up, seconds
from ..stages import IMPORT, Stages, Text, names, read, written
from . import show
from .compiling import import_source, read_options, with_tuning

ALL = "all"


@dataclass(frozen=True)
class Wanted:
    """What is shown: of a stage or pass ("all" for every stage), of all kernels or of one; `since`:
    the stage that the source is the text of; `origins`: whether operations say theirs; `places`:
    the edges of the program in place of a text."""

    stage: str = IMPORT
    kernel: str | None = None
    since: str | None = None
    origins: bool = False
    places: bool = False


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
    if wanted.places:
        if not isinstance(given, Module):
            raise UserError(f"--places: the text of stage '{since}' is no program")
        return _show_edges(*stages.edges(given, since), output, as_json)
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


def _show_edges(
    found: Sequence[Edge], machine: Machine, output: Path | None, as_json: bool
) -> None:
    """Every edge with its place, price and runner-up, the most expensive first."""
    rows: list[dict[str, Any]] = []
    for edge in sorted(found, key=lambda one: -seconds(one, one.place, machine)):
        other = runner_up(edge, machine)
        own = seconds(edge, edge.place, machine)
        more = None if other is None else seconds(edge, other, machine) - own
        rows.append({
            "kind": edge.kind, "source": edge.source, "target": edge.target, "count": edge.count,
            "bytes": edge.bytes, "place": edge.place.name, "seconds": own,
            "runner_up": None if other is None else other.name, "runner_up_seconds_more": more,
        })  # fmt: skip
    if as_json or output is not None:
        text = show.json_text({"machine": machine.name, "edges": rows})
        return print(text) if output is None else show.write(output, f"{text}\n")
    totals = {place.name: 0 for place in EdgePlace}
    for row in rows:
        totals[row["place"]] += row["count"]
    title = ", ".join(f"{count} {name}" for name, count in totals.items() if count)
    show.table(
        ("from", "to", "kind", ">edges", ">bytes", "place", ">costs", "runner-up", ">more"),
        [
            (
                row["source"], row["target"], row["kind"], row["count"], show.size(row["bytes"]),
                row["place"], show.time(1e6 * row["seconds"]), row["runner_up"] or "",
                "" if other is None else show.time(1e6 * other),
            )
            for row in rows
            for other in [row["runner_up_seconds_more"]]
        ],
        title=f"edges by place on {machine.name}: {title}",
    )  # fmt: skip
