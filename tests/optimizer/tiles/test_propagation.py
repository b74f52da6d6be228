"""Boxes of groups: what a tile of the result needs of every value, against what it really reads."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from girih.hlo.access import access_of
from girih.hlo.build import build_region
from girih.hlo.graph import Function, Module, Op, Region, Value
from girih.hlo.interpret import interpret
from girih.hlo.ops.convolution import numbers
from girih.hlo.types import F32, I1, I32, TensorType
from girih.optimizer.tiles.access import (
    Span,
    TilePropagation,
    box,
    contains_span,
    count,
    is_contained,
    propagate,
    tile_size,
    tile_span,
    tiles,
    union,
    union_span,
    volume,
    whole,
)
from girih.optimizer.tiles.expressions import evaluate, expression

from ..test_random_programs import program

MATRIX = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
BATCHED = {"lhs_batching_dimensions": (0, 1), "rhs_batching_dimensions": (0, 1)}


def kind(*dims: int) -> TensorType:
    return TensorType(dims, F32)


def convolve(b: Any, x: Value, kernel: Value, **facts: Any) -> Value:
    return b("convolution", x, kernel, **{**numbers(2), "padding": ((1, 1), (1, 1)), **facts})


def two_convolutions(b: Any, x: Value, first: Value, second: Value) -> list[Value]:
    middle = convolve(b, x, first)
    return [convolve(b, b("maximum", middle, b.constant(0, middle.tensor)), second)]


def depthwise_pointwise(b: Any, x: Value, first: Value, second: Value) -> list[Value]:
    middle = convolve(b, x, first, feature_group_count=x.dims[3])
    return [convolve(b, middle, second, padding=())]


def grouped(b: Any, x: Value, kernel: Value) -> list[Value]:
    return [convolve(b, x, kernel, feature_group_count=2, window_strides=(2, 1))]


def two_products(b: Any, x: Value, first: Value, second: Value) -> list[Value]:
    return [b("dot_general", b("tanh", b("dot_general", x, first, **MATRIX)), second, **MATRIX)]


def norm_product(b: Any, x: Value, weight: Value) -> list[Value]:
    zero = b.constant(0, kind())
    mean = b("multiply", b.reduce("add", x, zero, [1]), b.constant(1 / x.dims[1], kind(x.dims[0])))
    centred = b("subtract", x, b.broadcast(mean, x.dims, (0,)))
    scale = b("rsqrt", b.reduce("add", b("multiply", centred, centred), zero, [1]))
    normal = b("multiply", centred, b.broadcast(scale, x.dims, (0,)))
    return [b("dot_general", normal, weight, **MATRIX)]


def attention(b: Any, q: Value, k: Value, v: Value) -> list[Value]:
    last = {"lhs_contracting_dimensions": (3,), "rhs_contracting_dimensions": (3,)}
    scores = b("dot_general", q, k, **last, **BATCHED)
    top = b.reduce("maximum", scores, b.constant(-np.inf, kind()), [3])
    powers = b("exponential", b("subtract", scores, b.broadcast(top, scores.dims, (0, 1, 2))))
    total = b.reduce("add", powers, b.constant(0, kind()), [3])
    weights = b("divide", powers, b.broadcast(total, scores.dims, (0, 1, 2)))
    inner = {"lhs_contracting_dimensions": (3,), "rhs_contracting_dimensions": (2,)}
    heads = b.transpose(b("dot_general", weights, v, **inner, **BATCHED), (0, 2, 1, 3))
    batch, length, count, size = heads.dims
    return [b.reshape(heads, (batch, length, count * size))]


def patches(b: Any, x: Value) -> list[Value]:
    n, c, h, w = x.dims
    parts = b.transpose(b.reshape(x, (n, c, h // 2, 2, w // 2, 2)), (0, 2, 4, 1, 3, 5))
    return [b.reshape(parts, (n * (h // 2) * (w // 2), c * 4))]


def moved(b: Any, x: Value) -> list[Value]:
    """Slices, pads, reversals, and one value that two others need at different places."""
    zero = b.constant(0, kind())
    n, m = x.dims
    shifted = b("slice", x, start_indices=(2, 0), limit_indices=(n, m), strides=(1, 1))
    back = b("pad", shifted, zero, edge_padding_low=(0, 0), edge_padding_high=(2, 0),
             interior_padding=(0, 0))  # fmt: skip
    flipped = b("reverse", x, dimensions=(1,))
    return [b("add", b("add", back, x), flipped)]


def dilated(b: Any, x: Value) -> list[Value]:
    zero = b.constant(0, kind())
    spread = b("pad", x, zero, edge_padding_low=(1, -1), edge_padding_high=(0, 2),
               interior_padding=(1, 2))  # fmt: skip
    n, m = spread.dims
    return [b("slice", spread, start_indices=(0, 1), limit_indices=(n, m), strides=(3, 1))]


GROUPS: dict[str, tuple[Callable[..., list[Value]], Sequence[TensorType]]] = {
    "two_convolutions": (two_convolutions, [kind(2, 6, 5, 3), kind(3, 3, 3, 4), kind(3, 3, 4, 2)]),
    "depthwise_pointwise": (
        depthwise_pointwise, [kind(1, 6, 5, 4), kind(3, 3, 1, 4), kind(1, 1, 4, 6)],
    ),
    "grouped": (grouped, [kind(1, 6, 5, 4), kind(3, 3, 2, 6)]),
    "two_products": (two_products, [kind(7, 4), kind(4, 9), kind(9, 5)]),
    "norm_product": (norm_product, [kind(7, 6), kind(6, 5)]),
    "attention": (attention, [kind(2, 3, 5, 4)] * 3),
    "patches": (patches, [kind(2, 3, 4, 6)]),
    "moved": (moved, [kind(8, 5)]),
    "dilated": (dilated, [kind(5, 4)]),
}  # fmt: skip


def group(name: str) -> Region:
    body, types = GROUPS[name]
    return build_region(types, body)


def numbers_of(boxes: TilePropagation, values: dict[str, int]) -> dict[Value, list[list[int]]]:
    """For each value the indices per dim that its box names, inside the tensor."""
    spans = [(v, s) for v, b in boxes.boxes.items() for s in b.spans]
    sizes = evaluate([e for _, s in spans for e in (s.offset, s.size)], values)
    found: dict[Value, list[list[int]]] = {v: [] for v in boxes.boxes}
    for (v, s), first, size in zip(spans, sizes[::2], sizes[1::2], strict=True):
        last = int(first) + int(size) * s.stride
        found[v].append([i for i in range(int(first), last, s.stride) if 0 <= i < s.bound])
    return found


def read(op: Op, wanted: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Which elements of the operands the wanted ones of the result need, element by element."""
    access = access_of(op)
    assert access is not None
    extents = [iteration.extent for iteration in access.iterations]
    points = np.indices(extents).reshape(len(extents), -1) if extents else np.zeros((0, 1), int)
    if access.rank:
        points = points[:, wanted[tuple(points[: access.rank])]]
    elif not wanted:
        points = points[:, :0]
    masks = []
    for indices, value in zip(access.operands, op.operands, strict=True):
        inside = np.ones(points.shape[1], bool)
        place = []
        for index, dim in zip(indices, value.dims, strict=True):
            total = np.full(points.shape[1], index.offset)
            for dim_, coefficient, divisor in index.terms:
                total = total + coefficient * (points[dim_] // divisor)
            if index.dilated:
                inside &= total % index.divisor == 0
            total = total // index.divisor
            total = total % index.modulus if index.modulus else total
            inside &= (total >= 0) & (total < dim)
            place.append(total)
        mask = np.zeros(value.dims, bool)
        mask[tuple(p[inside] for p in place)] = inside.any()
        masks.append(mask)
    return masks


def needed(region: Region, root: np.ndarray[Any, Any]) -> dict[Value, np.ndarray[Any, Any]]:
    """The elements of every value that the root's need, by following each of them."""
    masks = {region.results[0]: root}
    for op in reversed(region.ops):
        wanted = masks.get(op.results[0])
        if wanted is not None:
            for value, mask in zip(op.operands, read(op, wanted), strict=True):
                masks[value] = masks[value] | mask if value in masks else mask
    return masks


@pytest.mark.parametrize("name", GROUPS)
def test_boxes_are_what_is_read(name: str) -> None:
    """For many sizes and all tile ids: no element is left out, and none too many where `exact`."""
    region = group(name)
    root = region.results[0]
    boxes = propagate(region.ops, {root: tiles(root.dims)})
    chance = random.Random(name)
    tight = 0
    for _ in range(24):
        sizes = [chance.choice((1, 2, 3, d, max(d // 2, 1))) for d in root.dims]
        sizes = [min(size, dim) for size, dim in zip(sizes, root.dims, strict=True)]
        grid = list(
            itertools.product(*(range(-(-d // s)) for d, s in zip(root.dims, sizes, strict=True)))
        )
        for ids in chance.sample(grid, min(len(grid), 6)):
            values = {f"s{d}": s for d, s in enumerate(sizes)}
            values |= {f"t{d}": t for d, t in enumerate(ids)}
            found = numbers_of(boxes, values)
            mask = np.zeros(root.dims, bool)
            mask[np.ix_(*found[root])] = True
            inside = all((t + 1) * s <= d for t, s, d in zip(ids, sizes, root.dims, strict=True))
            for value, wanted in needed(region, mask).items():
                given = np.zeros(value.dims, bool)
                if value.rank:
                    given[np.ix_(*found[value])] = True
                    assert not (wanted & ~given).any(), (values, value, boxes.boxes[value])
                    amount, room = evaluate(
                        [count(boxes.boxes[value]), volume(boxes.boxes[value])], values
                    )
                    assert int(amount) == given.sum() <= int(room)
                    if inside and boxes.boxes[value].exact:
                        tight += 1
                        assert np.array_equal(wanted, given), (values, value)
    assert tight > 50 or name == "patches"


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_may_be_cut_anywhere(name: str) -> None:
    """Composition is associative: boxes through two halves are those through the whole."""
    region = group(name)
    root = region.results[0]
    together = propagate(region.ops, {root: tiles(root.dims)})
    for cut in range(1, len(region.ops)):
        late = propagate(region.ops[cut:], {root: tiles(root.dims)})
        before = {v for op in region.ops[:cut] for v in op.results}
        roots = {v: b for v, b in late.boxes.items() if v in before}
        early = propagate(region.ops[:cut], roots)
        arguments = [late.boxes.get(v) for v in region.arguments]
        for value, late_box in zip(region.arguments, arguments, strict=True):
            parts = [b for b in (late_box, early.boxes.get(value)) if b is not None]
            merged = parts[0] if len(parts) == 1 else union(*parts) if parts else None
            if merged is not None and value in together.boxes:
                assert is_contained(together.boxes[value], merged)
                assert is_contained(merged, together.boxes[value])


def test_halo_of_two_convolutions() -> None:
    region = build_region(
        [kind(1, 64, 64, 8), kind(3, 3, 8, 8), kind(3, 3, 8, 8)], two_convolutions
    )
    root = region.results[0]
    boxes = propagate(region.ops, {root: tiles(root.dims, tiled=(1, 2))})
    s1, s2 = tile_size(1, 64), tile_size(2, 64)
    middle = boxes.boxes[region.ops[0].result]
    assert [span.size for span in middle.spans[1:3]] == [s1 + 2, s2 + 2]
    assert [span.size for span in boxes.boxes[region.arguments[0]].spans[1:3]] == [s1 + 4, s2 + 4]
    assert boxes.exact and not boxes.opaque


def test_inner_products_columns_are_the_outer_ones_depth() -> None:
    region = build_region([kind(64, 32), kind(32, 128), kind(128, 16)], two_products)
    root, outer = region.results[0], region.ops[-1]
    cut = propagate(region.ops, {root: tiles(root.dims)}, {outer: [tile_span(2, 128)]})
    first = cut.boxes[region.ops[0].result]
    assert first.spans == (tile_span(0, 64), tile_span(2, 128))
    assert cut.boxes[region.arguments[1]].spans[1] == tile_span(2, 128)
    (*_, depth) = cut.iterations(outer)
    assert depth[0].monoid == "add" and depth[1] == tile_span(2, 128)


def test_heads_are_split_without_slack_where_sizes_fit() -> None:
    region = build_region([kind(1, 8, 256, 64)] * 3, attention)
    root = region.results[0]
    boxes = propagate(region.ops, {root: tiles(root.dims, tiled=(1, 2))})
    keys = boxes.boxes[region.arguments[1]]
    for size, heads in ((64, 1), (32, 1), (128, 2), (512, 8), (96, 2)):
        assert evaluate([volume(keys)], {"s1": 16, "s2": size}) == [heads * 256 * 64]


def test_opaque_operations_are_whole() -> None:
    def body(b: Any, state: Value, x: Value) -> list[Value]:
        barrier = b.op("optimization_barrier", [x])
        return [b("tanh", barrier.result)]

    region = build_region([kind(3), kind(8, 4)], body)
    root = region.results[0]
    boxes = propagate(region.ops, {root: tiles(root.dims)})
    assert boxes.opaque == (region.ops[0],)
    assert boxes.boxes[region.arguments[1]] == whole((8, 4))


def test_values_that_regions_capture_are_whole() -> None:
    def body(b: Any, pred: Value, x: Value) -> list[Value]:
        grown = b("tanh", x)
        branches = [
            build_region([], lambda c: [c("negate", grown)]),
            build_region([], lambda c: [c("abs", grown)]),
        ]
        return [b.op("if", [pred], regions=branches).result]

    region = build_region([TensorType((), I1), kind(8, 4)], body)
    root = region.results[0]
    boxes = propagate(region.ops, {root: tiles(root.dims)})
    assert boxes.boxes[region.arguments[1]] == whole((8, 4))


def test_dynamic_slices_name_their_starts() -> None:
    def body(b: Any, x: Value, i: Value) -> list[Value]:
        return [b("dynamic_slice", x, i, i, slice_sizes=(3, 4))]

    region = build_region([kind(8, 4), TensorType((), I32)], body)
    root = region.results[0]
    boxes = propagate(region.ops, {root: tiles(root.dims)})
    first, second = boxes.boxes[region.arguments[0]].spans
    assert list(boxes.runtime) == ["r0.1"] and boxes.runtime["r0.1"] is region.arguments[1]
    assert "r0.1" in str(first.offset) and second == tile_span(1, 4)


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_random_programs_read_no_more(chance: random.Random) -> None:
    """A tile of a random program's result does not change with what lies outside of the boxes."""
    module, inputs = program(chance, sums=False)
    region = module.body
    root = region.results[0]
    if root.op is None or 0 in root.dims:
        return
    ranges = []
    for dim in root.dims:
        size = chance.randint(1, dim)
        ranges.append((chance.randint(0, dim - size), size))
    boxes = propagate(region.ops, {root: box(ranges, root.dims)})
    if boxes.runtime:
        return
    found = numbers_of(boxes, {})
    garbage = []
    for argument, x in zip(region.arguments, inputs, strict=True):
        other = np.full_like(x, 77)
        if argument in boxes.boxes and x.ndim:
            place = np.ix_(*(np.array(line, np.int64) for line in found[argument]))
            other[place] = x[place]
        garbage.append(other if x.ndim else x)
    single = Module({"main": Function("main", Region(region.arguments, region.ops, [root]))})
    (left,), (right,) = interpret(single, inputs), interpret(single, garbage)
    place = tuple(slice(o, o + n) for o, n in ranges)
    assert left[place].tobytes() == right[place].tobytes()


# Sets of indices.


def span(offset: int, size: int, stride: int = 1, bound: int = 40) -> Span:
    return Span(expression(offset), expression(size), stride, bound)


def members(of: Span) -> set[int]:
    first, size = int(of.offset.constant or 0), int(of.size.constant or 0)
    steps = range(first, first + size * of.stride, of.stride)
    return {i for i in steps if 0 <= i < of.bound}


PIECES = st.builds(span, st.integers(-6, 30), st.integers(1, 12), st.sampled_from((1, 1, 2, 3)))


@settings(max_examples=300, deadline=None)
@given(PIECES, PIECES)
def test_sets(a: Span, b: Span) -> None:
    both = union_span(a, b)
    assert members(a) | members(b) <= members(both)
    if both.exact:
        assert members(both) == members(a) | members(b)
    if contains_span(a, b):
        assert members(b) <= members(a)
    assert a.count.constant == len(members(a))


def test_spans_that_move_apart_need_the_whole_dim() -> None:
    moving, still = tile_span(0, 40), span(0, 3)
    assert union_span(moving, still)[:4] == span(0, 40)[:4]
    shifted = moving._replace(offset=moving.offset - 2)
    assert union_span(moving, shifted).size is tile_size(0, 40) + 2
