"""Floating-point instructions against numpy, and fused ones against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from .elementwise import apply, floats, same

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the references
F32, F64 = np.float32, np.float64
BFLOAT = np.dtype(ml_dtypes.bfloat16)


def exact_round(value: Fraction, mode: str, bits: int, lowest: int, largest: Fraction) -> float:
    """`value` with `bits` of precision and least exponent `lowest`, as a float64."""
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, lowest) - bits + 1)
    quotient, rest = divmod(size, unit)
    up = {
        "rn": rest * 2 > unit or (rest * 2 == unit and quotient % 2 == 1),
        "rz": False,
        "rm": value < 0 and rest > 0,
        "rp": value > 0 and rest > 0,
    }[mode]
    result = (quotient + up) * unit
    if result > largest:
        limit = mode == "rz" or (mode == "rm" and value > 0) or (mode == "rp" and value < 0)
        magnitude = float(largest) if limit else math.inf
    else:
        magnitude = float(result)
    return -magnitude if value < 0 else magnitude


FORMATS = {
    "f32": (24, -126, Fraction(float(np.finfo(F32).max))),
    "f64": (53, -1022, Fraction(float(np.finfo(F64).max))),
    "f16": (11, -14, Fraction(65504)),
    "bf16": (8, -126, Fraction(float(ml_dtypes.finfo(BFLOAT).max))),
}


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray, mode: str, type_: str) -> np.ndarray:
    result = np.empty(a.size, F64)
    for place, (x, y, z) in enumerate(zip(*(v.astype(F64) for v in (a, b, c)), strict=True)):
        with np.errstate(all="ignore"):
            plain = x * y + z
        if not all(np.isfinite((x, y, z))):
            result[place] = plain
            continue
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        result[place] = exact_round(exact, mode, *FORMATS[type_])
        if exact == 0:
            negative = np.signbit(x) != np.signbit(y) and np.signbit(z)
            opposite = (np.signbit(x) != np.signbit(y)) != np.signbit(z) or x * y != 0
            if negative or (mode == "rm" and opposite):
                result[place] = -0.0
    return result


@pytest.mark.parametrize("type_", ["f32", "f64"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_nearest(name: str, type_: str) -> None:
    kind = {"f32": F32, "f64": F64}[type_]
    a, b = floats(kind, seed=1), floats(kind, seed=5)
    rounding = ".rn" if name == "div" else ""
    found = apply(f"{name}{rounding}.{type_} {{d0}}, {{0}}, {{1}};", [a, b], kind)
    with np.errstate(all="ignore"):
        expected = {"add": a + b, "sub": a - b, "mul": a * b, "div": a / b}[name]
    same(found, expected)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("type_", ["f32", "f64"])
def test_fused(type_: str, mode: str) -> None:
    kind = {"f32": F32, "f64": F64}[type_]
    a, b, c = (floats(kind, 1024, seed=s) for s in (1, 5, 9))
    with np.errstate(all="ignore"):
        c[::3] = -(a * b)[::3]  # the product's tail decides
    found = apply(f"fma.{mode}.{type_} {{d0}}, {{0}}, {{1}}, {{2}};", [a, b, c], kind)
    with np.errstate(all="ignore"):
        same(found, fused(a, b, c, mode, type_).astype(kind))


def test_fused_ties() -> None:
    """Sums whose rounding to float64 would fall on a tie of float32."""
    rng = np.random.default_rng(0)
    a = (1 + rng.integers(0, 1 << 12, 512) * 2.0**-12).astype(F32)
    b = (1 + rng.integers(0, 1 << 12, 512) * 2.0**-12).astype(F32)
    tie = (rng.integers(1 << 23, 1 << 24, 512) + 0.5).astype(F64)
    c = (tie * 2.0**8).astype(F32)
    found = apply("fma.rn.f32 {d0}, {0}, {1}, {2};", [a, b, c], F32)
    same(found, fused(a, b, c, "rn", "f32").astype(F32))
    tiny = (c.astype(F64) * 2.0**-40 * 2.0**-120).astype(F32)
    small = (a.astype(F64) * 2.0**-140).astype(F32)
    found = apply("fma.rn.f32 {d0}, {0}, {1}, {2};", [small, b, tiny], F32)
    same(found, fused(small, b, tiny, "rn", "f32").astype(F32))


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("type_", ["f32", "f64"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "sqrt", "rcp"])
def test_directed(name: str, type_: str, mode: str) -> None:
    kind = {"f32": F32, "f64": F64}[type_]
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(128).astype(kind) for _ in range(2))
    if name == "sqrt":
        a = np.abs(a)
    two = name not in ("sqrt", "rcp")
    found = apply(f"{name}.{mode}.{type_} {{d0}}, {{0}}{', {1}' if two else ''};", [a, b], kind)
    expected = []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        x, y = Fraction(x), Fraction(y)
        if name == "sqrt":
            scale = Fraction(2) ** 200
            root = math.isqrt(int(x * scale * scale))
            exact = Fraction(root, int(scale)) + (Fraction(1, 2**220) if x else 0)
        else:
            exact = {"add": x + y, "sub": x - y, "mul": x * y, "div": x / y, "rcp": 1 / x}[name]
        expected.append(exact_round(exact, mode, *FORMATS[type_]))
    same(found, np.asarray(expected, kind))


@pytest.mark.parametrize("type_", ["f32", "f64"])
def test_extremes(type_: str) -> None:
    kind = {"f32": F32, "f64": F64}[type_]
    a, b = floats(kind, seed=1), floats(kind, seed=2)
    for name, pick in (("min", np.fmin), ("max", np.fmax)):
        found = apply(f"{name}.{type_} {{d0}}, {{0}}, {{1}};", [a, b], kind)
        expected = pick(a, b)
        zeros = (a == 0) & (b == 0)
        signs = np.signbit(a) | np.signbit(b) if name == "min" else np.signbit(a) & np.signbit(b)
        same(found, np.where(zeros, np.where(signs, kind(-0.0), kind(0)), expected))
    if type_ == "f32":
        found = apply("max.NaN.f32 {d0}, {0}, {1};", [a, b], kind)
        same(np.isnan(found), np.isnan(a) | np.isnan(b))
        found = apply("min.xorsign.abs.f32 {d0}, {0}, {1};", [a, b], kind)
        size = np.fmin(np.abs(a), np.abs(b))
        same(found, np.where(np.signbit(a) != np.signbit(b), -size, size))
        found = apply("min.f32 {d0}, {0}, {1}, {0};", [a, b], kind)
        same(np.isnan(found), np.isnan(a) & np.isnan(b))


def test_unary() -> None:
    a = floats(F32, seed=1)
    with np.errstate(all="ignore"):
        same(apply("neg.f32 {d0}, {0};", [a], F32), -a)
        same(apply("abs.f32 {d0}, {0};", [a], F32), np.abs(a))
        same(apply("sqrt.rn.f32 {d0}, {0};", [a], F32), np.sqrt(a))
        same(apply("rcp.rn.f32 {d0}, {0};", [a], F32), F32(1) / a)
        b = floats(F32, seed=2)
        same(apply("copysign.f32 {d0}, {0}, {1};", [a, b], F32), np.copysign(b, a))
        found = apply("add.sat.f32 {d0}, {0}, {1};", [a, b], F32)
        same(found, np.where(np.isnan(a + b), F32(0), np.clip(a + b, F32(0), F32(1))))
        found = apply("mul.ftz.f32 {d0}, {0}, {1};", [a, b], F32)
        limit = np.finfo(F32).tiny
        x, y = (np.where(np.abs(v) < limit, np.copysign(F32(0), v), v) for v in (a, b))
        z = x * y
        same(found, np.where(np.abs(z) < limit, np.copysign(F32(0), z), z))
    values = np.linspace(-4, 4, 256).astype(F32)
    wide = values.astype(F64)
    for name, function in (("ex2", np.exp2), ("sin", np.sin), ("cos", np.cos), ("tanh", np.tanh)):
        found = apply(f"{name}.approx.f32 {{d0}}, {{0}};", [values], F32)
        np.testing.assert_allclose(found, function(wide), rtol=2e-7)
    positive = np.abs(values)
    np.testing.assert_allclose(
        apply("lg2.approx.f32 {d0}, {0};", [positive], F32),
        np.log2(positive.astype(F64)),
        rtol=2e-7,
    )
    np.testing.assert_allclose(
        apply("rsqrt.approx.f32 {d0}, {0};", [positive], F32),
        positive.astype(F64) ** -0.5,
        rtol=2e-7,
    )


@pytest.mark.parametrize("half", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma", "min", "max"])
def test_halves(name: str, half: str) -> None:
    kind = np.dtype(np.float16) if half == "f16" else BFLOAT
    bits = [floats(np.float16, 512, seed=s).view(np.uint16) for s in (1, 5, 9)]
    if half == "bf16":
        bits = [floats(F32, 512, seed=s).astype(BFLOAT).view(np.uint16) for s in (1, 5, 9)]
    a, b, c = (v.view(kind) for v in bits)
    with np.errstate(all="ignore"):
        if name == "fma":
            expected = fused(a, b, c, "rn", half)
            expected = expected.astype(np.float32).astype(kind)
        elif name in ("min", "max"):
            pick = np.fmin if name == "min" else np.fmax
            expected = pick(a.astype(F32), b.astype(F32)).astype(kind)
        else:
            x, y = a.astype(F32), b.astype(F32)
            expected = {"add": x + y, "sub": x - y, "mul": x * y}[name].astype(kind)
    operands = "{0}, {1}, {2}" if name == "fma" else "{0}, {1}"
    rounding = ".rn" if name == "fma" else ""
    found = apply(f"{name}{rounding}.{half} {{d0}}, {operands};", bits, np.uint16).view(kind)
    nan = np.isnan(expected.astype(F32))
    assert (np.isnan(found.astype(F32)) == nan).all()
    zeros = (found.astype(F32) == 0) & (expected.astype(F32) == 0)  # signs of zeros: test_extremes
    keep = ~nan & ~(zeros if name in ("min", "max") else np.zeros_like(zeros))
    same(found[keep].view(np.uint16), expected[keep].view(np.uint16))
    pairs = [v.view(np.uint32) for v in bits]
    both = apply(f"{name}{rounding}.{half}x2 {{d0}}, {operands};", pairs, np.uint32)
    same(both.view(np.uint16), found.view(np.uint16))


def test_float_pairs() -> None:
    a, b, c = (floats(F32, 512, seed=s) for s in (1, 5, 9))
    sources = [v.view(np.uint64) for v in (a, b, c)]
    found = apply("fma.rn.f32x2 {d0}, {0}, {1}, {2};", sources, np.uint64).view(F32)
    with np.errstate(all="ignore"):
        same(found, fused(a, b, c, "rn", "f32").astype(F32))


@pytest.mark.parametrize(
    "name", ["finite", "infinite", "number", "notanumber", "normal", "subnormal"]
)
def test_properties(name: str) -> None:
    a = floats(F32, seed=1)
    lines = f"testp.{name}.f32 %p1, {{0}}; selp.u32 {{d0}}, 1, 0, %p1;"
    found = apply(lines, [a], np.uint32)
    tiny = np.finfo(F32).tiny
    expected = {
        "finite": np.isfinite(a),
        "infinite": np.isinf(a),
        "number": ~np.isnan(a),
        "notanumber": np.isnan(a),
        "normal": np.isfinite(a) & (np.abs(a) >= tiny),
        "subnormal": (np.abs(a) < tiny) & (a != 0),
    }[name]
    same(found, expected.astype(np.uint32))
