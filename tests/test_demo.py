"""`make demo` as a whole: both trained models, in the order in which a visitor sees them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_the_demo_agrees_with_the_frameworks() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo" / "run.py")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tides" in done.stdout  # the answer to the first question
    assert "accuracy girih" in done.stdout
