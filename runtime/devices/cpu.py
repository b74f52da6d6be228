"""Runs a plan on the CPU: maps the image, keeps the workers, fills the step table, calls.

A `CpuVariant` is immutable and shared; a `CpuContext` holds what one call at a time needs (arena,
scratch, pointer slots). `run(context, inputs, outputs)` is one native call; while it runs, Python's
lock is free. The layouts of contexts, steps and pools are documented in backends/cpu/executor.py;
they belong to the plan's format version.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import platform
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np

from ...hlo.errors import CompilerBug, UserError
from ...specs.generated import plan_pb2

_PAGE = 4096
_LINE = 64
_STEP_WORDS = 8
_END, _RUN, _BRANCH, _JUMP, _SWITCH = range(5)
_POOL_LINES = 12
_SYSTEM_WORD = 24  # of the pool: libc's function, futex number

# LLVM's feature names where /proc/cpuinfo spells them otherwise.
_CPUINFO = {
    "sse3": "pni", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "lzcnt": "abm", "bmi": "bmi1",
    "neon": "asimd",
    "avx512bf16": "avx512_bf16", "avx512vnni": "avx512_vnni", "dotprod": "asimddp",
    "fullfp16": "asimdhp",
}  # fmt: skip

# A step as the cost rule below sees it, for one worker: operations and bytes per microsecond.
_FLOPS_PER_US, _BYTES_PER_US = 40e3, 8e3
_DISPATCH_US, _BARRIER_US = 40.0, 0.5
_LOOP_TRIPS = 64  # what a loop of unknown length counts for


class Event(NamedTuple):
    """One worker's share of one executed step: when it began, in microseconds from the call's
    start, and for how long it worked on it."""

    step: int
    kernel: str
    worker: int
    begin: float
    duration: float


class _Mapping:
    """Memory from the kernel, page aligned, zero at first, freed with the last reference."""

    def __init__(self, size: int, *, huge: bool = False) -> None:
        self.memory = mmap.mmap(-1, max(_PAGE, size))
        if huge and hasattr(mmap, "MADV_HUGEPAGE"):
            self.memory.madvise(mmap.MADV_HUGEPAGE)
        self._anchor = ctypes.c_char.from_buffer(self.memory)
        self.address = ctypes.addressof(self._anchor)


def _map_image(image: bytes | memoryview) -> _Mapping:
    """The image as read-only executable memory; never writable and executable at once."""
    mapping = _Mapping(len(image))
    mapping.memory[: len(image)] = bytes(image)
    size = -(-len(image) // _PAGE) * _PAGE
    mprotect = _libc().mprotect
    mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if mprotect(mapping.address, size, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        error = os.strerror(ctypes.get_errno())
        raise UserError(
            f"cannot make the program's code executable: {error}; this system forbids executable "
            "memory that was written before (SELinux execmem or a container policy), allow it"
        )
    return mapping


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def default_threads() -> int:
    """The physical cores that this process may use, by affinity and cgroup quota; at least 1."""
    if not hasattr(os, "sched_getaffinity"):
        return max(1, os.cpu_count() or 1)
    allowed = os.sched_getaffinity(0)
    cores = {_siblings(cpu) for cpu in allowed}
    return max(1, min(len(cores), _cgroup_quota()))


def _siblings(cpu: int) -> str:
    """Names the physical core of a logical CPU."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return topology.read_text().strip()
    except OSError:
        return str(cpu)


