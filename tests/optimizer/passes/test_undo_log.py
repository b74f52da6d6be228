"""What a call overwrites of state is kept: enough to go back to it, and no more than it writes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import girih
from girih.backends import find
from girih.hlo.errors import UserError
from girih.hlo.interpret import interpret
from girih.hlo.verify import verify
from girih.optimizer.passes.undo_log import SMALL, UndoLog
from girih.optimizer.pipeline import pipeline_for
from girih.runtime.devices.simulated_steps import SimulatedSteps
from girih.runtime.undo import Undo
from girih.states import with_states

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax

OFF = girih.Options(cache="off")
ROWS = 8
STATE = {"k": jnp.zeros((ROWS, 4)), "n": jnp.int32(0)}
X = np.arange(12, dtype=np.float32).reshape(3, 4) + 1


def step(state: Any, x: Any) -> Any:
    k = lax.dynamic_update_slice(state["k"], x, (state["n"], 0))
    return k.sum(0), {"k": k, "n": state["n"] + 3}


def twice(state: Any, x: Any) -> Any:
    """Windows that have rows in common, with two indices each."""
    k = lax.dynamic_update_slice(state["k"], x[:, :3], (state["n"], state["n"]))
    k = lax.dynamic_update_slice(k, x[:2] * 2, (state["n"] + 1, 0))
    return k.sum(0), {"k": k, "n": state["n"] + 1}


def fixed(state: Any, x: Any) -> Any:
    k = lax.dynamic_update_slice(state["k"], x, (4, 0))
    return k.sum(0), {"k": k, "n": state["n"]}


def rows(state: Any, x: Any, at: Any) -> Any:
    """Rows where data says: some twice, some nowhere."""
    return state["n"], {"k": state["k"].at[at].add(x), "n": state["n"] + 1}


def places(state: Any, x: Any, at: Any) -> Any:
    """Single elements, whose places have two indices."""
    return state["n"], {"k": state["k"].at[at, at + 1].set(x[:, 0]), "n": state["n"] + 1}


AT = np.array([1, 30, 1], np.int32)
GIVEN = {
    "step": (step, (X,)), "twice": (twice, (X,)), "fixed": (fixed, (X,)),
    "rows": (rows, (X, AT)), "places": (places, (X, AT)),
}  # fmt: skip
WRITTEN = {"step": 12, "twice": 9 + 8, "fixed": 12, "rows": 12, "places": 3}  # elements of k


@pytest.fixture(scope="module", params=["cpu", "ptx-sim"])
def program(request: Any) -> girih.Program:
    sources = {name: (made, (STATE, *given)) for name, (made, given) in GIVEN.items()}
    return girih.compile(sources, state={"state": "output[1]"}, target=request.param, options=OFF)


def fails(program: girih.Program, number: int, patch: pytest.MonkeyPatch) -> None:
    """The next call of the program is interrupted: on a CPU before all of its work (0), or behind
    it (1); on a GPU before or behind each of its steps."""
    if program.target == "cpu":
        device = program._device

        def run(*arguments: Any) -> Any:
            if number:
                device.run(*arguments)
            raise KeyboardInterrupt

        patch.setattr(program, "_device", device._replace(run=run))
        return
    real, steps = SimulatedSteps.simulate, itertools.count()

    def at_step(*arguments: Any) -> Any:
        at = next(steps)
        if 2 * at == number:
            raise KeyboardInterrupt
        found = real(*arguments)
        if 2 * at + 1 == number:
            raise KeyboardInterrupt
        return found

    patch.setattr(SimulatedSteps, "simulate", at_step)


@pytest.mark.parametrize("entry", GIVEN)
def test_a_call_that_does_not_end_changes_nothing(program, entry, monkeypatch):
    one, (_, given) = program.entry(entry), GIVEN[entry]
    assert one.overwrites_state and one.undoes
    begun = {"state.k": np.random.default_rng(1).random((ROWS, 4), np.float32)}
    failures = 2 if program.target == "cpu" else 2 * len(one.plan.steps)
    for place in (0, 2, 7):  # windows that do not fit end where the state does
        session, whole = program.session(), program.session()
        session.step(X)  # what was kept of an earlier call is of no use
        session.state = whole.state = {**begun, "state.n": np.int32(place)}
        before = session.state
        for number in range(failures):
            with monkeypatch.context() as patch:
                fails(one, number, patch)
                with pytest.raises(KeyboardInterrupt):
                    session.entry(entry)(*given)
            if number % 2 or place:
                assert all(np.array_equal(x, before[n]) for n, x in session.state.items())
        assert np.array_equal(session.entry(entry)(*given), whole.entry(entry)(*given))
        after = whole.state
        assert all(np.array_equal(x, after[n]) for n, x in session.state.items())


@pytest.mark.parametrize("entry", GIVEN)
def test_no_more_is_kept_than_is_written(program, entry):
    plan = program.entry(entry).plan
    kept = {one.rows - 1 for one in plan.undo if one.rows}
    counts = [math.prod(plan.buffers[plan.outputs[n]].dims) for n in kept]
    assert 0 < sum(counts) <= WRITTEN[entry]
    assert {plan.buffers[plan.outputs[n]].element_type for n in kept} == {"f32"}
    results = len(program.entry(entry).signature.results)
    counted = bool(plan.ranges) and program.target == "cpu"
    assert len(plan.outputs) > results and plan.format_version == ("1.8" if counted else "1.7")


def lowered(function: Any, *given: Any) -> tuple[Any, Any]:
    """The program before the pass and after it, verified."""
    module = girih.import_model(jax.jit(function), *given)
    (module,) = with_states({"main": module}, {"state": "output[1]"}).values()
    found: list[tuple[Any, Any]] = []

    def look(name: str, one: Any, before: Any, after: Any) -> None:
        if isinstance(one, UndoLog):
            found.append((before, after))

    pipeline_for(find("cpu", OFF, None), OFF).run(module, check=True, on_module=look)
    ((before, after),) = found
    return before, after


def test_the_program_computes_what_it_did():
    before, after = lowered(twice, STATE, X)
    verify(after)
    assert after.logged == len(after.body.results) - len(before.body.results) > 0
    given = X, np.ones((ROWS, 4), np.float32), np.int32(1)
    pairs = zip(interpret(before, given), interpret(after, given), strict=True)
    assert all(np.array_equal(x, y) for x, y in pairs)


def test_a_large_state_that_is_written_whole_is_not_kept():
    large = {"table": jnp.zeros(SMALL // 4 + 1), "k": STATE["k"], "n": STATE["n"]}

    def both(state: Any, x: Any) -> Any:
        result, kept = step(state, x)
        return result, {**kept, "table": state["table"] * 2}

    before, after = lowered(both, large, X)
    assert after is before
    less = {**large, "table": jnp.zeros(SMALL // 4)}
    before, after = lowered(both, less, X)
    assert after is not before


def test_a_plan_that_contradicts_itself_is_refused(program):
    one = program.entry("step")
    results = len(one.signature.results)

    def refused(words: str, **said: Any) -> None:
        plan = type(one.plan)()
        plan.CopyFrom(one.plan)
        kept = next(n for n, x in enumerate(plan.undo) if x.rows)
        other = type(plan.undo[kept])(**said)
        plan.undo[kept].ClearField("dims") if other.dims else None
        plan.undo[kept].MergeFrom(other)
        with pytest.raises(UserError, match=words):
            Undo(plan, results)

    refused("none of its outputs", rows=100)
    refused("none of its outputs", rows=1)
    refused("lies outside of it", dims=[7])
    refused("none of its arguments", argument=99)
