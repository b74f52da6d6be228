"""Exports a model with functional collectives as one of four ranks; run as a script."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.testing._internal.distributed.fake_pg import FakeStore

import girih
from girih.hlo.wire import encode

RANKS = 4


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        group = dist.group.WORLD
        assert group is not None
        gathered = functional.all_gather_tensor(x, 0, group)
        return (
            functional.all_reduce(x, "sum", group) + 1,
            functional.all_reduce(x, "avg", group),
            gathered,
            functional.reduce_scatter_tensor(gathered, "max", 0, group),
            functional.all_to_all_single(gathered, None, None, group),
            functional.broadcast(x, 2, group),
        )


class OnMesh(torch.nn.Module):
    """Collectives along one dim of a mesh: sum, mean, gather, scatter, exchange, broadcast."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            functional.all_reduce(x, "sum", self.group),
            functional.all_reduce(x, "avg", self.group),
            functional.all_gather_tensor(x, 0, self.group),
            functional.reduce_scatter_tensor(x, "sum", 0, self.group),
            functional.all_to_all_single(x, None, None, self.group),
            functional.broadcast(x, 1, self.group),
        )


class Part(torch.nn.Module):
    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x, "sum", self.group)


def main(path: str) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    exported = torch.export.export(Model(), (torch.ones(2, 3),))
    with open(f"{path}/program.pb", "wb") as file:
        file.write(encode(girih.import_model(exported)))
    torch.export.save(exported, f"{path}/model.pt2")
    two = dist.new_group([0, 1])
    assert isinstance(two, dist.ProcessGroup)
    part = torch.export.export(Part(two), (torch.ones(2, 3),))
    torch.export.save(part, f"{path}/part.pt2")
    try:
        girih.import_model(part)
    except girih.ImportBlockers as error:
        print(error)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    for name in ("data", "model"):
        along = torch.export.export(OnMesh(mesh.get_group(name)), (torch.ones(2, 3),))
        with open(f"{path}/{name}.pb", "wb") as file:
            file.write(encode(girih.import_model(along)))


if __name__ == "__main__":
    main(sys.argv[1])
