"""Windows along cut dims: random ones equal the whole program, and devices receive exactly what
`inner_bytes` says; what lies beyond the tensors' ends is NaN, and reaches nothing."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.distributed import interpret_parallel
from girih.hlo.factors import FactorKind, Factors
from girih.hlo.graph import Function, Module, Op, Region, arguments
from girih.hlo.interpret import interpret
from girih.hlo.ops.convolution import numbers
from girih.hlo.ops.examples import binary_body
from girih.hlo.placement import cut, joined
from girih.hlo.sharding import Axis, DimSharding, Mesh, Sharding
from girih.hlo.types import F32, TensorType
from girih.optimizer.sharding.inner import inner_bytes
from girih.optimizer.sharding.partition.partitioner import sharding_of
from girih.optimizer.sharding.partition.program import partition

SIZES = (1, 3, 7, 10, 16)
MESHES = (
    Mesh((("x", 2),)),
    Mesh((("x", 4),)),
    Mesh((("x", 8),)),
    Mesh((("x", 2), ("y", 3)), (3, 1, 0, 2, 5, 4)),
)
Axes = tuple[Axis, ...]


def decided(op: Op, factors: Factors, axes: Sequence[Axes], mesh: Mesh) -> Module:
    """The operation on arguments that are cut as its factors are; its results reduced."""
    pending = [
        (axis, factor.reduction)
        for factor, cuts in zip(factors.factors, axes, strict=True)
        for axis in cuts
        if factor.kind is FactorKind.REDUCTION
    ]

    def typed(kind: TensorType, dims: Any, left: bool = False) -> TensorType:
        cuts = tuple(DimSharding(tuple(a for n in dim for a in axes[n])) for dim in dims)
        axes_left = tuple(axis for axis, _ in pending) if left else ()
        reduction = pending[0][1] if axes_left else "sum"
        return kind.with_sharding(Sharding("mesh", cuts, (), axes_left, reduction))

    own = arguments(
        [typed(v.tensor, dims) for v, dims in zip(op.operands, factors.operands, strict=True)]
    )
    b = Builder(check=False)
    types = [
        typed(v.tensor, dims, True) for v, dims in zip(op.results, factors.results, strict=True)
    ]
    new = b.append(Op(op.definition, own, op.attributes, op.regions, types))
    results = [
        b(
            "sharding_constraint", v,
            type=v.tensor.with_sharding(Sharding("mesh", sharding_of(v.tensor).dims)),
        )
        if pending
        else v
        for v in new.results
    ]  # fmt: skip
    return Module({"main": Function("main", Region(own, b.ops, results))}, meshes={"mesh": mesh})


def check(module: Module, axes: Sequence[Axes], mesh: Mesh) -> float:
    """Runs both, compares, and gives the bytes that a device receives inside of the operation."""
    (op,) = module.body.ops
    factors = op.definition.shard(op)
    assert factors is not None
    size = inner_bytes(op, factors, axes, mesh)
    assert size is not None
    generator = np.random.default_rng(0)
    inputs = [generator.integers(-4, 5, v.dims).astype(np.float32) for v in module.body.arguments]
    wanted = interpret(module, inputs)
    made = decided(op, factors, axes, mesh)
    columns = [
        cut(x, sharding_of(v.tensor), mesh, np.nan)
        for x, v in zip(inputs, made.body.arguments, strict=True)
    ]
    rows = [[column[device] for column in columns] for device in range(mesh.devices)]
    ran = interpret_parallel(partition(made), rows, num_partitions=mesh.devices)
    for n, (value, whole) in enumerate(zip(made.body.results, wanted, strict=True)):
        got = joined([row[n] for row in ran.results], sharding_of(value.tensor), mesh, value.dims)
        np.testing.assert_allclose(got, whole, rtol=1e-5, atol=1e-5)
    moved = sum(count.get("exchange", 0) + count.get("all_gather", 0) for count in ran.received)
    assert moved / mesh.devices == pytest.approx(size, abs=1e-9)
    return size


def assigned(module: Module, mesh: Mesh, generator: random.Random) -> list[Axes]:
    """Random axes for random factors, such that the operation can be cut so."""
    (op,) = module.body.ops
    factors = op.definition.shard(op)
    assert factors is not None
    for _ in range(20):
        found: list[Axes] = [()] * len(factors.factors)
        for name in mesh.names:
            number = generator.randrange(len(found)) if found else None
            if number is not None:
                found[number] += (Axis(name),)
        if inner_bytes(op, factors, found, mesh) is not None:
            return found
    return [()] * len(factors.factors)


def one(
    name: str, shapes: Sequence[Sequence[int]], regions: Any = None, **attributes: Any
) -> Module:
    kinds = [TensorType(tuple(shape), F32) for shape in shapes]
    bodies = regions(build_region) if regions else ()
    return build_module(kinds, lambda b, *v: b.op(name, v, attributes, bodies).results)


def a_slice(r: random.Random) -> Module:
    dims = [r.choice(SIZES) for _ in range(2)]
    starts = [r.randrange(d) for d in dims]
    limits = [r.randint(s + 1, d) for s, d in zip(starts, dims, strict=True)]
    strides = tuple(r.choice((1, 1, 2, 3)) for _ in dims)
    return one(
        "slice", [dims], start_indices=tuple(starts), limit_indices=tuple(limits), strides=strides
    )


def a_pad(r: random.Random) -> Module:
    dims = [r.choice(SIZES) for _ in range(2)]
    gaps = tuple(r.choice((0, 0, 1, 2)) for _ in dims)
    low, high = (tuple(r.randint(0 if d < 3 else -1, 9) for d in dims) for _ in range(2))
    return one(
        "pad", [dims, ()], edge_padding_low=low, edge_padding_high=high, interior_padding=gaps
    )


def a_reverse(r: random.Random) -> Module:
    dims = [r.choice(SIZES) for _ in range(2)]
    return one("reverse", [dims], dimensions=r.choice(((0,), (1,), (0, 1))))


def a_concatenation(r: random.Random) -> Module:
    along, rows = r.randrange(2), r.choice(SIZES)
    shapes = [[rows, rows] for _ in range(r.randint(1, 3))]
    for shape in shapes:
        shape[along] = r.choice((0, *SIZES))
    return one("concatenate", shapes, dimension=along)


def a_reduction(r: random.Random) -> Module:
    while True:
        dims = [r.choice(SIZES) for _ in range(2)]
        attributes = {
            "window_dimensions": tuple(r.randint(1, min(d, 4)) for d in dims),
            "padding": tuple((r.randint(-1, 3), r.randint(-1, 3)) for _ in dims),
            "window_strides": tuple(r.choice((1, 1, 2, 3)) for _ in dims),
            "base_dilations": tuple(r.choice((1, 1, 2)) for _ in dims),
            "window_dilations": tuple(r.choice((1, 1, 2)) for _ in dims),
        }
        body = binary_body(r.choice(("add", "maximum")), F32)
        found = one("reduce_window", [dims, ()], body, **attributes)
        if found.body.results[0].tensor.size:
            return found


def a_convolution(r: random.Random) -> Module:
    while True:
        features, groups = r.choice((1, 2, 4)), r.choice((1, 1, 2))
        kernel = [r.choice((1, 2, 3, 5, 9)) for _ in range(2)]
        batch = r.choice((1, 2, 4))
        by_batch = groups == 2 and batch > 1 and r.random() < 0.5
        image = [batch, r.choice(SIZES), r.choice(SIZES), features * (1 if by_batch else groups)]
        attributes: dict[str, Any] = {
            **numbers(2),
            "padding": tuple((r.randint(-1, 4), r.randint(-1, 4)) for _ in kernel),
            "window_strides": tuple(r.choice((1, 1, 2, 3)) for _ in kernel),
            "lhs_dilation": tuple(r.choice((1, 1, 2)) for _ in kernel),
            "rhs_dilation": tuple(r.choice((1, 1, 2)) for _ in kernel),
            "window_reversal": tuple(r.random() < 0.3 for _ in kernel),
            "batch_group_count" if by_batch else "feature_group_count": groups,
        }
        shapes = [image, [*kernel, features, groups * r.choice((1, 3))]]
        found = one("convolution", shapes, **attributes)
        if found.body.results[0].tensor.size:
            return found


FAMILIES: tuple[Callable[[random.Random], Module], ...] = (
    a_slice, a_pad, a_reverse, a_concatenation, a_reduction, a_convolution,
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("part", range(4))
def test_random_windows(family: Callable[[random.Random], Module], part: int) -> None:
    for seed in range(40):
        generator = random.Random(f"{family.__name__} {part} {seed}")
        module, mesh = family(generator), MESHES[seed % len(MESHES)]
        check(module, assigned(module, mesh, generator), mesh)


EIGHT = Mesh((("x", 8),))


def along(module: Module, operand: int, dim: int, name: str = "x") -> list[Axes]:
    """The major factor of that dim of an operand, cut."""
    (op,) = module.body.ops
    factors = op.definition.shard(op)
    assert factors is not None
    number = factors.operands[operand][dim][0]
    return [(Axis(name),) if n == number else () for n in range(len(factors.factors))]


@pytest.mark.parametrize(
    "kernel, stride, dilation, padding, rows",
    [
        (3, 1, 1, (1, 1), 2), (5, 2, 1, (1, 2), 3), (3, 1, 4, (4, 4), 8), (3, 1, 1, (0, 0), 2),
        (9, 1, 1, (4, 4), None),
    ],
)  # fmt: skip
def test_a_convolution_receives_its_halo(
    kernel: int, stride: int, dilation: int, padding: tuple[int, int], rows: int | None
) -> None:
    """`rows` from neighbours for each device, but what the two at the ends lack; a halo wider than
    a block comes from several."""
    size = 64 if rows else 16
    module = one(
        "convolution", [(1, size, 4, 2), (kernel, 1, 2, 2)], **numbers(2),
        padding=(padding, (0, 0)), window_strides=(stride, 1), rhs_dilation=(dilation, 1),
    )  # fmt: skip
    found = check(module, along(module, 0, 1), EIGHT)
    if rows:
        assert found == rows * 4 * 2 * 4 * 7 / 8
    else:
        lines = [len(set(range(max(0, 2 * k - 4), min(16, 2 * k + 6)))) - 2 for k in range(8)]
        assert found == sum(lines) * 4 * 2 * 4 / 8


def test_a_weight_gradient_receives_the_halo_of_the_convolution() -> None:
    """The places of the window are cut: the kernel's dim and the image's."""
    module = one(
        "convolution", [(2, 64, 4, 2), (64, 4, 2, 2)], **numbers(2), padding=((1, 1), (0, 0))
    )
    found = check(module, along(module, 1, 0), EIGHT)
    assert found == 2 * 2 * 4 * 2 * 4 * 7 / 8


def test_a_concatenation_receives_what_it_lacks() -> None:
    """Two of 64: device k holds 8 of each, and wants 16 of one of them."""
    module = one("concatenate", [(64, 3), (64, 3)], dimension=0)
    found = check(module, along(module, 0, 0), EIGHT)
    wanted = [set(range(16 * k, 16 * k + 16)) for k in range(8)]
    held = [{*range(8 * k, 8 * k + 8), *range(64 + 8 * k, 72 + 8 * k)} for k in range(8)]
    lacking = itertools.starmap(set.difference, zip(wanted, held, strict=True))
    assert found == sum(map(len, lacking)) * 3 * 4 / 8
