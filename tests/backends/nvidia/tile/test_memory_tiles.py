"""Tile functions whose tiles lie in memory: all that registers do, at any size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from girih.backends.nvidia.assemble import assemble
from girih.backends.nvidia.compile import compile_ptx
from girih.backends.nvidia.kernels import emit
from girih.backends.nvidia.tile import memory_tiles
from girih.hlo.build import build_region
from girih.hlo.graph import Op
from girih.hlo.interpret import evaluated
from girih.hlo.types import BF16, F32, ElementType, TensorType

from ....frontends.kernel import test_kernel_language as language
from .. import harness
from .support import (
    INDEX,
    SM_80,
    attention,
    call,
    call_through,
    counted,
    matmul,
    tensor,
    values,
)  # fmt: skip
from .test_operations import EXAMPLES, inside

SAMPLE = ("softmax", "cumsum", "parts", "transpose")

test_arg_reductions = language.test_arg_reductions
test_batched_and_transposed_products = language.test_batched_and_transposed_products
test_windows_of_every_form = language.test_windows_of_every_form
test_gather_and_scatter = language.test_gather_and_scatter
test_stores_combine_and_mask = language.test_stores_combine_and_mask
test_loops_carry_what_changes = language.test_loops_carry_what_changes
test_loops_with_computed_bounds = language.test_loops_with_computed_bounds
test_branches = language.test_branches
test_empty_grids_and_arrays = language.test_empty_grids_and_arrays


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of kernels run in the simulator, with tiles in memory."""
    call_through(monkeypatch, lambda op: memory_tiles.emit(op, SM_80))


SMALL = replace(SM_80, architecture=replace(SM_80.architecture, multiprocessors=1))


def check(op: Op, inputs: list[np.ndarray], tolerance: float = 1e-6, **options: Any) -> None:
    """On a machine of one multiprocessor, so that blocks have several places of the grid."""
    code = memory_tiles.emit(op, SMALL)
    found = harness.run(op, inputs, code=code, on=SM_80, **options)
    for got, wanted in zip(found, evaluated(op, inputs), strict=True):
        loose = got.dtype.kind in "fcV"
        harness.compare(got, np.asarray(wanted), tolerance if loose else 0.0)


@pytest.mark.parametrize("name", SAMPLE)
def test_elementwise(name: str) -> None:
    body, expected = language.UNARY[name]
    result = language.both(language.elementwise(body), language.X)
    np.testing.assert_allclose(result, expected(language.X), rtol=2e-5, atol=2e-5)


PLAIN = [n for n, (_, op, _) in enumerate(EXAMPLES) if not op.name.startswith("linalg.")]


@pytest.mark.parametrize("number", PLAIN[::8], ids=[EXAMPLES[n][0] for n in PLAIN[::8]])
def test_examples(number: int) -> None:
    _, op, given = EXAMPLES[number]
    check(inside(op), [np.asarray(x) for x in given], 2e-3)


@pytest.mark.parametrize(("limit", "seed"), [(1 << 16, 0), (0, 1)], ids=["shared", "scratch"])
def test_products_and_attention(limit: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops that carry tiles, in shared memory and in scratch that blocks use again."""
    monkeypatch.setattr(memory_tiles.Room, "__init__", _limited(limit))
    monkeypatch.setattr(memory_tiles, "THREADS", 64)
    op = matmul((48, 40, 40), (16, 16, 16))
    check(op, values(op), 1e-3, seed=seed)
    op = attention(2, 64, 16, 32, 16, causal=True)
    check(op, values(op), 2e-2, seed=seed)


def _limited(limit: int) -> Any:
    def init(room: memory_tiles.Room, _: int) -> None:
        room.limit = limit
        room.shared, room.scratch = memory_tiles.Arena(), memory_tiles.Arena()

    return init


def wide(dims: tuple[int, int], element: ElementType = F32) -> Op:
    """softmax of rows that no block holds in registers."""
    rows, columns = dims

    def body(b: Any, x: Any, out: Any) -> None:
        row, zero = b("tile_id", axis=0), b.constant(0, INDEX)
        tile = b.convert(b("tile_load", x, row, zero, sizes=(1, columns)), F32)
        scalar = TensorType((), F32)
        top = b.reduce("maximum", tile, b.constant(-np.inf, scalar), (1,))
        power = b("exponential", b("subtract", tile, b.broadcast(top, tile.dims, (0,))))
        total = b.reduce("add", power, b.constant(0, scalar), (1,))
        found = b("divide", power, b.broadcast(total, tile.dims, (0,)))
        b.op("tile_store", [out, b.convert(found, element), row, zero], {})

    whole = tensor(*dims, element=element)
    return call(body, [whole], [whole], (rows,))


@pytest.mark.parametrize("element", [F32, BF16], ids=str)
def test_tiles_larger_than_registers(element: ElementType) -> None:
    op = wide((2, 70000), element)
    code = emit(op, harness.TARGET)
    assert code.notes[0].startswith("tiles in memory: a tile of 70000 words")
    harness.check(op, values(op), tolerance=1e-5 if element is F32 else 1e-2, emitter=lambda: code)


def test_tiles_larger_than_shared_memory() -> None:
    """Two tiles of 256 KiB, exchanged in a loop, lie in scratch; a third product is of both."""
    size = 256
    kind = tensor(size, size)

    def body(b: Any, x: Any, y: Any, out: Any) -> None:
        zero = b.constant(0, INDEX)
        start = [b("tile_load", m, zero, zero, sizes=(size, size)) for m in (x, y)]

        def step(b: Any, number: Any, left: Any, right: Any) -> list[Any]:
            return [right, b("add", left, b("transpose", right, permutation=(1, 0)))]

        region = build_region([INDEX, kind, kind], step)
        loop = b.op("tile_for", [zero, b.constant(3, INDEX), *start], {}, (region,))
        b.op("tile_store", [out, b("subtract", *loop.results), zero, zero], {})

    op = call(body, [kind, kind], [kind], (1,))
    code = emit(op, harness.TARGET)
    assert code.scratch_bytes >= 2 * size * size * 4
    harness.check(op, values(op), tolerance=1e-6, emitter=lambda: code)


def test_windows_that_lie_inside_are_read_without_tests() -> None:
    """Formulas of windows are read where the mask of what reads them holds, if it has one."""
    op = matmul((256, 256, 256), (64, 64, 64))
    assert counted(compile_ptx(memory_tiles.emit(op, SM_80).text, SM_80.architecture), "selp") == 0


@pytest.mark.requires_ptxas
def test_no_spills() -> None:
    for op in (wide((64, 1 << 17)), attention(4, 256, 64, 64, 64, causal=False)):
        made = assemble(compile_ptx(memory_tiles.emit(op, SM_80).text, SM_80.architecture),
                        SM_80.architecture)  # fmt: skip
        assert made.faults() == []
