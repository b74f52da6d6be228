"""Concatenations of slices along a dim that is cut, as pads of what was sliced.

    x1, x2 = x[:n], x[n:]                 y = select(place < n, pad(-x, -n, n), pad(x, n, -n))
    y = concatenate(-x2, x1)

A slice brings a part of a tensor into blocks of its own, and the concatenation moves these once
more. A pad, which may cut what lies beyond an edge, brings each element to where it is read at
once: what rotates halves (rotary positions, `roll`) moves what changes its device, and that once.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...hlo.build import Builder
from ...hlo.graph import Op, Value
from ...hlo.regions import rewritten
from ...hlo.types import I32, QuantizedType, TensorType
from ..passes.dce import Dce
from .propagated import Propagated, propagate


def pads_for_slices(found: Propagated) -> Propagated:
    """The program with pads where concatenations along cut dims take slices along them, propagated
    again; `found` itself where there are none."""

    def change(b: Builder, op: Op, mapping: dict[Value, Value]) -> bool:
        if op.name != "concatenate" or not _is_rotation(found, op):
            return False
        with b.at(op.origin):
            mapping[op.result] = _selected(b, op, mapping)
        return True

    if not any(op.name == "concatenate" and _is_rotation(found, op) for op in found.module.walk()):
        return found
    body = found.module.body
    return propagate(Dce()(found.module.with_main(rewritten(body, {}, change, body.arguments))))


def _is_rotation(found: Propagated, op: Op) -> bool:
    dim, said = op.dimension, found.shardings.get(op.result)
    if said is None or not said.dims[dim].axes or isinstance(op.result.element, QuantizedType):
        return False
    sources = [_sliced(value, dim) for value in op.operands]
    for source in sources:
        if source is None:
            continue
        lying = found.shardings.get(source.operands[0])
        if lying is not None and lying.dims[dim].axes:
            return True
    return False


def _chain(value: Value) -> tuple[list[Op], Value]:
    """Elementwise operations of one operand that end in the value, the last first, and on what."""
    steps: list[Op] = []
    while (op := value.op) is not None and op.definition.pattern == "elementwise":
        if len(op.operands) != 1 or len(op.results) != 1 or op.regions or op.definition.effects:
            break
        steps.append(op)
        value = op.operands[0]
    return steps, value


def _sliced(value: Value, dim: int) -> Op | None:
    """The slice along that dim, without strides, of which elementwise operations make the value."""
    op = _chain(value)[1].op
    if op is None or op.name != "slice" or set(op.strides) - {1}:
        return None
    return op if op.operands[0].dims[dim] != op.result.dims[dim] else None


def _selected(b: Builder, op: Op, mapping: dict[Value, Value]) -> Value:
    kind, dim = TensorType(op.result.dims, op.result.element), op.dimension
    parts: list[Value] = []
    ends: list[int] = []
    end = 0
    for value in op.operands:
        parts.append(_padded(b, value, dim, end, kind.dims[dim], mapping))
        end += value.dims[dim]
        ends.append(end)
    places = b("iota", type=kind.with_element(I32), iota_dimension=dim)
    *others, found = parts
    for part, limit in zip(reversed(others), reversed(ends[:-1]), strict=True):
        before = b.compare("LT", places, b.constant(limit, places.tensor))
        found = b("select", before, part, found)
    return found


def _padded(
    b: Builder, value: Value, dim: int, begin: int, size: int, mapping: dict[Value, Value]
) -> Value:
    """The value from `begin` on along a dim of that size; elsewhere anything."""
    found = _sliced(value, dim)
    steps: Sequence[Op] = ()
    rank = value.rank
    low, high = [0] * rank, [0] * rank
    if found is None:
        source = value
    else:
        (steps, _), source = _chain(value), found.operands[0]
        low = [-start for start in found.start_indices]
        edges = zip(found.limit_indices, source.dims, strict=True)
        high = [limit - whole for limit, whole in edges]
    low[dim] += begin
    high[dim] += size - begin - value.dims[dim]
    made = mapping.get(source, source)
    made = b(
        "pad", made, b.constant(0, made.tensor.with_dims(())), edge_padding_low=tuple(low),
        edge_padding_high=tuple(high), interior_padding=(0,) * rank,
    )  # fmt: skip
    for step in reversed(steps):
        kind = step.result.tensor.with_dims(made.dims)
        made = b.op(step.name, [made], step.attributes, (), [kind]).result
    return made
