"""What the pipeline takes, why it leaves the rest, and how it decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
import girih.language as tl
from girih.backends.nvidia.capabilities import capabilities
from girih.backends.nvidia.kernels import emit
from girih.backends.nvidia.pipeline.emit import plan_of
from girih.backends.nvidia.pipeline.masks import masks
from girih.hlo.graph import Op
from girih.hlo.types import BF16, F32, TensorType
from girih.optimizer.asynchronous import analysis
from girih.optimizer.asynchronous.configuration import PipelineConfiguration, Style
from girih.optimizer.asynchronous.work import COLUMN, ROW, PipelineWork
from girih.optimizer.machine import Limitation

from .. import harness
from .support import SM_90A, alone, attention, call_of, fusion, marked, matmul, planned, random


def plan(kernel: Any, *arrays: Any, **constants: Any) -> PipelineConfiguration:
    return planned(call_of(kernel, *arrays, **constants))


def analyse(op: Op) -> PipelineWork:
    found = analysis.analyse(op, capabilities(SM_90A.architecture))
    assert isinstance(found, PipelineWork), found
    return found


def refused(reason: str, kernel: Any, *arrays: Any, **constants: Any) -> None:
    found = plan_of(call_of(kernel, *arrays, **constants), SM_90A)
    assert isinstance(found, Limitation) and reason in found.reason, found


SIZES = {"M": 128, "N": 128, "K": 128, "TM": 128, "TN": 128, "TK": 64}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"TM": 32, "TN": 32}, "32 rows"),
        ({"TN": 12}, "12 columns"),
        ({"TK": 24}, "a depth of 24"),
        ({"K": 100}, "no multiple of 16"),
        ({"TM": 256, "TN": 256}, "do not fit the registers"),
    ],
)
def test_sizes_that_the_machine_has_not(change: dict[str, int], reason: str) -> None:
    sizes = {**SIZES, **change}
    a, b = random(sizes["M"], sizes["K"]), random(sizes["K"], sizes["N"])
    refused(reason, matmul, a, b, **sizes)


def test_f32_is_not_rounded_unasked() -> None:
    a, b = random(128, 128, dtype=np.float32), random(128, 128, dtype=np.float32)
    op = call_of(matmul, a, b, **{**SIZES, "TK": 32}, right="nk", OUT="float32")
    found = plan_of(op, SM_90A)
    assert isinstance(found, Limitation) and "tf32" in found.reason
    assert (found.target, found.dtype) == ("nvidia:sm_90a", "f32")
    assert planned(marked(op)).first_products[0].kind.depth == 8


def test_reductions_over_rows_are_left_to_others() -> None:
    @girih.kernel(out=tl.Array((128,), "float32"))
    def columns(a, b, out):
        acc = tl.zeros((128, 128))
        for k in range(0, 128, 64):
            acc = tl.dot(a[:, k : k + 64], b[k : k + 64, :], acc)
        out[...] = acc.sum(0)

    # The sum is over the rows of the product, or over its columns if the sides are exchanged.
    found = plan(columns, random(128, 128), random(128, 128))
    assert found.work.roles[found.work.products[0].op.result] == (COLUMN, ROW)

    @girih.kernel(out=tl.Array((128, 128), "float32"))
    def both(a, b, out):
        acc = tl.zeros((128, 128))
        for k in range(0, 128, 64):
            acc = tl.dot(a[:, k : k + 64], b[k : k + 64, :], acc)
        out[...] = acc - acc.sum(0)[None, :] - acc.sum(1)[:, None]

    refused("over rows", both, random(128, 128), random(128, 128))


def test_what_it_does_not_do_has_a_reason() -> None:
    @girih.kernel(out=tl.Array((128, 128), "float32"))
    def gathered(a, rows, b, out):
        out[...] = tl.dot(tl.gather(a, rows[...], (0, 0), (128, 64), 0), b[...])

    refused("rows by number", gathered, random(512, 64), np.zeros(128, np.int32), random(64, 128))

    @girih.kernel(out=tl.Array((128, 128), "float32"))
    def filled(a, b, out):
        out[...] = tl.dot(tl.load(a, (0, 0), (128, 64), fill=1.0), b[...])

    refused("filled with 1", filled, random(100, 64), random(64, 128))

    @girih.kernel(out=tl.Array((128, 128), "float32"))
    def elementwise(a, out):
        out[...] = a[...].to(tl.float32)

    refused("no product", elementwise, random(128, 128))


def test_roles_follow_values() -> None:
    q = random(1, 256, 64)
    work = analyse(call_of(attention, q, q, q, causal=True))
    assert work.loop is not None
    found = [work.roles.get(value) for value in work.loop.regions[0].arguments[1:]]
    assert sorted(map(str, found)) == sorted(map(str, [(ROW,), (ROW,), (ROW, COLUMN)]))
    scores, weighted = work.inner
    assert scores.panels[0].moves is False and scores.panels[1].moves
    assert isinstance(weighted.right.op, Op) and not isinstance(weighted.left, type(weighted.right))
    assert weighted.right_depth_first and not scores.right_depth_first


def test_masks_of_whole_tiles_are_found() -> None:
    q = random(1, 256, 64)
    always, first = masks(analyse(call_of(attention, q, q, q, causal=True)))
    assert not always and [(mask.least.constant, mask.slope) for mask in first] == [(-127, 1)]
    always, first = masks(analyse(call_of(attention, q, q[:, :200], q[:, :200])))
    assert not always and [(mask.least.constant, mask.slope) for mask in first] == [(72, 1)]


def test_rings_share_what_is_there() -> None:
    q = random(1, 4096, 128)
    found = plan(attention, q, q, q, TK=176)
    assert found.style is Style.ROTATE
    assert [ring.stages for ring in found.rings] == [1, 2, 2]
    # A store in smaller pieces leaves room for the windows.
    assert [staged.chunks for staged in found.stores.values()] == [1]


@pytest.mark.parametrize(
    ("dims", "tile"),
    [
        ((8192, 8192, 8192), (128, 256)),
        ((1024, 1024, 1024), (128, 128)),  # half of the machine, but all that L2 gives
        ((8192, 64, 1024), (128, 64)),
    ],
)
def test_tiles_suit_the_machine(dims: tuple[int, int, int], tile: tuple[int, int]) -> None:
    M, N, K = dims
    op = fusion(
        TensorType((M, K), BF16), TensorType((K, N), BF16), TensorType((M, N), BF16),
        lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,),
    )  # fmt: skip
    found = alone(op)
    (product,) = found.first_products
    assert (product.rows, product.columns) == tile


def test_products_of_programs_go_through_the_pipeline() -> None:
    op = fusion(
        TensorType((256, 128), BF16), TensorType((128, 256), BF16), TensorType((256, 256), F32),
        lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,),
    )  # fmt: skip
    assert "wgmma" in emit(harness.with_tilings(op, SM_90A), SM_90A).text
