"""The first run on a GPU: what works, what fails first, and where it differs from the simulator.

    python benchmarks/gpu/first_run.py --prepare FOLDER      without a GPU: code, inputs, results
    python benchmarks/gpu/first_run.py --prepared FOLDER     on the GPU, at most 9 minutes
    python benchmarks/gpu/first_run.py --resume ...          goes on where a run was ended
    python benchmarks/gpu/first_run.py --dry                 through the simulator, without a GPU
    python benchmarks/gpu/first_run.py --only wgmma          checks whose name has the word
    python benchmarks/gpu/first_run.py --run NAME            one check here, for a debugger

It takes the first GPU of CUDA_VISIBLE_DEVICES. Without --prepared all is compiled there.

Single instructions come first (each copy, swizzle, descriptor, matrix type), then kernels and all
operations, then speeds beside torch's libraries, what launches, caches and memory take, the
compiler's choices beside others (tiles, stages, clusters, order of tiles), whole programs, models,
and some kernels under compute-sanitizer where that is on the PATH. Each group has its share of the
time. Checks run one after another in a process of their own, which is ended and started again where
one hangs, crashes or breaks the GPU's context. benchmarks/results/first.json (first-dry.json) gets
each row at once: a verdict that names what fails first, and every check.

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
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
# Module, distribution, least version, and whether only a GPU needs it.
NEEDED = (
    ("numpy", "numpy", (1, 26), False), ("google.protobuf", "protobuf", (6, 31), False),
    ("ml_dtypes", "ml_dtypes", (0, 5), False), ("safetensors", "safetensors", (0, 5), False),
    ("llvmlite.binding", "llvmlite", (0, 48), False),
    ("cuda.bindings.driver", "cuda-bindings", (12, 8), True),
)  # fmt: skip
SEEN = ("torch", "jax", "jaxlib", "triton")
# Groups in their order: the seconds that one check may take, and the group's share of all the time.
# What a group leaves goes to those behind it.
GROUPS = {
    "atom": (30.0, 0.08), "kernel": (60.0, 0.20), "speed": (90.0, 0.22),
    "calibration": (60.0, 0.08), "sweep": (90.0, 0.10), "program": (90.0, 0.08),
    "model": (120.0, 0.12), "sanitizer": (60.0, 0.12),
}  # fmt: skip
SANITIZED = ("pipeline: clusters", "block: tails", "operation: sort")
TOOLS = ("memcheck", "racecheck", "synccheck")


def main() -> int:
    options = arguments()
    find_girih()
    if options.worker:
        return serve(options)
    lacking = missing(options.dry or bool(options.prepare))
    if lacking:
        print(lacking, file=sys.stderr)
        return 2
    from girih.hlo.errors import UserError

    try:
        if options.prepare:
            return prepare(options)
        if options.run:
            return alone(options)
        report = run(options, 60 * options.minutes)
    except (UserError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{report['verdict']}\nwritten: {results_file(options)}")
    return 0 if report["good"] else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry", action="store_true", help="through the simulator")
    parser.add_argument("--architecture", default="sm_90a", help="of --dry and --prepare")
    parser.add_argument("--prepare", metavar="FOLDER", help="make what a run takes, and end")
    parser.add_argument("--prepared", metavar="FOLDER", help="take what --prepare made")
    parser.add_argument("--resume", action="store_true", help="leave out what the file has")
    parser.add_argument("--only", metavar="WORD", default="", help="checks with it in their name")
    parser.add_argument("--minutes", type=float, default=9.0, help="in all; the rest is not run")
    parser.add_argument("--into", metavar="FILE", help="where the verdict goes")
    parser.add_argument("--run", metavar="NAME", help="one check, in this process")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def results_file(options: argparse.Namespace) -> Path:
    if options.into:
        return Path(options.into)
    return RESULTS / ("first-dry.json" if options.dry else "first.json")


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


def prepare(options: argparse.Namespace) -> int:
    """Make what every check takes; what is there already stays."""
    from first.checks import Bench
    from first.prepared import Folder

    bench = Bench(True, options.architecture, preparing=True)
    folder = Folder.create(Path(options.prepare), options.architecture)
    checks = [c for c in bench.checks.values() if c.prepare and options.only in c.name]
    for number, check in enumerate(checks, 1):
        if not folder.has(check.name) and check.prepare is not None:
            check.prepare(folder)
            print(f"{number} of {len(checks)}: {check.name}", flush=True)
    size = sum(file.stat().st_size for file in folder.path.iterdir())
    print(f"{len(checks)} checks, {size / 1e6:.0f} MB in {folder.path}")
    return 0


def alone(options: argparse.Namespace) -> int:
    from first.checks import Bench

    bench = Bench(options.dry, options.architecture, options.prepared)
    if options.run not in bench.checks:
        print(f"there is no check {options.run!r}", file=sys.stderr)
        return 2
    found = bench.check(options.run)
    print(json.dumps(found))
    return 0 if found.get("good", True) else 1


def serve(options: argparse.Namespace) -> int:
    """Answers each name on the input with a line of facts; the first line is about the machine."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed

    def answer(facts: dict[str, Any]) -> None:
        print(json.dumps(facts), file=answers, flush=True)

    from first.checks import Bench
    from girih.hlo.errors import UserError

    try:
        bench = Bench(options.dry, options.architecture, options.prepared)
    except UserError as error:
        answer({"reason": str(error)})
        return 1
    checks = [(check.name, check.group) for check in bench.checks.values()]
    answer({"machine": machine(bench), "checks": checks})
    for line in sys.stdin:
        found = bench.check(line.rstrip("\n"))
        answer(found)
        if found.get("broken"):
            os._exit(0)  # a context may be lost; the next check gets a fresh one
    return 0


