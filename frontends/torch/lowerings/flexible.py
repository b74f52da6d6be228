"""Operators with a function of the user's: flex_attention, scan, map."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ....hlo.graph import Value
from ....hlo.types import I1, I32, TensorType
from ..context import Blocked, Context, static
from ..program import Graph
from .activations import softmax_of


def flex_attention(
    c: Context,
    query: Value,
    key: Value,
    value: Value,
    score_mod: Graph,
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: Any,
    score_mod_other_buffers: Sequence[Value] = (),
    mask_mod_other_buffers: Sequence[Value] = (),
) -> tuple[Value | None, ...]:
    """softmax(score_mod(query @ key^T * scale, b, h, q, k), where mask_mod(b, h, q, k)) @ value.

    Which blocks the mask leaves out altogether is not needed: its function says the same.
    """
    if any(c.used[1:]):
        raise Blocked("more than its result is used", "export it without return_lse")
    batch, heads, length = query.dims[:3]
    key, value = (_every_head(c, v, batch, heads) for v in (key, value))
    dims = (batch, heads, length, key.dims[2])
    wide = c.wide(query).element
    scores = c.dot(query, key, ((3,), (3,)), ((0, 1), (0, 1)), wide)
    scores = c.multiply(scores, scale)
    places = [c.convert(c.iota(dims, axis), I32) for axis in range(4)]
    given = score_mod.types.get(score_mod.inputs[0], scores.tensor).element
    values = [c.convert(scores, given), *places, *score_mod_other_buffers]
    scores = c.convert(_everywhere(c, score_mod, values, dims), wide)
    mask_mod = block_mask[-1]
    if isinstance(mask_mod, Graph):
        seen = _everywhere(c, mask_mod, [*places, *mask_mod_other_buffers], dims)
        scores = c.select(c.convert(seen, I1), scores, -math.inf)
    shares = c.convert(softmax_of(c, scores, 3, safe=True), query.element)
    result = c.dot(shares, value, ((3,), (2,)), ((0, 1), (0, 1)))
    return c.narrow(result), *(None,) * (len(c.used) - 1)


def _every_head(c: Context, value: Value, batch: Any, heads: Any) -> Value:
    """Keys or values for each head of the query: some serve several in a row."""
    given = value.dims[1]
    if given != heads:
        groups = static(heads) // static(given)
        dims = (value.dims[0], given, groups, *value.dims[2:])
        value = c.builder.broadcast(value, dims, [0, 1, 3, 4])
        value = c.builder.reshape(value, (value.dims[0], heads, *value.dims[3:]))
    return c.spread(value, (batch, *value.dims[1:]))


def _everywhere(c: Context, graph: Graph, values: Sequence[Value], dims: Sequence[Any]) -> Value:
    """A graph of scalars at all places at once: what has rank 0 gets `dims`."""
    types = {
        name: type if type.rank else type.with_dims(dims) for name, type in graph.types.items()
    }
    spread = [value if value.rank else c.spread(value, dims) for value in values]
    (result,) = c.inline(replace(graph, types=types), spread)
    return c.spread(result, dims)


def scan(
    c: Context,
    body: Graph,
    init: Sequence[Value],
    xs: Sequence[Value],
    additional: Sequence[Any] = (),
) -> tuple[Value, ...]:
    """The last carried values, and for each step along dimension 0 what the body gives besides."""
    kept = len(init)
    types = [c.type_of(kept + number) for number in range(len(c.used) - kept)]
    return _steps(c, body, init, xs, additional, types)


def over_rows(
    c: Context, body: Graph, xs: Sequence[Value], additional: Sequence[Any] = ()
) -> tuple[Value, ...]:
    """`map`: the body's results for each row, stacked."""
    types = [c.type_of(number) for number in range(len(c.used))]
    return _steps(c, body, (), xs, additional, types)


def _steps(
    c: Context,
    body: Graph,
    init: Sequence[Value],
    xs: Sequence[Value],
    additional: Sequence[Any],
    types: Sequence[TensorType],
) -> tuple[Value, ...]:
    """A `while` over the rows of `xs`; rows of results of `types` are written one by one."""
    count, kept = static(xs[0].dims[0]), len(init)
    outputs = [c.full(0, type.dims, type.element) for type in types]
    carried = [c.scalar(0, I32), *outputs, *init]

    def condition(at: Value, *rest: Value) -> Value:
        return c.builder.compare("LT", at, c.scalar(count, I32))

    def step(at: Value, *rest: Value) -> list[Value]:
        written, inner = rest[: len(outputs)], rest[len(outputs) :]
        rows = [_row(c, x, at) for x in xs]
        results = c.inline(body, [*inner, *rows, *additional])
        lines = [
            _written(c, whole, row, at) for whole, row in zip(written, results[kept:], strict=True)
        ]
        return [c.add(at, 1), *lines, *results[:kept]]

    found = c.iterate(carried, condition, step)[1:]
    return *found[len(outputs) :], *found[: len(outputs)]


def _row(c: Context, x: Value, at: Value) -> Value:
    zeros = [c.scalar(0, I32)] * (x.rank - 1)
    sizes = (1, *map(static, x.dims[1:]))
    return c.builder.reshape(c("dynamic_slice", x, at, *zeros, slice_sizes=sizes), x.dims[1:])


def _written(c: Context, whole: Value, row: Value, at: Value) -> Value:
    zeros = [c.scalar(0, I32)] * (whole.rank - 1)
    line = c.builder.reshape(row, (1, *row.dims))
    return c("dynamic_update_slice", whole, line, at, *zeros)


TABLE: dict[str, Callable[..., Any]] = {
    "flex_attention": flex_attention,
    "map_impl": over_rows,
    "scan": scan,
}
