"""The tour runs: what the first page tells a newcomer is true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOUR = Path(__file__).resolve().parent.parent / "docs" / "tour.py"


def test_the_tour_runs() -> None:
    done = subprocess.run([sys.executable, str(TOUR)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The tour is over." in done.stdout
