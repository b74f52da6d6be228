"""Random decided programs: each operation's factors are cut by random axes, and values are
resharded between what they have and what a use wants."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from girih.hlo.build import Builder
from girih.hlo.distributed import interpret_parallel
from girih.hlo.factors import Dims, FactorKind, Factors
from girih.hlo.graph import Module, Op, Region, Value, arguments
from girih.hlo.ops import numerics
from girih.hlo.placement import cut, joined
from girih.hlo.sharding import SUM, Axis, DimSharding, Mesh, Sharding, replicated
from girih.hlo.types import TensorType
from girih.optimizer.sharding.partition.program import WHOLE

Cuttable = Callable[[Op, Factors, int], bool]
Axes = tuple[Axis, ...]


class Decider:
    """Decides for each operation of a module without regions at random."""

    def __init__(self, mesh: Mesh, cuttable: Cuttable, generator: random.Random) -> None:
        self.mesh, self.cuttable, self.generator = mesh, cuttable, generator
        self.b = Builder(check=False)

    def module(self, module: Module) -> Module:
        body = module.body
        own = arguments([self.given(value) for value in body.arguments])
        values = dict(zip(body.arguments, own, strict=True))
        for op in body.ops:
            new = self.op(op, [values[value] for value in op.operands])
            values.update(zip(op.results, new.results, strict=True))
        results = [self.moved(values[value], self.random(value)) for value in body.results]
        region = Region(own, self.b.ops, results)
        return Module({"main": module.main.with_body(region)}, meshes={"mesh": self.mesh})

    def given(self, value: Value) -> TensorType:
        return value.tensor.with_sharding(self.random(value))

    def random(self, value: Value) -> Sharding:
        """Any axes on any dims of more than one element."""
        dims: list[list[Axis]] = [[] for _ in value.dims]
        places = [n for n, size in enumerate(value.dims) if size != 1]
        for name in self.mesh.names:
            if places and self.generator.random() < 0.6:
                dims[self.generator.choice(places)].append(Axis(name))
        return Sharding("mesh", tuple(DimSharding(tuple(axes)) for axes in dims))

    def moved(self, value: Value, wanted: Sharding) -> Value:
        if value.tensor.sharding == wanted:
            return value
        return self.b("sharding_constraint", value, type=value.tensor.with_sharding(wanted))

    def op(self, op: Op, operands: Sequence[Value]) -> Op:
        factors = op.definition.shard(op)
        assert factors is not None
        axes = self.assigned(op, factors)
        pending: list[Axis] = []
        reduction = SUM
        for factor, cuts in zip(factors.factors, axes, strict=True):
            if factor.kind in (FactorKind.REDUCTION, FactorKind.REPLICATE) and cuts:
                pending += cuts
                reduction = factor.reduction
        kept = [
            () if factor.kind is FactorKind.REPLICATE else cuts
            for factor, cuts in zip(factors.factors, axes, strict=True)
        ]
        taken = [
            self.moved(value, self.sharding(dims, axes))
            for value, dims in zip(operands, factors.operands, strict=True)
        ]
        types = [
            result.tensor.with_sharding(self.sharding(dims, kept, pending, reduction))
            for result, dims in zip(op.results, factors.results, strict=True)
        ]
        sealed = op.definition.sealed
        regions = op.regions if sealed else [self.scalars(region) for region in op.regions]
        new = Op(op.definition, taken, op.attributes, regions, types, op.origin)
        return self.b.append(new)

    def assigned(self, op: Op, factors: Factors) -> list[Axes]:
        """Random axes for factors that may be cut. Of a dim that holds several only the major one
        is cut, by what divides it."""
        found: list[Axes] = [()] * len(factors.factors)
        free = list(self.mesh.names)
        self.generator.shuffle(free)
        numbers = [n for n in range(len(found)) if self.cuttable(op, factors, n)]
        kinds: list[str] = []
        for number in self.generator.sample(numbers, len(numbers)):
            factor = factors.factors[number]
            held = [dim for dims in factors.tensors for dim in dims if number in dim]
            if any(dim[0] != number for dim in held):
                continue
            if factor.kind is FactorKind.REDUCTION and kinds and factor.reduction not in kinds:
                continue
            chosen: list[Axis] = []
            while free and self.generator.random() < 0.7:
                parts = self.mesh.parts([*chosen, Axis(free[-1])])
                if any(len(dim) > 1 for dim in held) and factor.size % parts:
                    break
                if not factor.fits(parts):
                    break
                chosen.append(Axis(free.pop()))
            if chosen and factor.kind is FactorKind.REDUCTION:
                kinds.append(factor.reduction)
            found[number] = tuple(chosen)
        return found

    def sharding(
        self, dims: Dims, axes: Sequence[Axes], pending: Sequence[Axis] = (), reduction: str = SUM
    ) -> Sharding:
        cuts = tuple(
            DimSharding(tuple(axis for number in dim for axis in axes[number])) for dim in dims
        )
        return Sharding("mesh", cuts, (), tuple(pending), reduction)

    def scalars(self, region: Region) -> Region:
        """A body that computes one element."""

        def typed(value: Value) -> TensorType:
            return value.tensor.with_sharding(replicated("mesh", value.rank))

        own = arguments([typed(value) for value in region.arguments])
        values = dict(zip(region.arguments, own, strict=True))
        ops: list[Op] = []
        for op in region.ops:
            operands = [values[value] for value in op.operands]
            types = [typed(value) for value in op.results]
            new = Op(op.definition, operands, op.attributes, (), types, op.origin)
            values.update(zip(op.results, new.results, strict=True))
            ops.append(new)
        return Region(own, ops, [values[value] for value in region.results])


def run(local: Module, inputs: Sequence[np.ndarray], padding: Any = 0) -> list[np.ndarray]:
    """A local program on all devices, from whole inputs to whole results."""
    (mesh,) = local.meshes.values()
    given = [facts[WHOLE] for facts in local.main.argument_attributes]
    columns = [
        cut(x, kind.sharding, mesh, padding if numerics.is_float(x.dtype) else 1)
        for x, kind in zip(inputs, given, strict=True)
    ]
    rows = [[column[device] for column in columns] for device in range(mesh.devices)]
    found = interpret_parallel(local, rows, num_partitions=mesh.devices).results
    gives = [facts[WHOLE] for facts in local.main.result_attributes]
    return [
        joined([row[n] for row in found], kind.sharding, mesh, kind.dims)
        for n, kind in enumerate(gives)
    ]
