"""Shuffles, votes, reductions, barriers of a block; races and deadlocks."""

from __future__ import annotations

import numpy as np
import pytest

from girih.backends.nvidia.simulator import SimulationError

from .elementwise import apply, integers, kernel, run, same


def lanes(count: int = 256) -> np.ndarray:
    return np.arange(count) & 31


@pytest.mark.parametrize("width", [32, 16, 8, 2])
@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffles(mode: str, width: int) -> None:
    a = integers(np.uint32, seed=1)
    by = np.random.default_rng(2).integers(0, 32, 256).astype(np.uint32)
    for constant in (None, 1, 5, 16):
        clamp = (0 if mode == "up" else 31) | (32 - width) << 8
        amount = by if constant is None else np.full(256, constant, np.uint32)
        shown = "{1}" if constant is None else str(constant)
        lines = (
            f"shfl.sync.{mode}.b32 {{d0}}|%p1, {{0}}, {shown}, {clamp}, -1;"
            "selp.u32 {d1}, 1, 0, %p1;"
        )
        found, inside = apply(lines, [a, by], np.uint32, np.uint32)
        expected, truth = a.copy(), np.zeros(256, np.uint32)
        for thread in range(256):
            lane, b = thread & 31, int(amount[thread]) & 31
            first = lane // width * width
            source = {
                "up": lane - b,
                "down": lane + b,
                "bfly": lane ^ b,
                "idx": first + b % width,
            }[mode]
            truth[thread] = first <= source if mode == "up" else source < first + width
            if truth[thread]:
                expected[thread] = a[thread - lane + source]
        same(found, expected)
        same(inside, truth)


def test_votes() -> None:
    a = integers(np.int32, seed=1)
    a[32:64], a[64:96] = 1, -1
    truth = (a > 0).reshape(-1, 32)
    bits = (truth * (1 << np.arange(32))).sum(1).astype(np.uint32)
    found = apply("setp.gt.s32 %p1, {0}, 0; vote.sync.ballot.b32 {d0}, %p1, -1;", [a], np.uint32)
    same(found, bits.repeat(32))
    for mode, expected in (
        ("all", truth.all(1)),
        ("any", truth.any(1)),
        ("uni", truth.all(1) | ~truth.any(1)),
    ):
        lines = (
            f"setp.gt.s32 %p1, {{0}}, 0; vote.sync.{mode}.pred %p2, %p1, -1;"
            "selp.u32 {d0}, 1, 0, %p2;"
        )
        same(apply(lines, [a], np.uint32), expected.repeat(32).astype(np.uint32))
    lines = "setp.gt.s32 %p1, {0}, 0; mov.u32 {d0}, 0; @%p1 activemask.b32 {d0};"
    same(apply(lines, [a], np.uint32), np.where(a > 0, bits.repeat(32), 0))


def test_matches() -> None:
    a = np.random.default_rng(0).integers(0, 5, 256).astype(np.uint32)
    a[:32] = 3
    rows = a.reshape(-1, 32)
    equal = rows[:, :, None] == rows[:, None, :]
    bits = (equal * (1 << np.arange(32))).sum(2).astype(np.uint32).reshape(-1)
    same(apply("match.any.sync.b32 {d0}, {0}, -1;", [a], np.uint32), bits)
    lines = "match.all.sync.b32 {d0}|%p1, {0}, -1; selp.u32 {d1}, 1, 0, %p1;"
    mask, every = apply(lines, [a], np.uint32, np.uint32)
    same(every, (np.arange(256) < 32).astype(np.uint32))
    same(mask, np.where(np.arange(256) < 32, 0xFFFFFFFF, 0).astype(np.uint32))


@pytest.mark.parametrize("name", ["add", "min", "max", "and", "or", "xor"])
def test_warp_reductions(name: str) -> None:
    function = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[name]
    type_ = "b32" if name in ("and", "or", "xor") else "s32"
    a = integers(np.int32, seed=1)
    found = apply(f"redux.sync.{name}.{type_} {{d0}}, {{0}}, -1;", [a], np.int32)
    same(found, function.reduce(a.reshape(-1, 32), 1, dtype=np.int32).repeat(32))
    lines = (
        f"mov.u32 {{d0}}, 0; and.b32 %r20, %t, 3; setp.eq.u32 %p1, %r20, 1;"
        f"@%p1 redux.sync.{name}.{type_} {{d0}}, {{0}}, 0x22222222;"
    )
    found = apply(lines, [a], np.int32)
    part = function.reduce(a.reshape(-1, 32)[:, 1::4], 1, dtype=np.int32).repeat(32)
    same(found, np.where(np.arange(256) % 4 == 1, part, 0))


