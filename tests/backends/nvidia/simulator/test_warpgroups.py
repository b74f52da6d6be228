"""wgmma: every type, width, operand place and swizzle against numpy; and what must be found."""

from __future__ import annotations

import re

import numpy as np
import pytest

from girih.backends.nvidia import layouts as L
from girih.hlo.errors import UserError

from .asynchronous import MODES, bits, fault, random, run
from .test_matrix import TYPES

CODES = {0: 0, 128: 1, 64: 2, 32: 3}
K = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}


def in_memory(matrix: np.ndarray, swizzle: int, transposed: bool) -> tuple[bytes, int, int]:
    """(bytes, leading, stride) of an operand (rows of M or N, k) of one k step."""
    size = matrix.dtype.itemsize
    if transposed:
        matrix = np.ascontiguousarray(matrix.T)  # [k, row], row contiguous
    width = swizzle or 16
    columns = width // size
    rows, inner = matrix.shape
    boxes = [np.ascontiguousarray(matrix[:, i : i + columns]) for i in range(0, inner, columns)]
    # Boxes of all rows side by side; a row narrower than the swizzle is padded.
    data = bytearray()
    for box in boxes:
        padded = np.zeros((rows, width), np.uint8)
        padded[:, : box.shape[1] * size] = box.view(np.uint8).reshape(rows, -1)
        data += padded.tobytes()
    plain = np.frombuffer(bytes(data), np.uint8)
    place = np.arange(plain.size)
    place ^= (place >> 7 & max(0, swizzle // 16 - 1)) << 4
    stored = np.zeros(plain.size, np.uint8)
    stored[place] = plain
    of_box, of_eight = rows * width, 8 * width
    if swizzle == 0 and transposed:
        return stored.tobytes(), of_eight, of_box
    return stored.tobytes(), of_box, of_eight


def descriptor(offset: int, leading: int, stride: int, swizzle: int) -> int:
    bits_ = offset >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | CODES[swizzle] << 62
    return bits_ - (1 << 64) if bits_ >> 63 else bits_


def fill(nbytes: int) -> str:
    """Copies argument 0 to shared memory, 16 bytes a thread and step."""
    return (
        "\n".join(
            f"""add.u32 %r600, %t, {128 * step};
        setp.lt.u32 %p1, %r600, {nbytes // 16};
        mul.wide.u32 %rd10, %r600, 16; add.u64 %rd11, %a0, %rd10; add.u64 %rd12, %s, %rd10;
        @%p1 ld.global.v4.b32 {{%r601, %r602, %r603, %r604}}, [%rd11];
        @%p1 st.shared.v4.b32 [%rd12], {{%r601, %r602, %r603, %r604}};"""
            for step in range(-(-nbytes // 2048))
        )
        + "\nfence.proxy.async.shared::cta;\nbar.sync 0;\n"
    )


def registers(first: int, count: int) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def each(opcode: str, first: int, count: int, argument: int) -> str:
    lines = [f"mad.wide.u32 %rd{20 + argument}, %t, {4 * count}, %a{argument};"]
    for i in range(count):
        register, place = f"%r{first + i}", f"[%rd{20 + argument}+{4 * i}]"
        order = f"{register}, {place}" if opcode.startswith("ld") else f"{place}, {register}"
        lines.append(f"{opcode} {order};")
    return "\n".join(lines)


def held(value, matrix: np.ndarray) -> np.ndarray:
    """[thread, register] of a matrix in the layout of a warp group."""
    thread = np.arange(128)[:, None]
    register = np.arange(value.size("register"))
    return matrix.reshape(-1)[value.apply(register=register, lane=thread % 32, warp=thread // 32)]


def held_accumulator(n: int, matrix: np.ndarray) -> np.ndarray:
    tiles = L.wgmma_accumulator_tiles(n)
    found = np.zeros((128, n // 2), matrix.dtype)
    for register in range(tiles.registers):
        thread = np.arange(128)
        row, column = tiles.coordinates(register, lane=thread % 32, warp=thread // 32)
        found[:, register] = matrix[row, column]
    return found


def multiply(
    n: int,
    d: str,
    a: str,
    b: str,
    *,
    swizzles: tuple[int, int] = (128, 128),
    transposes: tuple[bool, bool] = (False, False),
    rs: bool = False,
    signs: tuple[int, int] = (1, 1),
    scale: int = 1,
    mode: str = "lazy",
    change=lambda body: body,
    shared: int | None = None,
    more: str = "",
) -> tuple[np.ndarray, np.ndarray]:
    """(what came out, what numpy says), both [thread, register]."""
    k = K[a]
    left, right = random((64, k), TYPES[a], 1), random((n, k), TYPES[b], 2)
    old = random((64, n), TYPES[d], 3)
    a_data, a_leading, a_stride = in_memory(left, swizzles[0], transposes[0])
    a_data = b"" if rs else a_data
    b_at = -(-len(a_data) // 1024) * 1024
    b_data, b_leading, b_stride = in_memory(right, swizzles[1], transposes[1])
    image = np.frombuffer(a_data.ljust(b_at, b"\0") + b_data, np.uint8).copy()
    accumulator = bits(held_accumulator(n, old)).reshape(128, -1)
    count = accumulator.shape[1] // 4
    operand = bits(held(L.wgmma_a(k, np.dtype(TYPES[a]).itemsize * 8), left)).reshape(128, -1)
    source = registers(520, 4) if rs else "%rd40"
    constants = f", {signs[0]}, {signs[1]}" if d != "s32" else ""
    if k == 16:
        constants += "" if rs else f", {int(transposes[0])}"
        constants += f", {int(transposes[1])}"
    body = f"""
    {fill(image.size)}
    {each("ld.global.b32", 0, count, 1)}
    {each("ld.global.b32", 520, 4, 2) if rs else ""}
    mov.b64 %rd40, {descriptor(0, a_leading, a_stride, swizzles[0])};
    mov.b64 %rd41, {descriptor(b_at, b_leading, b_stride, swizzles[1])};
    setp.ne.b32 %p2, {scale}, 0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n{n}k{k}{more}.{d}.{a}.{b}
        {registers(0, count)}, {source}, %rd41, %p2{constants};
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    {each("st.global.b32", 0, count, 1)}
    """
    arguments = [image, accumulator, operand]
    run(change(body), arguments, threads=128, shared=shared or image.size, mode=mode)
    wide = np.int64 if d == "s32" else np.float64
    wanted = left.astype(wide) @ right.astype(wide).T * signs[0] * signs[1]
    wanted = wanted + (old.astype(wide) if scale else 0)
    return accumulator.view(TYPES[d]), held_accumulator(n, wanted.astype(TYPES[d]))


TYPE_FORMS = [
    ("f32", "bf16", "bf16"), ("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "tf32", "tf32"),
    ("f32", "e4m3", "e5m2"), ("f16", "e5m2", "e5m2"), ("s32", "s8", "u8"), ("s32", "s8", "s8"),
]  # fmt: skip


@pytest.mark.parametrize(("d", "a", "b"), TYPE_FORMS)
@pytest.mark.parametrize("rs", [False, True])
@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_types(d, a, b, rs, mode):
    swizzle = 64 if rs else 128
    found, wanted = multiply(32, d, a, b, rs=rs, mode=mode, swizzles=(swizzle, swizzle))
    assert (found == wanted).all()


@pytest.mark.parametrize("n", [8, 24, 96, 176, 256])
def test_widths(n):
    found, wanted = multiply(n, "f32", "bf16", "bf16")
    assert (found == wanted).all()


@pytest.mark.parametrize("transposes", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_swizzles_and_transposes(swizzle, transposes):
    found, wanted = multiply(
        128, "f32", "f16", "f16", swizzles=(swizzle, swizzle), transposes=transposes
    )
    assert (found == wanted).all()
    other = 128 if swizzle != 128 else 32
    found, wanted = multiply(
        64, "f32", "bf16", "bf16", swizzles=(swizzle, other), transposes=transposes
    )
    assert (found == wanted).all()


def test_scales():
    found, wanted = multiply(16, "f32", "f16", "f16", signs=(-1, 1), scale=0)
    assert (found == wanted).all()
    found, wanted = multiply(16, "f32", "tf32", "tf32", signs=(-1, -1))
    assert (found == wanted).all()


def test_chains_run_in_order_and_stay_in_flight():
    """Two groups on one accumulator; the first wait leaves the second group in flight."""
    left = random((64, 64), np.float16, 1)
    right = random((32, 64), np.float16, 2)
    a = bits(L_image(left)).reshape(-1)
    b = bits(L_image(right)).reshape(-1)
    image = np.concatenate([a, b])
    out = np.zeros((128, 16), np.float32)
    steps = []
    for step in range(4):
        steps.append(
            f"""mov.b64 %rd40, {descriptor(32 * step, 0, 1024, 128)};
            mov.b64 %rd41, {descriptor(8192 + 32 * step, 0, 1024, 128)};
            wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16
                {registers(0, 16)}, %rd40, %rd41, {int(step > 0)}, 1, 1, 0, 0;
            {"wgmma.commit_group.sync.aligned;" if step % 2 else ""}"""
        )
    body = f"""{fill(image.size)}
    wgmma.fence.sync.aligned;
    {chr(10).join(steps)}
    wgmma.wait_group.sync.aligned 1;
    wgmma.wait_group.sync.aligned 0;
    {each("st.global.b32", 0, 16, 1)}"""
    for mode, seed in MODES:
        out[:] = 0
        run(body, [image, out], threads=128, shared=image.size, mode=mode, seed=seed)
        wanted = left.astype(np.float64) @ right.astype(np.float64).T
        assert (out == held_accumulator(32, wanted.astype(np.float32))).all()
    early = body.replace("wgmma.wait_group.sync.aligned 0;", "")
    for mode in ("eager", "lazy"):
        fault("in-flight", early, [image, out], threads=128, shared=image.size, mode=mode)


def L_image(matrix: np.ndarray) -> np.ndarray:
    """A (rows, 64) tile of 16-bit elements with swizzle 128 as it lies in shared memory."""
    tile = L.swizzled(matrix.shape, 2, 128)
    return matrix.reshape(-1)[tile.apply(offset=np.arange(matrix.size))]


# What must be found.


def broken(change, kind: str, **options) -> str:
    from girih.backends.nvidia.simulator import SimulationError

    messages = []
    for mode in ("eager", "lazy"):
        with pytest.raises(SimulationError) as found:
            multiply(32, "f32", "bf16", "bf16", change=change, mode=mode, **options)
        assert found.value.fault.kind == kind, found.value
        messages.append(str(found.value))
    return messages[0]


def test_missing_proxy_fence():
    text = broken(lambda b: b.replace("fence.proxy.async.shared::cta;", ""), "proxy")
    assert "fence.proxy.async" in text and "PTX line" in text


def test_fence_of_another_thread_does_not_help():
    broken(
        lambda b: b.replace(
            "fence.proxy.async.shared::cta;\nbar.sync 0;",
            "bar.sync 0;\nsetp.eq.u32 %p9, %t, 0;\n"
            "@%p9 fence.proxy.async.shared::cta;\nbar.sync 0;",
        ),
        "proxy",
    )


def by_copies(body: str) -> str:
    """With cp.async in place of loads and stores."""
    body = re.sub(r"@%p1 ld.global.v4.b32 [^;]*;", "", body)
    copy = "@%p1 cp.async.cg.shared.global [%rd12], [%rd11], 16;"
    body = re.sub(r"@%p1 st.shared.v4.b32 [^;]*;", copy, body)
    return body.replace("fence.proxy", "cp.async.wait_all;\nfence.proxy", 1)


def test_cp_async_needs_the_proxy_fence_too():
    for mode in ("eager", "lazy"):
        found, wanted = multiply(32, "f32", "bf16", "bf16", change=by_copies, mode=mode)
        assert (found == wanted).all()
    broken(lambda b: by_copies(b).replace("fence.proxy.async.shared::cta;", ""), "proxy")
    broken(lambda b: by_copies(b).replace("cp.async.wait_all;", ""), "race")


def test_missing_wgmma_fence():
    broken(lambda b: b.replace("wgmma.fence.sync.aligned;", ""), "fence")


def test_registers_used_after_the_fence():
    """A product needs one of its own after its accumulators were used, or its A was defined."""

    def before(line: str):
        return lambda b: b.replace("wgmma.mma_async", f"{line}\nwgmma.mma_async", 1)

    text = broken(before("mov.b32 %r600, %r3;"), "fence")
    assert "%r3 was used after the last wgmma.fence" in text
    broken(before("mov.b32 %r3, 0;"), "fence")
    broken(before("mov.b32 %r521, %r522;"), "fence", rs=True)
    found, wanted = multiply(
        32, "f32", "f16", "f16", rs=True, change=before("mov.b32 %r600, %r521;")
    )
    assert (found == wanted).all()


def test_registers_used_around_a_loop():
    """Those of the turn before count, where the loop has no fence."""

    fence = "wgmma.fence.sync.aligned;"

    def turns(inside: bool):
        first = f"again:\n{fence}" if inside else f"{fence}\nagain:"
        last = """wgmma.wait_group.sync.aligned 0;
            add.f32 %r3, %r3, 0f00000000; add.u32 %r650, %r650, 1;
            setp.lt.u32 %p5, %r650, 2; @%p5 bra again;"""

        def change(body: str) -> str:
            body = body.replace(fence, f"mov.b32 %r650, 0;\n{first}")
            return body.replace("wgmma.wait_group.sync.aligned 0;", last)

        return change

    found, wanted = multiply(32, "f32", "f16", "f16", scale=0,
                             change=turns(True))  # fmt: skip
    assert (found == wanted).all()
    assert "%r3" in broken(turns(False), "fence")


def test_accumulators_are_not_read_before_the_wait():
    broken(lambda b: b.replace("wgmma.wait_group.sync.aligned 0;", ""), "in-flight")
    broken(lambda b: b.replace("wgmma.wait_group.sync.aligned 0;",
                               "wgmma.wait_group.sync.aligned 1;"), "in-flight")  # fmt: skip
    broken(lambda b: b.replace("wgmma.commit_group.sync.aligned;", ""), "in-flight")


def test_registers_of_a_are_not_overwritten_before_the_wait():
    broken(
        lambda b: b.replace("wgmma.commit_group", "mov.b32 %r521, 0;\nwgmma.commit_group"),
        "in-flight",
        rs=True,
    )


def test_shared_memory_is_not_overwritten_before_the_wait():
    text = broken(
        lambda b: b.replace("wgmma.wait_group", "st.shared.b32 [%s], %r600;\nwgmma.wait_group"),
        "race",
    )
    assert "still reads" in text


def test_exit_without_wait():
    def change(body: str) -> str:
        body = body.replace("wgmma.wait_group.sync.aligned 0;", "")
        return re.sub(r"st\.global\.b32 [^;]*;", "", body)

    broken(change, "exit")


def test_descriptors_are_uniform_and_aligned():
    broken(
        lambda b: b.replace("wgmma.fence", "cvt.u64.u32 %rd60, %t; add.u64 %rd41, %rd41, %rd60;\n"
                            "wgmma.fence"),
        "uniform",
    )  # fmt: skip
    broken(lambda b: b.replace("wgmma.fence", "add.u64 %rd41, %rd41, 8;\nwgmma.fence"), "alignment")
    broken(
        lambda b: b.replace("wgmma.fence", "add.u64 %rd41, %rd41, 0x3000;\nwgmma.fence"), "bounds"
    )


def test_a_warp_group_is_complete():
    body = "setp.lt.u32 %p1, %t, 96;\n@!%p1 bra done;\nwgmma.fence.sync.aligned;\ndone:"
    fault("divergence", body, [], threads=128)


def test_warps_of_a_group_may_arrive_one_after_the_other():
    def change(body: str) -> str:
        return body.replace(
            "wgmma.fence",
            "setp.lt.u32 %p9, %t, 64;\n@%p9 bra first;\nmov.b32 %r650, 7;\n"
            "add.u32 %r651, %r650, 1;\nbra join;\nfirst:\nmov.b32 %r650, 9;\njoin:\nwgmma.fence",
        )

    for mode in ("eager", "lazy"):
        found, wanted = multiply(16, "f32", "f16", "f16", change=change, mode=mode)
        assert (found == wanted).all()


@pytest.mark.parametrize(
    "opcode",
    [
        "wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16",
        "wgmma.mma_async.sync.aligned.m64n40k32.s32.s8.s8",
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.bf16",
        "wgmma.mma_async.sync.aligned.m64n16k16.f16.bf16.bf16",
        "wgmma.mma_async.sp.sync.aligned.m64n16k32.f32.f16.f16",
    ],
)
def test_what_is_not_simulated_says_so(opcode):
    with pytest.raises(UserError, match="not simulated"):
        run(f"{opcode} {registers(0, 8)}, %rd40, %rd41, 1, 1, 1, 0, 0;", [], threads=128)
