"""`girih explain memory`."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import girih
from girih.cli.app import app
from girih.cli.explaining import picture


@pytest.fixture
def bundle(tmp_path):
    import jax

    def model(x, w):
        first = jnp.tanh(x @ w)
        second = jnp.tanh(first @ w)
        return (jnp.tanh(second @ w) @ w * first).sum()

    path = tmp_path / "model.girih"
    x = np.ones((64, 64), np.float32)
    girih.compile(jax.jit(model), x, x).save(path)
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["explain", "memory", *map(str, arguments)])


def test_text_names_lines_and_adds_up(bundle):
    result = run(bundle)
    assert result.exit_code == 0
    for words in ("together", "temporaries over", "values at the peak", "test_explain.py:", "█"):
        assert words in result.output


def test_json(bundle):
    data = json.loads(run(bundle, "--json").output)
    peak = data["peak"]
    assert sum(row["bytes"] for row in peak["rows"]) == peak["bytes"] == max(data["live"])
    assert data["total_bytes"] == sum(data["totals"].values())
    assert data["live"][peak["step"]] == peak["bytes"] and data["placement"].startswith("proven")


def test_totals_are_what_a_call_takes_here(bundle):
    program = girih.load(bundle)
    data = json.loads(run(bundle, "--json").output)
    assert data["total_bytes"] == program.memory.total_bytes
    assert data["workers"] == program.memory.workers


def test_scratch_of_every_worker_counts(tmp_path):
    import jax

    x = np.ones((512, 512), np.float32)
    path = tmp_path / "large.girih"
    girih.compile(jax.jit(lambda x: jnp.tanh(x @ x) @ x), x).save(path)
    program, data = girih.load(path), json.loads(run(path, "--json").output)
    assert data["totals"]["scratch"] == program.memory.scratch_bytes * program.memory.workers > 0


def test_page_loads_nothing(bundle, tmp_path):
    page = tmp_path / "memory.html"
    assert run(bundle, "--html", page).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "<svg" in text and "http" not in text and "src=" not in text
    assert "alive because" in text and "test_explain.py" in text
    assert list(tmp_path.glob(".memory*")) == []


def test_wrong_input(bundle, tmp_path):
    wrong = tmp_path / "none.girih"
    wrong.write_bytes(b"no bundle")
    for arguments, words in (
        ((wrong,), "none.girih"),
        ((bundle, "--target", "nvidia:sm_80"), "no code for 'nvidia:sm_80'"),
        ((bundle, "--html", tmp_path / "nowhere" / "x.html"), "cannot write"),
    ):
        result = run(*arguments)
        assert result.exit_code != 0
        assert words in f"{result.output}{result.exception}"


def test_picture_shows_the_most_of_each_column():
    rows = picture([0, 1, 2, 8])
    assert len({len(row) for row in rows}) == 1 and rows[0] == "   █" and rows[-1][0] == " "
    assert len(picture([1] * 1000)[0]) == 72
