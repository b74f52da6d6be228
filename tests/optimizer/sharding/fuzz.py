"""Random shardings of random programs, through every stage, against the whole program.

    python -m girih.tests.optimizer.sharding.fuzz --cases 150 [FAMILY...]

Of each program arguments and results lie at random. Half of the programs are decided as `choose`
finds cheapest; in the others each operation is computed in any of the ways that it could have been
chosen. Both have to be legal by the check that shares no code with the planner, to give the whole
program's results with NaN in the padding, and to send what was explained before.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import numpy as np

from girih.hlo.build import Builder
from girih.hlo.distributed import interpret_parallel
from girih.hlo.graph import Module, Op, Region, Value, arguments
from girih.hlo.interpret import interpret
from girih.hlo.ops import numerics
from girih.hlo.placement import cut, joined
from girih.hlo.sharding import Axis, DimSharding, Mesh, Sharding, replicated
from girih.hlo.types import TensorType, Type
from girih.hlo.verify import DECIDED, verify
from girih.optimizer.passes.dce import Dce
from girih.optimizer.passes.decompose import KEPT, Decompose
from girih.optimizer.sharding.candidates import Candidates, Lying, Ways
from girih.optimizer.sharding.choice import choose
from girih.optimizer.sharding.communications import communications
from girih.optimizer.sharding.partition.program import WHOLE, partition
from girih.optimizer.sharding.propagated import propagate, retyped
from girih.optimizer.sharding.reshard import ReshardPlan
from girih.optimizer.sharding.transit import NEVER, Transit
from girih.partitioning import DIVIDED

from .families import FAMILIES, Array

MESHES = (
    Mesh((("x", 2),)),
    Mesh((("x", 3),)),
    Mesh((("x", 4),)),
    Mesh((("x", 8),)),
    Mesh((("x", 2), ("y", 2)), (2, 0, 3, 1)),
    Mesh((("x", 3), ("y", 2))),
    Mesh((("x", 2), ("y", 4)), (3, 1, 0, 2, 7, 6, 5, 4)),
)
NAME = "mesh"


def lying(value: Value, mesh: Mesh, r: random.Random) -> Sharding:
    """Each axis cuts any dim, or none."""
    dims: list[list[Axis]] = [[] for _ in value.dims]
    places = [n for n, size in enumerate(value.dims) if size != 1]
    for name in r.sample(mesh.names, len(mesh.names)):
        if places and r.random() < 0.75:
            dims[r.choice(places)].append(Axis(name))
    return Sharding(NAME, tuple(DimSharding(mesh.merged(axes)) for axes in dims))


def annotated(module: Module, mesh: Mesh, r: random.Random) -> Module:
    """Arguments and results lie at random, some of them as propagation finds."""
    body = module.body
    kinds = [
        v.tensor.with_sharding(lying(v, mesh, r)) if r.random() < 0.8 else v.tensor
        for v in body.arguments
    ]
    own = arguments(kinds)
    values = dict(zip(body.arguments, own, strict=True))
    b = Builder(check=False)
    for op in body.ops:
        new = b.append(op.with_operands([values[v] for v in op.operands], op.regions))
        values.update(zip(op.results, new.results, strict=True))
    results = [values[v] for v in body.results]
    for number, value in enumerate(results):
        if r.random() < 0.6:
            kind = value.tensor.with_sharding(lying(value, mesh, r))
            results[number] = b("sharding_constraint", value, type=kind)
    main = module.main.with_body(Region(own, b.ops, results))
    return Module({"main": main}, meshes={NAME: mesh})


class AnyWay:
    """Decides at random: each operation in one of the ways in which it can be computed."""

    def __init__(self, mesh: Mesh, r: random.Random) -> None:
        self.mesh, self.r, self.b = mesh, r, Builder(check=False)
        self.candidates, self.transit = Candidates(mesh, NAME), Transit(mesh)

    def module(self, module: Module) -> Module:
        body = module.body
        own = arguments([self.typed(v.type, lying(v, self.mesh, self.r)) for v in body.arguments])
        values = dict(zip(body.arguments, own, strict=True))
        for op in body.ops:
            new = self.op(op, [values[v] for v in op.operands])
            values.update(zip(op.results, new.results, strict=True))
        results = [self.brought(values[v], lying(v, self.mesh, self.r)) for v in body.results]
        main = module.main.with_body(Region(own, self.b.ops, results))
        return Module({"main": main}, meshes={NAME: self.mesh})

    def op(self, op: Op, operands: Sequence[Value]) -> Op:
        having = [v.tensor.sharding for v in operands]
        only = [self.candidates.ways([s]) for s in having]
        said = [self.random_way(v) for v in (*op.operands, *op.results)]
        wanted = [self.random_way(v) for v in op.results]
        states = self.candidates.of(op, said, only, wanted).states
        reached = [
            state
            for state in states
            if all(
                self.transit.prices(v.tensor, s, self.candidates.ways([w]))[0, 0] < NEVER
                for v, s, w in zip(operands, only, state.operands, strict=True)
            )
        ]
        state = self.r.choice(reached)
        taken = [self.brought(v, w) for v, w in zip(operands, state.operands, strict=True)]
        types = [self.typed(v.type, s) for v, s in zip(op.results, state.results, strict=True)]
        regions = [retyped(body, self.whole, {}) for body in op.regions]
        return self.b.append(Op(op.definition, taken, op.attributes, regions, types, op.origin))

    def random_way(self, value: Value) -> Ways:
        return self.candidates.ways([lying(value, self.mesh, self.r)])

    def brought(self, value: Value, need: Lying) -> Value:
        if need is None or value.tensor.sharding == need:
            return value
        return self.b("sharding_constraint", value, type=value.tensor.with_sharding(need))

    def typed(self, kind: Type, how: Lying) -> Type:
        return kind.with_sharding(how) if isinstance(kind, TensorType) and how else kind

    def whole(self, value: Value) -> Type:
        return self.typed(value.type, replicated(NAME, value.rank))


def padded_with(kind: TensorType) -> Any:
    return np.nan if numerics.is_float(kind.dtype) or kind.dtype.kind == "c" else 1


def check(module: Module, inputs: Sequence[Array], r: random.Random) -> Module:
    """Decides a program at random and requires all that has to hold; the decided program."""
    mesh = r.choice(MESHES)
    module = Dce()(Decompose(KEPT | DIVIDED)(module))
    simple = not any(op.name == "while" for op in module.walk())
    if simple and r.random() < 0.5:
        decided = AnyWay(mesh, r).module(module)
    else:
        decided = choose(propagate(annotated(module, mesh, r))).module
    verify(decided, DECIDED)
    require_equal(module, decided, inputs)
    return decided


def require_equal(module: Module, decided: Module, inputs: Sequence[Array]) -> None:
    """The program of one device gives the whole program's results, and sends what is explained."""
    rows = communications(decided)
    for row in rows:
        require_no_replication(row.plan)
    local = partition(decided)
    (mesh,) = decided.meshes.values()
    taken: list[Any] = [facts[WHOLE] for facts in local.main.argument_attributes]
    given: list[Any] = [facts[WHOLE] for facts in local.main.result_attributes]
    columns = [
        cut(x, kind.sharding, mesh, padded_with(kind))
        for x, kind in zip(inputs, taken, strict=True)
    ]
    ran = interpret_parallel(
        local, [[c[d] for c in columns] for d in range(mesh.devices)], num_partitions=mesh.devices
    )
    for n, (wanted, kind) in enumerate(zip(interpret(module, inputs), given, strict=True)):
        got = joined([device[n] for device in ran.results], kind.sharding, mesh, kind.dims)
        if numerics.is_float(wanted.dtype) or wanted.dtype.kind == "c":
            scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
            np.testing.assert_allclose(got, wanted, 1e-5, 2e-6 * scale, err_msg=str(decided))
        else:
            np.testing.assert_array_equal(got, wanted, err_msg=str(decided))
    if all(row.times is not None for row in rows):
        counted = sum(sum(counts.values()) for counts in ran.received) / mesh.devices
        explained = sum(row.total for row in rows)
        assert abs(counted - explained) < 1e-6, f"sent {counted}, explained {explained}\n{decided}"


def require_no_replication(plan: ReshardPlan | None) -> None:
    """No state between is more replicated than both ends."""
    if plan is None:
        return
    ends = [math.prod(s.local_dims(plan.mesh, plan.dims)) for s in (plan.source, plan.target)]
    for move in plan.moves:
        held = math.prod(move.after.local_dims(plan.mesh, plan.dims))
        assert held <= max(ends), f"{plan}"


def run(family: str, seed: int) -> Module:
    r = random.Random(f"{family} {seed}")
    module, inputs = FAMILIES[family](r)
    return check(module, inputs, r)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=150, help="of each family")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    options = parser.parse_args()
    failed = 0
    for family in options.families or FAMILIES:
        wrong: dict[str, list[int]] = {}
        for seed in range(options.first, options.first + options.cases):
            try:
                run(family, seed)
            except Exception as error:
                text = traceback.format_exception_only(error)[0].splitlines()[0][:150]
                wrong.setdefault(text, []).append(seed)
        count = sum(map(len, wrong.values()))
        failed += count
        print(f"{family}: {options.cases - count} of {options.cases}", flush=True)
        for text, seeds in wrong.items():
            print(f"    {seeds[:8]}{len(seeds):>4}  {text}", flush=True)
    print(f"{failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
