"""Losses of each element or each pair of rows: mse_loss, kl_div, cosine_embedding_loss, ..."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ....hlo.graph import Value
from ....hlo.ops.decomposed import Term, exp, log, log1p, where
from ..context import Context, Number, axes_of
from ..promotion import result_element
from .activations import log_sigmoid_of
from .pointwise import xlogy_of
from .reductions import kept_dims, power_norm

_MEAN = 1


def reduced_loss(c: Context, losses: Value, reduction: int) -> Value:
    """The losses as they are (0), their mean (1) or their sum (2), in the result's type."""
    if not reduction:
        return c.narrow(losses)
    losses = c.wide(c.convert(losses, c.element)) if losses.element.is_integer else losses
    axes = range(losses.rank)
    total = c.reduce("add", c.wide(losses), axes)
    return c.narrow(c.mean(total, losses, axes) if reduction == _MEAN else total)


def _terms(c: Context, *operands: Value) -> list[Term]:
    """The operands broadcast in their promoted type, or in the result's where that is a float of
    integers; in f32 for bf16 and f16."""
    element = result_element(*operands)
    if element.is_integer and c.element.is_float:
        element = c.element
    return [Term(c.builder, c.wide(v)) for v in c.together(*operands, element=element)]


def _positive(x: Term) -> Term:
    return x.op("maximum", 0)


def elementwise(body: Callable[..., Term]) -> Callable[..., Value]:
    """A loss of two tensors: `body` of two terms, and what stands behind the reduction."""

    def lower(
        c: Context, self: Value, target: Value, reduction: int = _MEAN, *args: Any, **kwargs: Any
    ) -> Value:
        losses = body(*_terms(c, self, target), *args, **kwargs)
        return reduced_loss(c, losses.value, reduction)

    return lower


def _l1(x: Term, y: Term) -> Term:
    return (x - y).op("abs") if x.element.kind not in ("bool", "uint") else x - y


def _square(x: Term, y: Term) -> Term:
    return (x - y) * (x - y)


def _smooth_l1(x: Term, y: Term, beta: float = 1.0) -> Term:
    """Half of the square over beta below beta, beside it the distance less beta / 2."""
    gap = abs(x - y)
    return where(gap < beta, gap * gap * 0.5 / beta, gap - 0.5 * beta) if beta else gap


def _huber(x: Term, y: Term, delta: float = 1.0) -> Term:
    gap = abs(x - y)
    return where(gap <= delta, gap * gap * 0.5, (gap - 0.5 * delta) * delta)


def _divergence(x: Term, y: Term, log_target: bool = False) -> Term:
    """target (log(target) - input), whose log(target) may be what is given."""
    if log_target:
        return exp(y) * (y - x)
    return xlogy_of(y, y) - y * x


def poisson_nll_loss(
    c: Context,
    input: Value,
    target: Value,
    log_input: bool,
    full: bool,
    eps: float,
    reduction: int,
) -> Value:
    """exp(input) - target input, or input - target log(input + eps); with `full` and Stirling's
    approximation of log(target!) where target > 1."""
    x, y = _terms(c, input, target)
    losses = exp(x) - y * x if log_input else x - y * log(x + eps)
    if full:
        rest = y * log(y) - y + log(y * (2 * math.pi)) * 0.5
        losses = losses + where(y <= 1.0, 0.0, rest)
    return reduced_loss(c, losses.value, reduction)


def _weighted(c: Context, losses: Term, weight: Value | None, reduction: int) -> Value:
    if weight is not None:
        losses = Term(c.builder, c("multiply", *c.together(losses.value, c.wide(weight))))
    return reduced_loss(c, losses.value, reduction)


def binary_cross_entropy(
    c: Context, self: Value, target: Value, weight: Value | None = None, reduction: int = _MEAN
) -> Value:
    """-(target log(self) + (1 - target) log(1 - self)), no logarithm below -100."""
    x, y = _terms(c, self, target)
    no, yes = (v.op("maximum", -100.0) for v in (log1p(-x), log(x)))
    return _weighted(c, (y - 1.0) * no - y * yes, weight, reduction)


def binary_cross_entropy_with_logits(
    c: Context,
    self: Value,
    target: Value,
    weight: Value | None = None,
    pos_weight: Value | None = None,
    reduction: int = _MEAN,
) -> Value:
    """The same of sigmoid(self); where target is 1, `pos_weight` times as much."""
    x, y = _terms(c, self, target)
    sure = Term(c.builder, log_sigmoid_of(c, x.value))
    if pos_weight is not None:
        more, y_wide = _terms(c, pos_weight, y.value)
        sure = sure * ((more - 1.0) * y_wide + 1.0)
    return _weighted(c, (1.0 - y) * x - sure, weight, reduction)


def soft_margin_loss(c: Context, self: Value, target: Value, reduction: int = _MEAN) -> Value:
    """log(1 + exp(-self * target)), each step rounded to the result's type."""
    x, y = c.together(self, target, element=c.element)
    losses = c("negate", c("multiply", x, y))
    for step in ("exponential", "log_plus_one"):
        losses = c.narrow(c(step, c.wide(losses)))
    return reduced_loss(c, losses, reduction)


