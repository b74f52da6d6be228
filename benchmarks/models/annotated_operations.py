"""Annotated single operations and small programs; id -> `Example`.

f: convolutions and pooling with the rows cut; g, i: from one sharding to another; h: vocabularies,
sorts, caches, transforms and attention along a dim that is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from .annotated import Argument, Example

_GRID = (("data", 2), ("model", 4))
_XY = (("x", 2), ("y", 4))
_XYZ = (("x", 2), ("y", 2), ("z", 2))

# f: images of 256 x 256, rows in eight parts

_IMAGES = Argument((8, 256, 256, 16), P(None, "model"))


def _kernel(size: int) -> Argument:
    return Argument((size, size, 16, 16), P(), 1 / (4 * size))


def _convolved(stride: int = 1, dilation: int = 1, padding: str = "SAME") -> Callable[[Any], Any]:
    return lambda p: lax.conv_general_dilated(
        p["x"], p["w"], (stride,) * 2, padding, rhs_dilation=(dilation,) * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip


def _kernel_slope(p: dict[str, Any]) -> Any:
    forward = _convolved()
    return jax.grad(lambda w: jnp.mean(forward({"x": p["x"], "w": w}) ** 2))(p["w"])


def _pooled(p: dict[str, Any]) -> Any:
    return lax.reduce_window(p["x"], -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def _convolution(function: Callable[[Any], Any], size: int, cut: bool = True) -> Example:
    results = P(None, "model") if cut else None
    return Example(function, {"x": _IMAGES, "w": _kernel(size)}, results=results)


# g, i: reshards


def _moved(
    mesh: tuple[tuple[str, int], ...], dims: tuple[int, ...], source: P, target: P
) -> Example:
    return Example(lambda p: p["x"], {"x": Argument(dims, source)}, mesh, target)


_BEFORE, _AFTER = P("y", None, "x"), P(None, ("x", "y"), None)


def _sums(p: dict[str, Any]) -> Any:
    return p["c"] + lax.with_sharding_constraint(p["a"] + p["b"], _AFTER)


def _six_heads(p: dict[str, Any]) -> Any:
    heads = (p["x"] @ p["w"]).reshape(256, 6, 64)
    return jax.nn.softmax(heads, axis=-1)


# h: vocabularies of 32768 words in four parts

_TABLE = Argument((32768, 512), P("model"), 1 / 22)
_WORDS = Argument((8, 256), P("data"), below=32768)
_HIDDEN = Argument((8, 256, 512), P("data"))


def _entropy(p: dict[str, Any]) -> Any:
    logits = jnp.einsum("btd,vd->btv", p["x"], p["table"])
    chosen = jnp.take_along_axis(logits, p["words"][..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def _entropy_slopes(p: dict[str, Any]) -> Any:
    words = p["words"]
    loss = jax.grad(lambda x, table: _entropy({"x": x, "table": table, "words": words}), (0, 1))
    return loss(p["x"], p["table"])


def _rotated(p: dict[str, Any]) -> Any:
    low, high = jnp.split(p["x"], 2, axis=1)
    return jnp.concatenate([-high, low], axis=1)


def _grouped(p: dict[str, Any]) -> Any:
    """16 heads of queries, 2 of keys and values."""
    q = (p["x"] @ p["wq"]).reshape(4, 256, 2, 8, 64)
    k, v = ((p["x"] @ p[name]).reshape(4, 256, 2, 64) for name in ("wk", "wv"))
    weights = jax.nn.softmax(jnp.einsum("btgnk,bsgk->bgnts", q, k) / 8, axis=-1)
    mixed = jnp.einsum("bgnts,bsgk->btgnk", weights, v)
    return mixed.reshape(4, 256, 1024) @ p["wo"]


def _attention(p: dict[str, Any]) -> Any:
    scores = jnp.einsum("thk,shk->hts", p["q"], p["k"]) / 128**0.5
    return jnp.einsum("hts,shk->thk", jax.nn.softmax(scores, axis=-1), p["v"])


def _scanned(p: dict[str, Any]) -> Any:
    return lax.scan(lambda x, w: (jax.nn.relu(x @ w), None), p["x"], p["w"])[0]


_ROWS, _COLUMNS = P("model"), P(None, "model")


def _cut(*dims: int, spec: P = _ROWS) -> Argument:
    return Argument(dims, spec)


OPERATIONS: Mapping[str, Example] = {
    "f1": _convolution(_convolved(), 3),
    "f2": _convolution(_convolved(stride=2), 5),
    "f3": _convolution(_convolved(dilation=4), 3),
    "f4": _convolution(_kernel_slope, 3, cut=False),
    "f5": _convolution(_convolved(padding="VALID"), 3, cut=False),
    "f6": Example(_pooled, {"x": _IMAGES}, results=P(None, "model")),
    "g1": _moved(_XY, (1024, 1024), P("x", "y"), P("y", "x")),
    "g6": _moved(_XY, (1024, 1024), P(("x", "y")), P(None, "y")),
    "g10": _moved(_XYZ, (128, 128, 64), P("x", ("y", "z")), P("z", None, ("x", "y"))),
    "g11": _moved(_XYZ, (128, 128, 64), P(("x", "y", "z")), P("z", "x", "y")),
    "i1": Example(
        _sums,
        {name: _cut(128, 128, 128, spec=_AFTER if name == "c" else _BEFORE) for name in "abc"},
        (("x", 4), ("y", 2)),
        _AFTER,
    ),
    "i3": Example(
        _six_heads,
        {"x": Argument((256, 384), P()), "w": Argument((384, 384), _COLUMNS, 1 / 20)},
        _GRID,
    ),
    "h1": Example(
        lambda p: p["table"][p["words"]], {"table": _TABLE, "words": _WORDS}, _GRID, P("data")
    ),
    "h2": Example(_entropy, {"x": _HIDDEN, "table": _TABLE, "words": _WORDS}, _GRID),
    "h3": Example(_entropy_slopes, {"x": _HIDDEN, "table": _TABLE, "words": _WORDS}, _GRID),
    "h4": Example(lambda p: lax.top_k(p["x"], 8), {"x": _cut(16, 32768, spec=_COLUMNS)}),
    "h6": Example(lambda p: jnp.cumsum(p["x"], axis=0), {"x": _cut(8192, 256)}, results=P("model")),
    "h7": Example(lambda p: jnp.sort(p["x"], axis=0), {"x": _cut(8192, 256)}, results=P("model")),
    "h9": Example(_rotated, {"x": _cut(4096, 1024, spec=_COLUMNS)}, results=_COLUMNS),
    "h10": Example(
        lambda p: jnp.concatenate([p["a"], p["b"]]),
        {name: _cut(4096, 256) for name in "ab"},
        results=P("model"),
    ),
    "h11": Example(
        lambda p: lax.dynamic_update_slice(p["cache"], p["row"], (p["place"], 0)),
        {
            "cache": _cut(4096, 2048),
            "row": Argument((1, 2048), P()),
            "place": Argument((), P(), below=4096),
        },
        results=P("model"),
    ),
    "h12": Example(
        lambda p: lax.dynamic_slice(p["cache"], (p["place"], 0), (1, 2048)),
        {"cache": _cut(4096, 2048), "place": Argument((), P(), below=4096)},
    ),
    "h13": Example(
        lambda p: jnp.abs(jnp.fft.fft(p["x"])), {"x": _cut(64, 4096, spec=_COLUMNS)},
        results=_COLUMNS,
    ),
    "h14": Example(
        _grouped,
        {
            "x": Argument((4, 256, 512), P()),
            "wq": Argument((512, 1024), _COLUMNS, 1 / 22),
            "wk": Argument((512, 128), _COLUMNS, 1 / 22),
            "wv": Argument((512, 128), _COLUMNS, 1 / 22),
            "wo": Argument((1024, 512), P("model"), 1 / 32),
        },
    ),
    "h15": Example(
        _attention, {name: _cut(2048, 8, 128) for name in "qkv"}, results=P("model")
    ),
    "h16": Example(
        _scanned,
        {"x": _cut(8192, 1024), "w": Argument((8, 1024, 1024), P(None, "model"), 1 / 22)},
        results=P("model"),
    ),
}  # fmt: skip
