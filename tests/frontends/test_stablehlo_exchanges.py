"""Programs of one device of a mesh as StableHLO: exchanges become permutes that other compilers
know, and give the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

import girih
from girih.frontends.stablehlo.exchanges import rounds
from girih.hlo.ops.exchange import Transfer
from girih.hlo.placement import cut

X = np.random.default_rng(3).standard_normal((17, 6)).astype(np.float32)


def differences(x: Any) -> Any:
    return x[1:] - x[:-1]


def joined(x: Any) -> Any:
    return jnp.concatenate([x[5:], x[:5]])


def pooled(x: Any) -> Any:
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, (3, 1), (2, 1), "SAME")


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("function", [differences, joined, pooled])
def test_a_local_program_is_written_and_read_back(function: Any, text: bool) -> None:
    module = girih.import_model(function, jax.ShapeDtypeStruct(X.shape, X.dtype))
    parts = girih.partition(module, mesh={"d": 4}, shardings={"*": ("d",)})
    assert any(op.name == "exchange" for op in parts.local.walk())
    again = girih.import_model(girih.export_stablehlo(parts.local, text=text))
    names = {op.name for op in again.walk()}
    assert "collective_permute" in names and "exchange" not in names
    sharding = parts.propagated.shardings[parts.propagated.module.body.arguments[0]]
    blocks = [[block] for block in cut(X, sharding, parts.mesh)]
    wanted = girih.interpret_parallel(parts.local, blocks).results
    found = girih.interpret_parallel(again, blocks).results
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(one[0], other[0])


boxes = st.lists(
    st.builds(
        lambda source, target, size: Transfer(source, target, (0,), (0,), (size,)),
        st.integers(0, 3), st.integers(0, 3), st.integers(0, 2),
    ),
    max_size=20,
)  # fmt: skip


@given(boxes)
@settings(max_examples=200, deadline=None)
def test_rounds(moves: list[Transfer]) -> None:
    """Each box that holds something is in one round, in which sources and targets are unique."""
    made = list(rounds(moves))
    assert sorted(box for one in made for box in one) == sorted(
        b for b in moves if 0 not in b.sizes
    )
    for one in made:
        assert len({box.source for box in one}) == len({box.target for box in one}) == len(one)
        assert len({box.sizes for box in one}) == 1
        assert len({box.source == box.target for box in one}) == 1
