"""What is said of a plan's memory adds up, and names what keeps the peak high."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import girih
from girih.hlo.build import Builder, build_module
from girih.hlo.graph import Module, Value
from girih.hlo.types import F32, TensorType
from girih.runtime.timeline import Timeline, memory_need, totals
from girih.specs.generated import plan_pb2

WIDE = TensorType((96, 128), F32)
SEEDS = range(30)


def chain(seed: int, late: bool) -> Module:
    """Products in a row, each of which needs memory; with `late`, one more value is made at the
    start and read at the end alone."""
    chance = random.Random(seed)
    length, rows = chance.randint(5, 9), chance.choice((128, 192, 256))
    start = chance.randint(0, 1)

    def body(b: Builder, x: Value, w: Value) -> list[Value]:
        def product(value: Value) -> Value:
            return b(
                "dot_general", value, w, lhs_contracting_dimensions=(1,),
                rhs_contracting_dimensions=(0,),
            )  # fmt: skip

        value, kept = product(x), None
        for number in range(length):
            if number == start:
                kept = product(b("negate", value))
            value = product(b("tanh", value))
        assert kept is not None
        if not late:
            kept = value  # the same kernels, without the use
        both = b("dot_general", value, kept, lhs_contracting_dimensions=(0,),
                 rhs_contracting_dimensions=(0,))  # fmt: skip
        return [b.reduce("add", both, b.constant(0.0, TensorType((), F32)), (0, 1))]

    return build_module([TensorType((rows, 128), F32), TensorType((128, 128), F32)], body)


def plan_of(module: Module):
    options = girih.Options(disable=("order",), threads=1)  # else the late value is made late
    return girih.compile(module, options=options).plan


@pytest.mark.parametrize("seed", SEEDS)
def test_a_late_use_is_found_and_frees_what_is_said(seed):
    line = Timeline(plan_of(chain(seed, late=True)))
    rows = line.rows()
    assert sum(row.bytes for row in rows) == line.live[line.peak] == max(line.live)
    culprits = [row for row in rows[:3] if row.spared]
    assert len(culprits) == 1
    (culprit,) = culprits
    assert "dot_general" in culprit.reader and culprit.seconds > 0
    without = Timeline(plan_of(chain(seed, late=False)))
    assert abs(culprit.spared - (max(line.live) - max(without.live))) <= 1024  # partial sums
    size, text = next(line.remedies())
    assert size == culprit.spared and culprit.kernel in text


def late_in_place(x, w, n, late):
    """A residual: the sum is written over the value that it reads late."""
    kept, value = through(x, w)
    value = jnp.tanh(value @ w)
    return (jnp.sin(value + kept if late else value) @ w @ w).sum()


def late_in_loop(x, w, n, late):
    """A value that a loop reads in each turn, and that is therefore kept to the loop's end."""
    kept, value = through(x, w)

    def turn(_, carried):
        return jnp.tanh(carried + (jnp.cos(kept * carried).sum(0) if late else carried))

    return jax.lax.fori_loop(0, n, turn, value.sum(0))


def through(x, w):
    """A value, and what six products make of it."""
    kept = value = jnp.tanh(x @ w)
    for _ in range(6):
        value = jnp.tanh(value @ w)
    return kept, value


@pytest.mark.parametrize("function", [late_in_place, late_in_loop])
def test_late_uses_in_place_and_in_loops_are_found(function):
    x, w = np.ones((256, 128), np.float32), np.ones((128, 128), np.float32)
    options = girih.Options(disable=("order",), threads=1)

    def line(late):
        jitted = jax.jit(function, static_argnums=3)
        return Timeline(girih.compile(jitted, x, w, np.int32(5), late, options=options).plan)

    with_use, without = line(True), line(False)
    (culprit,) = [row for row in with_use.rows() if row.spared]
    assert culprit == with_use.rows()[0]
    assert culprit.spared == max(with_use.live) - max(without.live) == x.nbytes
    assert "uses" not in culprit.why


def test_what_the_next_turn_needs_is_not_spared():
    """Read before the peak and after it in each turn: without the later use it is still kept."""
    plan = plan_pb2.Plan(arena_alignment=64)
    for size, first, last in ((640, 0, 4), (1280, 2, 2)):
        plan.buffers.add(place=plan_pb2.ARENA, bytes=size, first_step=first, last_step=last)
    plan.kernels.add(name="kernel")
    for arguments, operands in (((0,), 0), ((0,), 1), ((1,), 0), ((0,), 1)):
        run = plan.steps.add().run
        run.arguments.extend([plan_pb2.Argument(buffer=number) for number in arguments])
        run.operands = operands
    plan.steps.add().jump.target = 1
    assert Timeline(plan).peak == 2 and Timeline(plan).spared(0) == 0
    plan.steps[4].jump.target = 2  # now the earlier use stands before the loop
    assert Timeline(plan).spared(0) == 640


def test_totals_are_those_of_the_program():
    module = chain(0, late=True)
    program = girih.compile(module)
    parts = totals(program.plan, program.memory.workers)
    assert sum(parts.values()) == program.memory.total_bytes
    assert f"{sum(parts.values()) / 1e6:.1f} MB" in memory_need(program.plan, parts)


def test_a_donation_would_help():
    module = build_module([WIDE], lambda b, x: [b("add", x, x)])
    line = Timeline(girih.compile(module).plan)
    assert list(line.remedies()) == [
        (WIDE.bytes, "donate argument 0, f32[96,128]: result 0 can have its memory")
    ]
    assert line.rows() == [] and line.live == [0]


def test_what_a_loop_carries_is_said_to_stay():
    def run(x):
        return jax.lax.fori_loop(0, 20, lambda i, v: v @ v * 0.1 + v, x @ x).sum()

    program = girih.compile(jax.jit(run), np.eye(128, dtype=np.float32))
    line = Timeline(program.plan)
    assert sum(row.bytes for row in line.rows()) == max(line.live) > 0
    assert all(row.why for row in line.rows())
