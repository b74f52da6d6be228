"""What it costs to start independent kernels as one launch, as nodes of a graph that nothing
orders, or one after the other.

A kernel is the work of all its blocks; `model.seconds` makes seconds of that, and of several
kernels side by side as of one whose blocks are theirs. What differs is how often something begins:
nodes begin one after the other, a launch once. A merged block takes the registers and the shared
memory of the largest, so that fewer of them may be on a multiprocessor at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ...hlo.deciding import at_hint
from ...hlo.graph import Op
from ..machine import Machine, Residency
from .blocks import reached, unit_of
from .model import Features, Traffic, home, seconds

_PLAIN_REGISTERS = 64  # of a thread of a kernel without products, assumed
_REGISTERS = 255  # most of a thread
# Of what is predicted of a GPU, of which nothing has been measured: what gains less may lose.
ERROR = 0.2


class BlockNeeds(NamedTuple):
    """Of one block; registers of each of its threads."""

    threads: int
    shared_bytes: int
    registers: int

    def resident(self, most: Residency) -> int:
        """Such blocks that a multiprocessor holds at a time; 0: none fits."""
        return min(
            most.threads // self.threads,
            most.blocks,
            most.registers // (self.registers * self.threads),
            most.shared_bytes // (self.shared_bytes + most.reserved),
        )


def largest(needs: Sequence[BlockNeeds]) -> BlockNeeds:
    """What a block needs that may be any of them."""
    return BlockNeeds(*map(max, zip(*needs, strict=True)))


class LaunchWork(NamedTuple):
    """One launch: its blocks, what each needs, and what all do together: seconds of one
    multiprocessor's matrix units and other arithmetic, bytes by where they come from."""

    blocks: int
    needs: BlockNeeds
    multiplying: float
    computing: float
    traffic: tuple[Traffic, ...]
    elements: float  # of a block's results


class Tile(NamedTuple):
    """Rows and columns of a product's tile."""

    rows: int
    columns: int


def work_of(
    op: Op, flops: float, moved: float, blocks: int, needs: BlockNeeds, machine: Machine,
    largest_grain: bool, tile: Tile | None,
) -> LaunchWork:  # fmt: skip
    """The work of a kernel that does so many flops and moves so many bytes, each counted once.

    largest_grain: whether products go to the unit with it. tile: of its products, whose rows and
    columns are read again from the second level for each; None: nothing is known of them, and each
    is read once."""
    inner = op.regions[0].walk() if op.regions else (op,)
    products = [one for one in inner if one.definition.pattern == "contract"]
    unit = unit_of(products[0], machine, largest_grain) if products else None
    results = sum(at_hint(value.tensor.size) for value in op.results)
    written = sum(at_hint(v.tensor.size) * v.element.bits / 8 for v in op.results)
    first = max(0.0, moved - written)
    traffic = [
        Traffic(first, home(machine, first)),
        Traffic(written, home(machine, written), "write"),
    ]
    elements = results / blocks
    if unit is None:
        computing = flops / machine.math.simple
        return LaunchWork(blocks, needs, 0.0, computing, tuple(traffic), elements)
    fraction = 1.0
    if tile is not None:
        depth = flops / (2 * max(results, 1))
        width = products[0].operands[0].element.bits / 8
        tiles = results / (tile.rows * tile.columns)
        again = max(0.0, tiles * (tile.rows + tile.columns) * depth * width - first)
        traffic.append(Traffic(again, 1))
        fraction = float(reached(unit, tile.rows, tile.columns))
    multiplying = flops / (unit.flops * fraction)
    return LaunchWork(blocks, needs, multiplying, 0.0, tuple(traffic), elements)


def registers_of(threads: int, products: bool, most: Residency) -> int:
    """Registers of a thread that are assumed where no assembler has said: products take all that a
    thread may have, others few."""
    return min(_REGISTERS if products else _PLAIN_REGISTERS, most.registers // threads)


class Prices(NamedTuple):
    """Predicted seconds of independent kernels: as one launch, as nodes of a graph without edges
    between them, and one after the other. resident, busy: of the one launch, how many blocks a
    multiprocessor holds at a time, and the part of these places that all blocks take, of as many
    waves as there are."""

    merged: float
    branches: float
    in_turn: float
    resident: int
    busy: float

    def gains(self, late: float = 0.0) -> bool:
        """Whether one launch is faster by more than the error of the prediction; late: seconds by
        which what follows waits for the last of them to be ready."""
        return self.merged + late < (1 - ERROR) * min(self.branches, self.in_turn)


def prices(works: Sequence[LaunchWork], machine: Machine, most: Residency) -> Prices:
    """Of at least one launch, whose blocks fit."""
    assert machine.blocks is not None
    begin, fill = machine.sync.step, machine.blocks.fill
    each = [seconds_of([one], one.needs.resident(most), machine) for one in works]
    blocks = sum(one.blocks for one in works)
    apart = blocks / sum(one.blocks / max(1, one.needs.resident(most)) for one in works)
    together = seconds_of(works, apart, machine)
    # Nodes begin one after the other, also where they run together.
    branches = fill + max(begin * len(works) + min(each), begin + together)
    resident = largest([one.needs for one in works]).resident(most)
    looked_up = machine.levels[1].latency  # a block's arguments
    merged = fill + begin + looked_up + seconds_of(works, max(1, resident), machine)
    places = machine.executors * max(1, resident)
    if blocks < places:  # spread over all multiprocessors before any of them has two
        busy = min(1.0, blocks / machine.executors)
    else:
        busy = blocks / (math.ceil(blocks / places) * places)
    return Prices(merged, branches, sum(each) + len(works) * (begin + fill), resident, busy)


def seconds_of(works: Sequence[LaunchWork], resident: float, machine: Machine) -> float:
    """Seconds in which all blocks are done once they run."""
    blocks = sum(one.blocks for one in works)
    features = Features(
        flops=sum(one.computing for one in works), rate=1.0, issue=0.0, tasks=blocks,
        traffic=tuple(traffic for one in works for traffic in one.traffic),
        multiplying=sum(one.multiplying for one in works), resident=max(1.0, resident),
        elements=sum(one.elements * one.blocks for one in works) / blocks,
    )  # fmt: skip
    return float(seconds(features, machine, machine.executors))
