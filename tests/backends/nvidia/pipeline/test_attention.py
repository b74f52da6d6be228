"""Attention, written as a kernel or found by connect: values of products that feed products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.graph import Op, arguments
from girih.optimizer.asynchronous.configuration import Style
from girih.optimizer.pipeline import run_pipeline, simplify_pipeline
from girih.optimizer.tiles.build import build_kernel, make_group

from .support import SMALL, attention, check, check_call, compare, random

jax = pytest.importorskip("jax")
jnp = jax.numpy


@pytest.mark.parametrize(
    ("keys", "width", "options"),
    [
        (256, 64, {}),
        (256, 128, {"causal": True}),
        (200, 64, {"TK": 64}),
        (128, 64, {}),
        (192, 64, {"TQ": 192, "TK": 96, "causal": True}),
        (128, 64, {"TQ": 64, "TK": 64}),
    ],
)
def test_attention(keys: int, width: int, options: dict[str, Any]) -> None:
    q, k, v = (random(1, keys, width) for _ in range(3))
    plan = check(attention, q, k, v, **options)
    # Keys of one window are walked by no loop.
    assert plan.style is (Style.ROTATE if keys > options.get("TK", 128) else Style.SEQUENCE)


def test_a_block_walks_several_heads() -> None:
    q, k, v = (random(3, 128, 64) for _ in range(3))
    plan = check(attention, q, k, v, on=SMALL, TK=64)
    assert plan.blocks == 2 and plan.ping_pong


def heads(q: Any, k: Any, v: Any) -> Any:
    """Causal attention; a head of keys for two of queries."""
    k, v = jnp.repeat(k, 2, axis=1), jnp.repeat(v, 2, axis=1)
    s = jnp.einsum("bhid,bhjd->bhij", q, k, preferred_element_type=jnp.float32) * 0.125
    i = jnp.arange(s.shape[-1])
    s = jnp.where(i[None, :] <= i[:, None], s, -jnp.inf)
    p = jax.nn.softmax(s, -1).astype(q.dtype)
    return jnp.einsum("bhij,bhjd->bhid", p, v)


def streamed(function: Any, inputs: list[np.ndarray], sizes: tuple[int, ...], step: int) -> Op:
    """The group of a whole program as a tile function that walks its longest sum."""
    module = girih.import_model(function, *inputs)
    module = run_pipeline(module, simplify_pipeline(girih.Options()))
    body = module.body
    group = make_group(body.ops, body.arguments, body.results)
    own = arguments(body.argument_types)
    return build_kernel(group, own, sizes, "k", group.streams()[0], step)


def test_a_group_that_connect_makes() -> None:
    inputs = [random(1, 2, 256, 64), random(1, 1, 256, 64), random(1, 1, 256, 64)]
    op = streamed(heads, inputs, (1, 1, 128, 64), 128)
    plan = check_call(op, *inputs)
    assert plan.style is Style.ROTATE


def test_attention_of_a_framework_is_one_launch() -> None:
    """connect makes one group of it, in the tiles that the pipeline wants."""
    inputs = [random(1, 2, 192, 64), random(1, 1, 192, 64), random(1, 1, 192, 64)]
    program = girih.compile(girih.import_model(heads, *inputs), target="ptx-sim")
    (kernel,) = program.plan.kernels
    (launch,) = kernel.launches
    maps = [a for a in launch.arguments if a.HasField("tensor_map")]
    assert len(maps) == 4 and tuple(launch.block) in ((256, 1, 1), (384, 1, 1))
    found = program(*inputs)
    found = found[0] if isinstance(found, (list, tuple)) else found
    compare(np.asarray(found), np.asarray(heads(*inputs)), 0.02)
