"""PyTorch's functional collectives: every rank runs the program, as a replica of its own.

A graph names groups of ranks only. The group of all ranks is known from the size that an operator
states, or from `torch.distributed` where that is initialised; what others mean was known to the
process that exported.
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
_REMEDY = (
    "use the group of all ranks, and import where torch.distributed is initialised as it was for "
    "the export"
)


def _ranks(c: Context, group: Any, size: int | None) -> tuple[int, ...]:
    """The ranks of a group, which are all there are; Blocked for a part of them."""
    known = _known_size(str(group))
    if size is None:
        size = known or (c.ranks if str(group) == _WORLD else 0)
    elif known is None and str(group) != _WORLD:
        size = 0
    if not size or known not in (None, size):
        raise Blocked(f"nothing says which ranks the group '{group}' has", _REMEDY)
    if c.ranks not in (0, size):
        raise Blocked(f"the group '{group}' has {size} ranks, others {c.ranks}", _REMEDY)
    c.ranks = size
    return tuple(range(size))


def _known_size(group: str) -> int | None:
    """How many ranks a group of all ranks has; None where this process does not know it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    try:
        ranks = distributed.get_process_group_ranks(group)
    except (KeyError, RuntimeError, ValueError):
        return None
    everyone = distributed.get_world_size()
    return everyone if len(ranks) == everyone else 0


def _body(word: str, element: ElementType) -> Region:
    body = _BODIES.get(word.lower())
    if body is None:
        raise Blocked(f"a reduction by '{word}' is not supported", "use sum, avg, max or min")
    return scalar_region(element, lambda b, x, y: b(body, x, y))


def _mean(c: Context, value: Value, word: str, ranks: Sequence[int]) -> Value:
    """The value divided by the number of ranks, if `word` asks for the average."""
    if word.lower() != "avg":
        return value
    return c.divide(value, c.full(len(ranks), value.dims, value.element))


def all_reduce(c: Context, x: Value, reduce_op: str, group_name: Any) -> Value:
    ranks = _ranks(c, group_name, None)
    region = _body(reduce_op, x.element)
    return _mean(
        c, c("all_reduce", x, regions=(region,), replica_groups=(ranks,)), reduce_op, ranks
    )


def all_gather(c: Context, x: Value, group_size: int, group_name: Any) -> Value:
    ranks = _ranks(c, group_name, group_size)
    dims = (x.dims[0] * len(ranks), *x.dims[1:])
    kind = x.tensor.with_dims(dims)
    return c("all_gather", x, type=kind, all_gather_dim=0, replica_groups=(ranks,))


def reduce_scatter(c: Context, x: Value, reduce_op: str, group_size: int, group_name: Any) -> Value:
    ranks = _ranks(c, group_name, group_size)
    kind = x.tensor.with_dims((x.dims[0] // len(ranks), *x.dims[1:]))
    found = c(
        "reduce_scatter", x, type=kind, regions=(_body(reduce_op, x.element),),
        scatter_dimension=0, replica_groups=(ranks,),
    )  # fmt: skip
    return _mean(c, found, reduce_op, ranks)


def all_to_all(
    c: Context, x: Value, output_sizes: Sequence[int], input_sizes: Sequence[int], group_name: Any
) -> Value:
    if len({*output_sizes, *input_sizes}) != 1 or len(output_sizes) != len(input_sizes):
        raise Blocked("its parts have several sizes", "pad them to one size")
    ranks = _ranks(c, group_name, len(input_sizes))
    return c(
        "all_to_all", x, split_dimension=0, concat_dimension=0, split_count=len(ranks),
        replica_groups=(ranks,),
    )  # fmt: skip


def broadcast(c: Context, x: Value, src: int, group_name: Any) -> Value:
    ranks = _ranks(c, group_name, None)
    if not 0 <= src < len(ranks):
        raise Blocked(f"rank {src} is none of {len(ranks)}", "correct src")
    order = (src, *(rank for rank in ranks if rank != src))  # the first one gives its value
    return c("collective_broadcast", x, replica_groups=(order,))


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
