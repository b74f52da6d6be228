"""How loop kernels are cut: lanes of a vector, vectors of a turn, accumulators, elements of a tile.

Emitters say what their kernel does as a `LoopShape`; `LoopProblem` predicts the time of every cut
of it, for `../cost/construct.py`, and `choose` takes the fastest.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...hlo.deciding import at_hint
from ...hlo.symbols import SymbolicDim
from ..cost import assumed
from ..cost.construct import score
from ..cost.model import Features, Traffic, level_of
from ..machine import Machine

Array = np.ndarray

FIELDS = np.dtype([(name, np.int64) for name in ("lanes", "accumulators", "unroll", "block")])
_COUNTS = (1, 2, 4, 8)
_BLOCKS = (1024, 4096, 16384, 65536)
_FUNCTION = 20  # instructions, about
_MOST = 1 << 30  # elements of an extent: of more, the best cuts are the same
_NEAR = 4096  # bytes of a row, at most, where elements of all rows come before the next ones
_MOST_ROWS = 64  # that are gone down at a time, where they have outer positions in common


@dataclass(frozen=True)
class LoopBlocking:
    """lanes: elements of a vector, a power of two; of a transposed block, its edge. accumulators:
    of a reduction; vectors of results that are reduced together. unroll: vectors of a turn that
    stores. block: elements of a tile where one long dimension is cut."""

    lanes: int
    accumulators: int
    unroll: int
    block: int


@dataclass(frozen=True)
class LoopPass:
    """One run over the elements of each row. For an element: `operations` (simple ones, divisions,
    functions), loads and stores that are `moved`, and elements that are `gathered` one by one.
    sums: reductions that take it. straight: the lanes for which a row is code without a loop."""

    count: int
    operations: tuple[int, int, int]
    moved: float
    gathered: float = 0.0
    sums: int = 0
    straight: frozenset[int] = frozenset()


@dataclass(frozen=True)
class LoopShape:
    """What decides which cuts a loop kernel has, and what they cost.

    kind: "loop"; "transpose", a loop whose operand is contiguous along another dimension; "lines",
    reductions of the last dimension; "columns", of others; or "rows", several passes. rows: how
    often the passes run. across: of "lines" and "columns", what a result sums; of "transpose", the
    extent along which the operand is contiguous. read, written: bytes; table: of what elements are
    gathered from. lanes: of a vector of the widest element. masks: whether single lanes can be
    loaded and stored. several: whether the kernel is for several workers.
    """

    kind: str
    rows: int
    passes: tuple[LoopPass, ...]
    read: float
    written: float
    element_bytes: int
    lanes: int
    registers: int
    masks: bool
    several: bool
    across: int = 1
    table: float = 0.0


def likely(size: int | SymbolicDim) -> int:
    """An extent where cuts are chosen: nothing is empty there, nor too large for counting."""
    return min(max(1, at_hint(size)), _MOST)


class Common(NamedTuple):
    """What several rows have in common: vector instructions, and loads of single elements."""

    work: float
    gathered: int


class RowsDown(NamedTuple):
    """Of how many rows at a time the first elements are computed, then the next ones, so that what
    rows have in common is computed once for them, and what that gains for each row, in vector
    additions. block: rows that have all but their last outer position in common; 0: all of a range.
    """

    block: int
    gain: float


@dataclass(frozen=True)
class RowsInCommon:
    """What is computed once for elements of several rows, or of one. count: elements of a row, of
    so many bytes. row: vector instructions that all elements of a row have in common. rows: what
    all rows have; near: what `length` rows have whose innermost outer position alone differs."""

    count: int
    element_bytes: int
    row: float
    rows: Common
    near: Common
    length: int

    def down(self, lanes: int, stride: int) -> RowsDown:
        """The best way to go down rows, `stride` elements at a time; a gain of 0 where elements of
        a row come one after the other: then what they have in common is computed once, which else
        is computed again for each stride. Rows are short, so that what is read together lies near.
        """
        bytes = self.count * self.element_bytes
        if bytes > _NEAR:
            return RowsDown(0, 0.0)
        alike = assumed.LOOP_SIMPLE * self.row
        again = 1 - stride / max(stride, self.count)
        lost = (assumed.LOOP_ROW + alike) * again + assumed.LOOP_TURN

        def gain(common: Common) -> float:
            once = assumed.LOOP_SIMPLE * common.work
            return (once + assumed.LOOP_GATHERED * lanes * common.gathered) * stride / lanes - lost

        most = min(_MOST_ROWS, max(1, _NEAR * _MOST_ROWS // 4 // max(1, bytes)))
        block = max(n for n in range(1, most + 1) if self.length % n == 0)
        found = [RowsDown(0, max(0.0, gain(self.rows)))]
        if block > 1:
            found.append(RowsDown(block, gain(self.near) * (1 - 1 / block)))
        return max(found, key=lambda one: one.gain)


def candidates(shape: LoopShape) -> Array:
    """All cuts, elements of `FIELDS`, each once and in a fixed order."""
    longest = max(step.count for step in shape.passes)
    lanes = [1 << bit for bit in range(shape.lanes.bit_length())]
    one, blocks = (1,), (longest,)
    if shape.kind == "transpose":
        across = min(shape.across, longest)
        edges = [n for n in (*lanes, 2 * shape.lanes) if 1 < n <= across]
        axes = (edges or one, one, one, blocks)
    elif shape.kind == "loop":
        axes = (lanes, one, _COUNTS, (*(n for n in _BLOCKS if n < longest), longest))
    elif shape.kind == "rows":
        axes = (lanes, _COUNTS, _COUNTS, blocks)
    else:
        axes = (lanes, _COUNTS, one, blocks)
    return np.array(list(itertools.product(*axes)), FIELDS)


def blocking_of(row: np.void) -> LoopBlocking:
    """One element of `candidates`."""
    return LoopBlocking(*row.item())


@functools.lru_cache(4096)
def choose(shape: LoopShape, machine: Machine) -> LoopBlocking:
    """The fastest predicted cut."""
    problem = LoopProblem(shape)
    every = problem.configurations
    return blocking_of(every[int(score(problem, every, machine).order[0])])


@dataclass(frozen=True)
class LoopProblem:
    """The choice of a loop kernel's cut."""

    shape: LoopShape

    @property
    def configurations(self) -> Array:
        return candidates(self.shape)

    def footprint(self, configurations: Array) -> Array:
        return np.zeros(len(configurations), np.int64)

    def features(self, configurations: Array, machine: Machine, executors: int) -> Features:
        """What the vectors of all rows take, one pass after another."""
        shape = self.shape
        one = shape.lanes / machine.math.simple  # seconds of a vector addition
        counts = _LoopCounts(shape, configurations, machine, one)
        if shape.kind == "transpose":
            computing, issue, tasks = counts.transposed()
        elif shape.kind == "columns":
            computing, issue, tasks = counts.columns()
        else:
            computing, issue, tasks = counts.passes()
        level = level_of(machine, shape.read + shape.written, executors)
        looked = float(shape.rows * sum(step.count * step.gathered for step in shape.passes))
        short = np.maximum(1.0, machine.levels[0].line / counts.run())
        traffic = (
            Traffic(shape.read, level, "read", short),
            Traffic(shape.written, level, "write"),
            Traffic(looked * machine.levels[0].line, level_of(machine, shape.table, executors)),
        )
        return Features(computing, 1 / one, traffic, one * issue, tasks if shape.several else 1)


