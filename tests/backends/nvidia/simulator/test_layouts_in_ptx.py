"""Plans of `layouts` as PTX: addresses, matrix loads and stores, shuffles do what they say."""

from __future__ import annotations

import numpy as np
import pytest

from girih.backends.nvidia import layouts as L
from girih.backends.nvidia.layouts import LinearLayout

from .asynchronous import run

SHAPE = (64, 64)


def base(terms: tuple[L.AddressTerm, ...], to: str) -> str:
    """XOR of an address's terms into `to`; %lane and %r690 (warp) are the inputs."""
    lines = [f"mov.b32 {to}, 0;"]
    for term in terms:
        source = {"lane": "%lane", "warp": "%r690"}[term.name]
        shift = "shl" if term.shift >= 0 else "shr"
        lines += [
            f"and.b32 %r691, {source}, {term.mask};",
            f"{shift}.b32 %r691, %r691, {abs(term.shift)};",
            f"xor.b32 {to}, {to}, %r691;",
        ]
    return "\n".join(lines)


def at(access: L.SharedAccess) -> str:
    """The address of an access in %r693, from the base in %r692."""
    return (
        f"xor.b32 %r693, %r692, {access.xor};\nadd.u32 %r693, %r693, {access.add};\n"
        "add.u32 %r693, %r693, %s32;"
    )


