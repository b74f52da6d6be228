"""Operands of products that do not lie in memory as a target's units and copies want them.

Some units read operands along the sum only, and rows must be whole multiples of what is copied. A
weight that lies across is stored along when the program is compiled (`packing`); other operands are
copied first, along the sum and padded with zeros, where the product repays it (`laid_along`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...hlo.build import Builder
from ...hlo.graph import Op, Region, Value
from ...hlo.regions import rewritten
from ...hlo.types import TensorType
from ..cost.blocks import multiplied, unit_of
from ..cost.model import SINGLE, moved
from ..machine import Machine
from ..passes.encode import Packing, stored_operand

if TYPE_CHECKING:
    from ...backends.capabilities import Capabilities, MatrixUnit


def stored(value: Value) -> tuple[Value, list[int]]:
    """What an operand is a transposition of, and for each of the operand's dims which of its."""
    dims = list(range(value.rank))
    while value.op is not None and value.op.name == "transpose":
        dims = [value.op.permutation[d] for d in dims]
        value = value.op.operands[0]
    return value, dims


def misread(dot: Op, unit: MatrixUnit) -> list[int]:
    """The sides of a product that a unit cannot read as they lie."""
    return sorted({*_across(dot, [unit]), *_ragged(dot, [unit])})


def laid_along(
    region: Region, machine: Machine, capabilities: Capabilities
) -> tuple[Region, tuple[Value, ...]] | None:
    """The region with copies of operands in front of its product, and the copies; None where the
    product reads its operands as they lie, or where copying them costs more."""
    dots = [op for op in region.ops if op.name == "dot_general"]
    if len(dots) != 1:
        return None
    (dot,) = dots
    units = capabilities.units_of(dot)
    across, ragged = _across(dot, units), _ragged(dot, units)
    padding = _padding(dot, units, capabilities) if across or ragged else 0
    sides = [0, 1] if padding else sorted({*across, *ragged})
    bytes = sum(dot.operands[side].tensor.bytes for side in sides)
    copied = moved(machine, bytes, bytes, SINGLE if ragged or padding else 1.0)
    if not sides or copied > _gain(dot, machine, bool(across), bool(ragged)):
        return None
    copies: list[Value] = []

    def change(b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
        if op is not dot:
            return False
        operands = [mapping[value] for value in op.operands]
        facts: dict[str, Any] = dict(dot.attributes)
        with b.at(op.origin):
            for side in sides:
                order, numbers = _along(dot, side)
                operands[side] = _padded(b, b.transpose(operands[side], order), padding)
                copies.append(operands[side])
                facts |= numbers
            mapping[op.result] = b(op.name, *operands, type=op.type, **facts)
        return True

    return rewritten(region, {}, change), tuple(copies)


def packing(op: Op, capabilities: Capabilities) -> Packing | None:
    """How a weight that the product of a fusion reads should lie: along the sum."""
    body = op.regions[0] if op.name == "fusion" else None
    dots = [inner for inner in body.ops if inner.name == "dot_general"] if body is not None else []
    for dot in dots if len(dots) == 1 else []:
        units = capabilities.units_of(dot)
        for side in sorted({*_across(dot, units), *_ragged(dot, units)}):
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


def _across(dot: Op, units: Sequence[MatrixUnit]) -> list[int]:
    """The sides of a product that lie across its sum, where a unit wants them along it."""
    wanted = any(unit.along for unit in units)
    if not wanted or not dot.result.tensor.size or not dot.lhs_contracting_dimensions:
        return []
    return [side for side in (0, 1) if not _lies_along(dot, side)]


def _ragged(dot: Op, units: Sequence[MatrixUnit]) -> list[int]:
    """The sides of a product in memory whose rows copies for a unit cannot take whole."""
    if len(dot.lhs_contracting_dimensions) != 1 or not dot.result.tensor.size:
        return []
    whole = max((unit.row_bytes for unit in units), default=1)
    found = []
    for side in (0, 1):
        value, dims = stored(dot.operands[side])
        inner = next((value.dims[d] for d in reversed(range(value.rank)) if value.dims[d] != 1), 1)
        in_memory = value.op is None and len(dims) > 1 and inner < value.tensor.size
        if in_memory and inner * value.element.itemsize % whole:
            found.append(side)
    return found


def _padding(dot: Op, units: Sequence[MatrixUnit], capabilities: Capabilities) -> int:
    """Zeros behind the summed dim that make rows of it whole steps of a unit."""
    if len(dot.lhs_contracting_dimensions) != 1:
        return 0
    value = dot.operands[0]
    depth = value.dims[dot.lhs_contracting_dimensions[0]]
    if depth * value.element.itemsize % capabilities.copy_bytes == 0:
        return 0
    return -depth % max(unit.grain[2] for unit in units)


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


def _gain(dot: Op, machine: Machine, across: bool, ragged: bool) -> float:
    """Seconds that the product is faster with its operands copied."""
    fast, slow = (
        unit_of(dot, machine, largest) or machine.unit("f32") for largest in (True, False)
    )
    if across and dot.operands[0].element.itemsize == 1:
        slow = machine.unit("f32")
    flops = dot.definition.flops(dot)
    return multiplied(flops, slow, machine, starved=ragged) - multiplied(flops, fast, machine)
