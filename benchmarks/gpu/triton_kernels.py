"""Plain Triton kernels of the measured operations, with a small choice of settings each."""

# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import triton
import triton.language as tl


def _products() -> list[triton.Config]:
    choices = [(128, 256, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 32, 4, 4), (64, 64, 64, 4, 4),
               (16, 128, 128, 4, 4)]  # fmt: skip
    return [
        triton.Config({"BM": m, "BN": n, "BK": k}, num_warps=warps, num_stages=stages)
        for m, n, k, warps, stages in choices
    ]


@triton.autotune(_products(), key=["m", "n", "k"])
@triton.jit
def matmul_kernel(
    a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr = 8
):
    """One block of c for each program; blocks of GROUP rows follow each other, for the cache."""
    number = tl.program_id(0)
    down, across = tl.cdiv(m, BM), tl.cdiv(n, BN)
    group = number // (GROUP * across)
    height = min(down - group * GROUP, GROUP)
    inside = number % (GROUP * across)
    row, column = group * GROUP + inside % height, inside // height
    rows = row * BM + tl.arange(0, BM)
    columns = column * BN + tl.arange(0, BN)
    steps = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        left = (rows[:, None] < m) & (start + steps[None, :] < k)
        right = (start + steps[:, None] < k) & (columns[None, :] < n)
        x = tl.load(a + rows[:, None].to(tl.int64) * k + start + steps[None, :], left, 0.0)
        y = tl.load(b + (start + steps[:, None]).to(tl.int64) * n + columns[None, :], right, 0.0)
        total = tl.dot(x, y, total)
    keep = (rows[:, None] < m) & (columns[None, :] < n)
    place = c + rows[:, None].to(tl.int64) * n + columns[None, :]
    tl.store(place, total.to(c.dtype.element_ty), keep)


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * columns
    place = tl.arange(0, BLOCK)
    keep = place < columns
    row = tl.load(x + start + place, keep, -float("inf")).to(tl.float32)
    powers = tl.exp(row - tl.max(row, 0))
    tl.store(out + start + place, (powers / tl.sum(powers, 0)).to(out.dtype.element_ty), keep)


@triton.jit
def layer_norm_kernel(x, weight, bias, out, columns, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * columns
    place = tl.arange(0, BLOCK)
    keep = place < columns
    row = tl.load(x + start + place, keep, 0.0).to(tl.float32)
    centred = tl.where(keep, row - tl.sum(row, 0) / columns, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / columns + 1e-5)
    w = tl.load(weight + place, keep, 0.0).to(tl.float32)
    b = tl.load(bias + place, keep, 0.0).to(tl.float32)
    tl.store(out + start + place, (centred * scale * w + b).to(out.dtype.element_ty), keep)


@triton.jit
def elementwise_kernel(x, bias, gate, residual, out, size, columns, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = place < size
    value = tl.load(x + place, keep, 0.0).to(tl.float32)
    value += tl.load(bias + place % columns, keep, 0.0).to(tl.float32)
    value = 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))
    value = value * tl.load(gate + place, keep, 0.0).to(tl.float32)
    value += tl.load(residual + place, keep, 0.0).to(tl.float32)
    tl.store(out + place, value.to(out.dtype.element_ty), keep)


def bound(name: str, dtype: str, inputs: Sequence[Any]) -> Callable[[], Any]:
    """The kernel of that name on these tensors."""
    import torch

    first = inputs[0]
    if name == "matmul":
        a, b = inputs
        (m, k), n = a.shape, b.shape[1]

        def product() -> Any:
            c = torch.empty((m, n), dtype=a.dtype, device=a.device)
            matmul_kernel[lambda s: (triton.cdiv(m, s["BM"]) * triton.cdiv(n, s["BN"]),)](
                a, b, c, m, n, k
            )
            return c

        return product
    rows, columns = first.shape
    block = triton.next_power_of_2(columns)
    warps = 4 if block <= 2048 else 8 if block <= 8192 else 16

    def run() -> Any:
        out = torch.empty_like(first)
        if name == "elementwise":
            grid = (triton.cdiv(first.numel(), 1024),)
            elementwise_kernel[grid](*inputs, out, first.numel(), columns, BLOCK=1024)
        elif name == "softmax":
            softmax_kernel[(rows,)](first, out, columns, BLOCK=block, num_warps=warps)
        else:
            layer_norm_kernel[(rows,)](*inputs, out, columns, BLOCK=block, num_warps=warps)
        return out

    return run
