"""benchmarks/gpu/first_run.py without a GPU: its checks in the simulator, and how it survives."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
from girih.backends.nvidia.assemble import assemble
from girih.backends.nvidia.build import merged
from girih.backends.nvidia.compile import compile_ptx
from girih.backends.nvidia.target import target

FOLDER = Path(girih.__file__).parent / "benchmarks" / "gpu"
OPTIONS = {
    "dry": True, "architecture": "sm_90a", "only": "", "minutes": 1.0, "run": None, "worker": False,
    "into": None,
}  # fmt: skip


@pytest.fixture
def first_run(monkeypatch) -> Any:
    """The script as a module; it and its checks are gone again afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    import first_run  # pyright: ignore[reportMissingImports]

    yield first_run
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("first", "first_run"):
            del sys.modules[name]


def options(**more: Any) -> argparse.Namespace:
    return argparse.Namespace(**{**OPTIONS, **more})


@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90a"])
def test_atoms(first_run, architecture) -> None:
    """Each instruction alone gives what numpy says, with what is asynchronous early and late."""
    from first.atoms import atoms  # pyright: ignore[reportMissingImports]

    bench = first_run.Bench(options(architecture=architecture))
    names = [name for name, _ in atoms(target(architecture))]
    assert len(names) == len(set(names)) >= 20
    found = [bench.check(name) for name in names]
    assert all(one.get("good") for one in found), [one for one in found if not one.get("good")]
    assert all(one["error"] == one["beside_simulator"] == 0 for one in found)


@pytest.mark.requires_ptxas
def test_atoms_assemble(first_run) -> None:
    from first.atoms import atoms  # pyright: ignore[reportMissingImports]

    on = target("sm_90a")
    texts = [
        compile_ptx(make(on).code.text.replace("@small", f"@atom{number}"), on.architecture)
        for number, (_, make) in enumerate(atoms(on))
    ]
    made = assemble(merged(texts, on.architecture), on.architecture)
    assert len(made.usages) == len(texts) and made.faults() == []


@pytest.mark.parametrize(
    "name",
    ["block: tails", "pipeline: clusters", "operation: reduce_window", "program: loop",
     "program: results on the device"],
)  # fmt: skip
def test_kernels_and_programs(first_run, name) -> None:
    found = first_run.Bench(options()).check(name)
    assert found.get("good"), found


def test_clusters_are_tried(first_run) -> None:
    from first.kernels import everything  # pyright: ignore[reportMissingImports]

    trials = dict(everything(target("sm_90a")))
    ((_, trial),) = trials["pipeline: clusters"](target("sm_90a"))
    assert trial.code.launches[0].cluster == (2, 1, 1)


def test_what_is_wrong_is_named(first_run) -> None:
    from first.atoms import plain  # pyright: ignore[reportMissingImports]

    bench = first_run.Bench(options())
    trial = plain(bench.target)
    wanted = [trial.wanted[0].copy()]
    wanted[0][17] += 4000
    found = bench.trials([("one", replace(trial, wanted=wanted))])
    assert not found["good"] and "one: off by" in found["reason"]
    assert "1 of 1000 elements, first [17]: 18 instead of 4018" in found["reason"]
    with pytest.raises(ValueError, match="behind its end"):
        bench.trials([("", replace(trial, wanted=[trial.wanted[0][:990]]))])


def test_errors() -> None:
    sys.path.insert(0, str(FOLDER))
    try:
        from first.trial import error  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.remove(str(FOLDER))
    odd = np.array([np.nan, np.inf, 1.0])
    assert error([odd], [odd.copy()]) == 0
    assert error([odd], [np.array([0, np.inf, 1.0])]) == np.inf
    assert error([np.array([1.0, 4.0])], [np.array([1.0, 5.0])]) == pytest.approx(0.2)
    assert error([np.array([1])], [np.array([2])]) == np.inf


WORKER = """
import json, os, sys, time
checks = [[name, "atom"] for name in ("good", "hang", "after", "crash", "broken", "last")]
print(json.dumps({"machine": {"device": "none", "target": "t"}, "checks": checks}), flush=True)
for line in sys.stdin:
    name = line.strip()
    if name == "hang":
        time.sleep(60)
    if name == "crash":
        print("a segment is at fault", file=sys.stderr, flush=True)
        os.abort()
    facts = {"name": name, "group": "atom", "good": True}
    if name == "broken":
        facts |= {"good": False, "broken": True, "reason": "an illegal address"}
    print(json.dumps(facts), flush=True)
    if name == "broken":
        os._exit(0)
"""


def test_a_check_that_hangs_or_crashes_does_not_end_the_run(
    first_run, monkeypatch, tmp_path, capfd
) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    monkeypatch.setattr(first_run, "__file__", str(script))
    monkeypatch.setitem(first_run.SECONDS, "atom", 1.0)
    report = first_run.run(options(), time.monotonic() + 60)
    rows = {row["name"]: row for row in report["checks"]}
    assert [name for name, row in rows.items() if row["good"]] == ["good", "after", "last"]
    assert "it hangs: no answer in 1 s" in rows["hang"]["reason"]
    assert "a segment is at fault" in rows["crash"]["reason"]
    assert "-6" in rows["crash"]["reason"]  # its signal
    assert report["first_failure"]["name"] == "hang" and not report["good"]
    assert "the first that fails is 'hang'" in report["verdict"]
    report = first_run.run(options(), time.monotonic() + 1)
    assert all("no time" in row["not_run"] for row in report["checks"]) and not report["good"]


def test_a_process_that_does_not_start_again(first_run, monkeypatch, tmp_path) -> None:
    script, mark = tmp_path / "worker.py", tmp_path / "mark"
    once = f"import os\nif os.path.exists({str(mark)!r}): raise SystemExit('lost')\n"
    script.write_text(f"{once}open({str(mark)!r}, 'w')\n{WORKER}")
    monkeypatch.setattr(first_run, "__file__", str(script))
    monkeypatch.setitem(first_run.SECONDS, "atom", 1.0)
    rows = first_run.run(options(), time.monotonic() + 60)["checks"]
    assert [row["good"] for row in rows] == [True, *[False] * 5]
    assert all("lost" in row["reason"] for row in rows[2:])


def test_what_is_missing_is_one_sentence(first_run, monkeypatch) -> None:
    assert first_run.missing(True) == ""
    needed = (("numpy", "numpy", (99, 0), False), ("not_here", "not-here", (1, 2), False))
    monkeypatch.setattr(first_run, "NEEDED", needed)
    said = first_run.missing(True)
    assert f"numpy>=99.0 (it is {np.__version__})" in said
    assert "not-here>=1.2 (No module named 'not_here')" in said and "wheels" in said


def test_the_script(tmp_path) -> None:
    """From another folder, as a process of its own with its worker."""
    file = tmp_path / "verdict.json"
    command = [sys.executable, str(FOLDER / "first_run.py"), "--dry", "--only", "n8 NN"]
    done = subprocess.run(
        [*command, "--into", str(file)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    assert report["good"] and report["machine"]["target"] == "nvidia:sm_90a"
    assert report["groups"]["atom"] == {"good": 1, "bad": 0, "left": 0}
    assert "1 of" in report["verdict"] and report["verdict"] in done.stdout
