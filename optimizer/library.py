"""Which collectives the library of the processes computes, in place of exchanges and our own sums.

A machine that was calibrated under a launcher says what both cost; the choice is made when the
program is compiled, so that all processes have the same plan. A library adds in an order of its
own, so that its sums need the licence to reassociate; what only moves has the same bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..hlo.graph import Op
from ..hlo.groups import Groups
from .machine import KINDS, CommunicationCost, Machine, nearest

COLLECTIVES = tuple(kind for kind in KINDS if kind != "exchange")
BETWEEN = KINDS  # operations that are left in a program of processes
SUMMED = ("f32", "f64", "i32", "i64", "ui32", "ui64")  # whose sums every library has
_EXACT = ("i32", "i64", "ui32", "ui64")


@dataclass(frozen=True)
class Library:
    """What is known of it. rates: of a machine; reassociates: whether sums of rounded numbers may
    have another order."""

    rates: tuple[CommunicationCost, ...] = ()
    reassociates: bool = False

    def takes(self, op: Op, groups: Groups) -> bool:
        """Whether it is faster than exchanges for an operation of these groups of processes."""
        if not self.rates or not able(op, groups):
            return False
        element = op.operands[0].element.name
        if sums(op) and not self.reassociates and element not in _EXACT:
            return False
        rates = {
            engine: nearest(self.rates, op.name, len(groups[0]), engine)
            for engine in ("girih", "library")
        }
        ours, its = rates["girih"], rates["library"]
        if ours is None or its is None:
            return False
        size = received(op, len(groups[0]))
        return its.seconds(size) < ours.seconds(size)


def library_of(machine: Machine | None, reassociates: bool) -> Library:
    return Library(machine.network if machine is not None else (), reassociates)


def sums(op: Op) -> bool:
    return op.name in ("all_reduce", "reduce_scatter")


def able(op: Op, groups: Groups) -> bool:
    """Whether a library can do it: one value, cut and joined along its first dim, in groups of one
    size that hold every process; sums of element types that all libraries have."""
    if op.name not in COLLECTIVES or len(op.operands) != 1 or not groups:
        return False
    value, result = op.operands[0], op.result
    if not value.tensor.is_static or value.tensor.size == 0 or value.element != result.element:
        return False
    if len({len(group) for group in groups}) > 1 or len(groups[0]) < 2:
        return False
    if op.name == "all_gather":
        return op.all_gather_dim == 0
    if op.name == "all_to_all":
        return op.split_dimension == op.concat_dimension == 0
    if op.name == "reduce_scatter" and op.scatter_dimension != 0:
        return False
    return value.element.name in SUMMED and _adds(op)


def received(op: Op, members: int) -> float:
    """Bytes that a process receives, on average, where nothing is sent twice."""
    value = op.result if op.name == "all_gather" else op.operands[0]
    size = math.prod(value.dims) * value.element.dtype.itemsize * (members - 1) / members
    return 2 * size if op.name == "all_reduce" else size


def _adds(op: Op) -> bool:
    region = op.regions[0]
    ops = list(region.ops)
    return (
        len(ops) == 1
        and ops[0].name == "add"
        and set(ops[0].operands) == set(region.arguments)
        and region.results[0] is ops[0].result
        and region.arguments[0].element == op.operands[0].element
    )
