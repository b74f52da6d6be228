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
    "into": None, "prepare": None, "prepared": None, "resume": False,
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


@pytest.fixture
def bench(first_run) -> Any:
    """The checks on the simulator, for an architecture."""
    from first.checks import Bench  # pyright: ignore[reportMissingImports]

    return lambda architecture="sm_90a", **more: Bench(True, architecture, **more)


def options(**more: Any) -> argparse.Namespace:
    return argparse.Namespace(**{**OPTIONS, **more})


@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90a"])
def test_atoms(bench, architecture) -> None:
    """Each instruction alone gives what numpy says, with what is asynchronous early and late."""
    from first.atoms import atoms  # pyright: ignore[reportMissingImports]

    checks = bench(architecture)
    names = [name for name, _ in atoms(target(architecture))]
    assert len(names) == len(set(names)) >= 20
    found = [checks.check(name) for name in names]
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
     "program: results on the device", "speed: softmax", "calibration: launches",
     "calibration: memory", "sweep: attention 1x256x128"],
)  # fmt: skip
def test_checks(bench, name) -> None:
    found = bench().check(name)
    assert found.get("good"), found


def test_fifteen_speeds(bench) -> None:
    names = [name for name, check in bench().checks.items() if check.group == "speed"]
    assert len(names) == len(set(names)) == 16 and names[0] == "speed: peaks"


def test_groups_stand_in_order(first_run, bench) -> None:
    groups = [check.group for check in bench().checks.values()]
    order = list(first_run.GROUPS)
    assert groups == sorted(groups, key=order.index)
    assert sum(share for _, share in first_run.GROUPS.values()) == pytest.approx(1)


def test_a_calibration_that_copies_wrongly_is_named(bench, monkeypatch) -> None:
    from first import calibration  # pyright: ignore[reportMissingImports]

    wrong = calibration.WALKS["copy"].replace("add.s64 %rd21, %rd4", "add.s64 %rd21, %rd2")
    monkeypatch.setitem(calibration.WALKS, "copy", wrong)
    found = bench().check("calibration: memory")
    assert not found["good"] and "the copy differs" in found["reason"]


def test_clusters_are_tried(first_run) -> None:
    from first.kernels import everything  # pyright: ignore[reportMissingImports]

    trials = dict(everything(target("sm_90a")))
    ((_, trial),) = trials["pipeline: clusters"](target("sm_90a"))
    assert trial.code.launches[0].cluster == (2, 1, 1)


def test_what_is_wrong_is_named(bench) -> None:
    from first.atoms import plain  # pyright: ignore[reportMissingImports]
    from first.trial import made  # pyright: ignore[reportMissingImports]

    checks = bench()
    trial = plain(checks.target)
    wanted = [trial.wanted[0].copy()]
    wanted[0][17] += 4000
    one = replace(made("one", trial, checks.target), modelled=trial.wanted)
    found = checks.compared([replace(one, wanted=wanted)])
    assert not found["good"] and "one: off by" in found["reason"]
    assert "1 of 1000 elements, first [17]: 18 instead of 4018" in found["reason"]
    with pytest.raises(ValueError, match="behind its end"):
        checks.compared([replace(one, wanted=[trial.wanted[0][:990]])])


PREPARED = ("ldmatrix", "operation: cosine", "program: loop")


@pytest.fixture
def folder(bench, tmp_path) -> Path:
    """What some checks take, made ahead."""
    from first.prepared import Folder  # pyright: ignore[reportMissingImports]

    made = Folder.create(tmp_path / "prepared", "sm_90a")
    checks = bench(preparing=True).checks
    for name in PREPARED:
        checks[name].prepare(made)
    return made.path


def test_what_is_prepared_is_not_made_again(bench, folder, monkeypatch) -> None:
    from first import checks, programs  # pyright: ignore[reportMissingImports]

    prepared = bench(folder=str(folder))

    def compiled(*_: Any, **__: Any) -> None:
        raise AssertionError("it was compiled")

    monkeypatch.setattr(checks, "made", compiled)
    monkeypatch.setattr(programs.girih, "compile", compiled)
    for name in PREPARED:
        assert prepared.check(name)["good"], name
    missing = prepared.check("shuffles")
    assert "'shuffles' is not in" in missing["reason"] and "--prepare" in missing["reason"]


