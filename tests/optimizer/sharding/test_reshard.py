"""Plans between shardings: their bytes, their memory, what they pass through."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from girih.hlo.errors import UserError
from girih.hlo.sharding import Axis, Mesh, Sharding, parse_mesh, parse_sharding
from girih.optimizer.sharding.interconnect import Interconnect, Link
from girih.optimizer.sharding.reshard import ReshardPlan, plan_reshard

from .cases import all_shardings, random_mesh, random_sharding

CUBE = parse_mesh('<["x"=2, "y"=2, "z"=2]>')
BYTES = Interconnect(usual=Link(call=1e-12, message=0.0, byte=1.0))  # calls decide ties
FEW = Interconnect(usual=Link(call=1e-6, message=1.0, byte=1e-9))  # no more messages than needed
PAIRS = list(itertools.permutations(all_shardings("xyz", 2), 2))


def sharding(text: str) -> Sharding:
    return parse_sharding(f"<@mesh, {text}>")


def needed(mesh: Mesh, dims: tuple[int, ...], source: Sharding, target: Sharding) -> list[int]:
    """Elements of its block that each device lacks, from coordinates alone."""
    found = []
    for place, device in enumerate(mesh.device_ids or range(mesh.devices)):
        at, whole, own = mesh.coordinates(place), 1, 1
        for size, one, other in zip(dims, source.dims, target.dims, strict=True):
            spans = []
            for axes in (one.axes, other.axes):
                block = -(-size // mesh.parts(axes))
                start = min(mesh.index(axes, at) * block, size)
                spans.append((start, min(start + block, size)))
            (a, b), (c, d) = spans
            whole *= d - c
            own *= max(min(b, d) - max(a, c), 0)
        found.append((device, whole - own))
    return [size for _, size in sorted(found)]


def local(plan: ReshardPlan, sharding: Sharding) -> int:
    return plan.itemsize * int(np.prod(sharding.local_dims(plan.mesh, plan.dims)))


def parts(plan: ReshardPlan, sharding: Sharding) -> int:
    return plan.mesh.parts([axis for dim in sharding.dims for axis in dim.axes])


def no_more_replicated(plan: ReshardPlan) -> bool:
    """No state has fewer or larger blocks than both ends."""
    ends = (plan.source, plan.target)
    fewest = min(parts(plan, end) for end in ends)
    largest = max(local(plan, end) for end in ends)
    return all(
        parts(plan, move.after) >= fewest and local(plan, move.after) <= largest
        for move in plan.moves
    )


def test_all_pairs_of_matrices_on_a_cube_of_devices() -> None:
    """What Shardy's chains reach there is 1.176 of what is needed on average, 2.0 at most."""
    ratios = []
    for source, target in PAIRS:
        chain = plan_reshard(CUBE, (64, 64), 4, source, target, BYTES, exchange=False)
        plan = plan_reshard(CUBE, (64, 64), 4, source, target, BYTES)
        wanted = [4 * size for size in needed(CUBE, (64, 64), source, target)]
        assert list(plan.received) == list(plan.least) == wanted
        assert plan.peak <= local(plan, source) + local(plan, target)
        assert chain.peak <= 2 * max(local(plan, source), local(plan, target))
        assert chain.proven and plan.proven
        assert no_more_replicated(chain) and no_more_replicated(plan)
        ratios.append(chain.mean / plan.mean if plan.mean else 1.0 + chain.mean)
    assert len(ratios) == 2352
    assert max(ratios) == 1.75
    assert sum(ratios) / len(ratios) < 1.1039


