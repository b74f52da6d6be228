"""Runs a plan on the CPU: maps the image, keeps the workers, fills the step table, calls.

A `CpuVariant` is immutable and shared; a `CpuContext` (`cpu_context.py`) holds what one call at a
time needs (arena, scratch, pointer slots). `run(context, inputs, outputs)` is one native call;
while it runs, Python's lock is free. The layouts of contexts, steps and pools are documented in
backends/cpu/executor.py; they belong to the plan's format version.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...hlo.errors import CompilerBug, UserError
from ...specs.generated import plan_pb2
from .cores import default_threads
from .cpu_context import (
    ARENA_END,
    OWN_BYTES,
    RECORDS,
    WORDS,
    CallMemory,
    ContextWords,
    CpuContext,
)
from .cpu_ranges import own_buffers
from .cpu_steps import PARALLEL, STEP_WORDS, TILES, StepRows
from .limits import check_buffers, malformed
from .memory import PAGE, Pages, libc, pages
from .processors import this_processor
from .work import OpenWork, too_small
from .workers import WorkerPool, pool_of

if TYPE_CHECKING:
    from ..bundle import Variant
    from ..distributed.walker import PlanWalker

_from_buffer = ctypes.c_char.from_buffer
_addressof = ctypes.addressof


def _address(array: np.ndarray) -> int:
    """Where an array begins."""
    return array.__array_interface__["data"][0]


class CpuEvent(NamedTuple):
    """One worker's share of one executed step: when it began, in microseconds from the call's
    start, and for how long it worked on it."""

    step: int
    kernel: str
    worker: int
    begin: float
    duration: float


def map_image(image: bytes | memoryview) -> Pages:
    """The image as read-only executable memory; never writable and executable at once."""
    mapping = Pages(len(image))
    mapping.memory[: len(image)] = bytes(image)
    size = -(-len(image) // PAGE) * PAGE
    mprotect = libc().mprotect
    mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if mprotect(mapping.address, size, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        error = os.strerror(ctypes.get_errno())
        raise UserError(
            f"cannot make the program's code executable: {error}; this system forbids executable "
            "memory that was written before (SELinux execmem or a container policy), allow it"
        )
    return mapping


def lacks(plan: plan_pb2.Plan | Variant) -> str:
    """Why this machine cannot run the plan's, or the variant's, code; "" where it can."""
    reason = this_processor().lacks(plan.triple, plan.features)
    if not reason and "amx-tile" in plan.features and not _permit_tiles():
        return "code needs AMX tile registers, which this system does not let the process use"
    return reason


def tells_features() -> bool:
    """Whether this system says what its processor can do; else `lacks` believes that it can all."""
    return this_processor().features is not None


def check_machine(plan: plan_pb2.Plan) -> None:
    """Raises UserError where this machine cannot run the plan's code."""
    if reason := lacks(plan):
        raise UserError(
            f"the bundle's {reason}; compile the program again on this machine, or add code for "
            "it: girih retarget FILE --add cpu"
        )


