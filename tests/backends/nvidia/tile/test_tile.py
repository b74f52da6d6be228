"""Tile functions in general: the rooms' examples, and what the CPU's tests of them do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from girih.backends.nvidia.tile import fits
from girih.hlo.ops.tile import INDEX, KernelCall
from girih.hlo.ops.tile_examples import kernel_cases
from girih.hlo.types import BF16, F16, F32, F64, I32, TensorType

from ...cpu.tile import test_random as cpu_random
from ...cpu.tile import test_tile as cpu
from .. import harness
from .support import SM_80, call, check, counted, index, ptx_of, tensor

test_attention = cpu.test_attention
test_control_flow = cpu.test_loops_inside_branches_inside_loops
test_while = cpu.test_while_until_a_sum_is_small_and_offsets_from_data
test_scatter_and_gather = cpu.test_scatter_and_gather
test_masked_stores = cpu.test_masked_stores_of_each_type
test_rank_zero_and_empty = cpu.test_rank_zero_and_empty

# The same programs as on the CPU, fewer of them.
test_random = settings(
    max_examples=6, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)(given(st.data())(cpu_random.test_random_tile_functions.hypothesis.inner_test))  # fmt: skip


@pytest.fixture(autouse=True)
def on_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "check", check)
    monkeypatch.setattr(cpu_random, "check", check)


@pytest.mark.parametrize("case", [*kernel_cases()], ids=lambda case: case.name)
def test_examples(case: Any) -> None:
    op = harness.operation(KernelCall(), case)
    check(op, [np.asarray(x) for x in case.inputs])


@pytest.mark.parametrize("dims", [(4, 64), (5, 37), (1, 1000), (64, 3), (7, 1)])
@pytest.mark.parametrize("axis", [0, 1])
def test_sums_over_registers_lanes_and_warps(dims: tuple[int, int], axis: int) -> None:
    def body(b: Any, x: Any, out: Any) -> None:
        zero = b.constant(0, INDEX)
        value = b("tile_load", x, zero, zero, sizes=dims)
        total = b.reduce("add", value, b.constant(0.5, tensor()), (axis,))
        centred = b("subtract", value, b.broadcast(total, dims, (1 - axis,)))
        b.op("tile_store", [out, centred, zero, zero])

    x = np.random.default_rng(3).standard_normal(dims).astype(np.float32)
    check(call(body, [tensor(*dims)], [tensor(*dims)], ()), [x], tolerance=1e-5)


@pytest.mark.parametrize("element", [F32, F64, F16, BF16, I32])
@pytest.mark.parametrize("combine", ["add", "maximum", "minimum"])
def test_many_tiles_combine_in_one_place(element: Any, combine: str) -> None:
    """Whole numbers, so that the order does not matter."""

    def body(b: Any, x: Any, start: Any, out: Any) -> None:
        zero = b.constant(0, INDEX)
        value = b("tile_load", x, index(b, 0, 4), zero, sizes=(4, 6))
        initial = b.constant(0, TensorType((), element))
        total = b.reduce("add", value, initial, (0,))
        b.op("tile_store", [out, total, zero], {"combine": combine})

    dtype = TensorType((), element).dtype
    x = np.random.default_rng(5).integers(-9, 9, (20, 6)).astype(dtype)
    start = np.arange(6).astype(dtype)
    kinds = [tensor(20, 6, element=element), tensor(6, element=element)]
    check(call(body, kinds, kinds[1:], (5,), (1,)), [x, start])


def test_results_that_are_read_again_wait_for_all_threads() -> None:
    """A tile stores, reads what other threads of it have stored, and stores that elsewhere."""

    def body(b: Any, x: Any, out: Any) -> None:
        zero, four = b.constant(0, INDEX), b.constant(64, INDEX)
        value = b("tile_load", x, zero, sizes=(64,))
        b.op("tile_store", [out, value, zero])
        turned = b("reverse", b("tile_load", out, zero, sizes=(64,)), dimensions=(0,))
        b.op("tile_store", [out, turned, four])

    x = np.arange(64, dtype=np.float32)
    check(call(body, [tensor(64)], [tensor(128)], ()), [x])


def test_one_pass_over_memory_has_no_barrier_and_16_byte_accesses() -> None:
    def body(b: Any, x: Any, y: Any, out: Any) -> None:
        at = index(b, 0, 1024)
        total = b("add", *(b("tile_load", v, at, sizes=(1024,)) for v in (x, y)))
        b.op("tile_store", [out, total, at])

    kind = tensor(1 << 20)
    ptx = ptx_of(call(body, [kind, kind], [kind], (1024,)))
    assert counted(ptx, "ld.global.nc.v") == 2 * counted(ptx, "st.global.v") > 0
    assert "bar" not in ptx and "shared" not in ptx


def test_a_tile_beyond_all_registers_is_refused_with_a_reason() -> None:
    def body(b: Any, x: Any, out: Any) -> None:
        zero = b.constant(0, INDEX)
        b.op("tile_store", [out, b("tile_load", x, zero, sizes=(1 << 20,)), zero])

    kind = tensor(1 << 20)
    assert fits(call(body, [kind], [kind], ()), SM_80) == "a tile of 1048576 words"
