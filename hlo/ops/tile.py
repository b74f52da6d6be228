"""Tile functions: kernels whose grid of tiles loads windows of memory, computes, and stores.

A `kernel_call` is one kernel. The arguments of its body are memory: first its inputs, then its
results. They are touched by `tile_load`, `tile_gather`, `tile_store` and `tile_scatter` alone; all
else in the body is ordinary operations on tensors of the size of a tile. Compiler-made groups and
kernels that users write are both tile functions. `hlo/tiling.py` runs one and counts what it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..contracts import call_factors
from ..factors import Factors
from ..graph import Op, Region, Value
from ..room import Case, OpDefinition, attribute, constraint, operand, variadic
from ..symbols import SymbolicDim
from ..tiling import MEMORY_OPS, run_kernel, trips, window_parts
from ..types import I32, Type, unsharded
from .clauses import is_tensor, same_element
from .tile_examples import INDEX, kernel_cases

COMBINES = ("", "add", "maximum", "minimum")
_COUNTED = ("elementwise", "index", "reduce", "contract")


def _is_size(value: Any) -> bool:
    """Whether a number is a size, or one that the call decides."""
    return isinstance(value, SymbolicDim) or isinstance(value, int) and value >= 0


def _scalars(values: Sequence[Value]) -> bool:
    return all(v.type is INDEX for v in values)


def _memory_uses(region: Region, memory: set[Value]) -> Iterator[tuple[Op | None, int]]:
    """Uses of memory that are not the first operand of a memory operation."""
    for op in region.ops:
        for number, value in enumerate(op.operands):
            if value in memory and (number != 0 or op.name not in MEMORY_OPS):
                yield op, number
        for inner in op.regions:
            yield from _memory_uses(inner, memory)
    for number, value in enumerate(region.results):
        if value in memory:
            yield None, number


def _only_memory_ops_touch(o: Op) -> bool:
    body = o.regions[0]
    return not any(_memory_uses(body, set(body.arguments)))


def _memory_ops_touch_memory(o: Op) -> bool:
    memory = set(o.regions[0].arguments)
    return all(op.operands[0] in memory for op in o.regions[0].walk() if op.name in MEMORY_OPS)


def _inputs_are_read_only(o: Op) -> bool:
    inputs = set(o.regions[0].arguments[: len(o.operands)])
    stores = ("tile_store", "tile_scatter")
    return not any(op.operands[0] in inputs for op in o.regions[0].walk() if op.name in stores)


# Why operations on tiles have no factors.
_INSIDE = "it stands inside of a kernel, which is cut as a whole"


class KernelCall(OpDefinition, name="kernel_call"):
    """results = what the body stores into them, run once for every tile of the grid in any order.

    `starts` says for each result what it holds before: -1 for nothing that may be read, else the
    number of the input that it starts as a copy of. A second region, if there is one, is the
    reference: the same results from ordinary operations, for targets that cannot run the body.
    `sharding` is the contract by which a partitioner may split the call; without one it follows
    from the windows where these are affine in the tile. `variants` are programs of the same kernel
    for parts of its arrays, on the wire.
    """

    pattern = "kernel"
    uncut = "without a contract nobody knows what cutting it means"
    isolated = True
    sealed = True
    since = "1.1"
    regions = ("*",)
    inputs = variadic()
    kernel = attribute(str)
    grid = attribute(tuple)
    starts = attribute(tuple, ())
    sharding = attribute(str, "")
    variants = attribute(tuple, (), since="1.4")
    C1 = constraint("1 or 2 regions, the body and a reference", lambda o: len(o.regions) in (1, 2))
    C2 = constraint(
        "grid has sizes of at least 0",
        lambda o: all(_is_size(n) for n in o.grid),
    )
    C3 = constraint(
        "the body takes the inputs, then the results, and returns nothing",
        lambda o: (
            not o.regions[0].results
            and o.regions[0].argument_types[: len(o.operands)]
            == tuple(unsharded(value.type) for value in o.operands)
            and (
                not o.results
                or o.regions[0].argument_types[len(o.operands) :]
                == tuple(map(unsharded, o.result_types))
            )
        ),
    )
    C4 = constraint("only memory operations touch the body's arguments", _only_memory_ops_touch)
    C5 = constraint("memory operations touch the body's arguments", _memory_ops_touch_memory)
    C6 = constraint("inputs are not stored to", _inputs_are_read_only)
    C7 = constraint(
        "starts is empty, or has for each result -1 or the number of an input of its type",
        lambda o: (
            not o.starts
            or len(o.starts) == len(o.regions[0].arguments) - len(o.operands)
            and all(
                s == -1
                or 0 <= s < len(o.operands)
                and unsharded(o.operands[s].type) is argument.type
                for s, argument in zip(
                    o.starts, o.regions[0].arguments[len(o.operands) :], strict=True
                )
            )
        ),
    )
    C8 = constraint(
        "the reference takes the inputs and returns the results",
        lambda o: (
            len(o.regions) < 2
            or o.regions[1].argument_types == tuple(unsharded(v.type) for v in o.operands)
            and o.regions[1].result_types == o.regions[0].argument_types[len(o.operands) :]
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return o.regions[0].argument_types[len(o.operands) :]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return tuple(run_kernel(o, arrays, context["run"]))

    def shard(self, o: Op) -> Factors | None:
        return call_factors(o)

    def flops(self, o: Op) -> float:
        return sum(
            count * op.definition.flops(op)
            for op, count in trips(o)
            if op.definition.pattern in _COUNTED and op.results[0].rank
        )

    def cases(self) -> Iterator[Case]:
        return kernel_cases()


class TileId(OpDefinition, name="tile_id"):
    """result = the number of this tile along `axis` of the grid."""

    pattern = "tile"
    uncut = _INSIDE
    uniform = True
    since = "1.1"
    axis = attribute(int)
    C1 = constraint("0 <= axis", lambda o: o.axis >= 0)

    def infer(self, o: Op) -> Sequence[Type]:
        return [INDEX]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return np.int32(context["tile"][o.axis])


class TileBound(OpDefinition, name="tile_bound"):
    """result = `size`, which the call may decide: where indices end that tiles may reach over, or
    how many tiles there are."""

    pattern = "tile"
    uncut = _INSIDE
    uniform = True
    since = "1.5"
    size = attribute(object)
    C1 = constraint(
        "size is at least 0 and below 2^31",
        lambda o: _is_size(o.size) and not (isinstance(o.size, int) and o.size >= 2**31),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [INDEX]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        return np.int32(o.size)


def _window(o: Op, memory: Value, offsets: Sequence[Value], sizes: Sequence[int]) -> bool:
    return (
        is_tensor(memory)
        and len(offsets) == memory.rank == len(sizes)
        and all(isinstance(n, int) and n >= 0 for n in sizes)
    )


def _rows_inside(rows: Any, dim: int) -> Any:
    return (rows >= 0) & (rows < dim)


class TileLoad(OpDefinition, name="tile_load"):
    """result = the window of memory at the offsets; elements outside the memory are `fill`."""

    pattern = "tile"
    uncut = _INSIDE
    since = "1.1"
    loads = True
    memory = operand()
    offsets = variadic()
    sizes = attribute(tuple)
    fill = attribute(float, 0.0)
    C1 = constraint(
        "one offset and one size for each dim of the memory",
        lambda o: _window(o, o.memory, o.offsets, o.sizes),
    )
    C2 = constraint("offsets are i32 scalars", lambda o: _scalars(o.offsets))

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.memory.tensor.with_dims(o.sizes)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        memory, *offsets = arrays
        source, target = window_parts(memory.shape, offsets, o.sizes)
        result = np.full(o.sizes, o.fill).astype(memory.dtype)
        result[target] = memory[source]
        return result


class TileGather(OpDefinition, name="tile_gather"):
    """result = the window of memory whose place along `axis` is `rows`, one index for each.

    The offset along `axis` is added to every index; an index outside the memory gives `fill`.
    """

    pattern = "tile"
    uncut = _INSIDE
    since = "1.1"
    numbered = True
    loads = True
    memory = operand()
    rows = operand()
    offsets = variadic()
    axis = attribute(int)
    sizes = attribute(tuple)
    fill = attribute(float, 0.0)
    C1 = constraint(
        "one offset and one size for each dim of the memory",
        lambda o: _window(o, o.memory, o.offsets, o.sizes),
    )
    C2 = constraint("offsets are i32 scalars", lambda o: _scalars(o.offsets))
    C3 = constraint(
        "rows is i32[sizes[axis]] and 0 <= axis < rank(memory)",
        lambda o: (
            0 <= o.axis < o.memory.rank
            and o.rows.element is I32
            and o.rows.dims == (o.sizes[o.axis],)
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.memory.tensor.with_dims(o.sizes)]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        memory, rows, *offsets = arrays
        axis, dim = o.axis, memory.shape[o.axis]
        places = np.asarray(rows).astype(np.int64) + int(offsets[axis])
        inside = _rows_inside(places, dim)
        taken = np.take(memory, np.where(inside, places, 0), axis) if dim else np.zeros(o.sizes)
        whole = [*offsets]
        whole[axis] = 0
        source, target = window_parts(taken.shape, whole, o.sizes)
        result = np.full(o.sizes, o.fill).astype(memory.dtype)
        result[target] = taken[source]
        np.moveaxis(result, axis, 0)[~inside] = np.asarray(o.fill).astype(memory.dtype)
        return result


def combined(combine: str, old: Any, new: Any) -> Any:
    """What a store leaves: the new value, or both combined."""
    if combine == "add":
        return old + new
    if combine:
        return (np.maximum if combine == "maximum" else np.minimum)(old, new)
    return new


class _Store(OpDefinition):
    """What both stores have in common."""

    pattern = "tile"
    stores = True
    uncut = _INSIDE
    effects = True
    since = "1.1"

    def infer(self, o: Op) -> Sequence[Type]:
        return []


class TileStore(_Store, name="tile_store"):
    """memory at the offsets = value, combined with what stands there if `combine` says so.

    Elements outside the memory, and where the mask does not hold, are not stored. With `combine`
    several tiles may store to one place (on floats the order, so the last bit, is then open).
    """

    memory = operand()
    value = operand()
    offsets = variadic()
    combine = attribute(str, "")
    masked = attribute(bool, False)  # the last operand is the mask
    C1 = constraint(
        "one offset for each dim of the memory, and a mask if masked",
        lambda o: len(o.operands) == 2 + o.memory.rank + o.masked,
    )
    C2 = constraint("offsets are i32 scalars", lambda o: _scalars(o.offsets[: o.memory.rank]))
    C3 = constraint(
        "value has the memory's rank and element type",
        lambda o: o.value.rank == o.memory.rank and same_element(o.value.element, o.memory.element),
    )
    C4 = constraint("combine is '', 'add', 'maximum' or 'minimum'", lambda o: o.combine in COMBINES)
    C5 = constraint(
        "the mask is i1 of the value's dims",
        lambda o: (
            not o.masked or o.operands[-1].element.is_bool and o.operands[-1].dims == o.value.dims
        ),
    )

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        memory, value, *offsets = arrays
        mask = offsets.pop() if o.masked else None
        target, source = window_parts(memory.shape, offsets, value.shape)
        new = combined(o.combine, memory[target], value[source])
        memory[target] = new if mask is None else np.where(mask[source], new, memory[target])
        return ()


class TileScatter(_Store, name="tile_scatter"):
    """memory = value at the window whose place along `axis` is `rows`, as in tile_gather.

    Two equal indices need `combine`; indices outside the memory are not stored.
    """

    numbered = True
    memory = operand()
    value = operand()
    rows = operand()
    offsets = variadic()
    axis = attribute(int)
    combine = attribute(str, "")
    C1 = constraint(
        "one offset for each dim of the memory", lambda o: len(o.offsets) == o.memory.rank
    )
    C2 = constraint("offsets are i32 scalars", lambda o: _scalars(o.offsets))
    C3 = constraint(
        "value has the memory's rank and element type",
        lambda o: o.value.rank == o.memory.rank and same_element(o.value.element, o.memory.element),
    )
    C4 = constraint("combine is '', 'add', 'maximum' or 'minimum'", lambda o: o.combine in COMBINES)
    C5 = constraint(
        "rows is i32[dim(value, axis)] and 0 <= axis < rank(memory)",
        lambda o: (
            0 <= o.axis < o.memory.rank
            and o.rows.element is I32
            and o.rows.dims == (o.value.dims[o.axis],)
        ),
    )

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        memory, value, rows, *offsets = arrays
        moved, by_row = np.moveaxis(memory, o.axis, 0), np.moveaxis(value, o.axis, 0)
        start = int(offsets.pop(o.axis))
        target, source = window_parts(moved.shape[1:], offsets, by_row.shape[1:])
        for number, row in enumerate(rows):
            place = int(row) + start
            if 0 <= place < moved.shape[0]:
                old = moved[place][target]
                moved[(place, *target)] = combined(o.combine, old, by_row[number][source])
        return ()


class TileFor(OpDefinition, name="tile_for"):
    """results = carried values after body(i, carried) for i = lower, lower + step, ... < upper."""

    pattern = "control"
    loops = True
    uncut = _INSIDE
    since = "1.1"
    regions = ("body",)
    lower = operand()
    upper = operand()
    inputs = variadic()
    step = attribute(int, 1)
    C1 = constraint("lower and upper are i32 scalars", lambda o: _scalars((o.lower, o.upper)))
    C2 = constraint("step >= 1", lambda o: o.step >= 1)
    C3 = constraint(
        "the body takes an i32 scalar and the inputs' types",
        lambda o: o.regions[0].argument_types == (INDEX, *(v.type for v in o.inputs)),
    )
    C4 = constraint(
        "the body returns the inputs' types",
        lambda o: o.regions[0].result_types == tuple(v.type for v in o.inputs),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [v.type for v in o.inputs]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        lower, upper, *carried = arrays
        for i in range(int(lower), int(upper), o.step):
            carried = context["run"](o.regions[0], [np.int32(i), *carried])
        return tuple(carried)


ROOMS = (
    KernelCall(), TileId(), TileBound(), TileLoad(), TileGather(), TileStore(), TileScatter(),
    TileFor(),
)  # fmt: skip
