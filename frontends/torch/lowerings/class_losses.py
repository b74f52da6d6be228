"""Losses of a class of each row: nll_loss, cross_entropy, multi_margin_loss, ..."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ....hlo.graph import Value
from ....hlo.types import F32, ElementType
from ..context import Blocked, Context, Number
from .activations import log_softmax_of
from .indexing import gather, take
from .losses import reduced_loss

_MEAN = 1
_IGNORED = -100


def _class_axis(rows: Value) -> int:
    return 0 if rows.rank == 1 else 1


def _shares(c: Context, target: Value, weight: Value | None, ignore: int, like: Value) -> Value:
    """The weight that each target has in a mean, 0 of those to be ignored."""
    kept = c.compare("NE", target, ignore)
    if weight is None:
        return c.convert(kept, like.element)
    safe = c.select(kept, target, 0)
    share = c.convert(take(c, weight, safe, 0, wrap=False), like.element)
    return c.select(kept, share, 0)


def _chosen(c: Context, rows: Value, target: Value, ignore: int) -> Value:
    """The element of each row that is the target's, 0 of targets to be ignored."""
    axis = _class_axis(rows)
    kept = c.compare("NE", target, ignore)
    dims = (*target.dims[:axis], 1, *target.dims[axis:])
    place = c.builder.reshape(c.select(kept, target, 0), dims)
    found = c.builder.reshape(gather(c, rows, axis, place), target.dims)
    return c.select(kept, found, 0)


def _likelihood_loss(
    c: Context, rows: Value, target: Value, weight: Value | None, reduction: int, ignore: int
) -> tuple[Value, Value]:
    """What each target loses in [n, classes, ...] log probabilities, and its share in a mean, both
    reduced, in a wide type."""
    losses = c("negate", _chosen(c, rows, target, ignore))
    shares = _shares(c, target, weight, ignore, losses)
    if weight is not None:
        losses = c("multiply", losses, shares)
    if not reduction and rows.rank > 1:
        return losses, c.full(0, (), losses.element)
    axes = range(losses.rank)
    total = c.reduce("add", shares, axes)
    if reduction:
        losses = c.reduce("add", losses, axes)
    return (c("divide", losses, total) if reduction == _MEAN else losses), total


def nll_loss_forward(
    c: Context,
    self: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
) -> tuple[Value, Value | None]:
    """-weight[target] self[target]; then the sum of the weights that a mean is divided by."""
    loss, total = _likelihood_loss(c, c.wide(self), target, weight, reduction, ignore_index)
    return c.narrow(loss), c.narrow(total, 1) if c.used[1] else None


def nll_loss(
    c: Context,
    self: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = _MEAN,
    ignore_index: int = _IGNORED,
) -> Value:
    """-weight[target] self[target]; a mean is divided by the sum of the weights."""
    return c.narrow(_likelihood_loss(c, c.wide(self), target, weight, reduction, ignore_index)[0])


def cross_entropy_loss(
    c: Context,
    self: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = _MEAN,
    ignore_index: int = _IGNORED,
    label_smoothing: float = 0.0,
) -> Value:
    """nll_loss of log_softmax(self), whose target is a class, or a probability of each class;
    smoothed, a part of the target is that of all classes alike."""
    axis = _class_axis(self)
    rows = log_softmax_of(c, c.wide(self), axis)
    classes = rows.dims[axis]
    weighted = rows
    if weight is not None:
        spread = c.builder.broadcast(c.convert(weight, rows.element), rows.dims, [axis])
        weighted = c("multiply", rows, spread)
    if self.dims == target.dims:
        share = c.convert(target, rows.element)
        if label_smoothing:
            alike = c.divide(c.scalar(label_smoothing, share.element), classes)
            share = c.add(c.multiply(share, 1 - label_smoothing), alike)
        losses = c("negate", c.reduce("add", c("multiply", weighted, share), [axis]))
        return reduced_loss(c, losses, reduction)
    loss, total = _likelihood_loss(c, rows, target, weight, reduction, ignore_index)
    if label_smoothing:
        kept = c.compare("NE", target, ignore_index)
        every = c.select(kept, c("negate", c.reduce("add", weighted, [axis])), 0)
        if reduction:
            every = c.reduce("add", every, range(every.rank))
        every = c("divide", every, total) if reduction == _MEAN else every
        every = c.divide(c.multiply(every, label_smoothing), classes)
        loss = c("add", c.multiply(loss, 1 - label_smoothing), every)
    return c.narrow(loss)