def test_elect() -> None:
    lines = (
        "mov.u32 {d0}, 99; setp.gt.u32 %p1, {0}, 5; vote.sync.ballot.b32 %r20, %p1, -1;"
        "@!%p1 bra END; elect.sync {d0}|%p2, %r20; @%p2 add.u32 {d0}, {d0}, 1000; END:"
    )
    a = lanes().astype(np.uint32)
    found = apply(lines, [a], np.uint32)
    same(found, np.where(a <= 5, 99, np.where(a == 6, 1006, 6)).astype(np.uint32))


def test_lane_that_is_not_there() -> None:
    a = lanes().astype(np.uint32)
    lines = (
        "mov.u32 {d0}, 0; setp.lt.u32 %p1, {0}, 16; @!%p1 bra END;"
        "shfl.sync.down.b32 {d0}, {0}, %s, 31, -1; END:"
    )
    with pytest.raises(SimulationError, match="lane 15 reads lane 16, which is not here"):
        apply(lines.replace("%s", "1"), [a], np.uint32)
    with pytest.raises(SimulationError, match="the mask names threads"):
        apply(
            "setp.lt.u32 %p1, {0}, 16; @!%p1 bra END; bar.warp.sync -1; END: mov.u32 {d0}, 0;",
            [a],
            np.uint32,
        )


