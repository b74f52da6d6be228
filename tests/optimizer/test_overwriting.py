"""Which kernels may write a result where an operand lies, and that they are right when they do."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import girih
from girih.hlo.build import Builder, build_module, build_region, make_op
from girih.hlo.graph import Module, Op, Value, arguments
from girih.hlo.ops.convolution import numbers
from girih.hlo.ops.tile_examples import INDEX, index, scaled
from girih.hlo.signature import Signature
from girih.hlo.types import BF16, F32, I1, TensorType
from girih.optimizer.overwriting import hinders_of, may_overwrite, tiles_may_overwrite

SCALAR = TensorType((), F32)
LINE, MATRIX = TensorType((24,), F32), TensorType((24, 8), F32)
Body = Callable[..., None]


def fused(types: list[TensorType], body: Any) -> Op:
    return make_op("fusion", arguments(types), {"kind": "loop"}, (build_region(types, body),))


def test_reshapes_keep_the_order_of_elements() -> None:
    """An update of a weight whose gradient has other dims, as of attention's heads."""
    other = TensorType((24, 2, 4), F32)

    def update(b, x, g):
        return [b.reshape(b("subtract", b.reshape(x, other.dims), g), MATRIX.dims)]

    assert may_overwrite(fused([MATRIX, other], update), 0, 0)

    def turned(b, x, g):
        flat = b.reshape(b.transpose(x, (1, 0)), MATRIX.dims)
        return [b("subtract", flat, g)]

    assert not may_overwrite(fused([MATRIX, MATRIX], turned), 0, 0)

    def spread(b, x, g):
        one = b("slice", x, start_indices=(0, 0), limit_indices=(1, 8), strides=(1, 1))
        return [b("subtract", x, b.broadcast(b.reshape(one, (8,)), MATRIX.dims, (1,)))]

    assert not may_overwrite(fused([MATRIX, MATRIX], spread), 0, 0)


def test_a_contraction_and_what_follows_from_its_result() -> None:
    """A sum lies where a term did, also beside its narrow form; another result that reads the term
    itself, and tiles that are stored one after the other, need it apart."""
    square = TensorType((24, 24), F32)
    types = [MATRIX, TensorType((8, 24), F32), square]

    def contraction(body: Any) -> Op:
        region = build_region(types, body)
        return make_op("fusion", arguments(types), {"kind": "contract"}, (region,))

    def total(b: Builder, x: Value, w: Value, y: Value) -> Value:
        product = b(
            "dot_general", x, w, lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,)
        )
        return b("add", product, y)

    def narrowed(b: Builder, *values: Value) -> list[Value]:
        z = total(b, *values)
        return [z, b.convert(b("tanh", z), BF16)]

    def beside(b: Builder, x: Value, w: Value, y: Value) -> list[Value]:
        z = total(b, x, w, y)
        return [z, b.convert(b("add", z, y), BF16)]

    one, other = contraction(narrowed), contraction(beside)
    assert may_overwrite(one, 2, 0)
    assert not may_overwrite(other, 2, 0)
    assert not hinders_of(True)(one, 2, 0) and hinders_of(True)(other, 2, 0)
    assert hinders_of(False)(one, 2, 0)


def kernel(
    body: Body,
    grid: tuple[int, ...] = (3,),
    inputs: int = 2,
    results: int = 1,
    type: TensorType = LINE,
    **facts: Any,
) -> Op:
    def complete(b: Builder, *memory: Value) -> list[Value]:
        body(b, *memory)
        return []

    region = build_region([type] * (inputs + results), complete)
    attributes = {"kernel": "test", "grid": grid, **facts}
    operands = arguments([type] * inputs)
    return make_op("kernel_call", operands, attributes, (region,), [type] * results)


def loaded(b: Builder, memory: Value, *start: Value, size: int = 8) -> Value:
    return b("tile_load", memory, *start, sizes=(size,) * len(start))


