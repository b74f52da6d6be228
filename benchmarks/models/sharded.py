"""Programs with annotations, written in JAX: `sharded_models() -> name -> Module`.

An annotation names for each dim the mesh axes that cut it, `?` for an open dim, `p1` for a
priority, behind `|` the replicated axes: `"data ; model ? p1 | pod"` is
[{"data"}, {"model", ?}p1], replicated={"pod"}. Arguments without one are open. `constrain` marks a
value; it is traced as a barrier, which becomes a constraint when the program is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from girih.frontends.stablehlo import read_tree
from girih.frontends.stablehlo.convert import convert
from girih.hlo.build import make_op
from girih.hlo.graph import Module, Op, Region, Value, arguments
from girih.hlo.sharding import Axis, DimSharding, Mesh, Sharding
from girih.optimizer.passes.inline import Inline

BATCH, TOKENS, WIDTH, HEADS, HIDDEN, EXPERTS = 8, 256, 512, 8, 2048, 8
TWO_BY_FOUR = Mesh((("data", 2), ("model", 4)))
EIGHT = Mesh((("model", 8),))


def spec(text: str) -> Sharding:
    """A sharding from the notation above."""
    dims: list[DimSharding] = []
    cuts, _, whole = text.partition("|")
    for part in cuts.split(";"):
        words = part.split()
        priority = next((int(w[1:]) for w in words if w[0] == "p" and w[1:].isdigit()), None)
        axes = [Axis(w) for w in words if w != "?" and not (w[0] == "p" and w[1:].isdigit())]
        dims.append(DimSharding(tuple(axes), "?" in words, priority))
    return Sharding("mesh", tuple(dims), tuple(map(Axis, whole.split())))


_CONSTRAINTS: list[Sharding] = []


def constrain(x: Any, text: str) -> Any:
    _CONSTRAINTS.append(spec(text))
    return jax.lax.optimization_barrier(x)


def read(
    function: Callable[..., Any],
    shapes: Mapping[str, tuple[int, ...]],
    said: Mapping[str, str],
    mesh: Mesh = TWO_BY_FOUR,
) -> Module:
    """The traced function of one dictionary of arrays, annotated."""
    _CONSTRAINTS.clear()
    given = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    text = jax.jit(function).lower(given).as_text()
    module = Inline()(convert(read_tree(text)))
    constraints = iter(list(_CONSTRAINTS))
    kinds = [
        kind.with_sharding(spec(said[name])) if name in said else kind  # type: ignore[union-attr]
        for name, kind in zip(sorted(shapes), module.body.argument_types, strict=True)
    ]

    def copied(region: Region, fresh: tuple[Value, ...], outer: Mapping[Value, Value]) -> Region:
        values = {**outer, **dict(zip(region.arguments, fresh, strict=True))}
        ops: list[Op] = []
        for op in region.ops:
            operands = [values[v] for v in op.operands]
            if op.name == "optimization_barrier":
                kind = operands[0].tensor.with_sharding(next(constraints))
                new = make_op("sharding_constraint", operands, {}, (), [kind])
            else:
                bodies = [copied(b, arguments(b.argument_types), values) for b in op.regions]
                new = Op(op.definition, operands, op.attributes, bodies, op.result_types)
            values.update(zip(op.results, new.results, strict=True))
            ops.append(new)
        return Region(fresh, ops, [values[v] for v in region.results])

    body = copied(module.body, arguments(kinds), {})
    return Module({"main": module.main.with_body(body)}, meshes={"mesh": mesh})


MLP = {"x": (512, 1024), "w1": (1024, 4096), "w2": (4096, 1024)}


def mlp(p: Any) -> Any:
    return jax.nn.gelu(p["x"] @ p["w1"]) @ p["w2"]


LAYER = {
    "x": (BATCH, TOKENS, WIDTH),
    "wq": (WIDTH, HEADS, WIDTH // HEADS),
    "wk": (WIDTH, HEADS, WIDTH // HEADS),
    "wv": (WIDTH, HEADS, WIDTH // HEADS),
    "wo": (HEADS, WIDTH // HEADS, WIDTH),
    "w1": (WIDTH, HIDDEN),
    "w2": (HIDDEN, WIDTH),
    "g1": (WIDTH,),
    "g2": (WIDTH,),
}
FULL = {
    "x": "data;;", "wq": "; model ;", "wk": "; model ;", "wv": "; model ;", "wo": "model;;",
    "w1": "; model", "w2": "model ;", "g1": "", "g2": "",
}  # fmt: skip


def norm(x: Any, gain: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * gain


def layer(p: Any) -> Any:
    x = p["x"]
    h = norm(x, p["g1"])
    q, k, v = (jnp.einsum("btd,dhk->bthk", h, p[name]) for name in ("wq", "wk", "wv"))
    scores = jnp.einsum("bthk,bshk->bhts", q, k) / (WIDTH // HEADS) ** 0.5
    mask = jnp.tril(jnp.ones((TOKENS, TOKENS), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    mixed = jnp.einsum("bhts,bshk->bthk", weights, v)
    x = x + jnp.einsum("bthk,hkd->btd", mixed, p["wo"])
    return x + jax.nn.gelu(norm(x, p["g2"]) @ p["w1"]) @ p["w2"]


def training(forward: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One step of gradient descent on the mean square of what it gives."""

    def step(p: Any) -> Any:
        loss, slopes = jax.value_and_grad(lambda p: jnp.mean(forward(p) ** 2))(p)
        return loss, {name: p[name] - 0.1 * slopes[name] for name in p if name != "x"}

    return step


