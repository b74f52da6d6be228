"""Every feature of the kernel language against numpy, interpreted and compiled."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import girih
import girih.language as tl

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((13, 21)).astype(np.float32)
Y = RANDOM.standard_normal((13, 21)).astype(np.float32)
V = RANDOM.standard_normal(29).astype(np.float32)
I = RANDOM.integers(-50, 50, (13, 21)).astype(np.int32)  # noqa: E741
ROWS = np.array([3, 0, 12, 5, 40, -1, 7], np.int32)
erf = np.vectorize(math.erf, otypes=[np.float32])

rows_grid: dict[str, Any] = {"grid": lambda x, T: girih.cdiv(x.shape[0], T)}
same: dict[str, Any] = {"out": lambda x: x, **rows_grid}


def both(kernel, *arrays, tolerance=1e-5, **constants):
    """The interpreter's result, which the compiled kernel must give as well."""
    slow = kernel.interpret(*arrays, **constants)
    fast = kernel(*arrays, **constants)
    pairs = zip(slow, fast, strict=True) if isinstance(slow, tuple) else [(slow, fast)]
    for one, other in pairs:
        np.testing.assert_allclose(
            other.astype(np.float64), one.astype(np.float64), rtol=tolerance, atol=tolerance
        )
    return slow


def elementwise(body):
    """A kernel that applies `body` to row windows of one array; the tail reaches outside."""

    @girih.kernel(**same)
    def kernel(x, out, *, T=5, apply=body):
        i = tl.tile_id(0) * T
        out[i : i + T] = apply(x[i : i + T, :])

    return kernel


