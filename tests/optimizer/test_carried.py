"""Carried values of loops: what starts, replaces and copies them, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import girih
from girih.hlo.build import build_module, build_region
from girih.hlo.types import F32, I1, I32, TensorType
from girih.optimizer.carried import known_turns, turns
from girih.optimizer.overwriting import hinders_of
from girih.optimizer.passes.fuse import Fuse
from girih.optimizer.passes.order import Order
from girih.optimizer.schedule import CopyStep, JumpStep, RunStep, schedule

COUNT, FLAG = TensorType((), I32), TensorType((), I1)
LINE, STACK = TensorType((2048,), F32), TensorType((8, 2048), F32)


def steps_of(module: Any) -> Any:
    return schedule(Order()(Fuse()(module)))


def copies_in_loops(plan: Any) -> list[CopyStep]:
    inside = set()
    for number, step in enumerate(plan.steps):
        if isinstance(step, JumpStep) and step.back:
            inside.update(range(plan.labels[step.target], number))
    copies = [plan.steps[n] for n in sorted(inside) if isinstance(plan.steps[n], CopyStep)]
    return [step for step in copies if step.target.bytes >= 1024]


def check(module: Any, *inputs: Any) -> Any:
    program = girih.compile(module, options=girih.Options(disable=("loops",)))
    expected = girih.interpret(module, list(inputs))
    for _ in range(2):
        for left, right in zip(program(*inputs), expected, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)
    return program


def line() -> Any:
    return np.linspace(-1, 1, 2048, dtype=np.float32)


def counted(b: Any, start: Any, body: Any, limit: int = 4) -> Any:
    """A loop of `limit` turns; its carried values after the counter."""
    kinds = [COUNT, *(value.type for value in start)]

    def condition(b: Any, i: Any, *rest: Any) -> Any:
        return [b.compare("LT", i, b.constant(limit, COUNT))]

    def step(b: Any, i: Any, *rest: Any) -> Any:
        return [b("add", i, b.constant(1, COUNT)), *body(b, i, *rest)]

    regions = (build_region(kinds, condition), build_region(kinds, step))
    return b.op("while", [b.constant(0, COUNT), *start], {}, regions, kinds).results[1:]


def put(b: Any, stack: Any, row: Any, i: Any) -> Any:
    return b("dynamic_update_slice", stack, b.reshape(row, (1, 2048)), i, b.constant(0, COUNT))


def test_what_starts_with_one_splat_is_filled_where_it_is_carried():
    def build(b: Any, x: Any) -> Any:
        zeros = b.constant(0.0, STACK)

        def body(b: Any, i: Any, v: Any, one: Any, two: Any, three: Any) -> Any:
            new = b("tanh", b("add", v, x))
            return [new, put(b, one, v, i), put(b, two, new, i), put(b, three, x, i)]

        return [*counted(b, [x, zeros, zeros, zeros], body), zeros]

    module = build_module([LINE], build)
    plan = steps_of(module)
    assert not copies_in_loops(plan)
    assert not [s for s in plan.steps if isinstance(s, CopyStep) and s.target.bytes == STACK.bytes]
    fills = [s for s in plan.steps if isinstance(s, RunStep) and not s.operands]
    assert len(fills) == 4 and len({s.results[0] for s in fills}) == 4
    check(module, line())


def test_an_inner_loop_goes_on_in_the_memory_of_the_outer_one():
    def build(b: Any, x: Any) -> Any:
        def outer(b: Any, i: Any, v: Any, stack: Any) -> Any:
            def inner(b: Any, j: Any, v: Any, stack: Any) -> Any:
                new = b("tanh", b("add", v, v))
                return [new, put(b, stack, new, j)]

            return counted(b, [v, stack], inner, 3)

        return counted(b, [x, b.constant(0.0, STACK)], outer, 2)

    module = build_module([LINE], build)
    assert not copies_in_loops(steps_of(module))
    check(module, line())


@pytest.mark.parametrize("late", [False, True])
def test_a_branch_updates_a_carried_stack_in_place(late: bool):
    """Unless something reads the old stack after the branch."""

    def build(b: Any, x: Any) -> Any:
        def body(b: Any, i: Any, v: Any, stack: Any) -> Any:
            even = b.compare("EQ", b("and", i, b.constant(1, COUNT)), b.constant(0, COUNT))
            yes = build_region([], lambda c: [put(c, stack, v, i)])
            new = b("if", even, type=STACK, regions=(yes, build_region([], lambda c: [stack])))
            sums = b.reduce("add", new, b.constant(0.0, TensorType((), F32)), (0,))
            old = b.reduce("maximum", stack, b.constant(0.0, TensorType((), F32)), (0,))
            return [b("tanh", b("add", sums, old if late else v)), new]

        return counted(b, [x, b.constant(0.0, STACK)], body, 5)

    module = build_module([LINE], build)
    copies = [step for step in copies_in_loops(steps_of(module)) if step.target.bytes > LINE.bytes]
    assert not copies
    check(module, line())


def test_branches_that_exchange_carried_values():
    def build(b: Any, x: Any, y: Any) -> Any:
        def body(b: Any, i: Any, v: Any, w: Any) -> Any:
            even = b.compare("EQ", b("and", i, b.constant(1, COUNT)), b.constant(0, COUNT))
            yes = build_region([], lambda c: [w, v])
            no = build_region([], lambda c: [v, c("tanh", w)])
            return b.op("if", [even], {}, (yes, no), (LINE, LINE)).results

        return counted(b, [x, y], body, 5)

    check(build_module([LINE, LINE], build), line(), line() + 2)


@pytest.mark.parametrize("turn", [(1, 2, 0), (1, 0, 2), (0, 0, 1), (2, 2, 2), (1, 1, 0)])
def test_carried_values_change_places_at_once(turn: tuple[int, ...]):
    def build(b: Any, *start: Any) -> Any:
        return counted(b, start, lambda b, i, *values: [values[n] for n in turn], 4)

    module = build_module([LINE, LINE, LINE], build)
    moved = sum(number != other for number, other in enumerate(turn))
    permuted = sorted(turn) == [0, 1, 2]
    assert len(copies_in_loops(steps_of(module))) <= (0 if permuted else moved)
    check(module, line(), line() + 1, line() - 5)


@pytest.mark.parametrize("inside", ["while", "if"])
def test_a_donated_argument_goes_through_control_flow(inside: str):
    jax = pytest.importorskip("jax")

    def step(state: Any, x: Any) -> Any:
        if inside == "while":
            return jax.lax.fori_loop(0, 3, lambda i, s: s * 0.5 + x, state), x.sum()
        return jax.lax.cond(x.sum() > 0, lambda: state * 0.5 + x, lambda: state), x.sum()

    state, x = line(), line() + np.float32(2)
    program = girih.compile(jax.jit(step, donate_argnums=0), state, x)
    assert program.plan.buffers[program.plan.outputs[0]].replaces == 0
    for values in (x, -x):
        expected, given_up = step(state, values)[0], state.copy()
        np.testing.assert_allclose(program(state, values)[0], expected, rtol=1e-6)
        new = program.donate(given_up, values)[0]
        np.testing.assert_allclose(new, expected, rtol=1e-6)
        assert np.shares_memory(new, given_up)


KINDS = ("tanh", "add", "reverse", "reverse", "row", "put")


def random_body(draw: Any, b: Any, i: Any, lines: Any, stack: Any, depth: int) -> tuple[Any, Any]:
    """Carried values after random updates, moves, branches and inner loops."""
    pool = list(lines)
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from([*KINDS, *["if", "while"][: 2 * depth]]))
        one, two = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
        if kind == "tanh":
            pool.append(b("tanh", one))
        elif kind == "reverse":  # not where its operand lies
            pool.append(b("reverse", b("tanh", one), dimensions=(0,)))
        elif kind == "add":
            pool.append(b("subtract", one, two))
        elif kind == "row":
            row = b("dynamic_slice", stack, i, b.constant(0, COUNT), slice_sizes=(1, 2048))
            pool.append(b.reshape(row, (2048,)))
        elif kind == "put":
            stack = put(b, stack, one, i)
        elif kind == "if":
            flag = b.compare("LT", i, b.constant(draw(st.integers(0, 3)), COUNT))
            regions = []
            for _ in range(2):

                def branch(
                    c: Any, old: Any = stack, values: Any = tuple(pool), kept: Any = one
                ) -> Any:
                    found, new = random_body(draw, c, i, values, old, depth - 1)
                    return [draw(st.sampled_from([*found, kept])), new]

                regions.append(build_region([], branch))
            made, stack = b.op("if", [flag], {}, regions, (LINE, STACK)).results
            pool.append(made)
        else:

            def body(c: Any, j: Any, *carried: Any) -> Any:
                found, new = random_body(draw, c, j, carried[:-1], carried[-1], depth - 1)
                return [*found[: len(carried) - 1], new]

            *found, stack = counted(b, [one, two, stack], body, draw(st.integers(0, 3)))
            pool += found
    order = draw(st.permutations(pool))
    return list(order), stack


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_random_loops(data: Any):
    def build(b: Any, x: Any, y: Any) -> Any:
        def body(b: Any, i: Any, *carried: Any) -> Any:
            found, new = random_body(data.draw, b, i, carried[:-1], carried[-1], 1)
            return [*found[: len(carried) - 1], new]

        start = [x, y, data.draw(st.sampled_from([x, b.constant(0.25, LINE)]))]
        return counted(b, [*start, b.constant(0.5, STACK)], body, data.draw(st.integers(0, 4)))

    check(build_module([LINE, LINE], build), line(), line()[::-1] * np.float32(0.5))


@pytest.mark.parametrize("limit", [0, 1, 2, 5, 6])
def test_what_replaces_a_value_while_it_is_read_alternates_between_two_places(limit: int):
    """A product reads the whole of it: nothing is copied in a turn."""
    kind = TensorType((64, 64), F32)

    def build(b: Any, x: Any, w: Any, n: Any) -> Any:
        def body(b: Any, v: Any, i: Any, rows: Any) -> Any:
            new = b("tanh", b("dot_general", v, w, lhs_contracting_dimensions=(1,), type=kind,
                              rhs_contracting_dimensions=(0,)))  # fmt: skip
            total = b.reduce("add", v, b.constant(0.0, TensorType((), F32)), (0,))
            zero = b.constant(0, COUNT)
            half = b.constant(0.5, kind)  # large, so that it is filled in every turn
            new = b("dot_general", new, half, lhs_contracting_dimensions=(1,), type=kind,
                    rhs_contracting_dimensions=(0,))  # fmt: skip
            rows = b("dynamic_update_slice", rows, b.reshape(total, (1, 64)), i, zero)
            return [new, b("add", i, b.constant(1, COUNT)), rows]

        kinds = [kind, COUNT, kind]

        def condition(b: Any, v: Any, i: Any, rows: Any) -> Any:
            return [b.compare("LT", i, n)]

        regions = (build_region(kinds, condition), build_region(kinds, body))
        start = [x, b.constant(0, COUNT), b.constant(0.0, kind)]
        return b.op("while", start, {}, regions, kinds).results

    module = build_module([kind, kind, COUNT], build)
    assert not copies_in_loops(steps_of(module))
    x = np.sin(np.arange(4096, dtype=np.float32)).reshape(64, 64)
    check(module, x, x.T * np.float32(0.01), np.int32(limit))


def dot(b: Any, x: Any, y: Any) -> Any:
    numbers = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
    return b("dot_general", x, y, **numbers)


SQUARE = TensorType((48, 48), F32)


def swap(b: Any, i: Any, x: Any, y: Any) -> list[Any]:
    return [y, x]


def leap(b: Any, i: Any, old: Any, now: Any) -> list[Any]:
    """What comes next is computed where the oldest lies."""
    return [now, b("subtract", b("add", now, now), old)]


def leap_through_products(b: Any, i: Any, old: Any, now: Any) -> list[Any]:
    return [now, b("tanh", b("subtract", dot(b, now, old), old))]


def to_and_fro(b: Any, i: Any, x: Any, y: Any) -> list[Any]:
    return [b("tanh", dot(b, x, x)), b("tanh", dot(b, y, x))]


def long(b: Any, i: Any, x: Any, y: Any) -> list[Any]:
    for _ in range(300):
        x = b("tanh", dot(b, x, y))
    return [x, y]


def inside_another(b: Any, i: Any, x: Any, y: Any) -> list[Any]:
    inner = counted(b, [x, y], leap_through_products, 3)
    return [b("tanh", dot(b, inner[0], inner[0])), inner[1]]


@pytest.mark.parametrize("limit", range(8))
@pytest.mark.parametrize("body", [swap, leap, leap_through_products, to_and_fro, inside_another])
def test_turns_follow_each_other_until_values_lie_where_they_began(body: Any, limit: int):
    module = build_module(
        [SQUARE, SQUARE], lambda b, x, y: counted(b, [x, y], lambda *v: body(*v), limit)
    )
    if body is not inside_another:  # what the inner loop starts with is needed besides
        assert not copies_in_loops(steps_of(module))
    x = np.sin(np.arange(2304, dtype=np.float32)).reshape(48, 48) / np.float32(64)
    check(module, x, x.T * np.float32(0.5))


def test_long_bodies_copy_nothing_either():
    module = build_module([SQUARE, SQUARE], lambda b, x, y: counted(b, [x, y], long, 5))
    assert not copies_in_loops(steps_of(module))


def test_many_places_are_too_many_turns():
    """Seven values that change places would be seven turns: one, and copies."""

    def build(b: Any, *start: Any) -> Any:
        return counted(b, start, lambda b, i, *values: [*values[1:], values[0]], 4)

    plan = steps_of(build_module([LINE] * 7, build))
    assert sum(isinstance(step, JumpStep) and step.back for step in plan.steps) == 1
    assert copies_in_loops(plan)


def test_places_of_turns():
    """By number: what stays, what changes places, and what needs another place."""

    def places(kind: TensorType, body: Any, fresh: list[int]) -> list[list[int]]:
        region = Fuse()(build_module([kind, kind], lambda b, x, y: body(b, None, x, y))).body

        def new(number: int) -> int:
            fresh.append(10 + len(fresh))
            return fresh[-1]

        return turns(region, [0, 1], hinders_of(True), new)

    assert places(SQUARE, leap, []) == [[0, 1], [1, 0]]
    assert places(SQUARE, leap_through_products, []) == [[0, 1], [1, 10], [10, 0]]
    assert places(TensorType((2, 2), F32), leap_through_products, []) == [[0, 1]]
    assert places(SQUARE, lambda b, i, x, y: [x, b("tanh", y)], []) == [[0, 1]]


def test_what_is_known_before_turns_that_follow_each_other() -> None:
    """Seven turns, three of which are steps of their own: 0 3 6, 1 4, 2 5, and the end at 7."""
    module = build_module([COUNT], lambda b, i: [_counted(b, i, 7)])
    loop = module.body.ops[-1]
    assert known_turns(loop, 3) == [(3, False), (2, True), (2, False)]
    assert known_turns(loop, 1) == [(7, True)]


def _counted(b: Any, given: Any, count: int) -> Any:
    regions = (
        build_region([COUNT], lambda b, i: [b.compare("LT", i, b.constant(count, COUNT))]),
        build_region([COUNT], lambda b, i: [b("add", i, b.constant(1, COUNT))]),
    )
    return b.op("while", [b.constant(0, COUNT)], {}, regions, [COUNT]).results[0]
