"""Loops and branches become less, and stay right: against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import girih
from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.graph import Module, Value
from girih.hlo.types import F32, I1, TOKEN, TensorType, element_type
from girih.hlo.verify import verify
from girih.optimizer.licence import Ledger
from girih.optimizer.passes.loops import Loops
from girih.optimizer.passes.simplify import Simplify

from .modules import COUNT, FLAG, LINE, f32, names

WIDE, UNSIGNED = TensorType((64, 64), F32), TensorType((), element_type("ui8"))
X = f32([1.5, np.nan, -np.inf, -0.0])


def rewritten(module: Module, *inputs: Any, **budgets: int) -> tuple[Module, Ledger]:
    """The module after the pass and simplify, which compute the same on these inputs."""
    ledger = Ledger()
    after = Loops(**budgets, ledger=ledger)(module)
    verify(after)
    simple = Simplify()(after)
    expected = girih.interpret(module, inputs)
    for other in (after, simple):
        for left, right in zip(girih.interpret(other, inputs), expected, strict=True):
            np.testing.assert_array_equal(left, right)
    return simple, ledger


def loop(
    b: Any, start: Any, body: Any, limit: Any, first: int = 0, step: int = 1,
    direction: str = "LT", kind: TensorType = COUNT,
) -> Any:  # fmt: skip
    """Carried values after a counted loop, the counter first."""
    kinds = [kind, *(value.type for value in start)]

    def condition(b: Any, i: Value, *rest: Value) -> Any:
        bound = limit if isinstance(limit, Value) else b.constant(limit, kind)
        return [b.compare(direction, i, bound)]

    def turn(b: Any, i: Value, *rest: Value) -> Any:
        return [b("add", i, b.constant(step, kind)), *body(b, i, *rest)]

    regions = (build_region(kinds, condition), build_region(kinds, turn))
    return b.op("while", [b.constant(first, kind), *start], {}, regions, kinds).results


def doubled(b: Any, i: Value, x: Value) -> list[Value]:
    return [b("add", x, x)]


@pytest.mark.parametrize("limit", [0, 1, 3, 8])
def test_few_turns_follow_each_other(limit: int) -> None:
    module = build_module([LINE], lambda b, x: loop(b, [x], doubled, limit))
    after, ledger = rewritten(module, X)
    assert names(after).count("add") == limit and "while" not in names(after)
    assert ledger.hits["loops-unroll"] == 1


def test_many_turns_and_large_bodies_stay_loops() -> None:
    assert "while" in names(
        rewritten(build_module([LINE], lambda b, x: loop(b, [x], doubled, 9)), X)[0]
    )

    def large(b: Any, i: Value, x: Value) -> list[Value]:
        for _ in range(30):
            x = b("tanh", x)
        return [x]

    module = build_module([LINE], lambda b, x: loop(b, [x], large, 4))
    assert "while" in names(rewritten(module, X)[0])
    once = build_module([LINE], lambda b, x: loop(b, [x], large, 1))
    assert "while" not in names(rewritten(once, X)[0])


@pytest.mark.parametrize(
    ("first", "step", "direction", "limit", "turns"),
    [
        (250, 1, "LE", 254, 5),
        (250, 1, "NE", 2, None),  # the counter wraps around
        (250, 4, "LT", 255, None),  # so does this one, and goes on
        (3, -1, "GT", 0, 3),
        (3, 2, "NE", 7, 2),
        (0, 2, "LT", 5, 3),
        (5, 1, "LT", 5, 0),
        (0, 1, "EQ", 0, None),
    ],
)  # fmt: skip
def test_turns_are_counted_as_integers_of_the_type_do(
    first: int, step: int, direction: str, limit: int, turns: int | None
) -> None:
    kind = UNSIGNED if step > 0 else COUNT

    def build(b: Any, x: Value) -> Any:
        return loop(b, [x], doubled, limit, first, step, direction, kind)

    module = build_module([LINE], build)
    if (first, step) == (250, 4):  # 250, 254, 2, 6, ...: never ends
        assert "while" in names(Loops()(module))
        return
    after, _ = rewritten(module, X)
    assert ("while" in names(after)) == (turns is None)
    if turns is not None:
        assert names(after).count("add") == turns


def test_counters_of_floats_are_left() -> None:
    kind = TensorType((), F32)
    module = build_module([LINE], lambda b, x: loop(b, [x], doubled, 3.0, kind=kind))
    assert "while" in names(rewritten(module, X)[0])


@pytest.mark.parametrize("known", [True, False])
def test_ranges_of_counters_decide_comparisons_and_clamps(known: bool) -> None:
    """That of an index from the end, as frameworks write it; a limit that is data tells less."""
    rows = TensorType((12, 4), F32)

    def build(b: Any, x: Value, n: Value) -> Any:
        def body(b: Any, i: Value, total: Value) -> Any:
            zero, length = b.constant(0, COUNT), b.constant(12, COUNT)
            place = b("subtract", b.constant(11, COUNT), i) if known else i
            wrapped = b("select", b.compare("LT", place, zero), b("add", place, length), place)
            inside = b("clamp", zero, wrapped, b.constant(11, COUNT))
            odd = b("remainder", inside, length)
            row = b("dynamic_slice", x, odd, zero, slice_sizes=(1, 4))
            return [b("add", total, b.reshape(row, (4,)))]

        return loop(b, [b.constant(0.0, LINE)], body, 12 if known else n)

    module = build_module([rows, COUNT], build)
    x = np.arange(48, dtype=np.float32).reshape(12, 4)
    after, ledger = rewritten(module, x, np.int32(14))
    found = names(after)
    assert "while" in found and ledger.hits["loops-range"]
    assert "select" not in found
    assert ("clamp" in found or "remainder" in found) == (not known)


def test_a_counter_that_wraps_around_has_no_range() -> None:
    def build(b: Any, x: Value) -> Any:
        def body(b: Any, i: Value, j: Value, v: Value) -> Any:
            small = b.compare("LT", j, b.constant(200, UNSIGNED))
            return [b("add", j, b.constant(1, UNSIGNED)), b("select", small, b("negate", v), v)]

        return loop(b, [b.constant(250, UNSIGNED), x], body, 20)

    after, ledger = rewritten(build_module([LINE], build), X)
    assert not ledger.hits["loops-range"] and "select" in names(after)


def test_what_is_the_same_in_every_turn_leaves_the_loop_if_it_is_small() -> None:
    def build(b: Any, x: Value, w: Value) -> Any:
        def body(b: Any, i: Value, v: Value) -> Any:
            total = b.reduce("add", b("tanh", w), b.constant(0.0, TensorType((), F32)), (0, 1))
            large = b("exponential", w)
            row = b("slice", large, start_indices=(3, 0), limit_indices=(4, 4), strides=(1, 1))
            sums = b("dot_general", large, w, lhs_contracting_dimensions=(1,),
                     rhs_contracting_dimensions=(0,), type=WIDE)  # fmt: skip
            last = b.reshape(
                b("slice", sums, start_indices=(3, 0), limit_indices=(4, 4), strides=(1, 1)), (4,)
            )
            v = b("add", b("add", v, b.reshape(row, (4,))), b("tanh", last))
            return [b("multiply", v, b.broadcast(total, (4,), ()))]

        return loop(b, [x], body, 20)

    module = build_module([LINE, WIDE], build)
    w = np.linspace(-1, 1, 4096, dtype=np.float32).reshape(64, 64)
    after, ledger = rewritten(module, X, w)
    (op,) = (op for op in after.body.ops if op.name == "while")
    inside = [inner.name for inner in op.regions[1].ops]
    assert "reduce" not in inside and "slice" not in inside and ledger.hits["loops-hoist"]
    kept, _ = rewritten(module, X, w, kept_bytes=4)
    (op,) = (op for op in kept.body.ops if op.name == "while")
    inside = [inner.name for inner in op.regions[1].ops]
    assert "reduce" not in inside and "slice" in inside


def test_carried_values_that_are_the_same_are_carried_once() -> None:
    def build(b: Any, x: Value) -> Any:
        def body(b: Any, i: Value, j: Value, v: Value, w: Value, c: Value, u: Value) -> Any:
            both = b("multiply", b("tanh", v), c)
            one = b.constant(1, COUNT)
            other = b("multiply", b("tanh", w), c)
            return [b("add", j, one), both, other, b.constant(2.0, LINE), b("negate", u)]

        start = [b.constant(0, COUNT), x, x, b.constant(2.0, LINE), x]
        return loop(b, start, body, 20)

    after, ledger = rewritten(build_module([LINE], build), X)
    (op,) = (op for op in after.body.ops if op.name == "while")
    assert len(op.results) == 3 and ledger.hits["loops-same"] == 1


def test_counters_whose_step_is_a_constant_outside_and_one_inside_are_one() -> None:
    def build(b: Any, x: Value) -> Any:
        step = b.constant(1, COUNT)

        def body(b: Any, i: Value, n: Value, x: Value) -> list[Value]:
            return [b("add", n, step), b("add", x, b.broadcast(b.convert(n, F32), x.dims, ()))]

        return loop(b, [b.constant(0, COUNT), x], body, 9)

    module, ledger = rewritten(build_module([LINE], build), X)
    (op,) = [op for op in module.body.ops if op.name == "while"]
    assert len(op.results) == 2 and ledger.hits["loops-same"] == 1


def test_what_is_the_same_in_the_first_turn_alone_is_carried_apart() -> None:
    def build(b: Any, x: Value) -> Any:
        def body(b: Any, i: Value, p: Value, q: Value, r: Value, s: Value) -> Any:
            return [b("tanh", p), b("negate", q), b("add", r, p), b("add", s, q)]

        return loop(b, [x, x, x, x], body, 20)

    after, ledger = rewritten(build_module([LINE], build), X)
    assert not ledger.hits["loops-same"]


ROWS = TensorType((12, 4), F32)


def stacked(b: Any, x: Value, change: str = "") -> Any:
    """Two stacks of a loop, of t and of t * (1 - t), and a second loop that reads their rows."""
    zero, one = b.constant(0, COUNT), b.constant(1.0, LINE)

    def put(c: Any, stack: Value, row: Value, i: Value) -> Value:
        return c("dynamic_update_slice", stack, c.reshape(row, (1, 4)), i, zero)

    def write(c: Any, i: Value, v: Value, left: Value, right: Value) -> list[Value]:
        t = c("tanh", v)
        other = c("multiply", t, v if change == "two leaves" else c("subtract", one, t))
        if change == "read":
            row = c("dynamic_slice", right, zero, zero, slice_sizes=(1, 4))
            t = c("add", t, c.reshape(row, (4,)))
        place = c("minimum", i, c.constant(9, COUNT)) if change == "place" else i
        return [c("add", v, t), put(c, left, t, i), put(c, right, other, place)]

    start = [x, b.constant(0.0, ROWS), b.constant(2.0, ROWS)]
    turns = 11 if change == "short" else 12
    _, last, left, right = loop(b, start, write, turns)

    def read(c: Any, i: Value, v: Value) -> list[Value]:
        back = c("subtract", c.constant(11, COUNT), i)
        parts = (c("dynamic_slice", s, back, zero, slice_sizes=(1, 4)) for s in (left, right))
        first, second = (c.reshape(part, (4,)) for part in parts)
        return [c("add", c("multiply", v, first), second)]

    return [last, loop(b, [last], read, 12)[1]]


def test_a_stack_that_another_one_determines_is_computed_where_it_is_read() -> None:
    after, ledger = rewritten(build_module([LINE], stacked), X)
    assert ledger.hits["loops-derive"] == 1
    first = next(op for op in after.body.ops if op.name == "while")
    assert [value.type for value in first.results] == [COUNT, LINE, ROWS]
    again, ledger = rewritten(after, X)
    assert ledger.hits["loops-sink"] == 0
    found = [op for op in again.body.ops if op.name in ("multiply", "subtract")]
    assert not found  # in the second loop, of a row


@pytest.mark.parametrize("change", ["two leaves", "read", "place", "short"])
def test_a_stack_that_is_more_than_a_formula_stays(change: str) -> None:
    """Its rows need two others, are read in the loop, lie elsewhere, or are not all written."""
    module = build_module([LINE], lambda b, x: stacked(b, x, change))
    after, ledger = rewritten(module, X)
    assert not ledger.hits["loops-derive"]
    first = next(op for op in after.body.ops if op.name == "while")
    assert [value.type for value in first.results].count(ROWS) == 2


def branches(b: Any, number: Value, *bodies: Any) -> tuple[Value, ...]:
    regions = [build_region([], body) for body in bodies]
    types = [value.type for value in regions[0].results]
    name = "if" if number.element is I1 else "case"
    return b.op(name, [number], {}, regions, types).results


def test_cheap_branches_are_chosen_from() -> None:
    def build(b: Any, p: Value, n: Value, x: Value) -> Any:
        two = branches(b, p, lambda c: [c("tanh", x)], lambda c: [c.constant(0.5, LINE)])
        three = branches(
            b, n, lambda c: [c("add", x, x)], lambda c: [x], lambda c: [c("negate", x)]
        )
        return [*two, *three]

    module = build_module([FLAG, COUNT, LINE], build)
    for flag, number in ((True, 0), (False, 1), (True, 2), (False, -1), (True, 99)):
        after, ledger = rewritten(module, np.bool_(flag), np.int32(number), X)
        assert "if" not in names(after) and "case" not in names(after)
        assert ledger.hits["loops-choose"] == 2


def test_large_branches_stay_and_share_what_is_common() -> None:
    def build(b: Any, p: Value, x: Value) -> Any:
        def one(c: Any) -> Any:
            t = c("tanh", x)
            return [c("dot_general", t, x, lhs_contracting_dimensions=(1,), type=WIDE,
                      rhs_contracting_dimensions=(0,)), c("negate", t), t]  # fmt: skip

        def two(c: Any) -> Any:
            t = c("tanh", x)
            return [t, c("exponential", t), t]

        return branches(b, p, one, two)

    module = build_module([FLAG, WIDE], build)
    x = np.linspace(-1, 1, 4096, dtype=np.float32).reshape(64, 64)
    for flag in (True, False):
        after, ledger = rewritten(module, np.bool_(flag), x)
        assert [op.name for op in after.body.ops] == ["tanh", "if"]
        assert len(after.body.ops[1].results) == 2 and ledger.hits["loops-common"] == 1


def test_what_branches_share_may_be_there_twice() -> None:
    def build(b: Any, p: Value, x: Value) -> Any:
        def one(c: Any) -> Any:
            first, second = (c("tanh", c("add", x, c.constant(1.0, WIDE))) for _ in range(2))
            return [c("multiply", first, second), c("add", second, x)]

        return branches(b, p, one, lambda c: [*one(c)[::-1]])

    module = build_module([FLAG, WIDE], build)
    x = np.linspace(-1, 1, 4096, dtype=np.float32).reshape(64, 64)
    after, _ = rewritten(module, np.bool_(True), x)
    assert names(after).count("tanh") == 1


def test_a_loop_in_all_branches_stays_in_them() -> None:
    def build(b: Any, p: Value, x: Value) -> Any:
        def one(c: Any) -> Any:
            return [loop(c, [x], doubled, 20)[1]]

        return branches(b, p, one, one)

    after, _ = rewritten(build_module([FLAG, LINE], build), np.bool_(True), X)
    assert names(after).count("while") == 2


def test_a_loop_in_a_branch_that_is_taken_keeps_its_values() -> None:
    def build(b: Any, x: Value, n: Value) -> Any:
        turns = build_region([], lambda c: [loop(c, [x], doubled, n)[1]])
        other = build_region([], lambda c: [c("negate", x)])
        return [b("case", b.constant(0, COUNT), type=LINE, regions=(turns, other))]

    module = build_module([LINE, COUNT], build)
    for count in (0, 3):
        after, _ = rewritten(module, X, np.int32(count))
        assert "case" not in names(after) and "while" in names(after)


def test_effects_keep_their_order() -> None:
    """An infeed in a loop or in branches happens as often, and in the order, as before."""
    token = TOKEN

    def build(b: Any, p: Value, t: Value) -> Any:
        def body(b: Any, i: Value, t: Value) -> Any:
            return [b.op("outfeed", [i, t], {}, (), (token,)).results[0]]

        after = loop(b, [t], body, 2)[1]

        def one(c: Any) -> Any:
            number = c.constant(7, COUNT)
            return [c.op("outfeed", [number, after], {}, (), (token,)).results[0]]

        return branches(b, p, one, one)

    module = build_module([FLAG, token], build)
    after = Loops()(module)
    assert names(after).count("outfeed") == 4 and "if" in names(after)


def test_nothing_to_do_is_the_same_module() -> None:
    module = build_module([LINE, COUNT], lambda b, x, n: loop(b, [x], doubled, n))
    assert Loops()(module) is module
    plain = build_module([LINE], lambda b, x: [b("tanh", x)])
    assert Loops()(plain) is plain


def random_values(
    draw: Any, b: Builder, pool: list[Value], counts: list[Value], depth: int
) -> None:
    """More values from random operations, loops and branches."""
    for _ in range(draw(st.integers(1, 4))):
        one, two = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
        i = draw(st.sampled_from(counts))
        kind = draw(st.sampled_from(["tanh", "sub", "index", "count", "if", "while", "while"]))
        if kind == "tanh" or (depth == 0 and kind in ("if", "while")):
            pool.append(b("tanh", one))
        elif kind == "sub":
            pool.append(b("subtract", one, two))
        elif kind == "count":
            name = draw(st.sampled_from(["add", "subtract", "minimum", "maximum", "multiply"]))
            counts.append(b(name, i, b.constant(draw(st.integers(-3, 3)), COUNT)))
        elif kind == "index":
            direction = draw(st.sampled_from(["LT", "LE", "GT", "GE", "EQ", "NE"]))
            flag = b.compare(direction, i, b.constant(draw(st.integers(-2, 9)), COUNT))
            pool.append(b("select", b.broadcast(flag, (4,), ()), one, two))
        elif kind == "if":
            flag = b.compare("LT", i, b.constant(draw(st.integers(-1, 9)), COUNT))
            bodies = []
            for _ in range(2):

                def body(c: Builder, outer: tuple[Value, ...] = tuple(pool)) -> list[Value]:
                    inner = list(outer)
                    random_values(draw, c, inner, list(counts), depth - 1)
                    return [inner[-1], draw(st.sampled_from(inner))]

                bodies.append(body)
            pool += branches(b, flag, *bodies)
        else:
            outer = tuple(pool)

            def turn(
                c: Builder, j: Value, *carried: Value, outer: tuple[Value, ...] = outer
            ) -> list[Value]:
                inner = [*outer, *carried]
                random_values(draw, c, inner, [*counts, j], depth - 1)
                return [draw(st.sampled_from(inner[len(outer) :])) for _ in carried]

            start = [one, draw(st.sampled_from([one, two])), b.constant(0.5, LINE)]
            first, step = draw(st.integers(-2, 3)), draw(st.sampled_from([1, 1, 2, 3]))
            found = loop(b, start, turn, draw(st.integers(0, 11)), first, step)
            counts.append(found[0])
            pool += found[1:]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_random_programs(data: Any) -> None:
    def build(b: Any, x: Value, y: Value, n: Value) -> list[Value]:
        pool, counts = [x, y], [n]
        random_values(data.draw, b, pool, counts, 2)
        return [*pool[2:], *counts[1:]]

    module = build_module([LINE, LINE, COUNT], build)
    rewritten(module, X, f32([0.25, -3.0, 2.0, 1e-3]), np.int32(data.draw(st.integers(-2, 9))))
