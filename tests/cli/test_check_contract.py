"""`girih check-contract`: kernels of files, of modules, wrong contracts, wrong uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SOURCE = """
import girih
import girih.language as tl


@girih.kernel(out=lambda x: x, grid=lambda x, block: x.shape[0] // block,
              sharding="m k -> m k; replicate={k}; multiple={m: 2}")
def norm(x, out, *, block=2):
    i = tl.tile_id(0)
    rows = x[i * block : i * block + block, :]
    out[i * block : i * block + block, :] = rows / tl.sum(rows * rows, 1, keepdims=True)


@girih.kernel(out=lambda x: x, grid=lambda x: x.shape[0], sharding="m k -> m k")
def wrong(x, out):
    i = tl.tile_id(0)
    out[i : i + 1, :] = x[i : i + 1, :] / tl.sum(x[i : i + 1, :], 1, keepdims=True)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "some_kernels.py"
    path.write_text(SOURCE)
    return path


def test_a_contract_that_holds(source: Path, girih_command: Any) -> None:
    code, out, _ = girih_command("check-contract", f"{source}:norm", "f32[8,6]", "-c", "block=2")
    assert code == 0 and "m k -> m k; replicate={k}; multiple={m: 2}` holds" in out


def test_a_wrong_contract(source: Path, girih_command: Any) -> None:
    code, _, err = girih_command("check-contract", f"{source}:wrong", "f32[8,6]")
    assert code == 2 and "is wrong about 'k': cut in 2 parts" in err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("{}:nothing", "f32[8,6]"), "no kernel 'nothing'; kernels there are norm, wrong"),
        (("{}:norm", "eight"), "inputs are types such as f32[16,8]"),
        (("{}:norm", "f32[8,6]", "-c", "block"), "write NAME=VALUE"),
        (("norm", "f32[8,6]"), "FILE.py:NAME or MODULE:NAME"),
        (("nowhere.py:norm", "f32[8,6]"), "there is no such file"),
        (("girih_nowhere:norm", "f32[8,6]"), "the module cannot be imported"),
    ],
)
def test_wrong_uses(source: Path, girih_command: Any, arguments: Any, reason: str) -> None:
    code, _, err = girih_command("check-contract", *(text.format(source) for text in arguments))
    assert code == 2 and reason in " ".join(err.split())


def test_a_kernel_of_a_module(source: Path, girih_command: Any, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(source.parent)
    code, out, _ = girih_command("check-contract", "some_kernels:norm", "f32[8,6]", "--json")
    assert code == 0 and '"contract"' in out
