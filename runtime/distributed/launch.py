"""Which code of a bundle the started processes run: their number decides, before MPI begins."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from ...hlo.errors import UserError

# What launchers tell each process of the number of all: Open MPI, MPICH and Intel MPI, Flux, Slurm.
_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "FLUX_JOB_SIZE")
_SIZES = (*_MPI, "SLURM_STEP_NUM_TASKS")
# Where processes that MPI has not started find each other: torchrun says it, or a script for Slurm.
_MEETING_PLACE = ("MASTER_ADDR", "MASTER_PORT")
_PLACES = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))  # its number, of all
_NUMBERS_HERE = (
    "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID",
    "FLUX_TASK_LOCAL_ID",
)  # fmt: skip


_SIZES_HERE = (
    "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE", "LOCAL_WORLD_SIZE",
)  # fmt: skip


def launched() -> int:
    """How many processes a launcher has started together with this one, as it says; else 1."""
    place = place_without_mpi()
    return _first(_SIZES) if place is None else place[1]


def place_without_mpi() -> tuple[int, int] | None:
    """(this process's number, that of all), as torchrun says it, or Slurm with the address and the
    port where processes meet; None where MPI's launcher has started it, or none."""
    environment = os.environ
    if any(environment.get(name) for name in _MPI):
        return None
    if not all(environment.get(name) for name in _MEETING_PLACE):
        return None
    for names in _PLACES:
        rank, size = (environment.get(name, "") for name in names)
        if rank.isdecimal() and size.isdecimal():
            if int(rank) >= int(size):
                raise UserError(f"{names[0]}={rank} is no number below {names[1]}={size}")
            return int(rank), int(size)
    return None


def local_rank() -> int:
    """This process's number among those on this machine, 0 where it is alone: that of its GPU."""
    if launched() == 1:
        return 0
    found = (os.environ.get(name, "") for name in _NUMBERS_HERE)
    return next((int(text) for text in found if text.isdecimal()), 0)


def launched_here() -> int:
    """How many of them run on this machine."""
    return _first(_SIZES_HERE) if launched() > 1 else 1


def _first(names: Iterable[str]) -> int:
    found = (os.environ.get(name, "") for name in names)
    return next((max(1, int(text)) for text in found if text.isdecimal()), 1)


_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def end_together(end_all: Callable[[], None]) -> None:
    """From here on an exception of this process that nobody catches ends all that a launcher has
    started together with it, by `end_all`."""
    if not _is_own(sys.excepthook):
        sys.excepthook = functools.partial(_end_all, sys.excepthook, end_all)


def _is_own(hook: Any) -> bool:
    return isinstance(hook, functools.partial) and hook.func is _end_all


def _end_all(
    before: _Hook,
    end_all: Callable[[], None],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    before(kind, error, trace)
    end_all()


def target_on(target: str, axes: Iterable[tuple[str, int | None]]) -> str:
    """The name of code for a target on a mesh of these axes: "cpu@data=2,model=4"."""
    sizes = ",".join(f"{name}={size}" for name, size in axes if size != 1)
    return f"{target}@{sizes}" if sizes else target


def axes_in(target: str) -> dict[str, int]:
    """The axes that a target's name has, {"data": 2, "model": 4}; none for one device's."""
    pairs = (part.rpartition("=") for part in target.partition("@")[2].split(",") if part)
    try:
        return {name: int(size) for name, _, size in pairs}
    except ValueError:
        raise UserError(f"a target is named like 'cpu@data=2,model=4', not {target!r}") from None


def devices_of(target: str) -> int:
    """How many processes run code of that name."""
    count = 1
    for size in axes_in(target).values():
        count *= size
    return count


def fitting(
    variants: Mapping[str, Any], target: str | None, mesh: Mapping[str, int] | None, label: str
) -> tuple[str, ...]:
    """The names of variants for as many devices as there are processes; of one mesh, the one that
    is asked for, else the first one. UserError, with the meshes at hand, where there is none."""
    if not any("@" in name for name in variants) and mesh is None:
        return tuple(variants)  # what one process runs, each process may run for itself
    if target is not None and "@" in target:
        return (target,)
    count, names = launched(), tuple(variants)
    if mesh is not None:
        names = tuple(name for name in names if axes_in(name) == _longer(mesh))
    right = [name for name in names if devices_of(name) == count]
    if right:
        axes = axes_in(right[0])
        return tuple(name for name in right if axes_in(name) == axes)
    raise UserError(f"{label}: {_lacking(variants, mesh, count)}")


def _longer(mesh: Mapping[str, int]) -> dict[str, int]:
    """The axes that cut anything: names have no others."""
    return {name: size for name, size in mesh.items() if size != 1}


def _lacking(variants: Mapping[str, Any], mesh: Mapping[str, int] | None, count: int) -> str:
    known = list(dict.fromkeys(name.partition("@")[2] or "one device" for name in variants))
    if mesh is not None:
        wanted = ",".join(f"{name}={size}" for name, size in mesh.items())
        if all(axes_in(name) != _longer(mesh) for name in variants):
            return (
                f"it has no code for the mesh {wanted}, only for {' and for '.join(known)}; "
                f"add it: girih repartition FILE --mesh {wanted}"
            )
        known = [wanted]
    needed = " or ".join(
        f"mpiexec -n {n} ..." if n > 1 else "without a launcher"
        for n in sorted({devices_of("@" + ("" if k == "one device" else k)) for k in known})
    )
    runs = "1 process runs" if count == 1 else f"{count} processes run"
    return (
        f"its code is for {' and for '.join(known)}, and {runs} it; start it as {needed}, or "
        f"add code for {count}: girih repartition FILE --mesh AXIS=SIZE,..."
    )
