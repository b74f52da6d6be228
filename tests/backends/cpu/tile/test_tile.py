"""Tile functions on the CPU against their interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from girih.backends.cpu import codegen, kernels
from girih.backends.cpu.tile.layout import swap_operands
from girih.backends.cpu.tile.nests import EMITTERS
from girih.hlo.build import build_region, make_op
from girih.hlo.graph import Op, arguments
from girih.hlo.ops.tile import INDEX
from girih.hlo.types import BF16, F16, F32, F64, I1, I8, I32, TensorType, tensor_of
from girih.optimizer.tiles.steps import Cutter

from ....levels import levels
from ..harness import check

pytestmark = pytest.mark.usefixtures("each_level")
RNG = np.random.default_rng(7)


def call(
    body: Callable[..., Any],
    inputs: Sequence[np.ndarray],
    results: Sequence[TensorType],
    grid: tuple[int, ...],
    starts: tuple[int, ...] = (),
) -> Op:
    """A kernel_call; the body stores, so it returns nothing."""
    types = [tensor_of(array) for array in inputs]

    def run(b: Any, *memory: Any) -> list[Any]:
        body(b, *memory)
        return []

    region = build_region([*types, *results], run)
    attributes = {"kernel": "test", "grid": grid, "starts": starts}
    return make_op("kernel_call", arguments(types), attributes, (region,))


def f32(*dims: int) -> np.ndarray:
    return RNG.standard_normal(dims).astype(np.float32)


def tensor(*dims: int, element: Any = F32) -> TensorType:
    return TensorType(dims, element)


def index(b: Any, axis: int, size: int) -> Any:
    return b("multiply", b("tile_id", axis=axis), b.constant(size, INDEX))


def spread(b: Any, value: Any, dims: tuple[int, ...], mapped: tuple[int, ...] = ()) -> Any:
    return b.broadcast(value, dims, mapped)


@pytest.mark.parametrize("size", [1, 7, 64, 100])
@pytest.mark.parametrize("length", [1, 64, 1000])
def test_vector_add(size: int, length: int) -> None:
    def body(b: Any, x: Any, y: Any, out: Any) -> None:
        at = index(b, 0, size)
        total = b("add", b("tile_load", x, at, sizes=(size,)), b("tile_load", y, at, sizes=(size,)))
        b.op("tile_store", [out, total, at])

    inputs = [f32(length), f32(length)]
    check(call(body, inputs, [tensor(length)], (-(-length // size),)), inputs)


def matmul(m: int, n: int, k: int, bm: int, bn: int, bk: int, transposed: bool = False) -> Op:
    x = tensor(m, k)
    y = tensor(n, k) if transposed else tensor(k, n)

    def body(b: Any, x: Any, y: Any, out: Any) -> None:
        i, j = index(b, 0, bm), index(b, 1, bn)

        def step(b: Any, k0: Any, total: Any) -> list[Any]:
            at = b("multiply", k0, b.constant(bk, INDEX))
            left = b("tile_load", x, i, at, sizes=(bm, bk))
            if transposed:
                right = b("tile_load", y, j, at, sizes=(bn, bk))
            else:
                right = b("tile_load", y, at, j, sizes=(bk, bn))
            product = b(
                "dot_general", left, right, type=tensor(bm, bn), lhs_batching_dimensions=(),
                rhs_batching_dimensions=(), lhs_contracting_dimensions=(1,),
                rhs_contracting_dimensions=(1,) if transposed else (0,),
                precision_config=(),
            )  # fmt: skip
            return [b("add", total, product)]

        region = build_region([INDEX, tensor(bm, bn)], step)
        zero, steps = b.constant(0, INDEX), b.constant(-(-k // bk), INDEX)
        loop = b.op("tile_for", [zero, steps, b.constant(0, tensor(bm, bn))], {}, (region,))
        b.op("tile_store", [out, loop.result, i, j])

    inputs = [np.zeros(x.dims, np.float32), np.zeros(y.dims, np.float32)]
    return call(body, inputs, [tensor(m, n)], (-(-m // bm), -(-n // bn)))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "sizes", [(64, 64, 64, 32, 32, 16), (50, 70, 45, 32, 32, 16), (5, 3, 4, 8, 8, 8)]
)
def test_matmul(sizes: tuple[int, ...], transposed: bool) -> None:
    op = matmul(*sizes, transposed=transposed)
    inputs = [f32(*value.dims) for value in op.operands]
    check(op, inputs, tolerance=1e-5)


def softmax(b: Any, x: Any) -> Any:
    rows, columns = x.dims
    low = b.constant(-np.inf, tensor())
    top = spread(b, b.reduce("maximum", x, low, (1,)), (rows, columns), (0,))
    powers = b("exponential", b("subtract", x, top))
    total = b.reduce("add", powers, b.constant(0, tensor()), (1,))
    return b("divide", powers, spread(b, total, (rows, columns), (0,)))


@pytest.mark.parametrize(("rows", "columns", "tile"), [(8, 64, 4), (9, 37, 4), (3, 5, 1)])
def test_softmax(rows: int, columns: int, tile: int) -> None:
    def body(b: Any, x: Any, out: Any) -> None:
        at, zero = index(b, 0, tile), b.constant(0, INDEX)
        value = b("tile_load", x, at, zero, sizes=(tile, columns))
        b.op("tile_store", [out, softmax(b, value), at, zero])

    inputs = [f32(rows, columns)]
    check(call(body, inputs, [tensor(rows, columns)], (-(-rows // tile),)), inputs, tolerance=1e-5)


def attention(heads: int, length: int, depth: int, bq: int, bk: int) -> Op:
    kind = tensor(heads, length, depth)

    def body(b: Any, q: Any, k: Any, v: Any, out: Any) -> None:
        head, row, zero = b("tile_id", axis=0), index(b, 1, bq), b.constant(0, INDEX)
        query = b.reshape(b("tile_load", q, head, row, zero, sizes=(1, bq, depth)), (bq, depth))

        def dot(b: Any, left: Any, right: Any, dims: tuple[int, ...], side: int) -> Any:
            return b(
                "dot_general", left, right, type=tensor(*dims), lhs_batching_dimensions=(),
                rhs_batching_dimensions=(), lhs_contracting_dimensions=(1,),
                rhs_contracting_dimensions=(side,), precision_config=(),
            )  # fmt: skip

        def step(b: Any, number: Any, top: Any, total: Any, sums: Any) -> list[Any]:
            at = b("multiply", number, b.constant(bk, INDEX))
            keys = b.reshape(b("tile_load", k, head, at, zero, sizes=(1, bk, depth)), (bk, depth))
            values = b("tile_load", v, head, at, zero, sizes=(1, bk, depth))
            values = b.reshape(values, (bk, depth))
            scores = dot(b, query, keys, (bq, bk), 1)
            scores = b("multiply", scores, b.constant(depth**-0.5, scores.type))
            low = b.constant(-np.inf, tensor())
            new = b("maximum", top, b.reduce("maximum", scores, low, (1,)))
            powers = b("exponential", b("subtract", scores, spread(b, new, (bq, bk), (0,))))
            scale = b("exponential", b("subtract", top, new))
            part = b.reduce("add", powers, b.constant(0, tensor()), (1,))
            total = b("add", b("multiply", total, scale), part)
            sums = b("multiply", sums, spread(b, scale, (bq, depth), (0,)))
            return [new, total, b("add", sums, dot(b, powers, values, (bq, depth), 0))]

        region = build_region([INDEX, tensor(bq), tensor(bq), tensor(bq, depth)], step)
        start = [b.constant(-1e30, tensor(bq)), b.constant(0, tensor(bq))]
        start.append(b.constant(0, tensor(bq, depth)))
        steps = b.constant(length // bk, INDEX)
        loop = b.op("tile_for", [zero, steps, *start], {}, (region,))
        _, total, sums = loop.results
        result = b("divide", sums, spread(b, total, (bq, depth), (0,)))
        b.op("tile_store", [out, b.reshape(result, (1, bq, depth)), head, row, zero])

    inputs = [np.zeros(kind.dims, np.float32)] * 3
    return call(body, inputs, [kind], (heads, -(-length // bq)))


@pytest.mark.parametrize("sizes", [(2, 64, 16, 16, 32), (1, 96, 8, 20, 32)])
def test_attention(sizes: tuple[int, ...]) -> None:
    op = attention(*sizes)
    inputs = [f32(*value.dims) for value in op.operands]
    check(op, inputs, tolerance=1e-5)


def test_loops_inside_branches_inside_loops() -> None:
    """Carried values that change places, stay, come from outside, and are scalars."""

    def body(b: Any, x: Any, out: Any) -> None:
        at = index(b, 0, 8)
        first = b("tile_load", x, at, sizes=(8,))
        other = b("negate", first)

        def step(b: Any, i: Any, p: Any, q: Any, same: Any, count: Any) -> list[Any]:
            odd = b.compare("EQ", b("remainder", i, b.constant(2, INDEX)), b.constant(1, INDEX))
            yes = build_region([], lambda b: [b("add", q, same), p])
            no = build_region([], lambda b: [q, first])
            left, right = b.op("if", [odd], {}, (yes, no)).results
            return [right, left, same, b("add", count, i)]

        kind = tensor(8)
        region = build_region([INDEX, kind, kind, kind, INDEX], step)
        zero = b.constant(0, INDEX)
        loop = b.op(
            "tile_for", [zero, b.constant(5, INDEX), first, other, other, zero], {}, (region,)
        )
        p, q, _, count = loop.results
        scale = spread(b, b.convert(count, F32), (8,))
        b.op("tile_store", [out, b("multiply", b("subtract", p, q), scale), at])

    inputs = [f32(20)]
    check(call(body, inputs, [tensor(20)], (3,)), inputs, tolerance=1e-6)


def test_while_until_a_sum_is_small_and_offsets_from_data() -> None:
    def body(b: Any, x: Any, where: Any, out: Any) -> None:
        number = b("tile_id", axis=0)
        place = b.reshape(b("tile_load", where, number, sizes=(1,)), ())
        value = b("tile_load", x, place, b.constant(0, INDEX), sizes=(2, 8), fill=2.0)
        limit = b.constant(1.0, tensor())

        def total(b: Any, value: Any) -> Any:
            return b.reduce("add", b("abs", value), b.constant(0, tensor()), (0, 1))

        condition = build_region(
            [value.type, tensor()], lambda b, v, s: [b.compare("GT", s, limit)]
        )

        def halve(b: Any, value: Any, _: Any) -> list[Any]:
            half = b("multiply", value, b.constant(0.5, value.type))
            return [half, total(b, half)]

        step = build_region([value.type, tensor()], halve)
        loop = b.op("while", [value, total(b, value)], {}, (condition, step))
        row = b("multiply", number, b.constant(2, INDEX))
        b.op("tile_store", [out, loop.results[0], row, b.constant(0, INDEX)])

    inputs = [f32(6, 8), np.array([4, -1, 5, 0], np.int32)]
    check(call(body, inputs, [tensor(8, 8)], (4,)), inputs, tolerance=1e-6)


@pytest.mark.parametrize("combine", ["", "add", "maximum", "minimum"])
def test_scatter_and_gather(combine: str) -> None:
    def body(b: Any, x: Any, rows: Any, start: Any, out: Any) -> None:
        at, zero = index(b, 0, 4), b.constant(0, INDEX)
        one = b.constant(1, INDEX)
        chosen = b("tile_load", rows, at, sizes=(4,), fill=-9.0)
        value = b("tile_gather", x, chosen, zero, one, axis=0, sizes=(4, 5), fill=3.0)
        b.op(
            "tile_scatter", [out, b("add", value, value), chosen, one, zero],
            {"axis": 0, "combine": combine},
        )  # fmt: skip

    rows = np.array([3, 1, 6, 0, 2, 9, 7, 5], np.int32)
    if combine:
        rows[3] = 6
    inputs = [f32(8, 5), rows, f32(8, 4)]
    check(call(body, inputs, [tensor(8, 4)], (2,), (2,)), inputs)


@pytest.mark.parametrize("element", [BF16, F16, F64, I32, I1])
@pytest.mark.parametrize("masked", [False, True])
def test_masked_stores_of_each_type(element: Any, masked: bool) -> None:
    dtype = TensorType((), element).dtype

    def body(b: Any, x: Any, start: Any, out: Any) -> None:
        at, zero = index(b, 0, 4), b.constant(-1, INDEX)
        value = b("tile_load", x, at, zero, sizes=(4, 9), fill=1.0)
        value = b("not", value) if element is I1 else b("negate", value)
        operands = [out, value, at, zero]
        if masked:
            place = b("iota", type=tensor(4, 9, element=I32), iota_dimension=1)
            operands.append(b.compare("LT", place, b.constant(5, place.type)))
        b.op("tile_store", operands, {"masked": masked})

    value = (RNG.standard_normal((10, 7)) * 4).astype(dtype)
    kind = tensor(10, 7, element=element)
    check(call(body, [value, value], [kind], (3,), (1,)), [value, value])


def test_rank_zero_and_empty() -> None:
    def body(b: Any, x: Any, y: Any, out: Any, none: Any) -> None:
        scale = b("tile_load", x, sizes=())
        at = index(b, 0, 3)
        value = b("tile_load", y, at, sizes=(3,))
        b.op("tile_store", [out, b("multiply", value, spread(b, scale, (3,))), at])
        b.op("tile_store", [none, b("tile_load", none, at, sizes=(3,)), at])

    inputs = [np.float32(3), f32(5)]
    check(call(body, inputs, [tensor(5), tensor(0)], (2,)), [np.asarray(i) for i in inputs])


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", ["matmul", "attention"])
def test_feature_levels(kind: str, level: str) -> None:
    op = matmul(50, 40, 45, 32, 32, 16) if kind == "matmul" else attention(1, 40, 8, 20, 40)
    inputs = [f32(*value.dims) for value in op.operands]
    check(op, inputs, tolerance=1e-5, target=codegen.host_target(level))


@pytest.mark.parametrize("columns", [8, 16, 70, 100])
def test_reductions_over_columns_share_their_passes(columns: int) -> None:
    """m, exp(x - m), its sum, and a mean: one nest with lanes along the columns."""
    rows = 12

    def body(b: Any, x: Any, out: Any, sums: Any) -> None:
        zero = b.constant(0, INDEX)
        value = b("tile_load", x, zero, zero, sizes=(rows, columns))
        low = b.constant(-np.inf, tensor())
        top = b.reduce("maximum", value, low, (0,))
        powers = b("exponential", b("subtract", value, spread(b, top, (rows, columns), (1,))))
        total = b.reduce("add", powers, b.constant(1, tensor()), (0,))
        b.op("tile_store", [out, b("tanh", powers), zero, zero])
        b.op("tile_store", [sums, b("multiply", total, top), zero])

    inputs = [f32(rows, columns)]
    results = [tensor(rows, columns), tensor(columns)]
    op = call(body, inputs, results, ())
    steps = Cutter(op, EMITTERS).cut().steps
    kinds = [step.op.attributes.get("kind") for step in steps if step.kind == "nest"]
    assert kinds == ["columns"]
    check(op, inputs, tolerance=1e-5)
    check(op, inputs, tolerance=1e-5, target=codegen.host_target("baseline"))


def test_columns_behind_the_last_vector_share_a_number() -> None:
    rows, columns = 12, 10

    def body(b: Any, x: Any, scale: Any, out: Any) -> None:
        zero = b.constant(0, INDEX)
        value = b("tile_load", x, zero, zero, sizes=(rows, columns))
        total = b.reduce("add", value, b.constant(0, tensor()), (0,))
        shared = b("exponential", b("tile_load", scale, sizes=()))
        b.op("tile_store", [out, b("multiply", total, spread(b, shared, (columns,), ())), zero])

    inputs = [f32(rows, columns), f32()]
    op = call(body, inputs, [tensor(columns)], ())
    check(op, inputs, tolerance=1e-5)


def test_products_are_turned_where_nothing_is_transposed_back() -> None:
    op = attention(1, 64, 16, 16, 32)
    region = swap_operands(op.regions[0], codegen.level_target("avx512"))
    dots = [inner for inner in region.walk() if inner.name == "dot_general"]
    assert [dot.type.dims for dot in dots] == [(32, 16), (16, 16)]
    assert [inner.name for inner in region.ops].count("transpose") == 1, "in front of the loop"
    before = matmul(64, 64, 64, 32, 32, 16, transposed=True)
    after = swap_operands(before.regions[0], codegen.level_target("avx512"))
    assert not any(inner.name == "transpose" for inner in after.walk())


def test_notes_say_what_is_slow() -> None:
    def body(b: Any, x: Any, start: Any, where: Any, out: Any) -> None:
        place = b.reshape(b("tile_load", where, b("tile_id", axis=0), sizes=(1,)), ())
        value = b("tile_load", x, place, b.constant(1, INDEX), sizes=(4, 1))
        value = b.reshape(value, (4,))
        b.op("tile_store", [out, value, place], {"combine": "add"})

    inputs = [f32(8, 3), f32(8), np.array([3, 1, 6], np.int32)]
    op = call(body, [*inputs], [tensor(8)], (3,), (1,))
    code = kernels.emit(op, codegen.host_target())
    assert code.tiles == 1 and not code.parallel
    assert any("copied" in note for note in code.notes) and any(
        "one worker" in n for n in code.notes
    )
    check(op, inputs)


def test_a_loop_leaves_alone_what_its_body_reads_under_another_name() -> None:
    def body(b: Any, x: Any, out: Any) -> None:
        zero = b.constant(0, INDEX)
        first = b("negate", b("tile_load", x, zero, sizes=(8,)))
        other = b.reshape(first, (2, 4))

        def step(b: Any, i: Any, total: Any) -> list[Any]:
            return [b("add", b("multiply", total, total), b.reshape(b("abs", other), (8,)))]

        region = build_region([INDEX, tensor(8)], step)
        loop = b.op("tile_for", [zero, b.constant(3, INDEX), first], {}, (region,))
        b.op("tile_store", [out, loop.result, zero])

    inputs = [f32(8) / 4]
    check(call(body, inputs, [tensor(8)], ()), inputs, tolerance=1e-6)


def test_equal_functions_give_equal_code() -> None:
    first, second = attention(1, 64, 16, 16, 32), attention(1, 64, 16, 16, 32)
    target = codegen.host_target()
    texts = {kernels.emit(op, target).ir_text for op in (first, first, second)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("element", "result"),
    [(BF16, F32), (BF16, BF16), (F16, F32), (F64, F64), (I8, I32), (F32, F32)],
)
def test_products_of_each_type(element: Any, result: Any) -> None:
    """A column of three products per tile, with a batch dim of size 1 and an epilogue."""
    m, n, k, size = 70, 33, 24, 32

    def body(b: Any, x: Any, y: Any, out: Any) -> None:
        at, zero = index(b, 0, size), b.constant(0, INDEX)
        left = b("tile_load", x, zero, at, zero, sizes=(1, size, k))
        right = b("tile_load", y, zero, zero, zero, sizes=(1, n, k))
        product = b(
            "dot_general", left, right, type=tensor(1, size, n, element=result),
            lhs_batching_dimensions=(0,), rhs_batching_dimensions=(0,),
            lhs_contracting_dimensions=(2,), rhs_contracting_dimensions=(2,),
            precision_config=(),
        )  # fmt: skip
        total = b("add", product, b("negate", b.constant(3, product.type)))
        b.op("tile_store", [out, total, zero, at, zero])

    dtype = TensorType((), element).dtype
    inputs = [(RNG.standard_normal((1, d, k)) * 4).astype(dtype) for d in (m, n)]
    op = call(body, inputs, [tensor(1, m, n, element=result)], (-(-m // size),))
    check(op, inputs, tolerance=2e-2 if result is BF16 else 0.0 if result is I32 else 1e-5)


@pytest.mark.parametrize(("taps", "even"), [(1, True), (3, True), (3, False)])
def test_convolutions_read_packed_kernels_where_they_lie(taps: int, even: bool) -> None:
    """A kernel in groups of two features is one nest with its convolution, not brought in order
    before; not where strides cannot say how it lies."""
    pixels, inputs, outputs = 8, 16, 64
    steps = taps * taps * inputs
    packed = (outputs // 32, steps // 2, 32, 2)
    window = pixels + taps - 1

    def body(b: Any, x: Any, w: Any, out: Any) -> None:
        zero = b.constant(0, INDEX)
        image = b("tile_load", x, zero, zero, zero, zero, sizes=(1, window, window, inputs))
        panels = b("tile_load", w, zero, zero, zero, zero, sizes=packed)
        matrix = b.reshape(b.transpose(panels, (1, 3, 0, 2)), (steps, outputs))
        if not even:  # a dim that no stride has: columns between steps
            matrix = b.reshape(b.transpose(b.reshape(matrix, (steps // 3, 3 * outputs)), (1, 0)),
                               (steps, outputs))  # fmt: skip
        kernel = b.transpose(b.reshape(matrix, (taps, taps, inputs, outputs)), (3, 2, 0, 1))
        made = b(
            "convolution", image, kernel, type=tensor(1, pixels, pixels, outputs),
            input_batch_dimension=0, input_feature_dimension=3, input_spatial_dimensions=(1, 2),
            kernel_output_feature_dimension=0, kernel_input_feature_dimension=1,
            kernel_spatial_dimensions=(2, 3), output_batch_dimension=0, output_feature_dimension=3,
            output_spatial_dimensions=(1, 2), feature_group_count=1, batch_group_count=1,
        )  # fmt: skip
        b.op("tile_store", [out, made, zero, zero, zero, zero])

    dtype = TensorType((), BF16).dtype
    arrays = [RNG.standard_normal(d).astype(dtype) for d in ((1, window, window, inputs), packed)]
    op = call(body, arrays, [tensor(1, pixels, pixels, outputs)], ())
    nests = [step for step in Cutter(op, EMITTERS).cut().steps if step.kind == "nest"]
    assert (len(nests) == 1) == even
    check(op, arrays, tolerance=1e-5)
    check(op, arrays, tolerance=1e-5, target=codegen.host_target("baseline"))
