"""Who sends which box to whom: all of it, once, from the nearest, in equal parts."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from girih.hlo.ops.exchange import Transfer
from girih.hlo.sharding import Mesh, Sharding, parse_mesh, parse_sharding
from girih.optimizer.sharding.blocks import atoms_of
from girih.optimizer.sharding.interconnect import Interconnect, Link
from girih.optimizer.sharding.transfers import transfers

from .cases import random_mesh, random_sharding


def sent(
    mesh: Mesh, dims: tuple[int, ...], ends: tuple[Sharding, Sharding], slow: str = ""
) -> tuple[Transfer, ...]:
    atoms = atoms_of(mesh, ends, prime=True)
    before, after = map(atoms.state, ends)
    links = ((slow, Link(byte=1e-6)),) if slow else ()
    return transfers(mesh, atoms.blocks(dims, 4), before, after, Interconnect(links))


def ends(source: str, target: str) -> tuple[Sharding, Sharding]:
    return parse_sharding(f"<@mesh, {source}>"), parse_sharding(f"<@mesh, {target}>")


def outgoing(mesh: Mesh, boxes: tuple[Transfer, ...]) -> list[int]:
    """Elements that each device sends to others."""
    found = [0] * mesh.devices
    for box in boxes:
        if box.source != box.target:
            found[box.source] += math.prod(box.sizes)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_each_element_comes_once(seed: int) -> None:
    generator = random.Random(seed)
    mesh, rank = random_mesh(generator), generator.randint(1, 3)
    dims = tuple(generator.choice((0, 1, 3, 5, 8, 12)) for _ in range(rank))
    both = random_sharding(mesh, rank, generator), random_sharding(mesh, rank, generator)
    seen = [np.zeros(both[1].local_dims(mesh, dims), int) for _ in range(mesh.devices)]
    for box in sent(mesh, dims, both):
        window = zip(box.target_start, box.sizes, strict=True)
        seen[box.target][tuple(slice(start, start + size) for start, size in window)] += 1
    place = {device: p for p, device in enumerate(mesh.device_ids or range(mesh.devices))}
    for device, counts in enumerate(seen):
        at = mesh.coordinates(place[device])
        starts = [
            mesh.index(dim.axes, at) * size
            for dim, size in zip(both[1].dims, counts.shape, strict=True)
        ]
        inside = [max(d - s, 0) for d, s in zip(dims, starts, strict=True)]
        wanted = np.zeros_like(counts)
        wanted[tuple(map(slice, inside))] = 1
        np.testing.assert_array_equal(counts, wanted)


def test_holders_share_the_work() -> None:
    """Four devices hold each half: none sends while another has sent less."""
    mesh = parse_mesh('<["x"=2, "y"=4]>')
    boxes = sent(mesh, (64,), ends('[{"x"}]', "[{}]"))
    assert set(outgoing(mesh, boxes)) == {32}


def test_the_nearest_holder_sends() -> None:
    """What is there along a fast axis does not come along the slow one."""
    mesh = parse_mesh('<["x"=2, "y"=2, "z"=2]>')
    both = ends('[{"y"}]', "[{}]")
    for slow in ("x", "z"):
        boxes = sent(mesh, (64,), both, slow)
        for box in boxes:
            here, there = mesh.coordinates(box.source), mesh.coordinates(box.target)
            assert [here[n] for n in "xz"] == [there[n] for n in "xz"]
    one = sent(mesh, (64,), ends('[{"x", "y"}]', '[{"y", "x"}]'), "x")
    for box in one:
        here, there = mesh.coordinates(box.source), mesh.coordinates(box.target)
        assert here["z"] == there["z"]


def test_what_is_there_stays() -> None:
    mesh = parse_mesh('<["x"=4]>')
    boxes = sent(mesh, (8, 8), ends('[{"x"}, {}]', '[{}, {"x"}]'))
    own = [box for box in boxes if box.source == box.target]
    assert [(box.source_start, box.target_start) for box in own] == [
        ((0, 2 * n), (2 * n, 0)) for n in range(4)
    ]
    assert outgoing(mesh, boxes) == [12] * 4


def test_unreduced_values_come_side_by_side() -> None:
    mesh = parse_mesh('<["x"=2]>')
    both = ends('[{}], unreduced={"x"}', '[{"x"}]')
    assert sent(mesh, (4,), both) == (
        Transfer(0, 0, (0, 0), (0, 0), (1, 2)),
        Transfer(1, 0, (0, 0), (1, 0), (1, 2)),
        Transfer(0, 1, (0, 2), (0, 0), (1, 2)),
        Transfer(1, 1, (0, 2), (1, 0), (1, 2)),
    )
