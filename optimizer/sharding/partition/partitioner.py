"""What every lowering of an operation to one device's block needs.

A block of a dim of size d that is cut into p parts has c = ceil(d / p) elements; part k holds those
from k * c on. What lies in a block beyond the tensor's end is anything: who reads along such a dim
replaces it first (`masked`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from ....hlo.build import Builder, build_region
from ....hlo.errors import CompilerBug, UnsupportedError
from ....hlo.factors import FactorKind, Factors
from ....hlo.graph import Module, Op, Region, Value, arguments
from ....hlo.groups import Groups, mesh_groups
from ....hlo.sharding import Axis, Mesh, Sharding
from ....hlo.types import I32, TensorType, Type
from ..interconnect import USUAL, Interconnect
from ..lowering import FOLDS, GLOBAL, per_device
from ..parts import to_axes
from ..projection import MERGING, project

Axes = tuple[Axis, ...]
Lowering = Callable[["Partitioner", Op, list[Value]], Sequence[Value]]


class Partitioner:
    """Lowers one program. `b` builds into the region that is being lowered, `values` has the block
    of each of the program's values."""

    def __init__(
        self, module: Module, mesh: Mesh, table: dict[str, Lowering], default: Lowering,
        interconnect: Interconnect = USUAL,
    ) -> None:  # fmt: skip
        self.module, self.mesh, self.interconnect = module, mesh, interconnect
        self.b = Builder(check=False)
        self.start = Builder(check=False)  # what stands before everything else
        self.values: dict[Value, Value] = {}
        self.channels = itertools.count(_highest_channel(module) + 1)
        self.weights: dict[tuple[str, TensorType], Value] = {}  # arguments, in order
        self._table, self._default = table, default
        self._factors: dict[Op, tuple[Factors, tuple[Axes, ...]]] = {}
        self._indices: dict[Axes, Value] = {}
        self._local: dict[TensorType, TensorType] = {}
        self._made: dict[Hashable, Value] = {}  # by the region's builder, and what it is made of

    # What is known of operations and types.

    def factors(self, o: Op) -> Factors:
        return self._of(o)[0]

    def axes(self, o: Op) -> tuple[Axes, ...]:
        """For each factor of the operation the axes that cut it, major to minor."""
        return self._of(o)[1]

    def cuts(self, value: Value) -> tuple[Axes, ...]:
        """For each dim of a value of the program the axes that cut it."""
        return tuple(dim.axes for dim in sharding_of(value.tensor).dims)

    def local(self, kind: Type) -> Type:
        """The type of a device's block; what is no tensor is the same everywhere."""
        if not isinstance(kind, TensorType):
            return kind
        found = self._local.get(kind)
        if found is None:
            dims = sharding_of(kind).local_dims(self.mesh, kind.dims)
            found = self._local[kind] = TensorType(dims, kind.element)
        return found

    def uneven(self, value: Value, dim: int) -> bool:
        """Whether some block of that dim reaches beyond the tensor's end."""
        return bool(value.dims[dim] % self.mesh.parts(self.cuts(value)[dim]))

    # What is different on each device.

    def weight(self, name: str, kind: TensorType) -> Value:
        """This device's block of a weight, whose whole type is `kind`."""
        key = (self.module.weights[name].name, kind)
        if key not in self.weights:
            number = len(self.module.body.arguments) + len(self.weights)
            (self.weights[key],) = arguments([self.local(kind)], number)
        return self.weights[key]

    def index(self, axes: Sequence[Axis]) -> Value:
        """Which of the parts that these axes cut this device holds, an i32 scalar."""
        key = tuple(axes)
        found = self._indices.get(key)
        if found is None:
            numbers = np.zeros(self.mesh.devices, np.int64)
            for place, device in enumerate(self.mesh.device_ids or range(self.mesh.devices)):
                numbers[device] = self.mesh.index(key, self.mesh.coordinates(place))
            found = self._indices[key] = per_device(self.start, numbers)
        return found

    def of_part(self, axes: Axes, numbers: Sequence[int]) -> Value:
        """The i32 scalar of this device's part, of one for each part that these axes cut."""
        b = self.b
        if len({*numbers}) == 1:
            return b.constant(np.int32(numbers[0]))
        table = b.constant(np.asarray(numbers, np.int32))
        return b.reshape(b("dynamic_slice", table, self.index(axes), slice_sizes=(1,)), ())

    def offset(self, value: Value, dim: int) -> Value:
        """Where this device's block of that dim of a value of the program begins, i32."""
        axes = self.cuts(value)[dim]
        size = -(-value.dims[dim] // self.mesh.parts(axes))
        return self.b("multiply", self.index(axes), self.b.constant(np.int32(size)))

    def positions(self, value: Value, dim: int) -> Value:
        """For each element of the block of a value of the program its index along `dim`, i32."""
        b, kind = self.b, self.local(value.type)
        assert isinstance(kind, TensorType)
        numbers = b("iota", type=kind.with_element(I32), iota_dimension=dim)
        if not self.cuts(value)[dim]:
            return numbers
        return b("add", numbers, b.broadcast(self.offset(value, dim), kind.dims, ()))

    def masked(self, o: Op, number: int, fill: Any, dims: Iterable[int] | None = None) -> Value:
        """The block of operand `number`, with `fill` for what lies beyond the tensor's end.

        dims: along which; by default those that hold a factor which is cut and does not pass.
        """
        value = o.operands[number]
        if dims is None:
            dims = self._read(o, number)
        uneven = tuple(dim for dim in dims if self.uneven(value, dim))
        key = self.b, value, uneven, str(fill)
        if key not in self._made:
            found = self.values[value]
            self._made[key] = self.ended(value, found, self.b.constant(fill, found.tensor), uneven)
        return self._made[key]

    def ended(
        self, value: Value, block: Value, fill: Value, dims: Iterable[int] | None = None
    ) -> Value:
        """The block of a value of the program, `fill` (a scalar, or as large) beyond its end along
        these dims; by default all."""
        b = self.b
        for dim in range(value.rank) if dims is None else dims:
            if self.uneven(value, dim):
                end = b.constant(value.dims[dim], block.tensor.with_element(I32))
                inside = b.compare("LT", self.positions(value, dim), end)
                other = fill if fill.rank == block.rank else b.broadcast(fill, block.dims, ())
                block = b("select", inside, block, other)
        return block

    def _read(self, o: Op, number: int) -> list[int]:
        factors, axes = self._of(o)
        return [
            dim
            for dim, held in enumerate(factors.operands[number])
            if any(axes[n] and factors.factors[n].kind is not FactorKind.PASS for n in held)
        ]

    # Communication.

    def channel(self) -> int:
        """A channel that nobody has."""
        return next(self.channels)

    def groups(self, axes: Sequence[Axis]) -> Groups:
        """The devices that differ along these axes only, in the order of their indices."""
        sizes = [(name, self.mesh.size(Axis(name))) for name in self.mesh.names]
        return mesh_groups(sizes, self.mesh.device_ids, axes)

    def all_gather(self, value: Value, dim: int, axes: Sequence[Axis]) -> Value:
        """The blocks of the devices along these axes, one after the other along `dim`."""
        return self.b("all_gather", value, all_gather_dim=dim, **self._group(axes))

    def all_reduce(self, value: Value, axes: Sequence[Axis], reduction: str) -> Value:
        """The sum (max, min) of the blocks of the devices along these axes."""
        scalar = TensorType((), value.element)
        fold = build_region([scalar, scalar], lambda b, x, y: [b(FOLDS[reduction], x, y)])
        return self.b("all_reduce", value, regions=(fold,), **self._group(axes))

    def exchange(
        self, value: Value, dims: Sequence[int], transfers: Iterable[Sequence[Any]]
    ) -> Value:
        """A tensor of `dims` of the boxes that `transfers` say (`hlo/ops/exchange.py`), zeros
        elsewhere. Equal ones of a value are one, in each region."""
        boxes = tuple(map(tuple, transfers))
        key = self.b, value, tuple(dims), boxes
        if key not in self._made:
            self._made[key] = self.b(
                "exchange", value, type=value.tensor.with_dims(dims), transfers=boxes,
                channel_id=self.channel(),
            )  # fmt: skip
        return self._made[key]

    def _group(self, axes: Sequence[Axis]) -> dict[str, Any]:
        return {"replica_groups": self.groups(axes), "channel_id": self.channel(), **GLOBAL}

    # Lowering.

    def region(self, region: Region) -> Region:
        """A region of the program on blocks."""
        outer, self.b = self.b, Builder(check=False)
        own = arguments([self.local(value.type) for value in region.arguments])
        self.values.update(zip(region.arguments, own, strict=True))
        self.run(region)
        found = Region(own, self.b.ops, [self.values[value] for value in region.results])
        self.b = outer
        return found

    def run(self, region: Region) -> None:
        """Append the operations of a region, whose arguments have their blocks."""
        for o in region.ops:
            with self.b.at(o.origin):
                operands = [self.values[value] for value in o.operands]
                lowering = self._table.get(o.name, self._default)
                results = lowering(self, o, operands)
            self.values.update(zip(o.results, results, strict=True))

    def body(self, region: Region) -> Region:
        """A body that computes one element: the same on every device, without shardings."""
        return self.region(region)

    def refuse(self, o: Op, reason: str, remedy: str) -> UnsupportedError:
        """The error for an operation that cannot be lowered as its types say."""
        return UnsupportedError(f"{o.place}{o.name}: {reason}; {remedy}")

    def _of(self, o: Op) -> tuple[Factors, tuple[Axes, ...]]:
        found = self._factors.get(o)
        if found is None:
            factors = o.definition.divide(o)
            if factors is None:
                raise CompilerBug(f"{o.place}{o.name} has no factors: {o.definition.uncut}")
            found = self._factors[o] = factors, axes_of_factors(o, factors, self.mesh)
        return found


def axes_of_factors(o: Op, factors: Factors, mesh: Mesh) -> tuple[Axes, ...]:
    """For each factor of an operation of a decided program the axes that cut it, major to minor."""
    sizes = [factor.size for factor in factors.factors]
    found: list[Axes] = [()] * len(sizes)
    for dims, value in zip(factors.tensors, (*o.operands, *o.results), strict=True):
        if not isinstance(value.type, TensorType):
            continue
        sharding = sharding_of(value.type)
        if not any(dim.axes for dim in sharding.dims):
            continue
        for number, cut in project(dims, sharding, sizes, mesh, o.name in MERGING).factors.items():
            if cut.overflow:
                raise CompilerBug(f"{o.place}{o.name}: {value.type} cuts no whole factors")
            axes = to_axes(mesh, cut.axes)
            if axes and found[number] and axes != found[number]:
                raise CompilerBug(
                    f"{o.place}{o.name}: a factor is cut by {axes} and by {found[number]}"
                )
            found[number] = axes or found[number]
    return tuple(found)


def sharding_of(kind: TensorType) -> Sharding:
    """The sharding of a type of a decided program."""
    if kind.sharding is None:
        if not kind.rank:
            return Sharding("", ())
        raise CompilerBug(f"{kind} has no sharding: only decided programs are partitioned")
    return kind.sharding


def blocks_of(mesh: Mesh, size: int, axes: Sequence[Axis]) -> int:
    """The size of a block of a dim of that size."""
    return -(-size // math.prod(map(mesh.size, axes)))


def _highest_channel(module: Module) -> int:
    return max((op.attributes.get("channel_id", 0) for op in module.walk()), default=0)
