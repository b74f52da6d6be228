"""How long compiling takes: girih cold and with a warm disk cache, beside XLA:CPU on the same
StableHLO.

    python benchmarks/compile_time.py                     the zoo, and the models of other families
    python benchmarks/compile_time.py --only gpt2,llama

Each model runs in a process of its own, whose compilations take turns: girih with an empty cache
folder ("cold"), girih with the kernels on disk and nothing in memory ("warm"), XLA:CPU on the text
that `write_text` gives. A time is the least of all turns, the first compilation of the process
apart ("first"): it pays for imports and fresh memory, on either side. Reading the framework's
program is not counted on either side. girih's time includes packing the weights; XLA gets them as
arguments. Gates: cold <= 2.5 x XLA, 1.5 x as the geometric mean, warm <= 1 x. Writes
benchmarks/results/compile_time.json when all models were asked for.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from models import WIDER, ZOO, model
from zoo import geometric_mean, machine

RESULTS = Path(__file__).resolve().parent / "results"
COLD_GATE, MEAN_GATE, WARM_GATE = 2.5, 1.5, 1.0


def main() -> int:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="NAMES", help="models, separated by commas")
    parser.add_argument("--turns", type=int, default=4, help="compilations of each kind")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print("RESULT " + json.dumps(measure(options.one, options.turns)))
        return 0
    console = Console(width=150)
    names = options.only.split(",") if options.only else [entry.name for entry in (*ZOO, *WIDER)]
    report: dict[str, Any] = {"machine": machine()}
    rows = report["models"] = [in_own_process(name, console) for name in names]
    console.print(table(rows))
    good = [row for row in rows if "failed" not in row]
    for kind in ("cold", "warm"):
        mean = report[f"{kind}_over_xla"] = geometric_mean(
            [row[f"{kind}_over_xla"] for row in good]
        )
        console.print(f"geometric mean of girih's {kind} time / XLA's: {mean:.2f}")
    if not options.only:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "compile_time.json").write_text(json.dumps(report, indent=1) + "\n")
    within = report["cold_over_xla"] <= MEAN_GATE
    return 0 if within and all(passes(row) for row in rows) else 1


def passes(row: dict[str, Any]) -> bool:
    return (
        "failed" not in row
        and row["cold_over_xla"] <= COLD_GATE
        and row["warm_over_xla"] <= WARM_GATE
    )


def in_own_process(name: str, console: Console) -> dict[str, Any]:
    """The measurements of one model, taken by this file in a fresh process."""
    console.print(f"[dim]{name} ...[/]")
    command = [sys.executable, __file__, *sys.argv[1:], "--one", name]
    done = subprocess.run(command, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    console.print(f"[red]{name}: {last[:300]}[/]")
    return {"name": name, "failed": last[:300]}


def measure(name: str, turns: int) -> dict[str, Any]:
    """Seconds of each kind of compilation, girih's by stage."""
    import girih

    built = model(name).build()
    module = girih.import_model(built.source, *built.inputs)
    compile_xla = xla_compiler(module)
    taken: dict[str, list[tuple[float, dict[str, float]]]] = {"cold": [], "warm": [], "xla": []}
    for _ in range(turns + 1):
        with tempfile.TemporaryDirectory() as folder:
            taken["cold"].append(girih_compile(module, folder))
            taken["warm"].append(girih_compile(module, folder))
        taken["xla"].append(timed(compile_xla))
    row: dict[str, Any] = {"name": name}
    for kind, times in taken.items():
        row[kind], stages = min(times[1:], key=lambda entry: entry[0])
        row[f"{kind}_first"] = times[0][0]
        if stages:
            row[f"{kind}_stages"] = stages
    for kind in ("cold", "warm"):
        row[f"{kind}_over_xla"] = row[kind] / row["xla"]
    return row


def girih_compile(module: Any, folder: str) -> tuple[float, dict[str, float]]:
    """One compilation that knows what is in the folder, and nothing else; seconds by stage."""
    import girih
    from girih.backends.cpu import build

    build.CACHE.kernels.clear()
    begun: list[tuple[str, float]] = []
    options = girih.Options(cache=folder)

    def compile() -> Any:
        return girih.compile(
            module,
            options=options,
            progress=lambda stage: begun.append((stage, time.perf_counter())),
        )

    total, _ = timed(compile)
    begun.append(("end", time.perf_counter()))
    stages: dict[str, float] = {}
    for (stage, begin), (_, end) in zip(begun, begun[1:], strict=False):
        stages[stage] = stages.get(stage, 0.0) + end - begin
    return total, {stage: seconds for stage, seconds in stages.items() if seconds > 1e-3}


def xla_compiler(module: Any) -> Callable[[], Any]:
    """A function that compiles the module's StableHLO with XLA:CPU."""
    import jax
    import jax.extend.backend
    from jaxlib import xla_client

    from girih.frontends.stablehlo.write import write_text

    jax.config.update("jax_enable_x64", True)  # torch's indices have 64 bits
    text = write_text(module).text
    backend = jax.extend.backend.get_backend("cpu")
    devices = xla_client.DeviceList(tuple(backend.local_devices()[:1]))
    return lambda: backend.compile_and_load(text, devices, xla_client.CompileOptions())


def timed(action: Callable[[], Any]) -> tuple[float, dict[str, float]]:
    gc.collect()
    started = time.perf_counter()
    action()
    return time.perf_counter() - started, {}


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table(title="seconds to compile")
    headings = ("model", "cold", "warm", "XLA", "cold/XLA", "warm/XLA", "first", "XLA first")
    for heading in (*headings, "cold's largest stages"):
        shown.add_column(heading, justify="left" if heading in ("model", "verdict") else "right")
    for row in rows:
        if "failed" in row:
            shown.add_row(row["name"], "failed")
            continue
        stages = sorted(row["cold_stages"].items(), key=lambda item: -item[1])[:3]
        shown.add_row(
            row["name"],
            *(f"{row[kind]:.2f}" for kind in ("cold", "warm", "xla")),
            *(f"{row[f'{kind}_over_xla']:.2f}" for kind in ("cold", "warm")),
            *(f"{row[f'{kind}_first']:.2f}" for kind in ("cold", "xla")),
            ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in stages),
        )
    return shown


if __name__ == "__main__":
    sys.exit(main())
