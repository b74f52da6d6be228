"""`girih cache`: what is kept of compiled kernels, and why a kernel was compiled again."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..hlo.errors import UserError
from . import show
from .compiling import passed, read_options

if TYPE_CHECKING:
    from ..backends.cpu.cache import DiskCache
    from ..hlo.graph import Op


def list_entries(folder: str | None, as_json: bool) -> None:
    """Each entry's operation, size, last use and target."""
    cache = _open(folder)
    rows = []
    for entry in cache.entries():
        found = entry.read()
        if found is None:
            continue
        key, kernel = found
        rows.append(
            {
                "digest": key.digest,
                "operations": _summary(key.operation),
                "bytes": entry.bytes,
                "used": entry.used,
                "tiles": kernel.facts.tiles,
                "compiler": key.compiler,
                "target": key.target,
            }
        )
    if as_json:
        show.print_json(rows)
        return
    now = time.time()
    show.table(
        ("kernel", ">size", ">used", "compiler", "operations"),
        [
            (
                row["digest"][:12],
                show.size(row["bytes"]),
                f"{show.time(max(0.0, now - row['used']) * 1e6)} ago",
                row["compiler"][:8],
                row["operations"],
            )
            for row in rows
        ],
        f"{cache.folder}: {len(rows)} kernels, {show.size(sum(row['bytes'] for row in rows))}",
    )


def explain_source(source: str, settings: Sequence[str], folder: str | None, as_json: bool) -> None:
    """For each distinct kernel of the program: "hit", or why it missed."""
    from ..backends.cpu import target_of
    from ..backends.cpu.build import target_for
    from ..backends.cpu.cache import key_of
    from ..hlo.text import canonical_op
    from ..optimizer.plan import headline, kernel_ops

    options = read_options(settings)
    cache = _open(folder if folder is not None else options.cache)
    target = target_of(options)
    ops = {canonical_op(op): op for op in _kernels(source, settings)}
    keys = {text: key_of(text, target_for(op, target)) for text, op in ops.items()}
    rows = [
        {
            "kernel": headline(kernel_ops(op)),
            "digest": keys[text].digest,
            "answer": cache.explain(keys[text]),
        }
        for text, op in ops.items()
    ]
    if as_json:
        show.print_json(rows)
        return
    hits = sum(row["answer"] == "hit" for row in rows)
    show.console.print(f"{cache.folder}: {hits} of {len(rows)} kernels are kept")
    for row in rows:
        show.console.print(f"{row['digest'][:12]}  {row['kernel']}: {row['answer']}", markup=False)


def clear_entries(folder: str | None, as_json: bool) -> None:
    """Delete all entries and say how many there were."""
    cache = _open(folder)
    count, size = cache.clear()
    if as_json:
        show.print_json({"folder": str(cache.folder), "kernels": count, "bytes": size})
    else:
        show.console.print(f"{cache.folder}: deleted {count} kernels, {show.size(size)}")


def _open(folder: str | None) -> DiskCache:
    from ..backends.cpu.cache import open_cache

    cache = open_cache(folder)
    if cache is None:
        raise UserError("there is no kernel cache: it is off, or no home folder is known")
    return cache


def _kernels(source: str, settings: Sequence[str]) -> list[Op]:
    """The operation of every kernel that the program's plan runs."""
    from ..optimizer.plan import copy_op
    from ..optimizer.schedule import CopyStep, RunStep, schedule

    options = dataclasses.replace(read_options(settings), cache="off")
    found = []
    for step in schedule(passed(source, "cpu", options)).steps:
        if isinstance(step, RunStep):
            found.append(step.op)
        elif isinstance(step, CopyStep):
            found.append(copy_op(step.target.bytes))
    return found


def _summary(operation: str) -> str:
    """The operations of a kernel's canonical text, in a line."""
    names = []
    for line in operation.splitlines()[1:]:
        words = line.partition("=")[2].split("(")[0].split() or line.split("(")[0].split()
        if words and words[-1] not in names:
            names.append(words[-1])
    return " ".join(names)[:100] or operation
