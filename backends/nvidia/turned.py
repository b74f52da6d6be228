"""Operands of products that do not lie in memory as matrix instructions and copies want them.

`wgmma` reads operands of 16 bits along the sum or across it; others, and bytes in `mma.sync`, along
it only. The copy engine wants rows that are whole multiples of 16 bytes long, `cp.async` of 4. A
weight that lies across is stored along when the program is compiled (`packing`); other operands are
copied first, along the sum and padded with zeros, where the product repays it (`turned`).
"""

from __future__ import annotations

import math
from typing import Any

from ...hlo.build import Builder
from ...hlo.graph import Op, Region, Value
from ...hlo.precision import may_use_tf32
from ...hlo.types import TensorType
from ...optimizer.cost.blocks import multiplied, unit_of
from ...optimizer.cost.model import SINGLE, moved
from ...optimizer.passes.encode import Packing, stored_operand
from .atoms import contraction_atoms
from .target import Architecture, Target
from .tile.matrix import atoms_of
from .tile.split import stored

_ROW, _STEP = 16, 32  # bytes: of a whole row of memory, of an instruction along the sum


def turned(region: Region, target: Target) -> tuple[Region, tuple[Value, ...]] | None:
    """The region with copies of operands in front of its product, and the copies; None where the
    product reads its operands as they lie, or where copying them costs more."""
    dots = [op for op in region.ops if op.name == "dot_general"]
    if len(dots) != 1:
        return None
    (dot,) = dots
    architecture = target.architecture
    across, ragged = _across(dot, architecture), _ragged(dot, architecture)
    padding = _padding(dot) if across or ragged else 0
    sides = [0, 1] if padding else sorted({*across, *ragged})
    bytes = sum(dot.operands[side].tensor.bytes for side in sides)
    copied = moved(target.machine, bytes, bytes, SINGLE if ragged or padding else 1.0)
    if not sides or copied > _gain(dot, target, bool(across), bool(ragged)):
        return None
    b = Builder(dot.origin, check=False)
    known: dict[Value, Value] = dict(zip(region.arguments, region.arguments, strict=True))
    copies: list[Value] = []
    for op in region.ops:
        operands = [known.get(value, value) for value in op.operands]
        if op is dot:
            facts: dict[str, Any] = dict(dot.attributes)
            for side in sides:
                order, numbers = _along(dot, side)
                operands[side] = _padded(b, b.transpose(operands[side], order), padding)
                copies.append(operands[side])
                facts |= numbers
            made = b.op(op.name, operands, facts, (), op.result_types)
        else:
            made = b.append(op.with_operands(operands))
        known.update(zip(op.results, made.results, strict=True))
    results = [known.get(value, value) for value in region.results]
    return Region(region.arguments, b.ops, results), tuple(copies)


def packing(op: Op, target: Target) -> Packing | None:
    """How a weight that the product of a fusion reads should lie: along the sum."""
    body = op.regions[0] if op.name == "fusion" else None
    dots = [inner for inner in body.ops if inner.name == "dot_general"] if body is not None else []
    for dot in dots if len(dots) == 1 else []:
        sides = {*_across(dot, target.architecture), *_ragged(dot, target.architecture)}
        for side in sorted(sides):
            value = stored_operand(dot.operands[side])
            source = op.operands[value.index].op if value.owner is body else None
            if source is not None and source.name == "weight" and not _lies_along(dot, side):
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


def _ragged(dot: Op, architecture: Architecture) -> list[int]:
    """The sides of a product in memory whose rows copies to shared memory cannot take whole."""
    if len(dot.lhs_contracting_dimensions) != 1 or not dot.result.tensor.size:
        return []
    atoms = contraction_atoms(dot, architecture)
    unit = _ROW if any(atom.asynchronous for atom in atoms) else 4
    found = []
    for side in (0, 1) if atoms else ():
        value, dims = stored(dot.operands[side])
        inner = next((value.dims[d] for d in reversed(range(value.rank)) if value.dims[d] != 1), 1)
        in_memory = value.op is None and len(dims) > 1 and inner < value.tensor.size
        if in_memory and inner * value.element.itemsize % unit:
            found.append(side)
    return found


def _padding(dot: Op) -> int:
    """Zeros behind the summed dim that make rows of it whole steps of an instruction."""
    if len(dot.lhs_contracting_dimensions) != 1:
        return 0
    value = dot.operands[0]
    size = value.element.itemsize
    if value.dims[dot.lhs_contracting_dimensions[0]] * size % _ROW == 0:
        return 0
    each = _STEP // math.gcd(_STEP, size)
    return -value.dims[dot.lhs_contracting_dimensions[0]] % each


def _padded(b: Builder, value: Value, padding: int) -> Value:
    """With so many zeros behind its last dim."""
    if not padding:
        return value
    none = (0,) * value.rank
    zero = b.constant(0, TensorType((), value.element))
    high = (*none[1:], padding)
    return b("pad", value, zero, edge_padding_low=none, edge_padding_high=high,
             interior_padding=none)  # fmt: skip


def _contracted(dot: Op, side: int) -> tuple[int, ...]:
    return tuple(getattr(dot, f"{('lhs', 'rhs')[side]}_contracting_dimensions"))


def _lies_along(dot: Op, side: int) -> bool:
    """Whether the dim of an operand whose elements are neighbours in memory is summed over."""
    value, places = stored(dot.operands[side])
    wide = [d for d in range(value.rank) if value.dims[d] != 1]
    return not wide or places.index(wide[-1]) in _contracted(dot, side)


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


def _gain(dot: Op, target: Target, across: bool, ragged: bool) -> float:
    """Seconds that the product is faster with its operands copied."""
    machine = target.machine
    fast, slow = (
        unit_of(dot, machine, largest) or machine.unit("f32") for largest in (True, False)
    )
    if across and dot.operands[0].element.itemsize == 1:
        slow = machine.unit("f32")
    flops = dot.definition.flops(dot)
    return multiplied(flops, slow, machine, starved=ragged) - multiplied(flops, fast, machine)
