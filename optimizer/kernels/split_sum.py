"""A product of few tiles and a long sum: parts of the sum in tiles of their own (split-K).

One kernel writes the sum of each part; a second one adds them, always in the same order, and does
what follows the product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ...hlo.build import Builder
from ...hlo.deciding import estimating
from ...hlo.graph import Op, Region, Value
from ...hlo.types import TensorType
from ..cost.model import moved
from ..tiles import implicit
from ..tiles.contraction import NOISE
from .operand_layout import stored
from .tiled import Tiled, Tilings, contractions

LEAST = 256  # bytes of an operand along the sum, that a part has
MOST = 16  # parts
_DIMENSIONS = (
    "batch_dimension", "feature_dimension", "input_feature_dimension", "output_feature_dimension",
    "spatial_dimensions",
)  # fmt: skip


class SplitSum(NamedTuple):
    """`product`: of the arguments `sources`, as other dims; it gives the sum of each part. `rest`:
    of these sums and of all arguments, what the region computes."""

    parts: int
    product: Region
    sources: tuple[int, ...]
    rest: Region


@estimating()
def parts_of(region: Region, whole: Tiled, tilings: Tilings) -> int:
    """How many parts the sum of a region around one contraction is best cut into, by the units that
    compute it as a whole; 1: it stays."""
    (main,) = contractions(region)
    if main.name == "convolution":
        if implicit.refusal(main) or main.feature_group_count != 1:
            return 1
        depth = main.operands[1].dims[main.kernel_input_feature_dimension]
    elif len(main.lhs_contracting_dimensions) == 1:
        depth = main.operands[0].dims[main.lhs_contracting_dimensions[0]]
    else:
        return 1
    if any(stored(value)[0].owner is not region for value in main.operands):
        return 1
    sums, result = main.result.tensor.size * 4, main.result.tensor.bytes
    best = whole.seconds, 1
    parts = 2
    while parts <= MOST and depth % parts == 0:
        if depth // parts * main.operands[0].element.itemsize < LEAST:
            break
        first = _partial(main, parts)
        one = None if first is None else tilings.best(first)
        if not isinstance(one, Tiled) or one.kind is not whole.kind:
            break
        time = one.seconds + moved(tilings.machine, parts * sums, result)
        if NOISE * time < best[0]:
            best = time, parts
        parts *= 2
    return best[1]


def in_parts(region: Region, parts: int) -> SplitSum:
    """A region around one contraction, whose sum `parts_of` cuts into so many parts."""
    (main,) = contractions(region)
    product = _partial(main, parts)
    assert product is not None
    sources = tuple(stored(value)[0].index for value in main.operands)
    along = main.output_feature_dimension if main.name == "convolution" else 0
    rest = _rest(region, main, product.results[0].tensor, along)
    return SplitSum(parts, product, sources, rest)


def _partial(main: Op, parts: int) -> Region | None:
    """The product of two operands whose summed dim is cut: part, then the result's dims; of a
    convolution, part and output feature are one dim. None where the result's dims are not in the
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
            return None
        dims = value.dims
        cut = (*dims[:summed], parts, dims[summed] // parts, *dims[summed + 1 :])
        types.append(value.tensor.with_dims(cut))
        facts[f"{side}_batching_dimensions"] = (summed, *(d + (d > summed) for d in batches))
        facts[f"{side}_contracting_dimensions"] = (summed + 1,)
    result = main.result
    kind = TensorType((parts, *result.dims), implicit.sum_type(main))
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
    permuted = b.reshape(b.transpose(cut, order), groups)
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
    kind = TensorType(result, implicit.sum_type(main))
    return b.region([b("convolution", x, permuted, type=kind, **facts)])


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
