"""Rules for reduce and reduce_window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...hlo.build import build_region
from ...hlo.graph import Op, Region, Value
from ...hlo.ops import find
from ...hlo.ops.bodies import monoid
from ...hlo.types import F32, I32, TensorType
from ..licence import IGNORES_ZERO_SIGN, REASSOCIATES
from ..rewrite import Rewriter, copied
from ..rule import Example, Rule, example, structural
from .common import groups, made_by, map_of_ones
from .formula import all_ones, highest, lowest, nothing

A = TensorType((2, 3, 4), F32)
ONES = TensorType((2, 1, 4), F32)


def neutral(name: str, element: Any) -> Any:
    """The number that a monoid leaves other numbers alone with; None if it has none."""
    if name == "add":
        return element.dtype.type(0)
    if name == "multiply":
        return element.dtype.type(1)
    literal = {"maximum": lowest, "minimum": highest, "and": all_ones, "or": nothing,
               "xor": nothing}.get(name)  # fmt: skip
    return None if literal is None else literal.of(element)


def plain(op: Op, b: Rewriter) -> str | None:
    """The monoid of a reduction of one value that starts from its neutral number, else None."""
    if len(op.operands) != 2 or len(op.results) != 1:
        return None
    name = monoid(op.regions[0])
    if name is None or op.results[0].element is not op.operands[0].element:
        return None
    start, wanted = b.scalar(op.operands[1]), neutral(name, op.operands[0].element)
    if start is None or wanted is None or start != wanted:
        return None
    return name


def reduced(b: Any, name: str, x: Value, dims: Sequence[int], start: float | None = None) -> Value:
    """A reduction for examples, from its neutral number."""
    number = neutral(name, x.element) if start is None else start
    scalar = TensorType((), x.element)
    return b.reduce(name, x, b.constant(number, scalar), dims)


def rebuilt(op: Op, value: Value, dims: Sequence[int], b: Rewriter) -> Value:
    """The same reduction of another value over other dims."""
    attributes = {**op.attributes, "dimensions": tuple(sorted(dims))}
    return b.build("reduce", [value, op.operands[1]], attributes, op.regions)[0]


def _ones_examples() -> Iterator[Example]:
    for name in ("add", "maximum", "multiply"):
        yield example(name, [ONES], lambda b, x, name=name: reduced(b, name, x, (1,)))
        yield example(f"{name} none", [A], lambda b, x, name=name: reduced(b, name, x, ()))
        yield example(f"{name} some", [ONES], lambda b, x, name=name: reduced(b, name, x, (1, 2)))
    yield example("started", [ONES], lambda b, x: reduced(b, "add", x, (1,), 2.0), fires=False)


@structural("reduce-dimensions-of-one", "reduce", licence=IGNORES_ZERO_SIGN,
            examples=_ones_examples, lowers="reduced dimensions")  # fmt: skip
def reduce_dimensions_of_one(op: Op, b: Rewriter) -> Value | None:
    """reduce over dimensions of size one, or none -> reshape"""
    x = op.operands[0]
    ones = [d for d in op.dimensions if x.dims[d] == 1]
    if (not ones and op.dimensions) or plain(op, b) is None or not op.type.is_static:
        return None
    left = [d for d in op.dimensions if d not in ones]
    return b.reshape(rebuilt(op, x, left, b) if left else x, op.type.dims)


def _reshape_examples() -> Iterator[Example]:
    yield example("ones", [A], lambda b, x: reduced(b, "maximum", b.reshape(x, (2, 3, 1, 4)), (3,)))
    yield example("removed", [ONES], lambda b, x: reduced(b, "maximum", b.reshape(x, (2, 4)), (1,)))
    yield example("merged", [A], lambda b, x: reduced(b, "add", b.reshape(x, (2, 12)), (1,)))
    yield example("kept merged", [A], lambda b, x: reduced(b, "add", b.reshape(x, (6, 4)), (1,)))
    yield example(
        "torn", [A], lambda b, x: reduced(b, "add", b.reshape(x, (4, 6)), (1,)), fires=False
    )
    yield example(
        "ones alone",
        [A],
        lambda b, x: reduced(b, "maximum", b.reshape(x, (2, 3, 1, 4)), (2,)),
        fires=False,
    )
    yield example(
        "no monoid",
        [A],
        lambda b, x: reduced(b, "subtract", b.reshape(x, (2, 12)), (1,), 0.0),
        fires=False,
    )


@structural("reduce-of-reshape", "reduce", licence=REASSOCIATES, examples=_reshape_examples,
            lowers="height of reshapes")  # fmt: skip
def reduce_of_reshape(op: Op, b: Rewriter) -> Value | None:
    """reduce(reshape x) -> reshape reduce(x) [whole groups of dimensions are reduced]"""
    inner = made_by(op.operands[0], "reshape")
    if inner is None or not inner.type.is_static or plain(op, b) is None:
        return None
    source, gone = inner.operands[0], set(op.dimensions)
    dims: list[int] = []
    for before, after in groups(source.dims, inner.type.dims):
        inside = [d in gone for d in after]
        if not any(inside):
            continue
        if all(inside):
            dims.extend(before)
            continue
        places = map_of_ones([inner.type.dims[d] for d in after], [source.dims[d] for d in before])
        if places is None:
            return None
        for d, place in zip(after, places, strict=True):
            if d in gone and place is not None:
                dims.append(before[place])
    dims = [d for d in dims if source.dims[d] != 1]
    if not dims:
        return None  # rule "reduce-dimensions-of-one" does better
    return b.reshape(rebuilt(op, source, dims, b), op.type.dims)


def _transpose_examples() -> Iterator[Example]:
    yield example(
        "becomes last", [A], lambda b, x: reduced(b, "maximum", b.transpose(x, (0, 2, 1)), (1,))
    )
    yield example(
        "was last",
        [A],
        lambda b, x: reduced(b, "add", b.transpose(x, (0, 2, 1)), (2,)),
        fires=False,
    )
    yield example(
        "left transposed", [A], lambda b, x: reduced(b, "add", b.transpose(x, (2, 1, 0)), (1,))
    )
    yield example(
        "no monoid",
        [A],
        lambda b, x: reduced(b, "subtract", b.transpose(x, (0, 2, 1)), (1,), 0.0),
        fires=False,
    )


@structural("reduce-of-transpose", "reduce", licence=REASSOCIATES, examples=_transpose_examples,
            lowers="transposed elements")  # fmt: skip
def reduce_of_transpose(op: Op, b: Rewriter) -> Value | None:
    """reduce(transpose x) -> transpose reduce(x) [not if it then leaves the last dimensions]"""
    inner = made_by(op.operands[0], "transpose")
    if inner is None or plain(op, b) is None:
        return None
    permutation = inner.permutation
    dims = [permutation[d] for d in op.dimensions]
    if _trailing(op.dimensions, len(permutation)) and not _trailing(dims, len(permutation)):
        return None
    left = [permutation[d] for d in range(len(permutation)) if d not in op.dimensions]
    small = rebuilt(op, inner.operands[0], dims, b)
    order = sorted(left)
    return b.transpose(small, [order.index(d) for d in left])


def _trailing(dims: Sequence[int], rank: int) -> bool:
    """Whether a reduction goes along the last dimensions, whose elements lie side by side."""
    return sorted(dims) == list(range(rank - len(dims), rank))


def _broadcast_examples() -> Iterator[Example]:
    row = TensorType((4,), F32)
    yield example("add", [row], lambda b, x: reduced(b, "add", b.broadcast(x, (3, 4), (1,)), (0,)))
    yield example(
        "maximum", [row], lambda b, x: reduced(b, "maximum", b.broadcast(x, (3, 4), (1,)), (0, 1))
    )
    yield example(
        "integers",
        [TensorType((4,), I32)],
        lambda b, x: reduced(b, "add", b.broadcast(x, (3, 4), (1,)), (0,)),
    )
    yield example(
        "only the data",
        [row],
        lambda b, x: reduced(b, "add", b.broadcast(x, (3, 4), (1,)), (1,)),
    )


@structural("reduce-of-broadcast", "reduce", licence=REASSOCIATES | IGNORES_ZERO_SIGN,
            examples=_broadcast_examples, lowers="computed elements", ulps=2)  # fmt: skip
def reduce_of_broadcast(op: Op, b: Rewriter) -> Value | None:
    """reduce(broadcast x) -> broadcast reduce(x) [times the count, for sums]"""
    inner = made_by(op.operands[0], "broadcast_in_dim")
    if inner is None or not inner.type.is_static or inner.type.size == 0:
        return None
    name = plain(op, b)
    if name is None or name != "add" and not find(name).idempotent:
        return None
    source, mapped = inner.operands[0], inner.broadcast_dimensions
    if list(mapped) != sorted(mapped):
        return None
    kept = {d: i for i, d in enumerate(mapped) if source.dims[i] == inner.type.dims[d]}
    if len(kept) != source.rank:
        return None
    dims = [kept[d] for d in op.dimensions if d in kept]
    count = 1
    for d in op.dimensions:
        count *= 1 if d in kept else inner.type.dims[d]
    small = rebuilt(op, source, dims, b) if dims else source
    if name == "add" and count > 1:
        small = b("multiply", small, b.splat(count, small.tensor))
    left = [d for d in range(inner.type.rank) if d not in op.dimensions]
    return b.broadcast(small, op.type.dims, [left.index(d) for d in left if d in kept])


def _reduce_examples() -> Iterator[Example]:
    yield example("twice", [A], lambda b, x: reduced(b, "add", reduced(b, "add", x, (1,)), (1,)))
    yield example(
        "different",
        [A],
        lambda b, x: reduced(b, "add", reduced(b, "maximum", x, (1,)), (1,)),
        fires=False,
    )


@structural("reduce-of-reduce", "reduce", licence=REASSOCIATES, examples=_reduce_examples,
            single=True)  # fmt: skip
def reduce_of_reduce(op: Op, b: Rewriter) -> Value | None:
    """reduce(reduce x) -> reduce x over both sets of dimensions"""
    inner = made_by(op.operands[0], "reduce")
    if inner is None or len(inner.results) != 1 or not b.single_use(op.operands[0]):
        return None
    name = plain(op, b)
    if name is None or plain(inner, b) != name:
        return None
    left = [d for d in range(inner.operands[0].rank) if d not in inner.dimensions]
    dims = [*inner.dimensions, *(left[d] for d in op.dimensions)]
    return rebuilt(op, inner.operands[0], dims, b)


def _negate_examples() -> Iterator[Example]:
    yield example("sum", [A], lambda b, x: reduced(b, "add", b("negate", x), (1,)))
    yield example(
        "maximum", [A], lambda b, x: reduced(b, "maximum", b("negate", x), (1,)), fires=False
    )


@structural("reduce-of-negate", "reduce", licence=IGNORES_ZERO_SIGN, examples=_negate_examples,
            lowers="negated elements", sums=True, single=True)  # fmt: skip
def reduce_of_negate(op: Op, b: Rewriter) -> Value | None:
    """sum(-x) -> -sum(x)"""
    inner = made_by(op.operands[0], "negate")
    if inner is None or not b.single_use(op.operands[0]) or plain(op, b) != "add":
        return None
    return b("negate", rebuilt(op, inner.operands[0], op.dimensions, b))


def _scaled_examples() -> Iterator[Example]:
    yield example(
        "sum", [A], lambda b, x: reduced(b, "add", b("multiply", x, b.constant(0.5, A)), (1,))
    )


@structural("reduce-of-scaled", "reduce", licence=REASSOCIATES | IGNORES_ZERO_SIGN,
            examples=_scaled_examples, lowers="multiplied elements", single=True)  # fmt: skip
def reduce_of_scaled(op: Op, b: Rewriter) -> Value | None:
    """sum(x * c) -> sum(x) * c"""
    inner = made_by(op.operands[0], "multiply")
    if inner is None or not b.single_use(op.operands[0]) or plain(op, b) != "add":
        return None
    for value, factor in (inner.operands, inner.operands[::-1]):
        number = b.scalar(factor)
        if number is not None and op.type.element.is_float and abs(number) < 1e30:
            total = rebuilt(op, value, op.dimensions, b)
            return b("multiply", total, b.splat(number, total.tensor))
    return None


def _unused_examples() -> Iterator[Example]:
    def body(b: Any, x: Value) -> Value:
        scalar = TensorType((), F32)

        def both(c: Any, p: Value, q: Value, r: Value, s: Value) -> list[Value]:
            return [c("add", p, r), c("maximum", q, s)]

        region = build_region([scalar] * 4, both)
        start = b.constant(0.0, scalar)
        low = b.constant(float("-inf"), scalar)
        op = b.op("reduce", [x, x, start, low], {"dimensions": (1,)}, [region])
        return op.results[0]

    yield example("second unused", [A], body)


@structural("reduce-unused-results", "reduce", examples=_unused_examples, sums=True,
            local=True, lowers="results")  # fmt: skip
def reduce_unused_results(op: Op, b: Rewriter) -> Sequence[Value] | None:
    """variadic reduce -> reduce without the results that nothing uses"""
    count = len(op.results)
    if count < 2 or b.replacing is None:
        return None
    used = [i for i, value in enumerate(b.replacing.results) if b.uses(value)]
    body = op.regions[0]
    if len(used) in (0, count):
        return None
    wanted = _needed_arguments(body, used, count)
    if set(wanted) != set(used):
        return None
    region = _narrowed(body, used, count)
    operands = [op.operands[i] for i in used] + [op.operands[count + i] for i in used]
    types = [op.result_types[i] for i in used]
    results = b.build("reduce", operands, op.attributes, [region], types)
    narrow = dict(zip(used, results, strict=True))
    # What nothing uses may become anything of its type.
    return [
        narrow[i] if i in narrow else b.splat(0, result.tensor)
        for i, result in enumerate(op.results)
    ]


def _needed_arguments(body: Region, used: Sequence[int], count: int) -> list[int]:
    """Which of the `count` pairs of arguments the used results depend on."""
    needed = {body.results[i] for i in used}
    for op in reversed(body.ops):
        if any(result in needed for result in op.results):
            needed.update(op.operands)
    return sorted({a.index % count for a in body.arguments if a in needed} | set(used))


def _narrowed(body: Region, used: Sequence[int], count: int) -> Region:
    """The body with the arguments and results of the used pairs alone."""
    pairs = [*used, *(count + i for i in used)]

    def build(b: Any, *values: Value) -> list[Value]:
        new = {body.arguments[i]: value for i, value in zip(pairs, values, strict=True)}
        needed = {body.results[i] for i in used}
        kept = []
        for op in reversed(body.ops):
            if any(result in needed for result in op.results):
                needed.update(op.operands)
                kept.append(op)
        for op in reversed(kept):
            copy = b.append(copied(op, new))
            new.update(zip(op.results, copy.results, strict=True))
        return [new[body.results[i]] for i in used]

    return build_region([body.arguments[i].type for i in pairs], build)


# reduce_window.


def window(b: Any, name: str, x: Value, **attributes: Any) -> Value:
    """A reduce_window for examples, from its neutral number."""
    scalar = TensorType((), x.element)
    region = build_region([scalar, scalar], lambda c, p, q: [c(name, p, q)])
    start = b.constant(neutral(name, x.element), scalar)
    return b("reduce_window", x, start, regions=(region,), **attributes)


def _window_examples() -> Iterator[Example]:
    yield example("maximum", [A], lambda b, x: window(b, "maximum", x, window_dimensions=(1, 1, 1)))
    yield example("sum", [A], lambda b, x: window(b, "add", x, window_dimensions=(1, 1, 1)))
    yield example(
        "said to step by one", [A],
        lambda b, x: window(b, "add", x, window_dimensions=(1, 1, 1), window_strides=(1, 1, 1),
                            base_dilations=(1, 1, 1), padding=((0, 0),) * 3),
    )  # fmt: skip
    yield example(
        "stretched", [TensorType((3,), F32)],
        lambda b, x: window(b, "add", x, window_dimensions=(3,), base_dilations=(2,)),
        fires=False,
    )  # fmt: skip
    yield example(
        "strided",
        [A],
        lambda b, x: window(b, "add", x, window_dimensions=(1, 1, 1), window_strides=(1, 2, 1)),
        fires=False,
    )


@structural("window-of-one", "reduce_window", licence=IGNORES_ZERO_SIGN, examples=_window_examples)
def window_of_one(op: Op, b: Rewriter) -> Value | None:
    """reduce_window over single elements -> x"""
    if any(size != 1 for size in op.window_dimensions) or plain(op, b) is None:
        return None
    if any(low or high for low, high in op.padding):
        return None
    same = op.results[0].type is op.operands[0].type  # strides and dilations do nothing then
    return op.operands[0] if same else None


def _inside_examples() -> Iterator[Example]:
    ends = ((0, 0), (1, 3), (0, 0))
    yield example(
        "one window", [A],
        lambda b, x: window(b, "add", x, window_dimensions=(1, 7, 1), padding=ends),
    )  # fmt: skip
    yield example(
        "two windows", [A],
        lambda b, x: window(b, "maximum", x, window_dimensions=(1, 9, 1),
                            window_strides=(1, 2, 1), padding=((0, 0), (4, 4), (0, 0))),
    )  # fmt: skip
    yield example(
        "dilated", [A],
        lambda b, x: window(b, "add", x, window_dimensions=(1, 3, 1),
                            window_dilations=(1, 3, 1), padding=((0, 0), (2, 2), (0, 0))),
    )  # fmt: skip
    yield example(
        "each element in some window", [A],
        lambda b, x: window(b, "add", x, window_dimensions=(1, 3, 1),
                            padding=((0, 0), (1, 1), (0, 0))),
        fires=False,
    )  # fmt: skip


@structural("window-beyond-input", "reduce_window", licence=IGNORES_ZERO_SIGN,
            examples=_inside_examples, lowers="elements of windows", sums=True)  # fmt: skip
def window_beyond_input(op: Op, b: Rewriter) -> Value | None:
    """reduce_window -> one of smaller windows [what no window finds inside of the input is cut]"""
    if not op.operands[0].tensor.is_static or plain(op, b) is None:
        return None
    source, results, rank = op.operands[0].dims, op.type.dims, op.type.rank
    if any(d != 1 for d in op.base_dilations) or 0 in source or 0 in results:
        return None
    strides, dilations = op.window_strides or (1,) * rank, op.window_dilations or (1,) * rank
    sizes, padding = list(op.window_dimensions), list(op.padding or ((0, 0),) * rank)
    for d, (size, stride, dilation) in enumerate(zip(source, strides, dilations, strict=True)):
        low, last = padding[d][0], (results[d] - 1) * stride
        first = max(0, -((last - low) // dilation))  # the last window finds nothing before it
        end = min(sizes[d], (size - 1 + low) // dilation + 1)  # nor the first one from here on
        if end <= first:
            return None
        sizes[d] = end - first
        low -= first * dilation
        padding[d] = low, last + (sizes[d] - 1) * dilation + 1 - low - size
    if tuple(sizes) == tuple(op.window_dimensions):
        return None
    attributes = {**op.attributes, "window_dimensions": tuple(sizes), "padding": tuple(padding)}
    return b.build("reduce_window", op.operands, attributes, op.regions, op.result_types)[0]


def _whole_examples() -> Iterator[Example]:
    yield example("sum", [A], lambda b, x: window(b, "add", x, window_dimensions=(1, 3, 4)))
    yield example(
        "maximum", [A],
        lambda b, x: window(b, "maximum", x, window_dimensions=(1, 3, 1),
                            window_strides=(1, 2, 1)),
    )  # fmt: skip
    yield example(
        "more of them", [A],
        lambda b, x: window(b, "add", x, window_dimensions=(1, 3, 2)), fires=False,
    )  # fmt: skip


@structural("window-of-all", "reduce_window", licence=REASSOCIATES | IGNORES_ZERO_SIGN,
            examples=_whole_examples, lowers="opaque operations", sums=True)  # fmt: skip
def window_of_all(op: Op, b: Rewriter) -> Value | None:
    """reduce_window -> reshape(reduce x) [windows that are whole dimensions]"""
    if not op.operands[0].tensor.is_static or plain(op, b) is None:
        return None
    source, sizes, rank = op.operands[0].dims, op.window_dimensions, op.type.rank
    if any(edge for pair in op.padding for edge in pair):
        return None
    one = (1,) * rank
    base, dilations = op.base_dilations or one, op.window_dilations or one
    gone = [d for d in range(rank) if sizes[d] == source[d] != 1 and base[d] == dilations[d] == 1]
    if not gone or any(op.type.dims[d] != (1 if d in gone else source[d]) for d in range(rank)):
        return None
    if any(sizes[d] != 1 for d in range(rank) if d not in gone):
        return None
    attributes = {"dimensions": tuple(gone)}
    return b.reshape(b.build("reduce", op.operands, attributes, op.regions)[0], op.type.dims)


RULES: tuple[Rule, ...] = (
    reduce_dimensions_of_one,
    reduce_of_reshape,
    reduce_of_transpose,
    reduce_of_broadcast,
    reduce_of_reduce,
    reduce_of_negate,
    reduce_of_scaled,
    reduce_unused_results,
    window_of_one,
    window_beyond_input,
    window_of_all,
)
