"""Programs give the same bits where all memory that nobody should read holds NaN, and touch nothing
between buffers."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

import girih
from girih.specs.generated import plan_pb2

from ..differential import products, programs  # noqa: F401 - fill CASES
from ..differential.catalogue import CASES
from .poisoned import DEAD, run

WHOLE = {programs.__name__, products.__name__}
CHOSEN = [
    entry
    for entry in CASES.values()
    if entry.function.__module__ in WHOLE and not entry.wide and not entry.long
][:40]


@functools.lru_cache(maxsize=1)  # both tests of an entry follow each other
def compiled(name: str) -> tuple[girih.Program, list[np.ndarray], list[Any]]:
    """A case's program, its inputs and results."""
    entry = CASES[name]
    program = girih.compile(jax.jit(entry.function), *entry.inputs)
    inputs = [np.asarray(leaf) for leaf in jax.tree.leaves(entry.inputs)]
    return program, inputs, program.call_flat(inputs)


@pytest.mark.parametrize("apart", [False, True], ids=["as planned", "red zones"])
@pytest.mark.parametrize("entry", CHOSEN, ids=lambda entry: entry.name)
def test_the_same_bits(entry, apart):
    program, inputs, expected = compiled(entry.name)
    for result, wanted in zip(run(program, inputs, apart), expected, strict=True):
        assert result.tobytes() == np.asarray(wanted).tobytes()


def test_there_are_enough():
    assert len(CHOSEN) >= 20


def late_reader():
    """A program whose plan is told that a value is dead before its last reader."""
    import jax.numpy as jnp

    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    program = girih.compile(jax.jit(lambda x: (x @ x) @ jnp.tanh(x @ (x @ x))), x)
    arena = [b for b in program.plan.buffers if b.place == plan_pb2.ARENA]
    max(arena, key=lambda b: b.last_step - b.first_step).last_step -= 1
    return program, x


def test_a_life_that_is_too_short_is_seen():
    program, x = late_reader()
    (expected,) = program.call_flat([x])
    (result,) = run(program, [x], apart=False)
    assert result.tobytes() != np.asarray(expected).tobytes()
    assert DEAD == 0xFF and np.isnan(result).any()


def stacked(start, rows, weight):
    """Rows of stacks are written by products and loops, and read where they lie."""
    import jax.numpy as jnp

    def turn(state, row):
        state = jnp.tanh(state @ weight + row)
        return state, (state, (state * row).sum(-1), row * 2)

    return jax.lax.scan(turn, start, rows, reverse=True)


@pytest.mark.parametrize("apart", [False, True], ids=["as planned", "red zones"])
def test_kernels_that_write_rows_of_stacks(apart):
    draw = np.random.default_rng(0).standard_normal
    inputs = [draw(dims).astype(np.float32) / 8 for dims in ((24, 48), (12, 24, 48), (48, 48))]
    program = girih.compile(jax.jit(stacked), *inputs)
    assert any("dynamic_update_slice" in kernel.ops[1:] for kernel in program.plan.kernels)
    expected = program.call_flat(inputs)
    for result, wanted in zip(run(program, inputs, apart), expected, strict=True):
        assert result.tobytes() == np.asarray(wanted).tobytes()
