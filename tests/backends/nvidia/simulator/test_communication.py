"""The memory model between blocks: litmus tests, in right and in wrong forms, and barriers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from girih.backends.nvidia import simulator
from girih.backends.nvidia.simulator import GlobalMemory, Report, SimulationError
from girih.hlo.errors import UserError

RUNS = [("eager", 0), ("lazy", 0), *(("lazy", seed) for seed in range(1, 25))]
HEAD = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 out)
{
  .reg .b32 %r<40>; .reg .b64 %rd<20>; .reg .pred %p<20>;
  .reg .b64 %x; .reg .b64 %y; .reg .b64 %out; .reg .b32 %block; .reg .b32 %thread;
  ld.param.u64 %x, [x];
  ld.param.u64 %out, [out];
  add.u64 %y, %x, 64;
  mov.u32 %thread, %tid.x; mov.u32 %block, %ctaid.x;
"""


def kernel(body: str) -> simulator.Module:
    return simulator.parse(HEAD + body + "\nend: ret;\n}\n")


def run(
    body: str, *, blocks: int = 2, threads: int = 1, mode: str = "lazy", seed: int = 0,
    words: int = 64, start: int = 0, **options: object,
) -> tuple[np.ndarray, Report]:  # fmt: skip
    """`words` words at %x, all `start` at first, and as many zeros at %out; those at %out."""
    memory = GlobalMemory()
    places = [memory.allocate(4 * words) for _ in range(2)]
    memory.write(places[0], np.full(words, start, np.uint32))
    memory.write(places[1], np.zeros(words, np.uint32))
    given = [place.to_bytes(8, "little") for place in places]
    report = simulator.launch(
        kernel(body), "k", (blocks, 1, 1), (threads, 1, 1), given, memory, mode=mode, seed=seed,
        **options,  # type: ignore[arg-type]
    )  # fmt: skip
    return memory.read(places[1], np.uint32, words), report


def sides(*bodies: str) -> str:
    """Block i runs bodies[i]."""
    text = ""
    for number, body in enumerate(bodies):
        text += f"""setp.ne.u32 %p0, %block, {number}; @%p0 bra after{number};
        {body}
        bra.uni end;
        after{number}:
        """
    return text


def outcomes(body: str, **options: object) -> set[tuple[int, ...]]:
    """The first four words of %out in all runs."""
    return {
        tuple(run(body, mode=mode, seed=seed, **options)[0][:4].tolist())  # type: ignore[arg-type]
        for mode, seed in RUNS
    }


def faults(body: str, **options: object) -> list[str]:
    """Kinds of the faults in all runs, "" for none; and the last one's text."""
    kinds = []
    for mode, seed in RUNS:
        try:
            run(body, mode=mode, seed=seed, **options)  # type: ignore[arg-type]
            kinds.append("")
        except SimulationError as error:
            kinds.append(error.fault.kind)
    return kinds


# ---------------------------------------------------------------- message passing


def passing(store: str, load: str) -> str:
    return sides(
        f"st.global.u32 [%x], 42; {store}",
        f"wait: {load} setp.eq.u32 %p1, %r1, 0; @%p1 bra wait; ld.global.u32 %r2, [%x]; "
        "st.global.u32 [%out], %r2;",
    )


