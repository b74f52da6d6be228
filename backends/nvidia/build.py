"""Code for a schedule: each distinct kernel compiled to PTX once, all of them in one module."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any, NamedTuple

from ...hlo.deciding import current
from ...hlo.graph import Op
from ...hlo.ptx import renamed
from ...optimizer.machine import Residency
from ...optimizer.merges import Merging
from ...optimizer.persistent import Persistence
from ...optimizer.plan import COPY, KernelFacts, Planner
from ...options import Options
from ...specs.generated import plan_pb2
from ..cache import CompiledKernel, DiskCache, KernelCache, compiler_digest
from ..interface import KERNELS, Scheduled, Stage
from ..jobs import pool
from ..llvm.places import numbered, places, with_places
from .assemble import assemble, find_ptxas
from .boxes import copies
from .compile import compile_ptx
from .composition import BlockRange, EntryText, Row, compose, entries_in, entry_of
from .decisions import layouts_text, pipeline_text
from .frame import SHARED
from .kernels import emit
from .launch import KernelCode, message
from .lines import Files, located
from .persistent import persist
from .target import TRIPLE, Architecture, NvidiaTarget

CACHE = KernelCache()
RESERVED = 1 << 10  # bytes of a multiprocessor's shared memory that each block takes besides
_FOREIGN = re.compile(r"[^A-Za-z0-9_]")  # characters that names in PTX do not have
_LENGTH = struct.Struct("<I")
_DEFINED = re.compile(r"^(?:define [^@\n]*)?@([\w.]+)(?: =|\()", re.MULTILINE)
_NAMED = re.compile(r"@([\w.]+)")
_HEADER = re.compile(r"^\s*\.(version|target|address_size)\b(.*)$", re.MULTILINE)
_SHARED = re.compile(rf"^\.extern \.shared [^;]* {SHARED}\[\];\n", re.MULTILINE)


class _Job:
    """One compilation's kernels: those that are known, and those that threads compile."""

    def __init__(self, target: NvidiaTarget, disk: DiskCache | None) -> None:
        self.target, self.disk = target, disk
        self.known: dict[str, CompiledKernel] = {}
        self.under_way: dict[str, tuple[str, KernelFacts]] = {}  # key -> symbol and facts
        self.texts: dict[str, Future[str]] = {}  # PTX by symbol
        self.ops: dict[str, Op] = {}  # the first operation of each symbol

    def facts(self, text: str, op: Op) -> KernelFacts:
        """What the plan needs of a kernel; its compilation is begun where it is not known."""
        decisions = current()
        known = CACHE.find(text, self.target, self.disk)
        if known is not None:
            self.known[text] = known
            self.ops.setdefault(known.symbol, op)
            if decisions is not None:
                decisions.guards.update(dict.fromkeys(known.facts.guards))
            return _unpacked(known)[0]
        if text in self.under_way:
            _, facts = self.under_way[text]
            if decisions is not None:
                decisions.guards.update(dict.fromkeys(facts.guards))
            return facts
        with nullcontext({}) if decisions is None else decisions.recording() as guards:
            code, symbol, named = emitted(op, self.target)
        self.ops.setdefault(symbol, op)
        if symbol not in self.texts:
            self.texts[symbol] = pool().submit(ptx_of, named, self.target.architecture)
        facts = KernelFacts(
            1, code.scratch_bytes, code.flops, code.bytes, False, code.notes,
            launches=tuple(
                message(one, f"{symbol}_{one.symbol}", code.sizes) for one in code.launches
            ),
            approximate=code.approximate, sizes=code.sizes, guards=tuple(guards),
        )  # fmt: skip
        self.under_way[text] = symbol, facts
        return facts

    def finish(self) -> None:
        """Wait for all compilations; every kernel is known then."""
        for text, (symbol, facts) in self.under_way.items():
            made = _packed(symbol, facts, self.texts[symbol].result())
            CACHE.add(text, self.target, self.disk, made)
            self.known[text] = made

    def cancel(self) -> None:
        for made in self.texts.values():
            made.cancel()


