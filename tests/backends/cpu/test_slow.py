"""Slow choices are notes: products of floats that a CPU has no arithmetic for."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import girih
from girih.hlo.errors import UserError


def chain(x, w):
    return jnp.tanh(x @ w) @ w


def inputs(dtype, rows=64):
    return np.zeros((rows, 64), dtype), np.zeros((64, 64), dtype)


def notes(dtype, target, rows=64):
    program = girih.compile(chain, *inputs(dtype, rows), target=target)
    return [note for note in program.plan.notes if "take longer" in note]


def test_one_note_for_all_products_of_a_kind():
    (note,) = notes(jnp.float16, "cpu:avx2")
    assert "test_slow.py:" in note and "products of f16" in note and "(2 operations)" in note


@pytest.mark.parametrize(
    ("dtype", "target", "rows"),
    [
        (jnp.float32, "cpu:avx2", 64),
        (jnp.bfloat16, "cpu:avx512-bf16", 64),
        (jnp.float16, "cpu:avx2", 1),  # as slow as reading the matrix, which is half as large
    ],
)
def test_what_is_not_slow_has_none(dtype, target, rows):
    assert notes(dtype, target, rows) == []


def test_the_element_type_and_the_level_decide():
    assert len(notes(jnp.bfloat16, "cpu:avx512")) == 1


def test_strict_refuses():
    options = girih.Options(strict=True)
    with pytest.raises(UserError, match="strict: .*products of f16: they take longer"):
        girih.compile(chain, *inputs(jnp.float16), target="cpu:avx2", options=options)
