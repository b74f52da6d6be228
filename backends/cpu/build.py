"""Code for a schedule: each distinct kernel emitted and compiled once, linked into one image."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from itertools import chain
from typing import Any, NamedTuple

from ...hlo.deciding import current
from ...hlo.graph import Op
from ...hlo.sizes import SizeConstraint
from ...hlo.text import canonical_op
from ...optimizer.cuts.products import Blocking
from ...optimizer.plan import KernelFacts, Planner
from ..cache import CompiledKernel, DiskCache, KernelCache, compiler_digest
from ..interface import KERNELS, Scheduled, Stage
from ..jobs import pool
from ..llvm.target import KernelCode
from . import executor
from .codegen import Target
from .foreign import renamed
from .image import link
from .kernels import emit
from .machines import machine_of

_EXECUTOR = "executor"  # stands for an operation's text in the key of the executor
CACHE = KernelCache()


def begin_executor(target: Target, disk: DiskCache | None) -> Future[CompiledKernel]:
    """What walks a plan's steps; no program decides anything of it, so it can be begun early."""
    known = CACHE.find(_EXECUTOR, target.general, None)
    if known is None:
        return pool().submit(_executor, target.general, disk)
    made: Future[CompiledKernel] = Future()
    made.set_result(known)
    return made


def _executor(target: Target, disk: DiskCache | None) -> CompiledKernel:
    disk = None if compiler_digest() is None else disk
    known = CACHE.find(_EXECUTOR, target, disk)
    if known is None:
        code = target.compiled(_executor_text(target))
        known = CompiledKernel(executor.RUN_SYMBOL, KernelFacts(0), code)
        CACHE.add(_EXECUTOR, target, disk, known)
    return known


def cached(text: str, blockings: Mapping[str, Blocking]) -> str:
    """What stands for a kernel in the caches: its text, with its blocking if that was said."""
    cut = blockings.get(text)
    return text if cut is None else f"{text}\n{cut}"


class _Job:
    """One compilation's kernels: those that are known, and those that threads compile."""

    def __init__(
        self, target: Target, disk: DiskCache | None, blockings: Mapping[str, Blocking]
    ) -> None:
        self.target, self.disk, self.blockings = target, disk, blockings
        self.known: dict[str, CompiledKernel] = {}
        self.targets: dict[str, Target] = {}
        self.under_way: dict[str, tuple[str, KernelFacts]] = {}  # key -> symbol and facts
        self.objects: dict[str, Future[bytes]] = {}  # by symbol

    def facts(self, text: str, op: Op) -> KernelFacts:
        """What the plan needs of a kernel; its compilation is begun where it is not known."""
        target = self.targets[text] = target_for(op, self.target)
        decisions = current()
        known = CACHE.find(cached(text, self.blockings), target, self.disk)
        if known is not None:
            self.known[text] = known
            if decisions is not None:
                decisions.guards.update(dict.fromkeys(known.facts.guards))
            return known.facts
        with nullcontext({}) if decisions is None else decisions.recording() as guards:
            code, symbol, ir_text = emitted(op, target, self.blockings.get(text))
        if symbol not in self.objects and code.object:
            self.objects[symbol] = pool().submit(renamed, code.object, code.symbol, symbol)
        elif symbol not in self.objects:
            self.objects[symbol] = pool().submit(target.compiled, ir_text)
        facts = _facts(code, tuple(guards))
        self.under_way[text] = symbol, facts
        return facts

    def finish(self) -> None:
        """Wait for all compilations; every kernel is known then."""
        for text, (symbol, facts) in self.under_way.items():
            made = CompiledKernel(symbol, facts, self.objects[symbol].result())
            CACHE.add(cached(text, self.blockings), self.targets[text], self.disk, made)
            self.known[text] = made

    def cancel(self) -> None:
        for made in self.objects.values():
            made.cancel()


