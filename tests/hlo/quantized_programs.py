"""Small programs on quantised values, each with what the specification's formulas give for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from girih.hlo.build import build_module, build_region
from girih.hlo.graph import Module
from girih.hlo.ops.convolution import numbers
from girih.hlo.types import (
    BF16,
    F16,
    F32,
    F64,
    I1,
    I4,
    I8,
    I16,
    I32,
    UI4,
    UI8,
    QuantizedType,
    TensorType,
)

Array = np.ndarray[Any, Any]
SKEWED = QuantizedType(I8, F32, None, (0.037,), (-11,), -128, 127)
EVEN = QuantizedType(I8, F32, None, (0.05,), (0,), -127, 127)
BYTES = QuantizedType(UI8, F32, None, (0.021,), (131,), 0, 255)
NIBBLES = QuantizedType(I4, F32, None, (0.3,), (1,), -8, 7)
SHORTS = QuantizedType(I16, F32, None, (0.0004,), (17,), -32768, 32767)
HALVES = QuantizedType(I8, BF16, None, (0.0625,), (3,), -128, 127)
SMALL = QuantizedType(UI4, F16, None, (0.5,), (7,), 0, 15)
DOUBLES = QuantizedType(I32, F64, None, (1e-6,), (12345,), -(1 << 31), (1 << 31) - 1)
COLUMNS = QuantizedType(I8, F32, 1, (0.01, 0.02, 0.04, 0.015), (0, 3, -7, 1), -128, 127)
KINDS = (SKEWED, EVEN, BYTES, NIBBLES, SHORTS, HALVES, SMALL, DOUBLES, COLUMNS)


class Program(NamedTuple):
    """A module on stored integers, inputs, and the stored (or real) results it must give.

    `steps` is how far from that a stored result may be: 1 where a library's function is rounded.
    """

    name: str
    module: Module
    inputs: tuple[Array, ...]
    expected: tuple[Array, ...]
    steps: int = 0


def drawn(kind: QuantizedType, dims: Sequence[int], seed: int) -> Array:
    """Stored integers from minimum to maximum."""
    generator = np.random.default_rng(seed)
    return generator.integers(kind.minimum, kind.maximum, dims, np.int64, endpoint=True).astype(
        kind.dtype
    )


def along(kind: QuantizedType, numbers: Sequence[Any], rank: int, dtype: Any) -> Array:
    array = np.asarray(numbers).astype(dtype)
    if kind.axis is None:
        return array[0]
    shape = [1] * rank
    shape[kind.axis] = -1
    return array.reshape(shape)


def real(stored: Array, kind: QuantizedType) -> Array:
    """The specification's `dequantize`."""
    dtype = kind.expressed.dtype
    zeros = along(kind, kind.zero_points, stored.ndim, np.int64)
    shifted = (stored.astype(np.int64) - zeros).astype(dtype)
    return shifted * along(kind, kind.scales, stored.ndim, dtype)


def stored(values: Array, kind: QuantizedType) -> Array:
    """The specification's `quantize`."""
    dtype = kind.expressed.dtype
    with np.errstate(all="ignore"):
        steps = values.astype(dtype) / along(kind, kind.scales, values.ndim, dtype)
        steps = steps + along(kind, kind.zero_points, values.ndim, dtype)
        whole = np.rint(np.clip(steps.astype(np.float64), kind.minimum, kind.maximum))
    return np.nan_to_num(whole, nan=0.0).astype(np.int64).astype(kind.dtype)


UNARY: dict[str, Callable[..., Array]] = {
    "abs": np.abs, "negate": np.negative, "ceil": np.ceil, "floor": np.floor,
    "round_nearest_even": np.rint, "sqrt": lambda x: np.sqrt(x), "exponential": np.exp,
    "tanh": np.tanh, "sine": np.sin, "cosine": np.cos, "log": np.log, "cbrt": np.cbrt,
    "sign": np.sign, "logistic": lambda x: 1 / (1 + np.exp(-x)),
}  # fmt: skip
BINARY: dict[str, Callable[..., Array]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "maximum": np.maximum, "minimum": np.minimum,
}  # fmt: skip
ROUNDED = ("sqrt", "exponential", "tanh", "sine", "cosine", "log", "cbrt", "logistic")


