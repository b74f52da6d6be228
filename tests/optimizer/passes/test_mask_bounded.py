"""Sizes that data decide as masks: compiled programs give the interpreter's numbers, whatever
stands behind the sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.graph import Value
from girih.hlo.ops.examples import scalar_body
from girih.hlo.sizes import Symbol
from girih.hlo.symbols import SymbolicDim, maximum
from girih.hlo.types import F32, I32, TensorType
from girih.hlo.verify import INLINED, verify
from girih.optimizer.masks.scope import MaskScope, Whole
from girih.optimizer.passes.mask_bounded import MaskBounded

ROWS, COLUMNS = (
    "tensor<?x3xf32, #stablehlo.bounds<4, ?>>",
    "tensor<?x5xf32, #stablehlo.bounds<4, ?>>",
)
TURNED = "tensor<5x?xf32, #stablehlo.bounds<?, 4>>"
PROGRAM = f"""
func.func @exponential(%a: {ROWS}) -> {ROWS} {{
  %0 = stablehlo.exponential %a : {ROWS}
  return %0 : {ROWS}
}}
func.func @main(%x: tensor<4x3xf32>, %w: tensor<3x5xf32>, %n: tensor<i32>)
    -> (tensor<3xf32>, tensor<5x5xf32>, tensor<i32>, tensor<f32>, {TURNED}) {{
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<7.0> : tensor<f32>
  %0 = stablehlo.set_dimension_size %x, %n, dim = 0 : (tensor<4x3xf32>, tensor<i32>) -> {ROWS}
  %e = func.call @exponential(%0) : ({ROWS}) -> {ROWS}
  %1 = stablehlo.reduce(%e init: %low) applies stablehlo.maximum across dimensions = [0]
    : ({ROWS}, tensor<f32>) -> tensor<3xf32>
  %2 = stablehlo.dot_general %e, %w, contracting_dims = [1] x [0]
    : ({ROWS}, tensor<3x5xf32>) -> {COLUMNS}
  %t = stablehlo.transpose %2, dims = [1, 0] : ({COLUMNS}) -> {TURNED}
  %3 = stablehlo.dot_general %t, %2, contracting_dims = [1] x [0]
    : ({TURNED}, {COLUMNS}) -> tensor<5x5xf32>
  %4 = stablehlo.get_dimension_size %t, dim = 1 : ({TURNED}) -> tensor<i32>
  %5 = stablehlo.add %2, %2 : {COLUMNS}
  %6 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [0, 1]
    : ({COLUMNS}, tensor<f32>) -> tensor<f32>
  return %1, %3, %4, %6, %t : tensor<3xf32>, tensor<5x5xf32>, tensor<i32>, tensor<f32>, {TURNED}
}}
"""


@pytest.fixture(scope="module")
def module():
    return girih.import_model(PROGRAM)


def inputs():
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((4, 3), (3, 5)))
    x[3] = np.inf  # behind every size but the largest: must not be seen
    return x, w


def test_masks_give_the_numbers_of_true_sizes(module, tmp_path):
    after = MaskBounded()(module)
    verify(after, INLINED)
    assert all(value.tensor.is_static for op in after.walk() for value in op.results)
    girih.compile(module).save(tmp_path / "p.girih")
    program, given = girih.load(tmp_path / "p.girih"), inputs()
    for size in range(4):
        wanted = girih.interpret(module, [*given, np.int32(size)])
        again = girih.interpret(program.module, [*given, np.int32(size)])
        assert wanted[-1].shape == (5, size)
        for engine in (girih.interpret(after, [*given, np.int32(size)]), again,
                       program(*given, np.int32(size))):  # fmt: skip
            for left, right in zip(engine, wanted, strict=True):
                assert left.flags.c_contiguous
                np.testing.assert_allclose(left, right, rtol=1e-5)
    with pytest.raises(girih.UserError, match="strict: .*masks over whole dimensions"):
        girih.compile(module, options=girih.Options(strict=True))
    for size in (-1, 5):
        with pytest.raises(girih.UserError, match=r"the size d0 that data decide is not in 0\.\.4"):
            program(*given, np.int32(size))


def poisoned(monkeypatch):
    """Every result of a size that data decide has the worst numbers behind that size."""
    made = MaskBounded.made

    def bad(self: MaskBounded, scope: MaskScope, b: Builder, op: Any) -> list[Whole]:
        found = []
        for x in made(self, scope, b, op):
            if isinstance(x.value.type, TensorType) and not scope.is_whole(x.dims):
                worst = {"float": np.nan, "int": 2**30 - 3, "bool": True}[x.value.element.kind]
                filler = b.constant(worst, TensorType((), x.value.element))
                x = Whole(scope.masked(b, x, range(x.value.rank), filler), x.dims)
            found.append(x)
        return found

    monkeypatch.setattr(MaskBounded, "made", bad)


U, V = SymbolicDim("u"), SymbolicDim("v")
N = 6  # the bound of u; that of v is 4


def of(*dims: Any, element: Any = F32) -> TensorType:
    return TensorType(dims, element)


def vector(b: Builder, *entries: Any) -> Value:
    """A shape operand."""
    parts = [
        b.constant(np.asarray([e], np.int32)) if isinstance(e, int) else b.reshape(e, (1,))
        for e in entries
    ]
    return b("concatenate", *parts, dimension=0)


def size(b: Builder, x: Value, axis: int) -> Value:
    return b("get_dimension_size", x, dimension=axis)


def total(b: Builder, x: Value, *axes: int) -> Value:
    return b.reduce("add", x, b.constant(0, of(element=x.element)), axes)


def before(b: Any, x: Any, y: Any) -> Any:
    return [b.compare("GT", x, y)]


def largest_place(b: Any, x: Any, i: Any, y: Any, j: Any) -> Any:
    first = b.compare("GE", x, y)
    return [b("select", first, x, y), b("select", first, i, j)]


def argmax(b: Builder, x: Value) -> list[Value]:
    shape = vector(b, size(b, x, 0), 3)
    places = b("dynamic_iota", shape, type=of(U, 3, element=I32), iota_dimension=0)
    starts = b.constant(-np.inf, of()), b.constant(0, of(element=I32))
    regions = scalar_body(largest_place, F32, I32, F32, I32)(build_region)
    return list(b.op("reduce", [x, places, *starts], {"dimensions": (0,)}, regions).results)


def growing(b: Builder, x: Value, n: Value) -> list[Value]:
    """A loop that carries a tensor whose size changes."""
    types = [of(element=I32), of(SymbolicDim("w"))]

    def test(b: Any, i: Any, line: Any) -> Any:
        return [b.compare("LT", i, b.constant(3, types[0]))]

    def step(b: Any, i: Any, line: Any) -> Any:
        following = b("add", i, b.constant(1, types[0]))
        start = b.constant(np.zeros(4, np.float32))
        flat = b.reshape(total(b, line, 0), (1,))
        spread = b.broadcast(flat, (4,), (0,))
        kind = of(SymbolicDim("z"))
        new = b("set_dimension_size", b("add", start, spread), following, type=kind, dimension=0)
        return [following, b("add", new, new)]

    row = b("slice", x, start_indices=(0, 0), limit_indices=(4, 1), strides=(1, 1))
    first = b("set_dimension_size", b.reshape(row, (4,)), n, type=of(V), dimension=0)
    zero = b.constant(0, types[0])
    regions = [build_region(types, body) for body in (test, step)]
    kinds = [types[0], of(SymbolicDim("r"))]
    return list(b.op("while", [zero, first], {}, regions, kinds).results)


def chosen(b: Builder, x: Value, y: Value) -> list[Value]:
    """Branches that give other sizes."""
    few = b.compare("LT", size(b, x, 0), b.constant(3, of(element=I32)))

    def double(b: Any) -> Any:
        return [b("concatenate", x, x, dimension=0)]

    def same(b: Any) -> Any:
        return [b("negate", x)]

    w = SymbolicDim("w")
    regions = [build_region([], double), build_region([], same)]
    return list(b.op("if", [few], {}, regions, [of(w, 3)]).results)


CASES: dict[str, Callable[..., Any]] = {
    "reverse": lambda b, x, y: [b("reverse", x, dimensions=(0, 1))],
    "concatenate": lambda b, x, y: [
        b("concatenate", x, y, b.constant(1, of(2, 3)), y, dimension=0)
    ],
    "pad": lambda b, x, y: [
        b("pad", x, b.constant(9, of()), edge_padding_low=(1, 0), edge_padding_high=(2, 0),
          interior_padding=(1, 0)),
        b("pad", x, b.constant(9, of()), edge_padding_low=(1, 0), edge_padding_high=(-1, 1),
          interior_padding=(0, 0)),
    ],
    "padded_by_operands": lambda b, x, y: [
        b("dynamic_pad", x, b.constant(9, of()), vector(b, size(b, y, 0), -1), vector(b, 1, 2),
          vector(b, size(b, y, 0), 1), type=of(V + U + maximum(U - 1, 0) * V + 1, 6)),
    ],
    "flat": lambda b, x, y: [
        b("dynamic_reshape", x, vector(b, b("multiply", size(b, x, 0),
          b.constant(3, of(element=I32)))), type=of(3 * U)),
    ],
    "flat_turned": lambda b, x, y: [
        b("dynamic_reshape", b.transpose(x, (1, 0)), vector(b, b("multiply", size(b, x, 0),
          b.constant(3, of(element=I32)))), type=of(3 * U)),
    ],
    "slice": lambda b, x, y: [
        b("real_dynamic_slice", x, vector(b, b("subtract", size(b, x, 0), size(b, x, 0)), 1),
          vector(b, size(b, x, 0), 3), vector(b, 2, 1), type=of((U + 1) // 2, 2)),
    ],
    "sort": lambda b, x, y: list(
        b.op("sort", [x], {"dimension": 0}, scalar_body(before, F32, F32)(build_region)).results
    ),
    "argmax": lambda b, x, y: argmax(b, x),
    "cumulative": lambda b, x, y: [
        b("reduce_window", x, b.constant(0, of()), window_dimensions=(N, 1),
          padding=((0, N - 1), (0, 0)), regions=scalar_body(lambda b, x, y: [b("add", x, y)], F32,
          F32)(build_region)),
    ],
    "products": lambda b, x, y: [
        b("dot_general", x, x, type=of(3, 3), lhs_contracting_dimensions=(0,),
          rhs_contracting_dimensions=(0,), lhs_batching_dimensions=(),
          rhs_batching_dimensions=()),
        b("dot_general", x, y, type=of(U, V), lhs_contracting_dimensions=(1,),
          rhs_contracting_dimensions=(1,), lhs_batching_dimensions=(),
          rhs_batching_dimensions=()),
    ],
    "gather": lambda b, x, y: [
        b("gather", x, b.constant(np.asarray([0, 5, 1], np.int32)), offset_dims=(1,),
          collapsed_slice_dims=(0,), start_index_map=(0,), index_vector_dim=1,
          slice_sizes=(1, 3)),
    ],
    "scatter": lambda b, x, y: list(b.op(
        "scatter", [b.constant(1, of(4, 3)), b("remainder", b("dynamic_iota",
         vector(b, size(b, x, 0)), type=of(U, element=I32), iota_dimension=0),
         b("dynamic_broadcast_in_dim", b.constant(3, of(element=I32)), vector(b, size(b, x, 0)),
           type=of(U, element=I32), broadcast_dimensions=())), x],
        {"update_window_dims": (1,), "inserted_window_dims": (0,),
         "scatter_dims_to_operand_dims": (0,), "index_vector_dim": 1},
        scalar_body(lambda b, x, y: [b("add", x, y)], F32, F32)(build_region),
    ).results),
    "update": lambda b, x, y: [
        b("dynamic_update_slice", b.constant(1, of(7, 3)), x, b.constant(4, of(element=I32)),
          b.constant(0, of(element=I32))),
    ],
    "softmax": lambda b, x, y: [
        b("divide", b("exponential", x), b("dynamic_broadcast_in_dim",
          total(b, b("exponential", x), 0), vector(b, size(b, x, 0), 3), type=of(U, 3),
          broadcast_dimensions=(1,))),
    ],
    "equal": lambda b, x, y: [b("add", x, b("set_dimension_size", b.constant(1, of(6, 3)),
                                            size(b, y, 0), type=of(V, 3), dimension=0))],
    "branches": chosen,
}  # fmt: skip


def built(name: str) -> girih.Module:
    def body(b: Builder, x: Value, n: Value, m: Value) -> list[Value]:
        if name == "loop":
            return growing(b, x, n)
        first = b("set_dimension_size", x, n, type=of(U, 3), dimension=0)
        part = b("slice", x, start_indices=(1, 0), limit_indices=(5, 3), strides=(1, 1))
        second = b("set_dimension_size", part, m, type=of(V, 3), dimension=0)
        return CASES[name](b, first, second)

    scalar = of(element=I32)
    made = build_module([of(N, 3), scalar, scalar], body)
    symbols = {"u": Symbol(0, N), "v": Symbol(0, 4), **dict.fromkeys("rwz", Symbol(0))}
    return replace(made, symbols=symbols)


@pytest.mark.parametrize("name", [*CASES, "loop"])
def test_nothing_behind_a_size_reaches_a_result(name, monkeypatch):
    module = built(name)
    verify(module)
    poisoned(monkeypatch)
    after = MaskBounded()(module)
    verify(after)
    program = girih.compile(module)
    x = np.random.default_rng(1).standard_normal((N, 3)).astype(np.float32)
    least = {"gather": 1, "pad": 1}.get(name, 0)
    for n, m in ((least, 0), (1, 4), (3, 2), (4, 3), (N, 1)):
        if name == "loop" and n > 4:
            continue
        given = [x, np.int32(n), np.int32(m)]
        try:
            wanted = girih.interpret(module, given)
        except girih.UserError:
            assert name == "equal" and n != m
            for engine in (lambda *a: girih.interpret(after, a), program):
                with pytest.raises(girih.UserError, match="add: u == v does not hold"):
                    engine(*given)
            continue
        for found in (girih.interpret(after, given), program(*given)):
            for left, right in zip(found, wanted, strict=True):
                assert left.shape == right.shape
                np.testing.assert_allclose(left, right, rtol=1e-5, err_msg=f"{n}, {m}")


def test_what_has_no_mask_is_refused():
    def body(b: Builder, x: Value, n: Value) -> list[Value]:
        part = b("set_dimension_size", x, n, type=of(U, 4, 4), dimension=0)
        return [b("reverse", b("cholesky", part, lower=True), dimensions=(1,))]

    module = build_module([of(N, 4, 4), of(element=I32)], body)
    module = replace(module, symbols={"u": Symbol(0, N)})
    with pytest.raises(girih.UnsupportedError, match="cholesky: .* only while .* has no mask"):
        girih.compile(module)
    girih.interpret(module, [np.stack([np.eye(4, dtype=np.float32)] * N), np.int32(2)])


def test_a_size_without_a_bound_is_refused():
    def body(b: Builder, n: Value) -> list[Value]:
        return [b("dynamic_iota", b.reshape(n, (1,)), type=of(U, element=I32), iota_dimension=0)]

    module = build_module([of(element=I32)], body)
    module = replace(module, symbols={"u": Symbol(0)})
    with pytest.raises(girih.UnsupportedError, match=r"the size u has no bound; .* sizes=\{'u'"):
        girih.compile(module)
    program = girih.compile(module, sizes={"u": (0, 5)})
    for n in (0, 3, 5):
        np.testing.assert_array_equal(program(np.int32(n))[0], np.arange(n))
    assert str(program.signature.results[0]) == "output[0]: i32[u]"
    with pytest.raises(girih.UserError, match=r"the size u that data decide is not in 0\.\.5"):
        program(np.int32(6))


def test_the_pass_can_be_left_out(module):
    options = girih.Options(disable=("mask-bounded",))
    with pytest.raises(girih.UnsupportedError, match="has a size that is known only while"):
        girih.compile(module, target="null", options=options)
