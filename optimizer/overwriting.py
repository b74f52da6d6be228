"""Which kernels may write a result where an operand lies."""

from __future__ import annotations

from collections.abc import Iterator

from ..hlo.graph import Op, Region
from ..hlo.offsets import Offset, Offsets
from ..hlo.ops.tile import MEMORY_OPS
from .fusable import trailing_reduction


def may_overwrite(op: Op, operand: int, result: int) -> bool:
    """Whether a kernel of any target may write `result` where `operand` lies: it reads each element
    of the operand only to compute the element of that number of the result, or, in a `rows` kernel,
    to reduce the row that is finished before any of it is written (or it is an update in place). A
    product reads what follows its sums when they are complete."""
    if op.name == "dynamic_update_slice":
        return operand == 0
    if op.name == "scatter":
        return operand == result
    if op.name != "fusion":
        return False
    region = op.regions[0]
    product = op.kind == "contract" and any(o.name == "dot_general" for o in region.ops)
    if op.kind != "loop" and not ((product or op.kind == "rows") and len(op.results) == 1):
        return False
    argument, root = region.arguments[operand], region.results[result]
    if argument.type is not root.type or root is argument:
        return root is argument
    stack, seen = [argument], set()
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        for user, _ in region.uses.get(value, ()):
            if user is None or (op.kind == "rows" and trailing_reduction(user) is not None):
                continue
            elementwise = user.definition.pattern == "elementwise" or user.name == "reshape"
            if not elementwise or user.result.tensor.size != root.tensor.size:
                return False
            stack.append(user.result)
    return True


def fills(op: Op) -> bool:
    """Whether it is a kernel that reads nothing: it may run where its result is needed instead."""
    return op.name == "fusion" and op.kind == "loop" and not op.operands and len(op.results) == 1


def tiles_may_overwrite(kernel: Op, operand: int, result: int) -> bool:
    """The same for a tile function, where a target reads a window when the first operation on it
    runs, or later, but not behind the stores that follow all of them.

    A task touches of both memories the one window that it stores, no two tasks have an element of
    it in common, and all that is computed from the operand stands before the store.
    """
    if kernel.name != "kernel_call" or operand in kernel.starts:
        return False
    body = kernel.regions[0]
    source, target = body.arguments[operand], body.arguments[len(kernel.operands) + result]
    if source.type is not target.type or not source.rank:
        return False
    touching = [op for op in body.walk() if op.name in MEMORY_OPS and op.operands[0] is target]
    if len(touching) != 1 or touching[0].name != "tile_store":
        return False
    (store,) = touching
    position = {op: number for number, op in enumerate(body.ops)}
    started = bool(kernel.starts) and kernel.starts[result] != -1
    if store.combine or store.masked or started or store not in position:
        return False
    offsets = Offsets(kernel)
    window = [offsets.of(value) for value in store.offsets]
    sizes = store.operands[1].dims
    for load in body.walk():
        if load.name not in MEMORY_OPS or load.operands[0] is not source:
            continue
        if load.name != "tile_load" or load.sizes != sizes or load not in position:
            return False
        if [offsets.of(value) for value in load.offsets] != window:
            return False
        if any(position[op] > position[store] for op in _computed_from(load, body)):
            return False
    return _apart(kernel, window, sizes)


def _computed_from(load: Op, body: Region) -> Iterator[Op]:
    """The load and the operations of the body that need it, without the stores at their end."""
    stack, seen = [load], {load}
    while stack:
        op = stack.pop()
        if op.name != "tile_store":
            yield op
        for value in op.results:
            users = {user for user, _ in body.uses.get(value, ()) if user is not None}
            stack += users - seen
            seen |= users


def _apart(kernel: Op, window: list[Offset], sizes: tuple[int, ...]) -> bool:
    """Whether no two tiles of the grid have an element of the window in common: in each dim the
    tile ids count in steps that their smaller ones cannot fill."""
    told: set[int] = set()
    for offset, size in zip(window, sizes, strict=True):
        reach = size
        for variable, factor in sorted(offset.terms, key=lambda term: term[1]):
            known = variable.op is not None and variable.op.name == "tile_id"
            axis = variable.op.axis if variable.op is not None and known else len(kernel.grid)
            if axis >= len(kernel.grid) or factor < reach:
                return False
            told.add(axis)
            reach += factor * (kernel.grid[axis] - 1)
    return told >= {axis for axis, count in enumerate(kernel.grid) if count > 1}