RELEASE, ACQUIRE = "st.release.gpu.global.u32 [%y], 1;", "ld.acquire.gpu.global.u32 %r1, [%y];"
RIGHT = {
    "release and acquire": (RELEASE, ACQUIRE),
    "the system's scope": (RELEASE.replace("gpu", "sys"), ACQUIRE),
    "generic addresses": (RELEASE.replace(".global", ""), ACQUIRE.replace(".global", "")),
    "atomics": ("red.release.gpu.global.add.u32 [%y], 1;",
                "atom.acquire.gpu.global.add.u32 %r1, [%y], 0;"),
    "both in one": ("atom.acq_rel.gpu.global.exch.b32 %r1, [%y], 1;",
                    "atom.acq_rel.gpu.global.cas.b32 %r1, [%y], 5, 6;"),
    "fences": ("fence.acq_rel.gpu; st.relaxed.gpu.global.u32 [%y], 1;",
               "ld.relaxed.gpu.global.u32 %r1, [%y]; fence.acq_rel.gpu;"),
    "old spellings": ("membar.gl; st.volatile.global.u32 [%y], 1;",
                      "ld.volatile.global.u32 %r1, [%y]; membar.gl;"),
    "a fence and an acquire": ("fence.sc.gpu; red.relaxed.gpu.global.or.b32 [%y], 1;", ACQUIRE),
}  # fmt: skip
WRONG = {
    "no order": ("st.relaxed.gpu.global.u32 [%y], 1;", "ld.relaxed.gpu.global.u32 %r1, [%y];"),
    "no release": ("st.relaxed.gpu.global.u32 [%y], 1;", ACQUIRE),
    "no acquire": (RELEASE, "ld.relaxed.gpu.global.u32 %r1, [%y];"),
    "relaxed atomics": ("red.relaxed.gpu.global.add.u32 [%y], 1;",
                        "atom.relaxed.gpu.global.add.u32 %r1, [%y], 0; fence.acq_rel.cta;"
                        "ld.relaxed.gpu.global.u32 %r3, [%y];"),
    "a fence behind the store": ("st.relaxed.gpu.global.u32 [%y], 1; fence.acq_rel.gpu;", ACQUIRE),
    "a fence before the load": (RELEASE, "fence.acq_rel.gpu; ld.relaxed.gpu.global.u32 %r1, [%y];"),
    "a fence of one block": ("fence.acq_rel.cta; st.relaxed.gpu.global.u32 [%y], 1;", ACQUIRE),
    "a release for one block": ("st.release.cta.global.u32 [%y], 1;", ACQUIRE),
    "an acquire of one block": (RELEASE, ACQUIRE.replace("gpu", "cta")),
    "a weak flag": ("fence.acq_rel.gpu; st.global.u32 [%y], 1;", ACQUIRE),
    "a weak wait": (RELEASE, "ld.global.u32 %r1, [%y];"),
}  # fmt: skip


@pytest.mark.parametrize("form", RIGHT)
def test_messages_that_arrive(form: str) -> None:
    assert outcomes(passing(*RIGHT[form])) == {(42, 0, 0, 0)}


@pytest.mark.parametrize("form", WRONG)
def test_messages_that_nothing_orders(form: str) -> None:
    assert set(faults(passing(*WRONG[form]))) == {"race"}


def test_a_race_names_both_places() -> None:
    with pytest.raises(SimulationError) as error:
        run(passing(*WRONG["no release"]))
    text = str(error.value)
    assert "loads byte 0 of the allocation" in text and "no release and acquire order" in text
    assert "block (0, 0, 0) thread (0, 0, 0) stores at PTX line" in text
    assert "block (1, 0, 0) thread (0, 0, 0)\n" in text
    assert "st.global.u32 [%x], 42" in text and "ld.global.u32 %r2, [%x]" in text


def test_a_flag_is_handed_on_by_a_third_block() -> None:
    middle = f"wait: {ACQUIRE} setp.eq.u32 %p1, %r1, 0; @%p1 bra wait; "
    last = """last: ld.acquire.gpu.global.u32 %r1, [%y+4]; setp.eq.u32 %p1, %r1, 0;
      @%p1 bra last; ld.global.u32 %r2, [%x]; st.global.u32 [%out], %r2;"""
    first = f"st.global.u32 [%x], 42; {RELEASE}"
    body = sides(first, middle + "st.release.gpu.global.u32 [%y+4], 1;", last)
    assert outcomes(body, blocks=3) == {(42, 0, 0, 0)}
    body = sides(first, middle + "st.relaxed.gpu.global.u32 [%y+4], 1;", last)
    assert set(faults(body, blocks=3)) == {"race"}


