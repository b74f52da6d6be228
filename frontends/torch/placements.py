"""How the DTensors of a PyTorch module lie on their mesh, as `girih.compile` takes it.

    mesh, shardings = girih.shardings_of(distributed)
    girih.compile(plain, x, mesh=mesh, shardings=shardings)

PyTorch does not export DTensors, so that the program comes from the module with plain tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...hlo.errors import UserError

Axes = tuple[str, ...]


def shardings_of(module: Any) -> tuple[dict[str, int], dict[str, tuple[Axes, ...]]]:
    """(the mesh, for each parameter or buffer by name the axes that cut each of its dims).

    Plain tensors are left out: nothing is said of them. UserError for a module without DTensors,
    meshes whose dims have no names or that do not fit into one, and partial sums.
    """
    import torch

    if not isinstance(module, torch.nn.Module):
        raise UserError(f"shardings_of: takes a torch.nn.Module, not {type(module).__name__}")
    tensors = dict(_distributed(module))
    if not tensors:
        raise UserError(f"shardings_of: {type(module).__name__} has no parameter that is a DTensor")
    meshes = {name: _axes(name, tensor.device_mesh) for name, tensor in tensors.items()}
    mesh = max(meshes.values(), key=len)
    for name, axes in meshes.items():
        if axes != {axis: mesh[axis] for axis in mesh if axis in axes}:
            raise UserError(
                f"shardings_of: '{name}' lies on the mesh {axes}, which is no part of {mesh}; "
                "make both slices of one init_device_mesh"
            )
    return mesh, {name: _dims(name, tensor, meshes[name]) for name, tensor in tensors.items()}


def _distributed(module: Any) -> Iterator[tuple[str, Any]]:
    """The DTensors among parameters and buffers, by each of their names."""
    import torch

    if not torch.distributed.is_available():
        return
    from torch.distributed.tensor import DTensor

    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            if isinstance(tensor, DTensor):
                yield name, tensor


def _axes(name: str, mesh: Any) -> dict[str, int]:
    """The size of each dim of a DeviceMesh, major to minor."""
    if not mesh.mesh_dim_names:
        raise UserError(
            f"shardings_of: the mesh of '{name}' has dims without names; give init_device_mesh "
            "mesh_dim_names=('data', ...)"
        )
    ranks = mesh.mesh.flatten().tolist()
    if ranks != sorted(ranks):
        raise UserError(
            f"shardings_of: the mesh of '{name}' has its ranks in the order {ranks}; only "
            "meshes in rising order can be said by sizes of axes"
        )
    return dict(zip(mesh.mesh_dim_names, mesh.mesh.shape, strict=True))


def _dims(name: str, tensor: Any, mesh: dict[str, int]) -> tuple[Axes, ...]:
    """For each dim the axes that cut it, major to minor."""
    found: list[list[str]] = [[] for _ in range(tensor.dim())]
    placed = list(zip(mesh, tensor.placements, strict=True))
    # A mesh dim cuts before those to its right, except before as many parts of theirs as a strided
    # placement says (fully sharded on top of tensor parallel).
    for axis, placement in reversed(placed):
        if placement.is_partial():
            raise UserError(
                f"shardings_of: '{name}' is a partial sum over '{axis}'; redistribute it to "
                "Replicate() or Shard(dim)"
            )
        dim = getattr(placement, "dim", None)
        if dim is not None:
            parts = getattr(placement, "split_factor", 1)
            found[dim].insert(_place(name, found[dim], mesh, parts), axis)
        elif not placement.is_replicate():
            raise UserError(f"shardings_of: '{name}' has the placement {placement}, not known here")
    return tuple(map(tuple, found))


def _place(name: str, axes: Sequence[str], mesh: dict[str, int], parts: int) -> int:
    """How many of the axes make so many parts."""
    made = 1
    for place in range(len(axes) + 1):
        if made == parts:
            return place
        if place < len(axes):
            made *= mesh[axes[place]]
    raise UserError(f"shardings_of: '{name}' is strided by {parts} parts, which no axes make")
