"""Tile functions on the CPU whose extents a call decides."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import girih
from girih.backends.cpu import codegen, kernels
from girih.backends.cpu.tile.nests import view_of
from girih.backends.cpu.tile.parts import parts_of
from girih.backends.cpu.tile.windows import WindowFacts
from girih.hlo.build import Builder, build_region
from girih.hlo.deciding import decided_by
from girih.hlo.graph import Function, Module
from girih.hlo.interpret import interpret
from girih.hlo.ops.tile import INDEX
from girih.hlo.sizes import Symbol
from girih.hlo.specialize import specialized
from girih.hlo.symbols import SymbolicDim
from girih.hlo.types import F32, I32, TensorType
from girih.optimizer.coverage import decisions_about
from girih.optimizer.tiles.steps import unmasked
from girih.options import Options
from girih.specs.generated import plan_pb2

from ....optimizer.tiles.open_programs import (
    KEYS,
    ROWS,
    SIZES,
    attention,
    expected,
    inputs_at,
    lowered,
)

OPTIONS = Options(cache="off", threads=2)
N = SymbolicDim("n")
LENGTHS = (1, 3, 7, 8, 9, 15, 16, 17, 40)


@pytest.mark.parametrize(("mask", "causal"), [(False, False), (True, False), (False, True)])
def test_attention_at_any_size(mask: bool, causal: bool) -> None:
    """One kernel without memory of its own, no guards, right at sizes on all sides of tiles."""
    program = girih.compile(
        attention(ROWS if causal else KEYS, mask=mask, causal=causal), options=OPTIONS
    )
    assert len(program.plan.kernels) == 1
    assert not program.plan.others
    assert all(buffer.place != plan_pb2.ARENA for buffer in program.plan.buffers)
    for batch, rows, keys in (*SIZES, (2, 64, 64), (8, 512, 512)):
        given = inputs_at(batch, rows, rows if causal else keys, mask)
        (got,) = program(*given)
        np.testing.assert_allclose(got, expected(*given, causal=causal), 2e-5, 2e-5)


def test_causal_attention_that_skips_turns() -> None:
    options = Options(cache="off", threads=2, numerics="assumes-finite")
    program = girih.compile(attention(ROWS, causal=True), options=options)
    assert not program.plan.others
    for batch, rows, _ in (*SIZES, (2, 64, 64), (8, 512, 512)):
        given = inputs_at(batch, rows, rows)
        (got,) = program(*given)
        np.testing.assert_allclose(got, expected(*given, causal=True), 2e-5, 2e-5)


def test_attention_has_parts_of_tiles_in_both_dims() -> None:
    fused, decisions = lowered(attention())
    (kernel,) = fused.body.ops
    with decided_by(decisions):
        found = parts_of(kernel, WindowFacts(kernel))
    assert found is not None
    assert {part.bound for part in found.parts} == {ROWS, KEYS}
    loads = [op for op in found.kernel.regions[0].walk() if op.name == "tile_load"]
    assert found.inside.issuperset(loads)
    masks = [
        op for op in found.kernel.regions[0].walk() if op.name == "compare" and op in found.idle
    ]
    assert masks  # the ends of both dims need no masks there


@pytest.mark.parametrize("causal", [False, True])
def test_parts_without_masks_are_the_only_version(causal: bool) -> None:
    fused, decisions = lowered(attention(ROWS if causal else KEYS, causal=causal))
    (kernel,) = fused.body.ops
    with decided_by(decisions):
        text = kernels.emit(kernel, codegen.host_target()).ir_text
    products = set(re.findall(r"define .*@(nest\d+)_dot_general", text))
    assert len(products) == 2


def kernel_of(body: Any, dims: tuple[Any, ...] = (N,), grid: tuple[Any, ...] = ()) -> Module:
    """A program of one tile function from x to a result of the same type."""
    b = Builder()
    kind = TensorType(dims, F32)
    (x,) = b.arguments([kind])

    def complete(b: Any, *values: Any) -> list[Any]:
        body(b, *values)
        return []

    region = build_region([kind, kind], complete)
    attributes = {"kernel": "test", "grid": grid or (-(-N // 8),)}
    made = b.op("kernel_call", [x], attributes, (region,), [kind])
    return Module({"main": Function("main", b.region(made.results))}, symbols={"n": Symbol(1, 40)})


def start_of(b: Any) -> Any:
    return b("multiply", b("tile_id", axis=0), b.constant(8, INDEX))


def same_as_interpreted(module: Module) -> None:
    program = girih.compile(module, options=OPTIONS)
    for length in LENGTHS:
        dims = [length if dim is N else dim for dim in module.body.arguments[0].tensor.dims]
        x = np.random.default_rng(length).standard_normal(dims).astype(np.float32)
        (wanted,) = interpret(specialized(module, {"n": length}), [x])
        np.testing.assert_allclose(program(x)[0], wanted, 1e-5, 1e-5, err_msg=f"n = {length}")


def has_parts(module: Module) -> bool:
    (kernel,) = (op for op in module.body.ops if op.name == "kernel_call")
    with decided_by(decisions_about(module)):
        return parts_of(kernel, WindowFacts(kernel)) is not None


def test_what_lies_outside_counts_where_the_function_says_so() -> None:
    """Windows are filled with 3; each tile adds the sum of its window, with what lies outside."""

    def body(b: Any, x: Any, out: Any) -> None:
        tile = b("tile_load", x, start_of(b), sizes=(8,), fill=3.0)
        total = b.reduce("add", tile, b.constant(0, TensorType((), F32)), (0,))
        b.op("tile_store", [out, b("add", tile, b.broadcast(total, (8,), ())), start_of(b)])

    module = kernel_of(body)
    assert not has_parts(module)
    same_as_interpreted(module)


@pytest.mark.parametrize("bound", [N, 5], ids=["the end", "another place"])
def test_masks_that_say_what_lies_inside(bound: Any) -> None:
    """Sums over what a mask lets through: the end of the dim, or something else."""

    def body(b: Any, x: Any, out: Any) -> None:
        start = start_of(b)
        tile = b("tile_load", x, start, sizes=(8,), fill=3.0)
        places = b("iota", type=TensorType((8,), I32), iota_dimension=0)
        places = b("add", places, b.broadcast(start, (8,), ()))
        end = b.broadcast(b("tile_bound", size=bound), (8,), ())
        known = b("select", b.compare("LT", places, end), tile, b.constant(0, tile.type))
        total = b.reduce("add", known, b.constant(0, TensorType((), F32)), (0,))
        b.op("tile_store", [out, b("add", tile, b.broadcast(total, (8,), ())), start])

    module = kernel_of(body)
    assert has_parts(module) == (bound is N)
    same_as_interpreted(module)


def test_windows_that_begin_before_a_memory() -> None:
    """A window that is not the tile's own: what lies before the first element is the fill."""

    def body(b: Any, x: Any, out: Any) -> None:
        before = b("subtract", start_of(b), b.constant(1, INDEX))
        left = b("tile_load", x, before, sizes=(8,), fill=-1.0)
        tile = b("tile_load", x, start_of(b), sizes=(8,))
        b.op("tile_store", [out, b("subtract", tile, left), start_of(b)])

    same_as_interpreted(kernel_of(body))