def elementwise() -> Iterator[Program]:
    dims = (7, 4)
    for kind in KINDS:
        x, y = drawn(kind, dims, 1), drawn(kind, dims, 2)
        typed = TensorType(dims, kind)
        for name, formula in UNARY.items():
            if kind.expressed in (BF16, F16) and name in ROUNDED:
                continue  # rounded from wider arithmetic, which numpy has not
            with np.errstate(all="ignore"):
                expected = stored(formula(real(x, kind)), kind)
            module = build_module([typed], lambda b, x, name=name, typed=typed: [b(name, x)])
            steps = int(name in ROUNDED and kind is not DOUBLES)
            if name in ROUNDED and kind is DOUBLES:
                steps = 1
            yield Program(f"{name}_{kind}", module, (x,), (expected,), steps)
        for name, formula in BINARY.items():
            with np.errstate(all="ignore"):
                expected = stored(formula(real(x, kind), real(y, kind)), kind)
            module = build_module(
                [typed, typed], lambda b, x, y, name=name, typed=typed: [b(name, x, y, type=typed)]
            )
            yield Program(f"{name}_{kind}", module, (x, y), (expected,))
        yield from comparisons(kind, x, y)
    yield from conversions()


def comparisons(kind: QuantizedType, x: Array, y: Array) -> Iterator[Program]:
    typed = TensorType(x.shape, kind)
    less = build_module([typed, typed], lambda b, x, y: [b.compare("LT", x, y)])
    yield Program(f"compare_{kind}", less, (x, y), (real(x, kind) < real(y, kind),))
    clamp = build_module([typed] * 3, lambda b, *v: [b("clamp", *v)])
    low, high = np.minimum(x.astype(int), y.astype(int)), np.maximum(x.astype(int), y.astype(int))
    bounds = low.astype(x.dtype), high.astype(x.dtype)
    z = drawn(kind, x.shape, 3)
    chosen = np.clip(z.astype(int), low, high).astype(x.dtype)
    yield Program(f"clamp_{kind}", clamp, (bounds[0], z, bounds[1]), (chosen,))
    chosen = np.where(z.astype(int) > 0, x, y)
    select = build_module([TensorType(x.shape, I1), typed, typed], lambda b, *v: [b("select", *v)])
    yield Program(f"select_{kind}", select, (z.astype(int) > 0, x, y), (chosen,))


def conversions() -> Iterator[Program]:
    """To and from real numbers, and from one quantisation to another, also between axes."""
    generator = np.random.default_rng(5)
    for kind in KINDS:
        span = max(map(abs, kind.scales)) * (kind.maximum - kind.minimum)
        values = (generator.normal(size=(9, 4)) * span / 3).astype(kind.expressed.dtype)
        values[0, :3] = np.inf, -np.inf, np.nan
        typed = TensorType(values.shape, kind)
        module = build_module(
            [typed.with_element(kind.expressed)],
            lambda b, x, typed=typed: [b("uniform_quantize", x, type=typed)],
        )
        yield Program(f"quantize_{kind}", module, (values,), (stored(values, kind),))
        x = drawn(kind, values.shape, 6)
        module = build_module([typed], lambda b, x: [b("uniform_dequantize", x)])
        yield Program(f"dequantize_{kind}", module, (x,), (real(x, kind),))
    for before, after in ((SKEWED, BYTES), (COLUMNS, EVEN), (NIBBLES, COLUMNS), (SHORTS, SKEWED)):
        x = drawn(before, (9, 4), 8)
        module = build_module(
            [TensorType(x.shape, before)],
            lambda b, x, after=after: [b("uniform_quantize", x, type=x.tensor.with_element(after))],
        )
        yield Program(f"{before}_to_{after}", module, (x,), (stored(real(x, before), after),))


def exact_product(total: Array, scales: Array, result: QuantizedType) -> Array:
    """Stored results of integer sums."""
    values = total.astype(np.float32) * scales.astype(np.float32)
    return stored(values, result)


