"""mma.sync, ldmatrix, stmatrix, movmatrix: against the layouts and numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from girih.backends.nvidia import layouts as L
from girih.backends.nvidia.layouts import LinearLayout
from girih.hlo.errors import UserError

from .asynchronous import bits, fault, random, run

TYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f32": np.float32,
    "f64": np.float64, "s8": np.int8, "u8": np.uint8, "s32": np.int32,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
FORMS = [
    ((16, 8, 16), "f32", "bf16", "bf16"), ((16, 8, 8), "f32", "bf16", "bf16"),
    ((16, 8, 16), "f32", "f16", "f16"), ((16, 8, 8), "f32", "f16", "f16"),
    ((16, 8, 16), "f16", "f16", "f16"), ((16, 8, 8), "f16", "f16", "f16"),
    ((16, 8, 8), "f32", "tf32", "tf32"), ((16, 8, 4), "f32", "tf32", "tf32"),
    ((8, 8, 4), "f64", "f64", "f64"), ((16, 8, 4), "f64", "f64", "f64"),
    ((16, 8, 8), "f64", "f64", "f64"), ((16, 8, 16), "f64", "f64", "f64"),
    ((16, 8, 32), "s32", "s8", "s8"), ((16, 8, 32), "s32", "s8", "u8"),
    ((16, 8, 32), "s32", "u8", "u8"), ((16, 8, 16), "s32", "u8", "s8"),
    ((8, 8, 16), "s32", "s8", "s8"), ((16, 8, 32), "f32", "e4m3", "e4m3"),
    ((16, 8, 32), "f32", "e5m2", "e4m3"), ((16, 8, 16), "f32", "e5m2", "e5m2"),
    ((16, 8, 32), "f16", "e4m3", "e4m3"),
]  # fmt: skip


def held(value: LinearLayout, matrix: np.ndarray) -> np.ndarray:
    """[lane, register] of a matrix in a layout."""
    register, lane = np.arange(value.size("register")), np.arange(32)[:, None]
    return matrix.reshape(-1)[value.apply(register=register, lane=lane)]


def loads(first: int, count: int, argument: int, wide: bool) -> str:
    """Each lane reads its `count` registers from a row of argument `argument`."""
    size, register = (8, "%fd") if wide else (4, "%r")
    kind = "f64" if wide else "b32"
    lines = [f"mad.wide.u32 %rd{argument}, %lane, {count * size}, %a{argument};"]
    lines += [
        f"ld.global.{kind} {register}{first + i}, [%rd{argument}+{i * size}];" for i in range(count)
    ]
    return "\n".join(lines)


def stores(first: int, count: int, argument: int, wide: bool) -> str:
    return loads(first, count, argument, wide).replace("ld.global", "st.global")


def swap(body: str) -> str:
    """Stores name the address first."""
    lines = []
    for line in body.splitlines():
        if line.startswith("st."):
            head, rest = line.split(" ", 1)
            value, address = rest.rstrip(";").split(", ")
            line = f"{head} {address}, {value};"
        lines.append(line)
    return "\n".join(lines)


def names(first: int, count: int, wide: bool) -> str:
    return "{" + ", ".join(f"{'%fd' if wide else '%r'}{first + i}" for i in range(count)) + "}"


def product_body(shape: tuple[int, int, int], d: str, a: str, b: str, words: list[int],
                 more: str = "") -> str:  # fmt: skip
    m, n, k = shape
    wide = a == "f64"
    na, nb, nc = words
    return "\n".join([
        loads(0, na, 0, wide), loads(20, nb, 1, wide), loads(40, nc, 2, wide),
        f"mma.sync.aligned.m{m}n{n}k{k}.row.col{more}.{d}.{a}.{b}.{d} "
        f"{names(40, nc, wide)}, {names(0, na, wide)}, {names(20, nb, wide)}, "
        f"{names(40, nc, wide)};",
        swap(stores(40, nc, 2, wide)),
    ])  # fmt: skip


@pytest.mark.parametrize(("shape", "d", "a", "b"), FORMS)
def test_products_of_a_warp(shape, d, a, b):
    m, n, k = shape
    left, right = random((m, k), TYPES[a], 1), random((k, n), TYPES[b], 2)
    old = random((m, n), TYPES[d], 3)
    width = np.dtype(TYPES[a]).itemsize * 8
    values = [
        bits(held(L.mma_a(m, k, width), left)),
        bits(held(L.mma_b(k, n, width), right)),
        bits(held(L.mma_accumulator(m, n), old)),
    ]
    size = 8 if a == "f64" else 4
    words = [v.shape[1] // size for v in values]
    run(product_body(shape, d, a, b, words), values)
    wide = np.float64 if d != "s32" else np.int64
    wanted = left.astype(wide) @ right.astype(wide) + old.astype(wide)
    expected = held(L.mma_accumulator(m, n), wanted.astype(TYPES[d]))
    assert (values[2].view(TYPES[d]) == expected).all()


def test_many_warps_and_blocks_multiply_at_once():
    shape = (16, 8, 16)
    left = random((6, 16, 16), np.float16, 1)
    right = random((6, 16, 8), np.float16, 2)
    a, b, c = (L.mma_a(16, 16, 16), L.mma_b(16, 8, 16), L.mma_accumulator(16, 8))
    values = [
        bits(np.stack([held(a, x) for x in left])),
        bits(np.stack([held(b, x) for x in right])),
        bits(np.zeros((6, 32, 4), np.float32)),
    ]
    body = "mov.u32 %r600, %ctaid.x; mad.lo.u32 %lane, %r600, 64, %t;\n"
    run(body + product_body(shape, "f32", "f16", "f16", [4, 2, 4]), values, threads=64, grid=(3,))
    wanted = np.stack([held(c, x) for x in left.astype(np.float32) @ right.astype(np.float32)])
    assert (values[2].view(np.float32) == wanted).all()


def test_integers_wrap_or_saturate():
    left, right = np.full((16, 32), 127, np.int8), np.full((32, 8), 127, np.int8)
    a, b = held(L.mma_a(16, 32, 8), left), held(L.mma_b(32, 8, 8), right)
    old = np.full((32, 4), 2**31 - 5, np.int32)
    wrapped, saturated = [bits(a), bits(b), bits(old)], [bits(a), bits(b), bits(old)]
    run(product_body((16, 8, 32), "s32", "s8", "s8", [4, 2, 4]), wrapped)
    run(product_body((16, 8, 32), "s32", "s8", "s8", [4, 2, 4], ".satfinite"), saturated)
    exact = 2**31 - 5 + 32 * 127 * 127
    assert (wrapped[2].view(np.int32) == exact - 2**32).all()
    assert (saturated[2].view(np.int32) == 2**31 - 1).all()


def test_what_tf32_drops():
    one = np.full((32, 4), 1 + 2.0**-11, np.float32)
    values = [bits(one), bits(one[:, :2]), bits(np.zeros((32, 4), np.float32))]
    run(product_body((16, 8, 8), "f32", "tf32", "tf32", [4, 2, 4]), values)
    assert (values[2].view(np.float32) == 8).all()


@pytest.mark.parametrize(
    ("opcode", "reason"),
    [
        ("mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32", "only dense mma.sync"),
        ("mma.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32", "no m16n8k32"),
        ("mma.sync.aligned.m16n8k16.row.col.bf16.bf16.bf16.bf16", "no m16n8k16"),
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32", "no m8n8k4"),
    ],
)
def test_what_is_not_simulated_says_so(opcode, reason):
    body = f"{opcode} {{%r0,%r1,%r2,%r3}}, {{%r4,%r5,%r6,%r7}}, {{%r8,%r9}}, {{%r0,%r1,%r2,%r3}};"
    with pytest.raises(UserError, match=reason):
        run(body, [])


def test_registers_are_counted():
    body = (
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%r0,%r1,%r2,%r3}, {%r4,%r5}, {%r8,%r9}, {%r0,%r1,%r2,%r3};"
    )
    with pytest.raises(UserError, match="A of .* is 4 registers, here 2"):
        run(body, [])


def test_every_lane_takes_part():
    body = (
        "setp.lt.u32 %p0, %lane, 31;\n@!%p0 bra done;\n"
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%r0,%r1,%r2,%r3}, {%r4,%r5,%r6,%r7}, {%r8,%r9}, {%r0,%r1,%r2,%r3};\ndone:"
    )
    fault("divergence", body, [])


# Matrices in shared memory.

FILL = """
mad.wide.u32 %rd10, %t, 16, %a0;
ld.global.v4.b32 {%r600, %r601, %r602, %r603}, [%rd10];
shl.b32 %r604, %t, 4;
add.u32 %r605, %s32, %r604;
st.shared.v4.b32 [%r605], {%r600, %r601, %r602, %r603};
bar.sync 0;
"""


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(count, transposed):
    """Row l of the 32 rows lies at 16 * l; lane l names row (5 * l) % 32."""
    data = random((32, 8), np.float16, 1)
    out = np.zeros((32, count), np.uint32)
    trans = ".trans" if transposed else ""
    body = f"""{FILL}
    mul.lo.u32 %r610, %lane, 5; and.b32 %r610, %r610, 31;
    mad.lo.u32 %r611, %r610, 16, %s32;
    ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {names(0, count, False)}, [%r611];
    {swap(stores(0, count, 1, False))}
    """
    run(body, [data, out], shared=512)
    got = out.view(np.float16).reshape(32, count, 2)
    for matrix in range(count):
        rows = data[[5 * (8 * matrix + i) % 32 for i in range(8)]]
        cells = rows.T if transposed else rows
        lane = np.arange(32)
        wanted = cells[(lane // 4)[:, None], (lane % 4 * 2)[:, None] + [0, 1]]
        assert (got[:, matrix] == wanted).all()


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_stmatrix(count, transposed):
    values = random((32, count * 2), np.float16, 2)
    out = np.zeros((32, 8), np.float16)
    trans = ".trans" if transposed else ""
    body = f"""
    mul.lo.u32 %r610, %lane, 5; and.b32 %r610, %r610, 31;
    mad.lo.u32 %r611, %r610, 16, %s32;
    {loads(0, count, 0, False)}
    stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r611], {names(0, count, False)};
    bar.sync 0;
    mad.lo.u32 %r612, %t, 16, %s32;
    ld.shared.v4.b32 {{%r600, %r601, %r602, %r603}}, [%r612];
    mad.wide.u32 %rd10, %t, 16, %a1;
    st.global.v4.b32 [%rd10], {{%r600, %r601, %r602, %r603}};
    """
    run(body, [bits(values), out], shared=512, checks=False)
    lane = np.arange(32)
    for matrix in range(count):
        cells = np.zeros((8, 8), np.float16)
        pair = values[:, 2 * matrix : 2 * matrix + 2]
        cells[(lane // 4)[:, None], (lane % 4 * 2)[:, None] + [0, 1]] = pair
        rows = [5 * (8 * matrix + i) % 32 for i in range(8)]
        assert (out[rows] == (cells.T if transposed else cells)).all()


def test_movmatrix():
    data = random((8, 8), np.float16, 3)
    words = bits(data).view(np.uint32).reshape(32, 1)
    body = f"""{loads(0, 1, 0, False)}
    movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r0;
    {swap(stores(1, 1, 0, False))}"""
    run(body, [words])
    assert (words.view(np.float16).reshape(8, 8) == data.T).all()


def test_rows_of_matrices_are_checked():
    body = "mad.lo.u32 %r1, %lane, 16, %s32; add.u32 %r1, %r1, 8;\n"
    load = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4,%r5,%r6,%r7}, [%r1];"
    fault("alignment", body + load, [], shared=1024)
    fault("bounds", body.replace("8;", "16;") + load, [], shared=512)
    # Only the lanes of the matrices name rows.
    run(body.replace("8;", "16;") + load.replace("x4", "x2").replace(",%r6,%r7", ""), [],
        shared=512, checks=False)  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(("pitch", "wavefronts"), [(16, 1), (32, 2), (128, 8), (144, 1)])
def test_bank_conflicts_are_counted(count, pitch, wavefronts):
    """Eight rows of a matrix are one phase."""
    body = f"mad.lo.u32 %r1, %lane, {pitch}, %s32;\n"
    load = f"ldmatrix.sync.aligned.m8n8.x{count}.shared.b16 {names(4, count, False)}, [%r1];"
    report = run(body + load, [], shared=8192, checks=False, counters=True)
    assert report.counters["shared_requests"] == 1
    assert report.counters["bank_conflicts"] == (wavefronts - 1) * count


def test_bytes_are_refused():
    with pytest.raises(UserError, match="not simulated"):
        run("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0,%r1}, [%s32];", [])
