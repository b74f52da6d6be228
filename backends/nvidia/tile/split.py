"""A product of few tiles and a long sum: parts of the sum in blocks of their own.

The first launch writes the sum of each part to scratch; the second adds them, always in the same
order, and does what follows the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ....hlo.build import Builder
from ....hlo.deciding import estimating
from ....hlo.graph import Op, Region, Value
from ....hlo.types import F32, TensorType
from ....optimizer.cost.blocks import BlockCounter
from ....optimizer.cost.model import moved
from ....optimizer.fusable import CONTRACTIONS
from ....optimizer.machine import Machine
from ....optimizer.tiles import implicit
from ....optimizer.tiles.contraction import NOISE, predicted
from ...llvm import elements
from ..apart import Parts
from ..frame import Unfit
from ..launch import KernelCode, Memory
from ..target import Target

LEAST = 256  # bytes of an operand along the sum, that a part has
MOST = 16  # parts
_DIMENSIONS = (
    "batch_dimension", "feature_dimension", "input_feature_dimension", "output_feature_dimension",
    "spatial_dimensions",
)  # fmt: skip

Emit = Callable[[Region], KernelCode]


@estimating()
def parts_of(region: Region, machine: Machine, kind: type[BlockCounter]) -> int:
    """How many parts the sum of a region around one product is best cut into; 1: it stays."""
    (main,) = (op for op in region.ops if op.name in CONTRACTIONS)
    if main.name == "convolution":
        if implicit.refusal(main) or main.feature_group_count != 1:
            return 1
        depth = main.operands[1].dims[main.kernel_input_feature_dimension]
    elif len(main.lhs_contracting_dimensions) == 1:
        depth = main.operands[0].dims[main.lhs_contracting_dimensions[0]]
    else:
        return 1
    sums, result = main.result.tensor.size * 4, main.result.tensor.bytes
    best = predicted(region, machine, kind), 1
    parts = 2
    while parts <= MOST and depth % parts == 0:
        if depth // parts * main.operands[0].element.itemsize < LEAST:
            break
        try:
            first = partial(main, parts)
        except Unfit:
            break
        time = predicted(first, machine, kind) + moved(machine, parts * sums, result)
        if NOISE * time < best[0]:
            best = time, parts
        parts *= 2
    return best[1]


def emit(region: Region, parts: int, target: Target, product: Emit, rest: Emit) -> KernelCode:
    """The kernel of a region around one product, its sum cut into so many parts. `product` and
    `rest` emit what sums the parts, and what adds them and follows the product."""
    (main,) = (op for op in region.ops if op.name in CONTRACTIONS)
    first = partial(main, parts)
    whole = Parts()
    operands = [stored(value)[0] for value in main.operands]
    if any(value.owner is not region for value in operands):
        raise Unfit("an operand of a sum in parts is computed")
    sums = whole.reserve(first.results[0].tensor.bytes)
    whole.add(product(first), [*(Memory(value.index) for value in operands), sums])
    along = main.output_feature_dimension if main.name == "convolution" else 0
    behind = _rest(region, main, first.results[0].tensor, along)
    count = len(region.arguments)
    places = [sums, *(Memory(n) for n in range(count + len(region.results)))]
    whole.add(rest(behind), places)
    with estimating():
        moved = float(sum(value.tensor.bytes for value in (*region.arguments, *region.results)))
    note = f"the sum is done in {parts} parts"
    return whole.code(main.definition.flops(main), moved, (note,))


def stored(value: Value) -> tuple[Value, list[int]]:
    """What an operand is a transposition of, and for each of the operand's dims which of its."""
    dims = list(range(value.rank))
    while value.op is not None and value.op.name == "transpose":
        dims = [value.op.permutation[d] for d in dims]
        value = value.op.operands[0]
    return value, dims


