"""What every GPU asks of one start of an entry."""

from __future__ import annotations

from collections.abc import Sequence

from .driver import LaunchConfiguration, Limits
from .gpu_steps import ArgumentTable, Mapped, Parameter, Where, volume
from .limits import malformed

_PARAMETER_BYTES = 32764  # of an entry, in all


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