def added(b: Builder, x: Value, y: Value, out: Value) -> None:
    start = scaled(b, 0, 8)
    b.op("tile_store", [out, b("add", loaded(b, x, start), loaded(b, y, start)), start])


def test_a_window_that_is_read_and_stored_by_one_tile() -> None:
    assert tiles_may_overwrite(kernel(added), 0, 0) and tiles_may_overwrite(kernel(added), 1, 0)
    # The last tile reaches outside; a grid of one tile tells nothing apart.
    assert tiles_may_overwrite(kernel(added, grid=(4,)), 0, 0)
    assert tiles_may_overwrite(kernel(added, grid=(3, 1)), 0, 0)


def shifted(b: Builder, x: Value, y: Value, out: Value) -> None:
    start = scaled(b, 0, 8)
    other = b("add", start, index(b, 1))
    b.op("tile_store", [out, b("add", loaded(b, x, other), loaded(b, x, start)), start])


def longer(b: Builder, x: Value, y: Value, out: Value) -> None:
    start = scaled(b, 0, 8)
    tile = b("slice", loaded(b, x, start, size=9), start_indices=(0,), limit_indices=(8,),
             strides=(1,))  # fmt: skip
    b.op("tile_store", [out, tile, start])


def close_together(b: Builder, x: Value, y: Value, out: Value) -> None:
    start = scaled(b, 0, 7)
    b.op("tile_store", [out, loaded(b, x, start), start])


def one_place(b: Builder, x: Value, y: Value, out: Value) -> None:
    start = index(b, 0)
    b.op("tile_store", [out, loaded(b, x, start), start])


def masked(b: Builder, x: Value, y: Value, out: Value) -> None:
    start = scaled(b, 0, 8)
    kind = TensorType((8,), I1)
    tile = loaded(b, x, start)
    b.op("tile_store", [out, tile, start, b.constant(True, kind)], {"masked": True})


def combined(b: Builder, x: Value, y: Value, out: Value) -> None:
    start = scaled(b, 0, 8)
    b.op("tile_store", [out, loaded(b, x, start), start], {"combine": "add"})


def twice(b: Builder, x: Value, y: Value, out: Value) -> None:
    start = scaled(b, 0, 8)
    tile = loaded(b, x, start)
    b.op("tile_store", [out, tile, start])
    b.op("tile_store", [out, b("negate", tile), start])


def in_a_loop(b: Builder, x: Value, y: Value, out: Value) -> None:
    def turn(c: Builder, i: Value) -> list[Value]:
        start = c("multiply", i, index(c, 8))
        c.op("tile_store", [out, loaded(c, x, start), start])
        return []

    region = build_region([INDEX], turn)
    b.op("tile_for", [index(b, 0), index(b, 3)], {"step": 1}, (region,), [])


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        (shifted, {}), (longer, {}), (close_together, {}), (one_place, {}), (masked, {}),
        (combined, {}), (twice, {}), (in_a_loop, {"grid": ()}), (added, {"grid": (3, 2)}),
        (added, {"starts": (0,)}),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)  # fmt: skip
def test_other_windows_stay_apart(body: Body, facts: dict[str, Any]) -> None:
    assert not tiles_may_overwrite(kernel(body, **facts), 0, 0)


def test_what_is_computed_behind_the_store_may_not_read() -> None:
    def after(b: Builder, x: Value, y: Value, first: Value, second: Value) -> None:
        start = scaled(b, 0, 8)
        tile = loaded(b, x, start)
        b.op("tile_store", [first, loaded(b, y, start), start])
        b.op("tile_store", [second, b("negate", tile), start])

    late = kernel(after, results=2)
    assert not tiles_may_overwrite(late, 0, 0) and tiles_may_overwrite(late, 0, 1)
    assert tiles_may_overwrite(late, 1, 0)


# What compiled code does.


def donating(module: Module, pairs: dict[int, int | None]) -> Module:
    given, gives = (
        [(value.tensor.dims, value.element.name) for value in values]
        for values in (module.body.arguments, module.body.results)
    )
    return replace(module, signature=Signature.plain(given, gives).donating(pairs))