def build(
    schedules: Sequence[Scheduled],
    target: NvidiaTarget,
    disk: DiskCache | None = None,
    merging: Merging | None = None,
    persistence: Persistence | None = None,
) -> tuple[list[Any], bytes]:
    """A plan (plan_pb2.Plan) of each schedule, with its notes, and the PTX module of all kernels,
    as UTF-8; UnsupportedError lists every missing kernel. `disk`: where compiled kernels are looked
    for and kept. merging: what independent steps are merged for; None: they are not.
    persistence: what all steps of a plan are one launch for; None: they are not."""
    if compiler_digest() is None:
        disk = None
    job = _Job(target, disk)
    try:
        planners = [
            Planner(one, target.name, job.facts, notes, merging=merging, persistence=persistence)
            for one, notes in schedules
        ]
        plans = [planner.run() for planner in planners]
        job.finish()
    finally:
        job.cancel()
    kernels = [[job.known[e.key] for e in planner.kernels.values()] for planner in planners]
    texts = {kernel.symbol: _unpacked(kernel)[1] for some in kernels for kernel in some}
    files = Files()
    names = _name_entries(plans, [[kernel.symbol for kernel in some] for some in kernels])
    located_texts = [
        located(text.replace(f"{symbol}_", names[symbol]), places(job.ops[symbol]), files)
        for symbol, text in texts.items()
    ]
    located_texts += composed(plans, located_texts)
    located_texts += persisted(plans, located_texts)
    steps = [step for plan in plans for step in plan.steps]
    if any(step.WhichOneof("action") == "exchange" for step in steps):
        located_texts.append(copies(COPY, target.architecture))
    for plan in plans:
        plan.triple = TRIPLE
        plan.features.append(f"ptx{target.architecture.ptx}")
    return plans, merged(located_texts, target.architecture, files).encode()


def _name_entries(plans: Sequence[Any], symbols: Sequence[Sequence[str]]) -> dict[str, str]:
    """Entries are called as their kernel, for profilers, instead of by their content: what each
    symbol (of each plan's kernels, in order) begins with in this program. A kernel's name has no $,
    so that no two of one plan are one; those of a later plan have its number behind them."""
    names: dict[str, str] = {}
    for number, (plan, some) in enumerate(zip(plans, symbols, strict=True)):
        own = f"${number}$" if number else "$"
        for kernel, symbol in zip(plan.kernels, some, strict=True):
            name = names.setdefault(symbol, f"{_FOREIGN.sub('_', kernel.name)}{own}")
            for launch in kernel.launches:
                launch.entry = name + launch.entry.removeprefix(f"{symbol}_")
    return names


def merging_for(target: NvidiaTarget, options: Options) -> Merging | None:
    """What independent steps are merged for by these options; None where they are not."""
    if options.schedule not in ("auto", "merged"):
        return None
    one = target.architecture
    most = Residency(one.threads, one.blocks, one.registers, one.shared_bytes + RESERVED, RESERVED)
    overlap = options.overlap_memory if options.memory_limit is None else 0.0
    return Merging(target.machine, most, one.parameter_bytes, options.schedule == "merged", overlap)


def composed(plans: Sequence[Any], texts: Sequence[str]) -> list[str]:
    """The text of each merged entry of the plans, which get their names; texts: those of their
    kernels, as they stand in the module."""
    if not any(plan.merges for plan in plans):
        return []
    bodies = {name: entry_of(text, name) for text in texts for name in entries_in(text)}
    names: dict[Any, str] = {}
    made: list[str] = []
    for plan in plans:
        for merge in plan.merges:
            ranges, cluster = _ranges(plan, merge, bodies), max(merge.cluster, 1)
            bears = [(one.body.name, one.grid, one.row, one.repeats) for one in ranges]
            key = *bears, merge.table_bytes, cluster
            if key not in names:
                names[key] = f"merged${len(made)}"
                made.append(compose(names[key], ranges, merge.table_bytes, cluster))
            merge.entry = names[key]
    return made


def persistence_for(target: NvidiaTarget, options: Options) -> Persistence | None:
    """What all steps are one launch for by these options; None where they are not."""
    if options.schedule != "persistent":
        return None
    # The entry says that a multiprocessor holds one block, and so has the registers for it.
    one = target.architecture
    return Persistence(one.multiprocessors, one.parameter_bytes)


def persisted(plans: Sequence[Any], texts: Sequence[str]) -> list[str]:
    """The text of the plans' persistent entries, which get their names; texts: as of `composed`."""
    some = [plan for plan in plans if plan.HasField("persistent")]
    if not some:
        return []
    bodies = {name: entry_of(text, name) for text in texts for name in entries_in(text)}
    for number, plan in enumerate(some):
        plan.persistent.entry = f"persistent${number}"
    return [persist(plan.persistent.entry, plan, bodies) for plan in some]


