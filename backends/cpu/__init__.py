"""The CPU backend: kernels as LLVM IR, compiled and linked when the program is compiled, so that a
bundle runs without LLVM."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...hlo.errors import UserError
from ...options import Options
from .. import Backend, Scheduled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from ...hlo.graph import Op
    from ...optimizer.passes.encode import Packing
    from ...optimizer.tuning import Tuner
    from .cache import CompiledKernel
    from .codegen import Target
    from .measure import CpuChoices


def target_of(options: Options, level: str | None = None) -> Target:
    """The CPU that these options ask for: one of a feature level, else this machine, or a lower
    level of it; without what takes subnormal numbers as zero, where `numerics` is narrow."""
    from .machines import find

    target = _target_of(options, level)
    if not _rounds(options):
        target = target.without_flushes
    return replace(target, machine=find(options.machine))


def _rounds(options: Options) -> bool:
    return options.numerics in ("reassociates", "assumes-finite")


def _target_of(options: Options, level: str | None) -> Target:
    from .codegen import host_target, level_target
    from .machines import HOST

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


def backend(options: Options, tuner: Tuner | None = None, level: str | None = None) -> Backend:
    """The backend for CPUs of a feature level, else for this machine, or for the lower level that
    the options ask for; `tuner` knows or measures choices."""
    name = f"cpu:{level}" if level else "cpu"
    return backend_of(target_of(options, level), name, options, tuner)


def backend_of(target: Target, name: str, options: Options, tuner: Tuner | None = None) -> Backend:
    """The backend for a CPU, called `name`. A target of a class of its own may have another
    compiler (`Target.compiled`); its fields must say all that the code depends on."""
    from ...optimizer.expansions import has_blocks
    from ..plain.opaque import EMITTERS
    from .build import begin_executor, build
    from .cache import open_cache
    from .codegen import host_target
    from .contract.packing import packing_for
    from .foreign import lacks
    from .machines import label, machine_of
    from .slow import slow

    disk = open_cache(options.cache)
    begun: list[Future[CompiledKernel]] = []

    def build_for_target(schedules: Sequence[Scheduled]) -> tuple[list[Any], bytes]:
        blockings = None if choices is None else choices.blockings
        return build(schedules, target, name, disk, blockings, *begun)

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
        from .machines import host_name
        from .measure import CpuChoices

        workers = f"{options.threads} threads" if options.threads else "all cores"
        tuner.machine = f"{host_name()}, {workers}"
        choices = CpuChoices(tuner, target, packing if options.pack_weights else None)
    return Backend(
        name, build_for_target, packing, model, repr(target), label(model), choices, in_tiles=True,
        begin=begin, lacks=lambda op: lacks(op, target.general), slow=lambda op: slow(op, target),
        windows=frozenset({"loop", "rows", "reduce", "contract"}), shared_packing=shared_packing,
        open_sizes=True, splits_complex=True,
        expands=lambda op: op.name in EMITTERS and has_blocks(op),
    )  # fmt: skip