def test_what_another_compiler_prepared_is_refused(bench, folder, monkeypatch) -> None:
    from first import prepared  # pyright: ignore[reportMissingImports]

    with pytest.raises(girih.UserError, match="'architecture': 'sm_80'"):
        bench("sm_80", folder=str(folder))
    monkeypatch.setattr(prepared, "sources", lambda: "another")
    with pytest.raises(girih.UserError, match="run first_run.py --prepare"):
        bench(folder=str(folder))
    prepared.Folder.create(folder, "sm_90a")
    assert [file.name for file in folder.iterdir()] == ["prepared.json"]


def test_the_cubins_of_what_is_prepared(bench) -> None:
    from first.checks import made  # pyright: ignore[reportMissingImports]
    from girih.backends.nvidia.assemble import find_ptxas

    trials = dict(_atoms("sm_90a"))
    one = made("", trials["shuffles"](target("sm_90a")), target("sm_90a"), with_cubin=True)
    assert (one.cubin is not None) == (find_ptxas() is not None)


def _atoms(architecture: str) -> Any:
    from first.atoms import atoms  # pyright: ignore[reportMissingImports]

    return atoms(target(architecture))


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
    first_run, monkeypatch, tmp_path
) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    monkeypatch.setattr(first_run, "__file__", str(script))
    monkeypatch.setitem(first_run.GROUPS, "atom", (1.0, 0.08))
    file = tmp_path / "first.json"
    report = first_run.run(options(into=str(file)), 3600.0)
    assert json.loads(file.read_text()) == report and report["ended"]
    rows = {row["name"]: row for row in report["checks"]}
    assert [name for name, row in rows.items() if row["good"]] == ["good", "after", "last"]
    assert "it hangs: no answer in 1 s" in rows["hang"]["reason"]
    assert "a segment is at fault" in rows["crash"]["reason"]
    assert "-6" in rows["crash"]["reason"]  # its signal
    assert report["first_failure"]["name"] == "hang" and not report["good"]
    assert "the first that fails is 'hang'" in report["verdict"]
    report = first_run.run(options(into=str(file)), 0.1)
    assert all("no time" in row["not_run"] for row in report["checks"]) and not report["good"]


def test_a_run_goes_on_where_it_was_ended(first_run, monkeypatch, tmp_path) -> None:
    from first.report import Report  # pyright: ignore[reportMissingImports]

    script, file = tmp_path / "worker.py", tmp_path / "first.json"
    script.write_text(WORKER)
    monkeypatch.setattr(first_run, "__file__", str(script))
    monkeypatch.setitem(first_run.GROUPS, "atom", (1.0, 0.08))
    asked: list[str] = []
    ask = first_run.Worker.ask
    monkeypatch.setattr(
        first_run.Worker,
        "ask",
        lambda self, name, left: asked.append(name) or ask(self, name, left),
    )
    add = Report.add

    def ended(self: Any, row: dict[str, Any]) -> None:
        add(self, row)
        if row["name"] == "after":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Report, "add", ended)
        first_run.run(options(into=str(file)), 3600.0)
    left = json.loads(file.read_text())
    assert (
        not left["ended"] and not left["good"] and left["verdict"].startswith("not ended: 2 of 3")
    )
    assert asked == ["good", "hang", "after"]
    report = first_run.run(options(into=str(file), resume=True), 3600.0)
    assert asked[3:] == ["crash", "broken", "last"]
    assert [row["name"] for row in report["checks"]] == asked
    other = json.loads(file.read_text())
    other["machine"]["device"] = "another"
    file.write_text(json.dumps(other))
    with pytest.raises(ValueError, match="is of another device: another, now none; leave --resume"):
        first_run.run(options(into=str(file), resume=True), 60.0)


