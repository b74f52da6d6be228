"""Partial kernels: one that computes a single result of a kernel with several.

What is left of the kernel is the same operations on the same tiles, so the result has the same
bits. Another result of the kernel that is still in memory is read instead of being computed again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..hlo.build import make_op
from ..hlo.graph import Op, Region, Value, arguments
from ..hlo.regions import extract, in_order_of_demand, rename
from ..hlo.tiling import MEMORY_OPS
from .cuts.choose import CUT


def partial(op: Op, result: int, there: Collection[int] = ()) -> Op:
    """A kernel that computes result number `result` of `op`, which reads those of the numbers
    `there` that help; `op` itself where nothing can be left out."""
    if len(op.results) == 1:
        return op
    if op.name == "fusion":
        return _of_fusion(op, result, there)
    if op.name == "kernel_call" and not op.starts and len(op.regions) == 1:
        return _of_tiles(op, result, there)
    return op


def _of_fusion(op: Op, result: int, there: Collection[int]) -> Op:
    region = op.regions[0]
    root = region.results[result]
    given = {region.results[number]: op.results[number] for number in there}
    outer = dict(zip(region.arguments, op.operands, strict=True)) | given
    inside = {inner for inner in region.ops if not any(v in given for v in inner.results)}
    if root.op is None or root.op not in inside:
        return op
    members, inputs = in_order_of_demand(inside, [root])
    body = extract(members, inputs, [root])
    operands = [outer[value] for value in inputs]
    facts = {name: fact for name, fact in op.attributes.items() if name != CUT}
    return make_op("fusion", operands, facts, (body,), None, op.origin, check=False)


def _of_tiles(op: Op, result: int, there: Collection[int]) -> Op:
    """The tile function without stores to other results, and without what only they need."""
    body, count = op.regions[0], len(op.operands)
    memory = body.arguments[count:]
    stored = {number: _only_store(body, memory[number]) for number in there}
    read = {number: store for number, store in stored.items() if store and _exact(store)}
    own = arguments([v.type for v in (*body.arguments[:count], *(memory[n] for n in read))])
    target = arguments([memory[result].type])
    mapping: dict[Value, Value] = dict(zip(body.arguments[:count], own, strict=False))
    mapping[memory[result]] = target[0]
    places = dict(zip(read, own[count:], strict=True))
    tiles = {store.value: (places[number], store) for number, store in read.items()}
    ops: list[Op] = []
    for inner in body.ops:
        if inner.name in MEMORY_OPS and inner.operands[0] not in mapping:
            continue  # it stores another result
        if len(inner.results) == 1 and inner.result in tiles:
            place, store = tiles[inner.result]
            if all(offset in mapping for offset in store.offsets):
                load = make_op(
                    "tile_load", [place, *(mapping[offset] for offset in store.offsets)],
                    {"sizes": inner.result.dims, "fill": 0.0}, (), None, inner.origin, check=False,
                )  # fmt: skip
                ops.append(load)
                mapping[inner.result] = load.result
                continue
        if any(_touches(nested, memory, memory[result]) for nested in inner.regions):
            return op  # a loop stores several results
        new = inner.with_operands(
            [mapping.get(v, v) for v in inner.operands],
            [rename(nested, mapping) for nested in inner.regions],
        )
        mapping.update(zip(inner.results, new.results, strict=True))
        ops.append(new)
    kept = _needed(ops, target[0])
    used = {v for inner in kept for v in _operands(inner)}
    inputs = [value for value in own if value in used]
    outer = [*op.operands, *(op.results[number] for number in read)]
    operands = [value for value, inside in zip(outer, own, strict=True) if inside in used]
    region = _on_own_arguments(kept, [*inputs, *target])
    return make_op("kernel_call", operands, op.attributes, (region,), None, op.origin, check=False)


def _on_own_arguments(ops: Sequence[Op], inputs: Sequence[Value]) -> Region:
    """A region of copies of the operations, whose arguments stand for `inputs`."""
    own = arguments([value.type for value in inputs])
    mapping = dict(zip(inputs, own, strict=True))
    copies: list[Op] = []
    for inner in ops:
        nested = [rename(region, mapping) for region in inner.regions]
        new = inner.with_operands([mapping.get(v, v) for v in inner.operands], nested)
        mapping.update(zip(inner.results, new.results, strict=True))
        copies.append(new)
    return Region(own, copies, ())


def _needed(ops: Sequence[Op], target: Value) -> list[Op]:
    """The operations that a store to the target needs, in their order."""
    wanted: set[Value] = set()
    kept: list[Op] = []
    for inner in reversed(ops):
        stores = inner.definition.stores and inner.operands[0] is target
        nested = any(
            o.definition.stores and o.operands[0] is target
            for region in inner.regions
            for o in region.walk()
        )
        if stores or nested or any(value in wanted for value in inner.results):
            kept.append(inner)
            wanted.update(_operands(inner))
    return kept[::-1]


def _operands(op: Op) -> list[Value]:
    return [*op.operands, *(value for region in op.regions for value in region.captures())]


def _touches(region: Region, memory: Sequence[Value], target: Value) -> bool:
    """Whether something inside stores a result other than the target."""
    return any(
        inner.name in MEMORY_OPS and inner.operands[0] in memory and inner.operands[0] is not target
        for inner in region.walk()
    )


def _only_store(body: Region, memory: Value) -> Op | None:
    """The one operation that touches a result, if it stands in the body itself."""
    touching = [o for o in body.walk() if o.name in MEMORY_OPS and o.operands[0] is memory]
    return touching[0] if len(touching) == 1 and touching[0] in set(body.ops) else None


def _exact(store: Op) -> bool:
    """Whether a store puts whole tiles: what is read there is what was stored."""
    return (
        store.name == "tile_store"
        and not store.combine
        and not store.masked
        and all(d % size == 0 for d, size in zip(store.memory.dims, store.value.dims, strict=True))
    )