def experts(p: Any, constrained: bool) -> Any:
    x, capacity = p["x"], TOKENS
    gates = jax.nn.softmax(jnp.einsum("gtd,de->gte", x, p["router"]), axis=-1)
    chosen = jax.nn.one_hot(jnp.argmax(gates, axis=-1), EXPERTS)
    place = (jnp.cumsum(chosen, axis=1) - 1.0) * chosen
    send = chosen[..., None] * jax.nn.one_hot(place.astype(jnp.int32), capacity)
    inside = jnp.einsum("gtec,gtd->egcd", send, x)
    if constrained:
        inside = constrain(inside, "model ; data ; ;")
    hidden = jax.nn.relu(jnp.einsum("egcd,edf->egcf", inside, p["w1"]))
    outside = jnp.einsum("egcf,efd->egcd", hidden, p["w2"])
    combine = send * jnp.sum(gates * chosen, axis=-1)[..., None, None]
    return jnp.einsum("gtec,egcd->gtd", combine, outside)


EXPERT = {
    "x": (8, TOKENS, 128), "router": (128, EXPERTS),
    "w1": (EXPERTS, 128, 256), "w2": (EXPERTS, 256, 128),
}  # fmt: skip


def scanned(p: Any) -> Any:
    def turn(x: Any, w: Any) -> Any:
        return jax.nn.relu(x @ w), jnp.sum(x)

    return jax.lax.scan(turn, p["x"], p["w"])


def only(*names: str) -> dict[str, str]:
    return {name: FULL[name] for name in names}


def sharded_models() -> dict[str, Module]:
    """Name -> annotated program."""
    columns = {"x": ";", "w1": "; model", "w2": "model ;"}
    fsdp = {
        "x": "data ? ; ? ; ?", "wq": "data ? p2 ; model ? p1 ; ?", "w1": "data ? p2 ; model ? p1"
    }  # fmt: skip
    before = {"x": fsdp["x"], "wq": "; model ? p1 ; ? | data", "w1": "; model ? p1 | data"}
    step = training(layer)
    return {
        "mlp": read(mlp, MLP, columns, EIGHT),
        "mlp training": read(training(mlp), MLP, {"x": ";", "w1": "; model ?"}, EIGHT),
        "layer, all annotated": read(layer, LAYER, FULL),
        "layer, x w1": read(layer, LAYER, only("x", "w1")),
        "layer, x wq": read(layer, LAYER, only("x", "wq")),
        "layer, x wq w1": read(layer, LAYER, only("x", "wq", "w1")),
        "layer training, all annotated": read(step, LAYER, FULL),
        "layer training, x wq w1": read(step, LAYER, only("x", "wq", "w1")),
        "layer training, priorities": read(step, LAYER, fsdp),
        "layer training, before the last priority": read(step, LAYER, before),
        "experts, constrained": read(
            lambda p: experts(p, True), EXPERT, {"x": "data ;;", "w1": "model ;;", "w2": "model ;;"}
        ),
        "experts": read(lambda p: experts(p, False), EXPERT, {"x": "data ;;", "w1": "model ;;"}),
        "scan": read(
            scanned, {"x": (512, 512), "w": (8, 512, 512)}, {"w": ";; model", "x": "data ;"}
        ),
    }