def test_rows_of_open_lengths() -> None:
    """Windows over the ends of two dims, the rows' steps are the call's to decide."""

    def body(b: Any, x: Any, out: Any) -> None:
        row = b("multiply", b("tile_id", axis=1), b.constant(4, INDEX))
        tile = b("tile_load", x, row, start_of(b), sizes=(4, 8))
        b.op("tile_store", [out, b("exponential", tile), row, start_of(b)])

    module = kernel_of(body, (N, N), (-(-N // 8), -(-N // 4)))
    assert has_parts(module)
    same_as_interpreted(module)


def test_sums_walked_along_an_open_dim() -> None:
    """A loop whose turns a bound says; its last window may reach over the end."""

    def body(b: Any, x: Any, out: Any) -> None:
        def step(b: Any, k: Any, total: Any) -> list[Any]:
            at = b("multiply", k, b.constant(8, INDEX))
            return [b("add", total, b("tile_load", x, at, sizes=(8,)))]

        turns = build_region([INDEX, TensorType((8,), F32)], step)
        bounds = [b.constant(0, INDEX), b("tile_bound", size=-(-N // 8))]
        loop = b.op("tile_for", [*bounds, b.constant(0, TensorType((8,), F32))], {}, (turns,))
        b.op("tile_store", [out, loop.result, start_of(b)])

    same_as_interpreted(kernel_of(body))


def test_operations_without_masks_that_hold() -> None:
    b = Builder()
    kind = TensorType((4,), F32)
    x, y, other = b.arguments([kind, kind, kind.with_element(I32)])
    mask = b.compare("LT", x, y)
    more = b("and", mask, b.compare("EQ", other, b.constant(0, other.tensor)))
    plain, both = b("select", mask, x, y), b("select", more, x, y)
    assert mask.op is not None
    ops, roots = unmasked(b.ops, [plain, both], frozenset({mask.op}))
    assert roots[0] is x
    assert [op.name for op in ops] == ["constant", "compare", "select"]
    assert ops[-1].operands[0] is ops[1].result


def test_views_name_sizes_that_steps_depend_on() -> None:
    assert view_of((1, 1, 64, 16), (N, 4, N, 16)).storage == (1, 4, 64, 16)
    assert view_of((1, 64, 1, 16), (N, N, 4, 16)).storage == (1, 64, 4, 16)
    assert view_of((4, 8), (N, N)).storage == (4, N)