class _LoopCounts:
    """Vector additions of arrays of cuts, and tasks: (what overlaps with moving, what does not,
    tasks)."""

    def __init__(self, shape: LoopShape, cuts: Array, machine: Machine, one: float) -> None:
        self.shape, self.cuts, self.machine, self.one = shape, cuts, machine, one
        self.lanes = cuts["lanes"]
        self.unit = machine.unit("f32")

    def chain(self, accumulators: Array) -> Array:
        """What a vector takes that waits for the addition before it, in vector additions."""
        return np.maximum(1.0, self.unit.parallelism / accumulators)

    def vector(self, step: LoopPass, accumulators: Array) -> Array:
        """A vector of a pass."""
        simple, divisions, functions = step.operations
        math = self.machine.math
        taken = assumed.LOOP_SIMPLE * simple + assumed.LOOP_MOVED * step.moved
        taken = taken + math.simple * (divisions / math.div + functions / math.exp)
        gathered = np.where(self.lanes > 1, 1 + assumed.LOOP_GATHERED * self.lanes, 1.0)
        taken = taken + step.gathered * gathered
        if step.sums:  # what waits is issued all the same: among equals, that of fewer vectors
            taken = np.maximum(taken, self.chain(accumulators)) + assumed.LOOP_WAITING * taken
        return taken

    def passes(self) -> tuple[Array, Array, Array]:
        """Of a loop, of lines, or of rows."""
        shape, cuts = self.shape, self.cuts
        computing = issue = code = np.zeros(len(cuts))
        # Sums of lines go on over all that one result sums.
        lines = shape.kind == "lines"
        ends = max(1, shape.rows * shape.passes[0].count // shape.across) if lines else shape.rows
        tasks = np.full(len(cuts), ends)
        for step in shape.passes:
            lanes = np.minimum(self.lanes, 1 << step.count.bit_length())
            most = np.maximum(1, step.count // lanes)
            if step.sums:
                together = np.minimum(cuts["accumulators"], 1 << np.log2(most).astype(int))
            else:
                together = np.minimum(cuts["unroll"], most)
            stride = lanes * together
            turns, rest = step.count // stride, step.count % stride
            masks = shape.masks & (lanes > 1) & (shape.kind != "lines")
            rest = np.where(masks, -(-rest // lanes), rest)
            turn = together * self.vector(step, together) + assumed.LOOP_STEP
            turn = np.maximum(turn, assumed.LOOP_TURN)
            alone = self.vector(step, np.ones_like(together)) + assumed.LOOP_MASKED * masks
            alone = np.maximum(alone, assumed.LOOP_TURN)
            straight = np.isin(self.lanes, list(step.straight))
            whole = -(-step.count // lanes) * self.vector(step, np.full_like(lanes, 4))
            taken = np.where(straight, whole, turns * turn + rest * alone)
            computing = computing + shape.rows * taken
            issue = issue + shape.rows * assumed.LOOP_ROW
            if step.sums:
                joined = np.where(straight, 0, together - 1) + np.log2(lanes)
                issue = issue + ends * step.sums * assumed.LOOP_END * joined
            code = code + np.where(straight, 0, together * self.instructions(step))
        issue = issue + assumed.LOOP_CODE * code
        if shape.kind == "loop":
            tasks = shape.rows * -(-shape.passes[0].count // cuts["block"])
            issue = issue + assumed.LOOP_TILE * tasks
        return computing, issue, tasks

    def columns(self) -> tuple[Array, Array, Array]:
        (step,), rows, terms = self.shape.passes, self.shape.rows, self.shape.across
        lanes = np.minimum(self.lanes, 1 << step.count.bit_length())
        together = np.maximum(1, np.minimum(self.cuts["accumulators"], step.count // lanes))
        stride = lanes * together
        tiles, rest = step.count // stride, step.count % stride
        rest = np.where(self.shape.masks & (lanes > 1), -(-rest // lanes), rest)
        each = tiles * np.maximum(together * self.vector(step, together), assumed.LOOP_TURN)
        alone = self.vector(step, np.ones_like(together))
        each = each + rest * np.maximum(alone, assumed.LOOP_TURN)
        issue = rows * (tiles + rest) * assumed.LOOP_ROW
        issue = issue + assumed.LOOP_CODE * together * self.instructions(step)
        return rows * terms * each, issue, rows * (tiles + rest)

    def instructions(self, step: LoopPass) -> float:
        """Of a vector, about: code is brought from memory before it runs."""
        simple, divisions, functions = step.operations
        return simple + divisions + _FUNCTION * functions + step.moved + step.gathered

    def transposed(self) -> tuple[Array, Array, Array]:
        """A block is read, shuffled log2(edge) times, staged and stored. Two copies of it stand in
        registers while it is shuffled, or some of them do not."""
        shape, edge = self.shape, self.lanes
        elements = float(shape.rows * shape.passes[0].count)
        vectors = elements / np.minimum(edge, shape.lanes)
        crowded = 2 * edge / shape.registers - 0.5
        each = 3.0 + np.log2(edge) + assumed.LOOP_SPILLED * np.maximum(0.0, crowded)
        blocks = elements / edge**2
        tasks = shape.rows // shape.across * -(-shape.across // edge)
        return vectors * each, blocks * assumed.LOOP_ROW, tasks

    def run(self) -> Array:
        """Bytes that are read side by side."""
        run = self.lanes * self.shape.element_bytes
        if self.shape.kind == "columns":
            return run * self.cuts["accumulators"]
        return run if self.shape.kind == "transpose" else np.full(len(run), 1 << 20)
