"""Gradients of embeddings, norms, softmax, distances and what is chosen by masks.

They stand in exports of training steps. Where a gradient is not used it is not computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....hlo.graph import Value
from ....hlo.types import I64
from ..context import Context, static
from .indexing import take
from .running import running_of
from .scatters import index_add


def embedding_dense_backward(
    c: Context,
    grad_output: Value,
    indices: Value,
    num_weights: Any,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Value:
    """Rows of the gradient added where they were read, none for `padding_idx`; divided by how often
    that was, where the frequency scales."""
    count, width = math.prod(indices.dims), c.dims[1]
    rows = c.builder.reshape(c.wide(grad_output), (count, width))
    flat = c.builder.reshape(c.convert(indices, I64), (count,))
    if padding_idx >= 0:
        kept = c.builder.compare("NE", flat, c.full(padding_idx, flat.dims, I64))
        rows = c.select(c.builder.broadcast(kept, rows.dims, [0]), rows, 0)
    if scale_grad_by_freq:
        times = index_add(c, c.full(0, c.dims[:1], rows.element), 0, flat,
                          c.full(1, flat.dims, rows.element))  # fmt: skip
        times = take(c, times, flat, 0, wrap=False)
        rows = c("divide", rows, c.builder.broadcast(times, rows.dims, [0]))
    return c.narrow(index_add(c, c.full(0, c.dims, rows.element), 0, flat, rows))


def _norm_input(
    c: Context, scaled: Value, normal: Value, factor: Value, axes: Sequence[int], count: int
) -> Value:
    """factor * (g - mean(g) - normal * mean(g * normal)) over `axes`; `factor` spread already."""
    middle = c.along(c.reduce("add", scaled, axes), scaled.dims, axes)
    along = c.reduce("add", c("multiply", scaled, normal), axes)
    share = c("multiply", normal, c.along(along, scaled.dims, axes))
    rest = c("subtract", scaled, c.divide(c("add", middle, share), count))
    return c("multiply", factor, rest)


def native_layer_norm_backward(
    c: Context,
    grad_out: Value,
    input: Value,
    normalized_shape: Sequence[int],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    rank, inner = input.rank, len(normalized_shape)
    outer, axes = list(range(rank - inner)), list(range(rank - inner, rank))
    x, grad = c.wide(input), c.wide(grad_out)
    mean, rstd = (c.spread(c.convert(v, x.element), x.dims) for v in (mean, rstd))
    normal = c("multiply", c("subtract", x, mean), rstd)
    scaled = grad
    if weight is not None:
        scaled = c("multiply", grad, c.spread(c.convert(weight, x.element), x.dims))
    return _norm_gradients(
        c, output_mask,
        lambda: _norm_input(c, scaled, normal, rstd, axes, c.count(x.dims, axes)),
        lambda: c.reduce("add", c("multiply", grad, normal), outer),
        lambda: c.reduce("add", grad, outer),
    )  # fmt: skip


def _norm_gradients(
    c: Context, mask: Sequence[bool], *bodies: Callable[[], Value]
) -> tuple[Value | None, ...]:
    """The gradients that are asked for and used, in their declared types."""
    return tuple(
        c.narrow(body(), index) if asked and index < len(c.used) and c.used[index] else None
        for index, (asked, body) in enumerate(zip(mask, bodies, strict=True))
    )


def native_group_norm_backward(
    c: Context,
    grad_out: Value,
    input: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    batch, channels, *space = input.dims
    dims = (batch, group, channels // group, math.prod(space))
    x, grad = (c.builder.reshape(c.wide(v), dims) for v in (input, grad_out))
    mean, rstd = (
        c.builder.broadcast(c.builder.reshape(c.convert(v, x.element), dims[:2]), dims, [0, 1])
        for v in (mean, rstd)
    )
    normal = c("multiply", c("subtract", x, mean), rstd)
    scaled = grad
    if weight is not None:
        grouped = c.builder.reshape(c.convert(weight, x.element), dims[1:3])
        scaled = c("multiply", grad, c.builder.broadcast(grouped, dims, [1, 2]))

    def per_channel(value: Value) -> Value:
        return c.builder.reshape(c.reduce("add", value, [0, 3]), (channels,))

    return _norm_gradients(
        c, output_mask,
        lambda: c.builder.reshape(
            _norm_input(c, scaled, normal, rstd, [2, 3], dims[2] * dims[3]), input.dims
        ),
        lambda: per_channel(c("multiply", grad, normal)),
        lambda: per_channel(grad),
    )  # fmt: skip


def softmax_backward(c: Context, grad_output: Value, output: Value, dim: int, dtype: Any) -> Value:
    """(g - sum(g * y)) * y along `dim`."""
    axis = dim % max(output.rank, 1)
    grad, y = c.wide(grad_output), c.wide(output)
    if not y.rank:
        return c.full(0, (), c.element)
    along = c.along(c.reduce("add", c("multiply", grad, y), [axis]), y.dims, [axis])
    return c.narrow(c("multiply", c("subtract", grad, along), y))


def log_softmax_backward(
    c: Context, grad_output: Value, output: Value, dim: int, dtype: Any
) -> Value:
    """g - exp(y) * sum(g) along `dim`."""
    axis = dim % max(output.rank, 1)
    grad, y = c.wide(grad_output), c.wide(output)
    if not y.rank:
        return c.full(0, (), c.element)
    along = c.along(c.reduce("add", grad, [axis]), y.dims, [axis])
    return c.narrow(c("subtract", grad, c("multiply", c("exponential", y), along)))


def soft_shrink_backward(c: Context, grad_output: Value, self: Value, lambd: Any) -> Value:
    far = c.compare("GT", c("abs", self), lambd)
    return c.select(far, grad_output, 0)


def rrelu_backward(
    c: Context,
    grad_output: Value,
    self: Value,
    noise: Value,
    lower: Any,
    upper: Any,
    training: bool,
    self_is_result: bool,
) -> Value:
    """The gradient times the slopes, which the noise has where they were drawn."""
    grad = c.wide(grad_output)
    if training and upper - lower > 1e-6:
        return c.narrow(c("multiply", grad, c.convert(noise, grad.element)))
    scaled = c.multiply(grad, (lower + upper) / 2)
    return c.narrow(c("select", c.compare("GT", self, 0.0), grad, scaled))


def masked_scatter_backward(c: Context, grad_output: Value, mask: Value, sizes: Any) -> Value:
    """The gradients of what was written, in order; zeros for the rest of the source."""
    size, count = math.prod(grad_output.dims), math.prod(c.dims)
    chosen = c.builder.reshape(c.spread(mask, grad_output.dims), (size,))
    flat = c.builder.reshape(grad_output, (size,))
    place = c.subtract(running_of(c, "add", c.convert(chosen, I64), 0), 1)
    place = c.select(chosen, place, c.full(count, (), I64))  # outside: not written
    result = index_add(c, c.full(0, (count,), flat.element), 0, place, flat)
    return c.builder.reshape(result, c.dims)


def replication_pad_backward(c: Context, grad_output: Value, self: Value, padding: Any) -> Value:
    """replication_pad1d: the gradients of the padding belong to the border."""
    axis = self.rank - 1
    place = c.subtract(c.iota(grad_output.dims[axis:], 0), padding[0])
    last = c.full(self.dims[axis] - 1, place.dims, I64)
    place = c("clamp", c.full(0, place.dims, I64), place, last)
    grad = c.wide(grad_output)
    return c.narrow(index_add(c, c.full(0, self.dims, grad.element), axis, place, grad))


def _distance_slopes(c: Context, gap: Value, p: Any, size: Value) -> Value:
    """What a p-norm `size`, spread like the gap, changes by with each part of it; 0 where it is
    0."""
    if p == 0:
        return c.multiply(gap, 0)
    if p == 1:
        return c("sign", gap)
    if p == math.inf:
        chosen = c.builder.compare("EQ", c("abs", gap), size)
        return c.select(chosen, c("sign", gap), 0)
    none = c.compare("EQ", size, 0.0)
    size = c.select(none, 1.0, size)
    slope = c("divide", gap, size)
    if p != 2:  # sign(gap) * (|gap| / size) ** (p - 1)
        share = c("divide", c("abs", gap), size)
        power = c("power", share, c.full(p - 1, share.dims, share.element))
        slope = c("multiply", c("sign", gap), power)
    return c.select(none, 0.0, slope)


def cdist_backward(c: Context, grad: Value, x1: Value, x2: Value, p: Any, cdist: Value) -> Value:
    """The gradient of x1 [..., rows, size]: over all columns of the distances."""
    *lead, rows, columns = cdist.dims
    dims = (*lead, rows, columns, x1.dims[-1])
    others, last = list(range(len(lead))), len(dims) - 1
    first = c.builder.broadcast(
        c.spread(x1, (*lead, *x1.dims[-2:])), dims, [*others, last - 2, last]
    )
    second = c.builder.broadcast(
        c.spread(x2, (*lead, *x2.dims[-2:])), dims, [*others, last - 1, last]
    )
    size, asked = (c.builder.broadcast(v, dims, range(last)) for v in (cdist, grad))
    slope = _distance_slopes(c, c("subtract", first, second), p, size)
    return c.reduce("add", c("multiply", asked, slope), [last - 1])


def pdist_backward(c: Context, grad: Value, self: Value, p: Any, pdist: Value) -> Value:
    """The gradient of both rows of each pair."""
    rows, width = static(self.dims[0]), self.dims[1]
    result = c.full(0, self.dims, self.element)
    left, right = (c.array(places.astype(np.int64)) for places in np.triu_indices(rows, 1))
    first, second = (take(c, self, places, 0, wrap=False) for places in (left, right))
    dims = (*pdist.dims, width)
    size, asked = (c.builder.broadcast(v, dims, [0]) for v in (pdist, grad))
    slope = _distance_slopes(c, c("subtract", first, second), p, size)
    part = c("multiply", asked, slope)
    return index_add(c, index_add(c, result, 0, left, part), 0, right, c("negate", part))


def weight_norm_backward(
    c: Context, grad_w: Value, saved_v: Value, saved_g: Value, saved_norms: Value, dim: int
) -> tuple[Value | None, Value | None]:
    """Gradients of v and g of v * g / |v|."""
    axes = [axis for axis in range(saved_v.rank) if axis != dim]
    grad, v = c.wide(grad_w), c.wide(saved_v)
    kept = (v.dims[dim],)
    norms, g = (c.builder.reshape(c.convert(x, v.element), kept) for x in (saved_norms, saved_g))
    along = c.reduce("add", c("multiply", grad, v), axes)
    of_g = c("divide", along, norms)
    share = c("divide", of_g, norms)
    rest = c("subtract", grad, c("multiply", v, c.along(share, v.dims, axes)))
    of_v = c("multiply", rest, c.along(c("divide", g, norms), v.dims, axes))
    return c.narrow(of_v), c.narrow(c.builder.reshape(of_g, saved_g.dims), 1)


TABLE: dict[str, Callable[..., Any]] = {
    "aten._cdist_backward.default": cdist_backward,
    "aten._log_softmax_backward_data.default": log_softmax_backward,
    "aten._pdist_backward.default": pdist_backward,
    "aten._softmax_backward_data.default": softmax_backward,
    "aten._weight_norm_interface_backward.default": weight_norm_backward,
    "aten.embedding_dense_backward.default": embedding_dense_backward,
    "aten.masked_scatter_backward.default": masked_scatter_backward,
    "aten.native_group_norm_backward.default": native_group_norm_backward,
    "aten.native_layer_norm_backward.default": native_layer_norm_backward,
    "aten.replication_pad1d_backward.default": replication_pad_backward,
    "aten.rrelu_with_noise_backward.default": rrelu_backward,
    "aten.softshrink_backward.default": soft_shrink_backward,
}
