"""Meshes, shardings and values for tests of resharding, all from one seeded generator."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from girih.hlo.build import build_module
from girih.hlo.distributed import ParallelResults, interpret_parallel
from girih.hlo.sharding import MAX, MIN, SUM, Axis, DimSharding, Mesh, Sharding
from girih.hlo.types import F32, TensorType
from girih.optimizer.sharding.lowering import lower
from girih.optimizer.sharding.reshard import ReshardPlan

FOLDS = {SUM: np.sum, MAX: np.max, MIN: np.min}


def all_shardings(names: str, rank: int) -> list[Sharding]:
    """Every sharding of that rank by whole axes."""
    found: dict[Sharding, None] = {}
    for count in range(len(names) + 1):
        for order in itertools.permutations(names, count):
            for cuts in itertools.combinations_with_replacement(range(count + 1), rank - 1):
                ends = (0, *cuts, count)
                parts = (order[low:high] for low, high in itertools.pairwise(ends))
                dims = tuple(DimSharding(tuple(map(Axis, part))) for part in parts)
                found[Sharding("mesh", dims)] = None
    return list(found)


def random_mesh(generator: random.Random) -> Mesh:
    """One to three axes, at most 12 devices, in any order."""
    while True:
        count = generator.randint(1, 3)
        axes = tuple((name, generator.choice((1, 2, 2, 3, 4, 6))) for name in "xyz"[:count])
        mesh = Mesh(axes)
        if 2 <= mesh.devices <= 12:
            break
    if generator.random() < 0.3:
        ids = list(range(mesh.devices))
        generator.shuffle(ids)
        mesh = Mesh(axes, tuple(ids))
    return mesh


def pieces(mesh: Mesh, generator: random.Random) -> list[Axis]:
    """The mesh's axes, some of them in two parts, in any order."""
    found: list[Axis] = []
    for name, size in mesh.axes:
        assert size is not None
        factors = [f for f in range(2, size) if size % f == 0]
        if factors and generator.random() < 0.6:
            middle = generator.choice(factors)
            found += [mesh.part(name, 1, middle), mesh.part(name, middle, size)]
        elif size > 1:
            found.append(Axis(name))
    generator.shuffle(found)
    return found


def random_sharding(
    mesh: Mesh, rank: int, generator: random.Random, unreduced: bool = False
) -> Sharding:
    """Parts of axes in any dim, in none, or unreduced."""
    dims: list[list[Axis]] = [[] for _ in range(rank)]
    pending: list[Axis] = []
    for axis in pieces(mesh, generator):
        places: list[Any] = [*dims, None, pending if unreduced else None]
        place = generator.choice(places)
        if place is not None:
            place.append(axis)
    reduction = generator.choice((SUM, MAX, MIN)) if pending else SUM
    cuts = tuple(DimSharding(mesh.merged(axes)) for axes in dims)
    return Sharding("mesh", cuts, (), mesh.merged(pending), reduction)


Grains = tuple[int, ...]


def left_unreduced(source: Sharding, target: Sharding, generator: random.Random) -> Sharding:
    """The target, unreduced over some of the source's axes that it does not use otherwise."""
    names = {axis.name for axis in target.axes}
    free = [axis for axis in source.unreduced if axis.name not in names]
    kept = tuple(axis for axis in free if generator.random() < 0.5)
    reduction = source.reduction if kept else SUM
    return Sharding(target.mesh, target.dims, (), kept, reduction)


def windows(
    mesh: Mesh, sharding: Sharding, shape: Sequence[int], grains: Grains = ()
) -> Iterator[tuple[int, tuple[int, ...], Any]]:
    """(device, dims of its block, the slices of the whole tensor that it holds), written apart
    from the planner."""
    grains = grains or (1,) * len(shape)
    ids = mesh.device_ids or range(mesh.devices)
    coarse = [size // grain for size, grain in zip(shape, grains, strict=True)]
    local = sharding.local_dims(mesh, coarse)
    block = tuple(size * grain for size, grain in zip(local, grains, strict=True))
    for place, device in enumerate(ids):
        at = mesh.coordinates(place)
        starts = [mesh.index(dim.axes, at) * n for dim, n in zip(sharding.dims, block, strict=True)]
        limits = [min(s + n, d) for s, n, d in zip(starts, block, shape, strict=True)]
        window = tuple(slice(min(s, e), e) for s, e in zip(starts, limits, strict=True))
        yield device, block, window


def scattered(
    mesh: Mesh, sharding: Sharding, values: np.ndarray, padding: float, grains: Grains = ()
) -> list[np.ndarray]:
    """Each device's block; values[u]: the tensor of unreduced number u. What is no part of the
    tensor is `padding`."""
    found: list[Any] = [None] * mesh.devices
    ids = list(mesh.device_ids or range(mesh.devices))
    for device, dims, window in windows(mesh, sharding, values.shape[1:], grains):
        number = mesh.index(sharding.unreduced, mesh.coordinates(ids.index(device)))
        block = np.full(dims, padding, values.dtype)
        part = values[number][window]
        block[tuple(map(slice, part.shape))] = part
        found[device] = block
    return found


def run(plan: ReshardPlan, blocks: Sequence[np.ndarray]) -> ParallelResults:
    """The program of the plan on all devices."""
    kind = TensorType(plan.local()[0], F32)
    module = build_module([kind], lambda b, x: [lower(plan, b, x, itertools.count(1))])
    return interpret_parallel(
        module, [[block] for block in blocks], num_partitions=plan.mesh.devices
    )


def check(plan: ReshardPlan, generator: np.random.Generator, padding: float = np.nan) -> None:
    """The program gives each device its block of the target, and the bytes that the plan says."""
    mesh, source, target = plan.mesh, plan.source, plan.target
    count = mesh.parts(source.unreduced)
    values = generator.integers(-8, 8, (count, *plan.dims)).astype(np.float32)
    found = run(plan, scattered(mesh, source, values, padding, plan.grains[0]))
    assert [sum(r.values()) for r in found.received] == list(plan.received), str(plan)
    apart = values.reshape(*map(mesh.size, source.unreduced), *plan.dims)
    gone = [n for n, axis in enumerate(source.unreduced) if axis not in target.unreduced]
    kept = mesh.parts(target.unreduced)
    whole = FOLDS[source.reduction](apart, tuple(gone)).reshape(kept, *plan.dims)
    wanted = scattered(mesh, target, whole, padding, plan.grains[1])
    for device, _, window in windows(mesh, target, plan.dims, plan.grains[1]):
        inside = tuple(slice(0, s.stop - s.start) for s in window)
        got = found.results[device][0]
        assert got.shape == wanted[device].shape
        np.testing.assert_array_equal(got[inside], wanted[device][inside], err_msg=str(plan))
