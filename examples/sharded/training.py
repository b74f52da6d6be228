"""A training step of a two-layer network in JAX, for which three annotations are enough."""

from __future__ import annotations

from typing import Any

import numpy as np

import girih

MESH = {"data": 2, "model": 2}


def loss(weights: Any, x: Any, y: Any) -> Any:
    """x [rows, width], y [rows, width] -> the mean square error."""
    import jax

    x = girih.shard(x, "data")
    hidden = jax.nn.relu(x @ girih.shard(weights["up"], None, "model"))
    found = girih.shard(hidden @ weights["down"], "data")
    return ((found - y) ** 2).mean()


def step(weights: Any, x: Any, y: Any) -> Any:
    """(the loss, the weights after one step of gradient descent)."""
    import jax

    value, gradient = jax.value_and_grad(loss)(weights, x, y)
    return value, jax.tree.map(lambda w, g: w - 10.0 * g, weights, gradient)


def examples(rows: int = 64, width: int = 32, hidden: int = 128) -> tuple[Any, Any, Any]:
    """weights, x, y: random float32 arrays."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return random.standard_normal(shape).astype(np.float32) / np.sqrt(shape[0])

    weights = {"up": normal(width, hidden), "down": normal(hidden, width)}
    return weights, normal(rows, width), normal(rows, width)


def module() -> girih.Module:
    """The program of one step."""
    return girih.import_model(step, *examples())
