"""Attention: softmax(query @ key^T * scale + mask) @ value as two dots and a softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ....hlo.graph import Value
from ....hlo.types import I1, TensorType
from ..context import Blocked, Context, broadcast_dims, static
from .activations import softmax_of


def attention(
    c: Context,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None = None,
    causal: bool = False,
    scale: float | None = None,
    grouped: bool = False,
) -> Value:
    """[..., heads, l, e] x [..., heads, s, e] x [..., heads, s, v] -> [..., heads, l, v].

    `grouped`: key and value have fewer heads, each serves several of query's in a row; they become
    one more dimension of the query, so that nothing is repeated.
    """
    dims = (*query.dims[:-1], value.dims[-1])
    length, source = query.dims[-2], key.dims[-2]
    groups = 1
    if grouped and query.dims[-3] != key.dims[-3]:
        groups = query.dims[-3] // key.dims[-3]
    batch = broadcast_dims(query.dims[:-3], key.dims[:-3], value.dims[:-3])
    heads = key.dims[-3:-2] if groups > 1 else broadcast_dims(query.dims[-3:-2], key.dims[-3:-2])
    lead = (*batch, *heads)
    key, value = (c.spread(v, (*lead, *v.dims[-2:])) for v in (key, value))
    query = c.spread(query, (*batch, *query.dims[-3:]) if query.rank > 2 else query.dims)
    if groups > 1:
        query = c.builder.reshape(query, (*lead, groups, *query.dims[-2:]))
    elif query.rank > 2:
        query = c.spread(query, (*lead, *query.dims[-2:]))
    element = query.element
    factor = 1 / math.sqrt(static(query.dims[-1])) if scale is None else scale
    query = _scaled(c, query, factor)
    places = tuple(range(len(lead)))
    wide = c.wide(c.scalar(0, element)).element
    last = query.rank - 1
    scores = c.dot(query, key, ((last,), (key.rank - 1,)), (places, places), wide)
    scores = _masked(c, scores, mask, causal, (*batch, *dims[-3:-2]), length, source)
    shares = softmax_of(c, scores, scores.rank - 1, safe=mask is not None)
    shares = c.convert(shares, element)
    result = c.dot(shares, value, ((last,), (value.rank - 2,)), (places, places))
    return c.builder.reshape(result, c.dims)


def _scaled(c: Context, query: Value, factor: float) -> Value:
    """query * factor; below a transpose, which the dot then takes in."""
    op = query.op
    if op is not None and op.name == "transpose":
        return c("transpose", _scaled(c, op.operands[0], factor), **op.attributes)
    return c.convert(c.multiply(c.wide(query), factor), query.element)


def _masked(
    c: Context,
    scores: Value,
    mask: Value | None,
    causal: bool,
    heads: tuple[Any, ...],
    length: Any,
    source: Any,
) -> Value:
    """Scores with the mask added, or -inf where a boolean one does not hold."""
    if mask is not None:
        whole = mask
        if scores.rank > len(heads) + 2 and mask.rank > 2:
            whole = _grouped_mask(c, mask, scores)
        whole = c.spread(whole, scores.dims)
        if mask.element is I1:
            scores = c.select(whole, scores, -math.inf)
        else:
            scores = c("add", scores, c.convert(whole, scores.element))
    if causal:
        square = TensorType((length, source), scores.element)
        rows, columns = c.iota(square.dims, 0), c.iota(square.dims, 1)
        seen = c.builder.compare("GE", rows, columns)
        scores = c.select(c.spread(seen, scores.dims), scores, -math.inf)
    return scores


def _grouped_mask(c: Context, mask: Value, scores: Value) -> Value:
    """[..., heads, l, s] -> [..., key heads, groups, l, s]; one mask for all heads stays one."""
    *batch, heads, length, source = mask.dims
    split = (1, 1) if heads == 1 else scores.dims[-4:-2]
    return c.builder.reshape(mask, (*batch, *split, length, source))


def _no_dropout(dropout_p: float) -> None:
    if dropout_p:
        raise Blocked("drops attention at random", "call model.eval() before exporting")


def scaled_dot_product_attention(
    c: Context,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    _no_dropout(dropout_p)
    return attention(c, query, key, value, attn_mask, is_causal, scale, enable_gqa)


def flash_for_cpu(
    c: Context,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value | None, ...]:
    """The result; the logarithms of the sums serve gradients only."""
    _no_dropout(dropout_p)
    _only_first(c)
    rest = [None] * (len(c.used) - 1)
    return (attention(c, query, key, value, attn_mask, is_causal, scale), *rest)


def flash(
    c: Context,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    scale: float | None = None,
) -> tuple[Value | None, ...]:
    return flash_for_cpu(c, query, key, value, dropout_p, is_causal, None, scale)


def efficient(
    c: Context,
    query: Value,
    key: Value,
    value: Value,
    attn_bias: Value | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[Value | None, ...]:
    return flash_for_cpu(c, query, key, value, dropout_p, is_causal, attn_bias, scale)


def by_math(
    c: Context,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    dropout_mask: Value | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Value | None, ...]:
    _no_dropout(dropout_p)
    _only_first(c)
    return attention(c, query, key, value, attn_mask, is_causal, scale, enable_gqa), None


def _only_first(c: Context) -> None:
    if any(c.used[1:]):
        raise Blocked(
            "more than its result is used", "export the model without gradients and debug masks"
        )


TABLE: dict[str, Callable[..., Any]] = {
    "aten._scaled_dot_product_attention_math.default": by_math,
    "aten._scaled_dot_product_efficient_attention.default": efficient,
    "aten._scaled_dot_product_flash_attention.default": flash,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": flash_for_cpu,
    "aten.scaled_dot_product_attention.default": scaled_dot_product_attention,
}
