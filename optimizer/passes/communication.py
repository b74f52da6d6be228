"""communication: what processes say to each other as `exchange` and ordinary operations.

The one operation that is left says which box goes from which process to which. What is folded is
folded by ordinary operations on the receiver, in the order of the group's members, so that results
have the same bits on every transport and in the interpreter. An all-reduce is a reduce-scatter of
the flat value and an all-gather. The number of a process is what it sends to itself of a list of
all numbers, so that one plan serves all processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ...hlo.build import Builder
from ...hlo.errors import UnsupportedError
from ...hlo.graph import Module, Op, Region, Value
from ...hlo.groups import Groups, named_by, process_groups
from ...hlo.ops.collectives import Collective, members
from ...hlo.ops.exchange import Transfer, transfers
from ...hlo.processes import grid_of
from ...hlo.types import UI32, TensorType
from ...hlo.verify import INLINED, Level
from ..licence import BITWISE, Ledger
from ..regions import rewritten


@dataclass(frozen=True)
class Communication:
    """INLINED -> INLINED: of a program of several processes, `exchange` is the only operation that
    communicates; UnsupportedError lists the operations that cannot be made of it.
    """

    name: ClassVar[str] = "communication"
    takes: ClassVar[Level] = INLINED
    gives: ClassVar[Level] = INLINED
    ledger: Ledger = field(default_factory=Ledger, compare=False)

    def __call__(self, module: Module) -> Module:
        grid = grid_of(module)
        communicating = [op for op in module.walk() if op.definition.communicates]
        if grid == (1, 1) or not communicating:
            return module
        if 1 not in grid:
            raise UnsupportedError(
                f"the program is for {grid[0]} replicas of {grid[1]} partitions; compiled programs "
                "have replicas or partitions, not both: export it for one mesh of all devices"
            )
        rewrite = _Rewrite(self.ledger, *grid)
        body = rewritten(module.body, {}, rewrite.change, module.body.arguments)
        if rewrite.blockers:
            raise UnsupportedError("\n".join([_HEAD, *rewrite.blockers]))
        return module.with_main(body)


_HEAD = (
    "these operations cannot be compiled for several processes; the interpreter runs them "
    "(girih.interpret_parallel):"
)


class _Rewrite:
    def __init__(self, ledger: Ledger, replicas: int, partitions: int) -> None:
        self.ledger, self.replicas, self.partitions = ledger, replicas, partitions
        self.blockers: list[str] = []

    def change(self, b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
        """Build what stands for an operation that communicates."""
        if not op.definition.communicates:
            return False
        operands = [mapping.get(value, value) for value in op.operands]
        with b.at(op.origin):
            try:
                results = self.built(b, op, operands)
            except UnsupportedError as error:
                self.blockers.append(f"  {op.place}{op.name}: {error}")
                results = op.results
        self.ledger.record("communication", BITWISE, op)
        mapping.update(zip(op.results, results, strict=True))
        return True

    def built(self, b: Builder, op: Op, operands: Sequence[Value]) -> Sequence[Value]:
        if op.name in ("partition_id", "replica_id"):
            return [self.number(b, op)]
        if op.name == "exchange":
            moved = [
                entry._replace(source=source, target=target)
                for entry in transfers(op)
                for source, target in self.pairs(op, ((entry.source, entry.target),))
            ]
            return [self.exchange(b, operands[0], op.result.tensor, moved)]
        if op.name == "collective_permute":
            start, sizes = _origin(operands[0]), operands[0].dims
            moved = [
                Transfer(source, target, start, start, sizes)
                for source, target in self.pairs(op, op.source_target_pairs)
            ]
            return [self.exchange(b, operands[0], op.result.tensor, moved)]
        if op.name == "all_gather":
            return [
                self.all_gather(b, op, value, result.tensor)
                for value, result in zip(operands, op.results, strict=True)
            ]
        if op.name == "all_to_all":
            return [
                self.all_to_all(b, op, value, result.tensor)
                for value, result in zip(operands, op.results, strict=True)
            ]
        if op.name == "reduce_scatter":
            return [self.reduce_scatter(b, op, operands[0])]
        if op.name == "all_reduce":
            return [self.all_reduce(b, op, value) for value in operands]
        count = op.definition.devices(op)
        raise UnsupportedError(f"needs {count} devices, and no exchange of boxes stands for it")

    # Who takes part.

    def groups(self, op: Op) -> Groups:
        """The groups of processes; UnsupportedError unless all have the same number of members."""
        definition = op.definition
        assert isinstance(definition, Collective)
        strategy = definition.strategy(op)
        count = named_by(strategy, self.replicas, self.partitions)
        named = members(op) or (tuple(range(count)),)
        found = process_groups(strategy, named, self.replicas, self.partitions)
        if len({len(group) for group in found}) > 1:
            raise UnsupportedError("its groups have different numbers of members")
        return found

    def pairs(self, op: Op, pairs: Groups) -> Groups:
        definition = op.definition
        assert isinstance(definition, Collective)
        return process_groups(definition.strategy(op), pairs, self.replicas, self.partitions)

    # What they do.

    def exchange(
        self, b: Builder, value: Value, kind: TensorType, moved: Sequence[Transfer]
    ) -> Value:
        facts = {
            "transfers": tuple(map(tuple, moved)),
            "channel_id": int(self.replicas == 1),  # numbers are partitions, else replicas
        }
        return b.op("exchange", [value], facts, types=[kind]).result

    def number(self, b: Builder, op: Op) -> Value:
        count = self.replicas * self.partitions
        own = count == (self.partitions if op.name == "partition_id" else self.replicas)
        if not own:  # there is one partition, or one replica
            return b.constant(np.uint32(0))
        numbers = b.constant(np.arange(count, dtype=np.uint32))
        moved = [Transfer(n, n, (n,), (0,), (1,)) for n in range(count)]
        return b.reshape(self.exchange(b, numbers, TensorType((1,), UI32), moved), ())

    def all_gather(self, b: Builder, op: Op, value: Value, kind: TensorType) -> Value:
        start, d = _origin(value), op.all_gather_dim
        moved = [
            Transfer(source, target, start, _with(start, d, place * value.dims[d]), value.dims)
            for group in self.groups(op)
            for place, source in enumerate(group)
            for target in group
        ]
        return self.exchange(b, value, kind, moved)

    def all_to_all(self, b: Builder, op: Op, value: Value, kind: TensorType) -> Value:
        start, split, joined = _origin(value), op.split_dimension, op.concat_dimension
        sizes = _with(value.dims, split, value.dims[split] // op.split_count)
        moved = [
            Transfer(
                source,
                target,
                _with(start, split, into * sizes[split]),
                _with(start, joined, place * sizes[joined]),
                sizes,
            )
            for group in self.groups(op)
            for place, source in enumerate(group)
            for into, target in enumerate(group)
        ]
        return self.exchange(b, value, kind, moved)

    def reduce_scatter(self, b: Builder, op: Op, value: Value) -> Value:
        groups, d = self.groups(op), op.scatter_dimension
        value = b.convert(value, op.result.element)
        sizes = _with(value.dims, d, value.dims[d] // len(groups[0]))
        bounds = [(n * sizes[d], sizes[d]) for n in range(len(groups[0]))]
        return self.folded(b, op, value, groups, d, bounds)

    def all_reduce(self, b: Builder, op: Op, value: Value) -> Value:
        groups = self.groups(op)
        element = op.regions[0].results[0].element
        flat = b.reshape(b.convert(value, element), (value.tensor.size,))
        count, size = len(groups[0]), value.tensor.size
        cuts = [size * n // count for n in range(count + 1)]
        bounds = [(low, high - low) for low, high in zip(cuts, cuts[1:], strict=False)]
        part = self.folded(b, op, flat, groups, 0, bounds)
        moved = [
            Transfer(source, target, (0,), (low,), (length,))
            for group in groups
            for source, (low, length) in zip(group, bounds, strict=True)
            for target in group
            if length
        ]
        return b.reshape(self.exchange(b, part, flat.tensor, moved), value.dims)

    def folded(
        self,
        b: Builder,
        op: Op,
        value: Value,
        groups: Groups,
        dim: int,
        bounds: Sequence[tuple[int, int]],
    ) -> Value:
        """Of each process the part `bounds` (start, size along `dim`) of its place in its group,
        folded over the group's members; padded with what is of no meaning to the largest part."""
        largest = _with(value.dims, dim, max(size for _, size in bounds))
        row = b.reshape(value, (1, *value.dims))
        moved = [
            Transfer(
                source,
                target,
                (0, *_with(_origin(value), dim, low)),
                (place, *_origin(value)),
                (1, *_with(value.dims, dim, size)),
            )
            for group in groups
            for place, source in enumerate(group)
            for target, (low, size) in zip(group, bounds, strict=True)
            if size
        ]
        count = len(groups[0])
        rows = self.exchange(b, row, TensorType((count, *largest), value.element), moved)
        parts = [
            b.reshape(
                b(
                    "slice",
                    rows,
                    start_indices=(n, *_origin(value)),
                    limit_indices=(n + 1, *largest),
                    strides=(1,) * (value.rank + 1),
                ),
                largest,
            )
            for n in range(count)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = _combined(b, op.regions[0], total, part)
        return total


def _combined(b: Builder, computation: Region, left: Value, right: Value) -> Value:
    """The computation, which takes two scalars, on two tensors of equal dims."""
    known = dict(zip(computation.arguments, (left, right), strict=True))
    for op in computation.ops:
        dims = left.dims
        if op.name == "constant":
            known[op.result] = b.broadcast(b.append(op).result, dims, ())
            continue
        if op.definition.pattern != "elementwise" or op.regions:
            raise UnsupportedError(f"its computation has {op.name}, which is not elementwise")
        if any(value not in known for value in op.operands):
            raise UnsupportedError("its computation reads values around it")
        kinds = [result.tensor.with_dims(dims) for result in op.results]
        operands = [known[value] for value in op.operands]
        new = b.op(op.name, operands, dict(op.attributes), types=kinds)
        known.update(zip(op.results, new.results, strict=True))
    return known[computation.results[0]]


def _origin(value: Value) -> tuple[int, ...]:
    return (0,) * value.rank


def _with(numbers: Sequence[int], place: int, number: int) -> tuple[int, ...]:
    return (*numbers[:place], number, *numbers[place + 1 :])
