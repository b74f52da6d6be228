"""Steps over buffers: what shares memory, what is copied, and that programs run right."""

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module, build_region
from girih.hlo.errors import UnsupportedError
from girih.hlo.symbols import SymbolicDim
from girih.hlo.types import F32, I1, I32, TensorType, element_type
from girih.optimizer.passes.fuse import Fuse
from girih.optimizer.passes.order import Order
from girih.optimizer.schedule import CopyStep, RunStep, live_ranges, schedule

F8, UI8 = element_type("f8E4M3FN"), element_type("ui8")

VECTOR, SCALAR, STACK = TensorType((8,), F32), TensorType((), I32), TensorType((4, 8), F32)


def steps_of(module):
    return schedule(Order()(Fuse()(module)))


def check(module, *inputs):
    """The compiled program agrees with the interpreter; its plan."""
    program = girih.compile(module, options=girih.Options(disable=("loops",)))
    expected = girih.interpret(module, list(inputs))
    for _ in range(3):
        for left, right in zip(program(*inputs), expected, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-6)
    return program


def loop(types, start, body, limit=4):
    def build(b, *arguments):
        def condition(b, i, *rest):
            return [b.compare("LT", i, b.constant(limit, SCALAR))]

        def step(b, i, *rest):
            return [b("add", i, b.constant(1, SCALAR)), *body(b, i, *rest)]

        kinds = [SCALAR, *types]
        regions = (build_region(kinds, condition), build_region(kinds, step))
        first = [b.constant(0, SCALAR), *start(b, *arguments)]
        return b.op("while", first, {}, regions, kinds).results[1:]

    return build


def x8():
    return np.linspace(-1, 1, 8, dtype=np.float32)


def test_a_loop_writes_a_stack_in_place():
    def body(b, i, x, stack):
        row = b.reshape(x, (1, 8))
        stack = b("dynamic_update_slice", stack, row, i, b.constant(0, SCALAR))
        return [b("tanh", b("add", x, x)), stack]

    module = build_module(
        [VECTOR], loop([VECTOR, STACK], lambda b, x: [x, b.constant(0.0, STACK)], body)
    )
    plan = steps_of(module)
    update = next(
        s for s in plan.steps if isinstance(s, RunStep) and s.op.name == "dynamic_update_slice"
    )
    assert update.operands[0] is update.results[0]
    begin = min(plan.labels.values())
    assert not [step for step in plan.steps[begin:] if isinstance(step, CopyStep)]
    check(module, x8())


def test_carried_values_that_swap_go_through_temporaries():
    module = build_module(
        [VECTOR, VECTOR],
        loop([VECTOR, VECTOR], lambda b, x, y: [x, y], lambda b, i, x, y: [y, x], limit=3),
    )
    check(module, x8(), x8() + 1)


def test_a_carried_value_that_is_read_after_its_update_is_not_overwritten():
    def body(b, i, x, y):
        new = b("add", x, b.constant(1.0, VECTOR))
        return [new, b("multiply", b("tanh", new), x)]

    module = build_module([VECTOR, VECTOR], loop([VECTOR, VECTOR], lambda b, x, y: [x, y], body))
    check(module, x8(), x8())


def test_a_captured_value_survives_the_loop():
    def build(b, x):
        kept = b("exponential", x)
        inner = loop([VECTOR], lambda b, x: [x], lambda b, i, v: [b("add", b("tanh", v), kept)])
        (v,) = inner(b, x)
        return [v, b("negate", kept)]

    check(build_module([VECTOR], build), x8())


def test_nested_loops():
    def body(b, i, x):
        inner = loop([VECTOR], lambda b, v: [v], lambda b, j, v: [b("tanh", b("add", v, x))], 2)
        return [inner(b, b("negate", x))[0]]

    check(build_module([VECTOR], loop([VECTOR], lambda b, x: [x], body)), x8())


