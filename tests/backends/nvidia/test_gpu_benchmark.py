"""benchmarks/gpu without a GPU: its dry run, and its report of measured rows by a clock of ours."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import girih

FOLDER = Path(girih.__file__).parent / "benchmarks" / "gpu"

pytest.importorskip("torch")
pytest.importorskip("jax")


@pytest.fixture
def benchmark(monkeypatch) -> Any:
    """The modules of the folder, by name, gone again afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = [path.stem for path in FOLDER.glob("*.py")]
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    import run

    yield run
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(before)


class Clock:
    """Gives every engine the same time."""

    def in_turns(self, calls: dict[str, Any], count: int) -> dict[str, float]:
        for call in calls.values():
            call()
        return dict.fromkeys(calls, 1e-3)


def test_dry_run(benchmark, monkeypatch, tmp_path):
    cases = benchmark.operations
    small = [cases.softmax("f32", 4, 40), cases.matmul("bf16", 16, 16, 16)]
    monkeypatch.setattr(cases, "cases", lambda size: iter(small))
    file = tmp_path / "dry.json"
    monkeypatch.setattr(sys, "argv", ["run.py", "--dry", "--into", str(file)])
    assert benchmark.main() == 0
    report = json.loads(file.read_text())
    rows = report["rows"]
    assert [row["good"] for row in rows] == [True] * 4
    assert all(row["simulated"]["error"] < 1e-2 for row in rows[:2])
    entries = [entry for row in rows[2:] for entry in row["static"]["entries"].values()]
    assert entries and all(entry["instructions"] > 5 for entry in entries)


def test_rows_and_picture(benchmark, monkeypatch, tmp_path):
    """torch on the CPU stands for an engine that works; the others say why they do not."""
    cases, peers = benchmark.operations, benchmark.peers

    def no_gpu(*arguments: Any) -> Any:
        raise peers.Unavailable("there is no GPU")

    monkeypatch.setattr(peers, "gpu_jax", no_gpu)
    monkeypatch.setitem(peers.ENGINES, "girih", no_gpu)
    chosen = ["girih", "torch", "xla", "triton"]
    peaks = {"bytes": 1e12, "bf16": 1e15}
    rows = []
    for case in (cases.layer_norm("f32", 6, 30), cases.attention("bf16", 1, 2, 40, 16, True)):
        rows.append(benchmark.measured(case, chosen, Clock(), peaks, 3, "cpu"))
    for row in rows:
        engines = row["engines"]
        assert engines["torch"]["good"] and engines["torch"]["milliseconds"] == 1.0
        assert engines["xla"]["unavailable"] == "there is no GPU"
        assert "unavailable" in engines["girih"] and not row["good"]
        benchmark.show(row)
    assert rows[0]["engines"]["torch"]["giga"] == pytest.approx(rows[0]["bytes"] / 1e6)
    pytest.importorskip("matplotlib")
    import picture  # pyright: ignore[reportMissingImports]

    report = {"rows": rows, "machine": {"device": "none", "date": "", "commit": ""}}
    picture.draw(report, tmp_path / "gpu.png")
    assert (tmp_path / "gpu.png").stat().st_size > 1000


def test_sizes(benchmark):
    """Every case can be named in a report, and none stands twice."""
    for size in ("full", "quick", "dry"):
        found = [(c.group, c.name, c.dtype) for c in benchmark.operations.cases(size)]
        assert len(found) == len(set(found)) > 10
        assert {group for group, _, _ in found} <= set(benchmark.GROUPS)


def test_static_figures_of_models(benchmark):
    """What is counted of a program: its launches, and bytes beside the fewest that would do."""
    import numpy as np

    import models_static  # pyright: ignore[reportMissingImports]

    x, w = np.zeros((64, 128), np.float32), np.zeros((128, 32), np.float32)
    program = girih.compile(lambda x, w: abs(x @ w).sum(), x, w, target="nvidia:sm_80")
    found = models_static.static_figures(program, "sm_80")
    least = x.nbytes + w.nbytes + 4
    assert found["least_bytes"] == least <= found["bytes"]
    assert found["launches"] == sum(step.launches for step in found["steps"]) >= 2
    assert found["flops"] >= 2 * 64 * 128 * 32
    assert found["seconds"] > found["roofline_seconds"] > 0
    assert len(models_static.kernel_lines(found["steps"])) == found["kernels"]
    line = models_static.line("small", {**found, "compile_seconds": 0.0})
    assert line.split()[:3] == ["small", "0.0s", str(found["launches"])]