def hinge_embedding_loss(
    c: Context, self: Value, target: Value, margin: float = 1.0, reduction: int = _MEAN
) -> Value:
    """self where target is 1, max(0, margin - self) where it is -1, else the sum of both."""
    x, y = _terms(c, self, target)
    apart = where(y.differs(1), _positive(margin - x), 0)
    return reduced_loss(c, (apart + where(y.differs(-1), x, 0)).value, reduction)


def margin_ranking_loss(
    c: Context,
    input1: Value,
    input2: Value,
    target: Value,
    margin: float = 0.0,
    reduction: int = _MEAN,
) -> Value:
    """max(0, margin - target (input1 - input2))."""
    x, y, sign = _terms(c, input1, input2, target)
    return reduced_loss(c, _positive(-sign * (x - y) + margin).value, reduction)


# Of rows.


def cosine_embedding_loss(
    c: Context,
    input1: Value,
    input2: Value,
    target: Value,
    margin: float = 0.0,
    reduction: int = _MEAN,
) -> Value:
    """1 - cos of two rows where target is 1, max(0, cos - margin) where it is -1."""
    x, y = _terms(c, input1, input2)
    axis = target.rank

    def along(terms: Term) -> Term:
        return Term(c.builder, c.reduce("add", terms.value, [axis]))

    sizes = (along(x * x) + 1e-12) * (along(y * y) + 1e-12)
    cosine = along(x * y) / sizes.op("sqrt")
    wanted, cosine = (Term(c.builder, v) for v in c.together(target, cosine.value))
    near = where(wanted.equals(1), 1 - cosine, 0)
    far = where(wanted.equals(-1), _positive(cosine - margin), 0)
    return reduced_loss(c, (near + far).value, reduction)


def cosine_similarity(c: Context, x1: Value, x2: Value, dim: int = 1, eps: float = 1e-08) -> Value:
    """x1 x2 / (|x1| |x2|) along a dimension, no size below eps."""
    rows = []
    for value in c.together(x1, x2):
        x = c.wide(value)
        axes = axes_of(dim, x.rank)
        size = c.binary("maximum", power_norm(c, c("abs", x), 2, axes), eps)
        rows.append(c("divide", x, c.along(size, x.dims, axes)))
    return c.narrow(c.reduce("add", c("multiply", *rows), axes_of(dim, rows[0].rank)))


def pairwise_distance(
    c: Context, x1: Value, x2: Value, p: Number = 2, eps: float = 1e-06, keepdim: bool = False
) -> Value:
    """The p-norms of x1 - x2 + eps along the last dimension."""
    return c.narrow(_row_distance(c, x1, x2, p, eps, keepdim))


def _row_distance(
    c: Context, x1: Value, x2: Value, p: Number, eps: float, keepdim: bool = False
) -> Value:
    x, y = _terms(c, x1, x2)
    gap = (x - y + eps).value
    axes = [gap.rank - 1]
    return kept_dims(c, power_norm(c, c("abs", gap), p, axes), gap.dims, axes, keepdim)


def triplet_margin_loss(
    c: Context,
    anchor: Value,
    positive: Value,
    negative: Value,
    margin: float = 1.0,
    p: Number = 2.0,
    eps: float = 1e-06,
    swap: bool = False,
    reduction: int = _MEAN,
) -> Value:
    """max(0, margin + |anchor - positive| - |anchor - negative|); with `swap` the negative is that
    far from the nearer of the others."""
    near, far = (_row_distance(c, anchor, other, p, eps) for other in (positive, negative))
    if swap:
        far = c("minimum", far, _row_distance(c, positive, negative, p, eps))
    near, far = c.together(near, far)
    losses = c.binary("maximum", c("subtract", c.add(near, margin), far), 0)
    return reduced_loss(c, losses, reduction)


_ELEMENTWISE = {
    "huber_loss": _huber, "kl_div": _divergence, "l1_loss": _l1, "mse_loss": _square,
    "smooth_l1_loss": _smooth_l1,
}  # fmt: skip

TABLE: dict[str, Callable[..., Any]] = {
    **{f"aten.{name}.default": elementwise(body) for name, body in _ELEMENTWISE.items()},
    "aten.binary_cross_entropy.default": binary_cross_entropy,
    "aten.binary_cross_entropy_with_logits.default": binary_cross_entropy_with_logits,
    "aten.cosine_embedding_loss.default": cosine_embedding_loss,
    "aten.cosine_similarity.default": cosine_similarity,
    "aten.hinge_embedding_loss.default": hinge_embedding_loss,
    "aten.margin_ranking_loss.default": margin_ranking_loss,
    "aten.pairwise_distance.default": pairwise_distance,
    "aten.poisson_nll_loss.default": poisson_nll_loss,
    "aten.soft_margin_loss.default": soft_margin_loss,
    "aten.triplet_margin_loss.default": triplet_margin_loss,
}
