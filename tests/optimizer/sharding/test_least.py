"""What is chosen for small programs, beside the cheapest of all ways to compute them: every
assignment of axes to factors, and of terms that are added later, that `conflicts` accepts."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.conflicts import conflict
from girih.hlo.factors import FactorKind
from girih.hlo.graph import Module, Op, Value, arguments
from girih.hlo.ops.examples import binary_body
from girih.hlo.sharding import SUM, Axis, DimSharding, Mesh, Sharding
from girih.hlo.types import F32, TensorType
from girih.optimizer.cost.assumed import FLOPS_PER_BYTE, MEMORY_PER_BYTE
from girih.optimizer.passes.dce import Dce
from girih.optimizer.sharding.candidates import Ways
from girih.optimizer.sharding.choice import choose
from girih.optimizer.sharding.propagated import Propagated, propagate
from girih.optimizer.sharding.transit import Transit

SIDES = (96, 256)
NEVER = 1e15  # a price beyond all that can be paid


class Way(NamedTuple):
    """One way to compute an operation: how operands and results lie, and the work."""

    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    price: float


def program(seed: int, count: int, mesh: Mesh) -> Module:
    """So many random operations on matrices; some arguments are annotated."""
    r = random.Random(seed)

    def annotated(dims: tuple[int, ...]) -> TensorType:
        kind = TensorType(dims, F32)
        if r.random() < 0.3:
            return kind
        dims_axes: list[list[Axis]] = [[] for _ in dims]
        for name in mesh.names:
            if r.random() < 0.7:
                r.choice(dims_axes).append(Axis(name))
        return kind.with_sharding(Sharding("mesh", tuple(DimSharding(tuple(a)) for a in dims_axes)))

    side = r.choice(SIDES)
    kinds = [annotated((side, side)) for _ in range(r.randint(2, 3))]

    def body(b: Builder, *given: Value) -> list[Value]:
        values = list(given)
        for _ in range(count):
            values.append(_random_operation(b, values, r))
        return [values[-1], r.choice(values[len(given) :])]

    module = build_module(kinds, body)
    return Dce()(Module(dict(module.functions), meshes={"mesh": mesh}))


def _random_operation(b: Builder, values: Sequence[Value], r: random.Random) -> Value:
    """Of the last value or an earlier one, and another."""
    x, y = r.choice(values[-2:]), r.choice(values)
    name = r.choice(
        ("dot_general", "dot_general", "add", "multiply", "tanh", "transpose", "spread")
    )
    if name == "tanh":
        return b("tanh", x)
    if name == "transpose":
        return b("transpose", x, permutation=(1, 0))
    if name == "dot_general":
        return b(
            "dot_general", x, y, lhs_batching_dimensions=(), rhs_batching_dimensions=(),
            lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,),
        )  # fmt: skip
    if name == "spread":
        zero = b.constant(0, TensorType((), F32))
        facts = {"dimensions": (r.randrange(2),)}
        rows = b.op("reduce", [x, zero], facts, binary_body("add", F32)(build_region)).result
        return b(
            "broadcast_in_dim",
            rows,
            type=x.type,
            broadcast_dimensions=(1 - facts["dimensions"][0],),
        )
    return b(name, x, y)


def ways(op: Op, mesh: Mesh) -> list[Way]:
    """All that `conflicts` accepts where whole axes cut factors, or operands are terms of sums."""
    factors = op.definition.shard(op)
    assert factors is not None
    values = (*op.operands, *op.results)
    count = len(op.operands)
    subsets = [
        which
        for size in range(1, count + 1)
        for which in itertools.combinations([n for n in range(count) if values[n].rank], size)
    ]
    choices = [None, *range(len(factors.factors)), *subsets]
    found: dict[tuple[Any, Any], Way] = {}
    for picked in itertools.product(choices, repeat=len(mesh.names)):
        axes: list[tuple[Axis, ...]] = [()] * len(factors.factors)
        over: list[list[Axis]] = [[] for _ in values]
        for name, choice in zip(mesh.names, picked, strict=True):
            if isinstance(choice, int):
                axes[choice] += (Axis(name),)
                if factors.factors[choice].kind is FactorKind.REDUCTION:
                    for number in range(count, len(values)):
                        over[number].append(Axis(name))
            elif choice is not None:
                for number in (*choice, *range(count, len(values))):
                    over[number].append(Axis(name))
        lying = tuple(
            Sharding(
                "mesh",
                tuple(DimSharding(tuple(a for n in dim for a in axes[n])) for dim in dims),
                (),
                mesh.merged(pending),
                SUM,
            )
            for dims, pending in zip(factors.tensors, over, strict=True)
        )
        if not conflict(_typed(op, lying, count), mesh):
            cut = math.prod(map(mesh.parts, axes))
            read = sum(
                value.tensor.bytes / math.prod(mesh.parts(d.axes) for d in how.dims)
                for value, how in zip(values, lying, strict=True)
            )
            price = op.definition.flops(op) / cut / FLOPS_PER_BYTE + read / MEMORY_PER_BYTE
            found.setdefault(
                (lying[:count], lying[count:]), Way(lying[:count], lying[count:], price)
            )
    return list(found.values())


def _typed(op: Op, lying: Sequence[Sharding], count: int) -> Op:
    kinds = [
        v.tensor.with_sharding(s) for v, s in zip((*op.operands, *op.results), lying, strict=True)
    ]
    own = arguments(kinds[:count])
    for value, old in zip(own, op.operands, strict=True):
        if old.op is not None and old.op.name == "constant":  # conflicts looks whether it is zero
            constant = Op(old.op.definition, (), old.op.attributes, (), (value.type,))
            own = tuple(constant.result if v is value else v for v in own)
    return Op(op.definition, own, op.attributes, op.regions, kinds[count:])


def least(found: Propagated, mesh: Mesh) -> float:
    """The lowest price of all combinations of ways: work, and each value brought once in each way
    in which some use wants it."""
    body, transit = found.module.body, Transit(mesh)
    options = [ways(op, mesh) for op in body.ops]
    known: dict[tuple[Value, Sharding, Sharding], float] = {}
    lying = {value: found.shardings[value] for value in body.arguments}
    brought: set[tuple[Value, Sharding]] = set()
    lowest = NEVER

    def bring(values: Sequence[Value], targets: Sequence[Sharding]) -> tuple[float, list[Any]]:
        """What that costs, and which are new."""
        total, new = 0.0, list[Any]()
        for value, target in zip(values, targets, strict=True):
            source = lying[value]
            if source != target and (value, target) not in brought:
                key = value, source, target
                if key not in known:
                    one, other = Ways((source,), ()), Ways((target,), ())
                    known[key] = float(transit.prices(value.tensor, one, other)[0, 0])
                total += known[key]
                brought.add((value, target))
                new.append((value, target))
        return total, new

    def walk(number: int, price: float) -> None:
        nonlocal lowest
        if price >= lowest:
            return
        last = number == len(body.ops)
        op = None if last else body.ops[number]
        takes = body.results if op is None else op.operands
        ends = tuple(found.shardings[value] for value in body.results)
        for way in [Way(ends, (), 0.0)] if last else options[number]:
            more, new = bring(takes, way.operands)
            if last:
                lowest = min(lowest, price + more)
            elif op is not None:
                lying.update(zip(op.results, way.results, strict=True))
                walk(number + 1, price + way.price + more)
            brought.difference_update(new)

    walk(0, 0.0)
    return lowest


ONE, TWO = Mesh((("x", 4),)), Mesh((("x", 2), ("y", 2)))
GAPS = {(ONE, 65): 1.12, (ONE, 88): 1.12, (ONE, 121): 2.05, (ONE, 279): 1.57, (TWO, 5): 1.13}
"""Where the choice costs more than the cheapest: at most so many times as much. In 121 a way that
no neighbour suggests (a contraction that is cut) is not looked at; in the others several operations
would have to change together."""


def ratio(seed: int, mesh: Mesh) -> float:
    found = propagate(program(seed, 3 + seed % (4 if mesh is ONE else 2), mesh))
    best = least(found, mesh)
    assert 0 < best < NEVER
    return choose(found).price / best


@pytest.mark.parametrize("seed", range(60))
def test_the_choice_is_the_cheapest(seed: int) -> None:
    assert ratio(seed, ONE) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("seed", [seed for seed in range(16) if (TWO, seed) not in GAPS])
def test_the_choice_is_the_cheapest_on_two_axes(seed: int) -> None:
    assert ratio(seed, TWO) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("mesh, seed", GAPS)
def test_gaps_that_are_known(mesh: Mesh, seed: int) -> None:
    assert 1.0 - 1e-9 <= ratio(seed, mesh) <= GAPS[mesh, seed]