@pytest.mark.parametrize(
    ("mesh", "dims", "source", "target", "wanted"),
    [
        ('<["x"=2, "y"=4]>', (1024, 1024), '[{"x"}, {"y"}]', '[{"y"}, {"x"}]', 0.375),
        ('<["x"=2, "y"=4]>', (1024, 1024), '[{"x", "y"}, {}]', '[{}, {"y"}]', 0.875),
        (
            '<["x"=2, "y"=2, "z"=2]>', (128, 128, 64), '[{"x"}, {"y", "z"}, {}]',
            '[{"z"}, {}, {"x", "y"}]', 0.4375,
        ),
        (
            '<["x"=2, "y"=2, "z"=2]>', (128, 128, 64), '[{"x", "y", "z"}, {}, {}]',
            '[{"z"}, {"x"}, {"y"}]', 0.4375,
        ),
        ('<["x"=4, "y"=2]>', (128,) * 3, '[{"y"}, {}, {"x"}]', '[{}, {"x", "y"}, {}]', 0.875),
    ],
)  # fmt: skip
def test_known_reshardings_take_what_is_needed(
    mesh: str, dims: tuple[int, ...], source: str, target: str, wanted: float
) -> None:
    plan = plan_reshard(parse_mesh(mesh), dims, 4, sharding(source), sharding(target))
    assert plan.mean == wanted * 2**20 == sum(plan.least) / len(plan.least)


def test_six_heads_in_four_parts() -> None:
    """From blocks of 96 to 2, 2, 2 and 0 heads of 64: 32, 64, 96 and 0 columns come."""
    mesh, end = parse_mesh('<["model"=4]>'), sharding('[{}, {"model"}]')
    plan = plan_reshard(mesh, (384, 384), 4, end, end, grains=((), (1, 64)))
    assert plan.local() == ((384, 96), (384, 128))
    assert str(plan).split("\n")[0].endswith('-> <@mesh, [{}, {"model"}]> in grains (1, 64)')
    assert plan.received == tuple(4 * 384 * columns for columns in (32, 64, 96, 0))
    with pytest.raises(UserError, match="no grain of 5"):
        plan_reshard(mesh, (384, 384), 4, end, end, grains=((), (1, 5)))
    with pytest.raises(UserError, match="are not one number"):
        plan_reshard(mesh, (384, 384), 4, end, end, grains=((2,), ()))


@pytest.mark.parametrize("interconnect", [Interconnect(), BYTES, FEW])
@pytest.mark.parametrize("seed", range(40))
def test_random_plans_pass_through_nothing_larger(seed: int, interconnect: Interconnect) -> None:
    generator = random.Random(seed)
    mesh, rank = random_mesh(generator), generator.randint(1, 3)
    dims = tuple(generator.choice((0, 1, 2, 3, 4, 6, 7, 8, 12)) for _ in range(rank))
    source = random_sharding(mesh, rank, generator, unreduced=True)
    target = random_sharding(mesh, rank, generator)
    plan = plan_reshard(mesh, dims, 4, source, target, interconnect)
    assert no_more_replicated(plan)
    largest = max(local(plan, source), local(plan, target))
    assert plan.peak <= 2 * largest or source.unreduced and plan.peak <= 3 * largest
    assert len(plan.received) == mesh.devices
    if not source.unreduced:
        assert list(plan.least) == [4 * size for size in needed(mesh, dims, source, target)]
        assert plan.mean >= sum(plan.least) / len(plan.least)


def test_costs_decide() -> None:
    """Many small messages against more bytes; a slow axis against a fast one."""
    ends = sharding('[{"x", "y"}, {"z"}]'), sharding('[{}, {"y"}]')
    few = [m.kind for m in plan_reshard(CUBE, (64, 64), 4, *ends, FEW).moves]
    assert few == ["permute", "all_gather", "all_gather"]
    assert [m.kind for m in plan_reshard(CUBE, (64, 64), 4, *ends, BYTES).moves] == ["exchange"]
    slow = Interconnect((("x", Link(byte=1e-6)),), Link(byte=1e-12))
    ends = sharding('[{"x", "y"}, {}]'), sharding("[{}, {}]")
    square = Mesh(CUBE.axes[:2])
    plan = plan_reshard(square, (64, 64), 4, *ends, slow, exchange=False)
    x, y = Axis("x"), Axis("y")  # what comes along x comes once, not once to each device of y
    assert [move.axes for move in plan.moves if move.axes] == [(y,), (x,), (y,)]
    plan = plan_reshard(square, (64, 64), 4, *ends, exchange=False)
    assert [move.axes for move in plan.moves] == [(x, y)]


