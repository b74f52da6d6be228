"""Products through the copy engine and wgmma give what the interpreter gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import girih
import girih.language as tl
from girih.backends.nvidia.pipeline.emit import code_of
from girih.benchmarks.gpu.first.kernels import MATMULS
from girih.hlo.types import BF16 as ELEMENT
from girih.hlo.types import TensorType
from girih.optimizer.asynchronous.configuration import Style

from .. import harness
from .support import (
    BF16,
    F8,
    SM_90A,
    SMALL,
    alone,
    call_of,
    check,
    check_call,
    fusion,
    gated,
    layer,
    matmul,
    matrices,
    planned,
    random,
    residual,
)

CASES = MATMULS | {
    "plain": ((256, 256, 128), (128, 256, 64), {}),
    "two blocks of rows each": ((256, 128, 128), (256, 128, 64), {"left": "km"}),
    "one turn": ((128, 128, 64), (128, 128, 64), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_matmul(name: str) -> None:
    (M, N, K), (TM, TN, TK), more = CASES[name]
    a, b = matrices(M, N, K, more.get("left", "mk"), more.get("right", "kn"))
    check(matmul, a, b, M=M, N=N, K=K, TM=TM, TN=TN, TK=TK, **more)


@pytest.mark.parametrize(("dtype", "out"), [(np.float16, "float16"), (F8, "float32")])
def test_element_types(dtype, out) -> None:
    depth = 128 // np.dtype(dtype).itemsize
    M, N, K = 128, 96, 2 * depth
    a, b = matrices(M, N, K, right="nk", dtype=dtype)
    check(matmul, a, b, M=M, N=N, K=K, TM=128, TN=96, TK=depth, right="nk", OUT=out)


def test_neighbours_share_a_panel() -> None:
    a, b = matrices(512, 512, 192)
    plan = check(matmul, a, b, on=SMALL, M=512, N=512, K=192, TM=128, TN=256, TK=64)
    assert (plan.cluster, plan.cluster_axis, plan.blocks) == (2, 0, 2)
    assert plan.rings[0].shares == (1, 2)


def test_a_block_walks_several_tiles() -> None:
    a, b = matrices(384, 384, 128, right="nk")
    plan = check(matmul, a, b, on=SMALL, M=384, N=384, K=128, TM=128, TN=128, TK=64, right="nk")
    assert plan.blocks == 2 and plan.tiles == 9 and plan.raster.together


@pytest.mark.parametrize("shape", [(384, 384), (512, 512)], ids=["blocks", "clusters"])
def test_fewer_blocks_than_compiled_for_walk_all_tiles(shape: tuple[int, int]) -> None:
    """As on a device with fewer multiprocessors: bit for bit the same."""
    M, N = shape
    a, b = matrices(M, N, 128)
    TM, TN = (128, 256) if M == 512 else (128, 128)
    on = replace(SM_90A, architecture=replace(SM_90A.architecture, multiprocessors=4))
    op = call_of(matmul, a, b, M=M, N=N, K=128, TM=TM, TN=TN, TK=64)
    code = code_of(planned(op, on), on)
    (launch,) = code.launches
    assert launch.persistent and launch.grid == (4, 1, 1)
    assert launch.cluster[0] == (2 if M == 512 else 1)
    wanted = harness.run(op, (a, b), code=code)
    fewer = replace(code, launches=(replace(launch, grid=(2, 1, 1)),))
    reports: list[Any] = []
    (found,) = harness.run(op, (a, b), code=fewer, reports=reports)
    assert not reports[0].faults and found.tobytes() == wanted[0].tobytes()


def test_windows_of_the_next_tile_are_brought_ahead() -> None:
    """Where nothing moves in a loop, what stays for a tile has a second stage."""
    a, b = matrices(256, 384, 64)
    plan = check(matmul, a, b, on=SMALL, M=256, N=384, K=64, TM=128, TN=128, TK=64)
    assert plan.work.loop is None and [ring.stages for ring in plan.rings] == [2, 2]
    assert plan.tiles == 6 and plan.blocks == 2


def test_what_follows_a_product() -> None:
    arrays = random(2, 130, 128), random(2, 128, 136), random(136), random(2, 130, 136)
    check(layer, *arrays)


@pytest.mark.parametrize(
    ("dims", "tile", "dtype", "fills"),
    [
        ((300, 512), (128, 256), BF16, [2]),  # more than one stage of the ring
        ((256, 192), (128, 64), np.float32, [2]),
        ((384, 160), (192, 96), np.float16, [1]),  # rows of 64 bytes
    ],
)
def test_windows_behind_the_loop_are_brought(dims, tile, dtype, fills) -> None:
    """Several tiles of a block, a part of them outside, and stages of the loop's ring."""
    a, b, r = random(dims[0], 128), random(128, dims[1]), random(*dims, dtype=dtype)
    plan = check(residual, a, b, r, on=SMALL, TM=tile[0], TN=tile[1])
    assert [len(load.fills) for load in plan.epilogue_loads] == fills
    assert plan.tiles * plan.cluster > plan.blocks


def test_a_window_that_sums_start_from_is_read_at_once() -> None:
    @girih.kernel(out=lambda r: tl.Array(r.shape, "float32"))
    def kernel(a, b, r, c):
        acc = r[:, :]
        for k in range(0, a.shape[1], 64):
            acc = tl.dot(a[:, k : k + 64], b[k : k + 64, :], acc)
        c[:, :] = acc + r[:, :]

    arrays = random(64, 128), random(128, 64), random(64, 64, dtype=np.float32)
    plan = check(kernel, *arrays)
    loads = [op for op in plan.work.kernel.regions[0].ops if op.name == "tile_load"]
    assert [load.panel.op for load in plan.epilogue_loads] == loads[1:]


def test_two_products_of_one_operand() -> None:
    plan = check(gated, random(256, 192), random(192, 128), random(192, 128), tolerance=0.02)
    assert plan.style is Style.CHAIN and len(plan.rings) == 1
    assert len(plan.rings[0].panels) == 3


def test_sums_over_several_dims() -> None:
    """The gradient of a weight sums over batches and positions."""
    x, y = random(2, 72, 128), random(2, 72, 136)
    left, right = (TensorType(array.shape, ELEMENT) for array in (x, y))
    dims = {"lhs_contracting_dimensions": (0, 1), "rhs_contracting_dimensions": (0, 1)}
    op = fusion(left, right, TensorType((128, 136), ELEMENT), **dims)
    plan = alone(op)
    assert {len(panel.outer_places) for panel in plan.work.panels} == {2}
    check_call(plan.work.kernel, x, y)


def test_sizes_of_a_large_product() -> None:
    a, b = np.zeros((8192, 8192), BF16), np.zeros((8192, 8192), BF16)
    sizes = {"M": 8192, "N": 8192, "K": 8192, "TM": 128, "TN": 256, "TK": 64}
    plan = planned(call_of(matmul, a, b, **sizes), SMALL)
    assert plan.rings[0].stages == 4 and plan.shared_bytes <= 227 * 1024
