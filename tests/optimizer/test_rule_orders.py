"""Any order of the rules ends with the same number of operations, and nothing is left to do."""

from __future__ import annotations

import random

import pytest

from girih.hlo.graph import Module
from girih.optimizer.passes.inline import Inline
from girih.optimizer.rewrite import Engine
from girih.optimizer.rules import RULES

jax = pytest.importorskip("jax")


def training_step() -> Module:
    """The gradient of a small network with a softmax, a normalization and a lookup."""
    import jax.numpy as jnp
    import numpy as np

    from girih.imports import import_model

    def loss(parameters, tokens, labels):
        x = parameters["table"][tokens]
        for w, scale in parameters["layers"]:
            centred = x - x.mean(-1, keepdims=True)
            x = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale
            scores = jax.nn.softmax(x @ x.transpose(0, 2, 1) / 2.0)
            x = x + jax.nn.gelu((scores @ x) @ w)
        logs = jax.nn.log_softmax(x @ parameters["table"].T)
        return -jnp.take_along_axis(logs, labels[..., None], -1).mean()

    table, w, scale = np.ones((16, 8), np.float32), np.ones((8, 8), np.float32), np.ones(8)
    layers = [(w, scale.astype(np.float32))] * 2
    tokens = np.zeros((2, 4), np.int32)
    step = jax.jit(jax.value_and_grad(loss))
    return import_model(step, {"table": table, "layers": layers}, tokens, tokens)


def test_twenty_orders_end_within_a_percent() -> None:
    module = Inline()(training_step())
    counts = []
    for seed in range(20):
        rules = list(RULES)
        random.Random(seed).shuffle(rules)
        engine = Engine(module, rules)
        region = engine.simplify(module.body)
        assert not engine.ledger.exhausted
        assert Engine(module.with_main(region), rules).simplify(region) is region
        counts.append(sum(1 for _ in region.walk()))
    assert max(counts) <= 1.01 * min(counts)
