"""Rows of stacks in place: what moves into kernels, what must not, and the same bits as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module, build_region
from girih.hlo.graph import Module, Op, Value
from girih.hlo.types import F32, I32, TensorType
from girih.hlo.verify import verify
from girih.optimizer.carried import COPIED_BYTES
from girih.optimizer.overwriting import may_overwrite
from girih.optimizer.passes.fuse import Fuse
from girih.optimizer.passes.order import Order
from girih.optimizer.passes.stacks import Stacks
from girih.optimizer.schedule import CopyStep, JumpStep, RunStep, schedule
from girih.optimizer.windows import UPDATE, updated

EVERY = Stacks(frozenset({"loop", "rows", "reduce", "contract"}))
COUNT, LINE, STACK = TensorType((), I32), TensorType((64,), F32), TensorType((8, 64), F32)
SQUARE, ROWS = TensorType((48, 48), F32), TensorType((8, 48, 48), F32)
Body = Callable[..., list[Any]]


def looped(kinds: list[TensorType], body: Body, limit: int = 8) -> Module:
    """A program that carries its arguments through a counted loop; body(b, i, *carried)."""

    def build(b: Any, *start: Value) -> Any:
        carried = [COUNT, *kinds]

        def condition(b: Any, i: Value, *rest: Value) -> Any:
            return [b.compare("LT", i, b.constant(limit, COUNT))]

        def turn(b: Any, i: Value, *rest: Value) -> Any:
            return [b("add", i, b.constant(1, COUNT)), *body(b, i, *rest)]

        regions = (build_region(carried, condition), build_region(carried, turn))
        first = [b.constant(0, COUNT), *start]
        return b.op("while", first, {}, regions, carried).results[1:]

    return build_module(kinds, build)


def put(b: Any, stack: Any, row: Any, i: Any) -> Any:
    zero = b.constant(0, COUNT)
    row = b.reshape(row, (1, *row.dims))
    return b("dynamic_update_slice", stack, row, i, *[zero] * (stack.rank - 1))


def take(b: Any, stack: Any, i: Any) -> Any:
    zero, sizes = b.constant(0, COUNT), (1, *stack.dims[1:])
    row = b("dynamic_slice", stack, i, *[zero] * (stack.rank - 1), slice_sizes=sizes)
    return b.reshape(row, sizes[1:])


def dot(b: Any, x: Any, y: Any) -> Any:
    numbers = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
    return b("dot_general", x, y, **numbers)


def after(module: Module) -> Module:
    """The fused module after the pass, which means the same."""
    fused = Fuse()(module)
    changed = EVERY(fused)
    verify(changed)
    inputs = arrays(module)
    for left, right in zip(
        girih.interpret(changed, inputs), girih.interpret(fused, inputs), strict=True
    ):
        np.testing.assert_array_equal(left, right)
    assert EVERY(changed) is changed
    return changed


def arrays(module: Module) -> list[np.ndarray]:
    generator = np.random.default_rng(3)
    return [
        (generator.standard_normal(kind.dims) / 8).astype(kind.dtype)
        for kind in (argument.tensor for argument in module.body.arguments)
    ]


def updates(module: Module) -> list[Op]:
    """The updates that are kernels of their own."""
    body = next(op for op in module.body.ops if op.name == "while").regions[1]
    return [op for op in body.ops if op.name == UPDATE]


def copied(module: Module) -> int:
    """Bytes of the largest copy in a loop of the ordered module."""
    plan, inside = schedule(Order()(module)), set[int]()
    for number, step in enumerate(plan.steps):
        if isinstance(step, JumpStep) and step.back:
            inside.update(range(plan.labels[step.target], number))
    copies = [step for n, step in enumerate(plan.steps) if n in inside]
    return max((step.target.bytes for step in copies if isinstance(step, CopyStep)), default=0)


def same_bits(module: Module) -> None:
    """The compiled program gives the bits that it gives without the pass."""
    inputs = arrays(module)
    results = []
    for disabled in ((), ("stacks",)):
        options = girih.Options(cache="off", disable=("loops", *disabled))
        results.append(girih.compile(module, options=options)(*inputs))
    for left, right in zip(*results, strict=True):
        np.testing.assert_array_equal(left, right)


def elementwise(b: Any, i: Any, x: Any, stack: Any) -> list[Any]:
    new = b("tanh", b("add", x, x))
    return [new, put(b, stack, new, i)]


def backwards(b: Any, i: Any, x: Any, stack: Any) -> list[Any]:
    """The index is computed by a kernel that stood behind the row's."""
    new = b("tanh", b("add", x, x))
    return [new, put(b, stack, new, b("subtract", b.constant(7, COUNT), i))]


