"""Tile functions for the tests of the general lowering, run in the simulator."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from girih.backends.nvidia import tile
from girih.backends.nvidia.assemble import Assembly, assemble
from girih.backends.nvidia.compile import compile_ptx
from girih.backends.nvidia.launch import KernelCode
from girih.backends.nvidia.target import NvidiaTarget, target
from girih.hlo.build import build_region, make_op
from girih.hlo.graph import Op, arguments
from girih.hlo.interpret import evaluated
from girih.hlo.ops.tile import INDEX
from girih.hlo.types import BF16, F32, ElementType, TensorType
from girih.kernels import Kernel

from .. import harness

SM_80 = target("sm_80")
RNG = np.random.default_rng(11)


def tensor(*dims: int, element: ElementType = F32) -> TensorType:
    return TensorType(dims, element)


def call(
    body: Callable[..., Any],
    inputs: Sequence[TensorType],
    results: Sequence[TensorType],
    grid: tuple[int, ...],
    starts: tuple[int, ...] = (),
) -> Op:
    """A kernel_call; the body stores, so it returns nothing."""

    def run(b: Any, *memory: Any) -> list[Any]:
        body(b, *memory)
        return []

    region = build_region([*inputs, *results], run)
    attributes = {"kernel": "test", "grid": grid, "starts": starts}
    return make_op("kernel_call", arguments(inputs), attributes, (region,))


def index(b: Any, axis: int, size: int) -> Any:
    return b("multiply", b("tile_id", axis=axis), b.constant(size, INDEX))


def dot(
    b: Any, left: Any, right: Any, kind: TensorType, sides: tuple[int, int], **facts: Any
) -> Any:
    return b(
        "dot_general", left, right, type=kind, lhs_batching_dimensions=(),
        rhs_batching_dimensions=(), lhs_contracting_dimensions=sides[:1],
        rhs_contracting_dimensions=sides[1:], precision_config=(), **facts,
    )  # fmt: skip


def matmul(
    sizes: tuple[int, int, int],
    tiles: tuple[int, int, int],
    element: ElementType = BF16,
    sums: ElementType = F32,
    out: ElementType = F32,
    turned: tuple[bool, bool] = (False, False),
    **facts: Any,
) -> Op:
    """out = x y by tiles of rows, columns and depth; `turned` operands are stored transposed.
    `facts`: further attributes of the product."""
    (m, n, k), (rows, columns, depth) = sizes, tiles
    x = tensor(*((k, m) if turned[0] else (m, k)), element=element)
    y = tensor(*((n, k) if turned[1] else (k, n)), element=element)
    kind = tensor(rows, columns, element=sums)

    def body(b: Any, x: Any, y: Any, result: Any) -> None:
        i, j = index(b, 0, rows), index(b, 1, columns)

        def step(b: Any, number: Any, total: Any) -> list[Any]:
            at = b("multiply", number, b.constant(depth, INDEX))
            places = (at, i) if turned[0] else (i, at)
            left = b("tile_load", x, *places, sizes=(depth, rows) if turned[0] else (rows, depth))
            places = (j, at) if turned[1] else (at, j)
            dims = (columns, depth) if turned[1] else (depth, columns)
            right = b("tile_load", y, *places, sizes=dims)
            sides = (0 if turned[0] else 1, 1 if turned[1] else 0)
            return [b("add", total, dot(b, left, right, kind, sides, **facts))]

        region = build_region([INDEX, kind], step)
        bounds = [b.constant(0, INDEX), b.constant(-(-k // depth), INDEX)]
        loop = b.op("tile_for", [*bounds, b.constant(0, kind)], {}, (region,))
        b.op("tile_store", [result, b.convert(loop.result, out), i, j])

    grid = -(-m // rows), -(-n // columns)
    return call(body, [x, y], [tensor(m, n, element=out)], grid)


def attention(heads: int, length: int, depth: int, rows: int, keys: int, causal: bool) -> Op:
    """softmax(q k^T / sqrt(depth)) v in one walk over tiles of keys, bf16."""
    kind = tensor(heads, length, depth, element=BF16)
    scores, wide = tensor(rows, keys), tensor(rows, depth)

    def body(b: Any, q: Any, k: Any, v: Any, out: Any) -> None:
        head, row, zero = b("tile_id", axis=0), index(b, 1, rows), b.constant(0, INDEX)
        query = b.reshape(b("tile_load", q, head, row, zero, sizes=(1, rows, depth)), wide.dims)

        def step(b: Any, number: Any, top: Any, total: Any, sums: Any) -> list[Any]:
            at = b("multiply", number, b.constant(keys, INDEX))
            sizes = (1, keys, depth)
            key = b.reshape(b("tile_load", k, head, at, zero, sizes=sizes), sizes[1:])
            value = b.reshape(b("tile_load", v, head, at, zero, sizes=sizes), sizes[1:])
            score = dot(b, query, key, scores, (1, 1))
            score = b("multiply", score, b.constant(depth**-0.5, scores))
            if causal:
                place = TensorType(scores.dims, INDEX.element)
                down = b("iota", type=place, iota_dimension=0)
                down = b("add", down, b.broadcast(row, scores.dims, ()))
                across = b("iota", type=place, iota_dimension=1)
                across = b("add", across, b.broadcast(at, scores.dims, ()))
                low = b.constant(-np.inf, scores)
                score = b("select", b.compare("LE", across, down), score, low)
            low = b.constant(-np.inf, tensor())
            new = b("maximum", top, b.reduce("maximum", score, low, (1,)))
            power = b("exponential", b("subtract", score, b.broadcast(new, scores.dims, (0,))))
            scale = b("exponential", b("subtract", top, new))
            part = b.reduce("add", power, b.constant(0, tensor()), (1,))
            total = b("add", b("multiply", total, scale), part)
            sums = b("multiply", sums, b.broadcast(scale, wide.dims, (0,)))
            product = dot(b, b.convert(power, BF16), value, wide, (1, 0))
            return [new, total, b("add", sums, product)]

        column = tensor(rows)
        region = build_region([INDEX, column, column, wide], step)
        start = [b.constant(-1e30, column), b.constant(0, column), b.constant(0, wide)]
        steps = b.constant(length // keys, INDEX)
        loop = b.op("tile_for", [zero, steps, *start], {}, (region,))
        _, total, sums = loop.results
        result = b("divide", sums, b.broadcast(total, wide.dims, (0,)))
        result = b.reshape(b.convert(result, BF16), (1, rows, depth))
        b.op("tile_store", [out, result, head, row, zero])

    return call(body, [kind] * 3, [kind], (heads, -(-length // rows)))


def call_through(monkeypatch: pytest.MonkeyPatch, emitter: Callable[[Op], KernelCode]) -> None:
    """Calls of kernels run what `emitter` makes of them in the simulator."""

    def run(kernel: Kernel, *arrays: Any, **constants: Any) -> Any:
        given = [np.asarray(array) for array in arrays]
        op = kernel.module(*given, **constants).body.ops[0]
        results = harness.run(op, given, code=emitter(op), on=SM_80)
        return results[0] if len(results) == 1 else tuple(results)

    monkeypatch.setattr(Kernel, "__call__", run)


def values(op: Op) -> list[np.ndarray]:
    """Random operands."""
    found = []
    for value in op.operands:
        if value.element.is_float:
            array = RNG.standard_normal(value.dims)
        else:
            array = RNG.integers(-60, 60, value.dims)
        found.append(array.astype(value.tensor.dtype))
    return found


def check(
    op: Op,
    inputs: Sequence[np.ndarray],
    *,
    tolerance: float = 0.0,
    on: NvidiaTarget = SM_80,
    **options: Any,
) -> None:
    """The kernel in the simulator and the interpreter of tile functions agree."""
    code = tile.emit(op, on)
    for got, wanted in zip(
        harness.run(op, inputs, code=code, on=on, **options), evaluated(op, inputs), strict=True
    ):
        # Order of sums and fused multiply-adds differ.
        loose = got.dtype.kind in "fcV"
        harness.compare(got, np.asarray(wanted), max(tolerance, 1e-6) if loose else 0.0)


def ptx_of(op: Op, on: NvidiaTarget = SM_80) -> str:
    return compile_ptx(tile.emit(op, on).text, on.architecture)


def assembled(op: Op, on: NvidiaTarget = SM_80) -> Assembly:
    return assemble(ptx_of(op, on), on.architecture)


def counted(ptx: str, text: str) -> int:
    """How often an instruction stands in the text."""
    return len(re.findall(rf"^\s*(?:@!?%p\d+ )?{text}", ptx, re.MULTILINE))