FOREIGN = (
    b"", b"{", b"[1]", b"{}", b"null", b"\xff\xfe", b'{"machine": null, "checks": []}',
    b'{"machine": {}, "checks": [1]}', b'{"machine": {}, "checks": [{"name": "x"}]}',
)  # fmt: skip


@pytest.mark.parametrize("data", FOREIGN)
def test_what_is_no_result_of_a_run_is_one_sentence(first_run, data, tmp_path) -> None:
    from first.report import Report  # pyright: ignore[reportMissingImports]

    file = tmp_path / "first.json"
    file.write_bytes(data)
    with pytest.raises(ValueError, match="first.json holds no results of a run .*; leave --resume"):
        Report(file, {"machine": {}}).resume()
    assert file.read_bytes() == data
    with pytest.raises(ValueError, match="holds no results of a run"):
        Report(tmp_path, {}).resume()
    with pytest.raises(ValueError, match="cannot be written"):
        Report(tmp_path, {}).write(True)


def test_a_folder_that_lacks_something_costs_no_process(bench, folder, tmp_path) -> None:
    from first.prepared import Folder  # pyright: ignore[reportMissingImports]

    kept = tmp_path / "kept"
    kept.mkdir()
    for name in ("model.girih", "data.pickle", "x.part"):
        (kept / name).write_text("a user's")
    Folder.create(kept, "sm_90a")
    assert len(list(kept.iterdir())) == 4  # nothing of the user's is gone
    with pytest.raises(girih.UserError, match="cannot be written"):
        Folder.create(kept / "model.girih", "sm_90a")
    prepared = bench(folder=str(folder))
    for name in ("shuffles", "program: chain"):
        found = prepared.check(name)
        assert "is not in" in found["reason"] and not found["broken"], found
    file = prepared.folder.file("ldmatrix")
    file.write_bytes(file.read_bytes()[:100])
    found = prepared.check("ldmatrix")
    assert "is damaged" in found["reason"] and "delete it" in found["reason"]
    assert not found["broken"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dry", "--only", "no such check"], "no check has 'no such check' in its name"),
        (["--dry", "--prepared", "nowhere"], "nowhere: nothing was prepared there"),
        (["--prepare", "here", "--architecture", "sm_1"], "unknown architecture 'sm_1'"),
        (["--dry", "--run", "atom", "--prepared", "nowhere"], "nothing was prepared there"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(words, said, tmp_path) -> None:
    old = tmp_path / "first.json"
    old.write_text("results")
    command = [sys.executable, str(FOLDER / "first_run.py"), *words, "--into", str(old)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1 and not done.stdout
    assert old.read_text() == "results"


def test_a_process_that_does_not_start_again(first_run, monkeypatch, tmp_path) -> None:
    script, mark = tmp_path / "worker.py", tmp_path / "mark"
    once = f"import os\nif os.path.exists({str(mark)!r}): raise SystemExit('lost')\n"
    script.write_text(f"{once}open({str(mark)!r}, 'w')\n{WORKER}")
    monkeypatch.setattr(first_run, "__file__", str(script))
    monkeypatch.setitem(first_run.GROUPS, "atom", (1.0, 0.08))
    rows = first_run.run(options(into=str(tmp_path / "first.json")), 3600.0)["checks"]
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
    assert report["groups"] == {"atom": {"good": 1, "bad": 0, "left": 0}}
    assert "1 of 1" in report["verdict"] and report["verdict"] in done.stdout


def test_a_run_that_is_killed_leaves_a_readable_file(tmp_path) -> None:
    """At several moments, while rows are added as fast as they can be."""
    file = tmp_path / "first.json"
    script = f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
from pathlib import Path
from first.report import Report
report = Report(Path({str(file)!r}), {{"machine": {{}}}})
for number in range(10**6):
    report.add({{"name": str(number), "group": "atom", "good": True}})
    if number == 20:
        print("begun", flush=True)
"""
    for moment in range(5):
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        time.sleep(0.013 * moment)
        process.kill()
        process.wait()
        rows = json.loads(file.read_text())["checks"]
        assert [row["name"] for row in rows] == [str(number) for number in range(len(rows))]
        assert len(rows) > 20
