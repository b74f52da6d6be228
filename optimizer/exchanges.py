"""Collectives as `exchange` and ordinary operations.

What is folded is folded by ordinary operations on the receiver, in the order of the group's
members. An all-reduce is a reduce-scatter of the flat value and an all-gather. What only the number
of a process decides (that number itself, its block of a value that all have) is what the process
sends to itself, so that one plan serves all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ..hlo.build import Builder
from ..hlo.errors import UnsupportedError
from ..hlo.graph import Op, Region, Value
from ..hlo.groups import Groups, named_by, process_groups
from ..hlo.ops.annotation import ANNOTATIONS
from ..hlo.ops.collectives import Collective, members
from ..hlo.ops.exchange import Transfer, transfers
from ..hlo.ops.manual import COMBINE, ManualLayout, whole_shardings
from ..hlo.sharding import SUM
from ..hlo.types import TensorType

Fold = Callable[[Builder, Value, Value], Value]


class Exchanges:
    """Builds what stands for the collectives of a program of replicas x partitions processes."""

    def __init__(self, replicas: int, partitions: int) -> None:
        self.replicas, self.partitions = replicas, partitions
        self.count = replicas * partitions

    def __call__(self, b: Builder, op: Op, operands: Sequence[Value]) -> Sequence[Value]:
        """What stands for the results; UnsupportedError, without the place, where nothing does."""
        build = _BUILT.get(op.name)
        if build is None:
            raise UnsupportedError("no exchange of boxes stands for it")
        return build(self, b, op, operands)

    # Who takes part.

    def groups(self, op: Op, equal: bool = True, covers: bool = True) -> Groups:
        """The groups of processes. UnsupportedError unless each process is in one, where they have
        to cover all, and all have the same number of members, where these have to be equal."""
        named = members(op) or (tuple(range(named_by(_strategy(op), *self.grid))),)
        found = self.processes(op, named)
        if equal and len({len(group) for group in found}) > 1:
            raise UnsupportedError("its groups have different numbers of members")
        missing = set(range(self.count)) - {number for group in found for number in group}
        if covers and missing:
            raise UnsupportedError(f"process {min(missing)} is in none of its groups")
        return found

    @property
    def grid(self) -> tuple[int, int]:
        return self.replicas, self.partitions

    def processes(self, op: Op, named: Iterable[Sequence[int]]) -> Groups:
        """The processes that groups or pairs of an operation mean."""
        strategy, groups = _strategy(op), tuple(map(tuple, named))
        highest = max((number for group in groups for number in group), default=0)
        if highest >= named_by(strategy, *self.grid):
            sizes = f"num_replicas = {self.replicas}, num_partitions = {self.partitions}"
            raise UnsupportedError(f"it names number {highest}, and the program is for {sizes}")
        return process_groups(strategy, groups, *self.grid)

    # What they do.

    def exchange(
        self, b: Builder, op: Op, value: Value, kind: TensorType, moved: Sequence[Transfer]
    ) -> Value:
        facts = {
            "transfers": tuple(map(tuple, moved)),
            "channel_id": int(self.partitions > 1),  # numbers are partitions, else replicas
            "part_of": op.part_of if op.name == "exchange" else op.name,
        }
        return b.op("exchange", [value], facts, types=[kind]).result

    def own(self, b: Builder, op: Op, choices: Sequence[tuple[Value, Iterable[int]]]) -> Value:
        """Of values of one type, the one that is said to be for this process; zeros without one.
        No process sends to another."""
        kind = choices[0][0].tensor.with_dims((1, *choices[0][0].dims))
        rows = [b.reshape(value, kind.dims) for value, _ in choices]
        table = rows[0] if len(rows) == 1 else b("concatenate", *rows, dimension=0)
        low = (0,) * len(kind.dims)
        moved = [
            Transfer(number, number, _with(low, 0, row), low, kind.dims)
            for row, (_, processes) in enumerate(choices)
            for number in processes
        ]
        return b.reshape(self.exchange(b, op, table, kind, moved), kind.dims[1:])

    def entry(self, b: Builder, op: Op, table: np.ndarray) -> Value:
        """The number that a table of one for each process has for this one."""
        moved = [Transfer(n, n, (n,), (0,), (1,)) for n in range(self.count)]
        numbers = b.constant(table)
        kind = numbers.tensor.with_dims((1,))
        return b.reshape(self.exchange(b, op, numbers, kind, moved), ())

    def number(self, b: Builder, op: Op, operands: Sequence[Value]) -> Sequence[Value]:
        partition = op.name == "partition_id"
        if (self.partitions if partition else self.replicas) == 1:
            return [b.constant(np.uint32(0))]
        numbers = np.arange(self.count, dtype=np.uint32)
        table = numbers % self.partitions if partition else numbers // self.partitions
        return [self.entry(b, op, table.astype(np.uint32))]

    def boxes(self, b: Builder, op: Op, operands: Sequence[Value]) -> Sequence[Value]:
        moved = [
            entry._replace(source=source, target=target)
            for entry in transfers(op)
            for source, target in self.processes(op, ((entry.source, entry.target),))
        ]
        return [self.exchange(b, op, operands[0], op.result.tensor, moved)]

    def permute(self, b: Builder, op: Op, operands: Sequence[Value]) -> Sequence[Value]:
        start, sizes = _origin(operands[0]), operands[0].dims
        moved = [
            Transfer(source, target, start, start, sizes)
            for source, target in self.processes(op, op.source_target_pairs)
        ]
        return [self.exchange(b, op, operands[0], op.result.tensor, moved)]

    def all_gather(self, b: Builder, op: Op, operands: Sequence[Value]) -> Sequence[Value]:
        groups, d = self.groups(op), op.all_gather_dim
        found: list[Value] = []
        for value, result in zip(operands, op.results, strict=True):
            if result.dims[d] != value.dims[d] * len(groups[0]):
                raise UnsupportedError(f"its groups have {len(groups[0])} members, its result not")
            start = _origin(value)
            moved = [
                Transfer(source, target, start, _with(start, d, place * value.dims[d]), value.dims)
                for group in groups
                for place, source in enumerate(group)
                for target in group
            ]
            found.append(self.exchange(b, op, value, result.tensor, moved))
        return found

    def all_to_all(self, b: Builder, op: Op, operands: Sequence[Value]) -> Sequence[Value]:
        groups, split, joined = self.groups(op), op.split_dimension, op.concat_dimension
        if len(groups[0]) != op.split_count:
            raise UnsupportedError(
                f"its groups need {op.split_count} members, have {len(groups[0])}"
            )
        found: list[Value] = []
        for value, result in zip(operands, op.results, strict=True):
            start = _origin(value)
            sizes = _with(value.dims, split, value.dims[split] // op.split_count)
            moved = [
                Transfer(
                    source,
                    target,
                    _with(start, split, into * sizes[split]),
                    _with(start, joined, place * sizes[joined]),
                    sizes,
                )
                for group in groups
                for place, source in enumerate(group)
                for into, target in enumerate(group)
            ]
            found.append(self.exchange(b, op, value, result.tensor, moved))
        return found

    def reduce_scatter(self, b: Builder, op: Op, operands: Sequence[Value]) -> Sequence[Value]:
        groups, d = self.groups(op), op.scatter_dimension
        value = b.convert(operands[0], op.result.element)
        size, rest = divmod(value.dims[d], len(groups[0]))
        if rest or op.result.dims[d] != size:
            raise UnsupportedError(f"its groups have {len(groups[0])} members, its result not")
        bounds = [(n * size, size) for n in range(len(groups[0]))]
        return [self.folded(b, op, value, groups, d, bounds, _fold(op))]

    def all_reduce(self, b: Builder, op: Op, operands: Sequence[Value]) -> Sequence[Value]:
        groups, fold = self.groups(op, equal=False), _fold(op)
        return [
            self.reduced(b, op, b.convert(value, result.element), groups, fold)
            for value, result in zip(operands, op.results, strict=True)
        ]

    def reduced(self, b: Builder, op: Op, value: Value, groups: Groups, fold: Fold) -> Value:
        """The value folded over each group, which all its members get; zeros outside of all."""
        flat = b.reshape(value, (value.tensor.size,))
        found = [(self.summed(b, op, flat, some, fold), some) for some in _by_size(groups)]
        if len(found) == 1 and sum(map(len, groups)) == self.count:
            return b.reshape(found[0][0], value.dims)
        choices = [(one, [n for group in some for n in group]) for one, some in found]
        return b.reshape(self.own(b, op, choices), value.dims)

    def summed(self, b: Builder, op: Op, flat: Value, groups: Groups, fold: Fold) -> Value:
        """A vector folded over groups of equal size."""
        count, size = len(groups[0]), flat.tensor.size
        if count == 1:
            return flat
        cuts = [size * n // count for n in range(count + 1)]
        bounds = [(low, high - low) for low, high in zip(cuts, cuts[1:], strict=False)]
        part = self.folded(b, op, flat, groups, 0, bounds, fold)
        moved = [
            Transfer(source, target, (0,), (low,), (length,))
            for group in groups
            for source, (low, length) in zip(group, bounds, strict=True)
            for target in group
            if length
        ]
        return self.exchange(b, op, part, flat.tensor, moved)

    def folded(
        self,
        b: Builder,
        op: Op,
        value: Value,
        groups: Groups,
        dim: int,
        bounds: Sequence[tuple[int, int]],
        fold: Fold,
    ) -> Value:
        """Of each process the part `bounds` (start, size along `dim`) of its place in its group,
        folded over the group's members; padded with what is of no meaning to the largest part.
        Members behind the last of the bounds get nothing."""
        largest = _with(value.dims, dim, max(size for _, size in bounds))
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
            for target, (low, size) in zip(group, bounds, strict=False)
            if size
        ]
        return self.fold_rows(b, op, value, len(groups[0]), largest, moved, fold)

    def fold_rows(
        self,
        b: Builder,
        op: Op,
        value: Value,
        count: int,
        dims: Sequence[int],
        moved: Sequence[Transfer],
        fold: Fold,
    ) -> Value:
        """So many rows of these dims, filled by the transfers, folded in their order."""
        row = b.reshape(value, (1, *value.dims))
        rows = self.exchange(b, op, row, value.tensor.with_dims((count, *dims)), moved)
        low = (0,) * len(dims)
        parts = [
            b.reshape(
                b(
                    "slice",
                    rows,
                    start_indices=(n, *low),
                    limit_indices=(n + 1, *dims),
                    strides=(1,) * (len(dims) + 1),
                ),
                dims,
            )
            for n in range(count)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = fold(b, total, part)
        return total

    # Collectives with a root.

    def broadcast(self, b: Builder, op: Op, operands: Sequence[Value]) -> Sequence[Value]:
        groups, found = self.groups(op, equal=False, covers=False), list[Value]()
        for number, result in enumerate(op.results):
            value, start = operands[number], _origin(operands[number])
            if not op.has_dynamic_root:
                moved = [
                    Transfer(group[0], target, start, start, value.dims)
                    for group in groups
                    for target in group
                ]
                found.append(self.exchange(b, op, value, result.tensor, moved))
                continue
            dims = (1, *value.dims)
            moved = [
                Transfer(source, target, (0, *start), (place, *start), dims)
                for group in groups
                for place, source in enumerate(group)
                for target in group
            ]
            kind = value.tensor.with_dims((max(map(len, groups)), *value.dims))
            rows = self.exchange(b, op, b.reshape(value, dims), kind, moved)
            zero = b.constant(np.int32(0))
            starts = [_root(b, operands[-1], number), *(zero for _ in start)]
            part = b("dynamic_slice", rows, *starts, slice_sizes=dims)
            found.append(b.reshape(part, value.dims))
        return found

    def reduce(self, b: Builder, op: Op, operands: Sequence[Value]) -> Sequence[Value]:
        groups, fold = self.groups(op, equal=False, covers=False), _fold(op)
        found: list[Value] = []
        for number, result in enumerate(op.results):
            value = b.convert(operands[number], result.element)
            if op.has_dynamic_root:
                total = self.reduced(b, op, value, groups, fold)
                zeros = b.constant(np.zeros((), result.tensor.dtype), total.tensor)
                root = b.broadcast(
                    self.is_root(b, op, operands[-1], number, groups), value.dims, ()
                )
                found.append(b("select", root, total, zeros))
                continue
            flat = b.reshape(value, (value.tensor.size,))
            whole = [(0, flat.tensor.size)]  # the root's part; the others get none
            choices = [
                (self.folded(b, op, flat, some, 0, whole, fold), [group[0] for group in some])
                for some in _by_size(groups)
            ]
            found.append(b.reshape(self.own(b, op, choices), value.dims))
        return found

    def is_root(self, b: Builder, op: Op, roots: Value, number: int, groups: Groups) -> Value:
        """Whether this process is the root, for one of the operands."""
        table = np.full(self.count, -1, np.int32)
        for group in groups:
            table[list(group)] = np.arange(len(group))
        return b.compare("EQ", _root(b, roots, number), self.entry(b, op, table))

    # Manual computations.

    def blocks(self, b: Builder, op: Op, operands: Sequence[Value]) -> list[Value]:
        """What each process has of the operands of a manual computation."""
        layout = self.layout(op)
        found: list[Value] = []
        for value, inner, cuts, sharding in zip(
            operands, op.regions[0].arguments, op.in_shardings, whole_shardings(op), strict=False
        ):
            summed = sharding is not None and sharding.reduction == SUM
            pending = layout.pending(sharding) if summed else []
            if not isinstance(value.type, TensorType) or value.dims == inner.dims and not pending:
                found.append(value)
                continue
            low = _origin(value)
            moved = [
                Transfer(n, n, tuple(axis.start for axis in window), low, inner.dims)
                for n in range(self.count)
                if not layout.index(n, pending)  # the first holds the sum, the others add nothing
                for window in (layout.window(n, cuts, value.dims),)
            ]
            found.append(self.exchange(b, op, value, value.tensor.with_dims(inner.dims), moved))
        return found

    def whole(self, b: Builder, op: Op, values: Sequence[Value]) -> list[Value]:
        """The whole results of a manual computation, of the blocks that processes have."""
        layout, stated = self.layout(op), whole_shardings(op)[len(op.in_shardings) :]
        found: list[Value] = []
        for value, result, cuts, sharding in zip(
            values, op.results, op.out_shardings, stated, strict=True
        ):
            if (
                not isinstance(value.type, TensorType)
                or value.dims == result.dims
                and not (layout.pending(sharding))
            ):
                found.append(value)
                continue
            low, dims, moved = _origin(value), result.dims, list[Transfer]()
            for target in range(self.count):
                for piece in layout.pieces(target, cuts, sharding, dims):
                    start = (piece.term, *(axis.start for axis in piece.window))
                    sizes = (1, *value.dims)
                    moved.append(Transfer(piece.member, target, (0, *low), start, sizes))
            terms = 1 + max(transfer.target_start[0] for transfer in moved)
            name = COMBINE[SUM if sharding is None else sharding.reduction]

            def fold(b: Builder, left: Value, right: Value, name: str = name) -> Value:
                return b(name, left, right)

            found.append(self.fold_rows(b, op, value, terms, dims, moved, fold))
        return found

    def layout(self, op: Op) -> ManualLayout:
        layout = ManualLayout(op)
        if self.grid != (1, layout.count):
            raise UnsupportedError(
                f"its mesh has {layout.count} devices, and the program is for {self.replicas} "
                f"replicas of {self.partitions} partitions"
            )
        return layout


_BUILT: dict[str, Callable[[Exchanges, Builder, Op, Sequence[Value]], Sequence[Value]]] = {
    "partition_id": Exchanges.number,
    "replica_id": Exchanges.number,
    "exchange": Exchanges.boxes,
    "collective_permute": Exchanges.permute,
    "all_gather": Exchanges.all_gather,
    "all_to_all": Exchanges.all_to_all,
    "reduce_scatter": Exchanges.reduce_scatter,
    "all_reduce": Exchanges.all_reduce,
    "cross-replica-sum": Exchanges.all_reduce,
    "collective_broadcast": Exchanges.broadcast,
    "collective_reduce": Exchanges.reduce,
}


def _strategy(op: Op) -> str:
    assert isinstance(op.definition, Collective)
    return op.definition.strategy(op)


def _by_size(groups: Groups) -> list[Groups]:
    """The groups of each size, in the order in which sizes appear."""
    found: dict[int, list[tuple[int, ...]]] = {}
    for group in groups:
        found.setdefault(len(group), []).append(group)
    return [tuple(some) for some in found.values()]


def _root(b: Builder, roots: Value, number: int) -> Value:
    """Entry `number` of the roots, a scalar."""
    part = b(
        "slice", roots, start_indices=(number,), limit_indices=(number + 1,), strides=(1,)
    )  # fmt: skip
    return b.reshape(part, ())


def _fold(op: Op) -> Fold:
    """The computation of a reduction, on two tensors."""
    if not op.regions:
        return lambda b, left, right: b("add", left, right)
    return lambda b, left, right: _combined(b, op.regions[0], left, right)


def _combined(b: Builder, computation: Region, left: Value, right: Value) -> Value:
    """The computation, which takes two scalars, on two tensors of equal dims."""
    known = dict(zip(computation.arguments, (left, right), strict=True))
    for op in computation.ops:
        dims = left.dims
        if op.name == "constant":
            known[op.result] = b.broadcast(b.append(op).result, dims, ())
            continue
        if op.name in ANNOTATIONS:
            known.update(zip(op.results, (known[value] for value in op.operands), strict=True))
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
