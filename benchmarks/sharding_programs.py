"""Random annotated programs for the comparison of propagation: `program(seed) -> Module`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from girih.hlo.build import Builder, build_region
from girih.hlo.graph import Function, Module, Value
from girih.hlo.ops.manual import mesh_record
from girih.hlo.sharding import Axis, DimSharding, Mesh, Sharding
from girih.hlo.types import F32, I32, TensorType

MESHES = (
    (("x", 2), ("y", 2)),
    (("x", 4), ("y", 2)),
    (("x", 2), ("y", 2), ("z", 2)),
    (("x", 8),),
    (("x", 4), ("y", 3)),
    (("x", 2), ("one", 1), ("y", 4)),
)
SIZES = (2, 4, 4, 8, 8, 8, 16, 3, 6, 12, 5, 1)
SCALAR = TensorType((), F32)
INDEX = TensorType((), I32)


class Author:
    """Writes one operation after another; each value may be used again."""

    def __init__(self, seed: int, mesh: Mesh, values: Sequence[Value], builder: Any) -> None:
        self.chance = random.Random(seed)
        self.mesh, self.b = mesh, builder
        self.values = list(values)
        self.groups = 0

    def pick(self, rank: int | None = None) -> Value:
        """Any value, the later ones more often."""
        fitting = [v for v in self.values if rank is None or v.rank == rank] or self.values
        place = int(len(fitting) * self.chance.random() ** 0.6)
        return fitting[min(place, len(fitting) - 1)]

    def like(self, value: Value) -> Value:
        """Another value of the same dims."""
        fitting = [v for v in self.values if v.dims == value.dims]
        if self.chance.random() < 0.2:
            return self.source(value.tensor)
        return self.chance.choice(fitting)

    def source(self, kind: TensorType) -> Value:
        """A constant, an iota or a broadcast scalar."""
        kind = kind.with_sharding(None)
        way = self.chance.randrange(3)
        if way == 0 and kind.rank:
            dim = self.chance.randrange(kind.rank)
            return self.b("iota", type=kind, iota_dimension=dim)
        if way == 1:
            scalars = [v for v in self.values if not v.rank]
            if scalars:
                return self.b.broadcast(self.chance.choice(scalars), kind.dims, ())
        value = self.b.constant(self.chance.random(), kind)
        return self.b("negate", value) if self.chance.random() < 0.3 else value

    def sharding(self, rank: int, priorities: bool = False) -> Sharding:
        chance = self.chance
        left: list[Axis] = []
        for name, size in self.mesh.axes:
            assert size is not None
            if size in (4, 8) and chance.random() < 0.25:
                low = chance.choice([n for n in (2, 4) if n < size])
                left += [Axis(name, 1, low), Axis(name, low, size // low)]
            else:
                left.append(Axis(name))
        chance.shuffle(left)
        cuts: list[list[Axis]] = [[] for _ in range(rank)]
        barred: list[Axis] = []
        for axis in left:
            draw = chance.random()
            if draw < 0.5 and rank:
                cuts[chance.randrange(rank)].append(axis)
            elif draw < 0.57:
                barred.append(axis)
        dims = []
        closed = chance.random() < 0.4
        for axes in cuts:
            merged = self.mesh.merged(axes)
            opens = not closed and chance.random() < 0.7
            level = chance.randrange(3) if priorities and (merged or opens) else None
            dims.append(DimSharding(merged, opens, level if chance.random() < 0.7 else None))
        names = self.mesh.names
        barred.sort(key=lambda axis: (names.index(axis.name), axis.before))
        return Sharding("mesh", tuple(dims), self.mesh.merged(barred))

    def step(self) -> None:
        ways = (
            self.unary, self.unary, self.binary, self.binary, self.binary, self.transpose,
            self.reshape, self.broadcast, self.reduce, self.dot, self.dot, self.dot, self.slice,
            self.pad, self.concatenate, self.dynamic, self.reverse, self.constraint,
            self.constraint, self.select, self.barrier, self.manual,
        )  # fmt: skip
        made = self.chance.choice(ways)()
        self.values.extend(made)

    def unary(self) -> list[Value]:
        return [self.b(self.chance.choice(("negate", "exponential", "tanh")), self.pick())]

    def binary(self) -> list[Value]:
        left = self.pick()
        pair = [left, self.like(left)]
        self.chance.shuffle(pair)
        return [self.b(self.chance.choice(("add", "multiply", "maximum")), *pair)]

    def select(self) -> list[Value]:
        left = self.pick()
        predicate = self.b.compare("LT", left, self.like(left))
        return [self.b("select", predicate, left, self.like(left))]

    def transpose(self) -> list[Value]:
        value = self.pick()
        order = list(range(value.rank))
        self.chance.shuffle(order)
        return [self.b.transpose(value, order)]

    def reshape(self) -> list[Value]:
        value = self.pick()
        dims = list(value.dims)
        if len(dims) > 1 and self.chance.random() < 0.6:
            at = self.chance.randrange(len(dims) - 1)
            dims[at : at + 2] = [dims[at] * dims[at + 1]]
        elif dims:
            at = self.chance.randrange(len(dims))
            factor = self.chance.choice([n for n in range(1, dims[at] + 1) if dims[at] % n == 0])
            dims[at : at + 1] = [factor, dims[at] // factor]
        return [self.b.reshape(value, dims)] if len(dims) <= 4 else []

    def broadcast(self) -> list[Value]:
        value = self.pick()
        if value.rank > 2:
            return []
        at = self.chance.randrange(value.rank + 1)
        dims = list(value.dims)
        dims.insert(at, self.chance.choice(SIZES))
        return [self.b.broadcast(value, dims, [n for n in range(len(dims)) if n != at])]

    def reduce(self) -> list[Value]:
        value = self.pick()
        if not value.rank:
            return []
        at = self.chance.randrange(value.rank)
        kind = self.chance.choice(("add", "maximum"))
        return [self.b.reduce(kind, value, self.b.constant(0.0, SCALAR), [at])]

    def dot(self) -> list[Value]:
        left = self.pick()
        pairs = [
            (i, right, j)
            for right in self.values
            for i, a in enumerate(left.dims)
            for j, c in enumerate(right.dims)
            if a == c and left.rank + right.rank <= 6
        ]
        if not pairs:
            return []
        i, right, j = self.chance.choice(pairs)
        batch = [
            (p, q)
            for p, a in enumerate(left.dims)
            for q, c in enumerate(right.dims)
            if a == c and p != i and q != j
        ][:1]
        if self.chance.random() < 0.5 or left.rank + right.rank > 5:
            batch = batch if left.rank + right.rank > 4 else []
        p, q = batch[0] if batch else (i, j)
        kept = [left.dims[p] for p, _ in batch]
        kept += [d for n, d in enumerate(left.dims) if n not in (i, p)]
        kept += [d for n, d in enumerate(right.dims) if n not in (j, q)]
        return [
            self.b(
                "dot_general", left, right,
                lhs_batching_dimensions=tuple(p for p, _ in batch),
                rhs_batching_dimensions=tuple(q for _, q in batch),
                lhs_contracting_dimensions=(i,), rhs_contracting_dimensions=(j,),
                type=TensorType(kept, F32),
            )
        ]  # fmt: skip

    def slice(self) -> list[Value]:
        value = self.pick()
        if not value.rank:
            return []
        at = self.chance.randrange(value.rank)
        if value.dims[at] < 2:
            return []
        start, end = [0] * value.rank, list(value.dims)
        end[at] = self.chance.randint(1, value.dims[at])
        strides = (1,) * value.rank
        return [
            self.b(
                "slice",
                value,
                start_indices=tuple(start),
                limit_indices=tuple(end),
                strides=strides,
            )
        ]

    def pad(self) -> list[Value]:
        value = self.pick()
        if not value.rank:
            return []
        high = [0] * value.rank
        high[self.chance.randrange(value.rank)] = self.chance.randint(1, 2)
        zeros = (0,) * value.rank
        return [
            self.b(
                "pad", value, self.b.constant(0.0, SCALAR), edge_padding_low=zeros,
                edge_padding_high=tuple(high), interior_padding=zeros,
            )
        ]  # fmt: skip

    def concatenate(self) -> list[Value]:
        value = self.pick()
        if not value.rank:
            return []
        return [
            self.b(
                "concatenate", value, self.like(value), dimension=self.chance.randrange(value.rank)
            )
        ]

    def reverse(self) -> list[Value]:
        value = self.pick()
        return [self.b("reverse", value, dimensions=(0,))] if value.rank else []

    def dynamic(self) -> list[Value]:
        value = self.pick()
        if not value.rank:
            return []
        at = self.chance.randrange(value.rank)
        starts = [self.b.constant(0, INDEX) for _ in value.dims]
        dims = list(value.dims)
        dims[at] = self.chance.randint(1, dims[at])
        part = self.b("dynamic_slice", value, *starts, slice_sizes=tuple(dims))
        if self.chance.random() < 0.5:
            return [part]
        update = self.b("tanh", part)
        return [self.b("dynamic_update_slice", value, update, *starts)]

    def constraint(self) -> list[Value]:
        value = self.pick()
        kind = value.tensor.with_sharding(self.sharding(value.rank, self.priorities))
        draw = self.chance.random()
        if draw < 0.1:
            direction = self.chance.choice(("NONE", "FORWARD", "BACKWARD"))
            return [self.b("propagation_barrier", value, allowed_direction=direction)]
        if draw < 0.2:
            self.b.op("sharding_group", [value], {"group_id": self.groups})
            same = [v for v in self.values if v.dims == value.dims]
            self.b.op("sharding_group", [same[-1]], {"group_id": self.groups})
            self.groups += 1
            return []
        return [self.b("sharding_constraint", value, type=kind)]

    priorities = False

    def manual(self) -> list[Value]:
        """A body on blocks along the first axis, in which the others are free."""
        value = self.pick()
        name, size = self.mesh.axes[0]
        fitting = [n for n, d in enumerate(value.dims) if size is not None and d % size == 0]
        if not fitting or size is None:
            return []
        at = self.chance.choice(fitting)
        local = TensorType([d // size if n == at else d for n, d in enumerate(value.dims)], F32)
        kinds = ("tanh", "negate")
        region = build_region([local], lambda b, x: [b("add", b(self.chance.choice(kinds), x), x)])
        opened = self.chance.random() < 0.8
        dims = [
            DimSharding((Axis(name),) if n == at else (), opened and self.chance.random() < 0.9)
            for n in range(value.rank)
        ]
        stated = Sharding("mesh", tuple(dims))
        cuts = (tuple((name,) if n == at else () for n in range(value.rank)),)
        facts = {
            "mesh": mesh_record(self.mesh), "manual_axes": (name,),
            "in_shardings": cuts, "out_shardings": cuts, "shardings": (str(stated),) * 2,
        }  # fmt: skip
        return list(self.b.op("sdy.manual_computation", [value], facts, [region]).results)

    def barrier(self) -> list[Value]:
        """Control flow: values whose shardings are joined."""
        draw = self.chance.random()
        first = self.pick()
        second = self.chance.choice(self.values)
        kinds = [value.tensor.with_sharding(None) for value in (first, second)]
        if draw < 0.3:
            made = self.b.op("optimization_barrier", [first, second], types=kinds)
            return list(made.results)
        if draw < 0.65:
            counter = self.b.constant(0, INDEX)

            def condition(b: Any, i: Value, x: Value, y: Value) -> list[Value]:
                return [b.compare("LT", i, b.constant(3, INDEX))]

            def body(b: Any, i: Value, x: Value, y: Value) -> list[Value]:
                inner = Author(self.chance.randrange(1 << 30), self.mesh, [x, y], b)
                for _ in range(3):
                    inner.values.extend(inner.chance.choice((inner.unary, inner.binary))())
                return [
                    b("add", i, b.constant(1, INDEX)),
                    [v for v in inner.values if v.dims == x.dims][-1],
                    [v for v in inner.values if v.dims == y.dims][-1],
                ]

            types = [INDEX, *kinds]
            regions = [build_region(types, condition), build_region(types, body)]
            made = self.b.op("while", [counter, first, second], {}, regions)
            return list(made.results[1:])
        if draw < 0.8:
            return []

        def branch(b: Any) -> list[Value]:
            return [b(self.chance.choice(("negate", "tanh")), first), b("add", second, second)]

        regions = [build_region([], branch), build_region([], branch)]
        made = self.b.op("case", [self.b.constant(0, INDEX)], {}, regions)
        return list(made.results)


def program(seed: int) -> Module:
    """A module with one mesh, some annotated arguments and constraints, and no dead operation."""
    chance = random.Random(seed)
    mesh = Mesh(chance.choice(MESHES))
    sizes = [chance.choice(SIZES) for _ in range(4)]
    b = Builder()
    start = Author(seed, mesh, [], b)
    start.priorities = priorities = chance.random() < 0.3
    types = []
    for _ in range(chance.randint(2, 5)):
        kind = TensorType([chance.choice(sizes) for _ in range(chance.randint(1, 3))], F32)
        said = start.sharding(kind.rank, priorities) if chance.random() < 0.6 else None
        types.append(kind.with_sharding(said))
    types.append(SCALAR)
    arguments = b.arguments(types)
    author = Author(seed + 1, mesh, [], b)
    author.priorities = priorities
    author.values = list(arguments)
    for _ in range(chance.randint(8, 25)):
        author.step()
    used = {
        v for op in b.ops for v in (*op.operands, *(c for r in op.regions for c in r.captures()))
    }
    results = [v for op in b.ops for v in op.results if v not in used]
    results = results or [arguments[0]]
    for number, value in enumerate(results):
        if chance.random() < 0.2:
            kind = value.tensor.with_sharding(author.sharding(value.rank))
            results[number] = b("sharding_constraint", value, type=kind, stated="result")
    module = Module({"main": Function("main", b.region(results))}, meshes={"mesh": mesh})
    return module