def two_stacks(b: Any, i: Any, x: Any, one: Any, two: Any) -> list[Any]:
    new = b("tanh", b("add", x, x))
    return [new, put(b, one, new, i), put(b, two, b("multiply", new, x), i)]


def as_it_was(b: Any, i: Any, x: Any, stack: Any) -> list[Any]:
    """The row is there when the turn begins; a kernel that reads it writes it down."""
    return [b("tanh", x), put(b, stack, x, i)]


def rows_of_sums(b: Any, i: Any, x: Any, stack: Any) -> list[Any]:
    sums = b.reduce("add", b("multiply", x, x), b.constant(0, TensorType((), F32)), (1,))
    return [b("subtract", x, b.broadcast(sums, x.dims, (0,))), put(b, stack, sums, i)]


def products(b: Any, i: Any, x: Any, stack: Any) -> list[Any]:
    new = b("tanh", dot(b, x, x))
    return [new, put(b, stack, new, i)]


BODIES: dict[str, tuple[list[TensorType], Body]] = {
    "elementwise": ([LINE, STACK], elementwise),
    "backwards": ([LINE, STACK], backwards),
    "two stacks": ([LINE, STACK, STACK], two_stacks),
    "as it was": ([LINE, STACK], as_it_was),
    "rows": ([TensorType((64, 16), F32), STACK], rows_of_sums),
    "products": ([SQUARE, ROWS], products),
}


@pytest.mark.parametrize("name", BODIES)
def test_kernels_write_rows_where_they_lie(name: str) -> None:
    module = looped(*BODIES[name])
    assert updates(Fuse()(module))
    changed = after(module)
    assert not updates(changed) and copied(changed) <= COPIED_BYTES
    same_bits(module)


def test_a_product_reads_rows_where_they_lie() -> None:
    def build(b: Any, rows: Value, weights: Value, x: Value) -> Any:
        def body(b: Any, i: Any, x: Any) -> list[Any]:
            return [b("tanh", b("add", dot(b, x, take(b, weights, i)), take(b, rows, i)))]

        carried = [COUNT, SQUARE]

        def condition(b: Any, i: Value, *rest: Value) -> Any:
            return [b.compare("LT", i, b.constant(8, COUNT))]

        def turn(b: Any, i: Value, x: Value) -> Any:
            return [b("add", i, b.constant(1, COUNT)), *body(b, i, x)]

        regions = (build_region(carried, condition), build_region(carried, turn))
        return b.op("while", [b.constant(0, COUNT), x], {}, regions, carried).results[1:]

    module = build_module([ROWS, ROWS, SQUARE], build)
    changed = after(module)
    body = next(op for op in changed.body.ops if op.name == "while").regions[1]
    assert [op.kind for op in body.ops if op.name == "fusion" and op.results[0].rank] == [
        "contract"
    ]
    same_bits(module)


def read_before(b: Any, i: Any, x: Any, stack: Any) -> list[Any]:
    old = b.reduce("add", stack, b.constant(0, TensorType((), F32)), (0,))
    new = b("tanh", b("add", x, old))
    return [new, put(b, stack, b("multiply", x, x), i)]


def found_place(b: Any, i: Any, x: Any, stack: Any) -> list[Any]:
    """Where the row goes is known when the row is."""
    new = b("tanh", b("add", x, x))
    best = b.reduce("maximum", new, b.constant(-9, TensorType((), F32)), (0,))
    place = b.convert(b("multiply", best, b.constant(7, TensorType((), F32))), I32)
    return [new, put(b, stack, new, place)]


