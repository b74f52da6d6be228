"""The first run on a GPU: what works, what fails first, and where it differs from the simulator.

    python benchmarks/gpu/first_run.py                 on the GPU, at most 6 minutes
    python benchmarks/gpu/first_run.py --dry           the same through the simulator, without one
    python benchmarks/gpu/first_run.py --only wgmma    checks whose name has the word
    python benchmarks/gpu/first_run.py --run NAME      one check in this process, for a debugger

It takes the first GPU of CUDA_VISIBLE_DEVICES.

Single instructions come first (each copy, swizzle, descriptor, matrix type), then kernels, then all
operations, then whole programs and models. Checks run one after another in a process of their own,
which is ended and started again where one hangs, crashes or breaks the GPU's context. Where
compute-sanitizer is on the PATH, three kernels run under it. Writes benchmarks/results/first.json
(first-dry.json): a verdict that names what fails first, and every check.

Needs no installation of girih, nor torch, JAX or a network: numpy, protobuf, ml_dtypes,
safetensors, llvmlite, and, on a GPU, cuda-bindings (with cuda-pathfinder). torch and JAX are tried
where they are.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
# Module, distribution, least version, and whether only a GPU needs it.
NEEDED = (
    ("numpy", "numpy", (1, 26), False), ("google.protobuf", "protobuf", (6, 31), False),
    ("ml_dtypes", "ml_dtypes", (0, 5), False), ("safetensors", "safetensors", (0, 5), False),
    ("llvmlite.binding", "llvmlite", (0, 45), False),
    ("cuda.bindings.driver", "cuda-bindings", (12, 8), True),
)  # fmt: skip
SEEN = ("torch", "jax", "jaxlib", "triton")
SECONDS = {"atom": 30.0, "kernel": 60.0, "program": 90.0, "model": 120.0}  # of one check
SANITIZED = ("pipeline: clusters", "block: tails", "operation: sort")
TOOLS = ("memcheck", "racecheck", "synccheck")


def main() -> int:
    options = arguments()
    find_girih()
    if options.worker:
        return serve(options)
    lacking = missing(options.dry)
    if lacking:
        print(lacking, file=sys.stderr)
        return 2
    if options.run:
        return Bench(options).alone(options.run)
    started = time.monotonic()
    report = run(options, started + 60 * options.minutes)
    report["seconds"] = round(time.monotonic() - started, 1)
    name = "first-dry.json" if options.dry else "first.json"
    file = Path(options.into) if options.into else RESULTS / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{report['verdict']}\nwritten: {file}")
    return 0 if report["good"] else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry", action="store_true", help="through the simulator")
    parser.add_argument("--architecture", default="sm_90a", help="of --dry")
    parser.add_argument("--only", metavar="WORD", default="", help="checks with it in their name")
    parser.add_argument("--minutes", type=float, default=6.0, help="in all; the rest is not run")
    parser.add_argument("--into", metavar="FILE", help="where the verdict goes")
    parser.add_argument("--run", metavar="NAME", help="one check, in this process")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


# What has to be there.


def find_girih() -> None:
    """girih as it is installed, else from this checkout, whatever its folder is called."""
    if importlib.util.find_spec("girih") is not None:
        return
    spec = importlib.util.spec_from_file_location(
        "girih", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["girih"] = module
    spec.loader.exec_module(module)


def missing(dry: bool) -> str:
    """One sentence about all packages that are not there, or are too old; empty if none."""
    lacking = []
    for module, distribution, least, gpu in NEEDED:
        if gpu and dry:
            continue
        wanted = f"{distribution}>={'.'.join(map(str, least))}"
        try:
            importlib.import_module(module)
        except ImportError as error:
            lacking.append(f"{wanted} ({error})")
            continue
        found = _version(distribution)
        numbers = tuple(int(n) for n in (found or "0").split(".")[: len(least)] if n.isdigit())
        if found and numbers < least:
            lacking.append(f"{wanted} (it is {found})")
    if not lacking:
        return ""
    return (
        f"this run needs {', '.join(lacking)}; for a machine without a network, bring the wheels: "
        "pip download --no-deps NAME, then pip install --no-index --no-deps FILES"
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


# The checks, in the process that runs them.


class Bench:
    """A device, and the checks that it can run: name -> (group, function that gives the facts)."""

    def __init__(self, options: argparse.Namespace) -> None:
        from first import atoms, kernels, programs

        from girih.backends.nvidia.simulator.driver import SimulatedGpu
        from girih.backends.nvidia.target import ARCHITECTURES, target
        from girih.runtime.devices.architectures import target_for
        from girih.runtime.devices.driver import OutOfMemory

        self.dry = options.dry
        if self.dry:
            name = options.architecture
        else:
            from girih.runtime.devices.cuda import find_gpus

            self.device = find_gpus()[0]
            name = target_for(self.device.capability).partition(":")[2]
            if name not in ARCHITECTURES:  # a newer one of the same family runs older PTX
                name = "sm_80"
        self.target = target(name)
        architecture = self.target.architecture
        if self.dry:
            self.device = SimulatedGpu(architecture, OutOfMemory, "eager")
        self.model = SimulatedGpu(architecture, OutOfMemory, "lazy", 1)
        self.checks: dict[str, tuple[str, Any]] = {}
        for label, make in atoms.atoms(self.target):
            self.checks[label] = "atom", lambda make=make: self.trials([("", make(self.target))])
        for label, make in kernels.everything(self.target):
            self.checks[label] = "kernel", lambda make=make: self.trials(make(self.target))
        family = "ptx-sim" if self.dry else "nvidia"
        for label, check in programs.everything(not self.dry):
            group = "model" if label.startswith("model") else "program"
            self.checks[label] = (
                group, lambda check=check: {"error": check(f"{family}:{name}")}
            )  # fmt: skip

    def machine(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "device": self.device.name, "target": self.target.name,
            "capability": list(self.device.capability), "limits": list(self.device.limits),
        }  # fmt: skip
        if not self.dry:
            query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            try:
                answer = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout
                found["driver"] = answer.strip().splitlines()[0]
            except (OSError, IndexError, subprocess.TimeoutExpired):
                found["driver"] = None
        return found

    def trials(self, trials: Any) -> dict[str, Any]:
        """Kernels on the device beside what they have to give, and beside the simulator."""
        from first.trial import error, run

        worst, apart, count = 0.0, 0.0, 0
        for label, trial in trials:
            count += 1
            place = f"{label}: " if label else ""
            found = run(self.device, self.target, trial)
            off = error(found, trial.wanted)
            modelled = run(self.model, self.target, trial)
            between = error(found, modelled)
            worst, apart = max(worst, off), max(apart, between)
            if not off <= trial.tolerance:
                said = f"{place}off by {off:.2e} of the largest number, the simulator by "
                said += f"{error(modelled, trial.wanted):.2e}; {_where(found, trial.wanted)}"
                return {"good": False, "reason": said, "error": off}
        return {"error": worst, "beside_simulator": apart, "kernels": count}

    def check(self, name: str) -> dict[str, Any]:
        """The facts of one check; a failure of any kind is one of them."""
        group, function = self.checks[name]
        started = time.monotonic()
        try:
            found = {"good": True, **function()}
        except Exception as error:  # noqa: BLE001  # the next checks shall run
            lines = str(error).strip().splitlines() or [""]
            said = f"{type(error).__name__}: {' '.join(lines[:3])}"[:600]
            frame = traceback.extract_tb(error.__traceback__)[-1]
            known = type(error).__name__ == "Wrong" or isinstance(error, ImportError)
            found = {"good": False, "reason": said, "broken": not known}
            found["at"] = f"{Path(frame.filename).name}:{frame.lineno}"
            if isinstance(error, ImportError) and not (error.name or "").startswith("girih"):
                found = {"unavailable": said}
        return {
            "name": name, "group": group, **found, "seconds": round(time.monotonic() - started, 2)
        }  # fmt: skip

    def alone(self, name: str) -> int:
        if name not in self.checks:
            print(f"there is no check {name!r}", file=sys.stderr)
            return 2
        found = self.check(name)
        print(json.dumps(found))
        return 0 if found.get("good", True) else 1


def serve(options: argparse.Namespace) -> int:
    """Answers each name on the input with a line of facts; the first line is about the machine."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed

    def answer(facts: dict[str, Any]) -> None:
        print(json.dumps(facts), file=answers, flush=True)

    from girih.hlo.errors import UserError

    try:
        bench = Bench(options)
    except UserError as error:
        answer({"reason": str(error)})
        return 1
    checks = [(name, group) for name, (group, _) in bench.checks.items()]
    answer({"machine": bench.machine(), "checks": checks})
    for line in sys.stdin:
        found = bench.check(line.rstrip("\n"))
        answer(found)
        if found.get("broken"):
            os._exit(0)  # a context may be lost; the next check gets a fresh one
    return 0


