"""The multi-device interpreter: programs on a grid of processes that communicate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .errors import UserError
from .graph import Module
from .interpret import Interpreter, flat_results, prepared
from .processes import Grid, Item, Process, grid_of

Array = np.ndarray[Any, Any]
Programs = Module | Sequence[Sequence[Module]]


class ParallelResults(NamedTuple):
    """What a parallel run gives.

    results[p]: the flat results of process p = replica * num_partitions + partition, without
    tokens; outfeed[p]: what it wrote to its outfeed, in order; sent[channel]: what was sent to the
    host on a channel and not received by anybody; received[p]: the bytes that process p got from
    other processes, by the name of the operation, as rings carry them: of S bytes for each of g
    members an all_gather brings S(g - 1), reduce_scatter and all_to_all S(g - 1)/g, an all_reduce
    2S(g - 1)/g, a permute or an exchange what is not the process's own.
    """

    results: list[list[Array]]
    outfeed: list[list[tuple[Array, ...]]]
    sent: dict[int, list[tuple[Array, ...]]]
    received: list[dict[str, int]]


def interpret_parallel(
    programs: Programs,
    inputs: Sequence[Sequence[Any]] = (),
    *,
    num_replicas: int | None = None,
    num_partitions: int | None = None,
    infeed: Sequence[Sequence[Any]] = (),
    received: Mapping[int, Sequence[Any]] | None = None,
) -> ParallelResults:
    """Run programs on num_replicas x num_partitions processes, deterministically.

    programs: one module for all processes, or a module for each, `programs[replica][partition]`.
    inputs[p]: flat numpy inputs of process p = replica * num_partitions + partition; a token is
        None. Empty where the programs take nothing.
    num_replicas, num_partitions: by default what the module says (`mhlo.num_replicas`, ...), or 1.
    infeed[p]: what process p's `infeed` operations get, in order; an array, or a tuple of them.
    received[channel]: what `recv` of a channel gets from the host, in order.

    UserError, with the places of the operations that wait, where the processes wait for ever.
    Source of the semantics: the section "Execution" of StableHLO's specification.
    """
    grid_programs = _grid(programs, num_replicas, num_partitions)
    replicas, partitions = len(grid_programs), len(grid_programs[0])
    known: dict[int, Module] = {}
    modules = [
        known.setdefault(id(module), prepared(module)) for row in grid_programs for module in row
    ]
    given = list(inputs) or [()] * len(modules)
    if len(given) != len(modules):
        raise UserError(f"{len(modules)} processes need as many lists of inputs, got {len(given)}")
    interpreters: dict[int, Interpreter] = {}
    streams = [[_item(item) for item in queue] for queue in infeed]
    channels = {channel: [_item(i) for i in items] for channel, items in (received or {}).items()}
    grid = Grid(replicas, partitions, streams, channels)

    def task(process: Process) -> list[Array]:
        module = modules[process.number]
        first = interpreters.setdefault(id(module), Interpreter(module))
        return flat_results(first.on(process), given[process.number])

    results = grid.run(task)
    return ParallelResults(
        results,
        [list(process.outfeed) for process in grid.processes],
        {key: list(items) for key, items in grid.channels.items() if isinstance(key, int)},
        [dict(process.received) for process in grid.processes],
    )


def _item(value: Any) -> Item:
    return tuple(map(np.asarray, value)) if isinstance(value, (tuple, list)) else (value,)


def _grid(
    programs: Programs, num_replicas: int | None, num_partitions: int | None
) -> list[list[Module]]:
    """The module of each process, one row per replica; UserError where the sizes disagree."""
    if isinstance(programs, Module):
        stated = grid_of(programs)
        replicas = _size("num_replicas", stated[0] if num_replicas is None else num_replicas)
        partitions = _size(
            "num_partitions", stated[1] if num_partitions is None else num_partitions
        )
        Grid(replicas, partitions)  # refuses sizes that no list should be made of
        return [[programs] * partitions for _ in range(replicas)]
    try:
        rows = [list(row) for row in programs]
    except TypeError:
        rows = []
    if any(not isinstance(module, Module) for row in rows for module in row):
        raise UserError("programs are girih.Module objects; import_model makes them")
    if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
        raise UserError("programs[replica][partition] needs rows of one length, at least 1")
    for name, wanted, found in (
        ("num_replicas", num_replicas, len(rows)),
        ("num_partitions", num_partitions, len(rows[0])),
    ):
        if wanted not in (None, found):
            raise UserError(f"{name} = {wanted}, but the programs are for {found}")
    return rows


def _size(name: str, size: Any) -> int:
    if not isinstance(size, int):
        raise UserError(f"{name} must be an integer, not {size!r}")
    return size