def test_special_registers() -> None:
    text = kernel(
        """
  mov.u32 %r1, %laneid;
  mov.u32 %r2, %warpid;
  mov.u32 %r3, %lanemask_lt;
  mov.u32 %r4, %nctaid.y;
  mov.u32 %r5, %tid.y;
  mov.u64 %d1, %clock64;
  mad.lo.u32 %r1, %r2, 100, %r1;
  mad.lo.u32 %r1, %r4, 10000, %r1;
  mad.lo.u32 %r1, %r5, 100000, %r1;
  mov.u32 %r6, %tid.x;
  mov.u32 %r7, %ntid.x;
  mad.lo.u32 %r6, %r5, %r7, %r6;
  mad.wide.u32 %d2, %r6, 8, %a0;
  st.global.v2.u32 [%d2], {%r1, %r3};
""",
        1,
    )
    found, _ = run(text, [], [(np.uint32, 128)], (1, 3, 1), (16, 4, 1))
    pairs = found[0].reshape(-1, 2)
    t = np.arange(64)
    assert (pairs[:, 0] == t % 32 + t // 32 * 100 + 30000 + t // 16 * 100000).all()
    assert (pairs[:, 1] == (1 << (t % 32)) - 1).all()


REVERSE = """
  mov.u32 %r9, %tid.x;
  mov.b64 %d1, buffer;
  mad.wide.u32 %d2, %r9, 4, %d1;
  st.shared.u32 [%d2], %t;
  BARRIER
  xor.b32 %r2, %r9, 127;
  mad.wide.u32 %d3, %r2, 4, %d1;
  ld.shared.u32 %r3, [%d3];
  mad.wide.u32 %d4, %t, 4, %a0;
  st.global.u32 [%d4], %r3;
"""


@pytest.mark.parametrize(
    "barrier",
    [
        "bar.sync 0;",
        "barrier.sync.aligned 3;",
        "barrier.cta.sync.aligned 2, 128;",
        "bar.sync 1, 128;",
        "barrier.sync 0;",
        "bar.red.popc.u32 %r8, 0, %p1;",
        # half of the warps arrive only
        "shr.u32 %r20, %r9, 6; setp.eq.u32 %p4, %r20, 0; @%p4 bar.sync 4; @!%p4 bar.sync 4;",
    ],
)
def test_barriers(barrier: str) -> None:
    text = kernel("  setp.eq.u32 %p1, %t, 0;" + REVERSE.replace("BARRIER", barrier), 1, shared=512)
    for seed in range(3):
        found, _ = run(text, [], [(np.uint32, 128 * 40)], (40, 1, 1), (128, 1, 1), seed=seed)
        assert (found[0] == np.arange(128 * 40) ^ 127).all()


def test_barrier_reductions() -> None:
    text = kernel(
        """
  mov.u32 %r9, %tid.x;
  and.b32 %r1, %t, 3;
  setp.eq.u32 %p1, %r1, 0;
  setp.lt.u32 %p2, %r9, 32;
  @!%p2 bra LATE;
LATE:
  bar.red.popc.u32 %r2, 0, %p1;
  bar.red.and.pred %p3, 1, %p1;
  bar.red.or.pred %p4, 2, !%p1;
  @%p3 add.u32 %r2, %r2, 1000;
  @%p4 add.u32 %r2, %r2, 2000;
  mad.wide.u32 %d4, %t, 4, %a0;
  st.global.u32 [%d4], %r2;
""",
        1,
    )
    found, _ = run(text, [], [(np.uint32, 512)], (4, 1, 1), (128, 1, 1))
    assert (found[0] == 2032).all()


def test_producer_and_consumer_with_arrive() -> None:
    """Two roles with named barriers: one arrives, the other waits."""
    text = kernel(
        """
  mov.u32 %r9, %tid.x;
  mov.b64 %d1, buffer;
  mad.wide.u32 %d2, %r9, 4, %d1;
  setp.ge.u32 %p1, %r9, 64;
  mov.u32 %r5, 0;
  @%p1 bra CONSUMER;
PRODUCE:
  bar.sync 1, 128;
  add.u32 %r6, %r9, %r5;
  st.shared.u32 [%d2], %r6;
  bar.arrive 2, 128;
  add.u32 %r5, %r5, 1;
  setp.lt.u32 %p2, %r5, 5;
  @%p2 bra PRODUCE;
  ret;
CONSUMER:
  mov.u32 %r7, 0;
CONSUME:
  bar.arrive 1, 128;
  bar.sync 2, 128;
  ld.shared.u32 %r6, [%d2+-256];
  add.u32 %r7, %r7, %r6;
  add.u32 %r5, %r5, 1;
  setp.lt.u32 %p2, %r5, 5;
  @%p2 bra CONSUME;
  mad.wide.u32 %d4, %r9, 4, %a0;
  st.global.u32 [%d4+-256], %r7;
""",
        1,
        shared=512,
    )
    for seed in range(4):
        found, _ = run(text, [], [(np.uint32, 64)], (1, 1, 1), (128, 1, 1), seed=seed)
        assert (found[0] == 5 * np.arange(64) + 10).all()


def test_race_between_barriers() -> None:
    text = kernel(REVERSE.replace("BARRIER", ""), 1, shared=512)
    with pytest.raises(
        SimulationError, match="race.*reads shared memory at .*wrote with no barrier"
    ):
        run(text, [], [(np.uint32, 128)], (1, 1, 1), (128, 1, 1))
    run(text, [], [(np.uint32, 128)], (1, 1, 1), (128, 1, 1), checks=False)
    late = REVERSE.replace("BARRIER", "bar.sync 0;") + "  st.shared.u32 [%d2], %r3;\n"
    with pytest.raises(
        SimulationError, match="race.*writes shared memory at .*read with no barrier"
    ):
        run(kernel(late, 1, shared=512), [], [(np.uint32, 128)], (1, 1, 1), (128, 1, 1))
    same_place = (
        "  mov.u32 %r9, %tid.x;\n  shr.u32 %r9, %r9, {};\n"
        "  st.shared.u32 [buffer], %r9;\n  bar.sync 0;"
    )
    with pytest.raises(SimulationError, match="race.*writes"):
        run(kernel(same_place.format(1), 0, shared=512), [], [], (1, 1, 1), (128, 1, 1))
    run(kernel(same_place.format(7), 0, shared=512), [], [], (1, 1, 1), (128, 1, 1))


def test_stores_of_one_value_are_no_race() -> None:
    """Two warps store 7 at place 0, and each at its own place something else."""
    body = """
  mov.u32 %r9, %tid.x;
  mov.b64 %d1, buffer;
  mad.wide.u32 %d2, %r9, 4, %d1;
  setp.lt.u32 %p1, %r9, 32;
  @!%p1 bra OTHER;
  st.shared.v2.u32 [buffer+512], {%r5, %r6};
OTHER:
  @%p1 bra JOIN;
  st.shared.v2.u32 [buffer+512], {%r5, %r6};
JOIN:
  st.shared.u32 [%d2], %r9;
  bar.sync 0;
"""
    same_values = "  mov.u32 %r5, 7;\n  mov.u32 %r6, 8;\n"
    for seed in range(3):
        text = kernel(same_values + body, 0, shared=520)
        run(text, [], [], (1, 1, 1), (64, 1, 1), seed=seed)
        text = kernel("  mov.u32 %r5, 7;\n  shr.u32 %r6, %t, 5;\n" + body, 0, shared=520)
        with pytest.raises(SimulationError, match="race.*writes shared memory at 512"):
            run(text, [], [], (1, 1, 1), (64, 1, 1), seed=seed)


def test_warp_barrier_orders_a_warp() -> None:
    body = """
  mov.b64 %d1, buffer;
  mad.wide.u32 %d2, %t, 4, %d1;
  xor.b32 %r2, %t, 31;
  mad.wide.u32 %d3, %r2, 4, %d1;
  st.shared.u32 [%d2], %t;
  SYNC
  ld.shared.u32 %r3, [%d3];
  mad.wide.u32 %d4, %t, 4, %a0;
  st.global.u32 [%d4], %r3;
  activemask.b32 %r4;
"""
    found, _ = run(kernel(body.replace("SYNC", "bar.warp.sync -1;"), 1, 128), [], [(np.uint32, 32)])
    assert (found[0] == np.arange(32) ^ 31).all()
    with pytest.raises(SimulationError, match="race"):
        run(kernel(body.replace("SYNC", ""), 1, 128), [], [(np.uint32, 32)])


@pytest.mark.parametrize(
    "body,message",
    [
        (
            "setp.lt.u32 %p1, %t, 32;\n  @%p1 bar.sync 1, 128;",
            r"deadlock.*no warp can go on\s+block \(0, 0, 0\) warp 0 waits for barrier 1.*PTX line",
        ),
        ("setp.lt.u32 %p1, %t, 16;\n  @%p1 bar.sync 0;", "divergent.*a part of a warp"),
        ("bar.sync 1, 100;", "barrier.*no multiple of 32"),
        ("bar.sync 16;", "barrier 16 of 16"),
        ("bar.sync 1, 64;\n  bar.sync 1, 128;", "more threads arrive|different counts"),
    ],
)
def test_misused_barriers(body: str, message: str) -> None:
    import re

    with pytest.raises(SimulationError) as caught:
        run(kernel("  " + body, 0), [], [], (1, 1, 1), (128, 1, 1))
    assert re.search(message, str(caught.value), re.S), str(caught.value)


def test_threads_that_left_are_not_awaited() -> None:
    body = "  setp.ge.u32 %p1, %t, 64;\n  @%p1 ret;" + REVERSE.replace(
        "BARRIER", "bar.sync 0;"
    ).replace("127", "63")
    for seed in range(3):
        found, _ = run(
            kernel(body, 1, shared=512), [], [(np.uint32, 64)], (1, 1, 1), (128, 1, 1), seed=seed
        )
        assert (found[0] == np.arange(64) ^ 63).all()


def test_shared_memory_that_nobody_wrote_is_told() -> None:
    body = "  ld.shared.u32 %r1, [buffer+64];\n  st.global.u32 [%a0], %r1;\n"
    found, report = run(kernel(body, 1, shared=128), [], [(np.uint32, 1)])
    assert found[0][0] == 0xFFFFFFFF
    (fault,) = report.faults
    assert fault.kind == "uninitialised" and "at 64, which nobody has written" in fault.message
    for first in ("st.shared.u32 [buffer+64], 5;", "red.shared.add.u32 [buffer+64], 1;"):
        _, report = run(
            kernel(f"  {first}\n  bar.sync 0;\n{body}", 1, shared=128), [], [(np.uint32, 1)]
        )
        assert not report.faults