def _where(found: Sequence[Any], wanted: Sequence[Any]) -> str:
    """The first place where two lists of arrays differ much."""
    import numpy as np

    for number, (got, right) in enumerate(zip(found, wanted, strict=True)):
        a, b = np.asarray(got, np.complex128), np.asarray(right, np.complex128)
        scale = np.abs(b[np.isfinite(b)]).max(initial=1e-30)
        apart = ~(np.abs(a - b) <= 1e-2 * scale) & ~(np.isnan(a) & np.isnan(b)) & (a != b)
        if apart.any():
            place = tuple(int(i) for i in np.argwhere(apart)[0])
            count = int(apart.sum())
            return (
                f"result {number}: {count} of {a.size} elements, first {list(place)}: "
                f"{got[place]} instead of {right[place]}"
            )
    return "all a little"


# The process that watches.


class Worker:
    """The process that runs checks."""

    def __init__(self, options: argparse.Namespace) -> None:
        command = [sys.executable, "-X", "faulthandler", __file__, "--worker"]
        command += ["--architecture", options.architecture]
        command += ["--dry"] * options.dry
        self.said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, bufsize=0
        )
        self.selector = selectors.DefaultSelector()
        assert self.process.stdout is not None
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        self.rest = b""

    def answer(self, seconds: float) -> dict[str, Any]:
        """The next line; otherwise why there is none, and the process is gone."""
        assert self.process.stdout is not None
        end = time.monotonic() + seconds
        while b"\n" not in self.rest:
            if not self.selector.select(max(0.0, end - time.monotonic())):
                self.stop()
                return {"good": False, "reason": f"it hangs: no answer in {seconds:.0f} s"}
            data = os.read(self.process.stdout.fileno(), 1 << 20)
            if not data:
                code = self.process.wait()
                self.stop()
                self.said.seek(0)
                lines = self.said.read().strip().splitlines()[-6:]
                return {"good": False, "reason": f"the process ended ({code}): {' | '.join(lines)}"}
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line)

    def ask(self, name: str, seconds: float) -> dict[str, Any]:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # `answer` says how it ended
            self.process.stdin.write(f"{name}\n".encode())
        return self.answer(seconds)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.selector.close()


