"""Programs of plans, run on all devices: the blocks of the target, and the bytes of the plan."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from girih.hlo.errors import UserError
from girih.hlo.sharding import MAX, MIN, SUM, Mesh, Sharding, parse_mesh, parse_sharding
from girih.optimizer.sharding.reshard import plan_reshard

from .cases import all_shardings, check, left_unreduced, random_mesh, random_sharding

SIZES = (0, 1, 2, 3, 4, 6, 7, 8, 12)


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("seed", range(80))
def test_random_reshardings(seed: int, exchange: bool) -> None:
    """Uneven dims, sizes 0 and 1, parts of axes, any order of devices, sums, maxima, minima; what
    lies beyond the tensor is NaN, and reaches nothing."""
    generator = random.Random(seed)
    mesh, rank = random_mesh(generator), generator.randint(1, 3)
    dims = tuple(generator.choice(SIZES) for _ in range(rank))
    source = random_sharding(mesh, rank, generator, unreduced=seed % 2 == 1)
    target = left_unreduced(source, random_sharding(mesh, rank, generator), generator)
    try:
        plan = plan_reshard(mesh, dims, 4, source, target, exchange=exchange)
    except UserError:
        assert not exchange  # blocks that do not nest
        return
    check(plan, np.random.default_rng(seed))


@pytest.mark.parametrize("exchange", [True, False])
def test_matrices_on_a_cube_of_devices(exchange: bool) -> None:
    cube = parse_mesh('<["x"=2, "y"=2, "z"=2]>')
    pairs = list(itertools.permutations(all_shardings("xyz", 2), 2))
    for source, target in random.Random(7).sample(pairs, 60):
        plan = plan_reshard(cube, (8, 8), 4, source, target, exchange=exchange)
        check(plan, np.random.default_rng(0))


@pytest.mark.parametrize("reduction", [SUM, MAX, MIN])
@pytest.mark.parametrize("target", ['[{"x", "y"}]', '[{"y"}]', "[{}]", '[{"y", "x"}]'])
def test_unreduced_values(reduction: str, target: str) -> None:
    mesh = Mesh((("x", 2), ("y", 3)))
    end = parse_sharding(f"<@mesh, {target}>")
    for size, axes in itertools.product((1, 5, 6, 12), ('"x"', '"y"', '"x", "y"')):
        kind = "" if reduction == SUM else reduction
        source = parse_sharding(f"<@mesh, [{{}}], unreduced={kind}{{{axes}}}>")
        plan = plan_reshard(mesh, (size,), 4, source, end)
        check(plan, np.random.default_rng(size))


def test_a_value_may_stay_unreduced() -> None:
    mesh = Mesh((("x", 2), ("y", 2), ("z", 2)))
    for target in ('[{"y"}, {}]', '[{}, {"y", "z"}]'):
        source = parse_sharding('<@mesh, [{"z"}, {}], unreduced={"x"}>')
        end = parse_sharding(f'<@mesh, {target}, unreduced={{"x"}}>')
        for exchange in (True, False):
            plan = plan_reshard(mesh, (4, 4), 4, source, end, exchange=exchange)
            assert not any("reduce" in move.kind for move in plan.moves)
            check(plan, np.random.default_rng(0))


def test_heads_that_do_not_divide() -> None:
    """6 heads over 4 devices: 2, 2, 2, 0."""
    mesh = parse_mesh('<["data"=2, "model"=4]>')
    ends = [parse_sharding(f"<@mesh, {text}>") for text in (
        '[{"data"}, {"model"}, {}]', '[{"data"}, {}, {"model"}]',
    )]  # fmt: skip
    for source, target in itertools.permutations(ends):
        plan = plan_reshard(mesh, (4, 6, 8), 4, source, target)
        check(plan, np.random.default_rng(0))


@pytest.mark.parametrize("seed", range(20))
def test_blocks_that_cut_no_grain(seed: int) -> None:
    """A dim that a reshape has merged: each end cuts it in grains of its own."""
    generator = random.Random(seed)
    mesh = random_mesh(generator)
    dims = (generator.choice((12, 24, 36)), generator.choice((5, 8)))
    grains = tuple((generator.choice((1, 2, 3, 4, 6)), 1) for _ in range(2))
    source, target = (random_sharding(mesh, 2, generator, n == 0) for n in range(2))
    plan = plan_reshard(mesh, dims, 4, source, target, grains=(grains[0], grains[1]))
    check(plan, np.random.default_rng(seed))


def test_a_scalar_and_one_device() -> None:
    mesh = Mesh((("x", 2),))
    scalar = parse_sharding("<@mesh, []>")
    pending = Sharding("mesh", (), (), (mesh.part("x", 1, 2),))
    check(plan_reshard(mesh, (), 4, pending, scalar), np.random.default_rng(0))
    whole = parse_sharding("<@mesh, [{}]>")
    check(plan_reshard(Mesh(()), (3,), 4, whole, whole), np.random.default_rng(0))
