"""`girih cache`: what is kept of compiled kernels, and why a kernel was compiled again."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..backends.cache import DiskCache, key_of, open_cache
from ..backends.cpu import target_of
from ..backends.cpu.build import cached, target_for
from ..hlo.errors import UserError
from ..hlo.graph import Op
from ..hlo.text import canonical_op
from ..optimizer.plan import copy_op, headline, kernel_ops
from ..optimizer.schedule import CopyStep, RunStep, schedule
from ..options import Options
from ..programs import ProgramCache
from . import show
from .compiling import passed, read_options


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

    programs = ProgramCache(cache.folder).entries()
    kept = f"{len(programs)} programs, {show.size(sum(entry.bytes for entry in programs))}"
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
        f"{cache.folder}: {len(rows)} kernels, {show.size(sum(row['bytes'] for row in rows))}; "
        f"{kept}",
    )


def explain_source(source: str, settings: Sequence[str], folder: str | None, as_json: bool) -> None:
    """For each distinct kernel of the program: "hit", or why it missed."""
    options = read_options(settings)
    cache = _open(folder if folder is not None else options.cache)
    target = target_of(options)
    found, blockings = _kernels(source, options)
    ops = {canonical_op(op): op for op in found}
    keys = {
        text: key_of(cached(text, blockings), target_for(op, target)) for text, op in ops.items()
    }
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
    programs, more = ProgramCache(cache.folder).clear()
    if as_json:
        found = {"kernels": count, "programs": programs, "bytes": size + more}
        show.print_json({"folder": str(cache.folder), **found})
    else:
        deleted = f"deleted {count} kernels and {programs} programs, {show.size(size + more)}"
        show.console.print(f"{cache.folder}: {deleted}")


def _open(folder: str | None) -> DiskCache:
    cache = open_cache(folder)
    if cache is None:
        raise UserError("there is no kernel cache: it is off, or no home folder is known")
    return cache


def _kernels(source: str, options: Options) -> tuple[list[Op], Mapping[str, Any]]:
    """The operation of every kernel that the program's plan runs, and how a tuning cuts products;
    nothing is timed."""
    options = dataclasses.replace(options, cache="off", measure=0)
    module, backend = passed(source, "cpu", options)
    if backend.choices is not None:
        backend.choices.kernels(schedule(module))
    found = []
    for step in schedule(module, backend.in_tiles).steps:
        if isinstance(step, RunStep):
            found.append(step.op)
        elif isinstance(step, CopyStep):
            found.append(copy_op(step.target.bytes))
    return found, getattr(backend.choices, "blockings", {})


def _summary(operation: str) -> str:
    """The operations of a kernel's canonical text, in a line."""
    names = []
    for line in operation.splitlines():
        results, equals, rest = line.partition(" = ")
        name = rest.partition("(")[0]
        if equals and results.lstrip().startswith("%") and name not in ("fusion", *names):
            names.append(name)
    return " ".join(names)[:100] or operation
