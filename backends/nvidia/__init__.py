"""The NVIDIA backend: tile functions and fusions become PTX.

In: schedules, an architecture (`target.py`) and what the optimizer has decided as attributes. Out:
plans and one PTX module. `fits.py` says who computes a kernel, `capabilities.py` what the optimizer
may choose by. Imported by `girih`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...hlo.errors import UserError
from ...hlo.extras import require
from ...optimizer.tuning import Tuner
from ...options import SCHEDULES, Options
from ..cache import open_cache
from ..interface import SIMULATED, Backend, Scheduled
from . import build, foreign
from .assemble import identity_of_ptxas
from .capabilities import capabilities
from .machines import label
from .pipeline.functions import FORMULAS
from .plain import expands
from .target import DEFAULT, NvidiaTarget, target


def target_of(name: str, machine: str | None = None) -> NvidiaTarget:
    """The target of "nvidia", "nvidia:sm_80", "ptx-sim" or "ptx-sim:sm_80"; UserError for others.
    machine: as of `target.target`."""
    family, _, architecture = name.partition(":")
    if family not in ("nvidia", SIMULATED):
        raise UserError(f"there is no NVIDIA target '{name}'")
    return target(architecture or DEFAULT, machine)


def backend(name: str, options: Options, tuner: Tuner | None = None) -> Backend:
    """The backend of a target's name."""
    require("llvmlite", "target nvidia: compiling")
    if tuner is not None and tuner.measure:
        raise UserError("target nvidia: kernels are not timed yet; leave measure out")
    found, disk = target_of(name, options.machine), open_cache(options.cache)

    def build_for_target(schedules: Sequence[Scheduled]) -> tuple[list[Any], bytes]:
        merging, one = build.merging_for(found, options), build.persistence_for(found, options)
        return build.build(schedules, found, disk, merging, one)

    def assemble(image: bytes) -> Mapping[str, bytes]:
        return build.cubins(image, found)

    simulated = name.partition(":")[0] == SIMULATED
    return Backend(
        found.name, build_for_target, model=found.machine, machine=label(found.machine),
        identity=repr((found, "" if simulated else identity_of_ptxas())),
        capabilities=capabilities(found.architecture),
        lacks=lambda op: foreign.lacks(op, found), expands=expands,
        assemble=None if simulated else assemble,
        formulas=FORMULAS if found.architecture.warpgroups else (),
        windows=frozenset({"loop", "rows", "reduce"}), open_sizes=True, stages=build.stages(found),
        schedules=SCHEDULES,
    )  # fmt: skip
