"""`girih explain sharding` and `reshard`: tables, JSON, pages, budgets, suggestions; the same each
time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export

MESH = ("--mesh", "data=2,model=4")
SHARDED = (*MESH, "--shard", "x=data", "--shard", "w1=-,model")
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
    assert "because of a1:\n    argument w1: dim 1 by model\n    dot_general at " in out
    assert "a1, argument w1: " in out
    code, out, _ = girih_command("explain", "sharding", str(source), *SHARDED, "--json")
    told = json.loads(out)
    assert code == 0 and told["bytes"] == BYTES and told["mesh"] == {"data": 2, "model": 4}
    (row,) = told["communications"]
    assert row["kind"] == "reduction" and row["axes"] == ["model"] and row["bytes"] == BYTES
    assert "dot_general" in row["of"] and "test_explain_sharding.py" in row["for"]
    assert row["seconds"] > 0 and row["annotations"] == ["a1"] and row["suggestion"] is None
    (why,) = row["why"]
    assert why["annotation"] == "a1" and len(why["chain"]) == 4 and "unreduced" in why["chain"][-1]
    assert row["alternatives"] and all(other["bytes"] >= 0 for other in row["alternatives"])
    assert [held["bytes"] for held in told["arguments"]] == [8 * 32 * 4, 32 * 16 * 4, 16 * 32 * 4]


def test_a_suggestion_is_true(source: Path, girih_command: Any) -> None:
    asked = ("explain", "sharding", str(source), *SHARDED, "--suggest")
    code, out, _ = girih_command(*asked)
    assert code == 0 and "removed by: w1 as -,-" in out and "--shard w1=-,-" in out
    (row,) = json.loads(girih_command(*asked, "--json")[1])["communications"]
    told = row["suggestion"]
    assert told["bytes"] == -BYTES and told["removes"] == [0]
    applied = (*MESH, "--shard", "x=data", *told["option"].split(), "--json")
    after = json.loads(girih_command("explain", "sharding", str(source), *applied)[1])
    assert after["communications"] == [] and after["bytes"] == 0
    held = sum(one["bytes"] for one in after["arguments"])
    before = json.loads(girih_command("explain", "sharding", str(source), *SHARDED, "--json")[1])
    assert held - sum(one["bytes"] for one in before["arguments"]) == told["held"]


class _Loads(HTMLParser):
    """The tags of a page that would load something, and its open tags."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [tag for name, value in attrs if name == "src" or "//" in (value or "")]


