"""Rules for products as a whole: their order, parts of them, and sums of their results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...hlo.graph import Op, Value
from ...hlo.types import I32, TensorType
from ..licence import IGNORES_ZERO_SIGN, REASSOCIATES
from ..rewrite import Rewriter
from ..rule import Example, Rule, example, structural
from .common import made_by
from .contractions import DotSides, dot, f32
from .labels import Label, Labels, Line, multiplications, product, result_of
from .reductions import plain, rebuilt, reduced
from .slices import cut

LEAST_DEPTH = 8  # a product of broadcasts is a matrix product from so many terms per sum on
LEAST_SIDE = 4  # and from so many rows and columns on


# (AB)C and A(BC).


def _chain_examples() -> Iterator[Example]:
    def left(b: Any, x: Value, y: Value, z: Value) -> Value:
        return dot(b, dot(b, x, y, ((1,), (0,))), z, ((1,), (0,)))

    def right(b: Any, x: Value, y: Value, z: Value) -> Value:
        return dot(b, x, dot(b, y, z, ((1,), (0,))), ((1,), (0,)))

    yield example("last is a vector", [f32(6, 5), f32(5, 6), f32(6, 1)], left)
    yield example("last is thin", [f32(6, 3), f32(3, 6), f32(6, 2)], left)
    yield example("first is thin", [f32(2, 6), f32(6, 3), f32(3, 6)], right)
    yield example("thin in between", [f32(6, 6), f32(6, 2), f32(2, 6)], left, fires=False)
    yield example("equal", [f32(4, 4), f32(4, 4), f32(4, 4)], left, fires=False)

    def heads(b: Any, q: Value, k: Value, v: Value) -> Value:
        scores = dot(b, q, k, ((2,), (2,)), ((0,), (0,)))
        return dot(b, scores, v, ((2,), (1,)), ((0,), (0,)))

    yield example("batched", [f32(2, 6, 2), f32(2, 6, 2), f32(2, 6, 2)], heads)

    def used(b: Any, x: Value, y: Value, z: Value) -> list[Value]:
        inner = dot(b, x, y, ((1,), (0,)))
        return [inner, dot(b, inner, z, ((1,), (0,)))]

    yield example("used twice", [f32(6, 5), f32(5, 6), f32(6, 1)], used, fires=False)

    def mixed(b: Any, x: Value, y: Value, z: Value) -> Value:
        return dot(b, dot(b, x, y, ((0,), (0,))), z, ((0,), (0,)))

    yield example("summed with the first", [f32(5, 6), f32(5, 6), f32(6, 1)], mixed)


@structural("order-of-products", "dot_general", licence=REASSOCIATES, examples=_chain_examples,
            lowers="multiplications", sums=True, makers=("dot_general",), single=True)  # fmt: skip
def order_of_products(op: Op, b: Rewriter) -> Value | None:
    """(x y) z -> x (y z), x (y z) -> (x y) z [fewer multiplications]"""
    for side in (0, 1):
        inner = made_by(op.operands[side], "dot_general")
        if inner is None or not b.single_use(op.operands[side]) or not _alike(op, inner):
            continue
        found = _reordered(op, inner, side, b)
        if found is not None:
            return found
    return None


def _alike(op: Op, inner: Op) -> bool:
    """Whether both are products of one element type, with the same precision throughout."""
    element = op.type.element
    values = (*op.operands, *inner.operands)
    names = ("precision_config", "algorithm")
    settings = [(one.attributes.get(name) or ()) for one in (op, inner) for name in names]
    return (
        all(value.element is element and value.tensor.is_static for value in values)
        and settings[:2] == settings[2:]
        and len(set(op.attributes.get("precision_config") or ())) <= 1
    )


def _reordered(op: Op, inner: Op, side: int, b: Rewriter) -> Value | None:
    first = Labels.of(inner)
    other = op.operands[1 - side]
    outer = _outer_labels(op, side, first.result)
    x, y = inner.operands
    for kept_out, out_line, moved, moved_line in (
        (x, first.left, y, first.right),
        (y, first.right, x, first.left),
    ):
        lines = (out_line, moved_line, outer.right)
        result = outer.result
        values = (kept_out, moved, other)
        sizes: dict[Label, int] = {}
        for value, line in zip(values, lines, strict=True):
            sizes.update(zip(line, value.dims, strict=True))
        needed = {*out_line, *result}
        if any(label not in needed and label not in outer.right for label in moved_line):
            continue
        if any(label not in needed and label not in moved_line for label in outer.right):
            continue
        middle = result_of(moved_line, outer.right, sorted(needed))
        before = multiplications(sizes, first.left, first.right)
        before += multiplications(sizes, first.result, outer.right)
        after = multiplications(sizes, out_line, middle)
        after += multiplications(sizes, moved_line, outer.right)
        if 10 * after >= 9 * before:  # as many of none
            continue
        for swap in (False, True):
            pair = (middle, out_line) if swap else (out_line, middle)
            if result_of(*pair, result) != result:
                continue
            inside = product(op, moved, moved_line, other, outer.right, sorted(needed), b)
            pairs = ((inside, middle), (kept_out, out_line))
            (one, left), (two, right) = pairs if swap else pairs[::-1]
            return product(op, one, left, two, right, result, b)
    return None


def _outer_labels(op: Op, side: int, inner: Line) -> Labels:
    """Labels of a product one of whose sides, then called the left one, has those of `inner`."""
    if side == 0:
        return Labels.of(op, inner)
    own = Labels.of(op, first=max(inner, default=0) + 1)
    names = dict(zip(own.right, inner, strict=True))
    lines = (tuple(names.get(label, label) for label in line) for line in (own.left, own.result))
    left, result = lines
    return Labels(inner, left, result)


# Parts of products.


def _slice_examples() -> Iterator[Example]:
    def product_of(b: Any, x: Value, y: Value) -> Value:
        return dot(b, x, y, ((2,), (1,)), ((0,), (0,)))

    types = [f32(3, 4, 2), f32(3, 2, 5)]
    for name, start, limit, steps in (
        ("rows", (0, 1, 0), (3, 3, 5), (1, 1, 1)),
        ("columns", (0, 0, 1), (3, 4, 5), (1, 1, 2)),
        ("batch", (1, 0, 0), (2, 4, 5), (1, 1, 1)),
        ("all", (1, 1, 2), (3, 4, 4), (2, 1, 1)),
    ):
        yield example(
            name, types,
            lambda b, x, y, s=start, e=limit, n=steps: cut(b, product_of(b, x, y), s, e, n),
        )  # fmt: skip

    def tiles(b: Any, x: Value, y: Value) -> list[Value]:
        whole = product_of(b, x, y)
        return [cut(b, whole, (0, 0, 0), (3, 2, 5)), cut(b, whole, (0, 2, 0), (3, 4, 5))]

    yield example("all of it in parts", types, tiles, fires=False)


@structural("slice-of-dot", "slice", examples=_slice_examples, lowers="multiplications", sums=True,
            makers=("dot_general",), single=True)  # fmt: skip
def slice_of_dot(op: Op, b: Rewriter) -> Value | None:
    """slice(dot(x, y)) -> dot(slice x, slice y) [no other use]"""
    inner = made_by(op.operands[0], "dot_general")
    if inner is None or not b.single_use(op.operands[0]) or not inner.type.is_static:
        return None
    sides = DotSides(inner)
    count, left = len(sides.batch[0]), len(sides.free(0))
    for side in (0, 1):
        value = sides.values[side]
        start, limit, steps = [0] * value.rank, list(value.dims), [1] * value.rank
        first = count if side == 0 else count + left
        places = [*enumerate(sides.batch[side]), *enumerate(sides.free(side), first)]
        for place, d in places:
            start[d], limit[d] = op.start_indices[place], op.limit_indices[place]
            steps[d] = op.strides[place]
        sides.values[side] = cut(b, value, start, limit, steps)
    return sides.build(b)


# Sums of products.


def _sum_examples() -> Iterator[Example]:
    def body(dims: Any) -> Any:
        def build(b: Any, x: Value, y: Value) -> Value:
            return reduced(b, "add", dot(b, x, y, ((2,), (1,)), ((0,), (0,))), dims)

        return build

    types = [f32(3, 4, 2), f32(3, 2, 5)]
    for dims in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)):
        yield example(f"over {dims}", types, body(dims))

    def greatest(b: Any, x: Value, y: Value) -> Value:
        return reduced(b, "maximum", dot(b, x, y, ((2,), (1,)), ((0,), (0,))), (0,))

    yield example("maximum", types, greatest, fires=False)


@structural("sum-of-dot", "reduce", licence=REASSOCIATES | IGNORES_ZERO_SIGN,
            examples=_sum_examples, lowers="computed elements", sums=True,
            makers=("dot_general",), single=True)  # fmt: skip
def sum_of_dot(op: Op, b: Rewriter) -> Value | None:
    """sum(dot(x, y)) -> dot(sum x, sum y) [summed batching dims become contracting ones]"""
    inner = made_by(op.operands[0], "dot_general")
    if inner is None or not b.single_use(op.operands[0]) or plain(op, b) != "add":
        return None
    if any(value.element is not op.type.element for value in inner.operands):
        return None
    if not inner.type.is_static:
        return None
    labels = Labels.of(inner)
    gone = {labels.result[d] for d in op.dimensions}
    kept = tuple(label for label in labels.result if label not in gone)
    values: list[Value] = []
    lines: list[Line] = []
    for value, own, other in (
        (inner.operands[0], labels.left, labels.right),
        (inner.operands[1], labels.right, labels.left),
    ):
        dims = [d for d, label in enumerate(own) if label in gone and label not in other]
        values.append(rebuilt(op, value, dims, b) if dims else value)
        lines.append(tuple(label for d, label in enumerate(own) if d not in dims))
    return product(inner, values[0], lines[0], values[1], lines[1], kept, b)


def _broadcast_product_examples() -> Iterator[Example]:
    def body(b: Any, x: Value, y: Value) -> Value:
        dims = (x.dims[0], x.dims[1], y.dims[1])
        terms = b("multiply", b.broadcast(x, dims, (0, 1)), b.broadcast(y, dims, (1, 2)))
        return reduced(b, "add", terms, (1,))

    def beside(b: Any, x: Value, y: Value) -> Value:
        return reduced(b, "add", b("multiply", x, y), (1,))

    def heads(b: Any, x: Value, y: Value) -> Value:
        dims = (2, 4, 8, 4)
        terms = b("multiply", b.broadcast(x, dims, (0, 1, 2)), b.broadcast(y, dims, (0, 2, 3)))
        return reduced(b, "add", terms, (2,))

    yield example("matrices", [f32(5, 8), f32(8, 4)], body)
    yield example("batched", [f32(2, 4, 8), f32(2, 8, 4)], heads)
    whole = [TensorType((5, 8), I32), TensorType((8, 4), I32)]
    yield example("of integers", whole, body, fires=False)
    yield example("few terms", [f32(5, 7), f32(7, 4)], body, fires=False)
    yield example("a row", [f32(3, 8), f32(8, 4)], body, fires=False)
    yield example("element by element", [f32(5, 8), f32(5, 8)], beside, fires=False)


@structural("sum-of-products", "reduce", licence=REASSOCIATES | IGNORES_ZERO_SIGN,
            examples=_broadcast_product_examples, lowers="computed elements", sums=True,
            makers=("multiply",), single=True)  # fmt: skip
def sum_of_products(op: Op, b: Rewriter) -> Value | None:
    """sum(broadcast x * broadcast y) -> dot(x, y) [a matrix product, not too thin]"""
    terms = made_by(op.operands[0], "multiply")
    if terms is None or not b.single_use(op.operands[0]) or plain(op, b) != "add":
        return None
    element = op.type.element
    if not terms.type.is_static or not element.is_float or element.bits < 16:
        return None
    lines, values = [], []
    for operand in terms.operands:
        inner = made_by(operand, "broadcast_in_dim")
        if inner is None:
            return None
        source, mapped = inner.operands[0], inner.broadcast_dimensions
        if any(source.dims[i] != terms.type.dims[d] for i, d in enumerate(mapped)):
            return None
        lines.append(tuple(mapped))
        values.append(source)
    left, right = lines
    rank = terms.type.rank
    summed = set(op.dimensions)
    if {*left, *right} != set(range(rank)) or not summed <= {*left} & {*right}:
        return None
    kept = tuple(d for d in range(rank) if d not in summed)
    own = [d for d in left if d not in right], [d for d in right if d not in left]
    sizes = dict(enumerate(terms.type.dims))
    if multiplications(sizes, tuple(summed)) < LEAST_DEPTH:
        return None
    if min(multiplications(sizes, tuple(side)) for side in own) < LEAST_SIDE:
        return None
    for swap in (False, True):
        pair = (right, left) if swap else (left, right)
        if result_of(*pair, kept) == kept:
            one, two = values[::-1] if swap else values
            return _matrix_product(one, pair[0], two, pair[1], kept, b)
    return None


def _matrix_product(
    x: Value, left: Line, y: Value, right: Line, kept: Line, b: Rewriter
) -> Value:  # fmt: skip
    batch = [label for label in left if label in right and label in kept]
    summed = [label for label in left if label in right and label not in kept]
    return b(
        "dot_general", x, y,
        lhs_batching_dimensions=tuple(left.index(label) for label in batch),
        rhs_batching_dimensions=tuple(right.index(label) for label in batch),
        lhs_contracting_dimensions=tuple(left.index(label) for label in summed),
        rhs_contracting_dimensions=tuple(right.index(label) for label in summed),
    )  # fmt: skip


RULES: tuple[Rule, ...] = (
    order_of_products,
    slice_of_dot,
    sum_of_dot,
    sum_of_products,
)
