"""What is measured: operations with their sizes, once in JAX (for girih and XLA), once in torch.

A case knows its flops and the least bytes that it moves, and `sample`, which computes a part of the
result in float64 from the very inputs, so that a check costs little at any size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Sample = Callable[[Sequence[Any], Any], tuple[Any, Any]]  # inputs, result -> (wanted, found)
ROWS = 48  # of a result that are compared
TOLERANCES = {"bf16": 2e-2, "fp16": 3e-3, "tf32": 3e-3, "fp8": 2e-2, "f32": 1e-4}
TORCH = {"bf16": "bfloat16", "fp16": "float16", "tf32": "float32", "f32": "float32"}


@dataclass(frozen=True)
class Case:
    """One operation of certain sizes. `inputs`: dims of each, all of `dtype`; `units`: what its
    speed is counted in, "flops" or "bytes"."""

    group: str
    name: str
    dtype: str
    inputs: tuple[tuple[int, ...], ...]
    jax: Callable[..., Any]
    torch: Callable[..., Any]
    sample: Sample
    flops: float
    bytes: float
    units: str = "bytes"
    triton: str = ""  # which of triton_kernels does the same
    numerics: str = "reassociates"  # girih's option
    facts: dict[str, Any] = field(default_factory=dict)

    def make_inputs(self, device: str) -> list[Any]:
        """Seeded normal numbers as torch tensors; eighth-bit floats as their bytes."""
        import torch

        generator = torch.Generator(device).manual_seed(7)
        made = []
        for dims in self.inputs:
            values = torch.randn(dims, generator=generator, device=device)
            if self.dtype == "fp8":
                made.append(values.to(torch.float8_e4m3fn).view(torch.uint8))
            else:
                made.append(values.to(getattr(torch, TORCH[self.dtype])))
        return made

    def exported(self) -> Any:
        """The operation as JAX exports it for a GPU; girih's source."""
        import jax
        import jax.numpy as jnp

        element = "uint8" if self.dtype == "fp8" else TORCH[self.dtype]
        shapes = [jax.ShapeDtypeStruct(dims, getattr(jnp, element)) for dims in self.inputs]
        return jax.export.export(jax.jit(self.jax), platforms=["cuda"])(*shapes)

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.dtype]


def _size(dtype: str) -> int:
    return {"bf16": 2, "fp16": 2, "fp8": 1}.get(dtype, 4)


def _wide(tensor: Any) -> Any:
    import torch

    if tensor.dtype is torch.uint8:
        tensor = tensor.view(torch.float8_e4m3fn)
    return tensor.to(torch.float64)


# Products.


