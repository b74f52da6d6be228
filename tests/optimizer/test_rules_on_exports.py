"""Rules on what JAX really exports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from girih.hlo.graph import Module
from girih.hlo.interpret import interpret
from girih.imports import import_model
from girih.optimizer.licence import Ledger
from girih.optimizer.pipeline import run_pipeline, simplify_pipeline


def simplified(
    function: Callable[..., Any], *inputs: np.ndarray[Any, Any]
) -> tuple[Module, Module, Ledger]:
    """The imported program, the simplified one, and what fired."""
    module = import_model(jax.export.export(jax.jit(function))(*inputs))
    ledger = Ledger()
    return module, run_pipeline(module, simplify_pipeline(ledger=ledger)), ledger


def assert_equal(before: Module, after: Module, *inputs: np.ndarray[Any, Any]) -> None:
    for one, other in zip(interpret(before, inputs), interpret(after, inputs), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


def along(mode: str | None) -> Callable[..., Any]:
    return lambda logs, y: jnp.take_along_axis(logs, y[..., None], axis=-1, mode=mode)


TAKES = {
    "fill": along("fill"),
    "clip": along("clip"),
    "promise_in_bounds": along("promise_in_bounds"),
    "default": along(None),
    "counted": lambda logs, y: logs[jnp.arange(y.shape[0]), y],
    "one by one": lambda logs, y: jax.vmap(lambda row, label: row[label])(logs, y),
}


@pytest.mark.parametrize(
    ("name", "dims"),
    [*((name, (8, 32)) for name in TAKES), ("fill", (2, 4, 16)), ("clip", (2, 4, 16))],
)
def test_gradient_of_cross_entropy_needs_no_scatter(name: str, dims: tuple[int, ...]) -> None:
    def loss(x: Any, y: Any) -> Any:
        return -TAKES[name](jax.nn.log_softmax(x), y).mean()

    *rows, classes = dims
    random = np.random.default_rng(0)
    x = random.standard_normal(dims, np.float32)
    labels = random.integers(0, classes, rows, np.int32)
    labels.reshape(-1)[:3] = -1, 0, classes - 1
    before, after, ledger = simplified(jax.value_and_grad(loss), x, labels)
    assert not [op for op in after.body.walk() if op.name == "scatter"]
    assert ledger.hits["scatter-once"] == 1
    assert_equal(before, after, x, labels)
    outside = labels.copy()
    outside.reshape(-1)[:4] = -classes, -classes - 1, classes, 1 << 30  # dropped by a scatter
    assert_equal(before, after, x, outside)


def test_gradient_of_an_embedding_keeps_its_scatter() -> None:
    """Several tokens may name one row: their gradients are added."""

    def loss(table: Any, tokens: Any) -> Any:
        return (table[tokens] ** 2).sum()

    table, tokens = np.ones((16, 4), np.float32), np.array([3, 3, 5], np.int32)
    before, after, _ = simplified(jax.grad(loss), table, tokens)
    assert [op.name for op in after.body.walk()].count("scatter") == 1
    assert_equal(before, after, table, tokens)


def test_counters_of_loops_have_ranges() -> None:
    """A counter as an index: JAX adds the size of the dim where it is below zero."""

    def total(x: Any) -> Any:
        return jax.lax.fori_loop(0, 12, lambda i, carry: jnp.sin(carry) + x[i], x[0])

    x = np.arange(48, dtype=np.float32).reshape(12, 4)
    before, after, ledger = simplified(total, x)
    assert ledger.hits["compare-decided"]
    (loop,) = (op for op in after.body.walk() if op.name == "while")
    assert not [op for op in loop.regions[1].ops if op.name in ("compare", "select")]
    assert_equal(before, after, x)