def _ranges(plan: Any, merge: Any, bodies: Mapping[str, EntryText]) -> list[BlockRange]:
    """The ranges of blocks of a merged launch: steps of one kernel are rows of one."""
    found: list[BlockRange] = []
    for step in merge.steps:
        (launch,) = plan.kernels[plan.steps[step.step].run.kernel].launches
        body, (x, y, z) = bodies[launch.entry], launch.grid
        begin = step.places[0] if step.places else 0
        places = tuple(place - begin for place in step.places)
        if found and found[-1].body is body:
            last = found[-1]
            size = begin - last.row.begin if last.repeats == 1 else last.row.bytes
            found[-1] = last._replace(repeats=last.repeats + 1, row=last.row._replace(bytes=size))
        else:
            found.append(BlockRange(body, (x, y, z), Row(begin, places, 0)))
    return found


def cubins(ptx: bytes, target: NvidiaTarget) -> Mapping[str, bytes]:
    """The module's machine code by architecture; nothing without ptxas or without kernels."""
    if find_ptxas() is None or b".entry" not in ptx:
        return {}
    return {target.architecture.name: assemble(ptx.decode(), target.architecture).cubin}


def merged(texts: Sequence[str], architecture: Architecture, files: Files | None = None) -> str:
    """One module of several, whose names are apart; of the newest version that any asks for.
    `files`: those that lines of the texts are numbered by."""
    versions = [architecture.ptx]
    bodies = []
    for text in texts:
        for kind, value in _HEADER.findall(text):
            if kind == "version":
                major, minor = value.strip().split(".")
                versions.append(int(major) * 10 + int(minor))
        bodies.append(_HEADER.sub("", text))
    body = "".join(bodies)
    shared = _SHARED.search(body)
    newest = max(versions)
    head = [
        f".version {newest // 10}.{newest % 10}",
        f".target {architecture.name}",
        ".address_size 64",
        *(files.directives() if files is not None else ()),
    ]
    if shared is not None:
        head.append(shared[0].strip())
        body = _SHARED.sub("", body)
    lines = [line for line in body.splitlines() if line]
    return "\n".join([*head, *lines]) + "\n"


class EmittedKernel(NamedTuple):
    """A kernel's code, what the names of its entries begin with, and its text with those: LLVM's,
    or PTX that was written elsewhere; "" where there is nothing to compute."""

    code: KernelCode
    symbol: str
    text: str


def emitted(op: Op, target: NvidiaTarget) -> EmittedKernel:
    """A kernel, named by its content, so that kernels of equal text stand in a module once."""
    code = emit(numbered(op), target)
    symbol = f"kernel_{hashlib.blake2b(code.text.encode(), digest_size=12).hexdigest()}"
    if not code.launches:
        return EmittedKernel(code, symbol, "")
    if code.language == "ptx":
        return EmittedKernel(code, symbol, renamed(code.text, f"{symbol}_"))
    names = {name for name in _DEFINED.findall(code.text) if name != SHARED}
    text = _NAMED.sub(
        lambda match: f"@{symbol}_{match[1]}" if match[1] in names else match[0], code.text
    )
    return EmittedKernel(code, symbol, text)


def ptx_of(text: str, architecture: Architecture) -> str:
    """The PTX of a kernel's text, whose operations are lines of the file "kernel"."""
    if not text or _HEADER.search(text):
        return text
    return compile_ptx(with_places(text), architecture)


def stages(target: NvidiaTarget) -> dict[str, Stage]:
    """The texts of a kernel: where its tiles lie, how it is launched and what runs when, LLVM's
    text, PTX."""

    def decided(text: Callable[[Op, KernelCode], str]) -> Stage:
        return Stage(KERNELS, lambda op: text(op, emitted(op, target).code))

    return {
        "layouts": decided(layouts_text),
        "pipeline": decided(pipeline_text),
        "llvm": Stage(KERNELS, lambda op: emitted(op, target).text),
        "ptx": Stage("llvm", lambda text: ptx_of(text, target.architecture)),
    }


def _packed(symbol: str, facts: KernelFacts, ptx: str) -> CompiledKernel:
    """A kernel as the cache keeps it: launches stand before the PTX."""
    launches = [launch.SerializeToString(deterministic=True) for launch in facts.launches]
    parts = [_LENGTH.pack(len(launches))]
    for data in launches:
        parts += [_LENGTH.pack(len(data)), data]
    return CompiledKernel(symbol, facts._replace(launches=()), b"".join([*parts, ptx.encode()]))


def _unpacked(kernel: CompiledKernel) -> tuple[KernelFacts, str]:
    """What `_packed` was given."""
    (count,) = _LENGTH.unpack_from(kernel.object)
    at = _LENGTH.size
    launches = []
    for _ in range(count):
        (size,) = _LENGTH.unpack_from(kernel.object, at)
        at += _LENGTH.size
        launches.append(plan_pb2.Launch.FromString(kernel.object[at : at + size]))
        at += size
    return kernel.facts._replace(launches=tuple(launches)), kernel.object[at:].decode()
