"""Copies by tensor maps: boxes of every rank, swizzles, bounds, multicast, stores, reductions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from girih.backends.nvidia import layouts as L
from girih.backends.nvidia.simulator.tensor_maps import decode_tensor_map, encode_tensor_map
from girih.hlo.errors import UserError

from .asynchronous import MODES, Map, fault, random, run

BARRIER = 32768


def load(box_bytes: int, coordinates: str, rank: int, expect: int | None = None) -> str:
    """Thread 0 loads a box to shared memory; all wait for it."""
    expected = box_bytes if expect is None else expect
    return f"""
    setp.eq.u32 %p0, %t, 0;
    @%p0 mbarrier.init.shared.b64 [%s+{BARRIER}], 1;
    @%p0 fence.mbarrier_init.release.cluster;
    bar.sync 0;
    @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%s+{BARRIER}], {expected};
    @%p0 cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%s], [%a0, {{{coordinates}}}], [%s+{BARRIER}];
    {wait()}
    """


def wait(parity: int = 0, barrier: int = BARRIER) -> str:
    label = f"spin{parity}_{barrier}"
    return f"""{label}: mbarrier.try_wait.parity.shared.b64 %p3, [%s+{barrier}], {parity};
    @!%p3 bra {label};"""


def dump(nbytes: int, argument: int = 1, threads: int = 32) -> str:
    """Shared memory from %s to an argument."""
    return "\n".join(
        f"""add.u32 %r600, %t, {threads * step};
        setp.lt.u32 %p1, %r600, {nbytes // 16};
        mul.wide.u32 %rd10, %r600, 16; add.u64 %rd11, %a{argument}, %rd10; add.u64 %rd12, %s, %rd10;
        @%p1 ld.shared.v4.b32 {{%r601, %r602, %r603, %r604}}, [%rd12];
        @%p1 st.global.v4.b32 [%rd11], {{%r601, %r602, %r603, %r604}};"""
        for step in range(-(-nbytes // (16 * threads)))
    )


def fill(nbytes: int, argument: int = 1, threads: int = 32) -> str:
    """An argument to shared memory, visible to copies."""
    lines = dump(nbytes, argument, threads).replace("ld.shared", "LD").replace("st.global", "ST")
    lines = lines.replace("LD.v4.b32 {%r601, %r602, %r603, %r604}, [%rd12]",
                          "ld.global.v4.b32 {%r601, %r602, %r603, %r604}, [%rd11]")  # fmt: skip
    lines = lines.replace("ST.v4.b32 [%rd11]", "st.shared.v4.b32 [%rd12]")
    return lines + "\nfence.proxy.async.shared::cta;\nbar.sync 0;\n"


@pytest.mark.parametrize(("mode", "seed"), MODES)
@pytest.mark.parametrize(
    ("shape", "box", "start"),
    [
        ((100,), (32,), (8,)),
        ((20, 64), (32, 8), (16, 3)),
        ((3, 20, 64), (32, 4, 2), (4, 5, 1)),
        ((2, 3, 8, 16), (16, 4, 2, 1), (0, 2, 1, 1)),
        ((2, 2, 3, 8, 16), (8, 2, 2, 1, 2), (3, 2, 1, 1, 0)),
    ],
)
def test_boxes_of_every_rank(shape, box, start, mode, seed):
    data = random(shape, np.float32, 1)
    nbytes = int(np.prod(box)) * 4
    out = np.zeros(nbytes // 4, np.float32)
    coordinates = ", ".join(map(str, start))
    body = load(nbytes, coordinates, len(shape)) + dump(nbytes)
    run(body, [Map(data, box), out], shared=BARRIER + 8, mode=mode, seed=seed)
    window = tuple(slice(s, s + b) for s, b in zip(start[::-1], box[::-1], strict=True))
    assert (out == data[window].reshape(-1)).all()


@pytest.mark.parametrize("start", [(-8, -2), (56, 14), (-16, 30), (200, 0)])
@pytest.mark.parametrize("fill_with", ["zero", "nan"])
def test_outside_of_the_tensor(start, fill_with):
    data = random((16, 64), np.float16, 2)
    box = (16, 4)
    out = np.zeros((4, 16), np.float16)
    body = load(128, f"{start[0]}, {start[1]}", 2) + dump(128)
    run(body, [Map(data, box, fill=fill_with), out], shared=BARRIER + 8)
    row, column = np.meshgrid(np.arange(4) + start[1], np.arange(16) + start[0], indexing="ij")
    inside = (row >= 0) & (row < 16) & (column >= 0) & (column < 64)
    outside = np.float16(0 if fill_with == "zero" else np.nan)
    wanted = np.where(inside, data[row.clip(0, 15), column.clip(0, 63)], outside)
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("dtype", [np.uint8, ml_dtypes.bfloat16, np.float32])
def test_swizzles_are_those_of_the_layouts(swizzle, dtype):
    size = np.dtype(dtype).itemsize
    width = (swizzle or 64) // size
    data = random((32, 2 * width), dtype, 3)
    nbytes = 32 * width * size
    out = np.zeros((32, width), dtype)
    body = load(nbytes, f"{width}, 0", 2) + dump(nbytes)
    run(body, [Map(data, (width, 32), swizzle), out], shared=BARRIER + 8)
    tile = L.swizzled((32, width), size, swizzle)
    wanted = data[:, width:].reshape(-1)[tile.apply(offset=np.arange(32 * width))]
    assert (out.reshape(-1) == wanted).all()


TENSOR_LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
STORE = """
    setp.eq.u32 %p0, %t, 0;
    @%p0 OPCODE [%a0, {COORDINATES}], [%s];
    @%p0 cp.async.bulk.commit_group;
    @%p0 cp.async.bulk.wait_group.read 0;
"""
TENSOR_STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"


def store(coordinates: str, opcode: str = TENSOR_STORE) -> str:
    return STORE.replace("OPCODE", opcode).replace("COORDINATES", coordinates)


@pytest.mark.parametrize(("mode", "seed"), MODES)
@pytest.mark.parametrize("swizzle", [0, 64])
def test_stores_keep_to_the_tensor(mode, seed, swizzle):
    target = random((10, 48), np.float16, 4)
    before = target.copy()
    box = random((8, 32), np.float16, 5)
    tile = L.swizzled((8, 32), 2, swizzle)
    image = box.reshape(-1)[tile.apply(offset=np.arange(256))]
    body = fill(512) + store("24, 6")
    run(body, [Map(target, (32, 8), swizzle), image], shared=1024, mode=mode, seed=seed)
    before[6:10, 24:48] = box[:4, :24]
    assert (target == before).all()


@pytest.mark.parametrize(
    ("name", "dtype", "function"),
    [
        ("add", np.float32, np.add), ("add", ml_dtypes.bfloat16, np.add),
        ("min", np.int32, np.minimum), ("max", np.int32, np.maximum),
        ("or", np.uint32, np.bitwise_or), ("xor", np.uint32, np.bitwise_xor),
        ("and", np.uint32, np.bitwise_and),
    ],
)  # fmt: skip
def test_reductions(name, dtype, function):
    target, box = random((8, 32), dtype, 6), random((8, 32), dtype, 7)
    wanted = function(target, box)
    opcode = f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{name}.tile.bulk_group"
    run(fill(box.nbytes) + store("0, 0", opcode), [Map(target, (32, 8)), box], shared=1024)
    assert (target == wanted).all()


@pytest.mark.parametrize(("mode", "seed"), MODES)
def test_multicast_reaches_the_same_place_of_every_block(mode, seed):
    """Each block loads half a tile for both; both expect all bytes."""
    data = random((16, 32), np.float32, 8)
    out = np.zeros((2, 16, 32), np.float32)
    body = f"""
    setp.eq.u32 %p0, %t, 0;
    @%p0 mbarrier.init.shared.b64 [%s+{BARRIER}], 1;
    @%p0 fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.relaxed.aligned;
    barrier.cluster.wait.aligned;
    @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%s+{BARRIER}], 2048;
    mov.b16 %rs0, 3; mov.b64 %rd60, 0;
    mul.lo.u32 %r1, %rank, 8;
    mad.lo.u32 %r2, %rank, 1024, %s32;
    @%p0 {TENSOR_LOAD}.multicast::cluster.L2::cache_hint
        [%r2], [%a0, {{0, %r1}}], [%s+{BARRIER}], %rs0, %rd60;
    {wait()}
    mad.wide.u32 %rd61, %rank, 2048, %a1; mov.u64 %a1, %rd61;
    {dump(2048)}
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    """
    run(body, [Map(data, (32, 8)), out], shared=BARRIER + 8, cluster=2, grid=(2,), mode=mode,
        seed=seed)  # fmt: skip
    assert (out == data).all()
    fault("race", body.replace("], 2048;", "], 1024;"), [Map(data, (32, 8)), out],
          shared=BARRIER + 8, cluster=2, grid=(2,), mode="lazy")  # fmt: skip
    fault("cluster", body.replace("%rs0, 3;", "%rs0, 5;"), [Map(data, (32, 8)), out],
          shared=BARRIER + 8, cluster=2, grid=(2,), mode=mode)  # fmt: skip


def test_prefetch_takes_maps_only():
    data = random((16, 32), np.float32, 8)
    run("prefetch.tensormap [%a0];\ncp.async.bulk.prefetch.tensor.2d.L2.global.tile [%a0, {0, 0}];",
        [Map(data, (32, 8))])  # fmt: skip
    fault("tensor map", "prefetch.tensormap [%a0];", [np.zeros(32, np.float32)])


# What must be found.


def tensor() -> list:
    return [Map(random((20, 64), np.float32, 1), (32, 8)), np.zeros(256, np.float32)]


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_expecting_another_number_of_bytes(mode):
    for expect in (1008, 1040):
        body = load(1024, "0, 0", 2, expect) + dump(1024)
        text = str(fault("deadlock", body, tensor(), shared=BARRIER + 8, mode=mode))
        assert f"{expect - 1024} bytes" in text or "bytes were missing" in text


def test_reading_without_waiting():
    body = load(1024, "0, 0", 2).replace("@!%p3 bra", "@%p3 bra")
    body = load(1024, "0, 0", 2)
    start = body.index("spin0")
    fault("race", body[:start] + dump(1024), tensor(), shared=BARRIER + 8)


def test_a_block_does_not_leave_before_its_loads_have_landed():
    body = load(1024, "0, 0", 2)
    fault("cluster", body[: body.index("spin0")], tensor(), shared=BARRIER + 8)


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_nothing_is_written_over_a_barrier(mode):
    body = load(1024, "0, 0", 2)
    options = {"shared": BARRIER + 1024, "mode": mode}
    fault("barrier", body + f"st.shared.b32 [%s+{BARRIER + 4}], %r0;", tensor(), **options)
    over = body.replace("[%s], [%a0", f"[%s+{BARRIER - 512}], [%a0")
    fault("barrier", over, tensor(), **options)


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_stores_need_the_fence_and_the_waits(mode):
    arguments = [Map(random((16, 32), np.float32, 1), (32, 8)), random((8, 32), np.float32, 2)]
    body = fill(1024) + store("0, 0")
    options = {"shared": 1024, "mode": mode}
    fault("proxy", body.replace("fence.proxy.async.shared::cta;", ""), arguments, **options)
    unwaited = body.replace("@%p0 cp.async.bulk.wait_group.read 0;", "")
    fault("exit", unwaited, arguments, **options)
    fault("exit", body.replace("@%p0 cp.async.bulk.commit_group;", ""), arguments, **options)
    text = str(fault("race", unwaited + "st.shared.b32 [%s], %r0;", arguments, **options))
    assert "still reads" in text
    run(body + "st.shared.b32 [%s], %r0;", arguments, checks=False, **options)


def test_a_buffer_is_not_filled_while_its_store_reads_it():
    arguments = [Map(random((16, 32), np.float32, 1), (32, 8)), random((8, 32), np.float32, 2)]
    unwaited = fill(1024) + store("0, 0").replace("@%p0 cp.async.bulk.wait_group.read 0;", "")
    fault("race", unwaited + load(1024, "0, 8", 2), arguments, shared=BARRIER + 8)


def test_alignment():
    for swizzle, offset in ((0, 64), (32, 128), (64, 256), (128, 512)):
        array = random((20, 64), np.float32, 1)
        width = (swizzle or 32) // 4
        body = load(width * 32, "0, 0", 2).replace("[%s], [%a0", f"[%s+{offset}], [%a0")
        fault("alignment", body, [Map(array, (width, 8), swizzle)], shared=BARRIER + 8)


def test_bounds():
    body = load(1024, "0, 0", 2).replace("[%s], [%a0", f"[%s+{BARRIER}], [%a0")
    fault("bounds", body, tensor(), shared=BARRIER + 8)
    missing = tensor()
    body = load(1024, "0, 0", 2)
    fault("barrier", body.replace("@%p0 mbarrier.init", "@%p5 mbarrier.init"), missing,
          shared=BARRIER + 8)  # fmt: skip
    fault("tensor map", load(1024, "0", 1), tensor(), shared=BARRIER + 8)


def test_a_stage_is_filled_again_only_when_all_have_read_it():
    """A barrier of the block, or arrivals that the copying thread waits for; its own warp's loads
    count without one."""
    data = random((32, 16), np.float32, 1)
    release = BARRIER + 8

    def twice(between: str, threads: int = 64) -> str:
        again = load(1024, "0, 16", 2).partition("bar.sync 0;")[2].replace(wait(), wait(1))
        start = f"setp.eq.u32 %p7, %t, 0;\n@%p7 mbarrier.init.shared.b64 [%s+{release}], {threads};"
        return start + load(1024, "0, 0", 2) + dump(1024, threads=threads) + between + again

    for between in (
        "bar.sync 0;",
        f"mbarrier.arrive.shared.b64 _, [%s+{release}];\n{wait(0, release)}",
    ):
        run(twice(between), [Map(data, (16, 16)), np.zeros(256, np.float32)], threads=64,
            shared=BARRIER + 16)  # fmt: skip
    run(twice("", 32), [Map(data, (16, 16)), np.zeros(256, np.float32)], shared=BARRIER + 16)
    for mode in ("eager", "lazy"):
        arguments = [Map(data, (16, 16)), np.zeros(256, np.float32)]
        found = fault("race", twice(""), arguments, threads=64, shared=BARRIER + 16, mode=mode)
        assert "overwrites what a thread has loaded" in str(found)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"element": "complex<f32>"}, "no tensor map"),
        ({"address": 8}, "no multiple of 16"),
        ({"dims": (64, 0)}, "1 to 2"),
        ({"strides": (100,)}, "multiples of 16"),
        ({"strides": ()}, "one stride"),
        ({"box": (300, 8)}, "1 to 256"),
        ({"box": (3, 8)}, "no multiple of 16"),
        ({"box": (64, 8), "swizzle": 128}, "more than the swizzle"),
        ({"swizzle": 48}, "0, 32, 64 or 128"),
        ({"element_strides": (1, 9)}, "1 to 8"),
        ({"element_strides": (2, 1)}, "the driver ignores others"),
        ({"interleave": 1}, "interleaved"),
    ],
)
def test_maps_keep_the_rules_of_the_driver(changes, reason):
    arguments = {"element": "f32", "address": 256, "dims": (64, 20), "strides": (256,),
                 "box": (32, 8), **changes}  # fmt: skip
    with pytest.raises(UserError, match=reason):
        encode_tensor_map(**arguments)


def test_maps_come_back():
    data = encode_tensor_map("bf16", 4096, (64, 20, 3), (128, 2560), (64, 8, 1), swizzle=128)
    found = decode_tensor_map(data)
    assert len(data) == 128 and found is not None
    assert (found.element, found.address, found.dims) == ("bf16", 4096, (64, 20, 3))
    assert (found.strides, found.box, found.swizzle) == ((128, 2560), (64, 8, 1), 128)
    assert decode_tensor_map(bytes(128)) is None


def test_steps_over_elements():
    data = random((20, 64), np.float32, 1)
    arguments = [Map(data, (32, 8)), np.zeros(32, np.float32)]

    def encode(address: int) -> bytes:
        return encode_tensor_map("f32", address, (64, 20), (256,), (8, 8), (1, 2))

    arguments[0].encode = encode  # type: ignore[method-assign]
    run(load(128, "3, 1", 2) + dump(128), arguments, shared=BARRIER + 8)
    assert (arguments[1].reshape(4, 8) == data[1:9:2, 3:11]).all()
