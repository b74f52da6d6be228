"""The zoo, girih beside torch eager, torch.compile, XLA:CPU and ONNX Runtime.

    python benchmarks/zoo.py                      all models, all engines
    python benchmarks/zoo.py --check              only the numbers: girih against the framework
    python benchmarks/zoo.py --only gpt2,llama --engines girih,xla
    python benchmarks/zoo.py --wider              the models of other families instead
    python benchmarks/zoo.py --batch 8            the torch models with 8 of each input
    python benchmarks/zoo.py --bf16               in bfloat16, beside torch's and OpenVINO's ways

Each model runs in a process of its own. There, the engines take turns in short rounds, so that a
change of the machine's clock or load meets all of them; a latency is the median over all rounds,
and a ratio the median of the ratios in each round. Writes
benchmarks/results/zoo.json (zoo-wider.json, zoo-check.json, zoo-batch8.json, zoo-bf16.json) when
all models were asked for; with `--save`, those of `--only` take the place of older ones there,
each with its commit. "best" is the fastest peer.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pickle
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from models import TOLERANCE, TOLERANCE_BF16, WIDER, ZOO, model, relative_error

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
RESULTS = HERE / "results"


def main() -> int:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    options = arguments()
    OUT.mkdir(exist_ok=True)
    if options.one:
        print("RESULT " + json.dumps(measure(options.one, options)))
        return 0
    console = Console(width=150)
    several = options.batch > 1 or options.bf16
    family = WIDER if options.wider else ZOO
    every = [entry.name for entry in family if entry.framework == "torch" or not several]
    names = options.only.split(",") if options.only else every
    rows: list[dict[str, Any]] = []
    described = machine()
    for name in names:
        console.print(f"[dim]{name}: {model(name).about} ...[/]")
        rows.append({**in_own_process(name), "commit": described["commit"]})
        if "failed" in rows[-1]:
            console.print(f"[red]{name}: {rows[-1]['failed']}[/]")
    file = file_of(options)
    if options.save and file.exists():
        measured = {row["name"]: row for row in [*json.loads(file.read_text())["models"], *rows]}
        rows = [measured[name] for name in every if name in measured]
    report: dict[str, Any] = {"machine": described, "batch": options.batch, "models": rows}
    console.print(check_table(rows) if options.check else speed_table(rows, options))
    if not options.check:
        for peer in ("over_xla", "over_best"):
            mean = geometric_mean([row.get(peer) for row in rows])
            report[f"geometric_mean_{peer}"] = mean
            named = "XLA" if peer == "over_xla" else "the best peer"
            console.print(f"geometric mean of the time of {named} / girih's: {mean:.2f}")
    if options.save or not options.only:
        RESULTS.mkdir(exist_ok=True)
        file.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(row.get("good") for row in rows) else 1


def file_of(options: argparse.Namespace) -> Path:
    """Where results of such a run are kept."""
    wider = "-wider" if options.wider else ""
    kind = "-check" if options.check else "-bf16" if options.bf16 else ""
    batch = f"-batch{options.batch}" if options.batch > 1 else ""
    return RESULTS / f"zoo{wider}{kind}{batch}.json"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare numbers, measure no speed")
    parser.add_argument("--wider", action="store_true", help="the models of other families")
    parser.add_argument("--only", metavar="NAMES", help="models, separated by commas")
    parser.add_argument("--save", action="store_true", help="with --only: into the file of all")
    parser.add_argument("--engines", metavar="NAMES", help="engines, separated by commas")
    parser.add_argument("--batch", type=int, default=1, help="how many of each input")
    parser.add_argument("--bf16", action="store_true", help="the engines' bfloat16 ways")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each engine")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def in_own_process(name: str) -> dict[str, Any]:
    """The measurements of one model, taken by this file in a fresh process."""
    command = [sys.executable, __file__, *sys.argv[1:], "--one", name]
    done = subprocess.run(command, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return {"name": name, "failed": last[:300]}


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Everything about one model as a JSON-able dictionary."""
    with tempfile.TemporaryDirectory(dir=OUT) as folder:
        return measure_in(Path(folder), name, options)


