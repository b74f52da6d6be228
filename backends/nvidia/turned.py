"""Operands of products that lie across the sum, where matrix instructions want them along it.

`wgmma` reads operands of 16 bits either way; others, and bytes in `mma.sync`, along the sum only. A
weight is stored so when the program is compiled (`packing`); what is computed is copied first
(`turned`), where the product repays it.
"""

from __future__ import annotations

from ...hlo.build import make_op
from ...hlo.graph import Op, Region, Value
from ...hlo.precision import may_use_tf32
from ...optimizer.encode import Packing, stored_operand
from .atoms import contraction_atoms
from .target import Architecture, Target
from .tile.matrix import atoms_of

_MEMORY = 10.0  # bytes per clock and multiprocessor, read or written
_SCALAR = 64.0  # multiply-adds per clock and multiprocessor without matrix instructions


def turned(region: Region, target: Target) -> tuple[Region, tuple[Value, ...]] | None:
    """The region with transposes in front of its product, and their results; None where the
    product's instructions read its operands as they lie, or where copying them costs more."""
    dots = [op for op in region.ops if op.name == "dot_general"]
    if len(dots) != 1:
        return None
    (dot,) = dots
    sides = _across(dot, target.architecture)
    moved = sum(dot.operands[side].tensor.bytes for side in sides)
    clocks = 2 * moved / _MEMORY
    if not sides or clocks > _gain(dot, target.architecture):
        return None
    ops: list[Op] = []
    facts = dict(dot.attributes)
    operands = list(dot.operands)
    new: dict[Value, Value] = {}
    for op in region.ops:
        if op is dot:
            for side in sides:
                order, numbers = _along(dot, side)
                facts |= numbers
                ops.append(make_op("transpose", [dot.operands[side]], {"permutation": order}))
                operands[side] = ops[-1].result
            ops.append(Op(op.definition, operands, facts, (), op.result_types, op.origin))
            new[op.result] = ops[-1].result
        else:
            ops.append(op.with_operands([new.get(value, value) for value in op.operands]))
            new.update(zip(op.results, ops[-1].results, strict=True))
    results = [new.get(value, value) for value in region.results]
    made = Region(region.arguments, ops, results)
    return made, tuple(operands[side] for side in sides)


def packing(op: Op, target: Target) -> Packing | None:
    """How a weight that the product of a fusion reads should lie: along the sum."""
    body = op.regions[0] if op.name == "fusion" else None
    dots = [inner for inner in body.ops if inner.name == "dot_general"] if body is not None else []
    for dot in dots if len(dots) == 1 else []:
        for side in _across(dot, target.architecture):
            value = stored_operand(dot.operands[side])
            source = op.operands[value.index].op if value.owner is body else None
            if source is not None and source.name == "weight":
                order, _ = _along(dot, side)
                back = tuple(order.index(d) for d in range(len(order)))
                name = f"along:{order}".replace(" ", "")
                return Packing(
                    side, name, lambda b, x, o=order: b.transpose(x, o),
                    lambda b, x, o=back: b.transpose(x, o),
                )  # fmt: skip
    return None


def _across(dot: Op, architecture: Architecture) -> list[int]:
    """The sides of a product that lie across its sum and that its instructions want along it."""
    size = dot.operands[0].element.itemsize
    if size == 1:
        wanted = bool(atoms_of(dot, architecture))
    else:
        wanted = may_use_tf32(dot) and architecture.warpgroups
    if not wanted or not dot.result.tensor.size or not dot.lhs_contracting_dimensions:
        return []
    return [side for side in (0, 1) if not _lies_along(dot, side)]


def _contracted(dot: Op, side: int) -> tuple[int, ...]:
    return tuple(getattr(dot, f"{('lhs', 'rhs')[side]}_contracting_dimensions"))


def _lies_along(dot: Op, side: int) -> bool:
    """Whether the dim of an operand whose elements are neighbours in memory is summed over."""
    value = dot.operands[side]
    dims = list(range(value.rank))  # of the operand, for each dim of what it is a view of
    while value.op is not None and value.op.name == "transpose":
        dims = [dims[value.op.permutation.index(d)] for d in range(value.rank)]
        value = value.op.operands[0]
    wide = [dim for dim, size in zip(dims, value.dims, strict=True) if size != 1]
    return not wide or wide[-1] in _contracted(dot, side)


def _along(dot: Op, side: int) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    """The order of an operand's dims with the summed ones last, and the product's dimension
    numbers for it."""
    name = ("lhs", "rhs")[side]
    batches = tuple(getattr(dot, f"{name}_batching_dimensions"))
    summed = _contracted(dot, side)
    order = (*(d for d in range(dot.operands[side].rank) if d not in summed), *summed)
    return order, {
        f"{name}_batching_dimensions": tuple(order.index(d) for d in batches),
        f"{name}_contracting_dimensions": tuple(order.index(d) for d in summed),
    }


def _gain(dot: Op, architecture: Architecture) -> float:
    """Clocks that the product is faster on a multiprocessor with its operands along the sum."""
    fast = max(atom.rate(architecture) for atom in contraction_atoms(dot, architecture))
    slow = max((atom.rate(architecture) for atom in atoms_of(dot, architecture)), default=_SCALAR)
    if dot.operands[0].element.itemsize == 1:
        slow = _SCALAR
    return dot.definition.flops(dot) / 2 * (1 / slow - 1 / fast)