def test_a_page(source: Path, girih_command: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert girih_command("explain", "sharding", str(source), *SHARDED, "--html", str(page))[0] == 0
    text = page.read_text()
    found = _Loads()
    found.feed(text)
    assert not found.loads and not {"script", "link", "img"} & set(found.tags)
    assert found.tags.count("svg") == 1 + 3 + 1  # the mesh, arguments, a result
    assert found.tags.count("details") == 1 and "device 7" in text
    assert ">0 4</text>" in text  # the columns of w1 that data's two rows of devices share
    assert os.listdir(tmp_path) == ["page.html"]


def test_names_in_a_page_are_text() -> None:
    from girih.annotate import annotated
    from girih.cli.sharding_page import page
    from girih.partitioning import partition
    from girih.tests.test_partitioning import mlp

    parts = partition(annotated(mlp(), {"<b>": 4}, {"input[0]": (None, "<b>")}))
    text = page("<script>alert('&')</script>", parts.explain(), {})
    assert "<script>" not in text and "<b>" not in text and "&lt;b&gt;" in text


@pytest.mark.parametrize("limit", ["total=%d", "op=%d", "axis.model=%d"])
def test_budgets(source: Path, girih_command: Any, limit: str) -> None:
    asked = ("explain", "sharding", str(source), *SHARDED, "--max-reshard")
    assert girih_command(*asked, limit % BYTES)[0] == 0
    code, _, err = girih_command(*asked, limit % (BYTES - 1))
    assert code == 3 and f"is {BYTES}, at most {BYTES - 1} allowed" in err
    assert "#0 reduction of" in err


def test_counts_and_bad_budgets(source: Path, girih_command: Any) -> None:
    asked = ("explain", "sharding", str(source), *SHARDED, "--max-reshard")
    assert girih_command(*asked, "count=1,axis.data=0")[0] == 0
    code, _, err = girih_command(*asked, "count=0,total=1")
    assert code == 3 and "count is 1, at most 0" in err and f"total is {BYTES}" in err
    for limit, why in (
        ("much=3", "none of"), ("count=x", "a number"), ("axis.z=1", "no axis"),
        ("total=1 potato", "--max-reshard: write a number"),
    ):  # fmt: skip
        code, _, err = girih_command(*asked, limit)
        assert code == 2 and why in err


def test_budget_files(source: Path, girih_command: Any, tmp_path: Path) -> None:
    asked = ("explain", "sharding", str(source))
    file = tmp_path / "accepted.json"
    told = girih_command(*asked, *SHARDED, "--json")[1]
    file.write_text(told)
    assert girih_command(*asked, *SHARDED, "--budget", str(file))[0] == 0
    grown = (*MESH, "--shard", "x=-", "--shard", "w1=-,model", "--budget", str(file))
    code, _, err = girih_command(*asked, *grown)
    assert code == 3 and f"total is {2 * BYTES}, at most {BYTES} allowed" in err
    assert "axis.model is" in err and "#0 reduction of" in err
    less = json.loads(told)
    less["bytes"] -= 1
    file.write_text(json.dumps(less))
    assert girih_command(*asked, *SHARDED, "--budget", str(file))[0] == 3
    other = ("--mesh", "data=4,model=2", *SHARDED[2:], "--budget", str(file))
    code, _, err = girih_command(*asked, *other)
    assert code == 2 and "was written for the mesh" in err
    for text, why in (("{}", "is no budget"), ("[", "is no budget"), (None, "cannot read")):
        file.unlink(missing_ok=True)
        if text is not None:
            file.write_text(text)
        code, _, err = girih_command(*asked, *SHARDED, "--budget", str(file))
        assert code == 2 and why in err


def test_without_a_mesh(source: Path, girih_command: Any) -> None:
    code, _, err = girih_command("explain", "sharding", str(source))
    assert code == 2 and "no mesh" in err
    code, _, err = girih_command("explain", "sharding", str(source), "--shard", "x=data")
    assert code == 2 and "needs --mesh" in err


def test_a_reshard(source: Path, girih_command: Any) -> None:
    ends = ("--from", "data+model,-", "--to", "-,model", *MESH)
    code, out, _ = girih_command("explain", "reshard", str(source), "w1", *ends)
    assert code == 0 and "needed at least" in out and "f32[32,64]" in out
    told = json.loads(girih_command("explain", "reshard", str(source), "w1", *ends, "--json")[1])
    # A device has 4 of the 32 rows, and wants 16 of the 64 columns: it lacks those of 28 rows.
    assert told["least_bytes"] == told["ways"][0]["bytes"] == 28 * 16 * 4
    assert sum(move["bytes"] for move in told["ways"][0]["moves"]) == told["ways"][0]["bytes"]
    assert [way["way"] for way in told["ways"]] == ["chosen", "collectives alone"]
    for value, more, why in (
        ("nope", ends, "nothing is named"), ("*", ends, "names 4 tensors"),
        ("w1", ends[:4], "no mesh"), ("w1", ("--from", "z", "--to", "-", *MESH), "no axis"),
    ):  # fmt: skip
        code, _, err = girih_command("explain", "reshard", str(source), value, *more)
        assert code == 2 and why in err


def test_the_same_whatever_the_hash_seed_and_the_order(source: Path, tmp_path: Path) -> None:
    found: set[tuple[bytes, bytes]] = set()
    page = tmp_path / "page.html"
    for seed, shards in (("0", SHARDED[2:]), ("1", SHARDED[2:]), ("1", SHARDED[4:] + SHARDED[2:4])):
        done = subprocess.run(
            [
                sys.executable, "-m", "girih", "explain", "sharding", str(source), *MESH, *shards,
                "--suggest", "--json", "--html", str(page),
            ],
            check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        found.add((done.stdout, page.read_bytes()))
    assert len(found) == 1


def test_what_nobody_said_is_found(source: Path, girih_command: Any) -> None:
    command = "explain", "sharding", str(source), "--mesh", "data=2,model=4", "--shard", "auto"
    code, out, _ = girih_command(*command)
    assert code == 0 and "how it lies" in out and "w1" in out
    code, out, _ = girih_command(*command, "--max-memory", "8KiB", "--json")
    told = json.loads(out)
    assert code == 0 and sum(held["bytes"] for held in told["arguments"]) <= 8 << 10
    assert any("model" in held["sharding"] for held in told["arguments"])
    found = told["automatic"]
    assert 0 < found["bound"] <= 1.001 * found["price"] and found["memory_bytes"] <= 8 << 10
    code, out, _ = girih_command(*command, "--max-memory", "8KiB")
    assert code == 0 and "no choice costs less than" in out
    code, _, err = girih_command(*command, "--max-memory", "64")
    assert code == 2 and "fits into 64 bytes" in err
    code, _, err = girih_command("explain", "sharding", str(source), *SHARDED, "--max-memory", "64")
    assert code == 2 and "bounds what --shard auto finds" in err