def partial(main: Op, parts: int) -> Region:
    """The product of two operands whose summed dim is cut: part, then the result's dims; of a
    convolution, part and output feature are one dim. Unfit where the result's dims are not in the
    order of the operands'."""
    if main.name == "convolution":
        return _of_groups(main, parts)
    b = Builder(main.origin, check=False)
    types: list[TensorType] = []
    facts: dict[str, Any] = dict(main.attributes)
    for operand, side in zip(main.operands, ("lhs", "rhs"), strict=True):
        value, order = stored(operand)
        (summed,) = (order[d] for d in getattr(main, f"{side}_contracting_dimensions"))
        batches = [order[d] for d in getattr(main, f"{side}_batching_dimensions")]
        free = [d for n, d in enumerate(order) if d != summed and d not in batches]
        if free != sorted(free):
            raise Unfit("an operand of a sum in parts is transposed")
        dims = value.dims
        cut = (*dims[:summed], parts, dims[summed] // parts, *dims[summed + 1 :])
        types.append(value.tensor.with_dims(cut))
        facts[f"{side}_batching_dimensions"] = (summed, *(d + (d > summed) for d in batches))
        facts[f"{side}_contracting_dimensions"] = (summed + 1,)
    result = main.result
    element = F32 if elements.is_rounded(result.element) else result.element
    kind = TensorType((parts, *result.dims), element)
    sides = b.arguments(types)
    return b.region([b("dot_general", *sides, type=kind, **facts)])


def _of_groups(main: Op, parts: int) -> Region:
    """The convolution with as many groups of input features, each of which gives all features."""
    b = Builder(main.origin, check=False)
    (image, lies), (kernel, ours) = map(stored, main.operands)
    feature, depth = (
        ours[d] for d in (main.kernel_output_feature_dimension, main.kernel_input_feature_dimension)
    )
    x, w = b.arguments([image.type, kernel.type])
    dims = kernel.dims
    cut = b.reshape(w, (*dims[:depth], parts, dims[depth] // parts, *dims[depth + 1 :]))
    moved = [d + (d > depth) for d in range(len(dims))]  # dims of the kernel in `cut`
    moved[depth] = depth + 1
    order = [moved[d] for d in range(len(dims))]
    order.insert(order.index(moved[feature]), depth)
    groups = list(dims)
    groups[feature], groups[depth] = parts * dims[feature], dims[depth] // parts
    turned = b.reshape(b.transpose(cut, order), groups)
    facts: dict[str, Any] = dict(main.attributes)
    for side, order in (("input", lies), ("kernel", ours)):
        for name in _DIMENSIONS:
            key = f"{side}_{name}"
            if key in facts:
                found = facts[key]
                several = isinstance(found, tuple)
                facts[key] = tuple(order[d] for d in found) if several else order[found]
    facts["feature_group_count"] = parts
    result = list(main.result.dims)
    result[main.output_feature_dimension] *= parts
    element = F32 if elements.is_rounded(main.result.element) else main.result.element
    return b.region([b("convolution", x, turned, type=TensorType(result, element), **facts)])


def _rest(region: Region, main: Op, sums: TensorType, along: int) -> Region:
    """The region behind the product, of the parts' sums, which stand along one dim, and the
    region's arguments: neighbours are added first."""
    b = Builder(main.origin, check=False)
    total, *own = b.arguments([sums, *region.argument_types])
    known = dict(zip(region.arguments, own, strict=True))
    found = list(_each(b, total, along, main.result.dims))
    while len(found) > 1:
        found = [b("add", *found[n : n + 2]) for n in range(0, len(found), 2)]
    known[main.result] = b.convert(found[0], main.result.element)

    def made(value: Value) -> Value:
        if value not in known:
            op = value.op
            assert op is not None
            new = b.append(op.with_operands([made(one) for one in op.operands]))
            known.update(zip(op.results, new.results, strict=True))
        return known[value]

    return b.region([made(root) for root in region.results])


def _each(b: Builder, total: Value, along: int, dims: Sequence[int]) -> Iterator[Value]:
    """The parts of a value along one dim, each of `dims`."""
    ones, size = (1,) * total.rank, dims[along] if total.rank == len(dims) else 1
    for first in range(0, total.dims[along], size):
        starts, limits = [0] * total.rank, list(total.dims)
        starts[along], limits[along] = first, first + size
        one = b(
            "slice", total, start_indices=tuple(starts), limit_indices=tuple(limits), strides=ones
        )
        yield b.reshape(one, dims)
