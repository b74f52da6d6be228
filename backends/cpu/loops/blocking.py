"""How loop kernels are cut: lanes of a vector, vectors of a turn, elements of a tile.

`default` cuts by the types and the weight of what is computed; `LoopProblem` predicts the time of
every cut, for `optimizer/cost/construct.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ....hlo.graph import Region
from ....optimizer.cost import assumed
from ....optimizer.cost.model import Features, Traffic, efficiency, level_of
from ....optimizer.machine import Machine
from ...plain.frame import BLOCK, cost, lanes_for
from ..codegen import Target

Array = np.ndarray

FIELDS = np.dtype([(name, np.int64) for name in ("lanes", "unroll", "block")])
_UNROLLS = (1, 2, 4, 8)
_BLOCKS = (256, 1024, 4096, 16384, 65536)


@dataclass(frozen=True)
class LoopBlocking:
    """lanes: elements of a vector, a power of two; of a transposed block, its edge. unroll: vectors
    of one turn, which in a reduction have accumulators of their own. block: elements of a tile
    where one long dimension is cut."""

    lanes: int
    unroll: int
    block: int


def default(region: Region, target: Target) -> LoopBlocking:
    """The usual cut of an elementwise loop."""
    heavy = cost(region)
    unroll = 4 if heavy <= 3 else 2 if heavy <= 16 else 1
    lanes = lanes_for(target, region)
    return LoopBlocking(lanes, 1 if lanes == 1 else unroll, BLOCK)


def blocking_of(row: np.void) -> LoopBlocking:
    """One configuration of a LoopProblem."""
    return LoopBlocking(*(value.item() for value in row))


@dataclass(frozen=True, eq=False)
class LoopProblem:
    """The choice of a loop kernel's cut; kind: "loop", "rows",
    "reduce", or "transpose": a loop whose operand is contiguous along another dimension."""

    region: Region
    target: Target
    kind: str

    @property
    def configurations(self) -> Array:
        most = 2 * lanes_for(self.target, self.region)
        lanes = [1 << bit for bit in range(most.bit_length())]
        size = max(root.tensor.size for root in self.region.results)
        blocks = [block for block in _BLOCKS if block < size] if self.kind == "loop" else []
        if self.kind == "transpose":
            axes = (lanes[1:], [1], [size])
        else:
            axes = (lanes, _UNROLLS, [*blocks, size])
        parts = [part.ravel() for part in np.meshgrid(*map(np.array, axes), indexing="ij")]
        made = np.zeros(len(parts[0]), FIELDS)
        for name, part in zip(FIELDS.names or (), parts, strict=True):
            made[name] = part
        return made

    def footprint(self, configurations: Array) -> Array:
        return np.zeros(len(configurations), np.int64)

    def features(self, configurations: Array, machine: Machine, executors: int) -> Features:
        """Elements times what each costs: vectors that are too narrow waste lanes."""
        region, lanes = self.region, configurations["lanes"]
        elements = float(max(_sizes(region)))
        full = lanes_for(self.target, region)
        one = full / machine.math.simple  # seconds of a vector addition
        vectors = elements / np.minimum(lanes, full)
        reductions = sum(op.name == "reduce" for op in region.ops)
        per_vector = max(1.0, cost(region)) - reductions
        per_vector = per_vector + reductions / self.independence(machine, configurations, full)
        if self.kind == "transpose":
            # A block is read, shuffled log2(edge) times, staged and stored. Two copies of it stand
            # in registers while it is shuffled, or some of them do not.
            crowded = 2 * lanes / self.target.vector_registers - 0.5
            per_vector = 3.0 + np.log2(lanes) + assumed.LOOP_SPILLED * np.maximum(0.0, crowded)
        turns = elements / (lanes * configurations["unroll"])
        if self.kind == "loop":
            tasks = np.ceil(elements / configurations["block"])
            issue = one * (assumed.LOOP_TURN * turns + assumed.LOOP_TILE * tasks)
        else:
            tasks = np.full(len(lanes), max(1, self.region.results[0].dims[0]))
            issue = one * (assumed.LOOP_TURN * turns + self.ends(configurations))
        read = float(sum(value.tensor.bytes for value in region.arguments))
        written = float(sum(value.tensor.bytes for value in region.results))
        level = level_of(machine, read + written, executors)
        line = machine.levels[0].line
        short = np.maximum(1.0, line / (lanes * self.run(configurations)))
        traffic = (Traffic(read, level, "read", short), Traffic(written, level, "write"))
        return Features(vectors * per_vector, 1 / one, traffic, issue, tasks)

    def run(self, configurations: Array) -> Array:
        """Bytes that lie side by side, of each lane."""
        size = self.region.results[0].element.itemsize
        along = self.kind == "transpose" or _keeps_last(self.region)
        unroll = configurations["unroll"] if self.kind == "reduce" else 1
        return np.asarray(size * unroll if along else 1 << 20)

    def ends(self, configurations: Array) -> Array:
        """Vector additions at the ends of rows: accumulators joined, elements left over."""
        reduced = [op for op in self.region.ops if op.name == "reduce"]
        if not reduced or _keeps_last(self.region):
            return np.zeros(len(configurations))
        inner = reduced[0].operands[0].dims[-1]
        rows = math.prod(reduced[0].operands[0].dims[:-1])
        lanes, unroll = configurations["lanes"], configurations["unroll"]
        rest = inner % (lanes * unroll)
        if self.kind == "rows" and self.target.vector_bits == 512:
            rest = -(-rest // lanes)  # masked vectors
        return rows * len(reduced) * (unroll + 2 * np.log2(lanes) + rest)

    def independence(self, machine: Machine, configurations: Array, full: int) -> Array:
        """How much of the arithmetic is not waiting for the addition before it."""
        if not any(op.name == "reduce" for op in self.region.ops):
            return np.ones(len(configurations))
        count = configurations["unroll"] * np.maximum(1, configurations["lanes"] // full)
        unit = machine.unit("f32")
        return np.minimum(1.0, efficiency(unit, count, 1) / efficiency(unit, unit.parallelism, 1))


def _keeps_last(region: Region) -> bool:
    """Whether reductions leave the last dimension, so that lanes run along results."""
    reductions = [op for op in region.ops if op.name == "reduce"]
    return any(op.operands[0].rank - 1 not in op.dimensions for op in reductions)


def _sizes(region: Region) -> list[int]:
    values = [*region.arguments, *region.results, *(op.results[0] for op in region.ops)]
    return [math.prod(value.dims) for value in values]