def crossed(b: Any, i: Any, x: Any, y: Any, one: Any, two: Any) -> list[Any]:
    """The row of each stack says where the row of the other one goes."""
    new, other = b("tanh", x), b("sine", y)

    def place(value: Any) -> Any:
        zero = b.constant(0, TensorType((), F32))
        return b.convert(b.reduce("add", value, zero, (0,)), I32)

    return [new, other, put(b, one, new, place(other)), put(b, two, other, place(new))]


def columns(b: Any, i: Any, x: Any, stack: Any) -> list[Any]:
    new = b("tanh", b("add", x, x))
    column = b.reshape(new, (64, 1))
    return [new, b("dynamic_update_slice", stack, column, b.constant(0, COUNT), i)]


def read_by_products(b: Any, i: Any, x: Any, stack: Any) -> list[Any]:
    return [dot(b, x, x), put(b, stack, x, i)]


def returned_twice(b: Any, i: Any, x: Any, one: Any, two: Any) -> list[Any]:
    new = b("tanh", b("add", x, x))
    written = put(b, one, new, i)
    return [new, written, written]


NOTHING: dict[str, tuple[list[TensorType], Body, int]] = {
    "read before": ([LINE, STACK], read_before, 1),
    "found place": ([LINE, STACK], found_place, 1),
    "crossed": ([LINE, LINE, STACK, STACK], crossed, 1),
    "columns": ([LINE, TensorType((64, 8), F32)], columns, 1),
    "read by products": ([SQUARE, ROWS], read_by_products, 1),
    "returned twice": ([LINE, STACK, STACK], returned_twice, 1),
}


@pytest.mark.parametrize("name", NOTHING)
def test_other_updates_stay_on_their_own(name: str) -> None:
    kinds, body, left = NOTHING[name]
    module = looped(kinds, body)
    assert len(updates(after(module))) == left
    same_bits(module)


def test_kinds_that_a_target_does_not_take_stay() -> None:
    module = Fuse()(looped(*BODIES["elementwise"]))
    assert Stacks(frozenset({"contract"}))(module) is module


def test_a_donated_stack_is_updated_on_its_own() -> None:
    """Whether the rest of it has to be copied is known at each call."""
    jax = pytest.importorskip("jax")

    def step(stack: Any, x: Any, i: Any) -> Any:
        return jax.lax.dynamic_update_slice(stack, jax.numpy.tanh(x)[None], (i, 0))

    stack, x = np.ones((8, 64), np.float32), np.linspace(-1, 1, 64, dtype=np.float32)
    program = girih.compile(jax.jit(step, donate_argnums=0), stack, x, np.int32(2))
    assert [UPDATE] in [list(kernel.ops) for kernel in program.plan.kernels]
    assert not any("copy" in kernel.name for kernel in program.plan.kernels)
    for i in (2, -5, 99):
        expected = step(stack, x, np.int32(i))
        np.testing.assert_allclose(program(stack, x, np.int32(i)), expected, rtol=1e-6)
    assert np.shares_memory(program.donate(stack, x, np.int32(3)), stack)


# What a schedule does with a kernel that writes a part.


def partly() -> Module:
    """A program of one fusion that writes a row of its second argument."""

    def inner(b: Any, x: Any, stack: Any, i: Any) -> list[Any]:
        return [put(b, stack, b("multiply", x, x), i)]

    def build(b: Any, x: Value, stack: Value, i: Value) -> Any:
        own = [x, stack, i]
        region = build_region([value.type for value in own], inner)
        return b.op("fusion", own, {"kind": "loop"}, [region], [stack.type]).results

    return build_module([LINE, STACK, COUNT], build)


def test_what_stays_of_an_array_is_copied_where_it_cannot_be_overwritten() -> None:
    module = partly()
    plan = schedule(module)
    copy, run = plan.steps
    assert isinstance(copy, CopyStep) and isinstance(run, RunStep)
    assert copy.source is plan.inputs[1] and copy.target is run.results[0] is run.operands[1]
    assert updated(run.op) == {0: 1}


def test_only_what_is_updated_may_be_overwritten() -> None:
    (op,) = partly().body.ops
    assert [may_overwrite(op, n, 0) for n in range(3)] == [False, True, False]