def test_atomics_carry_on_what_others_have_released() -> None:
    first = f"st.global.u32 [%x], 42; {RELEASE}"
    middle = """mid: atom.relaxed.gpu.global.cas.b32 %r1, [%y], 1, 2; setp.ne.u32 %p1, %r1, 1;
      @%p1 bra mid;"""
    last = """last: ld.acquire.gpu.global.u32 %r1, [%y]; setp.ne.u32 %p1, %r1, 2; @%p1 bra last;
      ld.global.u32 %r2, [%x]; st.global.u32 [%out], %r2;"""
    assert outcomes(sides(first, middle, last), blocks=3) == {(42, 0, 0, 0)}


# ---------------------------------------------------------------- more litmus tests


def buffering(fence: str) -> str:
    return sides(*(
        f"""st.relaxed.gpu.global.u32 [{mine}], 1; {fence}
        ld.relaxed.gpu.global.u32 %r1, [{other}]; st.global.u32 [%out+{4 * number}], %r1;"""
        for number, (mine, other) in enumerate((("%x", "%y"), ("%y", "%x")))
    ))  # fmt: skip


def test_stores_that_are_buffered() -> None:
    right = {(0, 1, 0, 0), (1, 0, 0, 0), (1, 1, 0, 0)}
    for fence in ("fence.sc.gpu;", "membar.gl;"):
        assert outcomes(buffering(fence)) <= right
    for fence in ("", "fence.acq_rel.gpu;", "fence.sc.cta;"):
        assert (0, 0, 0, 0) in outcomes(buffering(fence))


def test_loads_before_stores() -> None:
    """A load of one block must not read what the other has stored after it."""
    second = "ld.{0}.gpu.global.u32 %r1, [%y]; setp.eq.u32 %p1, %r1, 0; @%p1 bra end; "
    body = "ld.global.u32 %r1, [%x]; st.global.u32 [%out], %r1; st.{1}.gpu.global.u32 [%y], 1;"
    body = sides(body, second + "st.global.u32 [%x], 7;")
    assert outcomes(body.replace("{0}", "acquire").replace("{1}", "release")) == {(0, 0, 0, 0)}
    for one, other in (("relaxed", "release"), ("acquire", "relaxed"), ("relaxed", "relaxed")):
        assert "race" in faults(body.replace("{0}", one).replace("{1}", other))


def readers(fence: str, order: str = "acquire") -> str:
    """Two blocks store, two read both in opposite orders."""
    stores = [f"st.relaxed.gpu.global.u32 [{place}], 1;" for place in ("%x", "%y")]
    loads = [
        f"""ld.{order}.gpu.global.u32 %r1, [{first}]; {fence}
        ld.{order}.gpu.global.u32 %r2, [{second}];
        st.global.u32 [%out+{8 * number}], %r1; st.global.u32 [%out+{8 * number + 4}], %r2;"""
        for number, (first, second) in enumerate((("%x", "%y"), ("%y", "%x")))
    ]
    return sides(*stores, *loads)


def test_two_readers_need_not_agree_on_the_order_of_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "RUNS", [("lazy", seed) for seed in range(1, 200)])
    assert (1, 0, 1, 0) in outcomes(readers(""), blocks=4)
    assert (1, 0, 1, 0) not in outcomes(readers("fence.sc.gpu;", "relaxed"), blocks=4)


def test_loads_of_one_place_are_coherent() -> None:
    body = sides(
        "st.relaxed.gpu.global.u32 [%x], 1; st.relaxed.gpu.global.u32 [%x], 2;",
        """ld.relaxed.gpu.global.u32 %r1, [%x]; ld.relaxed.gpu.global.u32 %r2, [%x];
        st.global.u32 [%out], %r1; st.global.u32 [%out+4], %r2;""",
    )
    found = outcomes(body)
    assert len(found) >= 4 and all(first <= second for first, second, *_ in found)


