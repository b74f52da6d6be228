"""A product of few tiles and a long sum: parts of the sum in blocks of their own.

The first launch writes the sum of each part to scratch; the second adds them, always in the same
order, and does what follows the product.
"""

from __future__ import annotations

import math

from ....hlo.build import Builder, make_op
from ....hlo.graph import Op, Region, Value, arguments
from ....hlo.types import F32, TensorType
from ...llvm import elements
from ..frame import Unfit, Unit
from ..launch import KernelCode, Memory
from ..plain.region import Lowering
from ..plain.work import Work
from ..target import Architecture, Target
from . import kernel

LEAST = 512  # of the sum, that a part has
MOST = 16  # parts


def parts_of(call: Op, region: Region, architecture: Architecture) -> int:
    """How many parts the sum of a contraction is cut into, whose kernel_call would be `call`."""
    (main,) = (op for op in region.ops if op.name in ("dot_general", "convolution"))
    tiles = math.prod(call.grid)
    if main.name != "dot_general" or len(main.lhs_contracting_dimensions) != 1:
        return 1
    depth = main.operands[0].dims[main.lhs_contracting_dimensions[0]]
    parts = 1
    while (
        parts < MOST
        and 2 * parts * tiles <= architecture.multiprocessors
        and depth % (2 * parts) == 0
        and depth // (2 * parts) >= LEAST
    ):
        parts *= 2
    return parts


def emit(op: Op, region: Region, target: Target, parts: int) -> KernelCode:
    """The kernel of a fusion around one product, its sum cut into so many parts."""
    from .contraction import calls  # it asks for parts

    (main,) = (inner for inner in region.ops if inner.name == "dot_general")
    if any(value.owner is not region for value in main.operands):
        raise Unfit("an operand of a sum in parts is computed")
    first = _partial(main, parts)
    types = first.argument_types
    fusion = make_op(
        "fusion", arguments(types), {"kind": "contract"}, (first,), first.result_types, op.origin,
        check=False,
    )  # fmt: skip
    unit, count = Unit(target), len(region.arguments)
    work = Work(unit, frozenset())
    sums = work.reserve(first.results[0].tensor.bytes)
    reason = "no tile of its parts stands alone"
    for call in calls(fusion, first, target):
        places = [*(Memory(value.index) for value in main.operands), sums]
        try:
            emitter = kernel.lowered(call, target, False, places, unit)
        except Unfit as unfit:
            reason, unit = str(unfit), Unit(target)
            work.unit = unit
            continue
        block = emitter.block
        work.launches.append(block.entry.finish(math.prod(call.grid), block.arena.size))
        break
    else:
        raise Unfit(reason)
    rest = _rest(region, main, first.results[0])
    where = dict(
        zip(rest.arguments, [sums, *(Memory(number) for number in range(count))], strict=True)
    )
    results = [Memory(count + number) for number in range(len(region.results))]
    Lowering(work, rest, where, results).run()
    moved = float(sum(value.tensor.bytes for value in (*region.arguments, *region.results)))
    note = f"the sum is done in {parts} parts"
    flops = op.definition.flops(op)
    return unit.code(work.launches, flops, moved, scratch=work.scratch, notes=(note,))


def _partial(main: Op, parts: int) -> Region:
    """The product of two operands whose summed dim is cut: part, then the result's dims."""
    b = Builder(main.origin, check=False)
    types, facts = [], {}
    for value, side in zip(main.operands, ("lhs", "rhs"), strict=True):
        (summed,) = getattr(main, f"{side}_contracting_dimensions")
        batches = getattr(main, f"{side}_batching_dimensions")
        dims = value.dims
        cut = (*dims[:summed], parts, dims[summed] // parts, *dims[summed + 1 :])
        types.append(value.tensor.with_dims(cut))
        facts[f"{side}_batching_dimensions"] = (summed, *(d + (d > summed) for d in batches))
        facts[f"{side}_contracting_dimensions"] = (summed + 1,)
    result = main.result
    element = F32 if elements.is_rounded(result.element) else result.element
    kind = TensorType((parts, *result.dims), element)
    precision = main.attributes.get("precision_config", ())
    sides = b.arguments(types)
    return b.region([b("dot_general", *sides, type=kind, precision_config=precision, **facts)])


def _rest(region: Region, main: Op, sums: Value) -> Region:
    """The region behind the product, of the parts' sums and the region's arguments."""
    b = Builder(main.origin, check=False)
    total, *own = b.arguments([sums.type, *region.argument_types])
    known = dict(zip(region.arguments, own, strict=True))
    zero = b.constant(0, TensorType((), sums.element))
    whole = b.reduce("add", total, zero, (0,))
    known[main.result] = b.convert(whole, main.result.element)

    def made(value: Value) -> Value:
        if value not in known:
            op = value.op
            assert op is not None
            new = b.append(op.with_operands([made(one) for one in op.operands]))
            known.update(zip(op.results, new.results, strict=True))
        return known[value]

    return b.region([made(root) for root in region.results])
