"""A plan as a program of one device: ordinary operations on blocks, and communication between them.

A device is a partition of a grid of one replica. What lies in a block beyond the tensor's end is
whatever there was: nothing reads it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...hlo.build import Builder, build_region
from ...hlo.graph import Value
from ...hlo.groups import Groups, mesh_groups
from ...hlo.sharding import MAX, MIN, SUM, Axis
from ...hlo.types import I32, TensorType
from .blocks import Atoms, BlockState, TensorBlocks, atoms_of
from .interconnect import USUAL, Interconnect
from .moves import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    EXCHANGE,
    PERMUTE,
    REDUCE_SCATTER,
    SLICE,
)
from .reshard import ReshardMove, ReshardPlan
from .transfers import transfers

FOLDS = {SUM: "add", MAX: "maximum", MIN: "minimum"}


def lower(
    plan: ReshardPlan,
    b: Builder,
    value: Value,
    channels: Iterator[int],
    interconnect: Interconnect = USUAL,
) -> Value:
    """The target's block from the source's block `value`, built with `b`.

    value: of the dims `plan.local()[0]`. channels: a positive number for each communication.
    interconnect: who is near whom, where an exchange can choose.
    """
    for move in plan.moves:
        value = _ReshardLowering(plan, b, move, channels, interconnect).run(value)
    return value


class _ReshardLowering:
    def __init__(
        self, plan: ReshardPlan, b: Builder, move: ReshardMove, channels: Iterator[int],
        interconnect: Interconnect,
    ) -> None:  # fmt: skip
        self.b, self.move, self.mesh = b, move, plan.mesh
        self.channels, self.interconnect = channels, interconnect
        self.atoms: Atoms = atoms_of(plan.mesh, (move.before, move.after), prime=False)
        self.blocks: TensorBlocks = self.atoms.blocks(plan.dims, plan.itemsize)
        self.before: BlockState = self.atoms.state(move.before, move.grains[0])
        self.after: BlockState = self.atoms.state(move.after, move.grains[1])

    def run(self, value: Value) -> Value:
        return _KINDS[self.move.kind](self, value)

    # Kinds of moves.

    def slice(self, value: Value) -> Value:
        starts: list[Value] = []
        sizes = self.blocks.local(self.after)
        for dim, (atoms, finer) in enumerate(zip(self.before.dims, self.after.dims, strict=True)):
            minor = finer[len(atoms) :]
            value = self.widened(value, dim, self.blocks.parts(minor) * sizes[dim])
            starts.append(per_device(self.b, self.blocks.index(minor) * sizes[dim]))
        return self.b("dynamic_slice", value, *starts, slice_sizes=sizes)

    def permute(self, value: Value) -> Value:
        """Who holds a block in both states keeps it."""
        sources: dict[tuple[int, ...], list[int]] = {}
        targets: dict[tuple[int, ...], list[int]] = {}
        pairs: list[tuple[int, int]] = []
        moving, held = self.blocks.moving(self.before, self.after), self.blocks.held(self.after)
        for device in range(self.blocks.devices):
            if held[device] and not moving[device]:
                pairs.append((device, device))
                continue
            sources.setdefault(self.place(self.before, device), []).append(device)
            if held[device]:
                targets.setdefault(self.place(self.after, device), []).append(device)
        for place, devices in targets.items():
            pairs += zip(sources[place], devices, strict=False)
        facts = {"source_target_pairs": tuple(sorted(pairs)), **self.channel()}
        return self.b("collective_permute", value, **facts)

    def all_gather(self, value: Value) -> Value:
        dim = self.move.dim
        assert dim is not None
        value = self.b("all_gather", value, all_gather_dim=dim, **self.groups(), **GLOBAL)
        return self.narrowed(value, dim)

    def all_to_all(self, value: Value) -> Value:
        dim, to, count = self.move.dim, self.move.to, self.mesh.parts(self.move.axes)
        assert dim is not None and to is not None
        value = self.widened(value, to, self.size(to) * count)
        value = self.reordered(value, to)
        value = self.b(
            "all_to_all", value, split_dimension=to, concat_dimension=dim, split_count=count,
            **self.groups(),
        )  # fmt: skip
        return self.narrowed(value, dim)

    def reduce_scatter(self, value: Value) -> Value:
        to, count = self.move.to, self.mesh.parts(self.move.axes)
        assert to is not None
        value = self.widened(value, to, self.size(to) * count)
        facts = {"scatter_dimension": to, **self.groups(), **GLOBAL}
        return self.b("reduce_scatter", value, regions=(self.fold(value),), **facts)

    def all_reduce(self, value: Value) -> Value:
        return self.b("all_reduce", value, regions=(self.fold(value),), **self.groups(), **GLOBAL)

    def exchange(self, value: Value) -> Value:
        """Values that are folded come as a dim in front, and are folded in its order."""
        b, dims = self.b, self.blocks.local(self.after)
        folded = self.blocks.folded(self.before, self.after)
        count = self.blocks.parts(folded)
        boxes = transfers(self.mesh, self.blocks, self.before, self.after, self.interconnect)
        facts = {"transfers": tuple(map(tuple, boxes)), **self.channel()}
        if not folded:
            return b("exchange", value, type=value.tensor.with_dims(dims), **facts)
        stacked = b.reshape(value, (1, *value.dims))
        parts = b("exchange", stacked, type=value.tensor.with_dims((count, *dims)), **facts)
        ones, zeros = (1,) * (len(dims) + 1), (0,) * len(dims)
        rows = [
            b.reshape(
                b(
                    "slice", parts, start_indices=(row, *zeros), limit_indices=(row + 1, *dims),
                    strides=ones,
                ),
                dims,
            )
            for row in range(count)
        ]  # fmt: skip
        return functools.reduce(functools.partial(b, self.operation), rows)

    # Parts of them.

    @property
    def operation(self) -> str:
        return FOLDS[self.move.before.reduction]

    def fold(self, value: Value) -> Any:
        scalar = TensorType((), value.element)
        return build_region([scalar, scalar], lambda b, x, y: [b(self.operation, x, y)])

    def size(self, dim: int) -> int:
        """Of a block after the move."""
        return self.blocks.block(dim, self.after.dims[dim], self.after.grain(dim))

    def place(self, state: BlockState, device: int) -> tuple[int, ...]:
        """Which block a device holds, and of which unreduced value."""
        lists = (*state.dims, state.pending)
        return tuple(int(self.blocks.index(atoms)[device]) for atoms in lists)

    def channel(self) -> dict[str, int]:
        return {"channel_id": next(self.channels)}

    def groups(self) -> dict[str, Any]:
        """The groups along the move's axes, as partitions."""
        axes = [(name, self.mesh.size(Axis(name))) for name in self.mesh.names]
        groups: Groups = mesh_groups(axes, self.mesh.device_ids, self.move.axes)
        return {"replica_groups": groups, **self.channel()}

    def widened(self, value: Value, dim: int, size: int) -> Value:
        """Made `size` long with zeros behind, where it is shorter."""
        more = size - value.dims[dim]
        if not more:
            return value
        none = (0,) * value.rank
        high = tuple(more if number == dim else 0 for number in range(value.rank))
        zero = self.b.constant(0, TensorType((), value.element))
        return self.b(
            "pad", value, zero, edge_padding_low=none, edge_padding_high=high,
            interior_padding=none,
        )  # fmt: skip

    def narrowed(self, value: Value, dim: int) -> Value:
        """Cut to the block of the state after the move."""
        limits = list(value.dims)
        limits[dim] = self.size(dim)
        if tuple(limits) == value.dims:
            return value
        starts, steps = (0,) * value.rank, (1,) * value.rank
        return self.b(
            "slice", value, start_indices=starts, limit_indices=tuple(limits), strides=steps
        )

    def reordered(self, value: Value, to: int) -> Value:
        """The parts of a dim in the order of the group, where the atoms come to it in another."""
        group = self.atoms.of(self.move.axes)
        order = self.after.dims[to][len(self.before.dims[to]) :]
        if order == group:
            return value
        sizes = [self.blocks.sizes[atom] for atom in order]
        front, back = value.dims[:to], value.dims[to + 1 :]
        rest = value.dims[to] // self.blocks.parts(order)
        apart = self.b.reshape(value, (*front, *sizes, rest, *back))
        permuted = [to + order.index(atom) for atom in group]
        after = range(to + len(order), apart.rank)
        return self.b.reshape(self.b.transpose(apart, (*range(to), *permuted, *after)), value.dims)


def per_device(b: Builder, numbers: Any) -> Value:
    """The i32 scalar of this device in an array with one entry for each."""
    if not numbers.any():
        return b.constant(np.int32(0))
    table = b.constant(numbers.astype(np.int32))
    device = b.convert(b("partition_id"), I32)
    return b.reshape(b("dynamic_slice", table, device, slice_sizes=(1,)), ())


GLOBAL: dict[str, Any] = {"use_global_device_ids": True}

_KINDS: dict[str, Callable[[_ReshardLowering, Value], Value]] = {
    SLICE: _ReshardLowering.slice,
    PERMUTE: _ReshardLowering.permute,
    ALL_TO_ALL: _ReshardLowering.all_to_all,
    ALL_GATHER: _ReshardLowering.all_gather,
    REDUCE_SCATTER: _ReshardLowering.reduce_scatter,
    ALL_REDUCE: _ReshardLowering.all_reduce,
    EXCHANGE: _ReshardLowering.exchange,
}
