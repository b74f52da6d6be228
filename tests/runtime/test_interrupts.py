"""Ctrl-C wherever Python looks for it in a call: a session has the state of before, or, where large
state is written whole, says that it has not, and goes on once it has a state again; nothing stays
locked."""

from __future__ import annotations

import dis
import functools
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.errors import UserError
from girih.runtime.devices import workers

torch = pytest.importorskip("torch")

RUNTIME = str(Path(workers.__file__).parents[1])
LOOKS = ("CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME")
"""Instructions after which the interpreter asks whether a signal has come."""
OFF = girih.Options(cache="off", threads=2)


class Interrupt:
    """Inside, the code of girih.runtime is interrupted at the place of that number, of those where
    it can be."""

    def __init__(self, number: int) -> None:
        self.left, self.looks = number, functools.cache(self._looks)

    def __enter__(self) -> None:
        self.before = sys.gettrace()
        sys.settrace(self._called)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    @staticmethod
    def _looks(code: CodeType) -> frozenset[int]:
        return frozenset(one.offset for one in dis.get_instructions(code) if one.opname in LOOKS)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(RUNTIME):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        looks, looked = self.looks(frame.f_code), False

        def each(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal looked
            if event == "opcode":
                if looked and self.left == 0:
                    raise KeyboardInterrupt
                self.left -= looked
                looked = frame.f_lasti in looks
            return each

        return each


def interrupted(number: int, call: Callable[[], Any]) -> bool:
    """Whether the call has a place of that number, where it was interrupted."""
    try:
        with Interrupt(number):
            call()
    except KeyboardInterrupt:
        return True
    return False


class Cache(torch.nn.Module):
    """Writes rows of a buffer, which the plan does in place."""

    cache: Any

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(256, width))
        self.w = torch.nn.Parameter(torch.eye(width))

    def forward(self, x: Any, place: Any) -> Any:
        self.cache.index_copy_(0, place, x)
        return (self.cache @ self.w).sum(0)


class Power(torch.nn.Module):
    """Makes a buffer anew: a product is not computed over its factor."""

    power: Any

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("power", torch.eye(4))

    def forward(self, x: Any, place: Any) -> Any:
        self.power.copy_(self.power @ x)
        return self.power.sum(0)


class Scaled(torch.nn.Module):
    """Writes a large buffer whole, where it lies."""

    table: Any

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(256, 128))

    def forward(self, x: Any, place: Any) -> Any:
        self.table.mul_(x)
        return self.table.sum(0)


def rows(count: int, width: int) -> tuple[Any, Any]:
    return np.ones((count, width), np.float32), np.arange(count)


@functools.cache
def program(kind: str) -> tuple[girih.Program, Callable[[int], tuple[Any, Any]]]:
    """A program with state, and inputs for the call of a number."""
    if kind == "new memory":
        given = 2 * np.eye(4, dtype=np.float32), np.arange(1)
        return girih.compile(Power(), *map(torch.from_numpy, given), options=OFF), lambda _: given
    if kind == "whole":
        given = np.full((1,), 2, np.float32), np.arange(1)
        return girih.compile(Scaled(), *map(torch.from_numpy, given), options=OFF), lambda _: given
    width = 512 if kind == "several workers" else 64
    model, given = Cache(width), rows(3, width)
    if kind != "open sizes":
        made = girih.compile(model, *map(torch.from_numpy, given), options=OFF)
        return made, lambda _: given
    count = torch.export.Dim("count", min=1, max=200)
    dims = {0: count}
    exported = torch.export.export(
        model, tuple(map(torch.from_numpy, given)), dynamic_shapes=(dims, dims)
    )
    return girih.compile(exported, options=OFF), lambda number: rows(1 + number % 200, width)


def same(session: Any, value: Any) -> bool:
    """Whether the session's one state is that."""
    (state,) = session.state.values()
    return np.array_equal(state, value)


KINDS = ("in place", "new memory", "several workers", "open sizes", "whole")


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_leaves_the_state_of_before_or_says_that_it_did_not(kind: str, tmp_path: Path):
    made, inputs = program(kind)
    initial = made.session().state
    made.session().save(tmp_path / "state")
    (before,) = initial.values()
    found = list[str]()
    whole_calls = 0  # in a row: calls of other sizes have other numbers of places
    for number in itertools.count():
        session, whole = made.session(), made.session()
        if not interrupted(number, functools.partial(session, *inputs(number))):
            whole_calls += 1
            if kind != "open sizes" or whole_calls == 12:
                break
            continue
        whole_calls = 0
        wanted = whole(*inputs(number))
        (after,) = whole.state.values()
        try:
            (state,) = session.state.values()
            found.append("before" if np.array_equal(state, before) else "after")
            assert np.array_equal(state, before if found[-1] == "before" else after)
        except UserError as error:
            assert "interrupted while it overwrote the state; reset()" in str(error)
            found.append("says")
        if found[-1] != "before":
            if number % 3 == 0:
                session.reset()
            elif number % 3 == 1:
                session.load(tmp_path / "state")
            else:
                session.state = initial
        assert np.array_equal(session(*inputs(number)), wanted)
        assert same(session, after)
    assert not any(pool.lock.locked() for pool in workers._pools.values())
    assert ("says" in found) == (kind == "whole")
    assert {"before", "after"} <= set(found)
    if kind != "open sizes":  # whose calls are not alike
        # Only what comes when all is done finds the state of afterwards.
        order = ["before", "says", "after"]
        assert found == sorted(found, key=order.index) and found.count("after") < 8


@pytest.mark.parametrize("kind", ["in place", "new memory"])
def test_a_state_is_taken_whole_or_not_at_all(kind: str, tmp_path: Path):
    made, inputs = program(kind)
    session = made.session()
    initial = session.state
    session.save(tmp_path / "state")
    session(*inputs(0))
    other = session.state
    ways: list[Callable[[], Any]] = [
        session.reset, lambda: session.load(tmp_path / "state"),
        lambda: setattr(session, "state", initial), session.fork, lambda: session.state,
    ]  # fmt: skip
    for way in ways:
        for number in itertools.count():
            if not interrupted(number, way):
                break
            assert any(same(session, *one.values()) for one in (initial, other))
            session.state = other


def test_what_a_call_finds_wrong_when_it_has_written_is_said():
    class Checked(Cache):
        def forward(self, x: Any, place: Any) -> Any:
            torch.ops.aten._assert_async.msg((x > 0).all(), "rows are positive")
            return super().forward(x, place)

    x, place = rows(3, 64)
    made = girih.compile(Checked(64), torch.from_numpy(x), torch.from_numpy(place), options=OFF)
    session = made.session()
    wanted = session(x, place)
    with pytest.raises(UserError, match="rows are positive"):
        session(-x, place)
    (state,) = session.state.values()
    assert state[:3].tolist() == x.tolist()
    assert np.array_equal(session(x, place), wanted)


def test_a_prepared_call_can_be_made_again():
    made = girih.compile(
        "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
        "  %0 = stablehlo.add %x, %x : tensor<4xf32>\n  return %0 : tensor<4xf32>\n}",
        options=OFF,
    )
    x = np.arange(4, dtype=np.float32)
    call = made.prepare(x)
    for number in itertools.count():
        if not interrupted(number, call):
            break
        assert np.array_equal(call()[0], 2 * x)
