"""`girih.shardings_of`: placements of DTensors become shardings by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import girih

torch = pytest.importorskip("torch")


@pytest.fixture
def world() -> Iterator[None]:
    """Eight ranks, of which this process is the first and the others are not there."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def model() -> Any:
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8)
    )


def grid(*shape: int, names: Any = ("data", "model")) -> Any:
    return torch.distributed.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names)


def lying(tensor: Any, mesh: Any, *placements: Any) -> Any:
    from torch.distributed.tensor import distribute_tensor

    made = distribute_tensor(tensor.detach(), mesh, placements)
    return torch.nn.Parameter(made)


def test_placements_become_shardings(world: None) -> None:
    from torch.distributed.tensor import Replicate, Shard

    distributed, mesh = model(), grid(2, 4)
    first, second = distributed[0], distributed[1]
    first.weight = lying(first.weight, mesh, Replicate(), Shard(0))
    second.weight = lying(second.weight, mesh, Shard(1), Shard(1))
    second.bias = lying(second.bias, mesh["model"], Shard(0))
    sizes, shardings = girih.shardings_of(distributed)
    assert sizes == {"data": 2, "model": 4}
    assert shardings == {
        "0.weight": (("model",), ()),
        "1.weight": ((), ("data", "model")),
        "1.bias": (("model",),),
    }
    plain = model().eval()
    x = torch.ones(4, 8)
    program = girih.compile(plain, x, mesh=sizes, shardings=shardings)
    assert program.mesh is not None and dict(program.mesh.axes) == sizes


def test_strided_placements_are_an_order(world: None) -> None:
    """As tensor parallel with fully sharded on top makes them: the second axis cuts first."""
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    distributed = model()
    placements = (_StridedShard(0, split_factor=4), Shard(0))
    whole = distributed[0].weight
    local = DTensor.from_local(
        whole.detach()[:2], grid(2, 4), placements,
        run_check=False, shape=whole.shape, stride=whole.stride(),
    )  # fmt: skip
    distributed[0].weight = torch.nn.Parameter(local)
    assert girih.shardings_of(distributed)[1] == {"0.weight": (("model", "data"), ())}


def test_what_cannot_be_said_is_refused(world: None) -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    with pytest.raises(girih.UserError, match="Sequential has no parameter that is a DTensor"):
        girih.shardings_of(model())
    with pytest.raises(girih.UserError, match=r"takes a torch\.nn\.Module, not int"):
        girih.shardings_of(3)
    for mesh, placements, reason in (
        (grid(2, 4, names=None), (Replicate(), Shard(0)), "has dims without names"),
        (grid(2, 4), (Partial(), Shard(0)), "'0.weight' is a partial sum over 'data'"),
    ):
        distributed = model()
        local = DTensor.from_local(
            distributed[0].weight.detach(), mesh, placements, run_check=False
        )
        distributed[0].weight = torch.nn.Parameter(local)
        with pytest.raises(girih.UserError, match=reason):
            girih.shardings_of(distributed)


def test_meshes_have_to_be_parts_of_one(world: None) -> None:
    from torch.distributed.tensor import Replicate, Shard

    distributed = model()
    for layer, mesh in zip(distributed[:2], (grid(2, 4), grid(4, 2)), strict=True):
        layer.weight = lying(layer.weight, mesh, Replicate(), Shard(0))
    with pytest.raises(girih.UserError, match="which is no part of"):
        girih.shardings_of(distributed)
