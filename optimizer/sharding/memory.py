"""An estimate of what one device holds: of values that lie in memory, from where they are made to
their last use.

Not held are constants, and what is computed element by element, or moved, for one use: that is
fused with its reader, which reads what it is made of. Arguments and weights are held all the time,
results from where they are made to the end; no memory is used twice for a donated argument. The
arena of a compiled program, whose fusion and order differ, is not known here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...hlo.graph import Module, Op, Region, Value
from ...hlo.sharding import Mesh, Sharding
from ...hlo.types import TensorType

_FUSED = ("elementwise", "index")


@dataclass(frozen=True)
class PerDeviceMemory:
    """Bytes that one device holds. `arguments`: of blocks of arguments and weights; `temporaries`:
    the most of all other values at one time."""

    arguments: int
    temporaries: int

    @property
    def total(self) -> int:
        return self.arguments + self.temporaries


def memory_of(module: Module) -> PerDeviceMemory:
    """module: at level DECIDED."""
    lifetimes = Lifetimes(module.body)
    held = np.zeros(lifetimes.end + 2)
    always = 0
    for value, (start, end) in lifetimes.spans.items():
        sharding = value.tensor.sharding
        assert sharding is not None
        size = local_bytes(value.tensor, sharding, module.meshes[sharding.mesh])
        if start < 0:
            always += size
        else:
            held[start] += size
            held[end + 1] -= size
    return PerDeviceMemory(always, int(held.cumsum().max(initial=0.0)))


def local_bytes(kind: TensorType, sharding: Sharding, mesh: Mesh) -> int:
    """Bytes of a device's block, the largest one's."""
    return math.prod(sharding.local_dims(mesh, kind.dims)) * kind.element.bits // 8


class Lifetimes:
    """`spans`: value that is held -> numbers of the operations that make and that last use it; of
    arguments and weights the first is -1. `end`: the number behind all operations."""

    def __init__(self, body: Region) -> None:
        order = list(_operations(body))
        self.end = len(order)
        uses: Counter[Value] = Counter(body.results)
        for op in order:
            uses.update(op.operands)
        last: dict[Value, int] = dict.fromkeys(body.results, self.end)
        for number, op in reversed(list(enumerate(order))):
            reader = number
            if any(_is_fused(op, uses[value]) for value in op.results):
                reader = max(last.get(value, number) for value in op.results)
            for value in op.operands:
                last[value] = max(reader, last.get(value, 0))
        self.spans: dict[Value, tuple[int, int]] = {
            value: (-1, self.end) for value in body.arguments if isinstance(value.type, TensorType)
        }
        for number, op in enumerate(order):
            for value in op.results:
                if not isinstance(value.type, TensorType):
                    continue
                if op.name == "weight":
                    self.spans[value] = -1, self.end
                elif not _is_fused(op, uses[value]):
                    self.spans[value] = number, last.get(value, number)


def _operations(region: Region) -> Iterator[Op]:
    """In program order; control flow before what it holds, whose values lie in its results."""
    for op in region.ops:
        yield op
        if op.definition.flow:
            for body in op.regions:
                yield from _operations(body)


def _is_fused(op: Op, uses: int) -> bool:
    pattern = op.definition.pattern
    return pattern == "source" or pattern in _FUSED and uses < 2