def matmul(dtype: str, m: int, n: int, k: int) -> Case:
    """[m, k] x [k, n], both row-major; fp8 gives bf16."""

    def in_jax(a: Any, b: Any) -> Any:
        import jax
        import jax.numpy as jnp
        from jax import lax

        if dtype == "fp8":
            a, b = (lax.bitcast_convert_type(x, jnp.float8_e4m3fn) for x in (a, b))
        precision = lax.DotAlgorithmPreset.TF32_TF32_F32 if dtype == "tf32" else None
        found = jax.lax.dot_general(
            a, b, (((1,), (0,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
        )
        return found.astype(jnp.bfloat16 if dtype == "fp8" else a.dtype)

    def in_torch(a: Any, b: Any) -> Any:
        import torch

        if dtype != "fp8":
            return a @ b
        one = torch.ones((), device=a.device)
        narrow = torch.float8_e4m3fn
        # cuBLAS wants the second operand column-major; the copy is part of what it costs here.
        second = b.view(narrow).t().contiguous().t()
        product = torch.ops.aten._scaled_mm
        return product(a.view(narrow), second, one, one, out_dtype=torch.bfloat16)

    def sample(inputs: Sequence[Any], result: Any) -> tuple[Any, Any]:
        a, b = inputs
        return _wide(a[:ROWS]) @ _wide(b), result[:ROWS]

    moved = (m * k + k * n) * _size(dtype) + m * n * max(2, _size(dtype))
    return Case(
        "matmul", f"{m}x{n}x{k}", dtype, ((m, k), (k, n)), in_jax, in_torch, sample,
        2.0 * m * n * k, float(moved), "flops", "" if dtype == "fp8" else "matmul",
    )  # fmt: skip


# Attention.


def attention(dtype: str, batch: int, heads: int, length: int, width: int, causal: bool) -> Case:
    """softmax(q k^T / sqrt(width)) v of [batch, heads, length, width]."""

    def in_jax(q: Any, k: Any, v: Any) -> Any:
        import jax
        import jax.numpy as jnp

        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32)
        scores = scores * (1 / math.sqrt(width))
        if causal:
            place = jnp.arange(length)
            scores = jnp.where(place[:, None] >= place[None, :], scores, -jnp.inf)
        weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
        found = jnp.einsum("bhqk,bhkd->bhqd", weights, v, preferred_element_type=jnp.float32)
        return found.astype(q.dtype)

    def in_torch(q: Any, k: Any, v: Any) -> Any:
        from torch.nn.functional import scaled_dot_product_attention

        return scaled_dot_product_attention(q, k, v, is_causal=causal)

    def sample(inputs: Sequence[Any], result: Any) -> tuple[Any, Any]:
        import torch

        q, k, v = (_wide(x[0, 0]) for x in inputs)
        first = max(0, length - ROWS)  # the last rows see the most keys
        scores = q[first:] @ k.t() / math.sqrt(width)
        if causal:
            place = torch.arange(length, device=q.device)
            scores = scores.masked_fill(place[first:, None] < place[None, :], -math.inf)
        return torch.softmax(scores, -1) @ v, result[0, 0, first:]

    dims = (batch, heads, length, width)
    flops = 4.0 * math.prod(dims) * length * (0.5 if causal else 1.0)
    name = f"{batch}x{heads}x{length}x{width}{' causal' if causal else ''}"
    moved = 4.0 * math.prod(dims) * _size(dtype)
    # Peers' kernels for causal attention do not read what is masked wholly, NaN or not.
    numerics = "assumes-finite" if causal else "reassociates"
    return Case(
        "attention", name, dtype, (dims,) * 3, in_jax, in_torch, sample, flops, moved, "flops",
        numerics=numerics,
    )  # fmt: skip


# Memory-bound operations.


def softmax(dtype: str, rows: int, columns: int) -> Case:
    def in_jax(x: Any) -> Any:
        import jax
        import jax.numpy as jnp

        return jax.nn.softmax(x.astype(jnp.float32), axis=-1).astype(x.dtype)

    def in_torch(x: Any) -> Any:
        import torch

        return torch.softmax(x, -1)

    def sample(inputs: Sequence[Any], result: Any) -> tuple[Any, Any]:
        return _wide(inputs[0][:ROWS]).softmax(-1), result[:ROWS]

    count = rows * columns
    return Case(
        "softmax", f"{rows}x{columns}", dtype, ((rows, columns),), in_jax, in_torch, sample,
        5.0 * count, 2.0 * count * _size(dtype), triton="softmax",
    )  # fmt: skip


def layer_norm(dtype: str, rows: int, columns: int) -> Case:
    def in_jax(x: Any, weight: Any, bias: Any) -> Any:
        import jax.numpy as jnp
        from jax import lax

        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        scale = lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
        return (centred * scale * weight + bias).astype(x.dtype)

    def in_torch(x: Any, weight: Any, bias: Any) -> Any:
        from torch.nn.functional import layer_norm as norm

        return norm(x, (columns,), weight, bias)

    def sample(inputs: Sequence[Any], result: Any) -> tuple[Any, Any]:
        from torch.nn.functional import layer_norm as norm

        x, weight, bias = map(_wide, (inputs[0][:ROWS], *inputs[1:]))
        return norm(x, (columns,), weight, bias), result[:ROWS]

    count = rows * columns
    return Case(
        "layer norm", f"{rows}x{columns}", dtype, ((rows, columns), (columns,), (columns,)),
        in_jax, in_torch, sample, 8.0 * count, 2.0 * count * _size(dtype), triton="layer_norm",
    )  # fmt: skip


def elementwise(dtype: str, rows: int, columns: int) -> Case:
    """gelu(x + bias) * gate + residual."""

    def in_jax(x: Any, bias: Any, gate: Any, residual: Any) -> Any:
        import jax

        return jax.nn.gelu(x + bias, approximate=False) * gate + residual

    def in_torch(x: Any, bias: Any, gate: Any, residual: Any) -> Any:
        from torch.nn.functional import gelu

        return gelu(x + bias) * gate + residual

    def sample(inputs: Sequence[Any], result: Any) -> tuple[Any, Any]:
        x, bias, gate, residual = inputs
        wide = [_wide(v) for v in (x[:ROWS], bias, gate[:ROWS], residual[:ROWS])]
        return in_torch(*wide), result[:ROWS]

    dims, count = (rows, columns), rows * columns
    return Case(
        "elementwise", f"{rows}x{columns}", dtype, (dims, (columns,), dims, dims), in_jax,
        in_torch, sample, 12.0 * count, 4.0 * count * _size(dtype), triton="elementwise",
    )  # fmt: skip


def transpose(dtype: str, rows: int, columns: int) -> Case:
    def in_jax(x: Any) -> Any:
        return x.T

    def in_torch(x: Any) -> Any:
        return x.t().contiguous()

    def sample(inputs: Sequence[Any], result: Any) -> tuple[Any, Any]:
        return _wide(inputs[0][:, :ROWS]).t(), result[:ROWS]

    count = rows * columns
    return Case(
        "transpose", f"{rows}x{columns}", dtype, ((rows, columns),), in_jax, in_torch, sample,
        float(count), 2.0 * count * _size(dtype),
    )  # fmt: skip


def cases(size: str) -> Iterator[Case]:
    """Those of "full", "quick" (5 minutes), or "dry" (small enough for the simulator)."""
    if size == "dry":
        yield from _small()
        return
    quick = size == "quick"
    squares = (2048, 8192) if quick else (1024, 2048, 4096, 8192, 16384)
    for dtype in ("bf16", "fp16", "tf32", "fp8"):
        for side in squares[:1] if quick and dtype != "bf16" else squares:
            yield matmul(dtype, side, side, side)
    skinny = [(16, 8192, 8192), (8192, 128, 8192), (4096, 4096, 512), (1000, 1000, 1000)]
    odd = [(4097, 4095, 4099), (128, 16384, 1024), (8192, 28672, 4096), (333, 777, 555)]
    for m, n, k in skinny[:2] if quick else [*skinny, *odd]:
        yield matmul("bf16", m, n, k)
    for width in (128,) if quick else (64, 128, 256):
        for causal in (False, True):
            for length in (4096,) if quick else (1024, 2048, 4096, 8192, 16384):
                batch, heads = max(1, 16384 // length), 2048 // width
                yield attention("bf16", batch, heads, length, width, causal)
    dtypes = ("bf16",) if quick else ("bf16", "f32")
    for dtype in dtypes:
        long = [(16384, 1024), (65536, 256), (4096, 8192), (256, 131072)]
        for rows, columns in long[:1] if quick else long:
            yield softmax(dtype, rows, columns)
            yield layer_norm(dtype, rows, columns)
        for rows, columns in [(8192, 8192)] if quick else [(8192, 8192), (4096, 1024)]:
            yield elementwise(dtype, rows, columns)
            yield transpose(dtype, rows, columns)


def _small() -> Iterator[Case]:
    for dtype in ("bf16", "fp16", "tf32", "fp8"):
        yield matmul(dtype, 128, 128, 64)
    yield matmul("bf16", 77, 40, 33)
    for causal in (False, True):
        yield attention("bf16", 1, 1, 128, 64, causal)
    for dtype in ("bf16", "f32"):
        yield softmax(dtype, 16, 200)
        yield layer_norm(dtype, 16, 200)
        yield elementwise(dtype, 16, 200)
        yield transpose(dtype, 48, 80)
