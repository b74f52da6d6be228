"""Stacks that a loop writes row by row, and formulas that hold for a stack as for its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..hlo.build import make_op
from ..hlo.graph import Dense, Op, Value, constant_of
from ..hlo.types import TensorType
from .counters import Counter, integer

# Operations so cheap that they are repeated wherever their result is read.
CHEAPLY = frozenset(
    {"abs", "add", "convert", "maximum", "minimum", "multiply", "negate", "subtract"}
)
FORMULA_OPERATIONS = 4  # that are repeated at most


def rows(loop: Op, found: Mapping[int, Counter], count: int | None) -> dict[int, Value]:
    """For each carried stack of which every turn writes the next row and nothing reads: that row,
    of the stack's dims without the first."""
    condition, body = loop.regions
    known: dict[int, Value] = {}
    for number, (argument, result) in enumerate(zip(body.arguments, body.results, strict=True)):
        op = result.op
        if op is None or op.name != "dynamic_update_slice" or op not in body.ops:
            continue
        stack, update, first, *rest = op.operands
        row = (
            update.op.operands[0] if update.op is not None and update.op.name == "reshape" else None
        )
        counter = found.get(first.index) if first in body.arguments else None
        if (
            stack is argument
            and body.uses[argument] == [(op, 0)]
            and body.uses[result] == [(None, number)]
            and argument not in condition.uses
            and condition.arguments[number] not in condition.uses
            and row is not None
            and update.dims == (1, *stack.dims[1:])
            and row.dims == stack.dims[1:]
            and counter is not None
            and (counter.first, counter.step) == (0, 1)
            and count == stack.dims[0]
            and all(integer(index) == 0 for index in rest)
        ):
            known[number] = row
    return known


def formula(
    value: Value, leaf: Callable[[Value], bool], expand: Callable[[Op], bool]
) -> tuple[Value, list[Op]] | None:
    """The one leaf that a value is computed from, beside splats, and the cheap operations that do,
    each after its operands; None if there is no such formula."""
    leaves: dict[Value, None] = {}
    ops: dict[Op, None] = {}

    def visit(one: Value) -> bool:
        op, dense = one.op, constant_of(one)
        if dense is not None and dense.is_splat:
            return True
        if one is not value and leaf(one):
            leaves[one] = None
            return True
        if op is None or op.name not in CHEAPLY or not expand(op):
            return False
        if op not in ops:
            if len(ops) == FORMULA_OPERATIONS or not all(map(visit, op.operands)):
                return False
            ops[op] = None
        return True

    if not visit(value) or len(leaves) != 1:
        return None
    return next(iter(leaves)), list(ops)


def repeated(
    ops: Sequence[Op], leaf: Value, becomes: Value, dims: tuple[int, ...], out: list[Op]
) -> Value:
    """The formula for what becomes of the leaf, of those dims; `out` gets its operations."""
    values = {leaf: becomes}
    for op in ops:
        for operand in op.operands:
            dense = constant_of(operand)
            if operand not in values and dense is not None:
                splat = Dense.splat(dense.splat_value, operand.tensor.with_dims(dims))
                out.append(make_op("constant", (), {"value": splat}, origin=op.origin, check=False))
                values[operand] = out[-1].result
        kind: TensorType = op.result.tensor.with_dims(dims)
        given = [values[operand] for operand in op.operands]
        out.append(make_op(op.name, given, op.attributes, (), (kind,), op.origin, check=False))
        values[op.result] = out[-1].result
    return values[ops[-1].result]
