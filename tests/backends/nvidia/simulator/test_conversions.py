"""cvt against Python's integers, numpy and ml_dtypes; selections and comparisons."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from .elementwise import apply, floats, integers, same
from .test_floats import BFLOAT, F32, F64, FORMATS, exact_round

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the references
INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
KINDS = {"f16": np.float16, "f32": F32, "f64": F64}


def kind(type_: str) -> np.dtype:
    return np.dtype(f"{'i' if type_[0] == 's' else 'u'}{int(type_[1:]) // 8}")


def in_register(type_: str) -> np.dtype:
    """8-bit values lie in 16-bit registers."""
    return np.dtype(f"u{max(kind(type_).itemsize, 2)}")


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", INTEGERS)
def test_integers(source: str, target: str) -> None:
    a = integers(kind(source), seed=1)
    register = a.astype(in_register(source))
    found = apply(f"cvt.{target}.{source} {{d0}}, {{0}};", [register], in_register(target))
    same(found.astype(kind(target)), a.astype(kind(target)))
    extended = a.astype(kind(target)).astype(in_register(target))
    same(found, extended)
    found = apply(f"cvt.sat.{target}.{source} {{d0}}, {{0}};", [register], in_register(target))
    bounds = np.iinfo(kind(target))
    clamped = [min(max(v, int(bounds.min)), int(bounds.max)) for v in a.tolist()]
    same(found.astype(kind(target)), np.asarray(clamped, kind(target)))


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("target", ["s8", "u8", "s16", "u32", "s32", "s64", "u64"])
@pytest.mark.parametrize("source", ["f16", "f32", "f64"])
def test_float_to_integer(source: str, target: str, mode: str) -> None:
    a = floats(KINDS[source], seed=4)
    a[:100] *= np.asarray(1000, a.dtype)
    bits = a.view(f"u{a.itemsize}")
    found = apply(f"cvt.{mode}.{target}.{source} {{d0}}, {{0}};", [bits], in_register(target))
    bounds = np.iinfo(kind(target))
    expected = []
    for value in a.astype(F64).tolist():
        if np.isnan(value):
            expected.append(0)
        elif np.isinf(value):
            expected.append(int(bounds.max if value > 0 else bounds.min))
        else:
            exact = Fraction(value)
            floor = exact.numerator // exact.denominator
            whole = {
                "rni": round(exact),
                "rmi": floor,
                "rpi": floor + (exact != floor),
                "rzi": floor if exact >= 0 or exact == floor else floor + 1,
            }[mode]
            expected.append(min(max(whole, int(bounds.min)), int(bounds.max)))
    same(found.astype(kind(target)), np.asarray(expected, kind(target)))


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("target", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("source", ["u32", "s32", "u64", "s64", "s16"])
def test_integer_to_float(source: str, target: str, mode: str) -> None:
    a = integers(kind(source), seed=1)
    size = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}[target]
    found = apply(f"cvt.{mode}.{target}.{source} {{d0}}, {{0}};", [a], np.dtype(f"u{size}"))
    values = [exact_round(Fraction(v), mode, *FORMATS[target]) for v in a.tolist()]
    dtype = BFLOAT if target == "bf16" else np.dtype(KINDS[target])
    with np.errstate(all="ignore"):
        same(
            found,
            np.asarray(values, F64)
            .astype(F32 if size == 2 else F64)
            .astype(dtype)
            .view(found.dtype),
        )


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(
    "source,target", [("f64", "f32"), ("f32", "f16"), ("f64", "f16"), ("f32", "bf16")]
)
def test_narrowing(source: str, target: str, mode: str) -> None:
    a = floats(KINDS[source], 512, seed=7)
    if target == "f16":
        a[::2] = (floats(np.float16, 512, 3)[::2].astype(F64) * 1.0003).astype(a.dtype)
    size = {"f16": 2, "bf16": 2, "f32": 4}[target]
    found = apply(f"cvt.{mode}.{target}.{source} {{d0}}, {{0}};", [a], np.dtype(f"u{size}"))
    dtype = BFLOAT if target == "bf16" else np.dtype(KINDS[target])
    expected = [
        exact_round(Fraction(v), mode, *FORMATS[target]) if np.isfinite(v) else v
        for v in a.tolist()
    ]
    with np.errstate(all="ignore"):
        narrow = np.asarray(expected, F64).astype(F32).astype(dtype)
    # -0 and values that round to it keep their sign
    wide = narrow.astype(F32)
    wide = np.where((wide == 0) & np.signbit(a), F32(-0.0), wide)
    numbers = ~np.isnan(a)
    assert np.isnan(found.view(dtype).astype(F32)[~numbers]).all()
    same(found[numbers], wide.astype(dtype).view(found.dtype)[numbers])


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_whole_floats(mode: str) -> None:
    a = floats(F32, seed=2)
    function = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode]
    same(apply(f"cvt.{mode}.f32.f32 {{d0}}, {{0}};", [a], F32), function(a))
    b = floats(F64, seed=2)
    same(apply(f"cvt.{mode}.f64.f64 {{d0}}, {{0}};", [b], F64), function(b))


def test_widening() -> None:
    a = floats(np.float16, seed=3)
    same(apply("cvt.f32.f16 {d0}, {0};", [a.view(np.uint16)], F32), a.astype(F32))
    same(apply("cvt.f64.f16 {d0}, {0};", [a.view(np.uint16)], F64), a.astype(F64))
    b = floats(F32, seed=3)
    same(apply("cvt.f64.f32 {d0}, {0};", [b], F64), b.astype(F64))
    c = b.astype(BFLOAT)
    same(apply("cvt.f32.bf16 {d0}, {0};", [c.view(np.uint16)], F32), c.astype(F32))
    found = apply("cvt.sat.f32.f32 {d0}, {0};", [b], F32)
    same(found, np.where(np.isnan(b), F32(0), np.clip(b, F32(0), F32(1))) + F32(0))


def test_two_values() -> None:
    a, b = floats(F32, seed=1), floats(F32, seed=2)
    for name, dtype in (("f16x2", np.dtype(np.float16)), ("bf16x2", BFLOAT)):
        found = apply(f"cvt.rn.{name}.f32 {{d0}}, {{0}}, {{1}};", [a, b], np.uint32)
        halves = found.view(np.uint16).reshape(-1, 2).view(dtype).astype(F32)
        with np.errstate(all="ignore"):
            same(halves[:, 1].copy(), a.astype(dtype).astype(F32))
            same(halves[:, 0].copy(), b.astype(dtype).astype(F32))
        found = apply(f"cvt.rn.relu.{name}.f32 {{d0}}, {{0}}, {{1}};", [a, b], np.uint32)
        halves = found.view(np.uint16).reshape(-1, 2).view(dtype).astype(F32)
        with np.errstate(all="ignore"):
            plain = a.astype(dtype).astype(F32)
        same(halves[:, 1].copy(), np.where(plain <= 0, F32(0), plain))


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_bytes(name: str) -> None:
    dtype = np.dtype({"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[name])
    limit = float(ml_dtypes.finfo(dtype).max)
    a, b = (floats(F32, 1024, seed=s) for s in (1, 2))
    a[::2] = (floats(np.float16, 1024, 5)[::2]).astype(F32)
    found = apply(f"cvt.rn.satfinite.{name}x2.f32 {{d0}}, {{0}}, {{1}};", [a, b], np.uint16)
    octets = found.view(np.uint8).reshape(-1, 2)
    for column, source in ((1, a), (0, b)):
        expected = np.clip(source, -limit, limit).astype(dtype)
        nan = np.isnan(source)
        assert (octets[nan, column] == 0x7F).all()
        same(octets[~nan, column], expected[~nan].view(np.uint8))
    every = np.arange(256, dtype=np.uint8).repeat(2).view(np.uint16)
    found = apply(f"cvt.rn.f16x2.{name}x2 {{d0}}, {{0}};", [every], np.uint32)
    values = every.view(np.uint8).view(dtype).astype(np.float16)
    same(found.view(np.float16), values)


def test_tf32() -> None:
    a = floats(F32, seed=1)
    found = apply("cvt.rna.tf32.f32 {d0}, {0};", [a], F32)
    finite = np.isfinite(a) & (np.abs(a) < 1e38)
    bits = a[finite].view(np.uint32)
    same(found[finite].view(np.uint32), (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000))


COMPARISONS = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: (a < b) | (a > b),
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "equ": lambda a, b: (a == b) | np.isnan(a) | np.isnan(b),
    "neu": lambda a, b: a != b,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}


@pytest.mark.parametrize("operator", COMPARISONS)
def test_float_comparisons(operator: str) -> None:
    lines = f"setp.{operator}.%s %p1, {{0}}, {{1}}; selp.u32 {{d0}}, 7, 3, %p1;"
    for type_, dtype in (("f32", F32), ("f64", F64), ("f16", np.float16)):
        a, b = floats(dtype, seed=1), floats(dtype, seed=2)
        b[::3] = a[::3]
        bits = [v.view(f"u{v.itemsize}") for v in (a, b)]
        found = apply(lines.replace("%s", type_), bits, np.uint32)
        same(found, np.where(COMPARISONS[operator](a, b), np.uint32(7), np.uint32(3)))


@pytest.mark.parametrize("operator", ["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"])
def test_integer_comparisons(operator: str) -> None:
    alias = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(operator, operator)
    for type_ in ("u32",) if alias != operator else ("u32", "s32", "u64", "s64", "s16"):
        a, b = integers(kind(type_), seed=1), integers(kind(type_), seed=2)
        b[::3] = a[::3]
        lines = f"setp.{operator}.{type_} %p1, {{0}}, {{1}}; selp.u32 {{d0}}, 1, 0, %p1;"
        expected = a != b if operator == "ne" else COMPARISONS[alias](a, b)
        same(apply(lines, [a, b], np.uint32), expected.astype(np.uint32))


def test_combined_predicates() -> None:
    a, b = integers(np.int32, seed=1), integers(np.int32, seed=2)
    lines = (
        "setp.lt.s32 %p3, {0}, 0; setp.lt.and.s32 %p1|%p2, {0}, {1}, !%p3;"
        "xor.pred %p4, %p1, %p2; not.pred %p5, %p4; and.pred %p6, %p4, !%p5;"
        "selp.u32 %r20, 1, 0, %p1; selp.u32 %r21, 2, 0, %p2; selp.u32 %r22, 4, 0, %p6;"
        "or.b32 {d0}, %r20, %r21; or.b32 {d0}, {d0}, %r22;"
    )
    less, positive = a < b, a >= 0
    first, second = less & positive, ~less & positive
    expected = first * 1 + second * 2 + (first ^ second) * 4
    same(apply(lines, [a, b], np.uint32), expected.astype(np.uint32))


def test_set_and_select() -> None:
    a, b, c = (integers(np.int32, seed=s) for s in (1, 2, 3))
    found = apply("set.lt.u32.s32 {d0}, {0}, {1};", [a, b], np.uint32)
    same(found, np.where(a < b, np.uint32(0xFFFFFFFF), np.uint32(0)))
    found = apply("set.ge.f32.s32 {d0}, {0}, {1};", [a, b], F32)
    same(found, (a >= b).astype(F32))
    found = apply("slct.s32.s32 {d0}, {0}, {1}, {2};", [a, b, c], np.int32)
    same(found, np.where(c >= 0, a, b))


def test_guarded_results() -> None:
    a, b = integers(np.int32, seed=1), integers(np.int32, seed=2)
    lines = (
        "mov.u32 {d0}, {0}; setp.gt.s32 %p1, {0}, {1};"
        "@%p1 add.s32 {d0}, {1}, 5; @!%p1 neg.s32 {d0}, {d0};"
    )
    same(apply(lines, [a, b], np.int32), np.where(a > b, b + np.int32(5), -a))


def test_packing() -> None:
    a = integers(np.uint64, seed=1)
    lines = (
        "mov.b64 {%h20, %h21, %h22, %h23}, {0}; mov.b32 %r20, {%h23, %h22};"
        "mov.b32 %r21, {%h21, %h20}; mov.b64 {d0}, {%r20, %r21};"
    )
    same(
        apply(lines, [a], np.uint64),
        a.view(np.uint16).reshape(-1, 4)[:, ::-1].copy().view(np.uint64)[:, 0],
    )
