"""Runs, on an emulated CPU, what programs.py has compiled; prints a verdict for each as JSON.

    python -m girih.tests.emulated.guest TASK FOLDER LEVEL SHARD SHARDS

run: the bundles of FOLDER, those of one shard. several: the bundles of FOLDER have code for several
CPUs, of which LEVEL is this one's. compile: every 20th of StableHLO's test programs is compiled
here. refuse, recompile: this CPU cannot run the bundles of FOLDER, which is one error without a
compiler, and else a warning. All but compile and recompile need nothing but girih's runtime.
"""

from __future__ import annotations

import json
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import girih

from ..conformance.compare import Check, agrees

THREADS = (1, 3)
EVERY = 20
ELSEWHERE = ("model large", "model lstm")
Verdicts = Iterator[tuple[str, Callable[[], bool]]]


def run(folder: Path, level: str) -> Verdicts:
    """Each bundle gives what is expected, the same bits on any number of workers."""
    checks = json.loads((folder / "checks.json").read_text())
    for path in sorted(folder.glob("*.girih")):
        if path.stem in checks:
            yield path.stem, lambda path=path: _case(path, checks[path.stem])
        else:
            yield path.stem, lambda path=path: _model(path)


def _case(path: Path, checks: Sequence[Any]) -> bool:
    results = girih.load(path, allow_native=True)()
    pairs = zip(results[::2], results[1::2], strict=True)
    return all(agrees(Check(*check), *pair) for check, pair in zip(checks, pairs, strict=True))


def _model(path: Path) -> bool:
    inputs, wanted, tolerance, signs = pickle.loads(path.with_suffix(".pickle").read_bytes())
    programs = [girih.load(path, allow_native=True, threads=threads) for threads in THREADS]
    first, *others = ([np.asarray(x) for x in program(*inputs)] for program in programs)
    same = all(a.tobytes() == b.tobytes() for o in others for a, b in zip(first, o, strict=True))
    pairs = zip(first, wanted, strict=True)
    return same and all(_near(found, right, tolerance, signs) for found, right in pairs)


def _near(found: Any, wanted: Any, tolerance: float, signs: bool) -> bool:
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return False
    if found.dtype.kind in "biu":
        return np.array_equal(found, wanted)
    wide = np.complex128 if found.dtype.kind == "c" else np.float64
    found, wanted = found.astype(wide), wanted.astype(wide)
    if signs:
        found, wanted = np.abs(found), np.abs(wanted)
    scale = np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0.0)
    return np.allclose(found, wanted, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def several(folder: Path, level: str) -> Verdicts:
    """The code for this CPU is chosen, with a reason, is right, and its kernels can be timed."""
    for path in sorted(folder.glob("*.girih")):
        yield path.stem, lambda path=path: _chosen(path, f"cpu:{level}") and _model(path)


def _chosen(path: Path, target: str) -> bool:
    inputs, *_ = pickle.loads(path.with_suffix(".pickle").read_bytes())
    program = girih.load(path, allow_native=True)
    timed = any(event.duration > 0 for event in program.profile(*inputs).events)
    return program.target == target and bool(program.reason) and timed


def compile_here(folder: Path, level: str) -> Verdicts:
    from ..conformance.programs import CHOSEN, INTERPRETER, read_programs
    from ..conformance.runner import read_cases, verdict

    programs = sorted([*read_programs(CHOSEN), *read_programs(INTERPRETER)])[::EVERY]
    for name, text in programs:
        for case in read_cases(name, text):
            if not case.parallel:
                yield case.name, lambda case=case: _said(verdict(case, "cpu"))


def _said(verdict: str) -> bool:
    if verdict not in ("pass", "wrong"):
        raise AssertionError(verdict)
    return verdict == "pass"


def refuse(folder: Path, level: str) -> Verdicts:
    """Without a compiler, a bundle for other CPUs alone is one UserError with a remedy."""
    sys.modules["llvmlite"] = None  # type: ignore[assignment] - as if it were not installed
    for name in ELSEWHERE:
        yield f"{name} for {folder.name}", lambda name=name: _refused(folder / f"{name}.girih")


def _refused(path: Path) -> bool:
    try:
        girih.load(path, allow_native=True)
    except girih.UserError as error:
        text = str(error)
        return "\n" not in text and "this machine" in text and "girih[cpu]" in text
    return False


def recompile(folder: Path, level: str) -> Verdicts:
    """With a compiler, it is compiled anew, with a warning that says so."""
    for name in ELSEWHERE:
        yield f"{name} for {folder.name}", lambda name=name: _recompiled(folder / f"{name}.girih")


def _recompiled(path: Path) -> bool:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        right = _model(path)
    return right and all("compiled anew" in str(warning.message) for warning in said) and bool(said)


TASKS = {
    "run": run, "several": several, "compile": compile_here, "refuse": refuse,
    "recompile": recompile,
}  # fmt: skip


def main() -> None:
    what, folder, level, shard, shards = sys.argv[1:]
    found = {}
    for number, (name, holds) in enumerate(TASKS[what](Path(folder), level)):
        if number % int(shards) != int(shard):
            continue
        try:
            found[name] = "pass" if holds() else "wrong"
        except Exception as error:  # noqa: BLE001 - any error is a verdict
            found[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
