"""Attention: softmax(query @ key^T * scale + mask) @ value as two dots and a softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ....hlo.graph import Value
from ....hlo.symbols import Dim
from ....hlo.types import I1, TensorType
from ..context import Blocked, Context, broadcast_dims, static
from .activations import softmax_of
from .random import dropped


class Scores(NamedTuple):
    """The scores of an attention and what they were made of, with the same leading dimensions.

    scores, key, value: [*lead, groups if there are some, l or s, ...]; lead: how many.
    """

    scores: Value
    query: Value
    key: Value
    value: Value
    lead: int
    factor: float


def _scores(
    c: Context,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None,
    causal: bool,
    scale: float | None,
    grouped: bool,
    scaled_first: bool = True,
) -> Scores:
    """query @ key^T * scale + mask. `scaled_first`: the query is scaled, and rounded."""
    length, source = query.dims[-2], key.dims[-2]
    outer = query.dims[-3:-2]
    groups = 1
    if grouped and query.dims[-3] != key.dims[-3]:
        groups = query.dims[-3] // key.dims[-3]
    batch = broadcast_dims(query.dims[:-3], key.dims[:-3], value.dims[:-3])
    heads = key.dims[-3:-2] if groups > 1 else broadcast_dims(outer, key.dims[-3:-2])
    lead = (*batch, *heads)
    key, value = (c.spread(v, (*lead, *v.dims[-2:])) for v in (key, value))
    query = c.spread(query, (*batch, *query.dims[-3:]) if query.rank > 2 else query.dims)
    if groups > 1:
        query = c.builder.reshape(query, (*lead, groups, *query.dims[-2:]))
    elif query.rank > 2:
        query = c.spread(query, (*lead, *query.dims[-2:]))
    element = query.element
    factor = _factor(query, scale)
    multiplied = _scaled(c, query, factor) if scaled_first else query
    places = tuple(range(len(lead)))
    wide = c.wide(c.scalar(0, element)).element
    last = query.rank - 1
    scores = c.dot(multiplied, key, ((last,), (key.rank - 1,)), (places, places), wide)
    if not scaled_first:
        scores = c.multiply(scores, factor)
    scores = _masked(c, scores, mask, causal, (*batch, *outer), length, source)
    return Scores(scores, query, key, value, len(lead), factor)


def _factor(query: Value, scale: float | None) -> float:
    return 1 / math.sqrt(static(query.dims[-1])) if scale is None else scale


def attention(
    c: Context,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None = None,
    causal: bool = False,
    scale: float | None = None,
    grouped: bool = False,
    dropout_p: float = 0.0,
) -> Value:
    """[..., heads, l, e] x [..., heads, s, e] x [..., heads, s, v] -> [..., heads, l, v].

    `grouped`: key and value have fewer heads, each serves several of query's in a row; they become
    one more dimension of the query, so that nothing is repeated. `dropout_p`: the part of the
    shares that is dropped at random.
    """
    made = _scores(c, query, key, value, mask, causal, scale, grouped)
    return _shared_out(c, made, mask, dropout_p)


def _shared_out(c: Context, made: Scores, mask: Value | None, dropout_p: float) -> Value:
    """softmax(scores) @ value, as the declared result."""
    shares = softmax_of(c, made.scores, made.scores.rank - 1, safe=mask is not None)
    shares = c.convert(shares, made.query.element)
    if dropout_p:
        shares = dropped(c, shares, dropout_p)
    places = tuple(range(made.lead))
    value = made.value
    result = c.dot(shares, value, ((shares.rank - 1,), (value.rank - 2,)), (places, places))
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
    return attention(c, query, key, value, attn_mask, is_causal, scale, enable_gqa, dropout_p)


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
    """The result, and the logarithms of the sums of all exponentials [..., heads, l], for
    gradients."""
    grouped = query.rank > 2
    made = _scores(c, query, key, value, attn_mask, is_causal, scale, grouped)
    result = _shared_out(c, made, attn_mask, dropout_p)
    rest: list[Value | None] = [None] * (len(c.used) - 1)
    if len(c.used) > 1 and c.used[1]:
        if dropout_p:
            raise Blocked("gives gradients of attention that drops at random", "use dropout_p=0")
        rest[0] = c.narrow(c.builder.reshape(_log_sums(c, made.scores), c.type_of(1).dims), 1)
    if any(c.used[2:]):
        raise Blocked("its debug mask or random state is used", "use the result alone")
    return result, *rest


def _log_sums(c: Context, scores: Value) -> Value:
    """log(sum(exp(scores))) along the last dimension."""
    axis = scores.rank - 1
    top = c.reduce("maximum", scores, [axis])
    finite = c.select(c.compare("EQ", top, -math.inf), 0.0, top)
    powers = c("exponential", c("subtract", scores, c.along(finite, scores.dims, [axis])))
    return c("add", c("log", c.reduce("add", powers, [axis])), finite)


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
    if any(c.used[1:]) or dropout_mask is not None:
        raise Blocked(
            "its shares are used, or what they drop is given",
            "run_decompositions() before compiling",
        )
    result = attention(c, query, key, value, attn_mask, is_causal, scale, enable_gqa, dropout_p)
    return result, None


def flash_for_cpu_backward(
    c: Context,
    grad_out: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value | None, ...]:
    """Gradients of query, key and value; the shares are computed again from the saved sums. Where
    PyTorch has decomposed the forward operator, but not this one, as in its joint graphs,
    `logsumexp` is what that decomposition gives instead: the shares [..., heads, l, s]."""
    if dropout_p:
        raise Blocked("gives gradients of attention that drops at random", "use dropout_p=0")
    made = _scores(c, query, key, value, attn_mask, is_causal, scale, query.rank > 2, False)
    scores, lead = made.scores, made.lead
    last, places = scores.rank - 1, tuple(range(made.lead))
    saved = c.convert(logsumexp, scores.element)
    if logsumexp.rank == query.rank:
        shares = c.builder.reshape(saved, scores.dims)
    else:
        shares = _shares_of_sums(c, scores, c.builder.reshape(saved, scores.dims[:-1]))
    dims = (*scores.dims[:-1], made.value.dims[-1])
    grad, result = (c.convert(c.builder.reshape(v, dims), scores.element) for v in (grad_out, out))
    rows = tuple(range(lead, last))  # the groups, and the places of the query
    key, values, asked = (c.convert(v, scores.element) for v in (made.key, made.value, made.query))
    of_value = c.dot(shares, grad, (rows, rows), (places, places))
    of_shares = c.dot(grad, values, ((last,), (values.rank - 1,)), (places, places))
    along = c.reduce("add", c("multiply", grad, result), [last])
    of_scores = c("subtract", of_shares, c.along(along, scores.dims, [last]))
    of_scores = c.multiply(c("multiply", shares, of_scores), made.factor)
    of_query = c.dot(of_scores, key, ((last,), (key.rank - 2,)), (places, places))
    of_key = c.dot(of_scores, asked, (rows, rows), (places, places))
    return tuple(
        c.narrow(_summed(c, v, c.type_of(n).dims), n) if c.used[n] else None
        for n, v in enumerate((of_query, of_key, of_value))
    )


def _shares_of_sums(c: Context, scores: Value, sums: Value) -> Value:
    """exp(scores - sums); zeros in rows that see nothing."""
    axis = scores.rank - 1
    shares = c("exponential", c("subtract", scores, c.along(sums, scores.dims, [axis])))
    none = c.compare("EQ", sums, -math.inf)
    return c.select(c.along(none, scores.dims, [axis]), 0.0, shares)


def _summed(c: Context, value: Value, dims: Sequence[Dim]) -> Value:
    """A gradient as its argument: added up where that was repeated for several batches."""
    if math.prod(value.dims) != math.prod(dims) and value.rank == len(dims):
        axes = [axis for axis, size in enumerate(dims) if size == 1 and value.dims[axis] != 1]
        value = c.reduce("add", value, axes)
    return c.builder.reshape(value, dims)


TABLE: dict[str, Callable[..., Any]] = {
    "aten._scaled_dot_product_attention_math.default": by_math,
    "aten._scaled_dot_product_efficient_attention.default": efficient,
    "aten._scaled_dot_product_flash_attention.default": flash,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": flash_for_cpu,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": flash_for_cpu_backward,
    "aten.scaled_dot_product_attention.default": scaled_dot_product_attention,
}