@functools.cache
def _permit_tiles() -> bool:
    """Asks Linux, once per process, for the use of tile registers: their state is large, so a
    thread may touch them only after this."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return libc().syscall(arch_prctl, request_permission, tile_data) == 0


def workers_of(plan: plan_pb2.Plan, threads: int | None = None) -> int:
    """How many workers a call has, of `threads` (None: all cores that the process may use)."""
    if threads is not None and (not isinstance(threads, Integral) or threads < 1):
        raise UserError(f"threads must be at least 1, not {threads!r}")
    most = threads if threads is not None else default_threads()
    return 1 if most > 1 and not is_open(plan) and too_small(plan) else most


def is_open(plan: plan_pb2.Plan) -> bool:
    """Whether calls decide sizes of the plan."""
    return bool(plan.formulas)


class CpuVariant:
    """A plan with its mapped code and weights; immutable, shared by any number of contexts.

    weights: name -> C-contiguous array (a view of the mapped bundle). threads: None = all cores
    that the process may use. pin: each worker stays on a core of its own. Of a program of several
    processes: facts, what all of them must have equal (name -> bytes); comm_timeout: seconds that
    one wait for others may take, None as the environment says. shared: the mapped code, for all
    plans that run it. sizes: the values of the plan's formulas. beside: all plans of a program
    whose sizes calls decide, whose calls take turns in the same memory.
    """

    def __init__(
        self,
        plan: plan_pb2.Plan,
        image: bytes | memoryview,
        weights: Mapping[str, np.ndarray],
        threads: int | None = None,
        pin: bool = False,
        facts: Mapping[str, bytes] | None = None,
        comm_timeout: float | None = None,
        shared: dict[str, Any] | None = None,
        sizes: Sequence[int] = (),
        beside: Sequence[plan_pb2.Plan] = (),
    ) -> None:
        check_machine(plan)
        shared = {} if shared is None else shared
        self.sizes = sizes
        self.plan = plan
        self.facts, self.comm_timeout = dict(facts or {}), comm_timeout
        if "image" not in shared:
            shared["image"] = map_image(image)
        self.image, self.code_bytes = shared["image"], len(image)
        self.worker_entry = plan.worker_entry
        most = default_threads() if threads is None else threads
        self.threads = workers_of(plan, most)
        self.pin = pin
        self.scratch_bytes = _scratch_of(plan)
        self.arena_bytes = -(-plan.memory.arena_bytes // PAGE) * PAGE
        self.context_bytes = _context_of(plan, self.threads)
        # Contexts of all sizes take turns in the same memory, as much as any plan needs.
        self.blocks: CallMemory | None = None
        if beside:
            room = max(_context_of(one, workers_of(one, most)) for one in beside)
            blocks: CallMemory = shared.setdefault("blocks", CallMemory())
            blocks.size = max(blocks.size, room)
            self.blocks, self.context_bytes = blocks, room
        self.call_bytes = self.context_bytes  # what is allocated for arena and scratch
        self._weights = dict(weights)
        if not plan.processes:
            self.walker = None
        try:
            self._check_limits()
            self._build_tables()
        except (IndexError, OverflowError) as error:
            raise malformed(f"it names what it does not hold ({error})") from error
        self.execute = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(
            self.image.address + plan.executor_entry
        )

    def _check_limits(self) -> None:
        """UserError where functions lie outside the image, or memory outside what is given.

        What a kernel reads of its arguments, only the compiler can know.
        """
        plan = self.plan
        entries = [plan.executor_entry, plan.worker_entry, *(k.entry for k in plan.kernels)]
        if max(entries) >= self.code_bytes:
            raise malformed("a function lies outside its code")
        check_buffers(plan)

    def _build_tables(self) -> None:
        """Fills the step table and the pointer slots, as far as no context is needed."""
        plan, inputs = self.plan, len(self.plan.inputs)
        homes = [self._home(buffer, inputs) for buffer in plan.buffers]
        steps = StepRows(plan, homes, self.image.address, self.threads)
        self.ranges = steps.ranges
        self._records = np.array(steps.ranges.words, np.int64)
        if steps.ranges:
            self.context_bytes += pages(steps.ranges.memory()[2])
        table = np.array(steps.rows, np.int64)
        self._targets = np.array(steps.targets or [0], np.int64)
        switches = steps.switches
        table[switches, 3] = _address(self._targets) + 8 * table[switches, 3]
        self.patches = np.array(steps.patches or [(0, 0, 0)], np.int64)
        self.patch_count = len(steps.patches)
        self.work = OpenWork(plan) if is_open(plan) and self.threads > 1 else None
        for kind in () if self.work is None else self.work.rows:
            table[kind, PARALLEL] = 0
        # All that a context has of its own, in one piece: words, pointers to what a call is given,
        # steps, slots, and the sizes that kernels read.
        self.io_type = ctypes.c_int64 * (inputs + len(plan.outputs))
        self._first_step = first_step = WORDS + inputs + len(plan.outputs)
        self._first_slot = first_slot = first_step + table.size
        first_size = first_slot + len(steps.slots)
        words = [0] * first_step
        words[:3] = 8 * first_step, 8 * first_slot, 8 * WORDS
        words[3:5] = _address(self.patches), self.patch_count
        words[6] = self.scratch_bytes
        words[RECORDS], words[OWN_BYTES] = _address(self._records), steps.ranges.worker_bytes
        for index, number in steps.tables:
            steps.slots[index] = 8 * (first_size + number)
        block = np.concatenate([
            np.array(words, np.int64), table.reshape(-1), np.array(steps.slots, np.int64),
            np.zeros(len(steps.read), np.int64),
        ])  # fmt: skip
        self._first_size = first_size
        self.block = self._block(block, steps)
        offsets = [buffer.offset for buffer in plan.buffers]
        self.own = self.at(self.sizes, offsets, plan.memory.arena_bytes)

    def _block(self, block: np.ndarray, rows: StepRows) -> ContextWords:
        """The words of a context with what calls decide of them: to some a number is added of
        `CpuSized.values`, which begin with 0 and go on with the values of formulas, offsets of
        buffers, the arena's end, and which kinds of steps are worth several workers."""
        first_step, first_slot = self._first_step, self._first_slot
        offset = 1 + len(self.sizes)
        end = offset + len(self.plan.buffers)
        if any(number >= len(self.sizes) for number in (*rows.read, *rows.tiles.values())):
            raise malformed("it lacks a size that it names")
        added = np.zeros(len(block), np.intp)
        added[self._first_size :] = [1 + number for number in rows.read]
        steps = added[first_step:first_slot].reshape(-1, STEP_WORDS)
        steps[[*rows.tiles], TILES] = [1 + number for number in rows.tiles.values()]
        kinds = () if self.work is None else self.work.rows
        for number, kind in enumerate(kinds, end + 1):
            steps[kind, PARALLEL] = number
        arena = np.array([ARENA_END, *(first_slot + slot for slot in rows.in_arena)])
        added[arena] = [end, *(offset + number for number in rows.in_arena.values())]
        inside = np.array([0, 1, 2, *(first_slot + slot for slot, _ in rows.tables)])
        worker = np.array([first_slot + slot for slot in rows.in_worker], np.intp)
        return ContextWords(block, added, inside, arena, worker)

    @property
    def steps(self) -> np.ndarray:
        """The step table, a row for each."""
        return self.block.fixed[self._first_step : self._first_slot].reshape(-1, STEP_WORDS)

    def slots_of(self, block: np.ndarray) -> np.ndarray:
        """The pointer slots of a context's block."""
        return block[self._first_slot : self._first_size]

    def at(self, sizes: Sequence[int], offsets: Sequence[int], arena_bytes: int) -> CpuSized:
        """The same plan for other sizes: the values of its formulas, where buffers of the arena
        lie, by number, and the bytes of the arena."""
        return CpuSized(self, sizes, offsets, arena_bytes)

    def _home(self, buffer: plan_pb2.Buffer, inputs: int) -> tuple[int, int]:
        """A buffer's place, and its address, or index among a call's pointers; 0 in the arena."""
        if buffer.place == plan_pb2.ARENA:
            return buffer.place, 0
        if buffer.place == plan_pb2.WORKER:
            return buffer.place, own_buffers(self.plan) + buffer.offset
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
        raise malformed(f"a buffer has the place {buffer.place}")

    def pool(self) -> WorkerPool:
        """The workers that serve it."""
        major = self.plan.format_version.partition(".")[0]
        return pool_of(major, self.pin, self.threads, self.image, self.worker_entry)

    @functools.cached_property
    def walker(self) -> PlanWalker | None:  # pyright: ignore[reportRedeclaration]
        """Who walks the plan where several processes run it; UserError where they do not."""
        if not self.plan.processes:
            return None
        from ..distributed.walker import PlanWalker

        return PlanWalker(self.plan, self.steps, self.facts, self.comm_timeout)

    def received(self) -> dict[str, int]:
        """Bytes that other processes have sent to this one so far, by operation."""
        walker = self.__dict__.get("walker")
        return {} if walker is None else dict(walker.received)

    def context(self) -> CpuContext:
        """A new context; contexts are independent, one call at a time each, and one in all of a
        program of several processes. UserError where other processes run it than it is for."""
        _ = self.walker
        return CpuContext(self)


