"""Turns of a loop that a mask makes idle are left out, where windows hold finite numbers."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import girih
from girih.backends import find
from girih.backends.cpu import machines
from girih.hlo.offsets import Offsets
from girih.imports import import_model
from girih.optimizer.pipeline import lowering_pipeline, run_pipeline, simplify_pipeline
from girih.options import Options

KEYS, FEATURES = 512, 64
# A machine on which attention over so many keys is connected, whichever the host is.
AVX2 = str(resources.files(machines).joinpath("avx2.json"))
FINITE = Options(numerics="assumes-finite", machine=AVX2)


def attention(visible, keys: int = KEYS):
    """softmax(q k' where visible(row, column)) v, as a user of JAX writes it."""

    def program(q, k, v):
        scores = jnp.einsum("hqd,hkd->hqk", q, k, preferred_element_type=jnp.float32) * 0.125
        rows, columns = jnp.arange(keys)[:, None], jnp.arange(keys)[None, :]
        scores = jnp.where(visible(rows, columns), scores, -jnp.inf)
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores).astype(v.dtype), v)

    return program


MASKS = {
    "causal": lambda row, column: row >= column,
    "strictly": lambda row, column: (column < row) | (column == 0),
    "turned": lambda row, column: column <= row,
    "anti-causal": lambda row, column: row <= column,
    "near": lambda row, column: (row >= column) & (column > row - 100),
}


def inputs():
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, KEYS, FEATURES)).astype(np.float32) for _ in range(3)]


def loops(visible, options=FINITE):
    """(bounds of the loop over keys, its kernel's offsets) of an attention compiled for a CPU."""
    exported = jax.export.export(jax.jit(attention(visible)))(*inputs())
    module = run_pipeline(import_model(exported), simplify_pipeline(options))
    module = run_pipeline(module, lowering_pipeline(find("cpu", options), options))
    kernels = [op for op in module.body.ops if op.name == "kernel_call"]
    found = [
        (op, Offsets(kernel))
        for kernel in kernels
        for op in kernel.regions[0].ops
        if op.name == "tile_for"
    ]
    return [[known.range(known.of(bound)) for bound in op.operands[:2]] for op, known in found]


@pytest.mark.parametrize("name", ["causal", "turned"])
def test_what_comes_later_is_not_walked(name):
    (((low, high), (least, most)),) = loops(MASKS[name])
    assert low == high == 0
    assert least < most  # the first rows see few keys, the last ones all


def test_what_came_before_is_not_walked():
    (((low, high), (least, most)),) = loops(MASKS["anti-causal"])
    assert low == 0 < high and least == most


def test_windows_that_may_hold_nan_are_walked():
    """A weight of 0 times NaN is NaN."""
    options = replace(FINITE, numerics="reassociates")
    (((low, high), (least, most)),) = loops(MASKS["causal"], options)
    assert low == high == 0 and least == most


def test_a_mask_with_another_way_through_is_walked():
    (((low, high), (least, most)),) = loops(MASKS["strictly"])
    assert low == high == 0 and least == most


def agrees(name, target, dtype, keys: int, tolerance: float):
    program = attention(MASKS[name], keys)
    values = [jnp.asarray(value[:1, :keys], dtype) for value in inputs()]
    expected = np.asarray(jax.jit(program)(*[jnp.asarray(v, jnp.float32) for v in values]))
    exported = jax.export.export(jax.jit(program))(*values)
    options = FINITE if target == "cpu" else replace(FINITE, machine=None)
    compiled = girih.compile(exported, target=target, options=options)
    found = compiled(*(np.asarray(value) for value in values))
    np.testing.assert_allclose(np.asarray(found, np.float32), expected, atol=tolerance)


@pytest.mark.parametrize("name", MASKS)
def test_results_agree(name):
    agrees(name, "cpu", jnp.float32, KEYS, 1e-5)


@pytest.mark.parametrize("target", ["ptx-sim:sm_80", "ptx-sim"])
@pytest.mark.parametrize("name", ["causal", "near"])
def test_results_agree_on_a_simulated_gpu(name, target):
    agrees(name, target, jnp.bfloat16, 256, 3e-2)