def _as_rows(c: Context, *values: Value) -> list[Value]:
    """Vectors as matrices of one row."""
    return [v if v.rank == 2 else c.builder.reshape(v, (1, math.prod(v.dims))) for v in values]


def multi_margin_loss(
    c: Context,
    self: Value,
    target: Value,
    p: Number = 1,
    margin: Number = 1,
    weight: Value | None = None,
    reduction: int = _MEAN,
) -> Value:
    """The mean of max(0, margin - x[target] + x)^p over the other classes' x, times
    weight[target]."""
    (rows,) = _as_rows(c, c.wide(self))
    count, classes = rows.dims
    place = c.builder.reshape(target, (count,))
    own = gather(c, rows, 1, c.builder.reshape(place, (count, 1)))
    own = c.builder.broadcast(c.builder.reshape(own, (count,)), rows.dims, [0])
    losses = c.binary("maximum", c("add", c.subtract(margin, own), rows), 0)
    losses = losses if p == 1 else c("multiply", losses, losses)
    if weight is not None:
        share = c.convert(take(c, weight, place, 0, wrap=False), losses.element)
        losses = c("multiply", losses, c.builder.broadcast(share, losses.dims, [0]))
    wide = c.builder.broadcast(place, rows.dims, [0])
    losses = c.select(c.builder.compare("EQ", wide, c.iota(rows.dims, 1)), 0, losses)
    return _mean_of_classes(c, losses, classes, reduction)


def _mean_of_classes(c: Context, losses: Value, classes: Any, reduction: int) -> Value:
    """The sum over all dims but the first, divided by the number of classes, then reduced."""
    total = c.divide(c.reduce("add", losses, range(1, losses.rank)), classes)
    return reduced_loss(c, total if reduction else c.builder.reshape(total, c.dims), reduction)


def _label_losses(c: Context, self: Value, target: Value, reduction: int) -> tuple[Value, Value]:
    """The sum of max(0, 1 - x[label] + x) / classes over the labels of a row, which end before its
    first -1, and over the x of all other classes; then which classes [row, class] are labels."""
    rows, labels = _as_rows(c, c.wide(self), target)
    count, classes = rows.dims
    place = c.iota(labels.dims, 1, labels.element)
    end = c.select(c.compare("EQ", labels, -1), place, classes)
    end = c.along(c.reduce("minimum", end, [1]), labels.dims, [1])
    given = c.builder.compare("LT", place, end)
    dims = (count, classes, classes)  # a row, one of its labels, a class
    label = c.builder.broadcast(c.select(given, labels, -1), dims, [0, 1])
    is_label = c.reduce("or", c.builder.compare("EQ", label, c.iota(dims, 2, labels.element)), [1])
    own = gather(c, rows, 1, c.select(given, labels, 0))
    gap = c("subtract", c.builder.broadcast(rows, dims, [0, 2]),
            c.builder.broadcast(c.subtract(own, 1), dims, [0, 1]))  # fmt: skip
    counts = c("and", c.builder.broadcast(given, dims, [0, 1]),
               c.builder.broadcast(c("not", is_label), dims, [0, 2]))  # fmt: skip
    losses = c.select(counts, c.binary("maximum", gap, 0), 0)
    return _mean_of_classes(c, losses, classes, reduction), is_label


def multilabel_margin_loss(c: Context, self: Value, target: Value, reduction: int = _MEAN) -> Value:
    return _label_losses(c, self, target, reduction)[0]


def multilabel_margin_loss_forward(
    c: Context, self: Value, target: Value, reduction: int
) -> tuple[Value, Value]:
    """The loss, and where target names classes, 1 at the place of each."""
    loss, is_label = _label_losses(c, self, target, reduction)
    return loss, c.narrow(c.builder.reshape(is_label, target.dims), 1)


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
    share = _shares(c, target, weight, ignore_index, logits)
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
    **{f"aten.{name}.default": nll_loss for name in ("nll_loss", "nll_loss2d", "nll_loss_nd")},
    **{f"aten.{name}_forward.default": nll_loss_forward for name in ("nll_loss", "nll_loss2d")},
    "aten.cross_entropy_loss.default": cross_entropy_loss,
    "aten.multi_margin_loss.default": multi_margin_loss,
    "aten.multilabel_margin_loss.default": multilabel_margin_loss,
    "aten.multilabel_margin_loss_forward.default": multilabel_margin_loss_forward,
    "torch_nn._linear_cross_entropy_batch_chunked.default": linear_cross_entropy,
    "torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default": linear_cross_entropies,
}
