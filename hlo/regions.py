"""Copies of regions: captured values renamed, operations extracted, inlined or dropped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from .build import Builder
from .graph import Op, Region, Value, arguments


def shared_parts(op: Op) -> tuple[Any, ...]:
    """What copies of a kernel have in common as the same objects: operations of which this is equal
    compute the same, as long as one of them is there; () for what has no regions."""
    if not op.regions:
        return ()
    return (
        op.definition, op.regions, id(op.attributes), op.result_types,
        *(value.type for value in op.operands),
    )  # fmt: skip


def map_bodies(region: Region, change: Callable[[Op, Region], Region]) -> Region:
    """The region with `change` applied to the bodies of control flow; itself if none changes."""
    if not any(op.definition.flow for op in region.ops):
        return region
    mapping: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in region.ops:
        operands = [mapping.get(value, value) for value in op.operands]
        nested = [rename(body, mapping) for body in op.regions]
        if op.definition.flow:
            nested = [change(op, body) for body in nested]
        new = op.with_operands(operands, nested)
        if new is not op:
            mapping.update(zip(op.results, new.results, strict=True))
        ops.append(new)
    if not mapping and ops == list(region.ops):
        return region
    return Region(region.arguments, ops, [mapping.get(v, v) for v in region.results])


def exhausted(region: Region, move: Callable[[Region], Region | None]) -> Region:
    """The region after all that `move` finds (None: no more), bodies of control flow first."""
    region = map_bodies(region, lambda _, body: exhausted(body, move))
    while (moved := move(region)) is not None:
        region = moved
    return region


def aliases(op: Op) -> bool:
    """Whether an operation's results are the bytes of its operands under other types."""
    if op.name == "bitcast_convert":
        return op.operands[0].dims == op.result.dims and op.result.element.bits >= 8
    return op.name in ("reshape", "optimization_barrier")


def alias_roots(region: Region) -> dict[Value, Value]:
    """value -> the value whose bytes it shares, for aliasing operations of the region."""
    roots: dict[Value, Value] = {}
    for op in region.ops:
        if aliases(op):
            for operand, result in zip(op.operands, op.results, strict=True):
                roots[result] = roots.get(operand, operand)
    return roots


def rename(region: Region, mapping: dict[Value, Value]) -> Region:
    """A copy of the region in which captured values are replaced."""
    if not any(value in mapping for value in region.captures()):
        return region
    inner = dict(mapping)
    own = arguments(region.argument_types)
    inner.update(zip(region.arguments, own, strict=True))
    ops: list[Op] = []
    for op in region.ops:
        nested = [rename(body, inner) for body in op.regions]
        new = op.with_operands([inner.get(v, v) for v in op.operands], nested)
        inner.update(zip(op.results, new.results, strict=True))
        ops.append(new)
    return Region(own, ops, [inner.get(value, value) for value in region.results])


Change = Callable[[Builder, Op, dict[Value, Value]], bool]


def rewritten(
    region: Region,
    outer: Mapping[Value, Value],
    change: Change,
    own: Sequence[Value] | None = None,
) -> Region:
    """A copy of a region and of those inside it, on arguments of its own (or on `own`).

    `change(b, op, mapping)` may build something else in place of an operation, put what stands for
    its results into `mapping`, and return True; the operation is copied where it returns False.
    `outer` maps what the region captures.
    """
    mapping = dict(outer)
    if own is None:
        own = arguments(region.argument_types)
        mapping.update(zip(region.arguments, own, strict=True))
    b = Builder(check=False)
    for op in region.ops:
        if change(b, op, mapping):
            continue
        nested = [rewritten(body, mapping, change) for body in op.regions]
        new = op.with_operands([mapping.get(v, v) for v in op.operands], nested)
        mapping.update(zip(op.results, new.results, strict=True))
        b.append(new)
    return Region(own, b.ops, [mapping.get(v, v) for v in region.results])


def in_order_of_demand(ops: Collection[Op], roots: Sequence[Value]) -> tuple[list[Op], list[Value]]:
    """The operations that the roots need, each after its operands, and the values that they take
    from outside, by first use: what depends on nothing but the roots' own formulas, so that equal
    groups come out equal wherever their operations stood."""
    done: dict[Op, None] = {}
    inputs: dict[Value, None] = {}
    stack: list[tuple[Value, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        value, ready = stack.pop()
        op = value.op
        if op is None or op not in ops:
            inputs[value] = None
        elif op not in done:
            if ready:
                done[op] = None
            else:
                stack.append((value, True))
                stack += [(operand, False) for operand in reversed(op.operands)]
    return list(done), list(inputs)


def extract(members: Sequence[Op], inputs: Sequence[Value], roots: Sequence[Value]) -> Region:
    """A region of copies of `members` whose arguments stand for `inputs`."""
    own = arguments([value.type for value in inputs])
    mapping = dict(zip(inputs, own, strict=True))
    ops: list[Op] = []
    for op in members:
        new = Op(
            op.definition, [mapping[value] for value in op.operands], op.attributes, op.regions,
            op.result_types, op.origin,
        )  # fmt: skip
        mapping.update(zip(op.results, new.results, strict=True))
        ops.append(new)
    return Region(own, ops, [mapping[root] for root in roots])


def prune(region: Region) -> Region:
    """The region without operations that nothing needs."""
    needed = set(region.results)
    kept: list[Op] = []
    for op in reversed(region.ops):
        if op.definition.effects or any(result in needed for result in op.results):
            kept.append(op)
            needed.update(op.operands)
            for body in op.regions:
                needed.update(body.captures())
    return Region(region.arguments, kept[::-1], region.results)


def inline(builder: Builder, region: Region, inputs: list[Value]) -> list[Value]:
    """Copies of a region's operations on those inputs; its results."""
    mapping: dict[Value, Value] = dict(zip(region.arguments, inputs, strict=True))
    for op in region.ops:
        operands = [mapping.get(value, value) for value in op.operands]
        new = Op(
            op.definition, operands, op.attributes, op.regions, op.result_types, builder.origin
        )
        builder.append(new)
        mapping.update(zip(op.results, new.results, strict=True))
    return [mapping.get(value, value) for value in region.results]
