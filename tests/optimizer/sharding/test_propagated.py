"""Whole programs: constraints, groups, barriers, control flow, and the ways of axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from girih.hlo.build import Builder, build_region
from girih.hlo.errors import UserError
from girih.hlo.graph import Function, Module, Op, Origin, Value
from girih.hlo.sharding import Axis, Mesh, parse_sharding
from girih.hlo.symbols import SymbolicDim
from girih.hlo.types import F32, I32, TensorType, Type
from girih.hlo.verify import INLINED, SHARDED, verify
from girih.optimizer.sharding.program import network_of
from girih.optimizer.sharding.propagated import Propagated, propagate, rule_of_room
from girih.optimizer.sharding.propagation import ShardingPropagation

MESH = Mesh((("x", 4), ("y", 2), ("one", 1)))
KIND = TensorType((8, 16), F32)
SCALAR = TensorType((), F32)
COUNT = TensorType((), I32)


def said(dims: str, kind: TensorType = KIND) -> TensorType:
    return kind.with_sharding(parse_sharding(f"<@m, {dims}>"))


def module(
    types: Sequence[Type], body: Callable[..., Sequence[Value]], mesh: Mesh = MESH
) -> Module:
    made = Module({"main": Function("main", build_region(types, body))}, meshes={"m": mesh})
    verify(made, INLINED)
    return made


def run(types: Sequence[Type], body: Callable[..., Sequence[Value]]) -> Propagated:
    found = propagate(module(types, body))
    verify(found.sharded(), SHARDED)
    return found


def dims(found: Propagated, value: Value) -> str:
    return str(found.shardings[value]).removeprefix("<@m, ").removesuffix(">")


def results(found: Propagated) -> list[str]:
    return [dims(found, value) for value in found.module.body.results]


def arguments(found: Propagated) -> list[str]:
    return [dims(found, value) for value in found.module.body.arguments]


def constrained(b: Builder, x: Value, text: str, stated: str = "constraint") -> Value:
    kind = said(text, TensorType(x.dims, F32))
    return b("sharding_constraint", x, type=kind, stated=stated)


def test_forward_and_back() -> None:
    found = run([said('[{"x"}, {?}]'), KIND], lambda b, x, y: [b("add", b("tanh", x), y)])
    assert results(found) == ['[{"x"}, {}]'] and arguments(found) == ['[{"x"}, {}]'] * 2


def test_nothing_said_is_replicated() -> None:
    found = run([KIND], lambda b, x: [b("tanh", x)])
    assert results(found) == ["[{}, {}]"]


def test_axes_of_size_one_cut_nothing() -> None:
    found = run([said('[{"one", "x"}, {?}]')], lambda b, x: [b("tanh", x)])
    assert results(found) == ['[{"x"}, {}]']


def test_a_closed_constraint_is_its_operands_too() -> None:
    def body(b: Builder, x: Value) -> list[Value]:
        return [constrained(b, b("tanh", x), '[{}, {"y"}]')]

    found = run([said('[{"x", ?}, {?}]')], body)
    tanh = found.module.body.ops[0].result
    assert dims(found, tanh) == '[{}, {"y"}]' and arguments(found) == ['[{"x"}, {"y"}]']


def test_two_constraints_bind_their_uses_only() -> None:
    def body(b: Builder, x: Value) -> list[Value]:
        y = b("tanh", x)
        return [constrained(b, y, '[{"x"}, {}]'), constrained(b, y, '[{}, {"x"}]')]

    found = run([KIND], body)
    assert results(found) == ['[{"x"}, {}]', '[{}, {"x"}]']
    assert dims(found, found.module.body.ops[0].result) == '[{"x"}, {}]'  # the first factor wins


def test_what_is_said_of_a_result_leaves_the_value_open() -> None:
    def body(b: Builder, x: Value) -> list[Value]:
        return [constrained(b, b("tanh", x), '[{}, {"y"}]', stated="result")]

    found = run([said('[{"x", ?}, {?}]')], body)
    assert dims(found, found.module.body.ops[0].result) == '[{"x"}, {"y"}]'
    assert results(found) == ['[{}, {"y"}]']


def test_groups_have_one_sharding() -> None:
    def body(b: Builder, x: Value, y: Value) -> list[Value]:
        for value in (x, y):
            b.op("sharding_group", [value], {"group_id": 7})
        return [b("tanh", x), b("negate", y)]

    found = run([said('[{"x"}, {?}]'), KIND], body)
    assert results(found) == ['[{"x"}, {}]'] * 2
    ways = found.chain(found.module.body.results[1], 0, Axis("x"))
    assert [hop.value for hop in ways[1:]] == [*found.module.body.arguments[::-1]]


def test_a_group_of_different_dims_is_refused() -> None:
    def body(b: Builder, x: Value, y: Value) -> list[Value]:
        for value in (x, y):
            b.op("sharding_group", [value], {"group_id": 7})
        return [x, y]

    with pytest.raises(UserError, match=r"dims \[8, 16\] and \[16, 8\]"):
        propagate(module([KIND, TensorType((16, 8), F32)], body))


@pytest.mark.parametrize(
    ("direction", "forward", "back"),
    [("NONE", 0, 0), ("FORWARD", 1, 0), ("BACKWARD", 0, 1), ("BOTH", 1, 1)],
)
def test_barriers_let_axes_pass_one_way(direction: str, forward: int, back: int) -> None:
    def body(b: Builder, x: Value) -> list[Value]:
        y = b("propagation_barrier", b("tanh", x), allowed_direction=direction)
        return [constrained(b, b("negate", y), '[{?}, {"y", ?}]')]

    found = run([said('[{"x", ?}, {?}]')], body)
    cut, other = '"x"' if forward else "", '"y"' if back else ""
    assert results(found) == [f'[{{{cut}}}, {{"y"}}]']
    assert arguments(found) == [f'[{{"x"}}, {{{other}}}]']


def test_a_constant_says_nothing_from_one_use_to_another() -> None:
    def body(b: Builder, x: Value, y: Value) -> list[Value]:
        one = b("negate", b.constant(1.0, KIND))
        return [b("add", x, one), b("add", y, one)]

    found = run([said('[{"x"}, {}]'), said('[{}, {"x"}]')], body)
    assert results(found) == ['[{"x"}, {}]', '[{}, {"x"}]']
    names = [op.name for op in found.module.body.ops]
    assert names == ["constant", "constant", "negate", "negate", "add", "add"]
    assert [dims(found, op.result) for op in found.module.body.ops[:2]] == results(found)


def test_scalars_stay_shared_and_their_broadcasts_do_not() -> None:
    def body(b: Builder, x: Value, y: Value, s: Value) -> list[Value]:
        wide = b.broadcast(b("tanh", s), KIND.dims, ())
        return [b("add", x, wide), b("add", y, wide)]

    found = run([said('[{"x"}, {}]'), said('[{}, {"x"}]'), SCALAR], body)
    names = [op.name for op in found.module.body.ops]
    assert names == ["tanh", "broadcast_in_dim", "broadcast_in_dim", "add", "add"]


def loop(b: Builder, x: Value) -> Value:
    start = b.constant(0, COUNT)
    condition = build_region(
        [COUNT, KIND], lambda b, i, x: [b.compare("LT", i, b.constant(3, COUNT))]
    )
    turn = build_region(
        [COUNT, KIND], lambda b, i, x: [b("add", i, b.constant(1, COUNT)), b("tanh", x)]
    )
    return b.op("while", [start, x], {}, [condition, turn]).results[1]


def test_a_loop_s_values_lie_alike_inside_and_outside() -> None:
    found = run([said('[{"x"}, {?}]')], lambda b, x: [loop(b, x)])
    op = next(op for op in found.module.body.ops if op.name == "while")
    inside = [*(region.arguments[1] for region in op.regions), op.regions[1].ops[-1].result]
    assert [dims(found, value) for value in (*inside, op.results[1])] == ['[{"x"}, {}]'] * 4
    hops = found.chain(op.results[1], 0, Axis("x"))
    assert [hop.op.name if hop.op else None for hop in hops] == ["while", None]


def test_back_into_a_loop() -> None:
    found = run([KIND], lambda b, x: [constrained(b, loop(b, x), '[{}, {"x"}]')])
    assert arguments(found) == ['[{}, {"x"}]']


def test_branches_and_optimization_barriers_join() -> None:
    def body(b: Builder, x: Value, y: Value) -> list[Value]:
        bodies = [build_region([], lambda b, v=v: [b("tanh", v)]) for v in (x, y)]
        chosen = b.op("case", [b.constant(0, COUNT)], {}, bodies).results[0]
        return list(b.op("optimization_barrier", [chosen]).results)

    found = run([said('[{"x"}, {?}]'), KIND], body)
    assert results(found) == ['[{"x"}, {}]'] and arguments(found) == ['[{"x"}, {}]'] * 2


def manual(b: Builder, x: Value, free: bool) -> Value:
    """A body on the blocks along x, in which y may be used where it is free."""
    local = TensorType((2, 16), F32)
    region = build_region([local], lambda b, x: [b("tanh", x)])
    cuts = ((("x",), ()),)
    mark = ", ?" if free else ""
    text = f'<@m, [{{"x"{mark}}}, {{{mark[2:]}}}]>'
    facts = {
        "mesh": {"axes": tuple({"name": n, "size": s} for n, s in MESH.axes)},
        "manual_axes": ("x",), "in_shardings": cuts, "out_shardings": cuts,
        "shardings": (text, text) if free else (),
    }  # fmt: skip
    return b.op("sdy.manual_computation", [x], facts, [region]).results[0]


def test_only_free_axes_go_into_a_manual_computation() -> None:
    found = run([said('[{?}, {"y", ?}]')], lambda b, x: [b("negate", manual(b, x, True))])
    op = found.module.body.ops[0]
    assert dims(found, op.regions[0].arguments[0]) == '[{}, {"y"}]'
    assert dims(found, op.regions[0].ops[0].result) == '[{}, {"y"}]'
    assert results(found) == ['[{"x"}, {"y"}]'] == arguments(found)


def test_a_closed_manual_computation_takes_nothing() -> None:
    found = run([KIND], lambda b, x: [b("negate", manual(b, b("tanh", x), False))])
    op = found.module.body.ops[1]
    assert dims(found, op.regions[0].arguments[0]) == "[{}, {}]"
    assert dims(found, op.operands[0]) == '[{"x"}, {}]' == arguments(found)[0] == results(found)[0]


def test_the_way_of_an_axis_names_operations_and_lines() -> None:
    def body(b: Builder, x: Value, w: Value) -> list[Value]:
        with b.at((Origin("model.py", 3),)):
            h = b("tanh", x)
        with b.at((Origin("model.py", 4),)):
            y = b(
                "dot_general", h, w, lhs_contracting_dimensions=(1,),
                rhs_contracting_dimensions=(0,), lhs_batching_dimensions=(),
                rhs_batching_dimensions=(), type=TensorType((8, 4), F32),
            )  # fmt: skip
        with b.at((Origin("model.py", 5),)):
            return [b.transpose(y, (1, 0))]

    found = run([said('[{"x"}, {?}]'), said('[{?}, {"y"}]', TensorType((16, 4), F32))], body)
    (value,) = found.module.body.results
    assert dims(found, value) == '[{"y"}, {"x"}]'
    lines = [hop.op.place if hop.op else "stated" for hop in found.chain(value, 1, Axis("x"))]
    assert lines == ["model.py:5: ", "model.py:4: ", "model.py:3: ", "stated"]
    end = found.chain(value, 1, Axis("x"))[-1]
    assert end.value is found.module.body.arguments[0] and end.dim == 0
    assert found.chain(value, 0, Axis("x")) == ()


def test_programs_that_cannot_be_propagated() -> None:
    with pytest.raises(UserError, match="no mesh"):
        propagate(Module({"main": Function("main", build_region([KIND], lambda b, x: [x]))}))
    wide = TensorType((SymbolicDim("batch"), 16), F32)
    with pytest.raises(UserError, match="sizes"):
        propagate(module([wide], lambda b, x: [b("tanh", x)]))
    with pytest.raises(UserError, match="'y' is open"):
        propagate(module([said('[{"y"}, {?}]')], lambda b, x: [b("tanh", x)], Mesh((("y", None),))))


def test_visits_grow_with_the_program_only() -> None:
    def visits(count: int) -> int:
        def body(b: Builder, x: Value, w: Value) -> list[Value]:
            for _ in range(count):
                x = b("add", b("tanh", x), b("multiply", x, w))
            return [x]

        made = module([KIND, said('[{"x"}, {"y"}]')], body)
        network, _ = network_of(made, made.meshes, rule_of_room)
        propagation = ShardingPropagation(network)
        propagation.run()
        return propagation.visits

    few, many = visits(100), visits(200)
    assert many <= 2.3 * few and few <= 300 * 5 * 3


def test_an_operation_without_a_rule_stops_axes() -> None:
    def rule(op: Op) -> None:
        return None

    found = propagate(module([said('[{"x"}, {?}]')], lambda b, x: [b("tanh", x)]), rule)
    assert results(found) == ["[{}, {}]"]
