"""State of the blocks (CTAs) that run together, and what their instructions call.

A `Batch` holds the threads of many CTAs, numbered CTA by CTA; in cooperative kernels a CTA is
padded to whole warps and the padding threads never live. `A` is everywhere the array of the active
threads' numbers, or None when all threads of the batch are active.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .access import resolve_generic
from .flow import Node, registers_of
from .memory import CLUSTER_SHIFT, DTYPES, GlobalMemory, Segment
from .report import Fault, Report, SimulationError
from .syntax import Module, Operand
from .translate import Program

EXIT = 1 << 30  # rank of a thread that has left
HARMLESS = frozenset(("uninitialised",))  # faults that are reported without an end of the run


@dataclass(slots=True, eq=False)
class Launch:
    """What all batches of one launch share."""

    module: Module
    program: Program
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    parameters: Segment
    memory: GlobalMemory
    symbols: dict[str, np.uint64]
    shared_bytes: int
    local_bytes: int
    report: Report
    mode: str
    seed: int
    checks: bool
    limit: int
    random: np.random.Generator
    counting: Any = None
    blocks: Any = None  # races between blocks

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(slots=True, eq=False)
class Cta:
    rank: int  # in its cluster
    index: tuple[int, int, int]
    shared: np.ndarray
    number: int  # in the batch
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Park:
    """Threads that wait at one instruction until `ready`; `each`: ready(threads) tells of each."""

    threads: np.ndarray
    ready: Callable[..., Any]
    text: str | Callable[[], str]
    again: bool
    node: Node
    each: bool = False


class At:
    """Where an operation runs: `threads` are the active ones, ascending."""

    __slots__ = ("node", "state", "threads")

    def __init__(self, state: Batch, threads: np.ndarray, node: Node) -> None:
        self.state, self.threads, self.node = state, threads, node

    @property
    def instruction(self) -> Any:
        return self.node.instruction

    @property
    def warps(self) -> np.ndarray:
        return np.unique(self.threads >> 5)

    def fault(self, kind: str, message: str, threads: Any = None) -> None:
        self.state.fault(kind, message, self.node.number, threads)

    def park(
        self,
        mask: np.ndarray,
        ready: Callable[..., Any],
        text: str | Callable[[], str],
        again: bool = False,
        each: bool = False,
    ) -> None:
        """Threads where `mask` stop here until `ready()`, or, with `each`, where ready(threads)."""
        self.state.parks.append(Park(self.threads[mask], ready, text, again, self.node, each))


class Batch:
    """The threads that run together. Its arrays are indexed by thread number."""

    def __init__(self, launch: Launch, ctas: Iterable[int], padded: bool) -> None:
        self.launch = launch
        self.program = launch.program
        self.nodes = launch.program.nodes
        self.report = launch.report
        self.memory = launch.memory
        self.symbols = launch.symbols
        self.parameters = launch.parameters
        self.mode, self.seed, self.checks = launch.mode, launch.seed, launch.checks
        self.random = launch.random
        self.counting, self.blocks = launch.counting, launch.blocks
        numbers = np.asarray(list(ctas), np.int64)
        self.cta_numbers = numbers
        self.cta_count = numbers.size
        threads = launch.threads
        self.threads_per_cta = -(-threads // 32) * 32 if padded else threads
        self.T = self.threads_per_cta * self.cta_count
        self.thread_numbers = np.arange(self.T)
        self.lanes = self.thread_numbers  # numbers that special registers and local memory go by
        self.live = np.ones(self.T, bool)
        if self.threads_per_cta != threads:
            self.live &= self.thread_numbers % self.threads_per_cta < threads
        self.live_count = int(self.live.sum())
        self.block_of = np.where(self.live, 0, EXIT)
        self.R: list[Any] = list(launch.program.initial)
        self.segment = launch.parameters  # the allocation used last
        self.shared_bytes = launch.shared_bytes
        self.shared_stride = -(-launch.shared_bytes // 1024) * 1024
        self.shared = np.full(max(self.shared_stride * self.cta_count, 16), 0xFF, np.uint8)
        self._shared_views: dict[str, np.ndarray] = {"u1": self.shared}
        self.local_bytes = launch.local_bytes
        self._local: np.ndarray | None = None
        self._local_base: np.ndarray | None = None
        self._specials: dict[str, Any] = {}
        self._base: np.ndarray | None = None
        self.parks: list[Park] = []
        self.pending: list[Callable[[], Any]] = []
        self.at_exit: list[Callable[[Batch], Any]] = []
        # called with (threads, cta, offset, nbytes per thread, number of the instruction)
        self.on_shared_store: list[Callable[..., Any]] = []
        self.on_shared_load: list[Callable[..., Any]] = []
        self.on_barrier: list[Callable[[np.ndarray], Any]] = []  # threads that arrive
        self.races: Any = None
        self.communication: Any = None  # between blocks
        self.queue: list[int] = []  # numbers of the CTAs that have not started
        self.data: dict[str, Any] = {}
        self.flying = 0
        # by use (accumulator, operand), register, thread
        self.in_flight = np.zeros((2, 0, 0), bool)
        self._ctas: list[Cta] | None = None

    # ------------------------------------------------------------ threads

    def size(self, A: Any) -> int:
        return self.T if A is None else A.size

    def threads(self, A: Any) -> np.ndarray:
        return self.thread_numbers if A is None else A

    @property
    def ctas(self) -> list[Cta]:
        if self._ctas is None:
            cx, cy, cz = self.launch.cluster
            self._ctas = []
            for number, linear in enumerate(self.cta_numbers):
                x, y, z = self.index_of(int(linear))
                rank = x % cx + cx * (y % cy + cy * (z % cz))
                start = number * self.shared_stride
                view = self.shared[start : start + self.shared_bytes]
                self._ctas.append(Cta(rank, (x, y, z), view, number))
        return self._ctas

    @property
    def cluster(self) -> list[int]:
        """Numbers of the CTAs of the batch's one cluster, by rank."""
        return [cta.number for cta in sorted(self.ctas, key=lambda cta: cta.rank)]

    def index_of(self, linear: int) -> tuple[int, int, int]:
        gx, gy, _ = self.launch.grid
        return linear % gx, linear // gx % gy, linear // (gx * gy)

    def blocks_met(self, ctas: np.ndarray) -> None:
        """The blocks of these numbers have passed a barrier."""
        if self.races:
            self.races.blocks_met(ctas)
        if self.communication is not None:
            self.communication.knowledge.blocks_met(ctas)

    def hold_back(self, resident: int) -> None:
        """Only so many CTAs start; others when one has left."""
        order = self.random.permutation(self.cta_count) if self.seed else np.arange(self.cta_count)
        self.queue = order[resident:].tolist()
        held = np.isin(self.thread_numbers // self.threads_per_cta, self.queue)
        self.live[held], self.block_of[held] = False, EXIT
        self.live_count = int(self.live.sum())

    def admit(self, left: np.ndarray) -> None:
        """These threads have left: CTAs start in the places of those of which none is left."""
        alive = set((np.nonzero(self.live)[0] // self.threads_per_cta).tolist())
        for cta in np.unique(left // self.threads_per_cta).tolist():
            if self.queue and cta not in alive:
                start = self.queue.pop(0) * self.threads_per_cta
                members = slice(start, start + self.launch.threads)
                self.live[members], self.block_of[members] = True, 0
                self.live_count += self.launch.threads

    def compact(self, keep: np.ndarray) -> None:
        """Drops all threads but `keep` (independent kernels only)."""
        self.R = [value[keep] if value.ndim else value for value in self.R]
        self.lanes = self.lanes[keep]
        self.T = keep.size
        self.thread_numbers = np.arange(self.T)
        self._specials = {}
        self._base = self._local_base = None

    # ------------------------------------------------------------ memory

    @property
    def shared_base(self) -> np.ndarray:
        if self._base is None:
            self._base = self.lanes // self.threads_per_cta * self.shared_stride
        return self._base

    def shared_view(self, kind: str) -> np.ndarray:
        found = self._shared_views.get(kind)
        if found is None:
            found = self._shared_views[kind] = self.shared.view(DTYPES[kind])
        return found

    def local_base(self) -> np.ndarray:
        if self._local_base is None:
            self._local_base = self.lanes * (-(-self.local_bytes // 16) * 16)
        return self._local_base

    def local_view(self, kind: str) -> np.ndarray:
        if self._local is None:
            self._local = np.full(
                self.live.size * (-(-self.local_bytes // 16) * 16), 0xFF, np.uint8
            )
        return self._local.view(DTYPES[kind])

    def locate_shared(self, threads: np.ndarray, address: Any) -> tuple[np.ndarray, np.ndarray]:
        """CTA of the batch and offset, for plain and shared::cluster addresses."""
        address = np.broadcast_to(address, threads.size)
        cta = self.lanes[threads] // self.threads_per_cta
        rank = address >> CLUSTER_SHIFT
        if rank.any():
            if self.launch.cluster == (1, 1, 1):  # each block is a cluster
                known = rank == 1
            else:
                table = np.asarray([*self.cluster, -1])
                known = (rank > 0) & (rank < table.size)
                cta = np.where(rank == 0, cta, table[np.where(known, rank - 1, -1)])
            address = np.where(rank == 0, address, address & ((1 << CLUSTER_SHIFT) - 1))
            address = np.where((rank == 0) | known, address, -1)
        return cta, address

    def read_bytes(self, thread: int, address: int, nbytes: int) -> np.ndarray:
        """Bytes at a generic address (parameters, shared, global) as `thread` sees them."""
        where = np.asarray([address])
        pieces = resolve_generic(self, np.asarray([thread]), 0, where, 0, "u1", 1)
        elements, index, _ = pieces[0]
        start = int(np.atleast_1d(index)[0])
        return elements[start : start + nbytes]

    def tell(self, hooks: list[Any], A: Any, pieces: list[Any], nbytes: int, number: int) -> None:
        """Calls the hooks of loads or stores for those pieces that lie in shared memory."""
        threads = self.threads(A)
        for elements, index, chosen in pieces:
            if not np.shares_memory(elements, self.shared):
                continue
            members = threads if chosen is None else threads[chosen]
            start = np.broadcast_to(index * elements.itemsize, members.size)
            cta = start // self.shared_stride
            for hook in hooks:
                hook(members, cta, start % self.shared_stride, nbytes, number)

    # ------------------------------------------------------------ operations

    def operate(self, A: Any, number: int, sources: list[Any]) -> tuple[Any, Any]:
        node = self.nodes[number]
        bound = node.bound
        assert bound is not None
        threads = self.threads(A)
        count = threads.size
        for position, value in enumerate(sources):
            if isinstance(value, list):
                sources[position] = [v if v.ndim else np.broadcast_to(v, count) for v in value]
            elif not value.ndim:
                sources[position] = np.broadcast_to(value, count)
        before = len(self.parks)
        result = bound.run(At(self, threads, node), *sources)
        again = [park.threads for park in self.parks[before:] if park.again]
        if again and bound.targets and result is not None:
            stays = np.zeros(self.T, bool)
            for parked in again:
                stays[parked] = True
            keep = ~stays[threads]
            A = threads[keep]
            result = tuple(
                [self._kept(v, keep) for v in value]
                if isinstance(value, list)
                else self._kept(value, keep)
                for value in result
            )
        return A, result

    @staticmethod
    def _kept(value: Any, keep: np.ndarray) -> Any:
        value = np.asarray(value)
        return value[keep] if value.ndim else value

    def set_register(self, operand: Operand, threads: np.ndarray, value: Any, kind: str) -> None:
        """Writes the bits of `value` (of `kind`) into a register of `threads`."""
        for register in registers_of(operand):
            own = DTYPES[self.program.kinds[register.number]]
            bits = np.asarray(value, DTYPES[kind]).view(own)
            old = self.R[register.number]
            if not old.ndim:
                old = self.R[register.number] = np.full(self.T, old)
            old[threads] = bits

    def fly(self, operands: Iterable[Operand], threads: np.ndarray, use: str) -> None:
        """Registers that an asynchronous instruction still writes ("accumulator") or reads."""
        numbers = [r.number for operand in operands for r in registers_of(operand)]
        if not self.in_flight.size:
            shape = (2, len(self.program.flow.registers), self.T)
            self.in_flight = np.zeros(shape, bool)
        rows = np.asarray(numbers, np.int64)
        self.in_flight[int(use != "accumulator"), rows[:, None], threads] = True
        for number in numbers:
            self.flying |= 1 << number

    def land(self, operands: Iterable[Operand], threads: np.ndarray) -> None:
        numbers = [r.number for operand in operands for r in registers_of(operand)]
        if not self.flying or not numbers:
            return
        rows = np.asarray(numbers, np.int64)
        self.in_flight[:, rows[:, None], threads] = False
        left = np.flatnonzero(self.in_flight[:, rows].any((0, 2)))
        self.flying &= ~sum(1 << number for number in set(numbers))
        for position in left:
            self.flying |= 1 << numbers[position]

    def check_flying(self, A: Any, rank: int) -> None:
        reads, writes = self.program.touched[rank]
        suspects = self.flying & (reads | writes)
        number = 0
        threads = self.threads(A)
        while suspects:
            if suspects & 1:
                accumulator = bool(self.in_flight[0, number, threads].any())
                operand = bool(self.in_flight[1, number, threads].any())
                if accumulator or (writes >> number & 1 and operand):
                    self._touch(rank, number, accumulator)
            suspects >>= 1
            number += 1

    def _touch(self, rank: int, number: int, accumulator: bool) -> None:
        name = self.program.flow.registers[number].name
        for node in self.program.flow.blocks[rank].nodes:
            if number in node.writes or (accumulator and number in node.reads):
                use = "written" if number in node.writes else "read"
                self.fault("in-flight", f"register {name} is {use} while in flight", node.number)
                return

    # ------------------------------------------------------------ faults

    def fault(self, kind: str, message: str, number: int, threads: Any = None) -> None:
        instruction = self.nodes[number].instruction
        source = ""
        if instruction.source is not None:
            file, line = instruction.source
            source = f"{self.launch.module.files.get(file, f'file {file}')}:{line}"
        if threads is not None and np.size(threads):
            message += f", {self.describe(int(np.atleast_1d(threads)[0]))}"
        message += f"\n    {instruction.text}"
        fault = Fault(kind, message, self.launch.entry, instruction.line, source)
        if fault in self.report.faults:
            return
        self.report.faults.append(fault)
        if kind not in HARMLESS:
            raise SimulationError(fault, self.report)

    def describe(self, thread: int) -> str:
        lane = int(self.lanes[thread])
        cta = self.index_of(int(self.cta_numbers[lane // self.threads_per_cta]))
        linear = lane % self.threads_per_cta
        bx, by, _ = self.launch.block
        return f"block {cta} thread ({linear % bx}, {linear // bx % by}, {linear // (bx * by)})"


def special(S: Batch, A: Any, name: str) -> Any:
    """The value of a special register: an array of the active threads, or a scalar."""
    value = S._specials.get(name)
    if value is None:
        value = _special(S, name)
        if not name.startswith(("clock", "globaltimer")):
            S._specials[name] = value
    return value if A is None or not value.ndim else value.take(A)


def _extent(S: Batch, name: str) -> Any:
    base, _, axis = name.partition(".")
    position = "xyz".index(axis)
    launch = S.launch
    linear = S.lanes % S.threads_per_cta
    grid, block, cluster = launch.grid, launch.block, launch.cluster
    if base == "ntid":
        return block[position]
    if base == "nctaid":
        return grid[position]
    if base == "cluster_nctaid":
        return cluster[position]
    if base == "nclusterid":
        return grid[position] // cluster[position]
    if base == "tid":
        if launch.threads == 1:
            return 0
        return (linear, linear // block[0], linear // (block[0] * block[1]))[position] % (
            block[position]
        )
    cta = S.cta_numbers
    index = (cta % grid[0], cta // grid[0] % grid[1], cta // (grid[0] * grid[1]))[position]
    if base == "clusterid":
        index = index // cluster[position]
    elif base == "cluster_ctaid":
        index = index % cluster[position]
    if S.cta_count == 1:
        return index[0]
    return index[S.lanes // S.threads_per_cta]


def _special(S: Batch, name: str) -> Any:
    if name[-2:] in (".x", ".y", ".z"):
        value = _extent(S, name)
    elif name == "laneid":
        value = S.lanes % S.threads_per_cta % 32
    elif name == "warpid":
        value = S.lanes % S.threads_per_cta // 32
    elif name == "nwarpid":
        value = 64
    elif name == "cluster_ctarank":
        ranks = np.asarray([cta.rank for cta in S.ctas])
        value = ranks[0] if ranks.size == 1 else ranks[S.lanes // S.threads_per_cta]
    elif name == "cluster_nctarank":
        cx, cy, cz = S.launch.cluster
        value = cx * cy * cz
    elif name == "is_explicit_cluster":
        return np.bool_(S.launch.cluster != (1, 1, 1))
    elif name.startswith("lanemask_"):
        lane = (S.lanes % 32).astype(np.uint64)
        one = np.uint64(1) << lane
        value = {
            "eq": one,
            "lt": one - np.uint64(1),
            "le": (one << np.uint64(1)) - np.uint64(1),
            "ge": ~(one - np.uint64(1)) & np.uint64(0xFFFFFFFF),
            "gt": ~((one << np.uint64(1)) - np.uint64(1)) & np.uint64(0xFFFFFFFF),
        }[name[9:]]
    elif name == "smid":
        value = S.cta_numbers % 132
        value = value[0] if S.cta_count == 1 else value[S.lanes // S.threads_per_cta]
    elif name == "nsmid":
        value = 132
    elif name.startswith(("clock", "globaltimer")):
        ticks = S.report.vector_instructions
        return np.uint64(0 if name.endswith("_hi") else ticks)
    elif name == "dynamic_smem_size" or name == "total_smem_size":
        value = S.shared_bytes
    else:
        value = 0
    return np.asarray(value, np.uint64).astype(np.uint32)