def run(options: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """The report of all checks."""
    versions = {one: _version(one) for _, one, _, _ in NEEDED} | {n: _version(n) for n in SEEN}
    report: dict[str, Any] = {
        "good": False, "verdict": "", "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(), "packages": versions,
    }  # fmt: skip
    worker = Worker(options)
    hello = worker.answer(120.0)
    if "checks" not in hello:
        report["verdict"] = f"no device: {hello['reason']}"
        return report
    report["machine"] = hello["machine"]
    print(f"{hello['machine']['device']} as {hello['machine']['target']}")
    rows = [(name, group) for name, group in hello["checks"] if options.only in name]
    report["checks"] = list(_checked(rows, options, worker, deadline))
    report["sanitizer"] = list(_sanitized(rows, options, deadline))
    return report | _verdict(report)


def _checked(
    rows: Sequence[tuple[str, str]], options: argparse.Namespace, worker: Worker, deadline: float
) -> Iterator[dict[str, Any]]:
    for name, group in rows:
        left = deadline - time.monotonic()
        if left < 5.0:
            yield {"name": name, "group": group, "not_run": "no time was left"}
            continue
        if worker.process.poll() is not None:
            worker = Worker(options)
            hello = worker.answer(120.0)
            if "checks" not in hello:
                said = f"no process for it: {hello['reason']}"
                yield {"name": name, "group": group, "good": False, "reason": said}
                continue
        found = worker.ask(name, min(SECONDS[group], left))
        found = {"name": name, "group": group, **found}
        if not found.get("good", True):
            print(f"FAILS  {name}: {found['reason']}", flush=True)
            if found.get("broken"):
                worker.stop()
        yield found
    worker.stop()


def _sanitized(
    rows: Sequence[tuple[str, str]], options: argparse.Namespace, deadline: float
) -> Iterator[dict[str, Any]]:
    """Some kernels under compute-sanitizer."""
    command = shutil.which("compute-sanitizer")
    known = {name for name, _ in rows}
    for tool in TOOLS:
        for name in SANITIZED:
            row = {"tool": tool, "name": name}
            if options.dry or command is None:
                yield {**row, "not_run": "compute-sanitizer is not on the PATH, or it is a dry run"}
                continue
            left = deadline - time.monotonic()
            if name not in known or left < 10.0:
                yield {**row, "not_run": "not chosen, or no time was left"}
                continue
            words = [command, "--tool", tool, "--error-exitcode", "77", "--print-limit", "3"]
            words += [sys.executable, __file__, "--run", name]
            try:
                seconds = min(60.0, left)
                done = subprocess.run(words, capture_output=True, text=True, timeout=seconds)
            except subprocess.TimeoutExpired:
                yield {**row, "not_run": "it took too long"}
                continue
            said = [line for line in done.stdout.splitlines() if line.startswith("=========")]
            good = done.returncode == 0
            if not good:
                print(f"FAILS  {tool} of {name}: {' | '.join(said[1:4])}", flush=True)
            yield {**row, "good": good, "said": [] if good else said[:30]}


def _verdict(report: dict[str, Any]) -> dict[str, Any]:
    rows = [*report["checks"], *report["sanitizer"]]
    failures = [row for row in rows if not row.get("good", True)]
    good = sum(row.get("good", False) for row in rows)
    left = sum("good" not in row for row in rows)
    said = f"{good} of {len(rows)} checks are good, {len(failures)} fail, {left} did not run"
    if failures:
        first = failures[0]
        what = f"{first['tool']} of {first['name']}" if "tool" in first else first["name"]
        said += f"; the first that fails is '{what}': {first.get('reason') or first.get('said')}"
    groups: dict[str, dict[str, int]] = {}
    for row in rows:
        counts = groups.setdefault(row.get("group", "sanitizer"), {"good": 0, "bad": 0, "left": 0})
        counts["left" if "good" not in row else "good" if row["good"] else "bad"] += 1
    return {
        "good": not failures and good > 0, "verdict": said, "groups": groups,
        "first_failure": failures[0] if failures else None,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
