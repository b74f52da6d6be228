"""The NVIDIA backend: tile functions and fusions become PTX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...hlo.errors import UserError
from ...hlo.graph import Op, Value
from ...optimizer.schedule import Schedule
from ...optimizer.tiles.build import Group
from ...optimizer.tiles.estimate import Bounds
from ...optimizer.tiles.streaming import Stream
from ...optimizer.tuning import Tuner
from ...options import Options
from .. import SIMULATED, Backend
from .target import DEFAULT, Target, target

SCRATCH = 0.8  # of a block's shared memory that the values between operations may take
ELEMENTS = 33 << 10  # of sums and results of a tile: what the registers of a block hold


def target_of(name: str) -> Target:
    """The target of "nvidia", "nvidia:sm_80", "ptx-sim" or "ptx-sim:sm_80"; UserError for others"""
    family, _, architecture = name.partition(":")
    if family not in ("nvidia", SIMULATED):
        raise UserError(f"there is no NVIDIA target '{name}'")
    return target(architecture or DEFAULT)


def backend(name: str, options: Options, tuner: Tuner | None = None) -> Backend:
    """The backend of a target's name."""
    if tuner is not None and tuner.measure:
        raise UserError("target nvidia: kernels are not timed yet; leave measure out")
    from ..cpu.cache import open_cache
    from . import foreign, images, turned
    from .build import accepts, build, cubins
    from .machines import label, machine_of
    from .pipeline.contraction import connected
    from .tile import several

    found, disk = target_of(name), open_cache(options.cache)

    def build_for_target(schedule: Schedule, notes: tuple[str, ...]) -> tuple[Any, bytes]:
        return build(schedule, found, notes, disk)

    def assemble(image: bytes) -> Mapping[str, bytes]:
        return cubins(image, found)

    def prefers(
        group: Group, operands: Sequence[Value], name: str, ways: Sequence[Stream | None]
    ) -> Op | None:
        wanted = None
        if found.architecture.warpgroups:
            wanted = connected(group, operands, name, ways, found)
        return wanted or several.connected(group, operands, name, ways, found)

    simulated = name.partition(":")[0] == SIMULATED
    model = machine_of(found.architecture, options.machine)
    bounds = Bounds(int(found.architecture.shared_bytes * SCRATCH), ELEMENTS)
    return Backend(
        found.name, build_for_target, model=model, machine=label(model), bounds=bounds,
        accepts=lambda op: accepts(op, found), prefers=prefers,
        packing=lambda op: turned.packing(op, found) or images.packing(op),
        lacks=lambda op: foreign.lacks(op, found), assemble=None if simulated else assemble,
    )  # fmt: skip
