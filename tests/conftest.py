"""Fixtures that all tests share."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Two workers share a small machine: one thread each for the frameworks. Read at their first import.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))  # the zoo: `from models import ZOO`


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files anew instead of comparing"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: text equals tests/golden/<test file>/<name>; a missing file fails.

    `pytest --update-golden` writes the files; the change then shows in the diff of the commit.
    """
    folder = ROOT / "tests" / "golden" / Path(request.node.path).stem
    update = request.config.getoption("--update-golden")

    def compare(name: str, text: str) -> None:
        path = folder / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        assert path.exists(), f"no golden file {path.relative_to(ROOT)}; run pytest --update-golden"
        expected = path.read_text()
        if text != expected:
            difference = difflib.unified_diff(
                expected.splitlines(), text.splitlines(), "golden", "now", lineterm=""
            )
            pytest.fail(f"{path.relative_to(ROOT)} differs:\n" + "\n".join(difference))

    return compare