def test_stores_of_two_blocks_race() -> None:
    same = "fence.acq_rel.gpu; st.global.u32 [%x], {0};"
    for value in ("7", "%block"):
        assert set(faults(same.replace("{0}", value))) == {"race"}
    atomic = "atom.relaxed.gpu.global.add.u32 %r1, [%x], 1; ld.relaxed.gpu.global.u32 %r1, [%x];"
    assert set(faults(atomic)) == {""}
    assert set(faults(sides(atomic, "ld.global.u32 %r1, [%x];"))) == {"race"}


def test_loads_through_nc() -> None:
    """Such memory nobody may store to during the launch, whatever the order."""
    body = passing(RELEASE, ACQUIRE).replace("ld.global.u32 %r2", "ld.global.nc.u32 %r2")
    with pytest.raises(SimulationError, match=r"loads through \.nc byte 0"):
        run(body)


# ---------------------------------------------------------------- grid barriers

BARRIER = """
  bar.sync 0;
  setp.ne.u32 %p3, %thread, 0; @%p3 bra passed{0};
  mov.u32 %r20, %nctaid.x;
  atom.add.release.gpu.global.u32 %r21, [%y], 1;
  sub.u32 %r22, %r21, %base; div.u32 %r22, %r22, %r20; add.u32 %r22, %r22, 1;
  mul.lo.u32 %r22, %r22, %r20;
spin{0}:
  ld.acquire.gpu.global.u32 %r23, [%y];
  sub.u32 %r23, %r23, %base; sub.u32 %r23, %r23, %r22;
  setp.lt.s32 %p4, %r23, 0; @%p4 bra spin{0};
passed{0}:
  bar.sync 0;
"""
STEP = """
  mul.wide.u32 %rd3, {from}, 4; add.u64 %rd4, %out, %rd3; {load} %r12, [%rd4];
  add.u32 %r12, %r12, 1;
"""


def turns(change: Callable[[str], str] = lambda text: text, base: int = 0) -> str:
    """Three turns: each block reads what its neighbour has written, then writes its own: word t of
    block b is number b * threads + t."""
    body = f"""
  .reg .b32 %base; mov.u32 %base, {base};
  mov.u32 %r1, %nctaid.x; mov.u32 %r2, %ntid.x;
  add.u32 %r3, %block, 1; rem.u32 %r3, %r3, %r1;
  xor.b32 %r4, %thread, 1;
  mad.lo.u32 %r5, %r3, %r2, %r4; mad.lo.u32 %r6, %block, %r2, %thread;
  mul.wide.u32 %rd1, %r5, 4; add.u64 %rd1, %out, %rd1;
  mul.wide.u32 %rd2, %r6, 4; add.u64 %rd2, %out, %rd2;
  """
    for turn in range(3):
        body += f"""
  ld.global.u32 %r10, [%rd1]; add.u32 %r10, %r10, {turn + 1};
  {BARRIER.replace("{0}", f"{2 * turn}")}
  st.global.u32 [%rd2], %r10;
  {BARRIER.replace("{0}", f"{2 * turn + 1}")}
  """
    return change(body)


@pytest.mark.parametrize("threads", [2, 64])
def test_a_grid_barrier(threads: int) -> None:
    for mode, seed in RUNS[:: 1 if threads == 2 else 6]:
        found, _ = run(turns(), blocks=4, threads=threads, mode=mode, seed=seed,
                       words=4 * threads + 32, cooperative=True)  # fmt: skip
        assert (found[: 4 * threads] == 6).all()


def test_a_grid_barrier_whose_counter_wraps() -> None:
    """Six epochs of 4 blocks, from 2**32 - 8 on."""
    found, _ = run(turns(base=2**32 - 8), blocks=4, threads=2, start=2**32 - 8, seed=3)
    assert (found[:8] == 6).all()


