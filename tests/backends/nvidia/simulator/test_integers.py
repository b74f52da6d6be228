"""Integer instructions against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest

from .elementwise import apply, integers, same


def dtype(type_: str) -> np.dtype:
    return np.dtype(f"{'i' if type_[0] == 's' else 'u'}{int(type_[1:]) // 8}")


def wrap(values: list[int], type_: np.dtype) -> np.ndarray:
    bits = 8 * type_.itemsize
    return np.asarray([v % (1 << bits) for v in values], f"u{type_.itemsize}").view(type_)


def divided(a: int, b: int) -> int:
    if b == 0:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY = {
    "add": lambda a, b, n: a + b,
    "sub": lambda a, b, n: a - b,
    "mul.lo": lambda a, b, n: a * b,
    "mul.hi": lambda a, b, n: (a * b) >> n,
    "div": lambda a, b, n: divided(a, b),
    "rem": lambda a, b, n: a - divided(a, b) * b if b else a,
    "min": lambda a, b, n: min(a, b),
    "max": lambda a, b, n: max(a, b),
}


@pytest.mark.parametrize("type_", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, type_: str) -> None:
    kind = dtype(type_)
    a, b = integers(kind, seed=1), integers(kind, seed=2)
    found = apply(f"{name}.{type_} {{d0}}, {{0}}, {{1}};", [a, b], kind)
    bits = int(type_[1:])
    expected = [BINARY[name](int(x), int(y), bits) for x, y in zip(a, b, strict=True)]
    same(found, wrap(expected, kind))


@pytest.mark.parametrize("type_", ["u16", "s16", "u32", "s32"])
def test_wide(type_: str) -> None:
    kind = dtype(type_)
    wide = np.dtype(f"{kind.kind}{2 * kind.itemsize}")
    a, b, c = integers(kind, seed=1), integers(kind, seed=2), integers(wide, seed=3)
    found = apply(f"mul.wide.{type_} {{d0}}, {{0}}, {{1}};", [a, b], wide)
    same(found, a.astype(wide) * b.astype(wide))
    found = apply(f"mad.wide.{type_} {{d0}}, {{0}}, {{1}}, {{2}};", [a, b, c], wide)
    same(found, a.astype(wide) * b.astype(wide) + c)


@pytest.mark.parametrize("type_", ["u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("half", ["lo", "hi"])
def test_multiply_add(half: str, type_: str) -> None:
    kind = dtype(type_)
    a, b, c = (integers(kind, seed=s) for s in (1, 2, 3))
    found = apply(f"mad.{half}.{type_} {{d0}}, {{0}}, {{1}}, {{2}};", [a, b, c], kind)
    shift = 0 if half == "lo" else int(type_[1:])
    rows = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    same(found, wrap([(x * y >> shift) + z for x, y, z in rows], kind))


@pytest.mark.parametrize("type_", ["b16", "b32", "b64"])
@pytest.mark.parametrize("name", ["and", "or", "xor", "not", "cnot"])
def test_bitwise(name: str, type_: str) -> None:
    kind = dtype(type_)
    a, b = integers(kind, seed=1), integers(kind, seed=2)
    one = name in ("not", "cnot")
    found = apply(f"{name}.{type_} {{d0}}, {{0}}{'' if one else ', {1}'};", [a, b], kind)
    expected = {"and": a & b, "or": a | b, "xor": a ^ b, "not": ~a, "cnot": (a == 0).astype(kind)}
    same(found, expected[name])


@pytest.mark.parametrize("type_", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("name", ["shl", "shr"])
def test_shifts(name: str, type_: str) -> None:
    kind = dtype(type_)
    bits = int(type_[1:])
    a, by = integers(kind, seed=1), integers(np.uint32, seed=2)
    shown = f"b{bits}" if name == "shl" else type_
    found = apply(f"{name}.{shown} {{d0}}, {{0}}, {{1}};", [a, by], kind)
    rows = [(int(x), min(int(y), bits)) for x, y in zip(a, by, strict=True)]
    same(found, wrap([x << y if name == "shl" else x >> y for x, y in rows], kind))
    for amount in (0, 5, bits - 1, bits, 200):
        found = apply(f"{name}.{shown} {{d0}}, {{0}}, {amount};", [a], kind)
        expected = [
            int(x) << min(amount, bits) if name == "shl" else int(x) >> min(amount, bits) for x in a
        ]
        same(found, wrap(expected, kind))


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("left", [True, False])
def test_funnel_shift(left: bool, wrapped: bool) -> None:
    a, b, by = (integers(np.uint32, seed=s) for s in (1, 2, 3))
    name = f"shf.{'l' if left else 'r'}.{'wrap' if wrapped else 'clamp'}.b32"
    found = apply(f"{name} {{d0}}, {{0}}, {{1}}, {{2}};", [a, b, by], np.uint32)
    expected = []
    for x, y, z in zip(a.tolist(), b.tolist(), by.tolist(), strict=True):
        pair, amount = y << 32 | x, z & 31 if wrapped else min(z, 32)
        expected.append((pair << amount >> 32 if left else pair >> amount) & 0xFFFFFFFF)
    same(found, np.asarray(expected, np.uint32))


@pytest.mark.parametrize("width", [32, 64])
def test_counting_bits(width: int) -> None:
    kind = np.dtype(f"u{width // 8}")
    a = integers(kind, seed=1)
    values = a.tolist()
    found = apply(f"popc.b{width} {{d0}}, {{0}};", [a], np.uint32)
    same(found, np.asarray([bin(v).count("1") for v in values], np.uint32))
    found = apply(f"clz.b{width} {{d0}}, {{0}};", [a], np.uint32)
    same(found, np.asarray([width - v.bit_length() for v in values], np.uint32))
    found = apply(f"brev.b{width} {{d0}}, {{0}};", [a], kind)
    same(found, np.asarray([int(f"{v:0{width}b}"[::-1], 2) for v in values], kind))
    found = apply(f"bfind.u{width} {{d0}}, {{0}};", [a], np.uint32)
    same(found, np.asarray([(v.bit_length() - 1) % (1 << 32) for v in values], np.uint32))
    found = apply(f"bfind.shiftamt.u{width} {{d0}}, {{0}};", [a], np.uint32)
    expected = [width - v.bit_length() if v else 0xFFFFFFFF for v in values]
    same(found, np.asarray(expected, np.uint32))
    signed = a.view(f"i{width // 8}").tolist()
    found = apply(f"bfind.s{width} {{d0}}, {{0}};", [a], np.uint32)
    tops = [(v if v >= 0 else ~v).bit_length() - 1 for v in signed]
    same(found, np.asarray([t % (1 << 32) for t in tops], np.uint32))


@pytest.mark.parametrize("type_", ["u32", "s32", "u64", "s64"])
def test_fields(type_: str) -> None:
    kind, width = dtype(type_), int(type_[1:])
    a, b = integers(kind, seed=1), integers(kind, seed=2)
    rng = np.random.default_rng(3)
    position = rng.integers(0, 80, a.size).astype(np.uint32)
    length = rng.integers(0, 80, a.size).astype(np.uint32)
    found = apply(f"bfe.{type_} {{d0}}, {{0}}, {{1}}, {{2}};", [a, position, length], kind)
    expected = []
    for x, p, n in zip(a.tolist(), position.tolist(), length.tolist(), strict=True):
        bits, sign = x % (1 << width), 0
        if type_[0] == "s" and n:
            sign = bits >> min(p + n - 1, width - 1) & 1
        chosen = (bits >> (p + k) & 1 if k < n and p + k < width else sign for k in range(width))
        expected.append(sum(bit << k for k, bit in enumerate(chosen)))
    same(found, wrap(expected, kind))
    if type_[0] == "u":
        sources = [a, b, position, length]
        found = apply(f"bfi.b{width} {{d0}}, {{0}}, {{1}}, {{2}}, {{3}};", sources, kind)
        expected = []
        rows = zip(a.tolist(), b.tolist(), position.tolist(), length.tolist(), strict=True)
        for x, y, p, n in rows:
            mask = ((1 << n) - 1) << p
            expected.append(y & ~mask | x << p & mask)
        same(found, wrap(expected, kind))


def test_bytes_and_logic() -> None:
    a, b, c = (integers(np.uint32, seed=s) for s in (1, 2, 3))
    found = apply("prmt.b32 {d0}, {0}, {1}, {2};", [a, b, c], np.uint32)
    expected = []
    for x, y, s in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
        octets = (y << 32 | x).to_bytes(8, "little")
        chosen = []
        for position in range(4):
            nibble = s >> 4 * position & 15
            octet = octets[nibble & 7]
            chosen.append((255 if octet & 128 else 0) if nibble & 8 else octet)
        expected.append(int.from_bytes(bytes(chosen), "little"))
    same(found, np.asarray(expected, np.uint32))
    found = apply("lop3.b32 {d0}, {0}, {1}, {2}, 0xE8;", [a, b, c], np.uint32)
    same(found, a & b | a & c | b & c)
    found = apply("sad.u32 {d0}, {0}, {1}, {2};", [a, b, c], np.uint32)
    same(found, np.maximum(a, b) - np.minimum(a, b) + c)
    found = apply("dp4a.s32.u32 {d0}, {0}, {1}, {2};", [a, b, c], np.uint32)
    left = a.view(np.int8).reshape(-1, 4).astype(np.int64)
    right = b.view(np.uint8).reshape(-1, 4).astype(np.int64)
    same(found, ((left * right).sum(1) + c.view(np.int32)).astype(np.uint32))


def test_unary() -> None:
    a = integers(np.int32, seed=1)
    same(apply("neg.s32 {d0}, {0};", [a], np.int32), -a)
    same(apply("abs.s32 {d0}, {0};", [a], np.int32), np.abs(a))
    b = integers(np.int64, seed=1)
    same(apply("abs.s64 {d0}, {0};", [b], np.int64), np.abs(b))
    found = apply("add.sat.s32 {d0}, {0}, {1};", [a, a], np.int32)
    wide = 2 * a.astype(np.int64)
    same(found, np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32))


def test_carry_chains() -> None:
    a, b = integers(np.uint64, seed=1), integers(np.uint64, seed=2)
    split = "mov.b64 {%r20, %r21}, {0}; mov.b64 {%r22, %r23}, {1};"
    for low, high, sign in (("add.cc", "addc", 1), ("sub.cc", "subc", -1)):
        lines = (
            f"{split} {low}.u32 %r24, %r20, %r22; {high}.u32 %r25, %r21, %r23; "
            "mov.b64 {d0}, {%r24, %r25};"
        )
        found = apply(lines, [a, b], np.uint64)
        same(found, a + b if sign > 0 else a - b)
    c = integers(np.uint64, seed=3)
    lines = (
        f"{split} mov.b64 {{%r26, %r27}}, {{2}};"
        "mad.lo.cc.u32 %r28, %r20, %r22, %r26; madc.hi.u32 %r29, %r20, %r22, %r27;"
        "mov.b64 {d0}, {%r28, %r29};"
    )
    mask = np.uint64(0xFFFFFFFF)
    same(apply(lines, [a, b, c], np.uint64), (a & mask) * (b & mask) + c)


@pytest.mark.parametrize("type_", ["u16", "s16"])
def test_pairs(type_: str) -> None:
    a, b = (integers(dtype(type_), 512, seed=s) for s in (1, 2))
    sources = [v.view(np.uint32) for v in (a, b)]
    for name, expected in (("add", a + b), ("min", np.minimum(a, b)), ("max", np.maximum(a, b))):
        found = apply(f"{name}.{type_}x2 {{d0}}, {{0}}, {{1}};", sources, np.uint32)
        same(found, expected.view(np.uint32))
    if type_ == "s16":
        found = apply("max.relu.s16x2 {d0}, {0}, {1};", sources, np.uint32)
        same(found, np.maximum(np.maximum(a, b), 0).view(np.uint32))
