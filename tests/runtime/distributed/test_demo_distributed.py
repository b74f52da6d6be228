"""`make demo-distributed`, as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .launch import needs_mpi

pytestmark = [pytest.mark.mpi, needs_mpi]
DEMO = Path(__file__).parents[3] / "examples" / "sharded" / "run.py"


def test_training_and_a_llama_on_four_processes() -> None:
    pytest.importorskip("jax")
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, str(DEMO)], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("one process gives the same within") == 3
    assert "a process has blocks {'down': (64, 32), 'up': (32, 64)}" in done.stdout
    for name in ("training", "llama"):
        page = (DEMO.parent / "out" / f"{name}.html").read_text()
        assert "<svg" in page and "all_reduce" in page
