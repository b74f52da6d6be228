"""mbarrier, clusters, setmaxnreg: phases, remote arrivals, and what must be found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from girih.hlo.errors import UserError

from .asynchronous import MODES, fault, run

INIT = """
setp.eq.u32 %p0, %t, 0;
@%p0 mbarrier.init.shared.b64 [%s], COUNT;
@%p0 fence.mbarrier_init.release.cluster;
bar.sync 0;
"""
SPIN = """LABEL: mbarrier.try_wait.parity.shared.b64 %p3, [%s], PARITY;
@!%p3 bra LABEL;
"""
PUT = "mad.wide.u32 %rd70, %t, 4, %a0;\nst.global.b32 [%rd70], VALUE;\n"


def init(count: int) -> str:
    return INIT.replace("COUNT", str(count))


def spin(parity: int, label: str) -> str:
    return SPIN.replace("PARITY", str(parity)).replace("LABEL", label)


@pytest.mark.parametrize(("mode", "seed"), MODES)
def test_phases_go_on(mode, seed):
    """The second warp writes what the first one reads, four times, through two parities."""
    out = np.zeros(64, np.uint32)
    steps = "\n".join(
        f"""@%p9 add.u32 %r1, %t, {step};
        @%p9 st.shared.b32 [%r2+{256 * step}], %r1;
        mbarrier.arrive.shared.b64 %rd1, [%s];
        {spin(step % 2, f"wait{step}")}
        @!%p9 ld.shared.b32 %r3, [%r2+{256 * step + 128}];
        @!%p9 add.u32 %r4, %r4, %r3;"""
        for step in range(4)
    )
    body = f"""{init(64)}
    setp.ge.u32 %p9, %t, 32;
    mad.lo.u32 %r2, %t, 4, %s32; add.u32 %r2, %r2, 64;
    mov.b32 %r4, 0;
    {steps}
    {PUT.replace("VALUE", "%r4")}"""
    run(body, [out], threads=64, shared=2048, mode=mode, seed=seed)
    assert (out[:32] == 4 * np.arange(32, 64) + 6).all() and not out[32:].any()


def test_tokens_and_polls():
    """test_wait by the token of the arrival, before and after the last thread arrives."""
    out = np.zeros(32, np.uint32)
    body = f"""{init(33)}
    mbarrier.arrive.shared.b64 %rd1, [%s];
    mbarrier.test_wait.shared.b64 %p1, [%s], %rd1;
    bar.warp.sync -1;
    @%p0 mbarrier.arrive.release.cta.shared::cta.b64 %rd2, [%s], 1;
    mbarrier.test_wait.shared.b64 %p2, [%s], %rd1;
    selp.b32 %r1, 1, 0, %p1; selp.b32 %r2, 2, 0, %p2; add.u32 %r1, %r1, %r2;
    {PUT.replace("VALUE", "%r1")}"""
    run(body, [out], shared=64)
    assert (out == 2).all()


def test_counts_of_arrivals_and_drops():
    out = np.zeros(32, np.uint32)
    body = f"""{init(40)}
    @%p0 mbarrier.arrive.shared.b64 %rd1, [%s], 9;
    setp.ne.u32 %p1, %t, 0;
    @%p1 mbarrier.arrive_drop.shared.b64 %rd2, [%s];
    {spin(0, "first")}
    @%p0 mbarrier.arrive.shared.b64 %rd1, [%s], 9;
    {spin(1, "second")}
    {PUT.replace("VALUE", "1")}"""
    run(body, [out], shared=64)
    assert (out == 1).all()


def test_bytes_by_hand():
    out = np.zeros(32, np.uint32)
    body = f"""{init(1)}
    @%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%s], 64;
    @%p0 mbarrier.arrive.shared.b64 %rd1, [%s];
    @%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%s], 64;
    {spin(0, "first")}
    @%p0 mbarrier.inval.shared.b64 [%s];
    bar.sync 0;
    {init(2)}
    {PUT.replace("VALUE", "1")}"""
    run(body, [out], shared=64)
    assert (out == 1).all()


def test_misuse():
    fault("barrier", init(1) + "mbarrier.arrive.shared.b64 %rd1, [%s], 2;", [], shared=64)
    fault("barrier", "mbarrier.arrive.shared.b64 %rd1, [%s];", [], shared=64)
    fault("barrier", init(1) + init(1), [], shared=64)
    fault("barrier", init(0), [], shared=64)
    fault("alignment", init(1).replace("[%s]", "[%s+4]"), [], shared=64)
    fault("bounds", init(1).replace("[%s]", "[%s+64]"), [], shared=64)
    with pytest.raises(UserError, match="not simulated"):
        run("mbarrier.pending_count.b64 %r1, %rd1;", [])


def test_who_misses_a_phase_waits_for_ever():
    """The second warp passes two phases while the first one still waits for the first."""
    alone = "setp.ge.u32 %p9, %t, 32;\n@%p9 mbarrier.arrive.shared.b64 %rd1, [%s];\n"
    body = init(32) + alone + "@!%p9 nanosleep.u32 1;\n" + alone + spin(0, "first")
    fault("deadlock", body, [], threads=64, shared=64)


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_a_deadlock_says_who_waits_for_what(mode):
    body = init(2) + "@%p0 mbarrier.arrive.shared.b64 %rd1, [%s];\n" + spin(0, "first")
    text = str(fault("deadlock", body, [], threads=64, shared=64, mode=mode))
    assert "warp 1 waits for the mbarrier at shared address 0, phase 0: 1 of 2 arrivals" in text
    text = str(fault("deadlock", init(1) + spin(0, "x"), [], shared=64, mode=mode))
    assert "mbarrier.try_wait.parity" in text


# Clusters.


@pytest.mark.parametrize(("mode", "seed"), MODES)
def test_remote_arrivals(mode, seed):
    """Each block waits until the next one has written into its shared memory and arrived."""
    out = np.zeros((4, 32), np.uint32)
    body = f"""
    setp.eq.u32 %p0, %t, 0;
    @%p0 mbarrier.init.shared.b64 [%s], 32;
    @%p0 fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    add.u32 %r1, %rank, 1; and.b32 %r1, %r1, 3;
    mapa.shared::cluster.u32 %r2, %s32, %r1;
    getctarank.shared::cluster.u32 %r5, %r2;
    mad.lo.u32 %r3, %t, 4, %r2;
    mad.lo.u32 %r4, %rank, 100, %t;
    mad.lo.u32 %r4, %r5, 1000, %r4;
    st.shared::cluster.b32 [%r3+64], %r4;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2];
    {spin(0, "first").replace("parity.shared", "parity.acquire.cluster.shared::cta")}
    mad.lo.u32 %r6, %t, 4, %s32;
    ld.shared.b32 %r7, [%r6+64];
    mad.wide.u32 %rd71, %rank, 128, %a0; mad.wide.u32 %rd71, %t, 4, %rd71;
    st.global.b32 [%rd71], %r7;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    """
    run(body, [out], shared=256, cluster=4, grid=(4,), mode=mode, seed=seed)
    rank = np.arange(4)
    assert (out == (1000 * rank + 100 * ((rank - 1) % 4))[:, None] + np.arange(32)).all()


def test_generic_addresses_in_the_cluster():
    out = np.zeros((2, 32), np.uint32)
    body = """
    cvta.shared.u64 %rd1, %s;
    xor.b32 %r1, %rank, 1;
    mapa.u64 %rd2, %rd1, %r1;
    mad.wide.u32 %rd3, %t, 4, %rd2;
    add.u32 %r2, %t, %rank;
    st.b32 [%rd3], %r2;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    mad.lo.u32 %r6, %t, 4, %s32;
    ld.shared.b32 %r7, [%r6];
    mad.wide.u32 %rd71, %rank, 128, %a0; mad.wide.u32 %rd71, %t, 4, %rd71;
    st.global.b32 [%rd71], %r7;
    """
    run(body, [out], shared=256, cluster=2, grid=(2,))
    assert (out == np.arange(32) + [[1], [0]]).all()


def test_what_clusters_must_not_do():
    options = {"shared": 256, "cluster": 2, "grid": (2,)}
    fault("cluster", "mapa.shared::cluster.u32 %r2, %s32, 2;", [], **options)
    fault("barrier", "barrier.cluster.wait.aligned;", [], **options)
    arrive = "barrier.cluster.arrive.aligned;\n"
    fault("barrier", arrive + arrive, [], **options)
    leaves = """
    setp.eq.u32 %p5, %rank, 1;
    @%p5 bra done;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    mapa.shared::cluster.u32 %r2, %s32, 1;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2];
    done:
    """
    fault("cluster", leaves, [], **options)
    half = "setp.eq.u32 %p5, %rank, 1;\n@%p5 bra skip;\n" + arrive + "skip:\n"
    spin_ = half + init(1) + "@%p5 bra wait;\nbarrier.cluster.wait.aligned;\nwait:\n" + spin(0, "x")
    fault("deadlock", spin_, [], **options)


@pytest.mark.parametrize("verb", ["arrive", "wait"])
def test_whole_warps_meet_at_the_barrier_of_a_cluster(verb):
    """One lane that runs ahead is the mistake of a role that has a single thread."""
    arrive, wait = (f"barrier.cluster.{one}.aligned;\n" for one in ("arrive", "wait"))
    lane = "setp.ne.u32 %p5, %t, 0;\n@%p5 bra rest;\n"
    body = lane + arrive + wait + "ret;\nrest:\n" + arrive + wait
    if verb == "wait":
        body = arrive + lane + wait + "ret;\nrest:\n" + wait
    fault("divergent", body, [], shared=64, cluster=2, grid=(2,))


def test_bytes_of_a_barrier_are_bounded():
    most = (1 << 20) - 1
    options: dict[str, Any] = {"shared": 64, "threads": 32}
    expect = "@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%s], {};"
    back = f"@%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%s], {most};"
    first = "setp.eq.u32 %p0, %t, 0;\n@%p0 mbarrier.init.shared.b64 [%s], 1;\n"
    run(first + expect.format(most) + back, [], **options)
    text = str(fault("barrier", first + expect.format(most + 1), [], **options))
    assert "at most 1048575 bytes" in text


# Registers of warp groups.


def registers(*counts: int) -> str:
    """Warp group i changes to counts[i] registers."""
    lines = ["shr.u32 %r1, %t, 7;"]
    for group, count in enumerate(counts):
        verb = "dec" if count <= 168 else "inc"
        lines += [
            f"setp.ne.u32 %p{group}, %r1, {group};",
            f"@%p{group} bra next{group};",
            f"setmaxnreg.{verb}.sync.aligned.u32 {count};",
            f"next{group}:",
        ]
    return "\n".join(lines)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_registers_are_handed_over(seed):
    run(registers(40, 232, 232), [], threads=384, seed=seed)
    run(registers(24, 240, 240), [], threads=384, seed=seed)
    text = str(fault("deadlock", registers(40, 240, 232), [], threads=384, seed=seed))
    assert "registers for each of its threads" in text


def test_counts_of_registers():
    fault("registers", "setmaxnreg.inc.sync.aligned.u32 236;", [], threads=128)
    fault("registers", "setmaxnreg.dec.sync.aligned.u32 16;", [], threads=128)
    fault("registers", "setmaxnreg.inc.sync.aligned.u32 64;", [], threads=384)
    part = "setp.ge.u32 %p1, %t, 96;\n@%p1 bra done;\nsetmaxnreg.dec.sync.aligned.u32 40;\ndone:"
    fault("divergence", part, [], threads=128)
