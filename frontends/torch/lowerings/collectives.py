"""PyTorch's functional collectives: every rank runs the program, as a replica of its own.

A graph names groups of ranks only. The group of all ranks is known from the size that an operator
states, or from `torch.distributed` where that is initialised. A dim of a DeviceMesh is many groups,
of which the process that exports knows its own: the others are its translates, as in meshes whose
ranks rise. What else a group means was known to the process that exported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Region, Value
from ....hlo.types import ElementType
from ..context import Blocked, Context, scalar_region

_BODIES = {"sum": "add", "avg": "add", "max": "maximum", "min": "minimum", "product": "multiply"}
_WORLD = "0"  # what torch.distributed calls the group of all ranks
_MESH = "mesh_"  # how it describes the groups of a DeviceMesh
_REMEDY = (
    "use the group of all ranks or a dim of a DeviceMesh (mesh.get_group('model')), and import "
    "where torch.distributed is initialised as it was for the export"
)

Groups = tuple[tuple[int, ...], ...]


def _groups(c: Context, group: Any, size: int | None) -> Groups:
    """The ranks of each group that does what this one does; Blocked where they are not known."""
    own, everyone = _known(str(group))
    if not own and str(group) == _WORLD:
        everyone = size or c.ranks
        own = tuple(range(everyone))
    if not own or size not in (None, len(own)):
        raise Blocked(f"nothing says which ranks the group '{group}' has", _REMEDY)
    if c.ranks not in (0, everyone):
        raise Blocked(f"the group '{group}' is of {everyone} ranks, others of {c.ranks}", _REMEDY)
    c.ranks = everyone
    return translates(own, everyone, str(group))


def translates(own: tuple[int, ...], everyone: int, group: str) -> Groups:
    """The groups that together have every rank once, each at the distances of this one."""
    left, found = set(range(everyone)), list[tuple[int, ...]]()
    while left:
        first = min(left)
        moved = tuple(first + rank - own[0] for rank in own)
        if not left.issuperset(moved):
            raise Blocked(
                f"the group '{group}' has the ranks {list(own)} of {everyone}, which is no dim of "
                "a mesh of rising ranks", _REMEDY,
            )  # fmt: skip
        left.difference_update(moved)
        found.append(moved)
    return tuple(found)


def _known(group: str) -> tuple[tuple[int, ...], int]:
    """The ranks of a group of all ranks or of a mesh, rising, and how many ranks there are; nothing
    where this process does not know it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return (), 0
    try:
        found = distributed.distributed_c10d._resolve_process_group(group)
        ranks = tuple(sorted(distributed.get_process_group_ranks(found)))
    except (KeyError, RuntimeError, ValueError):
        return (), 0
    everyone = distributed.get_world_size()
    whole = len(ranks) == everyone
    return (ranks if whole or str(found.group_desc).startswith(_MESH) else ()), everyone


def _body(word: str, element: ElementType) -> Region:
    body = _BODIES.get(word.lower())
    if body is None:
        raise Blocked(f"a reduction by '{word}' is not supported", "use sum, avg, max or min")
    return scalar_region(element, lambda b, x, y: b(body, x, y))


def _mean(c: Context, value: Value, word: str, groups: Groups) -> Value:
    """The value divided by the number of a group's ranks, if `word` asks for the average."""
    if word.lower() != "avg":
        return value
    return c.divide(value, c.full(len(groups[0]), value.dims, value.element))


def all_reduce(c: Context, x: Value, reduce_op: str, group_name: Any) -> Value:
    groups = _groups(c, group_name, None)
    region = _body(reduce_op, x.element)
    return _mean(c, c("all_reduce", x, regions=(region,), replica_groups=groups), reduce_op, groups)


def all_gather(c: Context, x: Value, group_size: int, group_name: Any) -> Value:
    groups = _groups(c, group_name, group_size)
    dims = (x.dims[0] * len(groups[0]), *x.dims[1:])
    kind = x.tensor.with_dims(dims)
    return c("all_gather", x, type=kind, all_gather_dim=0, replica_groups=groups)


def reduce_scatter(c: Context, x: Value, reduce_op: str, group_size: int, group_name: Any) -> Value:
    groups = _groups(c, group_name, group_size)
    kind = x.tensor.with_dims((x.dims[0] // len(groups[0]), *x.dims[1:]))
    found = c(
        "reduce_scatter", x, type=kind, regions=(_body(reduce_op, x.element),),
        scatter_dimension=0, replica_groups=groups,
    )  # fmt: skip
    return _mean(c, found, reduce_op, groups)


def all_to_all(
    c: Context, x: Value, output_sizes: Sequence[int], input_sizes: Sequence[int], group_name: Any
) -> Value:
    if len({*output_sizes, *input_sizes}) != 1 or len(output_sizes) != len(input_sizes):
        raise Blocked("its parts have several sizes", "pad them to one size")
    groups = _groups(c, group_name, len(input_sizes))
    return c(
        "all_to_all", x, split_dimension=0, concat_dimension=0, split_count=len(groups[0]),
        replica_groups=groups,
    )  # fmt: skip


def broadcast(c: Context, x: Value, src: int, group_name: Any) -> Value:
    groups = _groups(c, group_name, None)
    if not 0 <= src < len(groups[0]):
        raise Blocked(f"rank {src} is none of the {len(groups[0])} of the group", "correct src")
    # The first of a group gives its value.
    order = tuple((ranks[src], *ranks[:src], *ranks[src + 1 :]) for ranks in groups)
    return c("collective_broadcast", x, replica_groups=order)


def wait(c: Context, x: Value) -> Value:
    """What an operator gives is there when the next one reads it."""
    return x


TABLE: dict[str, Callable[..., Any]] = {
    "_c10d_functional.all_reduce.default": all_reduce,
    "_c10d_functional.all_gather_into_tensor.default": all_gather,
    "_c10d_functional.reduce_scatter_tensor.default": reduce_scatter,
    "_c10d_functional.all_to_all_single.default": all_to_all,
    "_c10d_functional.broadcast.default": broadcast,
    "_c10d_functional.wait_tensor.default": wait,
}