def _cgroup_quota() -> int:
    """Whole CPUs granted by the control group, rounded up; a large number without a limit."""
    unlimited = 1 << 20
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return unlimited
    groups = [line.split("::", 1)[1].strip("/") for line in lines if line.startswith("0::")]
    quotas = [unlimited]
    for group in groups:
        path = Path("/sys/fs/cgroup") / group
        while path.is_relative_to("/sys/fs/cgroup"):
            try:
                limit, period = (path / "cpu.max").read_text().split()
                if limit != "max":
                    quotas.append(-(-int(limit) // int(period)))
            except (OSError, ValueError):
                pass
            path = path.parent
    return min(quotas)


@functools.cache
def _machine_features() -> frozenset[str] | None:
    """This machine's features as /proc/cpuinfo names them; None where there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.split(":", 1)[1].split())
    return None


def check_machine(plan: plan_pb2.Plan) -> None:
    """Raises UserError where this machine cannot run the plan's code."""
    built = plan.triple.split("-", 1)[0]
    here = {"arm64": "aarch64", "amd64": "x86_64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    if built != here:
        raise UserError(
            f"the bundle's code is for {built}, this machine is {here}; compile the program again "
            "on this machine"
        )
    present = _machine_features()
    if present is None:
        return
    missing = [name for name in plan.features if _CPUINFO.get(name, name) not in present]
    if missing:
        raise UserError(
            f"the bundle's code needs CPU features that this machine lacks: {', '.join(missing)}; "
            "compile the program again on this machine"
        )


class _Pool:
    """The process's worker threads, each parked for good inside a native call."""

    def __init__(self, variant: CpuVariant, workers: int) -> None:
        self.lock = threading.Lock()
        self.size = workers  # with the caller, who is worker 0
        self._image = variant.image  # the workers' code stays mapped as long as they live
        self._memory = _Mapping(_LINE * (_POOL_LINES + workers))
        self.address = self._memory.address
        words = np.frombuffer(self._memory.memory, np.int64)
        words[_SYSTEM_WORD : _SYSTEM_WORD + 2] = _system_wait()
        entry = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(
            variant.image.address + variant.worker_entry
        )
        for worker in range(1, workers):
            threading.Thread(
                target=entry,
                args=(self.address, worker),
                name=f"girih-worker-{worker}",
                daemon=True,
            ).start()


@functools.cache
def _system_wait() -> tuple[int, int]:
    """The address of libc's `syscall` and the futex number, or of `sched_yield` and 0."""
    numbers = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
    number = numbers.get(platform.machine(), 0) if platform.system() == "Linux" else 0
    function = _libc().syscall if number else _libc().sched_yield
    return ctypes.cast(function, ctypes.c_void_p).value or 0, number


_pools: dict[str, _Pool] = {}  # by plan format version, which fixes the workers' protocol
_pools_lock = threading.Lock()


def _forget_pools() -> None:
    """A forked child has none of its parent's threads."""
    global _pools_lock
    _pools_lock = threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)


def _pool(variant: CpuVariant) -> _Pool:
    """The pool that serves a variant; made, or made anew and larger, at first need."""
    version = variant.plan.format_version
    pool = _pools.get(version)
    if pool is None or pool.size < variant.threads:
        with _pools_lock:
            pool = _pools.get(version)
            if pool is None or pool.size < variant.threads:
                # The workers of a smaller pool stay asleep; nothing refers to them any more.
                pool = _pools[version] = _Pool(variant, variant.threads)
                _retired.append(pool)
    return pool


_retired: list[_Pool] = []  # every pool ever made: its workers still read its memory


class CpuVariant:
    """A plan with its mapped code and weights; immutable, shared by any number of contexts.

    weights: name -> C-contiguous array (a view of the mapped bundle). threads: None = all cores
    that the process may use.
    """

    def __init__(
        self,
        plan: plan_pb2.Plan,
        image: bytes | memoryview,
        weights: Mapping[str, np.ndarray],
        threads: int | None = None,
    ) -> None:
        check_machine(plan)
        if threads is not None and threads < 1:
            raise UserError(f"threads must be at least 1, not {threads}")
        self.plan = plan
        self.image = _map_image(image)
        self.worker_entry = plan.worker_entry
        self.execute = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(
            self.image.address + plan.executor_entry
        )
        self.threads = threads if threads is not None else default_threads()
        if self.threads > 1 and _too_small(plan):
            self.threads = 1
        self.scratch_bytes = -(-max((k.scratch_bytes for k in plan.kernels), default=0) // 64) * 64
        self.arena_bytes = -(-plan.memory.arena_bytes // _PAGE) * _PAGE
        self._weights = dict(weights)
        self._build_tables()

    def _build_tables(self) -> None:
        """Fills the step table and the pointer slots, as far as no context is needed."""
        plan = self.plan
        slots: list[int] = []
        arena_slots: list[int] = []
        patches: list[tuple[int, int, int]] = []
        targets: list[int] = []
        inputs = len(plan.inputs)
        homes = [self._home(buffer, inputs) for buffer in plan.buffers]

        def slot(argument: plan_pb2.Argument) -> int:
            place, value = homes[argument.buffer]
            index = len(slots)
            slots.append(value + argument.offset)
            if place == plan_pb2.ARENA:
                arena_slots.append(index)
            elif place in (plan_pb2.INPUT, plan_pb2.OUTPUT):
                patches.append((index, value, argument.offset))
            return index

        rows: list[list[int]] = []
        switches: list[int] = []
        for step in plan.steps:
            action = step.WhichOneof("action")
            if action == "run":
                run = step.run
                first = len(slots)
                for argument in run.arguments:
                    slot(argument)
                entry = self.image.address + plan.kernels[run.kernel].entry
                rows.append([_RUN, run.wait, entry, first, run.tiles, run.parallel, 0, 0])
            elif action == "branch_if_false":
                branch = step.branch_if_false
                where = slot(branch.condition)
                rows.append([_BRANCH, branch.wait, where, branch.target, 0, 0, 0, 0])
            elif action == "jump":
                rows.append([_JUMP, 0, 0, step.jump.target, 0, 0, 0, 0])
            elif action == "switch":
                switch = step.switch
                switches.append(len(rows))
                where = slot(switch.index)
                rows.append(
                    [_SWITCH, switch.wait, where, len(targets), len(switch.targets), 0, 0, 0]
                )
                targets.extend(switch.targets)
            else:
                raise CompilerBug(f"plan: step {len(rows)} has no action")
        rows.append([_END] + [0] * (_STEP_WORDS - 1))
        self.steps = np.array(rows, np.int64)
        self._targets = np.array(targets or [0], np.int64)
        self.steps[switches, 3] = self._targets.ctypes.data + 8 * self.steps[switches, 3]
        self.slots = np.array(slots or [0], np.int64)
        self.arena_slots = np.array(arena_slots, np.int64)
        self.patches = np.array(patches or [(0, 0, 0)], np.int64)
        self.patch_count = len(patches)

    def _home(self, buffer: plan_pb2.Buffer, inputs: int) -> tuple[int, int]:
        """A buffer's place, and its address, arena offset or index among a call's pointers."""
        if buffer.place == plan_pb2.ARENA:
            return buffer.place, buffer.offset
        if buffer.place == plan_pb2.INPUT:
            return buffer.place, buffer.index
        if buffer.place == plan_pb2.OUTPUT:
            return buffer.place, inputs + buffer.index
        if buffer.place == plan_pb2.WEIGHT:
            if buffer.weight not in self._weights:
                raise UserError(f"the bundle holds no weight '{buffer.weight}' that its plan names")
            array = self._weights[buffer.weight]
            if array.nbytes != buffer.bytes or not array.flags.c_contiguous:
                raise UserError(
                    f"weight '{buffer.weight}' has {array.nbytes} bytes, the plan needs "
                    f"{buffer.bytes} contiguous ones"
                )
            return buffer.place, array.ctypes.data
        raise CompilerBug(f"plan: buffer place {buffer.place}")

    def context(self) -> CpuContext:
        """A new context; contexts are independent, one call at a time each."""
        return CpuContext(self)


class CpuContext:
    """The memory of one call at a time: arena, scratch, slots."""

    def __init__(self, variant: CpuVariant) -> None:
        self.variant = variant
        size = variant.arena_bytes + variant.scratch_bytes * variant.threads
        self._memory = _Mapping(size, huge=size >= 1 << 22)
        self._slots = variant.slots.copy()
        self._slots[variant.arena_slots] += self._memory.address
        count = len(variant.plan.inputs) + len(variant.plan.outputs)
        self.io = (ctypes.c_int64 * max(1, count))()
        self._words = np.array(
            [
                variant.steps.ctypes.data,
                self._slots.ctypes.data,
                ctypes.addressof(self.io),
                variant.patches.ctypes.data,
                variant.patch_count,
                self._memory.address + variant.arena_bytes,
                variant.scratch_bytes,
                *(0,) * 4,
            ],
            np.int64,
        )
        self.address = self._words.ctypes.data
        self.count = count

    def set_trace(self, address: int, records: int) -> None:
        """Where workers log their steps, `records` each; address 0 = no log."""
        self._words[7:9] = address, records

    @property
    def traced_ticks(self) -> int:
        """Ticks between begin and end of the last call that had a log."""
        return int(self._words[10] - self._words[9])


def _address(array: np.ndarray) -> int:
    try:
        # Three times as fast as array.ctypes, but for writable, plain arrays only.
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # pyright: ignore
    except (TypeError, ValueError, BufferError):
        return array.ctypes.data


def run(
    context: CpuContext,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    profile: bool = False,
) -> list[Event]:
    """Executes the program: reads `inputs`, fills `outputs` (C-contiguous, of the plan's types).

    With `profile`, the events of every worker and step; else an empty list. The caller has checked
    shapes and types. Results do not depend on the number of threads.
    """
    variant = context.variant
    if len(inputs) + len(outputs) != context.count:
        raise CompilerBug(f"run: {len(inputs)} + {len(outputs)} arrays, expected {context.count}")
    if context.count:
        context.io[:] = [_address(array) for array in (*inputs, *outputs)]
    if profile:
        return _profiled(context)
    _execute(variant, context)
    return []


def _execute(variant: CpuVariant, context: CpuContext) -> int:
    """One call on as many workers as are free: all, or only the caller. The number of workers."""
    if variant.threads > 1:
        pool = _pool(variant)
        if pool.lock.acquire(blocking=False):
            try:
                variant.execute(context.address, variant.threads, pool.address)
            finally:
                pool.lock.release()
            return variant.threads
    variant.execute(context.address, 1, 0)
    return 1


_TRACE_RECORDS = 1 << 16


def _profiled(context: CpuContext) -> list[Event]:
    variant = context.variant
    width = 1 + 3 * _TRACE_RECORDS
    log = np.zeros(width * variant.threads, np.int64)
    context.set_trace(log.ctypes.data, _TRACE_RECORDS)
    begin = perf_counter_ns()
    try:
        _execute(variant, context)
    finally:
        context.set_trace(0, 0)
    total_us = (perf_counter_ns() - begin) / 1e3
    logs = log.reshape(variant.threads, width)
    records = [rows[1 : 1 + 3 * min(rows[0], _TRACE_RECORDS)].reshape(-1, 3) for rows in logs]
    if not any(len(record) for record in records):
        return []
    first = min(record[:, 1].min() for record in records if len(record))
    ticks_per_us = max(1, context.traced_ticks) / total_us
    plan = variant.plan
    events: list[Event] = []
    for worker, record in enumerate(records):
        last = 0
        for which, start, stop in record.tolist():
            step, duration = which & 0xFFFFFFFF, (stop - start) / ticks_per_us
            if which >> 32 and which == last:  # the next piece of the same run
                events[-1] = events[-1]._replace(duration=events[-1].duration + duration)
                continue
            last = which
            name = plan.kernels[plan.steps[step].run.kernel].name
            events.append(Event(step, name, worker, (start - first) / ticks_per_us, duration))
    return sorted(events, key=lambda event: event.begin)


def _too_small(plan: plan_pb2.Plan) -> bool:
    """Whether waking workers costs more than they save."""
    weights = np.ones(len(plan.steps))
    for index, step in enumerate(plan.steps):
        if step.WhichOneof("action") == "jump" and step.jump.target <= index:
            weights[step.jump.target : index + 1] *= _LOOP_TRIPS
    saved = lost = 0.0
    for weight, step in zip(weights, plan.steps, strict=True):
        if step.WhichOneof("action") == "run":
            run_ = step.run
            work = max(run_.flops / _FLOPS_PER_US, run_.bytes / _BYTES_PER_US)
            saved += weight * work / 2 if run_.parallel and run_.tiles > 1 else 0.0
            lost += weight * _BARRIER_US * run_.wait
    return saved < lost + _DISPATCH_US