def build(
    schedules: Sequence[Scheduled],
    target: Target,
    name: str = "cpu",
    disk: DiskCache | None = None,
    blockings: Mapping[str, Blocking] | None = None,
    begun: Future[CompiledKernel] | None = None,
    overlap: float | None = None,
) -> tuple[list[Any], bytes]:
    """A plan (plan_pb2.Plan) of each schedule, with its notes, and the image of all of them;
    UnsupportedError lists every missing kernel.

    `name`: the target's in the plans. `disk`: where compiled kernels are looked for and kept; the
    result is the same without.
    `blockings`: how products are cut, by canonical text; the cost model says it of others.
    `begun`: the executor, if it was begun before. `overlap`: the part by which an arena may be
    larger so that steps overlap, which wait for counters; None: all wait for all.
    """
    if compiler_digest() is None:
        disk = None
    walker = begun or begin_executor(target, disk)
    job = _Job(target, disk, blockings or {})
    try:
        machine = None if overlap is None else machine_of(target)
        planners = [
            Planner(one, name, job.facts, notes, machine, overlap or 0.0)
            for one, notes in schedules
        ]
        plans = [planner.run() for planner in planners]
        job.finish()
    finally:
        job.cancel()
    # In the order of the plans, whatever was known before.
    entries = [list(planner.kernels.values()) for planner in planners]
    kernels = [[job.known[entry.key] for entry in some] for some in entries]
    objects = {k.symbol: k.object for k in (walker.result(), *chain.from_iterable(kernels))}
    image = link(list(objects.values()))
    for plan, some, made in zip(plans, entries, kernels, strict=True):
        plan.triple = target.triple
        used = {target.general, *(job.targets[entry.key] for entry in some)}
        plan.features.extend(sorted({name for one in used for name in one.features}))
        plan.executor_entry = image.symbols[executor.RUN_SYMBOL]
        plan.worker_entry = image.symbols[executor.WORKER_SYMBOL]
        for entry, kernel in zip(some, made, strict=True):
            plan.kernels[entry.index].entry = image.symbols[kernel.symbol]
    return plans, image.data


def stages(target: Target, blockings: Callable[[], Mapping[str, Blocking]]) -> dict[str, Stage]:
    """The texts of a kernel: LLVM's, then those that the target makes of it."""

    def llvm(op: Op) -> str:
        return emitted(op, target_for(op, target), blockings().get(canonical_op(op))).ir_text

    return {"llvm": Stage(KERNELS, llvm), **target.stages()}


class EmittedKernel(NamedTuple):
    """A kernel's code, the symbol that it gets, and its LLVM text with that; "" for an object that
    was compiled elsewhere."""

    code: KernelCode
    symbol: str
    ir_text: str


def emitted(op: Op, target: Target, blocking: Blocking | None) -> EmittedKernel:
    """A kernel, named by its content, so that kernels of equal text are linked once."""
    code = emit(op, target, blocking)
    content = code.object + code.ir_text.encode()
    symbol = f"kernel_{hashlib.blake2b(content, digest_size=12).hexdigest()}"
    return EmittedKernel(code, symbol, code.ir_text.replace(f"@{code.symbol}(", f"@{symbol}("))


def target_for(op: Op, target: Target) -> Target:
    """What a kernel is compiled for: the newest instructions only where it multiplies numbers
    narrower than 32 bits, so that other bundles run on more machines."""
    inside = [inner for region in op.regions for inner in region.walk()] or [op]
    narrow = any(
        value.element.bits < 32
        for inner in inside
        if inner.definition.pattern == "contract"
        for value in inner.operands
    )
    return target if narrow else target.general


@functools.lru_cache(maxsize=16)
def _executor_text(target: Target) -> str:
    return executor.emit(target)


def _facts(code: KernelCode, guards: tuple[SizeConstraint, ...]) -> KernelFacts:
    return KernelFacts(
        code.tiles,
        code.scratch_bytes,
        code.flops,
        code.bytes,
        code.parallel,
        code.notes,
        code.functions,
        sizes=code.sizes,
        guards=guards,
    )
