"""Branches, loops, calls, early exits: every thread its own way, in both ways of running."""

from __future__ import annotations

import numpy as np
import pytest

from girih.backends.nvidia.simulator import SimulationError, parse
from girih.hlo.errors import UserError

from .elementwise import HEAD, kernel, run

# A vote makes a kernel cooperative: its warps are scheduled, instead of all threads at once.
MODES = {"independent": "", "cooperative": "  activemask.b32 %r59;\n"}


def one(body: str, mode: str, count: int = 256, values: np.ndarray | None = None, **options):
    """Runs `body`, which computes %r1 from %r0 (an element of `values`), over `count` threads."""
    source = np.arange(count, dtype=np.uint32) if values is None else values
    text = kernel(
        f"""{MODES[mode]}  mad.wide.u32 %d1, %t, 4, %a0;
  mad.wide.u32 %d2, %t, 4, %a1;
  ld.global.u32 %r0, [%d1];
  mov.u32 %r1, 0;
{body}
  st.global.u32 [%d2], %r1;
""",
        2,
        head=options.pop("head", ""),
    )
    block = options.pop("block", (64, 1, 1))
    found, report = run(
        text, [source], [(np.uint32, count)], (count // block[0], 1, 1), block, **options
    )
    return found[0], report


@pytest.mark.parametrize("mode", MODES)
def test_branches(mode: str) -> None:
    found, _ = one(
        """
  and.b32 %r2, %r0, 3;
  setp.eq.u32 %p1, %r2, 0;
  @%p1 bra ZERO;
  setp.eq.u32 %p2, %r2, 1;
  @%p2 bra ONE;
  mul.lo.u32 %r1, %r0, 3;
  bra JOIN;
ZERO:
  add.u32 %r1, %r0, 100;
  bra JOIN;
ONE:
  sub.u32 %r1, %r0, 7;
JOIN:
  add.u32 %r1, %r1, 1;
""",
        mode,
    )
    i = np.arange(256, dtype=np.uint32)
    expected = np.where(i % 4 == 0, i + 100, np.where(i % 4 == 1, i - 7, i * 3)) + 1
    assert (found == expected).all()


@pytest.mark.parametrize("mode", MODES)
def test_nested_loops_with_trip_counts_of_threads(mode: str) -> None:
    found, report = one(
        """
  mov.u32 %r2, 0;
OUTER:
  setp.ge.u32 %p1, %r2, %r0;
  @%p1 bra DONE;
  mov.u32 %r3, 0;
INNER:
  add.u32 %r1, %r1, %r3;
  add.u32 %r3, %r3, 1;
  setp.le.u32 %p2, %r3, %r2;
  @%p2 bra INNER;
  add.u32 %r2, %r2, 1;
  bra OUTER;
DONE:
""",
        mode,
        values=(np.arange(256, dtype=np.uint32) * 7 % 23),
    )
    counts = np.arange(256) * 7 % 23
    assert (found == [sum(b * (b + 1) // 2 for b in range(n)) for n in counts]).all()
    assert report.vector_instructions < 5000  # 23 * 12 turns of the inner loop, not per thread


@pytest.mark.parametrize("mode", MODES)
def test_continue_and_break(mode: str) -> None:
    """A block behind the loop that jumps back to its head must not let the others run ahead."""
    found, report = one(
        """
  mov.u32 %r2, 0;
LOOP:
  add.u32 %r2, %r2, 1;
  setp.gt.u32 %p1, %r2, 20;
  @%p1 bra OUT;
  rem.u32 %r3, %r2, 3;
  rem.u32 %r4, %r0, 3;
  setp.eq.u32 %p2, %r3, %r4;
  @%p2 bra RARE;
  add.u32 %r1, %r1, %r2;
  setp.gt.u32 %p3, %r1, 90;
  @%p3 bra OUT;
  bra LOOP;
RARE:
  add.u32 %r1, %r1, 1000;
  bra LOOP;
OUT:
""",
        mode,
    )
    expected = []
    for i in range(256):
        total = 0
        for j in range(1, 21):
            if j % 3 == i % 3:
                total += 1000
                continue
            total += j
            if total > 90:
                break
        expected.append(total)
    assert (found == expected).all()
    assert report.vector_instructions < 1000


@pytest.mark.parametrize("mode", MODES)
def test_early_exit(mode: str) -> None:
    found, _ = one(
        """
  st.global.u32 [%d2], 5;
  setp.gt.u32 %p1, %r0, 100;
  @%p1 ret;
  setp.eq.u32 %p2, %r0, 50;
  @%p2 exit;
  add.u32 %r1, %r0, 1;
""",
        mode,
    )
    i = np.arange(256)
    assert (found == np.where((i > 100) | (i == 50), 5, i + 1)).all()


@pytest.mark.parametrize("mode", MODES)
def test_indexed_branch(mode: str) -> None:
    found, _ = one(
        """
  and.b32 %r2, %r0, 3;
TABLE: .branchtargets A, B, C, A;
  brx.idx %r2, TABLE;
A:
  mov.u32 %r1, 10;
  bra END;
B:
  mov.u32 %r1, 20;
C:
  add.u32 %r1, %r1, 30;
END:
""",
        mode,
    )
    assert (found == np.asarray([10, 50, 30, 10])[np.arange(256) % 4]).all()


@pytest.mark.parametrize("mode", MODES)
def test_guarded_stores_and_loads(mode: str) -> None:
    found, _ = one(
        """
  and.b32 %r2, %r0, 1;
  setp.eq.u32 %p1, %r2, 1;
  mov.u32 %r1, 77;
  @%p1 ld.global.u32 %r1, [%a0+16];
  @!%p1 st.global.u32 [%d2], 9;
  @!%p1 bra END;
  add.u32 %r1, %r1, %r0;
END:
""",
        mode,
    )
    i = np.arange(256)
    assert (found == np.where(i % 2 == 1, 4 + i, 77)).all()


FUNCTIONS = """
.func (.param .b32 out) twice(.param .b32 in)
{
  .reg .b32 %r<4>;
  .reg .pred %p<2>;
  ld.param.b32 %r1, [in];
  setp.gt.u32 %p1, %r1, 100;
  @%p1 bra BIG;
  add.u32 %r2, %r1, %r1;
  st.param.b32 [out], %r2;
  ret;
BIG:
  st.param.b32 [out], %r1;
  ret;
}
.func (.param .b32 out) apply(.param .b32 in, .param .align 8 .b8 pair[8])
{
  .reg .b32 %r<6>;
  ld.param.b32 %r1, [in];
  ld.param.v2.b32 {%r2, %r3}, [pair];
  {
    .param .b32 param0;
    .param .b32 retval0;
    st.param.b32 [param0], %r1;
    call.uni (retval0), twice, (param0);
    ld.param.b32 %r4, [retval0];
  }
  add.u32 %r4, %r4, %r2;
  sub.u32 %r4, %r4, %r3;
  st.param.b32 [out], %r4;
  ret;
}
"""


@pytest.mark.parametrize("mode", MODES)
def test_calls(mode: str) -> None:
    call = """
  {
    .param .b32 param0;
    .param .align 8 .b8 param1[8];
    .param .b32 retval0;
    st.param.b32 [param0], %r0;
    st.param.v2.b32 [param1], {5, 2};
    call.uni (retval0), apply, (param0, param1);
    ld.param.b32 %r1, [retval0];
  }
"""
    found, _ = one(call + call.replace("%r0;", "%r1;"), mode, head=FUNCTIONS)
    i = np.arange(256)
    once = np.where(i > 100, i, 2 * i) + 3
    assert (found == np.where(once > 100, once, 2 * once) + 3).all()


def test_recursion_is_refused() -> None:
    head = """
.func again(.param .b32 in)
{
  .param .b32 param0;
  call again, (param0);
  ret;
}
"""
    with pytest.raises(UserError, match="calls itself"):
        one(".param .b32 q;\n call again, (q);", "independent", head=head)


@pytest.mark.parametrize("mode", MODES)
def test_endless_loops_end(mode: str) -> None:
    with pytest.raises(UserError, match="does not end.*PTX line"):
        one("LOOP:\n  add.u32 %r1, %r1, 1;\n  bra LOOP;", mode, limit=5000)


def test_threads_wait_for_each_other_through_memory() -> None:
    """Threads that spin until a thread further down has stored."""
    body = """
  setp.ne.u32 %p1, %r0, 5;
  @%p1 bra SPIN;
  st.global.u32 [%a1], 1234;
  bra END;
SPIN:
  ld.volatile.global.u32 %r1, [%a1];
  setp.ne.u32 %p2, %r1, 1234;
  @%p2 bra SPIN;
END:
  setp.eq.u32 %p3, %r0, 0;
  @%p3 ret;
"""
    for mode in MODES:
        found, _ = one(body, mode, count=64)
        assert (found[6:] == 1234).all()


def test_many_blocks_and_odd_sizes() -> None:
    """Grids of several batches, blocks that fill no warp."""
    for mode in MODES.values():
        text = kernel(
            f"""{mode}
  mov.u32 %r1, %tid.y;
  mov.u32 %r2, %ctaid.y;
  mov.u32 %r3, %nctaid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r5, %r2, %r3, %c;
  mad.lo.u32 %r6, %r5, 3, %r1;
  mad.lo.u32 %r7, %r6, 17, %r4;
  mad.wide.u32 %d1, %r7, 4, %a0;
  st.global.u32 [%d1], %r7;
""",
            1,
        )
        count = 50 * 30 * 3 * 17
        found, report = run(text, [], [(np.uint32, count)], (50, 30, 1), (17, 3, 1))
        assert (found[0] == np.arange(count)).all()
        assert report.instructions > report.vector_instructions * 1000


def test_divergent_warps_with_seeds() -> None:
    body = """
  and.b32 %r2, %r0, 31;
LOOP:
  setp.eq.u32 %p1, %r2, 0;
  @%p1 bra OUT;
  sub.u32 %r2, %r2, 1;
  add.u32 %r1, %r1, %r2;
  bra LOOP;
OUT:
  shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;
  add.u32 %r1, %r1, %r3;
"""
    lane = np.arange(256) & 31
    own = lane * (lane - 1) // 2
    for seed in range(4):
        found, _ = one(body, "cooperative", seed=seed)
        assert (found == own + own[np.arange(256) ^ 1]).all()


@pytest.mark.parametrize(
    "text,message",
    [
        (HEAD + "nonsense", "line 4: unknown text"),
        (HEAD + ".entry k()\n{\n  bra NOWHERE;\n}", "line 6: no label"),
        (
            HEAD + ".entry k()\n{\n  add.u32 %r1, %r2, 3;\n}",
            "line 6: register '%r1' is not declared",
        ),
        (HEAD + ".entry k()\n{\n  .reg .b99 %r<3>;\n}", "line 6: registers of type .b99"),
        (HEAD + ".entry k()\n{\n  ret;\n", "function without end"),
        (HEAD + ".entry k()\n{\n  add.u32 1.2.3;\n}", "line 6: number '1.2.3'"),
    ],
)
def test_text_that_is_no_ptx(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(text)


def test_unknown_instructions() -> None:
    for line, message in (
        ("frobnicate.u32 %r1, %r0;", "'frobnicate.u32' is not known"),
        ("add.u99 %r1, %r0, %r0;", "'add.u99' is not known"),
        ("prmt.b32 %r1, %r0;", "this form is not known"),
        ("cvt.rs.f16x2.f32 %r1, %f0, %f1, %r0;", "stochastic"),
        ("add.rn.f32.bf16 %f1, %h1, %f1;", "modifier .f32"),
        ("cvt.rn.satfinite.tf32.f32 %f1, %f0;", "modifier .satfinite"),
        ("st.async.shared::cluster.b32 [%r1], %r2, [%r3];", "modifier .async"),
        ("red.async.relaxed.cluster.shared::cluster.add.u32 [%r1], %r2;", "modifier .async"),
        ("fma.rn.oob.f16x2 %r1, %r1, %r1, %r1;", "modifier .oob"),
        ("ld.global.b128 %d1, [%a0];", "128 bits"),
        ("vadd.u32.u32.u32 %r1, %r1, %r1;", "is not known"),
    ):
        with pytest.raises(UserError, match=f"PTX line .*{message}"):
            one("  " + line, "independent")


def test_trap_tells_the_thread() -> None:
    with pytest.raises(SimulationError, match=r"trap.*block \(1, 0, 0\) thread \(9, 0, 0\)"):
        one("  setp.eq.u32 %p1, %r0, 73;\n  @%p1 trap;", "independent")