BROKEN = {
    "a weak arrival": lambda text: text.replace("atom.add.release.gpu", "atom.add.relaxed.gpu"),
    "a weak wait": lambda text: text.replace("ld.acquire.gpu", "ld.relaxed.gpu"),
    "an arrival for one block": lambda text: text.replace("add.release.gpu", "add.release.cta"),
    "a barrier less": lambda text: text.replace(BARRIER.replace("{0}", "3"), ""),
    "a barrier less before stores": lambda text: text.replace(BARRIER.replace("{0}", "2"), ""),
    "no barrier of the block before": lambda text: text.replace(
        "bar.sync 0;\n  setp.ne.u32 %p3", "setp.ne.u32 %p3"
    ),
    "no barrier of the block behind": lambda text: text.replace(
        "passed4:\n  bar.sync 0;", "passed4:"
    ).replace("passed3:\n  bar.sync 0;", "passed3:"),
    "one block too few": lambda text: text.replace(
        "mov.u32 %r20, %nctaid.x;", "mov.u32 %r20, %nctaid.x; sub.u32 %r20, %r20, 1;"
    ),
}


@pytest.mark.parametrize("form", BROKEN)
def test_broken_grid_barriers_are_found(form: str) -> None:
    text = BROKEN[form](turns())
    assert text != turns()
    kinds = faults(text, blocks=4, threads=64, words=512)
    assert "race" in kinds, kinds


# ---------------------------------------------------------------- what never ends


def test_a_signal_that_is_lost() -> None:
    with pytest.raises(SimulationError) as error:
        run(sides("st.release.gpu.global.u32 [%y+4], 1;", f"wait: {ACQUIRE} setp.eq.u32 %p1, %r1, "
                  "0; @%p1 bra wait;"))  # fmt: skip
    text = str(error.value)
    assert error.value.fault.kind == "deadlock"
    assert "block (1, 0, 0) warp 0 waits for a store to byte 64 of the allocation" in text
    assert "which holds 0, stored before the launch, at PTX line" in text


def test_a_block_that_does_not_reach_the_barrier() -> None:
    body = "setp.eq.u32 %p9, %block, 2; @%p9 bra end;" + turns()
    with pytest.raises(SimulationError, match="barrier 0 of its block") as error:
        run(body, blocks=4, threads=64, words=512)
    assert error.value.fault.kind == "deadlock" and "stored at PTX line" in str(error.value)


@pytest.mark.parametrize("seed", [0, 5])
def test_too_few_residents(seed: int) -> None:
    with pytest.raises(SimulationError) as error:
        run(turns(), blocks=4, threads=2, resident=3, seed=seed)
    assert error.value.fault.kind == "deadlock"
    assert "1 blocks of the grid have not started: 3 have" in str(error.value)


def test_residents_make_room_for_others() -> None:
    """Every block waits for the one before it, which was resident before."""
    body = """
    setp.eq.u32 %p1, %block, 0; @%p1 bra go;
    mul.wide.u32 %rd1, %block, 4; add.u64 %rd1, %x, %rd1;
    wait: ld.acquire.gpu.global.u32 %r1, [%rd1]; setp.eq.u32 %p1, %r1, 0; @%p1 bra wait;
    go: ld.global.u32 %r2, [%out]; add.u32 %r2, %r2, 1; st.global.u32 [%out], %r2;
    mul.wide.u32 %rd1, %block, 4; add.u64 %rd1, %x, %rd1;
    st.release.gpu.global.u32 [%rd1+4], 1;"""
    found, _ = run(body, blocks=9, resident=2)
    assert found[0] == 9


def test_cooperative_launches() -> None:
    run(turns(), blocks=4, threads=2, resident=4, cooperative=True)
    with pytest.raises(UserError, match="4 blocks as a cooperative launch: the device holds 3"):
        run(turns(), blocks=4, threads=2, resident=3, cooperative=True)
    with pytest.raises(UserError, match=r"holds 216 of them"):
        run(turns(), blocks=217, threads=1024, cooperative=True)
    # What the launch says, not the program, makes its blocks run together.
    plain = "st.global.u32 [%x], 7; setp.eq.u32 %p1, %block, 0; @%p1 ld.global.u32 %r1, [%x];"
    assert set(faults(plain, cooperative=True)) == {"race"}
