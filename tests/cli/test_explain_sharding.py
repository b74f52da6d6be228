"""`girih explain sharding`: what devices send, as a table, as JSON, and within a budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export

SHARDED = ("--mesh", "data=2,model=4", "--shard", "x=data", "--shard", "w1=-,model")
BYTES = 2 * 8 * 32 * 4 * 3 // 4  # an all-reduce of half of the rows among four


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def mlp(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w1) @ w2

    kinds = (jax.ShapeDtypeStruct(dims, jnp.float32) for dims in ((16, 32), (32, 64), (64, 32)))
    path = tmp_path_factory.mktemp("sharding") / "mlp.jax"
    path.write_bytes(export.export(jax.jit(mlp))(*kinds).serialize())
    return path


def test_a_table_and_json(source: Path, girih_command: Any) -> None:
    code, out, _ = girih_command("explain", "sharding", str(source), *SHARDED)
    assert code == 0 and "all_reduce" in out and "model" in out and source.name in out
    code, out, _ = girih_command("explain", "sharding", str(source), *SHARDED, "--json")
    told = json.loads(out)
    assert code == 0 and told["bytes"] == BYTES and told["mesh"] == {"data": 2, "model": 4}
    (row,) = told["communications"]
    assert row["kind"] == "reduction" and row["axes"] == ["model"] and row["bytes"] == BYTES
    assert "dot_general" in row["of"] and "test_explain_sharding.py" in row["for"]


@pytest.mark.parametrize("limit", ["total=%d", "op=%d", "axis.model=%d"])
def test_budgets(source: Path, girih_command: Any, limit: str) -> None:
    assert (
        girih_command("explain", "sharding", str(source), *SHARDED, "--max-reshard", limit % BYTES)[
            0
        ]
        == 0
    )
    code, _, err = girih_command(
        "explain", "sharding", str(source), *SHARDED, "--max-reshard", limit % (BYTES - 1)
    )
    assert code == 3 and f"is {BYTES}, at most {BYTES - 1} allowed" in err
    assert "#0 reduction of" in err


def test_counts_and_bad_budgets(source: Path, girih_command: Any) -> None:
    assert (
        girih_command(
            "explain", "sharding", str(source), *SHARDED, "--max-reshard", "count=1,axis.data=0"
        )[0]
        == 0
    )
    for limit, why in (("count=0", "count is 1"), ("much=3", "none of"), ("count=x", "a number")):
        code, _, err = girih_command(
            "explain", "sharding", str(source), *SHARDED, "--max-reshard", limit
        )
        assert code == 2 and why in err


def test_without_a_mesh(source: Path, girih_command: Any) -> None:
    code, _, err = girih_command("explain", "sharding", str(source))
    assert code == 2 and "no mesh" in err
    code, _, err = girih_command("explain", "sharding", str(source), "--shard", "x=data")
    assert code == 2 and "needs --mesh" in err
