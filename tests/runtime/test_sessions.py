"""Sessions of several entry points: threads, forks, files, failures, and what a step writes."""

from __future__ import annotations

import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.errors import UserError
from girih.runtime import tensors

pytest.importorskip("torch")

from ..generating import llama_program, prompt, small_llama, sources, token  # noqa: E402

OFF = girih.Options(cache="off")


def answer(session: Any, seed: int, new: int = 6) -> list[Any]:
    found = [session.prefill(*prompt(seed))]
    for _ in range(new):
        found.append(session.decode(token(int(found[-1].argmax()))))
    return found


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_sixty_four_sessions_in_eight_threads_give_what_each_gives_alone():
    program = llama_program()
    alone = [answer(program.session(), seed) for seed in range(64)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda seed: answer(program.session(), seed), range(64)))
    assert all(map(same, alone, together))


@pytest.mark.parametrize("target", ["cpu", "ptx-sim"])
def test_a_fork_goes_its_own_way(target):
    session = llama_program(target).session()
    session.prefill(*prompt(1))
    other, before = session.fork(), session.state
    first = session.decode(token(5))
    assert not same([first], [other.decode(token(6))])
    again = llama_program(target).session()
    again.state = before
    assert same([first], [again.decode(token(5))])
    assert other.memory == session.memory == sum(x.nbytes for x in before.values())


@pytest.mark.parametrize("target", ["cpu", "ptx-sim"])
def test_what_a_file_keeps_goes_on_with_the_same_bits(target, tmp_path):
    program = llama_program(target)
    session = program.session()
    session.prefill(*prompt(2))
    session.save(tmp_path / "state")
    wanted = session.decode(token(3))
    later = program.session()
    later.load(tmp_path / "state")
    assert same([wanted], [later.decode(token(3))])
    later.save(tmp_path / "other")
    later.load(tmp_path / "state")
    later.decode(token(3))
    later.save(tmp_path / "again")
    assert (tmp_path / "other").read_bytes() == (tmp_path / "again").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "other", "state"]


def test_a_file_belongs_to_a_bundle_not_to_its_code(tmp_path):
    program = girih.compile(sources(small_llama()), target=["cpu", "ptx-sim"], options=OFF)
    program.save(tmp_path / "x.girih")
    session = program.session()
    session.prefill(*prompt(2))
    session.save(tmp_path / "state")
    wanted = session.decode(token(3))
    for simulate in (False, True):
        loaded = girih.load(
            tmp_path / "x.girih", target=None if simulate else "cpu", simulate=simulate
        ).session()
        loaded.load(tmp_path / "state")
        np.testing.assert_allclose(loaded.decode(token(3)), wanted, atol=1e-5)


def rewritten(data: bytes, **notes: str) -> bytes:
    """The file with other metadata."""
    arrays, old = tensors.decode(data)
    new = {**old, **{f"girih.{key}": value for key, value in notes.items()}}
    return b"".join(bytes(part) for part in tensors.encode(arrays, new)[1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:-100], "cut off or damaged"),
        (lambda data: data[: len(data) // 2], "cut off or damaged"),
        (lambda data: data[:100], "no state that a session has saved|cut off"),
        (lambda data: b"", "no state that a session has saved"),
        (lambda data: b"PK\x03\x04 and more", "no state that a session has saved"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "damaged or was altered"),
        (lambda data: rewritten(data, byte_order="big"), "the other byte order"),
        (lambda data: rewritten(data, bundle="00"), "the state of another bundle"),
        (lambda data: rewritten(data, state="2"), "format 2; install a newer girih"),
        (lambda data: rewritten(data, sha256="00"), "damaged or was altered"),
        (
            lambda data: b"".join(map(bytes, tensors.encode({"w": np.ones(3)})[1])),
            "no state of a session, but weights",
        ),
    ],
)
def test_a_file_that_is_none_changes_nothing(tmp_path, change, words):
    session = llama_program().session()
    session.prefill(*prompt(2))
    session.save(tmp_path / "state")
    before = session.state
    (tmp_path / "bad").write_bytes(change((tmp_path / "state").read_bytes()))
    with pytest.raises(UserError, match=words) as caught:
        session.load(tmp_path / "bad")
    assert "\n" not in str(caught.value)
    assert same(before.values(), session.state.values())


def test_a_file_that_is_not_there_or_cannot_be(tmp_path):
    session = llama_program().session()
    with pytest.raises(UserError, match="cannot be read: No such file"):
        session.load(tmp_path / "nothing")
    with pytest.raises(UserError, match="cannot write"):
        session.save(tmp_path / "no folder" / "state")
    assert not list(tmp_path.iterdir())


def test_another_bundle_is_refused(tmp_path):
    session = llama_program().session()
    session.save(tmp_path / "state")
    other = girih.compile(sources(small_llama(hidden=96)), options=OFF).session()
    with pytest.raises(UserError, match="the state of another bundle"):
        other.load(tmp_path / "state")


# Failures.


@pytest.mark.parametrize("target", ["cpu", "ptx-sim"])
def test_a_call_that_is_refused_changes_nothing(target):
    session = llama_program(target).session()
    session.prefill(*prompt(1))
    before = session.state
    for wrong in (np.zeros((1, 2), np.int64), np.zeros((1, 1), np.float32), "token"):
        with pytest.raises(UserError, match="token: expected"):
            session.decode(wrong)
    with pytest.raises(UserError):
        session.decode()
    assert same(before.values(), session.state.values())