UNARY = {
    "exp": (lambda x: tl.exp(x), np.exp),
    "expm1": (lambda x: tl.expm1(x), np.expm1),
    "log": (lambda x: tl.log(x * x + 1.0), lambda x: np.log(x * x + 1)),
    "log1p": (lambda x: tl.log1p(x * x), lambda x: np.log1p(x * x)),
    "sqrt": (lambda x: tl.sqrt(abs(x)), lambda x: np.sqrt(np.abs(x))),
    "rsqrt": (lambda x: tl.rsqrt(x * x + 1), lambda x: 1 / np.sqrt(x * x + 1)),
    "tanh": (lambda x: tl.tanh(x), np.tanh),
    "sigmoid": (lambda x: tl.sigmoid(x), lambda x: 1 / (1 + np.exp(-x))),
    "erf": (lambda x: tl.erf(x), lambda x: erf(x)),
    "sin_cos": (lambda x: tl.sin(x) + tl.cos(x), lambda x: np.sin(x) + np.cos(x)),
    "floor_ceil": (lambda x: tl.floor(x) - tl.ceil(x), lambda x: np.floor(x) - np.ceil(x)),
    "round": (lambda x: tl.round(x), np.round),
    "sign": (lambda x: tl.sign(x), np.sign),
    "negate": (lambda x: -x + +x - x, lambda x: -x),
    "power": (lambda x: x**2 + x**3 + x**4, lambda x: x**2 + x**3 + x**4),
    "real_power": (lambda x: abs(x) ** 1.5, lambda x: np.abs(x) ** 1.5),
    "reverse": (lambda x: 1 - 2 / (3.0 + abs(x)), lambda x: 1 - 2 / (3 + np.abs(x))),
    "floor_divide": (lambda x: x // 0.3, lambda x: np.floor(x / np.float32(0.3))),
    "clamp": (lambda x: tl.clamp(x, -0.5, 0.5), lambda x: np.clip(x, -0.5, 0.5)),
    "minmax": (lambda x: max(min(x, 0.5), -0.5, -9.0), lambda x: np.clip(x, -0.5, 0.5)),
    "where": (lambda x: tl.where(x > 0, x, x * 0.1), lambda x: np.where(x > 0, x, x * 0.1)),
    "masks": (
        lambda x: tl.where((x > -1) & (x < 1) | ~(x <= 2), x, 0.0),
        lambda x: np.where(((x > -1) & (x < 1)) | (x > 2), x, 0),
    ),
    "isnan": (
        lambda x: tl.where(tl.isnan(tl.sqrt(x)) | ~tl.isfinite(x), 0.0, x),
        lambda x: np.where(x < 0, 0, x),
    ),
    "softmax": (
        lambda x: tl.exp(x - x.max(1, keepdims=True))
        / tl.sum(tl.exp(x - x.max(1, keepdims=True)), axis=1)[:, None],
        lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True),
    ),
    "centre": (lambda x: x - x.mean(1, keepdims=True), lambda x: x - x.mean(1, keepdims=True)),
    "spread": (lambda x: x + x.min(axis=-1)[:, None], lambda x: x + x.min(1, keepdims=True)),
    "columns": (
        lambda x: x * tl.arange(21, dtype=tl.float32)[None, :],
        lambda x: x * np.arange(21, dtype=np.float32),
    ),
    "transpose": (lambda x: x.T.transpose(1, 0), lambda x: x),
    "reshape": (lambda x: (x.reshape(-1, 3) + 1).reshape(5, 21), lambda x: x + 1),
    "cumsum": (lambda x: tl.cumsum(x, axis=1), lambda x: np.cumsum(x, 1)),
    "parts": (
        lambda x: tl.concatenate([x[:, :4], x[:, 4:21]], axis=1) + x[:, 2:3] + x[:, -1][:, None],
        lambda x: x + x[:, 2:3] + x[:, -1:],
    ),
    "full": (lambda x: x + tl.full(x.shape, 2.0) + tl.ones((21,)), lambda x: x + 3),
    "broadcast": (lambda x: x + tl.broadcast_to(x[:, :1], x.shape), lambda x: x + x[:, :1]),
    "expand": (lambda x: x + tl.expand_dims(x[:, 0], 1), lambda x: x + x[:, :1]),
    "half": (
        lambda x: x.to(tl.float16).to(tl.float32),
        lambda x: x.astype(np.float16).astype(np.float32),
    ),
    "integers": (lambda x: x.to(tl.int32).to(tl.float32), np.trunc),
    "bits": (
        lambda x: tl.bitcast(tl.bitcast(x, tl.int32) & 0x7FFFFFFF, tl.float32),
        np.abs,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_elementwise(name):
    body, expected = UNARY[name]
    found = both(elementwise(body), X)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(found, expected(X), rtol=2e-5, atol=2e-5)


INTEGER = {
    "floor_divide": (lambda x: x // 7, lambda x: x // 7),
    "modulo": (lambda x: x % -7, lambda x: x % -7),
    "bits": (lambda x: (x & 12) | (x ^ 5), lambda x: (x & 12) | (x ^ 5)),
    "shifts": (lambda x: (x << 2) + (x >> 1), lambda x: (x << 2) + (x >> 1)),
    "invert": (lambda x: ~x + abs(x), lambda x: ~x + np.abs(x)),
    "cumsum": (lambda x: x.cumsum(0), lambda x: np.concatenate([np.cumsum(x[:13], 0)])),
}  # fmt: skip


@pytest.mark.parametrize("name", INTEGER)
def test_integers(name):
    body, expected = INTEGER[name]
    np.testing.assert_array_equal(both(elementwise(body), I, T=13), expected(I))


DTYPES = [
    np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.int32, np.int64, np.uint8,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_element_types(dtype):
    @girih.kernel(out=lambda x: [x, x], **rows_grid)
    def kernel(x, doubled, largest, *, T=4):
        i = tl.tile_id(0) * T
        tile = x[i : i + T, :]
        doubled[i : i + T, :] = tile + tile
        largest[i : i + T, :] = tl.max(tile, axis=1)[:, None] * tl.ones((21,), x.dtype)

    values = np.abs(I).astype(dtype)
    doubled, largest = both(kernel, values)
    assert doubled.dtype == largest.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(doubled, values + values)
    np.testing.assert_array_equal(largest, np.broadcast_to(values.max(1, keepdims=True), (13, 21)))


def test_truth_values():
    @girih.kernel(out=lambda x: [tl.Array(x.shape, bool), tl.Array(x.shape[:1], bool)], **rows_grid)
    def kernel(x, positive, some, *, T=4):
        i = tl.tile_id(0) * T
        held = x[i : i + T, :] > 1.0
        positive[i : i + T, :] = held
        some[i : i + T] = tl.any(held, 1) & ~tl.all(held, 1)

    positive, some = both(kernel, X)
    np.testing.assert_array_equal(positive, X > 1)
    np.testing.assert_array_equal(some, (X > 1).any(1))


def test_arg_reductions():
    @girih.kernel(out=lambda x: [tl.Array(x.shape[:1], "int32")] * 2, **rows_grid)
    def kernel(x, high, low, *, T=4):
        i = tl.tile_id(0) * T
        high[i : i + T] = tl.argmax(x[i : i + T, :], 1)
        low[i : i + T] = x[i : i + T, :].argmin(1)

    values = X.copy()
    values[2, 7] = values[2, 9] = np.nan
    values[3, [4, 8]] = 100.0
    high, low = both(kernel, values)
    np.testing.assert_array_equal(high, np.argmax(values, 1))
    np.testing.assert_array_equal(low, np.argmin(values, 1))


def test_sums_of_half_precision_are_done_in_single():
    @girih.kernel(out=lambda x: tl.Array((), x.dtype))
    def kernel(x, out):
        out[...] = tl.sum(x[:])

    values = np.full(4096, 0.25, np.float16)
    assert both(kernel, values) == 1024


@pytest.mark.parametrize("tiles", [(16, 16, 16), (7, 11, 5), (1, 21, 29), (40, 40, 40)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8])
def test_matmul(tiles, dtype):
    @girih.kernel(
        out=lambda a, b: tl.Array(
            (a.shape[0], b.shape[1]), "int32" if a.dtype is tl.int8 else a.dtype
        ),
        grid=lambda c, TM, TN: (girih.cdiv(c.shape[0], TM), girih.cdiv(c.shape[1], TN)),
    )
    def matmul(a, b, c, *, TM, TN, TK):
        i, j = tl.tile_id(0) * TM, tl.tile_id(1) * TN
        wide = (
            tl.float64 if a.dtype is tl.float64 else tl.int32 if a.dtype is tl.int8 else tl.float32
        )
        acc = tl.zeros((TM, TN), wide)
        for k in range(0, a.shape[1], TK):
            acc = tl.dot(a[i : i + TM, k : k + TK], b[k : k + TK, j : j + TN], acc)
        c[i : i + TM, j : j + TN] = acc.to(c.dtype)

    a, b = RANDOM.integers(-4, 5, (23, 31)), RANDOM.integers(-4, 5, (31, 19))
    sizes = dict(zip(("TM", "TN", "TK"), tiles, strict=True))
    found = both(matmul, a.astype(dtype), b.astype(dtype), **sizes)
    np.testing.assert_array_equal(found, (a @ b).astype(dtype if dtype != np.int8 else np.int32))


def test_batched_and_transposed_products():
    @girih.kernel(out=lambda a, b: tl.Array((*a.shape[:2], b.shape[1]), a.dtype))
    def kernel(a, b, c):
        c[...] = tl.dot(a[...], b[...].transpose(0, 2, 1))

    a = RANDOM.standard_normal((3, 4, 5)).astype(np.float32)
    b = RANDOM.standard_normal((3, 6, 5)).astype(np.float32)
    np.testing.assert_allclose(both(kernel, a, b), a @ b.transpose(0, 2, 1), rtol=1e-5, atol=1e-5)


def test_windows_of_every_form():
    @girih.kernel(out=lambda x: tl.Array((6, 21), x.dtype))
    def kernel(x, out):
        row = tl.tile_id(0) if False else 3
        out[0] = x[row]
        out[1, :] = x[-1, :]
        out[2:4, 0:21] = x[11:13]
        out[4, ...] = tl.load(x, (-1, 4), (2, 21), fill=-7.0)[1]
        out[5] = tl.load(x, (0, 0), (1, 21), fill=2, mask=tl.arange(21)[None, :] < 5).reshape(21)

    wanted = np.empty((6, 21), np.float32)
    wanted[0], wanted[1], wanted[2:4] = X[3], X[-1], X[11:13]
    wanted[4] = [*X[0, 4:], -7, -7, -7, -7]
    wanted[5] = np.where(np.arange(21) < 5, X[0], 2)
    np.testing.assert_array_equal(both(kernel, X), wanted)


def test_windows_reach_outside():
    """A sum over a neighbourhood: elements outside are the fill value."""

    @girih.kernel(out=lambda x: x, grid=lambda x, T: girih.cdiv(x.size, T))
    def blur(x, out, *, T=8):
        i = tl.tile_id(0) * T
        out[i : i + T] = x[i - 1 : i + T - 1] + x[i : i + T] + x[i + 1 : i + 1 + T]

    padded = np.pad(V, 1)
    wanted = padded[:-2] + padded[1:-1] + padded[2:]
    np.testing.assert_allclose(both(blur, V), wanted, rtol=1e-6, atol=1e-6)


def test_gather_and_scatter():
    @girih.kernel(out=lambda x, rows: tl.Array((rows.size, x.shape[1]), x.dtype))
    def take(x, rows, out):
        out[:, :] = x[rows[:], 0:21]

    wanted = np.zeros((7, 21), np.float32)
    inside = (ROWS >= 0) & (ROWS < 13)
    wanted[inside] = X[ROWS[inside]]
    np.testing.assert_array_equal(both(take, X, ROWS), wanted)

    @girih.kernel(out=lambda x, rows: tl.Array((13, 9), x.dtype))
    def columns(x, rows, out):
        out[...] = tl.gather(x, tl.arange(9) * 2, (0, 4), (13, 9), axis=1, fill=5.0)

    wide = np.pad(X, ((0, 0), (0, 9)), constant_values=5)
    np.testing.assert_array_equal(both(columns, X, ROWS), wide[:, 4:22:2])

    @girih.kernel(
        out=lambda x, rows: tl.Array(x.shape, x.dtype, start="x"),
        grid=lambda rows, T: girih.cdiv(rows.size, T),
    )
    def add_rows(x, rows, out, *, T=4):
        i = tl.tile_id(0) * T
        places = tl.load(rows, i, T, fill=-1)
        tl.scatter(out, places, (0, 0), tl.ones((T, 21), x.dtype), combine="add")

    added = X.copy()
    np.add.at(added, ROWS[inside], 1)
    np.testing.assert_allclose(both(add_rows, X, ROWS), added, rtol=1e-6)


def test_stores_combine_and_mask():
    @girih.kernel(
        out=lambda x, start: [tl.Array((21,), x.dtype, start="start") for _ in range(2)],
        **rows_grid,
    )
    def reduce(x, start, total, largest, *, T=4):
        i = tl.tile_id(0) * T
        inside = (i + tl.arange(T)[:, None]) < x.shape[0]
        total[:] += tl.sum(x[i : i + T], 0)
        rows = tl.where(inside, x[i : i + T], -float("inf"))
        tl.store(largest, 0, rows.max(0), combine="maximum")

    zero = np.zeros(21, np.float32)
    total, largest = both(reduce, X, zero)
    np.testing.assert_allclose(total, X.sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(largest, np.maximum(X.max(0), 0))

    @girih.kernel(out=lambda x: tl.Array(x.shape, x.dtype, start="x"))
    def keep_odd(x, out):
        tl.store(out, 0, tl.zeros(29), mask=tl.arange(29) % 2 == 0)

    wanted = V.copy()
    wanted[::2] = 0
    np.testing.assert_array_equal(both(keep_odd, V), wanted)


def test_loops_carry_what_changes():
    @girih.kernel(out=lambda x: tl.Array((4,), "float32"))
    def kernel(x, out):
        total, count = tl.zeros((1,)), 0.5
        rounds: Any = 0
        twice = tl.zeros((1,))
        scratch = 1
        for i in range(0, 29, 2):
            scratch = x[i : i + 1]
            total += scratch
            for j in range(i, i + 2):
                twice = twice + x[j : j + 1] * 2
            rounds = rounds + 1
            count += 1.0
        for step in tl.static_range(3, 0, -1):
            if step == 2:
                continue
            total = total + step
            if step == 1:
                break
        for scale in (2.0, 3.0):
            total = total * scale
        out[0:1] = total
        out[1:2] = twice
        out[2] = rounds.to(tl.float32)
        out[3] = count

    wanted = [(V[::2].sum() + 4) * 6, V.sum() * 2, 15, 15.5]
    np.testing.assert_allclose(both(kernel, V), wanted, rtol=1e-5)


def test_loops_with_computed_bounds():
    """The lower triangle's row sums: each tile's loop is as long as its number."""

    @girih.kernel(out=lambda x: tl.Array((x.shape[0],), x.dtype), grid=lambda x, T: x.shape[0] // T)
    def triangle(x, out, *, T=4):
        row = tl.tile_id(0)
        rows = row * T + tl.arange(T)[:, None]
        total = tl.zeros((T,))
        for j in range(row + 1):
            columns = j * T + tl.arange(T)[None, :]
            part = x[row * T : row * T + T, j * T : (j + 1) * T]
            total += tl.sum(tl.where(columns <= rows, part, 0.0), 1)
        out[row * T : row * T + T] = total

    square = RANDOM.standard_normal((12, 12)).astype(np.float32)
    np.testing.assert_allclose(both(triangle, square), np.tril(square).sum(1), rtol=1e-5, atol=1e-5)


def test_branches():
    @girih.kernel(out=lambda x: x, grid=6)
    def kernel(x, out, *, negate=True):
        i = tl.tile_id(0)
        value, extra = x[i * 5 : i * 5 + 5], 0.0
        if negate:
            value = -value
        if i % 2 == 0 and not (i > 3 and i < 5):
            value = value * 2.0
            extra = 1.0
        elif i == 1:
            extra = 3.0
        scale = 10.0 if i > 2 else 1.0
        if i < 5:
            out[i * 5 : i * 5 + 5] = (value + extra) * scale
        else:
            out[i * 5 : i * 5 + 5] = value

    tile = np.arange(29) // 5
    value = np.where((tile % 2 == 0) & (tile != 4), -V * 2 + 1, -V + 3 * (tile == 1))
    wanted = np.where(tile < 5, value * np.where(tile > 2, 10, 1), -V)
    np.testing.assert_allclose(both(kernel, V), wanted, rtol=1e-6)


def test_helpers_are_part_of_the_kernel():
    limit = 0.5

    def scaled(x, factor=2.0, *, shift):
        if factor == 0:
            return x
        y = x * factor
        n: Any
        for n in range(2):
            y = y + shift + n.to(tl.float32)
        return tl.minimum(y, limit), shift

    @girih.kernel(**same)
    def kernel(x, out, *, T=5, mode="on"):
        assert mode == "on", f"mode is {mode}"
        i = tl.tile_id(0) * T
        tile, shift = scaled(x[i : i + T, :], shift=0.25)
        pair: Any = (tile, shift) if len(x.shape) == 2 else (None, None)
        out[i : i + T, :] = pair[0] + pair[1] * math.pi * tl.tile_count(0)

    wanted = np.minimum(X * 2 + 1.5, 0.5) + 0.25 * math.pi * 3
    np.testing.assert_allclose(both(kernel, X), wanted, rtol=1e-5)


def test_a_changed_surrounding_is_seen():
    factor = 2.0

    @girih.kernel(out=lambda x: x)
    def scale(x, out):
        out[:] = x[:] * factor

    np.testing.assert_array_equal(scale(V), V * 2)
    factor = 3.0
    np.testing.assert_array_equal(scale(V), V * 3)


def test_empty_grids_and_arrays():
    @girih.kernel(out=lambda x: x, grid=lambda x: x.size)
    def copy(x, out):
        i = tl.tile_id(0)
        out[i] = x[i]

    empty = np.zeros(0, np.float32)
    assert copy.interpret(empty).shape == copy(empty).shape == (0,)
    np.testing.assert_array_equal(both(copy, V), V)


def test_promotion():
    @girih.kernel(out=lambda x, i: [tl.Array((29,), "float32")] * 2)
    def kernel(x, i, out, halves):
        small = i[:].to(tl.int8)
        out[:] = x[:] + small * 2 + (x[:] > 0)
        halves[:] = i[:] / 2 + (x[:].to(tl.bfloat16) + x[:].to(tl.float16)) * 0

    integers = np.arange(29, dtype=np.int32)
    out, halves = both(kernel, V, integers)
    np.testing.assert_allclose(out, V + integers * 2 + (V > 0), rtol=1e-6)
    np.testing.assert_allclose(halves, integers / 2)
