"""Operators with functions inside, quantised graphs, and gradients, against PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # the operators of PT2E exports
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils import _pytree

import girih
from girih.frontends.torch.exported import array_of
from girih.hlo.errors import ImportBlockers

GENERATOR = torch.Generator().manual_seed(0)
aten, decomposed = torch.ops.aten, torch.ops.quantized_decomposed


@pytest.fixture(autouse=True)
def fresh() -> None:
    """PyTorch keeps what it traced, and tracing flex_attention twice in one state fails there."""
    torch._dynamo.reset()


def normal(*dims: int) -> torch.Tensor:
    return torch.randn(*dims, generator=GENERATOR)


class Body(torch.nn.Module):
    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.body = body

    def forward(self, *inputs: Any) -> Any:
        return self.body(*inputs)


def exported(body: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(Body(body).eval(), inputs, strict=False)


def check(body: Callable[..., Any], *inputs: torch.Tensor, tolerance: float = 2e-6) -> Any:
    """Interpreter and CPU give PyTorch's numbers; the module."""
    module = girih.import_model(exported(body, inputs))
    expected = [array_of(x) for x in _pytree.tree_leaves(body(*inputs))]
    flat = [array_of(x) for x in inputs]
    engines = girih.interpret(module, flat), _pytree.tree_leaves(girih.compile(module)(*flat))
    for found in engines:
        for actual, wanted in zip(map(np.asarray, found), expected, strict=True):
            assert (actual.shape, actual.dtype) == (wanted.shape, wanted.dtype)
            if wanted.dtype.kind in "biu":
                np.testing.assert_array_equal(actual, wanted)
            else:
                scale = max(1.0, float(np.abs(wanted).max()))
                np.testing.assert_allclose(actual, wanted, rtol=0, atol=tolerance * scale)
    return module


X, H = normal(5, 4), normal(4)
Q, K = normal(2, 4, 8, 16), normal(2, 2, 8, 16)


def test_map() -> None:
    check(lambda xs, y: map_rows(lambda a, b: a * b + 1, xs, y), X, H)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse: bool) -> None:
    def body(start: torch.Tensor, xs: torch.Tensor) -> Any:
        return scan(lambda c, x: (c + x, (c * x).sin()), start, xs, reverse=reverse)

    module = check(body, H, X)
    assert sum(op.name == "while" for op in module.body.ops) == 1


def test_associative_scan() -> None:
    def linear(a: Any, b: Any) -> Any:
        return a[0] * b[0], a[1] * b[0] + b[1]

    check(lambda x, y: associative_scan(linear, (x, y), 0, combine_mode="generic"), X, X + 1)


def test_flexible_attention() -> None:
    bias = normal(4)

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + (q - k) * 0.1 + bias[h]

    check(lambda q, k: flex_attention(q, k, k, score_mod=score, enable_gqa=True), Q, K)


def test_flexible_attention_with_a_mask() -> None:
    def seen(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    mask = create_block_mask(seen, None, None, 8, 8, device="cpu")
    check(lambda q: flex_attention(q, q, q, block_mask=mask, scale=0.3), Q)


def test_autocast_inside_a_model() -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ x.T).float()

    check(body, X, tolerance=1e-2)


# Quantised graphs.

W8 = torch.randint(-128, 128, (6, 8), generator=GENERATOR).to(torch.int8)
SCALES = normal(6).abs() * 0.01 + 0.001
ZEROS = torch.randint(-4, 4, (6,), generator=GENERATOR)
Y = normal(3, 8)


def test_quantize_and_back() -> None:
    def body(x: torch.Tensor) -> Any:
        q = decomposed.quantize_per_tensor.default(x, 0.02, 3, -128, 127, torch.int8)
        return q, decomposed.dequantize_per_tensor.default(q, 0.02, 3, -128, 127, torch.int8)

    check(body, Y)


def test_scales_of_values() -> None:
    def body(x: torch.Tensor) -> Any:
        args = (0, 255, 1e-6, torch.uint8)
        scale, zero = decomposed.choose_qparams.tensor(x, *args)
        even = decomposed.choose_qparams_symmetric.tensor(x, -127, 127, 1e-6, torch.int8)
        q = decomposed.quantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)
        back = decomposed.dequantize_per_tensor.tensor(q, scale, zero, 0, 255, torch.uint8)
        return scale, zero, *even, q, back

    check(body, Y)


def test_channels_and_tokens_and_groups() -> None:
    def body(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> Any:
        args = (-128, 127, torch.int8)
        real = decomposed.dequantize_per_channel.default(w, s, z, 0, *args)
        again = decomposed.quantize_per_channel.default(real, s, z, 0, *args)
        scale, zero = decomposed.choose_qparams_per_token_asymmetric.default(x, torch.int8)
        token = decomposed.quantize_per_token.default(x, scale, zero, *args)
        wide = decomposed.dequantize_per_token.default(token, scale, zero, *args, torch.float32)
        grouped = decomposed.dequantize_per_channel_group.default(
            w, torch.stack([s, s * 2], 1), torch.stack([z, z], 1), *args, 4, torch.float32
        )
        return real, again, token, wide @ real.T, wide @ grouped.T

    check(body, Y, W8, SCALES, ZEROS, tolerance=1e-5)


def test_weight_only_products() -> None:
    check(lambda x, w, s: aten._weight_int8pack_mm(x, w, s), Y, W8, SCALES, tolerance=1e-5)

    def by_hand(x: torch.Tensor, packed: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        low, high = (packed & 15).to(torch.int8) - 8, (packed >> 4).to(torch.int8) - 8
        weight = torch.stack([low, high], -1).reshape(6, 8) * s[:, None]
        return torch.nn.functional.linear(x, weight)

    packed = torch.randint(0, 256, (6, 4), generator=GENERATOR).to(torch.uint8)
    check(by_hand, Y, packed, SCALES, tolerance=1e-5)
    check(lambda x, w: aten._int_mm(x, w), W8, W8.T.contiguous())


def test_weights_packed_for_a_machine_are_refused() -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        packed = torch.zeros(32, 16, dtype=torch.uint8)
        scales = torch.ones(1, 32, 2)
        return aten._weight_int4pack_mm_for_cpu(x, packed, 32, scales)

    with pytest.raises(ImportBlockers, match="order of the machine"):
        girih.import_model(exported(body, (normal(2, 32),)))


def test_fake_quantisation() -> None:
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 2, -8, 7), Y)
    check(
        lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 1, -8, 7),
        normal(3, 6), SCALES * 20, ZEROS.to(torch.int32),
    )  # fmt: skip


# What found bugs of the compiler.


def test_a_window_with_a_dim_of_one_is_transposed() -> None:
    check(lambda x: x[:, :, :1, :].permute(0, 2, 3, 1).clone(), normal(2, 16, 8, 8))
    check(lambda x: (x * x)[:, :, :1, :].permute(0, 2, 3, 1).sum(-1), normal(2, 16, 8, 8))


def test_rows_that_a_reshape_joins_are_no_window() -> None:
    def body(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        shares = torch.nn.functional.linear(x, w).softmax(-1)
        return shares.reshape(24, 4).sort(-1, descending=True).values

    check(body, normal(2, 12, 32), normal(4, 32))