def measure_in(folder: Path, name: str, options: argparse.Namespace) -> dict[str, Any]:
    from engines import BF16_ENGINES, ENGINES, Unavailable, flat, numpy_inputs

    built = model(name).build().repeated(options.batch)
    expected = built.reference()
    engines = BF16_ENGINES if options.bf16 else ENGINES
    chosen = ["girih"] if options.check else list(engines)
    if options.engines:
        chosen = options.engines.split(",")
    prepared, row = {}, {"name": name, "engines": {}}
    own_name = chosen[0]
    for engine in chosen:
        try:
            prepared[engine] = engines[engine](built, folder, name)
        except Unavailable as reason:
            row["engines"][engine] = {"unavailable": str(reason)}
            continue
        entry = {"compile_seconds": prepared[engine].compile_seconds, **prepared[engine].facts}
        try:
            results = flat(prepared[engine].call())
        except Exception as error:
            if engine == own_name:
                raise
            del prepared[engine]
            reason = str(error).strip().splitlines()[-1][:160]
            row["engines"][engine] = {"unavailable": f"its call failed: {reason}"}
            continue
        # an engine may give fewer results than the framework names; those that it gives must agree
        errors = [relative_error(a, b) for a, b in zip(results, expected, strict=False)]
        entry["error"] = max(errors, default=math.inf)
        entry["results"] = len(results)
        row["engines"][engine] = entry
    if own_name in prepared and own_name.startswith("girih"):
        own = row["engines"][own_name]
        gate = TOLERANCE_BF16 if options.bf16 else TOLERANCE
        row["good"] = own["error"] <= gate and own["results"] == len(expected)
        inputs = folder / "inputs.pickle"
        inputs.write_bytes(pickle.dumps(numpy_inputs(built)))
        own["first_result"] = first_result(own.pop("bundle"), inputs)
    if not options.check:
        rounds = latencies(prepared, options.seconds)
        for engine, times in rounds.items():
            row["engines"][engine]["milliseconds"] = float(np.median(times)) * 1e3
        # Beside the own time of the same round, whatever the machine's clock was then.
        own_times = np.array(rounds.pop(own_name))
        ratios = {peer: float(np.median(times / own_times)) for peer, times in rounds.items()}
        row["over_own"] = ratios
        if "xla" in ratios:
            row["over_xla"] = ratios["xla"]
        if ratios:
            row["best"] = min(ratios, key=ratios.__getitem__)
            row["over_best"] = ratios[row["best"]]
    return row


def latencies(prepared: dict[str, Any], seconds: float) -> dict[str, list[float]]:
    """Seconds of each engine by round: the median of the calls that it made in a round. Rounds are
    short, since what else runs on a host changes its speed for seconds or minutes. Where calls
    take more than half of a second, fewer rounds are enough: at least 7."""
    started = time.perf_counter()
    for entry in prepared.values():
        entry.call()
    all_once = time.perf_counter() - started
    rounds = min(20, max(7, round(10 * len(prepared) / all_once)))
    times: dict[str, list[float]] = {engine: [] for engine in prepared}
    for _ in range(rounds):
        for engine, entry in prepared.items():
            time.sleep(0.02)  # the threads of the engine before go to sleep
            entry.call()
            taken = []
            finish = time.perf_counter() + seconds / rounds
            while not taken or time.perf_counter() < finish:
                started = time.perf_counter()
                entry.call()
                taken.append(time.perf_counter() - started)
            times[engine].append(statistics.median(taken))
    return times


def first_result(bundle: str, inputs: Path) -> dict[str, float]:
    """Seconds to import girih, to load and to the first result, in a fresh process."""
    command = [sys.executable, str(HERE / "first_result.py"), bundle, str(inputs)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def geometric_mean(ratios: list[float | None]) -> float:
    known = [ratio for ratio in ratios if ratio]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else math.nan


def commit() -> str:
    """The commit that is measured; with a plus where files differ from it."""
    result = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], cwd=Path(__file__).parent,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return result.stdout.strip()


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    packages = ("girih", "torch", "jax", "onnxruntime", "llvmlite", "numpy", "transformers")
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        named = [line for line in information.read_text().splitlines() if "model name" in line]
        cpu = named[0].partition(":")[2].strip() if named else cpu
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
        "load_average": os.getloadavg()[0],  # above the number of cores, other work was running
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in packages},
    }


def check_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title=f"girih against the framework; the gate is {TOLERANCE:g}")
    for heading in ("model", "max error", "compile s", "bundle MB", "kernels", "verdict"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row in rows:
        own = row.get("engines", {}).get("girih")
        if own is None:
            table.add_row(row["name"], "", "", "", "", "[red]failed[/]")
            continue
        table.add_row(
            row["name"],
            f"{own['error']:.1e}",
            f"{own['compile_seconds']:.1f}",
            f"{own['bundle_bytes'] / 1e6:.1f}",
            str(own["kernels"]),
            "[green]good[/]" if row["good"] else "[red]wrong[/]",
        )
    return table


def speed_table(rows: list[dict[str, Any]], options: argparse.Namespace) -> Table:
    kind = "bfloat16 products and activations" if options.bf16 else "fp32"
    table = Table(title=f"median milliseconds, batch {options.batch}, {kind}")
    peers = list(dict.fromkeys(peer for row in rows for peer in row.get("engines", {}))) or [""]
    more = ("best\n/ girih", "compile\ns", "first\ns", "bundle\nMB", "temp\nMB", "XLA's\nMB")
    headings = (peer.replace(".", "\n.").replace("-", "\n") for peer in peers)
    for heading in ("model", *headings, *more):
        table.add_column(heading, justify="left" if heading == "model" else "right", no_wrap=True)
    for row in rows:
        engines = row.get("engines", {})
        own, xla = engines.get(peers[0], {}), engines.get("xla", {})
        first = own.get("first_result", {})
        table.add_row(
            row["name"],
            *(number(engines.get(peer, {}).get("milliseconds"), 2) for peer in peers),
            number(row.get("over_best"), 2),
            number(own.get("compile_seconds"), 1),
            number(first.get("load", 0) + first.get("first", 0) if first else None, 2),
            number(own.get("bundle_bytes"), 1, 1e6),
            number(own.get("temporary_bytes"), 2, 1e6),
            number(xla.get("temporary_bytes"), 2, 1e6),
        )
    return table


def number(value: float | None, digits: int, unit: float = 1.0) -> str:
    return "" if value is None else f"{value / unit:.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
