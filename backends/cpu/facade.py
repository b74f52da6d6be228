"""What the compiler gets of the CPU backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ...hlo.errors import UserError
from ...hlo.graph import Op
from ...optimizer.cuts.products import Blocking
from ...optimizer.expansions import has_blocks
from ...optimizer.passes.encode import Packing
from ...optimizer.tuning import Tuner
from ...options import Options
from ..cache import CompiledKernel, open_cache
from ..interface import Backend, Scheduled
from ..plain.opaque import EMITTERS
from .build import begin_executor, build, stages, target_for
from .codegen import Target, host_target, level_target
from .contract.packing import packing_for
from .foreign import lacks
from .kernels import shape_of
from .machines import HOST, find, host_name, label, machine_of
from .measure import CpuChoices
from .slow import slow


def target_of(options: Options, level: str | None = None) -> Target:
    """The CPU that these options ask for: one of a feature level, else this machine, or a lower
    level of it; without what takes subnormal numbers as zero, where `numerics` is narrow."""
    target = _target_of(options, level)
    if not _rounds(options):
        target = target.without_flushes
    return replace(target, machine=find(options.machine))


def _rounds(options: Options) -> bool:
    return options.numerics in ("reassociates", "assumes-finite")


def _target_of(options: Options, level: str | None) -> Target:
    if level is None:
        return host_target(options.cpu_level)
    if options.cpu_level is not None:
        raise UserError(
            f"target cpu:{level} and cpu_level={options.cpu_level!r}: both name a level; drop one"
        )
    target = level_target(level)
    if options.machine == HOST and target.architecture != host_target().architecture:
        raise UserError(f"target cpu:{level}: machine 'host' is another architecture; drop it")
    return target


def backend(target: str, options: Options, tuner: Tuner | None = None) -> Backend:
    """The backend for CPUs of a feature level ("cpu:avx2"), else ("cpu") for this machine, or for
    the lower level that the options ask for; `tuner` knows or measures choices."""
    _, named, level = target.partition(":")
    return backend_of(target_of(options, level if named else None), target, options, tuner)


def backend_of(target: Target, name: str, options: Options, tuner: Tuner | None = None) -> Backend:
    """The backend for a CPU, called `name`. A target of a class of its own may have another
    compiler (`Target.compiled`); its fields must say all that the code depends on."""
    disk = open_cache(options.cache)
    begun: list[Future[CompiledKernel]] = []

    def blockings() -> Mapping[str, Blocking]:
        return {} if choices is None else choices.blockings

    def build_for_target(schedules: Sequence[Scheduled]) -> tuple[list[Any], bytes]:
        first = begun[0] if begun else None
        return build(schedules, target, name, disk, blockings(), first, options.overlap)

    def begin() -> None:
        begun[:] = [begin_executor(target, disk)]

    def packing(op: Op) -> Packing | None:
        return packing_for(op, target, _rounds(options))

    def shared_packing(op: Op) -> Packing | None:
        return packing_for(op, target, _rounds(options), streams=False)

    model = machine_of(target)
    choices: CpuChoices | None = None
    if tuner is not None:
        if tuner.measure and not target.runs_on(host_target()):
            raise UserError(f"target {name}: this machine cannot run its code, so measure nothing")
        workers = f"{options.threads} threads" if options.threads else "all cores"
        tuner.machine = f"{host_name()}, {workers}"
        choices = CpuChoices(tuner, target, packing if options.pack_weights else None)
    return Backend(
        name, build_for_target, packing, model, repr(target), label(model), choices, in_tiles=True,
        begin=begin, lacks=lambda op: lacks(op, target.general), slow=lambda op: slow(op, target),
        windows=frozenset({"loop", "rows", "reduce", "contract"}), shared_packing=shared_packing,
        open_sizes=True, splits_complex=True,
        expands=lambda op: op.name in EMITTERS and has_blocks(op), stages=stages(target, blockings),
        shape=lambda op: shape_of(op, target_for(op, target)),
        schedules=("auto", "launches"),
    )  # fmt: skip