def products() -> Iterator[Program]:
    """dot_general with every mixture of zero points, per tensor and per column."""
    wide = QuantizedType(I8, F32, None, (0.31,), (5,), -128, 127)
    columns = QuantizedType(I8, F32, 1, (0.01, 0.02, 0.04, 0.015), (0, 0, 0, 0), -127, 127)
    plain = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
    for left, right in (
        (SKEWED, EVEN), (EVEN, SKEWED), (SKEWED, SKEWED), (BYTES, EVEN), (BYTES, SKEWED),
        (EVEN, columns), (SKEWED, COLUMNS), (NIBBLES, SKEWED), (SKEWED, NIBBLES),
    ):  # fmt: skip
        x, y = drawn(left, (5, 37), 11), drawn(right, (37, 4), 12)
        shifted = [
            a.astype(np.int64) - along(k, k.zero_points, 2, np.int64)
            for a, k in ((x, left), (y, right))
        ]
        total = shifted[0] @ shifted[1]
        scales = np.array([left.scales[0] * s for s in right.scales])
        module = build_module(
            [TensorType(x.shape, left), TensorType(y.shape, right)],
            lambda b, x, y: [b("dot_general", x, y, type=TensorType((5, 4), wide), **plain)],
        )
        expected = exact_product(total, scales, wide)
        yield Program(f"dot_{left}_{right}", module, (x, y), (expected,))
        if right.axis is None:
            counted = QuantizedType(I32, F32, None, tuple(scales), (9,), -(1 << 31), (1 << 31) - 1)
        else:
            counted = QuantizedType(
                I32, F32, 1, tuple(scales), (9,) * len(scales), -(1 << 31), (1 << 31) - 1
            )
        module = build_module(
            [TensorType(x.shape, left), TensorType(y.shape, right)],
            lambda b, x, y, counted=counted: [
                b("dot_general", x, y, type=TensorType((5, 4), counted), **plain)
            ],
        )
        yield Program(f"counted_{left}_{right}", module, (x, y), ((total + 9).astype(np.int32),))
    yield from batched_products(wide)
    yield from hybrid_products()


def batched_products(wide: QuantizedType) -> Iterator[Program]:
    x, y = drawn(SKEWED, (6, 3, 2), 13), drawn(BYTES, (4, 6, 3), 14)
    module = build_module(
        [TensorType(x.shape, SKEWED), TensorType(y.shape, BYTES)],
        lambda b, x, y: [
            b("dot_general", x, y, type=TensorType((3, 2, 4), wide),
              lhs_batching_dimensions=(1,), rhs_batching_dimensions=(2,),
              lhs_contracting_dimensions=(0,), rhs_contracting_dimensions=(1,))
        ],
    )  # fmt: skip
    total = np.einsum("kbm,nkb->bmn", x.astype(int) + 11, y.astype(int) - 131)
    expected = exact_product(total, np.array([SKEWED.scales[0] * BYTES.scales[0]]), wide)
    yield Program("dot_batched", module, (x, y), (expected,))


def hybrid_products() -> Iterator[Program]:
    """Real rows, quantised columns: weight-only quantisation."""
    generator = np.random.default_rng(15)
    x = generator.integers(-4, 5, (3, 8)).astype(np.float32)
    weights = QuantizedType(I8, F32, 1, (0.5, 0.25, 2.0, 0.125), (0, 2, -1, 0), -128, 127)
    y = drawn(weights, (8, 4), 16)
    module = build_module(
        [TensorType(x.shape, F32), TensorType(y.shape, weights)],
        lambda b, x, y: [
            b("dot_general", x, y, type=TensorType((3, 4), F32),
              lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,))
        ],
    )  # fmt: skip
    yield Program("dot_hybrid", module, (x, y), (x @ real(y, weights),))


def convolved(x: Array, k: Array, strides: Any, padding: Any, base: Any, groups: int) -> Array:
    """NHWC x HWIO in integers, spelled out."""
    n, *size, features = x.shape
    spread = [(s - 1) * d + 1 for s, d in zip(size, base, strict=True)]
    image = np.zeros((n, *spread, features), np.int64)
    image[:, :: base[0], :: base[1]] = x
    image = np.pad(image, ((0, 0), *[(max(a, 0), max(b, 0)) for a, b in padding], (0, 0)))
    h, w, depth, outs = k.shape
    rows = (image.shape[1] - h) // strides[0] + 1
    columns = (image.shape[2] - w) // strides[1] + 1
    result = np.zeros((n, rows, columns, outs), np.int64)
    each = outs // groups
    for r in range(rows):
        for c in range(columns):
            top, left = r * strides[0], c * strides[1]
            window = image[:, top : top + h, left : left + w]
            for g in range(groups):
                part = window[..., g * depth : (g + 1) * depth]
                kernel = k[..., g * each : (g + 1) * each]
                result[:, r, c, g * each : (g + 1) * each] = np.einsum(
                    "nhwi,hwio->no", part, kernel
                )
    return result


