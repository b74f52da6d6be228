"""Random small programs, by what they compute: `FAMILIES[name](random) -> (module, inputs)`.

Sizes are often primes, now and then 0 or 1, and smaller than a mesh's axes. Floats are small whole
numbers and halves, so that sums are exact in any order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.graph import Module, Value
from girih.hlo.ops.convolution import numbers
from girih.hlo.types import C64, F32, I1, I32, UI32, UI64, Element, TensorType

Array = np.ndarray[Any, Any]
Case = tuple[Module, list[Array]]
Family = Callable[[random.Random], Case]

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 24)


def size(r: random.Random) -> int:
    return 0 if r.random() < 0.02 else r.choice(SIZES)


def shape(r: random.Random, low: int = 1, high: int = 3) -> tuple[int, ...]:
    return tuple(size(r) for _ in range(r.randint(low, high)))


def values(r: random.Random, dims: Sequence[int], element: Element = F32) -> Array:
    """Small numbers, many of them equal."""
    generator = np.random.default_rng(r.getrandbits(32))
    if element is I1:
        return generator.integers(0, 2, dims).astype(bool)
    found = generator.integers(-6, 7, dims)
    if element in (UI32, UI64):
        found = abs(found)
    return (found / 2 if element is F32 else found).astype(element.dtype)


def program(
    arrays: Sequence[Array], body: Callable[..., Sequence[Value]], elements: Sequence[Element]
) -> Case:
    kinds = [TensorType(x.shape, e) for x, e in zip(arrays, elements, strict=True)]
    return build_module(kinds, body), list(arrays)


def floats(arrays: Sequence[Array], body: Callable[..., Sequence[Value]]) -> Case:
    return program(arrays, body, [F32] * len(arrays))


def fold(name: str, *elements: Element) -> Any:
    kinds = [TensorType((), e) for e in elements or (F32,)] * 2
    return build_region(kinds, lambda b, x, y: [b(name, x, y)])


START = {"add": 0.0, "maximum": -np.inf, "minimum": np.inf, "multiply": 1.0}


def elementwise(r: random.Random) -> Case:
    dims = shape(r)
    name = r.choice(("add", "subtract", "multiply", "maximum", "minimum"))

    def body(b: Builder, x: Value, y: Value, z: Value) -> Sequence[Value]:
        total = b("negate", b(name, x, y))
        chosen = b("select", b.compare("LT", x, z), total, b("abs", z))
        return [total, b("clamp", b.constant(np.float32(-2)), chosen, b.constant(np.float32(2)))]

    return floats([values(r, dims) for _ in range(3)], body)


def conversion(r: random.Random) -> Case:
    dims = shape(r)

    def body(b: Builder, x: Value) -> Sequence[Value]:
        return [
            b.convert(b("floor", x), I32),
            b("bitcast_convert", x, type=x.tensor.with_element(UI32)),
        ]

    return floats([values(r, dims)], body)


def broadcast(r: random.Random) -> Case:
    dims = shape(r, 1, 2)
    wide, mapped = list(dims), list(range(len(dims)))
    for _ in range(r.randint(0, 2)):
        place = r.randint(0, len(wide))
        wide.insert(place, size(r))
        mapped = [m + (m >= place) for m in mapped]
    for m in mapped:
        if wide[m] == 1 and r.random() < 0.7:
            wide[m] = size(r)
    return floats([values(r, dims)], lambda b, x: [b.broadcast(x, wide, mapped)])


def transpose(r: random.Random) -> Case:
    dims = shape(r, 2, 4)
    order = r.sample(range(len(dims)), len(dims))
    return floats([values(r, dims)], lambda b, x: [b.transpose(x, order)])


def reshape(r: random.Random) -> Case:
    """Dims that are merged, split and kept."""
    parts = [size(r) for _ in range(r.randint(1, 4))]
    if r.random() < 0.3:
        parts = [r.choice((2, 3, 4, 6)) for _ in range(4)]

    def merged() -> tuple[int, ...]:
        found: list[int] = []
        for part in parts:
            if found and r.random() < 0.5:
                found[-1] *= part
            else:
                found.append(part)
            if r.random() < 0.15:
                found.append(1)
        return tuple(found)

    before, after = merged(), merged()
    return floats([values(r, before)], lambda b, x: [b.reshape(x, after)])


def reduce(r: random.Random) -> Case:
    dims = shape(r)
    along = tuple(sorted(r.sample(range(len(dims)), r.randint(1, len(dims)))))
    name = r.choice(list(START))
    start = START[name] if r.random() < 0.7 else 3.0

    def body(b: Builder, x: Value) -> Sequence[Value]:
        init = b.constant(np.float32(start))
        return [b("reduce", x, init, regions=(fold(name),), dimensions=along)]

    x = values(r, dims)
    return floats([np.sign(x) if name == "multiply" else x], body)


def flags(r: random.Random) -> Case:
    dims = shape(r)
    along = tuple(sorted(r.sample(range(len(dims)), r.randint(1, len(dims)))))
    name = r.choice(("and", "or"))

    def body(b: Builder, x: Value) -> Sequence[Value]:
        init = b.constant(np.bool_(name == "and"))
        return [b("reduce", x, init, regions=(fold(name, I1),), dimensions=along)]

    return program([values(r, dims, I1)], body, [I1])


def arg_region(direction: str) -> Any:
    def body(b: Builder, x: Value, i: Value, y: Value, j: Value) -> Sequence[Value]:
        better = b("or", b.compare(direction, x, y), b.compare("NE", x, x))
        ties = b("and", b.compare("EQ", x, y), b.compare("LT", i, j))
        return [b("select", better, x, y), b("select", b("or", better, ties), i, j)]

    scalar, index = TensorType((), F32), TensorType((), I32)
    return build_region([scalar, index, scalar, index], body)


def arg_max(r: random.Random) -> Case:
    dims = shape(r)
    dim, direction = r.randrange(len(dims)), r.choice(("GT", "LT"))

    def body(b: Builder, x: Value) -> Sequence[Value]:
        index = b("iota", type=x.tensor.with_element(I32), iota_dimension=dim)
        worst = b.constant(np.float32(-np.inf if direction == "GT" else np.inf))
        start = b.constant(np.int32(0))
        facts = {"dimensions": (dim,)}
        return b.op("reduce", [x, index, worst, start], facts, [arg_region(direction)]).results

    return floats([values(r, dims)], body)


def softmax(r: random.Random) -> Case:
    dims = shape(r)
    dim = r.randrange(len(dims))
    kept = tuple(d for d in range(len(dims)) if d != dim)

    def body(b: Builder, x: Value) -> Sequence[Value]:
        low, none = b.constant(np.float32(-np.inf)), b.constant(np.float32(0))
        most = b("reduce", x, low, regions=(fold("maximum"),), dimensions=(dim,))
        grown = b("exponential", b("subtract", x, b.broadcast(most, x.dims, kept)))
        total = b("reduce", grown, none, regions=(fold("add"),), dimensions=(dim,))
        count = b.constant(np.float32(max(dims[dim], 1)), total.tensor)
        mean = b("divide", b("reduce", x, none, regions=(fold("add"),), dimensions=(dim,)), count)
        return [b("divide", grown, b.broadcast(total, x.dims, kept)), mean]

    return floats([values(r, dims)], body)


def product(r: random.Random) -> Case:
    batch, rows, columns, depth = (shape(r, low, 2) for low in (0, 0, 0, 1))
    batch, rows = batch[:1], rows[:1]
    left, right = [], []
    for owner, dims in (("b", batch), ("k", depth)):
        for n, d in enumerate(dims):
            left.append((owner, n, d))
            right.append((owner, n, d))
    left += [("m", n, d) for n, d in enumerate(rows)]
    right += [("n", n, d) for n, d in enumerate(columns)]
    r.shuffle(left)
    r.shuffle(right)

    def places(side: Any, owner: str, count: int) -> tuple[int, ...]:
        names = [(o, n) for o, n, _ in side]
        return tuple(names.index((owner, n)) for n in range(count))

    facts = {
        "lhs_batching_dimensions": places(left, "b", len(batch)),
        "rhs_batching_dimensions": places(right, "b", len(batch)),
        "lhs_contracting_dimensions": places(left, "k", len(depth)),
        "rhs_contracting_dimensions": places(right, "k", len(depth)),
    }  # fmt: skip
    arrays = [values(r, [d for _, _, d in side]) for side in (left, right)]
    return floats(arrays, lambda b, x, y: [b("dot_general", x, y, **facts)])


def summed_products(r: random.Random) -> Case:
    """Sums that may be put off: two products, added, scaled, reduced."""
    m, k, n = (size(r) for _ in range(3))

    def body(b: Builder, x: Value, w: Value, y: Value, v: Value) -> Sequence[Value]:
        facts: Any = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
        one, other = b("dot_general", x, w, **facts), b("dot_general", y, v, **facts)
        total = b("add", b("negate", one), b("multiply", other, b.constant(2.0, other.tensor)))
        none = b.constant(np.float32(0))
        return [total, b("reduce", total, none, regions=(fold("add"),), dimensions=(0,))]

    dims = ((m, k), (k, n), (m, k), (k, n))
    return floats([values(r, d) for d in dims], body)


def convolution(r: random.Random) -> Case:
    while True:
        features, groups = r.choice((1, 2, 4)), r.choice((1, 1, 2))
        kernel = [r.choice((1, 2, 3, 5)) for _ in range(2)]
        image = [r.choice((1, 2, 3)), *(r.choice(SIZES[:12]) for _ in range(2)), features * groups]
        facts: dict[str, Any] = {
            **numbers(2),
            "padding": tuple((r.randint(-1, 3), r.randint(-1, 3)) for _ in kernel),
            "window_strides": tuple(r.choice((1, 1, 2, 3)) for _ in kernel),
            "lhs_dilation": tuple(r.choice((1, 1, 1, 2)) for _ in kernel),
            "rhs_dilation": tuple(r.choice((1, 1, 2)) for _ in kernel),
            "window_reversal": tuple(r.random() < 0.3 for _ in kernel),
            "feature_group_count": groups,
        }  # fmt: skip
        arrays = [values(r, image), values(r, [*kernel, features, groups * r.choice((1, 2, 3))])]
        made = floats(arrays, lambda b, x, w: [b("convolution", x, w, **facts)])  # noqa: B023
        if made[0].body.results[0].tensor.size:
            return made


def slices(r: random.Random) -> Case:
    dims = [r.choice(SIZES) for _ in range(r.randint(1, 2))]
    starts = tuple(r.randrange(d) for d in dims)
    limits = tuple(r.randint(s, d) for s, d in zip(starts, dims, strict=True))
    strides = tuple(r.choice((1, 1, 2, 3)) for _ in dims)
    facts = {"start_indices": starts, "limit_indices": limits, "strides": strides}
    return floats([values(r, dims)], lambda b, x: [b("slice", x, **facts)])


def pad(r: random.Random) -> Case:
    dims = [size(r) for _ in range(r.randint(1, 2))]
    gaps = tuple(r.choice((0, 0, 1, 2)) for _ in dims)
    low, high = (tuple(r.randint(0 if d < 3 else -1, 9) for d in dims) for _ in range(2))
    facts = {"edge_padding_low": low, "edge_padding_high": high, "interior_padding": gaps}
    return floats([values(r, dims), values(r, ())], lambda b, x, v: [b("pad", x, v, **facts)])


def reverse(r: random.Random) -> Case:
    dims = shape(r, 1, 2)
    which = tuple(d for d in range(len(dims)) if r.random() < 0.7)
    return floats([values(r, dims)], lambda b, x: [b("reverse", x, dimensions=which)])


def concatenation(r: random.Random) -> Case:
    along, rest = r.randrange(2), size(r)
    shapes = [[rest, rest] for _ in range(r.randint(1, 3))]
    for dims in shapes:
        dims[along] = r.choice((0, *SIZES))
    arrays = [values(r, dims) for dims in shapes]
    return floats(arrays, lambda b, *v: [b("concatenate", *v, dimension=along)])


def windows(r: random.Random) -> Case:
    while True:
        dims = [r.choice(SIZES) for _ in range(2)]
        name = r.choice(("add", "maximum", "minimum"))
        facts = {
            "window_dimensions": tuple(r.randint(1, min(d, 4)) for d in dims),
            "padding": tuple((r.randint(-1, 3), r.randint(-1, 3)) for _ in dims),
            "window_strides": tuple(r.choice((1, 1, 2, 3)) for _ in dims),
            "base_dilations": tuple(r.choice((1, 1, 2)) for _ in dims),
            "window_dilations": tuple(r.choice((1, 1, 2)) for _ in dims),
        }

        def body(b: Builder, x: Value) -> Sequence[Value]:
            init = b.constant(np.float32(START[name]))  # noqa: B023
            facts_now, folded = facts, fold(name)  # noqa: B023
            return b.op("reduce_window", [x, init], facts_now, (folded,)).results

        made = floats([values(r, dims)], body)
        if made[0].body.results[0].tensor.size:
            return made


def _log_add(b: Builder, x: Value, y: Value) -> Sequence[Value]:
    most, least = b("maximum", x, y), b("minimum", x, y)
    more = b("log_plus_one", b("exponential", b("subtract", least, most)))
    return [
        b(
            "select",
            b.compare("EQ", x, y),
            b("add", most, b.constant(np.float32(np.log(2)))),
            b("add", most, more),
        )
    ]


def cumulative(r: random.Random) -> Case:
    dims = [r.choice(SIZES) for _ in range(r.randint(1, 2))]
    dim, name, backward = r.randrange(len(dims)), r.choice((*START, "log")), r.random() < 0.5
    n = dims[dim]
    edge = (0, n - 1) if backward else (n - 1, 0)
    facts = {
        "window_dimensions": tuple(n if d == dim else 1 for d in range(len(dims))),
        "padding": tuple(edge if d == dim else (0, 0) for d in range(len(dims))),
    }
    scalar = TensorType((), F32)
    region = build_region([scalar] * 2, _log_add) if name == "log" else fold(name)

    def body(b: Builder, x: Value) -> Sequence[Value]:
        start = -1e30 if name == "log" else START[name]
        return b.op("reduce_window", [x, b.constant(np.float32(start))], facts, (region,)).results

    x = values(r, dims)
    return floats([np.sign(x) if name == "multiply" else x], body)


def selection(r: random.Random) -> Case:
    """The gradient of a max-pool: windows that touch, overlap, or leave gaps."""
    while True:
        dims = [r.choice(SIZES) for _ in range(2)]
        window = tuple(r.randint(1, min(d, 3)) for d in dims)
        strides = tuple(r.choice((1, 2, w)) for w in window)
        padding = tuple((r.randint(0, 1), r.randint(0, 1)) for _ in dims)
        kept = [
            (d + sum(p) - w) // s + 1
            for d, w, s, p in zip(dims, window, strides, padding, strict=True)
        ]
        if all(
            (n - 1) * s - p[0] < d and w > p[0]
            for n, s, p, w, d in zip(kept, strides, padding, window, dims, strict=True)
        ):
            break
    scalar = TensorType((), F32)
    regions = (
        build_region([scalar] * 2, lambda b, x, y: [b.compare("GE", x, y)]),
        fold(r.choice(("add", "add", "maximum"))),
    )
    facts = {"window_dimensions": window, "window_strides": strides, "padding": padding}

    def body(b: Builder, x: Value, y: Value) -> Sequence[Value]:
        init = b.constant(np.float32(0))
        return b.op("select_and_scatter", [x, y, init], facts, regions).results

    return floats([values(r, dims), values(r, kept)], body)


def read_twice(r: random.Random) -> Case:
    """Two operations that fetch of one value what may be the same."""
    n, m = r.choice(SIZES), r.choice(SIZES)
    scalar = TensorType((), F32)
    way = r.choice(("pools", "orders", "shapes", "slices"))

    def body(b: Builder, x: Value) -> Sequence[Value]:
        if way == "orders":
            regions = [
                build_region([scalar] * 2, lambda b, x, y, d=d: [b.compare(d, x, y)])
                for d in ("LT", "GT")
            ]
            facts: Any = {"dimension": 0, "is_stable": True}
            return [b.op("sort", [x], facts, [region]).result for region in regions]
        if way == "shapes":
            flat = b.reshape(x, (n * m,))
            again = [b("reshape", flat, type=x.tensor.with_dims(d)) for d in ((n, m), (m, n))]
            return [*again, b("reshape", flat, type=x.tensor)]
        if way == "slices":
            facts = {"start_indices": (n // 3, 0), "limit_indices": (n, m), "strides": (1, 1)}
            one, other = (b("slice", x, **facts) for _ in range(2))
            return [one, b("negate", other)]
        facts = {"window_dimensions": (min(3, n), 1), "window_strides": (2, 1)}
        low = b.constant(np.float32(-np.inf))
        pooled = b.op("reduce_window", [x, low], facts, [fold("maximum")]).result
        larger = build_region([scalar] * 2, lambda b, x, y: [b.compare("GE", x, y)])
        none = b.constant(np.float32(0))
        operands = [x, b("negate", pooled), none]
        return [pooled, b.op("select_and_scatter", operands, facts, [larger, fold("add")]).result]

    return floats([values(r, (n, m))], body)


def _starts(r: random.Random, dims: Sequence[int], most: int) -> Array:
    generator = np.random.default_rng(r.getrandbits(32))
    return generator.integers(-2, most + 2, dims).astype(np.int32)


def gather(r: random.Random) -> Case:
    """Rows of a table, or windows of it."""
    table = [r.choice(SIZES) for _ in range(2)]
    count = shape(r, 1, 2)
    dim = r.randrange(2)
    take = [
        1 if d == dim else (n if r.random() < 0.7 else r.randint(1, n)) for d, n in enumerate(table)
    ]
    if r.random() < 0.2:
        take[dim] = r.randint(1, table[dim])
    collapsed = (dim,) if take[dim] == 1 else ()
    facts = {
        "offset_dims": tuple(range(len(count), len(count) + 2 - len(collapsed))),
        "collapsed_slice_dims": collapsed, "start_index_map": (dim,),
        "index_vector_dim": len(count), "slice_sizes": tuple(take),
    }  # fmt: skip
    starts = _starts(r, (*count, 1), table[dim])
    return program(
        [values(r, table), starts], lambda b, x, i: [b("gather", x, i, **facts)], [F32, I32]
    )


def batched_gather(r: random.Random) -> Case:
    batch, n, rest, count = (r.choice(SIZES) for _ in range(4))
    facts = {
        "offset_dims": (2,), "collapsed_slice_dims": (1,), "operand_batching_dims": (0,),
        "start_indices_batching_dims": (0,), "start_index_map": (1,), "index_vector_dim": 2,
        "slice_sizes": (1, 1, rest),
    }  # fmt: skip
    arrays = [values(r, (batch, n, rest)), _starts(r, (batch, count, 1), n)]
    return program(arrays, lambda b, x, i: [b("gather", x, i, **facts)], [F32, I32])


def index_select(r: random.Random) -> Case:
    dims = [r.choice(SIZES) for _ in range(r.randint(1, 3))]
    dim = r.randrange(len(dims))
    index = np.random.default_rng(r.getrandbits(32)).integers(0, dims[dim], shape(r, 1, 2))
    arrays = [values(r, dims), index.astype(np.int32)]
    facts = {"dim": dim, "batch_dims": 0}
    return program(arrays, lambda b, x, i: [b("torch_index_select", x, i, **facts)], [F32, I32])


def scatter(r: random.Random) -> Case:
    rows, columns, count = r.choice(SIZES), r.choice(SIZES), size(r)
    name = r.choice(("add", "maximum", "set", "window"))
    scalar = TensorType((), F32)
    if name in ("set", "window"):
        region = build_region([scalar] * 2, lambda b, x, y: [y])
    else:
        region = fold(name)
    generator = np.random.default_rng(r.getrandbits(32))
    if name == "window":
        inner = [r.randint(1, n) for n in (rows, columns)]
        facts = {
            "update_window_dims": (0, 1), "inserted_window_dims": (),
            "scatter_dims_to_operand_dims": (0, 1), "index_vector_dim": 0,
        }  # fmt: skip
        starts = generator.integers(0, 3, (2,)).astype(np.int32)
        arrays = [values(r, (rows, columns)), starts, values(r, inner)]
    else:
        facts = {
            "update_window_dims": (1,), "inserted_window_dims": (0,),
            "scatter_dims_to_operand_dims": (0,), "index_vector_dim": 1,
        }  # fmt: skip
        starts = _starts(r, (count, 1), rows)
        if name == "set":  # no place is written twice
            starts = generator.permutation(max(rows, count))[:count].astype(np.int32)[:, None]
        arrays = [values(r, (rows, columns)), starts, values(r, (count, columns))]
    return program(
        arrays, lambda b, x, i, u: b.op("scatter", [x, i, u], facts, (region,)).results,
        [F32, I32, F32],
    )  # fmt: skip


def dynamic_slice(r: random.Random) -> Case:
    dims = [r.choice(SIZES) for _ in range(r.randint(1, 3))]
    sizes = tuple(d if r.random() < 0.4 else r.randint(0, d) for d in dims)
    arrays = [values(r, dims), *(np.int32(r.randint(-2, d + 1)) for d in dims)]
    return program(
        list(map(np.asarray, arrays)),
        lambda b, x, *s: [b("dynamic_slice", x, *s, slice_sizes=sizes)],
        [F32, *[I32] * len(dims)],
    )  # fmt: skip


def dynamic_update(r: random.Random) -> Case:
    dims = [r.choice(SIZES) for _ in range(r.randint(1, 3))]
    sizes = tuple(d if r.random() < 0.4 else r.randint(1, d) for d in dims)
    arrays = [values(r, dims), values(r, sizes), *(np.int32(r.randint(-2, d + 1)) for d in dims)]
    return program(
        list(map(np.asarray, arrays)), lambda b, *v: [b("dynamic_update_slice", *v)],
        [F32, F32, *[I32] * len(dims)],
    )  # fmt: skip


def sort(r: random.Random) -> Case:
    """One operand or two; by value, with ties, or in the order of all bits."""
    dims = [r.choice((*SIZES, 32)) for _ in range(r.randint(1, 2))]
    dim, count = r.randrange(len(dims)), r.choice((1, 1, 2, 3))
    direction, total = r.choice(("LT", "GT")), r.random() < 0.3
    elements = [F32, I32, F32][:count]

    def before(b: Builder, x: Value, y: Value, *rest: Value) -> Sequence[Value]:
        how: dict[str, Any] = {"compare_type": "TOTALORDER"} if total else {}
        return [b("compare", x, y, comparison_direction=direction, **how)]

    kinds = [TensorType((), e) for e in elements for _ in range(2)]
    region = build_region(kinds, before)
    facts = {"dimension": dim, "is_stable": True}
    arrays = [values(r, dims, e) for e in elements]
    arrays[0] = np.where(arrays[0] == 0, np.float32(r.choice((0.0, -0.0))), arrays[0])
    return program(arrays, lambda b, *v: b.op("sort", v, facts, (region,)).results, elements)


def top_k(r: random.Random) -> Case:
    dims = [*shape(r, 0, 2), r.choice((*SIZES, 24, 32))]
    k = r.randint(0, dims[-1])
    return floats([values(r, dims)], lambda b, x: b.op("chlo.top_k", [x], {"k": k}).results)


def fft(r: random.Random) -> Case:
    dims = [*shape(r, 0, 2), r.choice(SIZES), r.choice(SIZES)]
    lengths = tuple(dims[-r.randint(1, 2) :])
    kind = r.choice(("FFT", "IFFT", "RFFT", "IRFFT"))
    if r.random() < 0.3:
        dims, lengths = [64], (64,)
    if kind == "IRFFT":
        dims[-1] = lengths[-1] // 2 + 1
    x = values(r, dims)
    element = F32 if kind == "RFFT" else C64
    facts = {"fft_type": kind, "fft_length": lengths}
    return program([x.astype(element.dtype)], lambda b, x: [b("fft", x, **facts)], [element])


def cholesky(r: random.Random) -> Case:
    n, batch = r.choice((1, 2, 3, 5, 8)), shape(r, 0, 2)
    x = values(r, (*batch, n, n))
    matrix = x @ np.swapaxes(x, -1, -2) + 4 * np.eye(n, dtype=np.float32)
    lower = r.random() < 0.5
    return floats([matrix], lambda b, x: [b("cholesky", x, lower=lower)])


def triangular_solve(r: random.Random) -> Case:
    n, m, batch = r.choice((1, 2, 3, 5, 8)), size(r), shape(r, 0, 2)
    left = r.random() < 0.5
    a = values(r, (*batch, n, n)) / 4 + 3 * np.eye(n, dtype=np.float32)
    facts = {
        "left_side": left, "lower": r.random() < 0.5, "unit_diagonal": False,
        "transpose_a": r.choice(("NO_TRANSPOSE", "TRANSPOSE")),
    }  # fmt: skip
    arrays = [a.astype(np.float32), values(r, (*batch, n, m) if left else (*batch, m, n))]
    return floats(arrays, lambda b, x, y: [b("triangular_solve", x, y, **facts)])


def sources(r: random.Random) -> Case:
    """Constants and numbers, brought together with an argument."""
    dims = shape(r)
    table, along = values(r, dims), r.randrange(len(dims))

    def body(b: Builder, x: Value) -> Sequence[Value]:
        numbers = b("iota", type=x.tensor, iota_dimension=along)
        splat = b.constant(2.0, x.tensor)
        return [b("add", x, b.constant(table)), b("multiply", numbers, splat)]

    return floats([values(r, dims)], body)


def random_bits(r: random.Random) -> Case:
    dims, algorithm = shape(r), r.choice(("THREE_FRY", "PHILOX"))
    state = np.asarray([r.getrandbits(32), 7], np.uint64)

    def body(b: Builder, s: Value) -> Sequence[Value]:
        kinds = [s.type, TensorType(dims, UI32)]
        return b.op("rng_bit_generator", [s], {"rng_algorithm": algorithm}, (), kinds).results

    return program([state], body, [UI64])


def ragged(r: random.Random) -> Case:
    """Rows of groups against a matrix each; sums over each group's rows; rows that are no group's
    left out."""
    rows, depth, columns, groups = (r.choice(SIZES[:10]) for _ in range(4))
    generator = np.random.default_rng(r.getrandbits(32))
    sizes = generator.multinomial(rows, [1 / (groups + 1)] * (groups + 1))[:groups]
    free = {
        "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (1,),
        "lhs_ragged_dimensions": (0,), "rhs_group_dimensions": (0,),
    }  # fmt: skip
    contracting = {
        "lhs_contracting_dimensions": (0,), "rhs_contracting_dimensions": (0,),
        "lhs_ragged_dimensions": (0,),
    }  # fmt: skip
    batching = {
        "lhs_batching_dimensions": (0,), "rhs_batching_dimensions": (0,),
        "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (1,),
        "lhs_ragged_dimensions": (0,),
    }  # fmt: skip
    facts, other = r.choice(
        (
            (free, (groups, depth, columns)), (contracting, (rows, columns)),
            (batching, (rows, depth)),
        )
    )  # fmt: skip
    arrays = [values(r, (rows, depth)), values(r, other), sizes.astype(np.int32)]
    return program(arrays, lambda b, *v: [b("chlo.ragged_dot", *v, **facts)], [F32, F32, I32])


def normalization(r: random.Random) -> Case:
    dims = [r.choice(SIZES) for _ in range(r.randint(2, 3))]
    feature = r.randrange(len(dims))
    facts = {"epsilon": 1e-3, "feature_index": feature}
    vector = (dims[feature],)
    arrays = [values(r, dims), values(r, vector), values(r, vector)]
    return floats(arrays, lambda b, *v: b.op("batch_norm_training", v, facts).results)


def loop(r: random.Random) -> Case:
    """Products, summed up; the weights of a turn are taken out of a stack."""
    turns, m, k = r.randint(1, 3), r.choice(SIZES), r.choice(SIZES)
    scalar = TensorType((), I32)

    def body(b: Builder, x: Value, stack: Value) -> Sequence[Value]:
        kinds = [scalar, x.tensor, stack.tensor]

        def more(b: Builder, i: Value, x: Value, w: Value) -> Sequence[Value]:
            return [b.compare("LT", i, b.constant(np.int32(turns)))]

        def step(b: Builder, i: Value, x: Value, w: Value) -> Sequence[Value]:
            none = b.constant(np.int32(0))
            own = b("dynamic_slice", w, i, none, none, slice_sizes=(1, k, k))
            facts: Any = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
            y = b("dot_general", x, b.reshape(own, (k, k)), **facts)
            return [b("add", i, b.constant(np.int32(1))), b("add", x, y), w]

        regions = [build_region(kinds, part) for part in (more, step)]
        found = b.op("while", [b.constant(np.int32(0)), x, stack], {}, regions, kinds)
        return [found.results[1]]

    return floats([values(r, (m, k)), values(r, (turns, k, k)) / 8], body)


def _step(r: random.Random, b: Builder, x: Value) -> Value:
    """An operation on a value of any dims."""
    rank, dims = x.rank, x.dims
    dim = r.randrange(rank)
    scalar = TensorType((), F32)
    ways = ["sort", "negate", "square", "slice", "pad", "reverse", "join", "total", "largest"]
    ways += ["merge", "transpose", "sum", "spread", "pool", "transform", "row", "add"]
    way = r.choice(ways)
    if way == "sort":
        order = build_region([scalar] * 2, lambda b, x, y: [b.compare("LT", x, y)])
        return b.op("sort", [x], {"dimension": dim, "is_stable": True}, [order]).result
    if way == "square":
        return b("multiply", x, b.constant(0.5, x.tensor))
    if way == "slice":
        limits = tuple(r.randint(1, d) if n == dim else d for n, d in enumerate(dims))
        starts = tuple(r.randint(0, n - 1) for n in limits)
        return b("slice", x, start_indices=starts, limit_indices=limits, strides=(1,) * rank)
    if way == "pad":
        high = tuple(r.randint(0, 3) if n == dim else 0 for n in range(rank))
        facts: Any = {"edge_padding_low": high[::-1], "edge_padding_high": high}
        return b("pad", x, b.constant(np.float32(1)), interior_padding=(0,) * rank, **facts)
    if way == "reverse":
        return b("reverse", x, dimensions=(dim,))
    if way == "join" and dims[dim] < 20:
        return b("concatenate", x, b("negate", x), dimension=dim)
    if way == "total":
        sizes = tuple(n if d == dim else 1 for d, n in enumerate(dims))
        padding = tuple((n - 1, 0) for n in sizes)
        facts = {"window_dimensions": sizes, "padding": padding}
        name = r.choice(("maximum", "minimum"))
        start = b.constant(np.float32(START[name]))
        return b.op("reduce_window", [x, start], facts, [fold(name)]).result
    if way == "largest":
        return b.op("chlo.top_k", [x], {"k": r.randint(1, dims[-1])}).results[r.randrange(1)]
    if way == "merge" and rank > 1:
        return b.reshape(x, (dims[0] * dims[1], *dims[2:]))
    if way == "transpose":
        return b.transpose(x, r.sample(range(rank), rank))
    if way == "sum" and rank > 1:
        none = b.constant(np.float32(0))
        return b("reduce", x, none, regions=(fold("add"),), dimensions=(dim,))
    if way == "spread" and rank < 3:
        return b.broadcast(x, (*dims, r.choice((2, 3))), tuple(range(rank)))
    if way == "pool":
        window = tuple(min(2, n) if d == dim else 1 for d, n in enumerate(dims))
        low = b.constant(np.float32(-np.inf))
        facts = {"window_dimensions": window}
        return b.op("reduce_window", [x, low], facts, [fold("maximum")]).result
    if way == "transform":
        found = b("fft", x, fft_type="RFFT", fft_length=(dims[-1],))
        return b("clamp", b.constant(np.float32(-9)), b("real", found), b.constant(np.float32(9)))
    if way == "row":
        starts_ = [b.constant(np.int32(r.randint(0, n))) for n in dims]
        sizes = tuple((n + 1) // 2 if d == dim else n for d, n in enumerate(dims))
        return b("dynamic_slice", x, *starts_, slice_sizes=sizes)
    if way == "add":
        return b("add", x, b("reverse", x, dimensions=(dim,)))
    return b("negate", x)


def chain(r: random.Random) -> Case:
    """Some operations one after the other, of which two values are results."""
    dims = [r.choice(SIZES[:10]) for _ in range(r.randint(1, 3))]

    def body(b: Builder, x: Value) -> Sequence[Value]:
        found = [x]
        for _ in range(r.randint(3, 6)):
            found.append(_step(r, b, found[-1]))
        return [found[-1], r.choice(found[1:])]

    return floats([values(r, dims)], body)


FAMILIES: Mapping[str, Family] = {
    made.__name__: made
    for made in (
        elementwise, conversion, broadcast, transpose, reshape, reduce, flags, arg_max, softmax,
        product, summed_products, convolution, slices, pad, reverse, concatenation, windows,
        cumulative, selection, gather, batched_gather, index_select, scatter, dynamic_slice,
        dynamic_update, sort, top_k, fft, cholesky, triangular_solve, sources, random_bits, ragged,
        normalization, loop, read_twice, chain,
    )
}  # fmt: skip
