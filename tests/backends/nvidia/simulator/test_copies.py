"""cp.async and bulk copies without tensor maps."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from girih.hlo.errors import UserError

from .asynchronous import MODES, fault, random, run
from .test_tensor_maps import BARRIER, dump, fill, wait

# Each thread copies `SIZE` bytes from place t of argument 0 to place t of shared memory.
COPY = """
mul.wide.u32 %rd20, %t, SIZE;
add.u64 %rd21, %a0, %rd20; add.u64 %rd22, %s, %rd20;
cp.async.KIND.shared.global [%rd22], [%rd21], SIZEMORE;
"""


def copy(size: int = 16, more: str = "") -> str:
    kind = "cg" if size == 16 else "ca"
    return COPY.replace("SIZE", str(size)).replace("KIND", kind).replace("MORE", more)


DONE = "cp.async.commit_group;\ncp.async.wait_group 0;\nbar.sync 0;\n"


@pytest.mark.parametrize(("mode", "seed"), MODES)
@pytest.mark.parametrize("size", [4, 8, 16])
def test_sizes(size, mode, seed):
    data = random((32 * size,), np.uint8, 1)
    out = np.zeros_like(data)
    run(copy(size) + DONE + dump(32 * size), [data, out], shared=512, mode=mode, seed=seed)
    assert (out == data).all()
    out[:] = 0
    body = (
        copy(size)
        .replace("cp.async.cg", "cp.async.cg")
        .replace("shared.global", "shared::cta.global.L2::128B")
    )
    run(body + "cp.async.wait_all;\nbar.sync 0;" + dump(32 * size), [data, out], shared=512,
        mode=mode)  # fmt: skip
    assert (out == data).all()


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_zeros_behind_what_is_read(mode):
    data, out = random((128,), np.uint32, 1) + 1, np.ones(128, np.uint32)
    body = "and.b32 %r1, %t, 3; shl.b32 %r1, %r1, 2;\n" + copy(16, ", %r1") + DONE + dump(512)
    run(body, [data, out], shared=512, mode=mode)
    kept = np.arange(4)[None] < (np.arange(32) % 4)[:, None]
    assert (out.reshape(32, 4) == np.where(kept, data.reshape(32, 4), 0)).all()
    ignore = "and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 1;\n" + copy(16, ", %p1") + DONE + dump(512)
    run(ignore, [data, out], shared=512, mode=mode)
    assert (
        out.reshape(32, 4) == np.where(np.arange(32)[:, None] % 2, 0, data.reshape(32, 4))
    ).all()


def test_what_is_not_read_may_lie_outside():
    data, out = np.ones(4, np.uint32), np.ones(128, np.uint32)
    body = "setp.ne.u32 %p1, %t, 0;\nselp.b32 %r1, 0, 16, %p1;\n"
    run(body + copy(16, ", %r1") + DONE + dump(512), [data, out], shared=512)
    assert out.sum() == 4
    fault("bounds", copy() + DONE, [data, out], shared=512)


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_groups_complete_in_order(mode):
    """Three groups into three buffers; a wait for all but one may read two of them."""
    data = random((3, 128), np.uint32, 2)
    out = np.zeros((3, 128), np.uint32)
    copies = "\n".join(
        copy().replace("%a0, %rd20", "%a0, %rd20; add.u64 %rd21, %rd21, " + str(512 * i))
        .replace("[%rd22]", f"[%rd22+{512 * i}]") + "cp.async.commit_group;"
        for i in range(3)
    )  # fmt: skip
    body = copies + "\ncp.async.wait_group KEEP;\nbar.sync 0;\n" + dump(1024)
    run(body.replace("KEEP", "1"), [data, out], shared=1536, mode=mode)
    assert (out[:2] == data[:2]).all() and not out[2].any()
    text = str(fault("race", body.replace("KEEP", "2"), [data, out], shared=1536, mode=mode))
    assert "copy in flight" in text
    run(body.replace("KEEP", "0") + dump(1536), [data, out], shared=1536, mode=mode)
    assert (out == data).all()


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_copies_without_a_group_are_not_waited_for(mode):
    data, out = random((128,), np.uint32, 2), np.zeros(128, np.uint32)
    body = copy() + "cp.async.wait_group 0;\nbar.sync 0;\n" + dump(512)
    fault("race", body, [data, out], shared=512, mode=mode)


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_destinations_are_not_touched(mode):
    data = random((128,), np.uint32, 2)
    fault("race", copy() + "st.shared.b32 [%s], %r0;", [data], shared=512, mode=mode)
    fault("race", copy() + copy(), [data], shared=512, mode=mode)


def test_alignment():
    data = random((128,), np.uint32, 2)
    body = copy().replace("[%rd22]", "[%rd22+4]")
    fault("alignment", body, [data], shared=1024)
    fault("alignment", copy().replace("[%rd21]", "[%rd21+4]"), [data], shared=1024)
    fault("bounds", copy(), [data], shared=256)
    with pytest.raises(UserError, match="copies 16 bytes"):
        run("cp.async.cg.shared.global [%s], [%a0], 4;", [data], shared=512)


@pytest.mark.parametrize(("mode", "seed"), MODES)
@pytest.mark.parametrize("noinc", [True, False])
def test_a_barrier_learns_of_copies(mode, seed, noinc):
    data, out = random((128,), np.uint32, 2), np.zeros(128, np.uint32)
    count = 32 if noinc else 64
    more = "" if noinc else "mbarrier.arrive.shared.b64 %rd30, [%s+1024];"
    more = more and "mov.b32 %r9, 2;\nmbarrier.arrive.shared.b64 %rd30, [%s+1024], %r9;"
    body = f"""
    setp.eq.u32 %p0, %t, 0;
    @%p0 mbarrier.init.shared.b64 [%s+1024], {count};
    bar.sync 0;
    {copy()}
    cp.async.mbarrier.arrive{".noinc" if noinc else ""}.shared.b64 [%s+1024];
    {more}
    {wait(0, 1024)}
    {dump(512)}
    """
    run(body, [data, out], shared=1032, mode=mode, seed=seed)
    assert (out == data).all()


def test_shared_memory_has_an_end():
    with pytest.raises(UserError, match="at most 232448 bytes of shared memory"):
        run("", [], shared=232449)
    run("", [], shared=232448)


# Bulk copies.

LOAD = f"""
    setp.eq.u32 %p0, %t, 0;
    @%p0 mbarrier.init.shared.b64 [%s+{BARRIER}], 1;
    @%p0 fence.mbarrier_init.release.cluster;
    bar.sync 0;
    @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%s+{BARRIER}], 512;
    mov.b32 %r7, 512;
    @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
        [%s], [%a0], %r7, [%s+{BARRIER}];
    {wait()}
