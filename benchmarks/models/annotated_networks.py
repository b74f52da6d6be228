"""Annotated networks: products, transformer layers, FSDP, experts; id -> `Example`.

M is an MLP of 512 tokens, 1024 wide, 4096 inside; T a transformer layer of 8 x 256 tokens, 512
wide, 8 heads, 2048 inside, on a mesh of data=2 x model=4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from .annotated import Argument, Example
from .sharded import BATCH, HEADS, HIDDEN, TOKENS, WIDTH, layer, mlp, norm, training

_KEEP = lax.with_sharding_constraint
_GRID = (("data", 2), ("model", 4))
_FLAT = (("data", 8),)


# M: products along one axis


def _m(tokens: P) -> dict[str, Argument]:
    return {
        "x": Argument((512, 1024), tokens),
        "w1": Argument((1024, 4096), P(None, "model"), 1 / 32),
        "w2": Argument((4096, 1024), P("model"), 1 / 64),
    }


def _m_slopes(p: dict[str, Any]) -> Any:
    return jax.grad(lambda p: jnp.mean(mlp(p) ** 2))(p)


# T: transformer layers

_WEIGHTS: Mapping[str, Argument] = {
    "wq": Argument((WIDTH, HEADS, WIDTH // HEADS), P(None, "model"), 1 / 22),
    "wk": Argument((WIDTH, HEADS, WIDTH // HEADS), P(None, "model"), 1 / 22),
    "wv": Argument((WIDTH, HEADS, WIDTH // HEADS), P(None, "model"), 1 / 22),
    "wo": Argument((HEADS, WIDTH // HEADS, WIDTH), P("model"), 1 / 22),
    "w1": Argument((WIDTH, HIDDEN), P(None, "model"), 1 / 22),
    "w2": Argument((HIDDEN, WIDTH), P("model"), 1 / 45),
    "g1": Argument((WIDTH,), P()),
    "g2": Argument((WIDTH,), P()),
}
_T: Mapping[str, Argument] = {"x": Argument((BATCH, TOKENS, WIDTH), P("data")), **_WEIGHTS}


def _only(*names: str) -> dict[str, Argument]:
    """T, of which only these are annotated."""
    return {n: a if n in names else a._replace(spec=None) for n, a in _T.items()}


def _fused(x: P) -> dict[str, Argument]:
    """T with one weight for queries, keys and values."""
    kept = {n: a for n, a in _T.items() if n not in ("wq", "wk", "wv")}
    weight = Argument((WIDTH, 3, HEADS, WIDTH // HEADS), P(None, None, "model"), 1 / 22)
    return {**kept, "x": _T["x"]._replace(spec=x), "wqkv": weight}


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bthk,bshk->bhts", q, k) / (WIDTH // HEADS) ** 0.5
    mask = jnp.tril(jnp.ones((TOKENS, TOKENS), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    return jnp.einsum("bhts,bshk->bthk", weights, v)


def _fused_layer(p: dict[str, Any], residual: P | None = None) -> Any:
    """T; `residual` is the annotation of the sums between its halves."""

    def kept(x: Any) -> Any:
        return x if residual is None else _KEEP(x, residual)

    q, k, v = jnp.einsum("btd,dnhk->nbthk", norm(p["x"], p["g1"]), p["wqkv"])
    x = kept(p["x"] + jnp.einsum("bthk,hkd->btd", _attention(q, k, v), p["wo"]))
    return kept(x + jax.nn.gelu(norm(x, p["g2"]) @ p["w1"]) @ p["w2"])


_LAYERS = 24


def _deep(p: dict[str, Any]) -> Any:
    x = p["x"]
    for number in range(_LAYERS):
        x = layer({"x": x, **{name: p[f"{name}_{number:02}"] for name in _WEIGHTS}})
    return x


# FSDP: weights cut along the axis of the batch


def _fsdp(tokens: int) -> dict[str, Argument]:
    data = {name: Argument((tokens, 1024), P("data")) for name in ("x", "y")}
    return {**data, **{f"w{n}": Argument((1024, 1024), P("data"), 1 / 22) for n in range(4)}}


def _fsdp_step(p: dict[str, Any], gathered: bool = False) -> Any:
    def loss(weights: dict[str, Any]) -> Any:
        x = p["x"]
        for number in range(4):
            w = weights[f"w{number}"]
            x = jnp.tanh(x @ (_KEEP(w, P()) if gathered else w))
        return jnp.mean((x - p["y"]) ** 2)

    weights = {name: value for name, value in p.items() if name not in ("x", "y")}
    found, slopes = jax.value_and_grad(loss)(weights)
    return found, {name: weights[name] - 0.1 * slopes[name] for name in weights}


def _fsdp_example(tokens: int, gathered: bool = False) -> Example:
    return Example(
        lambda p: _fsdp_step(p, gathered),
        _fsdp(tokens),
        _FLAT,
        (None, {f"w{n}": P("data") for n in range(4)}),
        donated=True,
    )


# Experts: tokens are sent to one of eight, each takes a fourth more than its share

_GROUPS, _EXPERTS, _INSIDE = 8, 8, 512
_CAPACITY = TOKENS // _EXPERTS * 5 // 4
_EXPERT = {
    "x": Argument((_GROUPS, TOKENS, WIDTH), P("model")),
    "router": Argument((WIDTH, _EXPERTS), P(), 1 / 22),
    "w1": Argument((_EXPERTS, WIDTH, _INSIDE), P("model"), 1 / 22),
    "w2": Argument((_EXPERTS, _INSIDE, WIDTH), P("model"), 1 / 22),
}


def _routed(x: Any, router: Any) -> tuple[Any, Any]:
    """What sends tokens to experts, and what brings them back: [group, token, expert, place]."""
    gates = jax.nn.softmax(jnp.einsum("gtd,de->gte", x, router), axis=-1)
    chosen = jax.nn.one_hot(jnp.argmax(gates, axis=-1), _EXPERTS)
    place = (jnp.cumsum(chosen, axis=1) * chosen - 1.0).astype(jnp.int32)
    send = jax.nn.one_hot(place, _CAPACITY)
    return send, send * jnp.sum(gates * chosen, axis=-1)[..., None, None]


def _computed(inside: Any, w1: Any, w2: Any) -> Any:
    hidden = jax.nn.relu(jnp.einsum("egcd,edf->egcf", inside, w1))
    return jnp.einsum("egcf,efd->egcd", hidden, w2)


def _experts(p: dict[str, Any], constrained: bool) -> Any:
    send, combine = _routed(p["x"], p["router"])
    inside = jnp.einsum("gtec,gtd->egcd", send, p["x"])
    if constrained:
        inside = _KEEP(inside, P("model"))
    return jnp.einsum("gtec,egcd->gtd", combine, _computed(inside, p["w1"], p["w2"]))


def _manual_experts(p: dict[str, Any]) -> Any:
    def local(x: Any, router: Any, w1: Any, w2: Any) -> Any:
        send, combine = _routed(x, router)
        inside = jnp.einsum("gtec,gtd->egcd", send, x)
        inside = lax.all_to_all(inside, "model", 0, 1, tiled=True)
        outside = lax.all_to_all(_computed(inside, w1, w2), "model", 1, 0, tiled=True)
        return jnp.einsum("gtec,egcd->gtd", combine, outside)

    cut = P("model")
    mapped = jax.shard_map(local, in_specs=(cut, P(), cut, cut), out_specs=cut)
    return mapped(p["x"], p["router"], p["w1"], p["w2"])


_step = training(layer)

NETWORKS: Mapping[str, Example] = {
    "a1": Example(mlp, _m(P())),
    "a2": Example(mlp, _m(P("model")), results=P("model")),
    "a3": Example(_m_slopes, _m(P())),
    "b1": Example(layer, _T, _GRID),
    "b2": Example(_step, _T, _GRID),
    "b3": Example(training(_fused_layer), _fused(P("data")), _GRID),
    "b4": Example(lambda p: _fused_layer(p, P("data", "model")), _fused(P("data", "model")), _GRID),
    "b24": Example(
        training(_deep),
        {
            "x": _T["x"],
            **{f"{name}_{n:02}": a for n in range(_LAYERS) for name, a in _WEIGHTS.items()},
        },
        _GRID,
    ),
    "c1": Example(layer, _only("x", "w1"), _GRID),
    "c2": Example(layer, _only("x", "wq"), _GRID),
    "c3": Example(layer, _only("x", "wq", "w1"), _GRID),
    "c4": Example(_step, _only("x", "wq", "w1"), _GRID),
    "c5": Example(_step, _only("x", "w1"), _GRID),
    "d1": _fsdp_example(8192),
    "d3": _fsdp_example(8192, gathered=True),
    "d4": _fsdp_example(128),
    "e1": Example(lambda p: _experts(p, True), _EXPERT, results=P("model")),
    "e2": Example(lambda p: _experts(p, False), _EXPERT, results=P("model")),
    "e3": Example(_manual_experts, _EXPERT, portable=False),
}
"""`b24` has 24 layers and is left out of sums; `e3` is `e2` by hand."""