def words_of(plan: L.Addresses, access: L.SharedAccess, size: int) -> str:
    """Registers (32-bit words of elements of `size` bytes) of an access."""
    per = 4 // size
    return ", ".join(f"%r{access.registers[i] // per}" for i in range(0, plan.bytes // size, per))


def vector(count: int) -> str:
    return {1: ".b32", 2: ".v2.b32", 4: ".v4.b32"}[count]


def transfer(kind: str, value: LinearLayout, tile: LinearLayout, size: int) -> str:
    """ld or st of a value's words %r0.. from or to a tile."""
    plan = L.addresses(value, tile, size)
    assert plan.bytes >= 4
    lines = [base(plan.terms, "%r692")]
    for access in plan.accesses:
        registers = words_of(plan, access, size)
        operands = f"{{{registers}}}" if plan.bytes > 4 else registers
        opcode = f"{kind}.shared{vector(plan.bytes // 4)}"
        order = f"[%r693], {operands}" if kind == "st" else f"{operands}, [%r693]"
        lines += [at(access), f"{opcode} {order};"]
    return "\n".join(lines)


def matrix_transfer(kind: str, value: LinearLayout, tile: LinearLayout, size: int) -> str:
    access = L.matrix_access(value, tile, size)
    assert access is not None
    trans = ".trans" if access.transposed else ""
    lines = [base(access.addresses.terms, "%r692")]
    for step in access.addresses.accesses:
        operands = f"{{{words_of(access.addresses, step, size)}}}"
        opcode = f"{kind}matrix.sync.aligned.m8n8.x{access.count}{trans}.shared.b16"
        order = f"[%r693], {operands}" if kind == "st" else f"{operands}, [%r693]"
        lines += [at(step), f"{opcode} {order};"]
    return "\n".join(lines)


def held(value: LinearLayout, matrix: np.ndarray) -> np.ndarray:
    """[thread, register] of a matrix."""
    threads = np.arange(32 * value.size("warp"))[:, None]
    register = np.arange(value.size("register"))
    flat = value.apply(register=register, lane=threads % 32, warp=threads // 32)
    return np.ascontiguousarray(matrix.reshape(-1)[flat])


def whole(kind: str, argument: int, count: int) -> str:
    """Each thread's words %r0.. from or to its row of an argument."""
    lines = [f"mad.wide.u32 %rd{argument}, %t, {4 * count}, %a{argument};"]
    for i in range(count):
        place, register = f"[%rd{argument}+{4 * i}]", f"%r{i}"
        order = f"{place}, {register}" if kind == "st" else f"{register}, {place}"
        lines.append(f"{kind}.global.b32 {order};")
    return "\n".join(lines)


BLOCKED = L.blocked(SHAPE, 4, 8)
A, B, C = L.mma_tiles((64, 64, 64), (16, 8, 16), 16, 16, (2, 2))
SWIZZLED = L.swizzled(SHAPE, 2, 128)


@pytest.mark.parametrize(
    ("value", "tile", "matrices"),
    [
        (A, SWIZZLED, True), (B, SWIZZLED, True), (B, SWIZZLED.transpose((1, 0)), True),
        (C, SWIZZLED, True), (L.wgmma_accumulator(64), SWIZZLED, True),
        (C, L.best_tile(BLOCKED, C, 2), False), (A, SWIZZLED, False),
        (L.wgmma_accumulator(64), L.best_tile(BLOCKED, L.wgmma_accumulator(64), 2), False),
        (L.wgmma_a(64, 16), L.row_major(SHAPE), True),
    ],
)  # fmt: skip
def test_a_tile_goes_through_shared_memory(value, tile, matrices):
    """Blocked registers -> shared memory -> the layout of a fragment, without bank conflicts
    where the layouts promise none; and back."""
    matrix = np.arange(4096, dtype=np.uint16).reshape(SHAPE)
    across = L.addresses(BLOCKED, tile, 2).bytes < 4
    blocked = L.blocked(SHAPE, 4, 8).transpose((1, 0)) if across else BLOCKED
    inward, outward = held(blocked, matrix), held(value, matrix)
    out = np.zeros_like(outward)
    load = matrix_transfer if matrices else transfer
    body = f"""
    shr.u32 %r690, %t, 5;
    {whole("ld", 0, inward.shape[1] // 2)}
    {transfer("st", blocked, tile, 2)}
    bar.sync 0;
    {load("ld", value, tile, 2)}
    {whole("st", 1, outward.shape[1] // 2)}
    """
    report = run(body, [inward, out], threads=128, shared=8192, counters=True)
    assert (out == outward).all()
    access = L.matrix_access(value, tile, 2) if matrices else None
    extra = L.matrix_wavefronts(access) if access else L.wavefronts(value, tile, 2)
    clean = extra == 1 and L.wavefronts(blocked, tile, 2) == 1
    assert (report.counters["bank_conflicts"] == 0) == clean
    if value.copies("warp"):
        return  # stores of the same by several warps
    back = np.zeros_like(inward)
    body = f"""
    shr.u32 %r690, %t, 5;
    {whole("ld", 0, outward.shape[1] // 2)}
    {load("st", value, tile, 2)}
    bar.sync 0;
    {transfer("ld", blocked, tile, 2)}
    {whole("st", 1, inward.shape[1] // 2)}
    """
    run(body, [outward, back], threads=128, shared=8192)
    assert (back == inward).all()


def swaps(plan: tuple[L.Swap, ...], count: int, first: int) -> str:
    """Exchanges among registers %r<first>.. of lanes whose parity is odd."""
    lines = []
    for swap in plan:
        lines += [
            f"and.b32 %r680, %lane, {swap.mask};", "popc.b32 %r680, %r680;",
            "and.b32 %r680, %r680, 1;", "setp.ne.b32 %p20, %r680, 0;",
        ]  # fmt: skip
        for number in range(count):
            other = number | 1 << swap.bit
            if number == other:
                continue
            low, high = f"%r{first + number}", f"%r{first + other}"
            lines += [
                f"selp.b32 %r681, {high}, {low}, %p20;",
                f"selp.b32 {high}, {low}, {high}, %p20;",
                f"mov.b32 {low}, %r681;",
            ]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("source", "target", "bits", "pack"),
    [
        (L.blocked((16, 16), 1, 8), L.repeat(L.mma_accumulator(16, 8), (16, 16)), 16, 2),
        (L.repeat(L.mma_accumulator(16, 8), (16, 16)), L.blocked((16, 16), 1, 8), 16, 2),
        (L.blocked((32, 16), 1, 4), L.blocked((16, 32), 1, 4).transpose((1, 0)), 16, 1),
        (L.mma_a(16, 32, 8), L.repeat(L.mma_accumulator(16, 8), (16, 32)), 32, 1),
        (L.wgmma_accumulator(32), L.wgmma_a(32, 8), 16, 2),
    ],
)
def test_shuffles(source, target, bits, pack):
    conversion = L.convert(source, target, bits)
    plan = conversion.shuffles
    assert conversion.kind == "shuffles" and plan is not None
    assert 1 << plan.packed_bits == pack
    assert len(plan.rounds) == target.size("register") // pack
    dtype = np.uint16 if plan.packed_bits else np.uint32
    matrix = np.arange(int(np.prod(source.shape)), dtype=dtype)
    given, wanted = held(source, matrix), held(target, matrix)
    words = given.shape[1] // pack
    lines = [f"{whole('ld', 0, words)}", swaps(plan.before, words, 0), "mov.b32 %r682, 0;"]
    for bit, image in enumerate(plan.lanes):
        lines += [
            f"bfe.u32 %r683, %lane, {bit}, 1;", f"mul.lo.u32 %r683, %r683, {image};",
            "xor.b32 %r682, %r682, %r683;",
        ]  # fmt: skip
    for step in plan.rounds:
        lines += [
            f"xor.b32 %r684, %r682, {step.lane_xor};",
            f"shfl.sync.idx.b32 %r{200 + step.keep}, %r{step.send}, %r684, 31, -1;",
        ]
    lines.append(swaps(plan.after, len(plan.rounds), 200))
    lines += [f"mov.b32 %r{i}, %r{200 + word};" for i, word in enumerate(plan.words)]
    lines.append(whole("st", 1, len(plan.words)))
    out = np.zeros_like(wanted)
    run("\n".join(lines), [given, out], threads=32 * source.size("warp"))
    assert (out == wanted).all()