def _scratch_of(plan: plan_pb2.Plan) -> int:
    """Bytes of scratch of one worker."""
    return -(-max((kernel.scratch_bytes for kernel in plan.kernels), default=0) // 64) * 64


def _context_of(plan: plan_pb2.Plan, workers: int) -> int:
    """Bytes that a context of so many workers allocates."""
    arena = -(-plan.memory.arena_bytes // PAGE) * PAGE
    return pages(arena + _scratch_of(plan) * workers)


class CpuSized:
    """A variant at the sizes of some calls, which have contexts in common with those of all others.

    values: as of `ContextWords`; threads, context_bytes: as of `CpuVariant`.
    """

    __slots__ = ("arena_bytes", "threads", "values", "variant")

    def __init__(
        self, variant: CpuVariant, sizes: Sequence[int], offsets: Sequence[int], arena_bytes: int
    ) -> None:
        self.variant = variant
        self.arena_bytes = end = -(-arena_bytes // PAGE) * PAGE
        if end > variant.arena_bytes:
            raise malformed("calls of some sizes need more memory than those of the largest")
        work, pays = variant.work, ()
        self.threads = variant.threads
        if work is not None:
            pays, too_small = work.at(sizes)
            if too_small:
                self.threads = 1
        self.values = np.array((0, *sizes, *offsets, end, *pays), np.int64)

    @property
    def context_bytes(self) -> int:
        counted = self.variant.context_bytes - self.variant.call_bytes
        return pages(self.arena_bytes + self.variant.scratch_bytes * self.threads) + counted

    def run(
        self,
        context: CpuContext,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        profile: bool = False,
    ) -> list[CpuEvent]:
        """`run` at these sizes."""
        context.sized = self
        return run(context, inputs, outputs, profile)

    def bind(
        self,
        context: CpuContext,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
    ) -> Callable[[], int]:
        """`bind` at these sizes."""
        context.sized = self
        return bind(context, inputs, outputs)


def run(
    context: CpuContext,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    profile: bool = False,
) -> list[CpuEvent]:
    """Executes the program: reads `inputs`, fills `outputs` (C-contiguous, of the plan's types).

    With `profile`, the events of every worker and step; else an empty list. The caller has checked
    shapes and types. Results do not depend on the number of threads.
    """
    context.enter()
    try:
        _bind(context, inputs, outputs)
        if profile:
            return _profiled(context)
        _execute(context)
    finally:
        context.leave()
    return []


def bind(
    context: CpuContext, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> Callable[[], int]:
    """A function that does what `run` would do on these arrays, which it keeps alive."""
    context.enter()  # and never leave
    _bind(context, inputs, outputs)
    context.bound = (*inputs, *outputs)
    return lambda: _execute(context)


def _bind(context: CpuContext, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    """Writes the arrays' addresses where the executor looks for them."""
    if len(inputs) + len(outputs) != len(context.io):
        raise CompilerBug(f"run: {len(inputs)} + {len(outputs)} arrays, expected {len(context.io)}")
    io, index = context.io, 0
    for arrays in (inputs, outputs):
        for array in arrays:
            try:
                # Three times as fast as array.ctypes, but for writable, plain arrays only.
                io[index] = _addressof(_from_buffer(array))  # pyright: ignore[reportArgumentType]
            except (TypeError, ValueError, BufferError):
                io[index] = array.ctypes.data
            index += 1


def _execute(context: CpuContext) -> int:
    """One call. The number of workers that it had, at its end."""
    variant = context.variant
    if (walker := variant.walker) is None:
        return _execute_natively(context)
    workers = [1]
    if variant.patch_count:  # native code does so too, but an exchange may come first
        slot, number, offset = variant.patches.T
        context.slots[slot] = np.array(context.io[:], np.int64)[number] + offset
    walker.run(
        context.words,
        context.slots,
        lambda: workers.append(_execute_natively(context)),
    )
    return workers[-1]


def _execute_natively(context: CpuContext) -> int:
    """The steps of one table, on as many workers as are free: all, or only the caller."""
    variant, threads = context.variant, context.sized.threads
    if threads > 1:
        pool = variant.pool()
        if not pool.lock.locked():
            with pool.lock:
                variant.execute(context.address, threads, pool.address)
            return threads
    variant.execute(context.address, 1, 0)
    return 1


_TRACE_RECORDS = 1 << 16


def _profiled(context: CpuContext) -> list[CpuEvent]:
    variant, threads = context.variant, context.sized.threads
    if variant.walker is not None:
        raise UserError(
            "profile: steps of a program of several processes are not timed; call it, or profile a "
            "program for one process"
        )
    width = 1 + 3 * _TRACE_RECORDS
    log = np.zeros(width * threads, np.int64)
    context.set_trace(log.ctypes.data, _TRACE_RECORDS)
    begin = perf_counter_ns()
    try:
        _execute(context)
    finally:
        context.set_trace(0, 0)
    total_us = (perf_counter_ns() - begin) / 1e3
    logs = log.reshape(threads, width)
    records = [rows[1 : 1 + 3 * min(rows[0], _TRACE_RECORDS)].reshape(-1, 3) for rows in logs]
    if not any(len(record) for record in records):
        return []
    first = min(record[:, 1].min() for record in records if len(record))
    ticks_per_us = max(1, context.traced_ticks) / total_us
    plan = variant.plan
    events: list[CpuEvent] = []
    for worker, record in enumerate(records):
        last = 0
        for which, start, stop in record.tolist():
            step, duration = which & 0xFFFFFFFF, (stop - start) / ticks_per_us
            if which >> 32 and which == last:  # the next piece of the same run
                events[-1] = events[-1]._replace(duration=events[-1].duration + duration)
                continue
            last = which
            name = plan.kernels[plan.steps[step].run.kernel].name
            events.append(CpuEvent(step, name, worker, (start - first) / ticks_per_us, duration))
    return sorted(events, key=lambda event: event.begin)
