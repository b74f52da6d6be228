"""What every GPU asks of one start of an entry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .driver import LaunchConfiguration, Limits
from .gpu_steps import ArgumentTable, Mapped, Parameter, Started, Where, volume
from .limits import malformed

_PARAMETER_BYTES = 32764  # of an entry, in all
_MAP_ALIGNMENT = 64  # of a tensor map among parameters


def check_start(start: LaunchConfiguration, parameters: Sequence[Parameter], name: str) -> None:
    """UserError where no GPU can start kernel `name` so."""
    limits = Limits(0, 16)
    fits = volume(start.block) <= limits.threads and start.block[2] <= 64
    fits &= all(a <= b for a, b in zip(start.grid, limits.grid, strict=True))
    fits &= volume(start.cluster) <= limits.cluster
    if not fits or any(a % b for a, b in zip(start.grid, start.cluster, strict=True)):
        raise malformed(f"kernel {name} cannot be started in blocks of its size")
    if sum(map(size_of, parameters)) > _PARAMETER_BYTES:
        raise malformed(f"kernel {name} has too many parameters")


def size_of(parameter: Parameter) -> int:
    """Bytes of a parameter."""
    if isinstance(parameter, ArgumentTable):
        return parameter.size
    return {bytes: len, Where: lambda _: 8, Mapped: lambda _: 128}[type(parameter)](parameter)


def table_of(
    places: Iterable[tuple[int, Any]], size: int, what: str, start: LaunchConfiguration
) -> Started:
    """A start whose only parameter is a table of so many bytes, each cell at its place; UserError
    where they do not lie in it, one beside the other, or no GPU can start that. what: it is."""
    cells = sorted(places, key=lambda cell: cell[0])
    ends = [0, *(place + size_of(cell) for place, cell in cells)]
    apart = all(place >= end for end, (place, _) in zip(ends, cells, strict=False))
    legal = all(place % _MAP_ALIGNMENT == 0 for place, cell in cells if isinstance(cell, Mapped))
    if not apart or not legal or ends[-1] > size:
        raise malformed(f"arguments of {what} do not lie in their table")
    table = ArgumentTable(tuple(cells), size)
    check_start(start, (table,), what)
    return Started(start, (table,))