def test_a_call_without_memory_changes_nothing(monkeypatch):
    program = llama_program()
    session = program.session()
    session.prefill(*prompt(1))
    before = session.state
    decode = program.entry("decode")

    def none_left(*_: Any) -> Any:
        raise MemoryError

    for where in ("_take_context", "bind_state"):
        with monkeypatch.context() as patch:
            patch.setattr(decode, where, none_left)
            with pytest.raises(MemoryError):
                session.decode(token(3))
        assert same(before.values(), session.state.values())


def test_a_device_that_fails_between_steps_leaves_the_state_of_before(monkeypatch):
    """Every step of a decode fails once, before its kernel runs and behind it: the session goes on
    as if the call had not been."""
    from girih.runtime.devices.simulated_steps import SimulatedSteps

    program = llama_program("ptx-sim")
    session = program.session()
    session.prefill(*prompt(1))
    before = session.state
    wanted = program.session()
    wanted.state = before
    logits = wanted.decode(token(3))
    steps = len(program.entry("decode").plan.steps)
    simulate = SimulatedSteps.simulate
    for failing in range(2 * steps):
        begun = itertools.count()

        def fails(*arguments: Any, failing: int = failing, begun: Any = begun) -> Any:
            at = next(begun)
            if 2 * at == failing:
                raise KeyboardInterrupt
            found = simulate(*arguments)
            if 2 * at + 1 == failing:
                raise KeyboardInterrupt
            return found

        with monkeypatch.context() as patch:
            patch.setattr(SimulatedSteps, "simulate", fails)
            with pytest.raises(KeyboardInterrupt):
                session.decode(token(3))
        if failing % 3:
            assert same(before.values(), session.state.values())
        assert same([logits], [session.decode(token(3))])
        session.state = before
    assert steps > 10


def test_a_failing_session_is_no_other_sessions_matter(monkeypatch):
    program = llama_program()
    one, other = program.session(), program.session()
    for session in (one, other):
        session.prefill(*prompt(1))
    decode = program.entry("decode")
    device = decode._device

    def run(*arguments: Any) -> Any:
        device.run(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(decode, "_device", device._replace(run=run))
        with pytest.raises(KeyboardInterrupt):
            one.decode(token(3))
    fresh = program.session()
    fresh.prefill(*prompt(1))
    wanted = fresh.decode(token(3))
    assert same([wanted, wanted], [one.decode(token(3)), other.decode(token(3))])


# What a step moves.


def test_a_step_moves_no_cache(tmp_path):
    """The plan writes rows of the cache where it lies: no step copies it."""
    program = llama_program()
    cache = 4 * 2 * 32 * 8
    for name, rows in (("prefill", 8), ("decode", 1)):
        plan = program.entry(name).plan
        updates = 0
        for step in plan.steps:
            run = step.run
            written = [plan.buffers[a.buffer] for a in run.arguments[run.operands :]]
            caches = [b for b in written if b.HasField("replaces") and b.bytes == cache]
            if caches:
                updates += 1
                kind = plan.kernels[run.kernel].kind
                assert kind == "opaque" and run.bytes <= 3 * rows * cache / 32 + 64 * rows
        assert updates == 4
        assert program.entry(name).overwrites_state


def test_a_step_writes_its_rows_alone_in_the_simulator():
    program = llama_program("ptx-sim")
    profile = program.entry("decode").profile(token(3))
    cache = 4 * 2 * 32 * 8
    counted = [k.counters for k in profile.kernels() if "update_slice" in k.kernel]
    assert counted
    session = program.session()
    session.prefill(*prompt(1))
    before = {name: x for name, x in session._buffers.items() if x.nbytes == cache}
    session.decode(token(3))
    after = session._buffers
    assert all(after[name].address == x.address for name, x in before.items())


PROTECTED = """
import ctypes, mmap, sys
import numpy as np
import girih
from girih.tests.generating import prompt, small_llama, sources, token

options = girih.Options(cache="off")
program = girih.compile(sources(small_llama(capacity=256, width=128)), options=options)
session = program.session()
session.prefill(*prompt(1))
protect = ctypes.CDLL(None).mprotect
kept = []
for name, old in list(session._buffers.items()):
    if not name.endswith(("keys", "values")):
        continue
    heads, rows, head = old.shape[1:]
    pages = mmap.mmap(-1, old.nbytes)
    array = np.frombuffer(pages, old.dtype).reshape(old.shape)
    array[...] = old
    session._buffers[name] = array
    kept.append((pages, array))
    start = array.ctypes.data
    for first in range(0, old.nbytes, mmap.PAGESIZE):
        # The row that is written is the sixth of each head.
        written = [(h * rows + 5) * head * 4 for h in range(heads)]
        if not any(first <= at < first + mmap.PAGESIZE for at in written):
            assert protect(ctypes.c_void_p(start + first), mmap.PAGESIZE, mmap.PROT_READ) == 0
session.decode(token(3))
print("wrote", len(kept))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="pages are protected by POSIX's mprotect")
def test_a_step_writes_no_other_page_of_the_cache():
    """A write elsewhere would end the process: pages without the new rows are read-only."""
    found = subprocess.run(
        [sys.executable, "-c", PROTECTED], capture_output=True, text=True, check=False
    )
    assert found.stdout.strip() == "wrote 4", found.stderr
