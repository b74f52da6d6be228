"""The zoo at reduced width through the PTX simulator, against the frameworks.

`python tests/zoo/architectures.py --on ptx-sim` runs any architecture of transformers the same way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
from engines import flat
from models import TOLERANCE, jax_models, relative_error

from .test_architectures import BY_NAME, zoo

MODELS: dict[str, Any] = {
    "lstm": lambda: jax_models.lstm(layers=1, steps=5, width=16),
    "train": lambda: jax_models.mlp_train(layers=2, width=32, batch=8),
    # 16 tokens are given, so the loop's body runs a few times on data that decides when it ends.
    "decode": lambda: jax_models.transformer_decode(
        layers=1, width=32, heads=2, vocabulary=64, longest=18
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_jax(name: str) -> None:
    import jax

    source, inputs = MODELS[name]()
    copies = jax.tree_util.tree_map(np.array, inputs)
    expected = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(source(*copies))]
    program = girih.compile(source, *inputs, target="ptx-sim")
    found = flat(program(*inputs))
    for ours, theirs in zip(found, expected, strict=True):
        assert relative_error(ours, theirs) <= TOLERANCE


@pytest.mark.parametrize("name", ["gpt2"])
def test_transformers(name: str) -> None:
    row = zoo.check(BY_NAME[name], "ptx-sim")
    assert row.compiles, row.note
    assert row.error <= zoo.TOLERANCE["float32"]
