"""Backends turn a schedule into a plan and code for one target.

In: a schedule (`optimizer/schedule.py`), the name of a target, options. Out: a plan and an image of
code. `find` knows our own targets and those of installed packages; `interface.py` is what a backend
is. Imported by `cli`, `girih`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from ..hlo.errors import UserError
from ..optimizer.tuning import Tuner
from ..options import Options
from .interface import API, SIMULATED, Backend, Plugin, Stage

__all__ = ["API", "SIMULATED", "Backend", "Plugin", "Stage", "find", "plugin", "plugins"]

GROUP = "girih.backends"  # of entry points
# Where the backends of each family of targets are: `backend(target, options, tuner)`.
BUILT_IN = {"cpu": ".cpu", "null": ".null", "nvidia": ".nvidia", SIMULATED: ".nvidia"}


def find(target: str, options: Options, tuner: Tuner | None = None) -> Backend:
    """The backend of that name; UserError if there is none. Imports only what it needs.
    `tuner`: what knows or measures choices; None leaves them to the cost model."""
    family = target.partition(":")[0]
    ours = target in BUILT_IN or family in ("nvidia", SIMULATED)
    found = None if ours else plugins().get(target) or plugins().get(family)
    if found is not None:
        return plugin(found).make(target, options, tuner)
    if ours or family == "cpu":
        return import_module(BUILT_IN[family], __name__).backend(target, options, tuner)
    others = f", {', '.join(plugins())} of other packages" if plugins() else ""
    raise UserError(
        f"there is no target '{target}'; targets are cpu (this machine's), cpu:avx2 and other "
        f"levels, nvidia:sm_90a and other architectures, {SIMULATED} and null{others}"
    )


@functools.cache
def plugins() -> Mapping[str, EntryPoint]:
    """The targets of other packages that are installed, by name; none of them is imported."""
    found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    return {entry.name: entry for entry in found}


def plugin(entry: EntryPoint) -> Plugin:
    """What an entry point names; UserError says why it cannot be used."""
    label = f"target {entry.name}: {entry.value}"
    if entry.dist is not None:
        label += f" of the package {entry.dist.name} {entry.dist.version}"
    try:
        found = entry.load()
    except Exception as error:
        raise UserError(f"{label} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(found, Plugin) or found.name != entry.name:
        raise UserError(f"{label} is no girih.backends.Plugin of that name")
    if found.api != API:
        raise UserError(
            f"{label} is for interface {found.api} of backends, this girih has {API}: install a "
            f"version of the package for it (docs/backends.md says what has changed)"
        )
    return found