def test_branches_and_switches():
    def build(b, p, n, x):
        def branch(f):
            return build_region([], lambda b: [f(b)])

        one = b("if", p, type=VECTOR, regions=(
            branch(lambda b: b("negate", x)), branch(lambda b: b("tanh", x)),
        ))  # fmt: skip
        cases = [branch(lambda b, k=k: b("add", x, b.constant(float(k), VECTOR))) for k in range(3)]
        two = b("case", n, type=VECTOR, regions=tuple(cases))
        return [one, two]

    module = build_module([TensorType((), I1), SCALAR, VECTOR], build)
    program = girih.compile(module, options=girih.Options(disable=("loops",)))
    for p in (True, False):
        for n in (-5, 0, 1, 2, 3, 100):
            inputs = [np.array(p), np.array(n, np.int32), x8()]
            expected = girih.interpret(module, inputs)
            for left, right in zip(program(*inputs), expected, strict=True):
                np.testing.assert_allclose(left, right, rtol=1e-6)


def test_results_that_are_inputs_constants_or_given_twice():
    def build(b, x):
        y = b("tanh", x)
        return [x, y, y, b.constant(np.arange(3, dtype=np.float32)), b.constant(2.0, STACK), x]

    check(build_module([VECTOR], build), x8())


def test_a_chain_runs_in_one_buffer():
    def build(b, x):
        total = b.reduce("add", x, b.constant(0.0, TensorType((), F32)), (0,))
        for _ in range(3):
            big = b.broadcast(total, (4096,), ())
            total = b.reduce("add", b("tanh", b.transpose(b.reshape(big, (64, 64)), (1, 0))),
                             b.constant(0.0, TensorType((), F32)), (0, 1))  # fmt: skip
        return [total]

    program = check(build_module([VECTOR], build), x8())
    assert program.memory.arena_bytes <= 2 * 4096 * 4 + 1024


def test_donated_arguments_become_results():
    jax = pytest.importorskip("jax")

    def step(state, x):
        return state * 0.9 + x, (state * x).sum()

    donating = jax.jit(step, donate_argnums=0)
    state, x = x8(), x8() + 3
    program = girih.compile(donating, state, x)
    output = program.plan.buffers[program.plan.outputs[0]]
    assert output.HasField("replaces") and output.replaces == 0
    expected = step(state.copy(), x)
    given = state.copy()
    new, total = program(given, x)
    np.testing.assert_array_equal(given, state)
    new, total = program.donate(given, x)
    np.testing.assert_allclose(new, expected[0], rtol=1e-6)
    np.testing.assert_allclose(total, expected[1], rtol=1e-5)
    assert np.shares_memory(new, given)


def test_live_ranges_cover_the_loops_that_read_them():
    def build(b, x):
        kept = b("exponential", x)

        def body(b, i, v):
            total = b.reduce("add", v, b.constant(0.0, TensorType((), F32)), (0,))
            return [b("multiply", b.broadcast(total, (8,), ()), kept)]

        inner = loop([VECTOR], lambda b, x: [x], body)
        return inner(b, b("tanh", kept))

    plan = steps_of(build_module([VECTOR], build))
    ranges = live_ranges(plan)
    first = plan.steps[0]
    assert isinstance(first, RunStep)
    assert ranges[first.results[0]][1] == max(last for _, last in ranges.values())


def test_symbolic_sizes_are_refused_with_a_remedy():
    module = build_module([TensorType((SymbolicDim("n"),), F32)], lambda b, x: [b("tanh", x)])
    with pytest.raises(UnsupportedError, match="open sizes.*fixed"):
        steps_of(module)


def test_bits_under_another_type_need_no_kernel():
    """A product reads them where they lie; as a result they are copied."""

    def body(b, x, y):
        left, right = (b("bitcast_convert", v, type=v.tensor.with_element(F8)) for v in (x, y))
        total = b(
            "dot_general", left, right, type=TensorType((4, 3), F32),
            lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,),
        )  # fmt: skip
        return [total, left]

    module = build_module([TensorType((4, 8), UI8), TensorType((8, 3), UI8)], body)
    fused = Fuse()(module)
    kinds = [op.kind for op in fused.body.ops if op.name == "fusion"]
    assert sorted(kinds) == ["contract", "loop"]
    x, y = (np.linspace(-2, 2, n).astype(F8.dtype) for n in (32, 24))
    x, y = x.reshape(4, 8), y.reshape(8, 3)
    total, left = girih.compile(module)(x.view(np.uint8), y.view(np.uint8))
    np.testing.assert_allclose(total, x.astype(np.float32) @ y.astype(np.float32), rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(left).view(np.uint8), x.view(np.uint8))