"""
STORE = """
    setp.eq.u32 %p0, %t, 0;
    @%p0 cp.async.bulk.global.shared::cta.bulk_group [%a0], [%s], 512;
    @%p0 cp.async.bulk.commit_group;
    @%p0 cp.async.bulk.wait_group 0;
"""


@pytest.mark.parametrize(("mode", "seed"), MODES)
def test_bulk_loads_and_stores(mode, seed):
    data, out = random((128,), np.uint32, 2), np.zeros(128, np.uint32)
    run(LOAD + dump(512), [data, out], shared=BARRIER + 8, mode=mode, seed=seed)
    assert (out == data).all()
    out[:] = 0
    run(fill(512) + STORE, [out, data], shared=512, mode=mode, seed=seed)
    assert (out == data).all()


def test_bulk_stores_by_mask():
    data, out = random((512,), np.uint8, 2) + np.uint8(1), np.zeros(512, np.uint8)
    body = (
        "mov.b16 %rs1, 0x0f01;\n"
        + fill(512)
        + STORE.replace("bulk_group [%a0], [%s], 512", "bulk_group.cp_mask [%a0], [%s], 512, %rs1")
    )
    run(body, [out, data], shared=512)
    keep = (0x0F01 >> np.arange(512) % 16) & 1
    assert (out == data * keep).all()


@pytest.mark.parametrize(
    ("opcode", "dtype", "function"),
    [
        ("add.f32", np.float32, np.add), ("add.noftz.bf16", ml_dtypes.bfloat16, np.add),
        ("max.s32", np.int32, np.maximum), ("min.u64", np.uint64, np.minimum),
    ],
)  # fmt: skip
def test_bulk_reductions(opcode, dtype, function):
    count = 512 // np.dtype(dtype).itemsize
    data, out = random((count,), dtype, 2), random((count,), dtype, 3)
    wanted = function(out, data)
    plain = "cp.async.bulk.global.shared::cta.bulk_group"
    body = STORE.replace(plain, plain.replace("cp.", "cp.reduce.") + f".{opcode}")
    run(fill(512) + body, [out, data], shared=512)
    assert (out == wanted).all()


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_what_bulk_copies_must_not_do(mode):
    data, out = random((128,), np.uint32, 2), np.zeros(128, np.uint32)
    options = {"shared": BARRIER + 8, "mode": mode}
    fault("alignment", LOAD.replace("%r7, 512", "%r7, 504"), [data], **options)
    fault("bounds", LOAD.replace("%r7, 512", "%r7, 1024"), [data], **options)
    fault("alignment", LOAD.replace("[%s], [%a0]", "[%s+8], [%a0]"), [data], **options)
    late = STORE.replace("@%p0 cp.async.bulk.wait_group 0;", "")
    fault("exit", fill(512) + late, [out, data], **options)
    fault("proxy", fill(512).replace("fence.proxy.async.shared::cta;", "") + STORE, [out, data],
          **options)  # fmt: skip


@pytest.mark.parametrize(("mode", "seed"), MODES)
def test_copies_between_blocks_of_a_cluster(mode, seed):
    """Each block sends its rows to the other one."""
    data, out = random((2, 128), np.uint32, 2), np.zeros((2, 128), np.uint32)
    body = f"""
    setp.eq.u32 %p0, %t, 0;
    @%p0 mbarrier.init.shared.b64 [%s+{BARRIER}], 1;
    @%p0 fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%s+{BARRIER}], 512;
    mad.wide.u32 %rd30, %rank, 512, %a0; mov.u64 %a0, %rd30;
    mad.wide.u32 %rd31, %rank, 512, %a1; mov.u64 %a1, %rd31;
    {fill(512, 0)}
    xor.b32 %r1, %rank, 1;
    add.u32 %r2, %s32, 1024; add.u32 %r3, %s32, {BARRIER};
    mapa.shared::cluster.u32 %r4, %r2, %r1;
    mapa.shared::cluster.u32 %r5, %r3, %r1;
    @%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
        [%r4], [%s], 512, [%r5];
    {wait()}
    add.u64 %s, %s, 1024;
    {dump(512)}
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    """
    run(body, [data, out], shared=BARRIER + 8, cluster=2, grid=(2,), mode=mode, seed=seed)
    assert (out == data[::-1]).all()


# Rings of stages, as software pipelines use them: many blocks at once.


def ring(wait: str = "cp.async.wait_group 1;", before: str = "bar.sync 0;", turns: int = 6) -> str:
    """Two stages of 64 x 16 bytes; each thread adds what its neighbour in the other warp copied."""
    issue = """
    mad.wide.u32 %rd20, %r40, 1024, %a0; mad.wide.u32 %rd20, %t, 16, %rd20;
    and.b32 %r41, %r40, 1; mad.lo.u32 %r42, %r41, 1024, %s32; mad.lo.u32 %r42, %t, 16, %r42;
    cp.async.cg.shared.global [%r42], [%rd20], 16;
    cp.async.commit_group;
    """
    steps = "\n".join(
        f"""mov.b32 %r40, {turn + 1};
        {issue if turn + 1 < turns else "cp.async.commit_group;"}
        {wait}
        bar.sync 0;
        ld.shared.b32 %r44, [%r43+{turn % 2 * 1024}];
        add.u32 %r45, %r45, %r44;
        {before}"""
        for turn in range(turns)
    )
    return f"""
    mov.u32 %r50, %ctaid.x; mul.wide.u32 %rd30, %r50, {1024 * turns}; add.u64 %a0, %a0, %rd30;
    xor.b32 %r46, %t, 32; mad.lo.u32 %r43, %r46, 16, %s32;
    mov.b32 %r45, 0; mov.b32 %r40, 0;
    {issue}
    {steps}
    mad.lo.u32 %r51, %r50, 64, %t;
    mad.wide.u32 %rd31, %r51, 4, %a1;
    st.global.b32 [%rd31], %r45;
    """


@pytest.mark.parametrize(("mode", "seed"), MODES)
def test_a_ring_of_stages(mode, seed):
    data = random((5, 6, 64, 4), np.uint32, 1)
    out = np.zeros((5, 64), np.uint32)
    report = run(ring(), [data, out], threads=64, grid=(5,), shared=2048, mode=mode, seed=seed)
    assert (out == np.roll(data[..., 0].sum(1), 32, 1)).all()
    if not seed:
        assert report.vector_instructions < 200  # all blocks run as one vector
    fault("race", ring("cp.async.wait_group 2;"), [data, out], threads=64, grid=(5,), shared=2048,
          mode=mode, seed=seed)  # fmt: skip
    fault("race", ring(before=""), [data, out], threads=64, grid=(5,), shared=2048, mode=mode,
          seed=seed)  # fmt: skip
    late = ring().replace("cp.async.wait_group 1;\n        bar.sync 0;",
                          "bar.sync 0;\n        cp.async.wait_group 1;")  # fmt: skip
    fault("race", late, [data, out], threads=64, grid=(5,), shared=2048, mode=mode, seed=seed)