@pytest.mark.parametrize(
    ("source", "target", "kind"),
    [
        ('[{"x"}, {}]', '[{}, {"x"}]', "all_to_all"),
        ('[{}, {}], unreduced={"x"}', '[{"x"}, {}]', "reduce_scatter"),
        ('[{"x"}, {}]', "[{}, {}]", "all_gather"),
        ('[{"x"}, {"y"}]', '[{"y"}, {"x"}]', "permute"),
    ],
)
def test_of_equals_a_collective_is_taken(source: str, target: str, kind: str) -> None:
    plan = plan_reshard(Mesh(CUBE.axes[:2]), (64, 64), 4, sharding(source), sharding(target))
    assert [move.kind for move in plan.moves] == [kind]


def test_memory_is_a_bound() -> None:
    """A chain through another large block, or the exchange that needs both ends alone."""
    ends = sharding('[{"x"}, {"y", "z"}]'), sharding('[{"z"}, {}]')
    free = plan_reshard(CUBE, (64, 64), 4, *ends, FEW)
    assert free.peak > 64 * 64 * 4 * (1 / 8 + 1 / 2)
    tight = plan_reshard(CUBE, (64, 64), 4, *ends, FEW, memory=10240)
    assert tight.peak == 10240 and tight.seconds > free.seconds
    with pytest.raises(UserError, match="in 10239 bytes .* at both ends have 10240"):
        plan_reshard(CUBE, (64, 64), 4, *ends, FEW, memory=10239)


def test_equal_ends_need_nothing() -> None:
    end = sharding('[{"x"}, {"y"}]')
    plan = plan_reshard(CUBE, (64, 64), 4, end, sharding('[{"x", ?}p1, {"y"}]'))
    assert (plan.moves, plan.mean, plan.seconds) == ((), 0.0, 0.0)


def test_plans_print() -> None:
    ends = sharding('[{"x", "y"}, {}]'), sharding('[{}, {"y"}]')
    assert str(plan_reshard(CUBE, (64, 64), 4, *ends, exchange=False)).split("\n") == [
        '64x64, 4 bytes each: <@mesh, [{"x", "y"}, {}]> -> <@mesh, [{}, {"y"}]>',
        '  all_to_all {"y"} of dim 0 to dim 1 -> <@mesh, [{"x"}, {"y"}]>: 2048 bytes a device',
        '  all_gather {"x"} of dim 0 -> <@mesh, [{}, {"y"}]>: 4096 bytes a device',
        "  6144 bytes a device, needed 6144; 12288 bytes of memory; 22.1 us",
    ]


def test_sub_axes_that_do_not_nest_are_exchanged() -> None:
    mesh = Mesh((("x", 12),))
    ends = sharding('[{"x":(1)4}]'), sharding('[{"x":(2)3}]')
    plan = plan_reshard(mesh, (24,), 4, *ends)
    assert [move.kind for move in plan.moves] == ["exchange"]
    assert list(plan.received) == [4 * size for size in needed(mesh, (24,), *ends)]
    with pytest.raises(UserError, match="no chain of moves was found"):
        plan_reshard(mesh, (24,), 4, *ends, exchange=False)


def test_a_search_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from girih.optimizer.sharding import moves

    monkeypatch.setattr(moves, "MAXIMUM_MOVES", 3)
    ends = sharding('[{"x"}, {"y"}, {}]'), sharding('[{}, {"x", "z"}, {"y"}]')
    plan = plan_reshard(CUBE, (40, 56, 72), 4, *ends, FEW)
    assert not plan.proven and str(plan).endswith("the search ended at its bound")


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("[{}]", "[{}, {}]", "has 1 dims, its tensor 2"),
        ('[{"w"}, {}]', "[{}, {}]", "names no axis of its mesh"),
        ("[{}, {}]", '[{}, {}], unreduced={"x"}', "an operation leaves it so"),
        ('[{}, {}], unreduced=max{"x"}', '[{}, {}], unreduced={"x"}', "an operation leaves it so"),
    ],
)
def test_what_cannot_be_is_refused(source: str, target: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        plan_reshard(CUBE, (4, 4), 4, sharding(source), sharding(target))


def test_meshes_have_to_be_known() -> None:
    end = sharding("[{}]")
    with pytest.raises(UserError, match="open sizes"):
        plan_reshard(Mesh((("x", None),)), (4,), 4, end, end)
    with pytest.raises(UserError, match="name one mesh"):
        plan_reshard(CUBE, (4,), 4, end, parse_sharding("<@other, [{}]>"))
