"""Which kernels become one where executors run blocks of threads, as on a GPU."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import girih
from girih.backends import find
from girih.backends.nvidia import machines
from girih.hlo.graph import Op
from girih.hlo.types import BF16
from girih.imports import import_model
from girih.optimizer.machine import from_json, to_json
from girih.optimizer.pipeline import lowering_pipeline, run_pipeline, simplify_pipeline

from ..tiles.programs import attention, causal_attention, jax, jnp


def half(*dims: int) -> np.ndarray:
    return np.zeros(dims, BF16.dtype)


def kernels(function: Any, *inputs: Any, target: str = "nvidia:sm_90a") -> list[Op]:
    """The kernels that a program becomes, in their order."""
    options = girih.Options()
    module = run_pipeline(import_model(function, *inputs), simplify_pipeline(options))
    module = run_pipeline(module, lowering_pipeline(find(target, options), options))
    return [op for op in module.body.ops if op.name in ("fusion", "kernel_call")]


def projections(x: Any, q: Any, k: Any, v: Any) -> Any:
    return x @ q, x @ k, x @ v


def test_products_of_one_input_are_one_kernel() -> None:
    inputs = half(128, 768), *(half(768, 768) for _ in range(3))
    (kernel,) = kernels(projections, *inputs)
    assert [op.name for op in kernel.regions[0].walk()].count("dot_general") == 3
    assert len(kernels(projections, *inputs, target="cpu")) == 3


def test_products_of_other_inputs_are_not() -> None:
    inputs = half(128, 768), half(128, 768), half(768, 768), half(768, 768)
    assert len(kernels(lambda x, y, a, b: (x @ a, y @ b), *inputs)) == 2


@pytest.mark.parametrize("target", ("nvidia:sm_90a", "nvidia:sm_80"))
@pytest.mark.parametrize("length", (128, 1024))
def test_attention_is_one_kernel(target: str, length: int) -> None:
    inputs = [half(1, 16, length, 64)] * 3
    for function in (attention, causal_attention):
        assert len(kernels(function, *inputs, target=target)) == 1


def grouped(q: Any, k: Any, v: Any) -> Any:
    """Four heads of queries for one of keys."""
    k, v = (jnp.repeat(x, 4, axis=1) for x in (k, v))
    return causal_attention(q, k, v)


def test_repeated_heads_are_not_stored() -> None:
    inputs = half(1, 32, 2048, 64), half(1, 8, 2048, 64), half(1, 8, 2048, 64)
    assert len(kernels(grouped, *inputs)) == 1


def split(x: Any) -> Any:
    """Attention whose queries, keys and values are parts of one tensor."""
    parts = x.reshape(1, 128, 3, 12, 64)
    return attention(*(parts[:, :, n].transpose(0, 2, 1, 3) for n in range(3)))


def test_parts_of_one_tensor_are_read_as_parts() -> None:
    assert len(kernels(split, half(1, 128, 3 * 768))) == 1


def normed(x: Any, w: Any) -> Any:
    x = x.astype(jnp.float32)
    mean = x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
    return ((x - mean) * scale).astype(w.dtype) @ w


def test_a_norm_stays_apart_from_a_large_product() -> None:
    """In one kernel each tile would compute it again, and wait for it."""
    assert len(kernels(normed, half(4096, 1024), half(1024, 4096))) == 2


def test_the_machines_file() -> None:
    machine = machines.typical("sm_90a")
    assert from_json(to_json(machine)) == machine
    body = json.loads(to_json(machine))
    body["units"][2]["grain"] = [16, 8]
    with pytest.raises(girih.UserError, match=r"units\[2\]\.grain: must be \[rows, columns, depth"):
        from_json(json.dumps(body))
    body = json.loads(to_json(machine))
    del body["blocks"]["fill"]
    with pytest.raises(girih.UserError, match="blocks: lacks fill"):
        from_json(json.dumps(body))
