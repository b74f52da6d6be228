"""Losses that PyTorch's decompositions lack, or compute in a wider type than it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....hlo.graph import Value
from ....hlo.types import F32, ElementType
from ..context import Blocked, Context
from .activations import log_softmax_of


def soft_margin_loss(c: Context, self: Value, target: Value, reduction: int = 1) -> Value:
    """log(1 + exp(-self * target)), each step rounded to the result's type; as it is, its mean, or
    its sum by `reduction`."""
    x, y = c.together(self, target, element=c.element)
    losses = c("negate", c("multiply", x, y))
    for step in ("exponential", "log_plus_one"):
        losses = c.narrow(c(step, c.wide(losses)))
    if not reduction:
        return losses
    axes = range(losses.rank)
    total = c.reduce("add", c.wide(losses), axes)
    return c.narrow(c.mean(total, losses, axes) if reduction == 1 else total)


def _nll_of_linear(
    c: Context,
    input: Value,
    linear_weight: Value,
    target: Value,
    linear_bias: Value | None,
    weight: Value | None,
    ignore_index: int,
) -> tuple[Value, Value]:
    """What each row of `input` [n, features] loses, and the weight that it has in a mean."""
    element = F32 if input.element.bits < 32 else input.element
    rows, table = (c.builder.convert(v, element) for v in (input, linear_weight))
    logits = c.dot(rows, table, ((1,), (1,)))
    if linear_bias is not None:
        logits = c("add", logits, c.spread(c.builder.convert(linear_bias, element), logits.dims))
    classes = c.iota(logits.dims, 1, target.element)
    chosen = c.builder.compare("EQ", classes, c.builder.broadcast(target, logits.dims, (0,)))
    log_probability = c.reduce("add", c.select(chosen, log_softmax_of(c, logits, 1), 0), [1])
    share = c.full(1, target.dims, element)
    if weight is not None:
        spread = c.spread(c.builder.convert(weight, element), logits.dims)
        share = c.reduce("add", c.select(chosen, spread, 0), [1])
    ignored = c.compare("EQ", target, ignore_index)
    share = c.select(ignored, 0, share)
    return c("negate", c("multiply", log_probability, share)), share


def linear_cross_entropy(
    c: Context,
    input: Value,
    linear_weight: Value,
    target: Value,
    linear_bias: Value | None,
    weight: Value | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    batch_chunk_size: int,
    acc_policy: str,
    acc_dtype: ElementType,
    *training: bool,
) -> tuple[Value | None, ...]:
    """cross_entropy(input @ linear_weight.T + linear_bias, target), in "mean" or "sum"; how
    PyTorch cuts it into chunks is no part of the result. It has gradients besides."""
    if any(c.used[1:]):
        raise Blocked("gives gradients that are used", "export the model without gradients")
    if label_smoothing:
        raise Blocked("smooths labels", "call it without options")
    losses, shares = _nll_of_linear(
        c, input, linear_weight, target, linear_bias, weight, ignore_index
    )
    total = c.reduce("add", losses, [0])
    if reduction == "mean":
        total = c("divide", total, c.reduce("add", shares, [0]))
    return c.narrow(total), None, None, None


def linear_cross_entropies(
    c: Context,
    input: Value,
    linear_weight: Value,
    target: Value,
    linear_bias: Value | None,
    weight: Value | None,
    ignore_index: int,
    batch_chunk_size: int,
    acc_policy: str,
    acc_dtype: ElementType,
) -> Value:
    """The same, what each row loses by itself."""
    losses, _ = _nll_of_linear(c, input, linear_weight, target, linear_bias, weight, ignore_index)
    return c.narrow(losses)


TABLE: dict[str, Callable[..., Any]] = {
    "aten.soft_margin_loss.default": soft_margin_loss,
    "torch_nn._linear_cross_entropy_batch_chunked.default": linear_cross_entropy,
    "torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default": linear_cross_entropies,
}