def machine(bench: Any) -> dict[str, Any]:
    device = bench.device
    found: dict[str, Any] = {
        "device": device.name, "target": bench.target.name, "compiler": bench.sources,
        "capability": list(device.capability), "limits": list(device.limits),
    }  # fmt: skip
    if not bench.dry:
        query = ["nvidia-smi", "--query-gpu=driver_version,power.limit,clocks.max.sm"]
        try:
            answer = subprocess.run(
                [*query, "--format=csv,noheader"], capture_output=True, text=True, timeout=20
            ).stdout
            found["driver"] = answer.strip().splitlines()[0]
        except (OSError, IndexError, subprocess.TimeoutExpired):
            found["driver"] = None
    return found


# The process that watches.


class Worker:
    """The process that runs checks."""

    def __init__(self, options: argparse.Namespace) -> None:
        command = [sys.executable, "-X", "faulthandler", __file__, "--worker"]
        command += ["--architecture", options.architecture]
        if options.prepared:
            command += ["--prepared", options.prepared]
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


def run(options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """The report of all checks; ValueError where there is nothing to run, or to go on with."""
    from first.report import Report

    started = time.monotonic()
    versions = {one: _version(one) for _, one, _, _ in NEEDED} | {n: _version(n) for n in SEEN}
    report = Report(
        results_file(options),
        {
            "date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": _commit(),
            "python": platform.python_version(), "packages": versions,
        },
    )  # fmt: skip
    worker = Worker(options)
    hello = worker.answer(120.0)
    if "checks" not in hello:
        raise ValueError(f"nothing was run: {hello['reason']}")
    if not any(options.only in name for name, _ in hello["checks"]):
        raise ValueError(f"nothing was run: no check has {options.only!r} in its name")
    report.facts["machine"] = hello["machine"]
    if options.resume:
        report.resume()
    print(f"{hello['machine']['device']} as {hello['machine']['target']}", flush=True)
    report.write(ended=False)
    left = [
        (name, group)
        for name, group in hello["checks"]
        if options.only in name and name not in report.done
    ]
    shares = list(GROUPS)
    ends = {
        group: started + seconds * sum(GROUPS[one][1] for one in shares[: place + 1])
        for place, group in enumerate(shares)
    }
    for row in _checked(left, options, worker, ends):
        report.add(row)
    known = {name for name, _ in hello["checks"] if options.only in name}
    for row in _sanitized(known, report.done, options, started + seconds):
        report.add(row)
    report.facts["seconds"] = round(time.monotonic() - started, 1)
    report.write(ended=True)
    return report.as_json(ended=True)


def _commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty=+"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _checked(
    rows: Sequence[tuple[str, str]],
    options: argparse.Namespace,
    worker: Worker,
    ends: Mapping[str, float],
) -> Iterator[dict[str, Any]]:
    for name, group in rows:
        left = ends[group] - time.monotonic()
        if left < 1.0:
            yield {"name": name, "group": group, "not_run": "no time was left for its group"}
            continue
        if worker.process.poll() is not None:
            worker = Worker(options)
            hello = worker.answer(120.0)
            if "checks" not in hello:
                said = f"no process for it: {hello['reason']}"
                yield {"name": name, "group": group, "good": False, "reason": said}
                continue
        found = worker.ask(name, min(GROUPS[group][0], max(left, 5.0)))
        found = {"name": name, "group": group, **found}
        if not found.get("good", True):
            print(f"FAILS  {name}: {found['reason']}", flush=True)
            if found.get("broken"):
                worker.stop()
        yield found
    worker.stop()


def _sanitized(
    known: Set[str], done: Set[str], options: argparse.Namespace, end: float
) -> Iterator[dict[str, Any]]:
    """Some kernels under compute-sanitizer."""
    command = shutil.which("compute-sanitizer")
    for tool, name in product(TOOLS, SANITIZED):
        row: dict[str, Any] = {"name": f"{tool} of {name}", "group": "sanitizer"}
        left = end - time.monotonic()
        if row["name"] in done or name not in known:
            continue
        if options.dry or command is None:
            row["not_run"] = "compute-sanitizer is not on the PATH, or it is a dry run"
        elif left < 10.0:
            row["not_run"] = "no time was left"
        else:
            row |= _under(tool, command, name, options, min(GROUPS["sanitizer"][0], left))
        yield row


def _under(
    tool: str, command: str, name: str, options: argparse.Namespace, seconds: float
) -> dict[str, Any]:
    words = [command, "--tool", tool, "--error-exitcode", "77", "--print-limit", "3"]
    words += [sys.executable, __file__, "--run", name]
    if options.prepared:
        words += ["--prepared", options.prepared]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"not_run": "it took too long"}
    if done.returncode == 0:
        return {"good": True}
    said = [line for line in done.stdout.splitlines() if line.startswith("=========")]
    reason = " | ".join(said[1:4])
    print(f"FAILS  {tool} of {name}: {reason}", flush=True)
    return {"good": False, "reason": reason, "said": said[:30]}


if __name__ == "__main__":
    sys.exit(main())