def convolutions() -> Iterator[Program]:
    wide = QuantizedType(I8, F32, None, (0.4,), (-5,), -128, 127)
    features = QuantizedType(
        I8, F32, 3, (0.01, 0.02, 0.04, 0.015, 0.03, 0.05), (0, 4, 0, -3, 1, 0), -128, 127
    )
    for left, right, strides, padding, base, groups in (
        (SKEWED, EVEN, (1, 1), ((1, 1), (0, 2)), (1, 1), 1),
        (EVEN, SKEWED, (2, 1), ((1, 1), (1, 1)), (1, 1), 1),
        (BYTES, SKEWED, (1, 2), ((2, 1), (1, 0)), (2, 1), 2),
        (SKEWED, features, (1, 1), ((1, 0), (0, 1)), (1, 2), 1),
        (SKEWED, features, (1, 1), ((0, 0), (0, 0)), (1, 1), 2),
    ):
        x, k = drawn(left, (2, 5, 6, 4), 21), drawn(right, (3, 2, 4 // groups, 6), 22)
        image = x.astype(np.int64) - left.zero_points[0]
        kernel = k.astype(np.int64) - along(right, right.zero_points, 4, np.int64)
        total = convolved(image, kernel, strides, padding, base, groups)
        scales = np.array([left.scales[0] * s for s in right.scales])
        result = TensorType(total.shape, wide)
        attributes = {
            **numbers(2), "window_strides": strides, "padding": padding, "lhs_dilation": base,
            "feature_group_count": groups,
        }  # fmt: skip
        module = build_module(
            [TensorType(x.shape, left), TensorType(k.shape, right)],
            lambda b, x, k, result=result, attributes=attributes: [
                b("convolution", x, k, type=result, **attributes)
            ],
        )
        name = f"convolution_{left}_{right}_{groups}"
        yield Program(name, module, (x, k), (exact_product(total, scales, wide),))


def movements() -> Iterator[Program]:
    """Operations that move stored integers, with regions and control flow among them."""
    x = drawn(SKEWED, (4, 6), 31)
    typed = TensorType(x.shape, SKEWED)
    across = QuantizedType(I8, F32, 0, COLUMNS.scales, COLUMNS.zero_points, -128, 127)
    y = drawn(COLUMNS, (6, 4), 32)
    module = build_module(
        [TensorType(y.shape, COLUMNS)],
        lambda b, y: [b("transpose", y, type=TensorType((4, 6), across), permutation=(1, 0))],
    )
    yield Program("transpose_axis", module, (y,), (y.T,))

    def moved(b: Any, x: Any) -> Any:
        part = b("slice", x, start_indices=(1, 0), limit_indices=(3, 6), strides=(1, 2))
        both = b("concatenate", part, b("reverse", part, dimensions=(0,)), dimension=0)
        return [b.reshape(both, (2, 6)), b("optimization_barrier", x)]

    part = x[1:3, ::2]
    flat = np.concatenate([part, part[::-1]]).reshape(2, 6)
    yield Program("moved", build_module([typed], moved), (x,), (flat, x))

    def largest(b: Any, x: Any) -> Any:
        scalar = TensorType((), SKEWED)
        start = b("constant", type=scalar, value=dense(-128, scalar))
        return [b.reduce("maximum", x, start, (1,))]

    yield Program("reduce_maximum", build_module([typed], largest), (x,), (x.max(1),))

    def total(b: Any, x: Any) -> Any:
        scalar = TensorType((), SKEWED)
        zero = b("constant", type=scalar, value=dense(-11, scalar))
        return [b.reduce("add", x, zero, (1,))]

    small = (x.astype(int) // 16 - 11).astype(np.int8)  # no partial sum saturates
    expected = ((small.astype(int) + 11).sum(1) - 11).astype(np.int8)
    yield Program("reduce_add", build_module([typed], total), (small,), (expected,))

    def ordered(b: Any, x: Any) -> Any:
        scalar = TensorType((), SKEWED)
        body = build_region([scalar, scalar], lambda b, x, y: [b.compare("GT", x, y)])
        return b.op("sort", [x], {"dimension": 1, "is_stable": True}, [body]).results

    yield Program(
        "sort", build_module([typed], ordered), (x,), (-np.sort(-x.astype(int), 1).astype(np.int8),)
    )

    def doubled(b: Any, x: Any) -> Any:
        count = TensorType((), I32)
        cond = build_region(
            [count, typed], lambda b, i, x: [b.compare("LT", i, b.constant(2, count))]
        )
        body = build_region(
            [count, typed],
            lambda b, i, x: [b("add", i, b.constant(1, count)), b("negate", x)],
        )
        return [b.op("while", [b.constant(0, count), x], {}, [cond, body]).results[1]]

    once = stored(-real(x, SKEWED), SKEWED)
    expected = stored(-real(once, SKEWED), SKEWED)
    yield Program("while_negate", build_module([typed], doubled), (x,), (expected,))


def dense(value: int, kind: TensorType) -> Any:
    from girih.hlo.graph import Dense

    return Dense.splat(value, kind)


def programs() -> list[Program]:
    return [*elementwise(), *products(), *convolutions(), *movements()]
