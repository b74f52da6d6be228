"""A kernel over one more leading dim of its arrays: the grid gets one axis for it."""

from __future__ import annotations

from collections.abc import Sequence

from ...hlo.build import Builder
from ...hlo.errors import CompilerBug
from ...hlo.graph import Function, Module, Op, Region, Value, arguments
from ...hlo.tiling import MEMORY_OPS
from ...hlo.types import TensorType


def starts(module: Module) -> set[int]:
    """Numbers of the inputs that results of the kernel start as."""
    op = module.body.ops[0]
    return {at for at in op.attributes.get("starts") or () if at >= 0}


def batched(module: Module, size: int, inputs: Sequence[bool]) -> Module:
    """The kernel that runs `size` times at once: inputs marked so, and every result, have the batch
    as their first dim; the others are shared by all of it, which `starts` cannot be.
    """
    op = module.body.ops[0]
    if op.name != "kernel_call":
        raise CompilerBug(f"a batch of {op.name}")
    if not all(inputs[start] for start in starts(module)):
        raise CompilerBug(f"{op.kernel}: a batch of results starts as one shared input")
    flags = [*inputs, *(True for _ in op.results)]
    body = op.regions[0]
    types = [
        TensorType((size, *kind.dims), kind.element) if flag else kind
        for flag, kind in zip(flags, (v.tensor for v in body.arguments), strict=True)
    ]
    own = arguments(types)
    extended = {value for value, flag in zip(own, flags, strict=True) if flag}
    builder = Builder(op.origin)
    axis = builder("tile_id", axis=len(op.grid))
    mapping = dict(zip(body.arguments, own, strict=True))
    ops = _rewritten(body.ops, mapping, extended, axis, builder)
    region = Region(own, ops, ())
    outer = Builder(op.origin)
    operands = outer.arguments(types[: len(inputs)])
    facts = {**op.attributes, "grid": (*op.grid, size)}
    call = outer.op("kernel_call", operands, facts, (region,))
    main = Function("main", outer.region(call.results))
    return Module({"main": main}, name=module.name)


def _rewritten(
    ops: Sequence[Op],
    mapping: dict[Value, Value],
    extended: set[Value],
    axis: Value,
    builder: Builder,
) -> list[Op]:
    """Copies of operations; those on extended memory get the batch's offset and a size of 1."""
    for op in ops:
        builder.origin = op.origin
        operands = [mapping.get(value, value) for value in op.operands]
        if op.name in MEMORY_OPS and operands[0] in extended:
            mapping.update(zip(op.results, _access(op, operands, axis, builder), strict=True))
            continue
        regions = []
        for body in op.regions:
            own = arguments(body.argument_types)
            inner = {**mapping, **dict(zip(body.arguments, own, strict=True))}
            inside = _rewritten(body.ops, inner, extended, axis, Builder())
            regions.append(Region(own, inside, [inner.get(v, v) for v in body.results]))
        new = Op(op.definition, operands, op.attributes, regions, op.result_types, op.origin)
        builder.append(new)
        mapping.update(zip(op.results, new.results, strict=True))
    return builder.ops


def _access(op: Op, operands: list[Value], axis: Value, builder: Builder) -> list[Value]:
    """The access at the batch's own part of the memory."""
    facts = dict(op.attributes)
    gathers = op.name in ("tile_gather", "tile_scatter")
    if "axis" in facts:
        facts["axis"] += 1
    if op.name in ("tile_load", "tile_gather"):
        facts["sizes"] = (1, *op.sizes)
        first = 2 if gathers else 1
        value = builder(op.name, *operands[:first], axis, *operands[first:], **facts)
        return [builder.reshape(value, op.sizes)]
    stored = builder.reshape(operands[1], (1, *operands[1].dims))
    first = 3 if gathers else 2
    rest = operands[first:]
    if facts.get("masked"):
        rest[-1] = builder.reshape(rest[-1], (1, *rest[-1].dims))
    builder.op(op.name, [operands[0], stored, *operands[2:first], axis, *rest], facts)
    return []