def agrees(module: Module, pairs: dict[int, int], inputs: list[np.ndarray]) -> None:
    """The program gives the interpreter's numbers, whether it may overwrite its arguments or not,
    and does overwrite them; all threads, one after the other, and all edges of its windows."""
    wanted = girih.interpret(module, inputs)
    for threads in (1, 3):
        program = girih.compile(
            donating(module, dict(pairs)), options=girih.Options(threads=threads)
        )
        kept = program(*inputs)
        own = [array.copy() for array in inputs]
        found = program.donate(*own)
        for number, array in enumerate(wanted):
            np.testing.assert_allclose(kept[number], array, rtol=2e-5, atol=2e-6)
            np.testing.assert_array_equal(found[number], kept[number])
        assert program.memory.replaced_bytes == sum(inputs[argument].nbytes for argument in pairs)
        for argument, result in pairs.items():
            assert np.shares_memory(own[argument], found[result])
        assert not any("donated" in note for note in program.plan.notes)


WIDTH = 16


def tile_function(chance: random.Random) -> tuple[Module, dict[int, int], list[np.ndarray]]:
    """Expressions over windows of whole rows: elementwise ones, sums of rows, products; several
    results, some of them where operands lie."""
    rows, size, count = chance.choice([16, 20, 24]), chance.choice([4, 8]), chance.randint(1, 3)
    memory, square = TensorType((rows, WIDTH), F32), TensorType((WIDTH, WIDTH), F32)

    def body(b: Builder, *memories: Value) -> list[Value]:
        start, zero = scaled(b, 0, size), index(b, 0)
        *inputs, weight = memories[: count + 1]
        w = b("tile_load", weight, zero, zero, sizes=square.dims)
        known = [b("tile_load", x, start, zero, sizes=(size, WIDTH)) for x in inputs]
        for _ in range(chance.randint(count, 7)):
            known.append(_expression(b, chance, chance.choice(known), chance.choice(known), w))
        for target in memories[count + 1 :]:
            b.op("tile_store", [target, chance.choice(known[count:]), start, zero])
        return []

    region = build_region([*[memory] * count, square, *[memory] * count], body)
    facts = {"kernel": "random", "grid": (-(-rows // size),)}

    def call(b: Builder, *values: Value) -> list[Value]:
        made = make_op("kernel_call", values, facts, (region,), [memory] * count)
        return list(b.append(made).results)

    module = build_module([*[memory] * count, square], call)
    (op,) = module.body.ops
    free, pairs = list(range(count)), {}
    for operand in range(count):
        fitting = [result for result in free if tiles_may_overwrite(op, operand, result)]
        if fitting:
            pairs[operand] = chance.choice(fitting)
            free.remove(pairs[operand])
    generator = np.random.default_rng(chance.randint(0, 1000))
    kinds = [value.tensor for value in module.body.arguments]
    inputs = [(generator.standard_normal(kind.dims) * 0.4).astype(np.float32) for kind in kinds]
    return module, pairs, inputs


def _expression(b: Builder, chance: random.Random, x: Value, y: Value, w: Value) -> Value:
    kind = chance.choice(("add", "multiply", "tanh", "rows", "product", "columns"))
    if kind == "product":
        return b("dot_general", x, w, lhs_contracting_dimensions=(1,),
                 rhs_contracting_dimensions=(0,))  # fmt: skip
    if kind in ("rows", "columns"):
        dim = int(kind == "rows")
        total = b.reduce("add", x, b.constant(0.0, SCALAR), (dim,))
        return b("subtract", y, b.broadcast(total, x.dims, (1 - dim,)))
    return b("tanh", x) if kind == "tanh" else b(kind, x, y)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32))
def test_tile_functions_overwrite_their_operands(seed: int) -> None:
    agrees(*tile_function(random.Random(seed)))


CONVOLUTIONS = {
    "features last": ((2, 9, 7, 12), (3, 3, 12, 20), ("NHWC", "HWIO", "NHWC"), {}),
    "pixels last": ((2, 5, 9, 7), (6, 5, 3, 3), ("NCHW", "OIHW", "NCHW"), {}),
    "one pixel": ((1, 8, 8, 16), (1, 1, 16, 24), ("NHWC", "HWIO", "NHWC"), {}),
    "grouped": ((1, 6, 6, 8), (3, 3, 4, 6), ("NHWC", "HWIO", "NHWC"), {"feature_group_count": 2}),
    "each feature": (
        (1, 9, 9, 20), (3, 3, 1, 20), ("NHWC", "HWIO", "NHWC"), {"feature_group_count": 20},
    ),
    "each plane": (
        (1, 4, 9, 9), (4, 1, 3, 3), ("NCHW", "OIHW", "NCHW"), {"feature_group_count": 4},
    ),
    "spread": ((1, 5, 5, 8), (3, 3, 8, 16), ("NHWC", "HWIO", "NHWC"), {"lhs_dilation": (2, 2)}),
    "Winograd": ((1, 15, 13, 32), (3, 3, 32, 32), ("NHWC", "HWIO", "NHWC"), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_what_follows_a_convolution_overwrites_what_it_reads(name: str) -> None:
    """Such as the mask of an activation, or the other branch of a residual block."""
    import jax
    import jax.numpy as jnp

    image, weights, places, more = CONVOLUTIONS[name]
    generator = np.random.default_rng(3)
    x, w = (generator.standard_normal(dims).astype(np.float32) * 0.3 for dims in (image, weights))
    window: dict[str, Any] = {"window_strides": (1, 1), "dimension_numbers": places, **more}
    padding = ((1, 2), (1, 2)) if name == "spread" else "SAME"

    def follows(y: jax.Array, x: jax.Array) -> jax.Array:
        made = jax.lax.conv_general_dilated(x, jnp.asarray(w), padding=padding, **window)
        return jnp.where(y > 0, made, 0) + y

    shape = jax.eval_shape(
        lambda x: jax.lax.conv_general_dilated(x, w, padding=padding, **window), x
    ).shape
    y = generator.standard_normal(shape).astype(np.float32)
    module = girih.import_model(follows, y, x)
    agrees(module, {0: 0}, [y, x])


def test_a_convolution_needs_its_own_operands() -> None:
    kind = TensorType((1, 6, 6, 8), F32)

    def body(b: Builder, x: Value, w: Value) -> list[Value]:
        made = b("convolution", x, w, **numbers(2), padding=((1, 1), (1, 1)))
        return [b("add", made, x)]

    region = build_region([kind, TensorType((3, 3, 8, 8), F32)], body)
    op = make_op("fusion", arguments(region.argument_types), {"kind": "contract"}, (region,))
    assert not may_overwrite(op, 0, 0)


def test_a_window_that_a_later_step_reads_is_stored_last() -> None:
    """The sum of rows of what was there is needed when the first result could be written."""

    def call(b: Builder, x: Value, y: Value) -> list[Value]:
        def body(c: Builder, x: Value, y: Value, first: Value, second: Value) -> list[Value]:
            start, zero = scaled(c, 0, 8), index(c, 0)
            one, two = (c("tile_load", v, start, zero, sizes=(8, 8)) for v in (x, y))
            changed = c("add", one, two)
            total = c.reduce("add", c("multiply", one, one), c.constant(0.0, SCALAR), (0,))
            other = c("multiply", c.broadcast(total, (8, 8), (1,)), one)
            c.op("tile_store", [first, changed, start, zero])
            c.op("tile_store", [second, other, start, zero])
            return []

        region = build_region([MATRIX] * 4, body)
        facts = {"kernel": "later", "grid": (3,)}
        return list(b.append(make_op("kernel_call", [x, y], facts, (region,))).results)

    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal(MATRIX.dims).astype(np.float32) for _ in range(2)]
    agrees(build_module([MATRIX, MATRIX], call), {0: 0, 1: 1}, inputs)
