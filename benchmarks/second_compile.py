"""A second compile of an unchanged program beside the first, which leaves it in the cache folder.

    python benchmarks/second_compile.py                     the zoo and the training steps
    python benchmarks/second_compile.py --only gpt2,train-mlp

Each program runs in a process of its own, which has compiled it once before. A turn is a first
compile with an empty folder and no kernel in memory, and a second one with what the first has left
in the folder, and no kernel in memory either; a time is the least of all turns.

What is compiled is the same program in three forms: its `module`, imported before; the framework's
exported program, an `object`, and the `file` that the framework makes of it, both of which each
compile imports again, on both sides. Tracing and exporting are the framework's and not counted.

A second compile makes no packed or folded weights: the first call does, or whoever saves. So "call"
are the seconds to the first result: compile and first call together. The first program and the
second are saved and compared. Gate: second <= 0.1 x first, in wall time, of the module. Writes
benchmarks/results/second_compile.json when all were asked for.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from models import ZOO, Built, model
from zoo import geometric_mean, machine

RESULTS = Path(__file__).resolve().parent / "results"
GATE = 0.1
STEPS = "train-"  # before the name of a training step
FORMS = ("module", "object", "file")


def main() -> int:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="NAMES", help="programs, separated by commas")
    parser.add_argument("--turns", type=int, default=2, help="first and second compiles")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print("RESULT " + json.dumps(measure(options.one, options.turns)))
        return 0
    console = Console(width=150)
    from models.training import TRAINING

    every = [*(entry.name for entry in ZOO), *(STEPS + name for name in TRAINING)]
    names = options.only.split(",") if options.only else every
    report: dict[str, Any] = {"machine": machine(), "gate": GATE}
    rows = report["programs"] = []
    for name in names:
        rows.append(in_own_process(name, console))
        good = [row for row in rows if "failed" not in row]
        for form in FORMS:
            report[f"{form}_ratio"] = geometric_mean([row[form]["ratio"] for row in good])
        if not options.only:  # after each program: all of them take a while
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / "second_compile.json").write_text(json.dumps(report, indent=1) + "\n")
    console.print(table(rows))
    for form in FORMS:
        console.print(f"geometric mean of second / first, {form}: {report[f'{form}_ratio']:.3f}")
    return 0 if all(passes(row) for row in rows) else 1


def passes(row: dict[str, Any]) -> bool:
    return "failed" not in row and row["same_bytes"] and row["module"]["ratio"] <= GATE


def in_own_process(name: str, console: Console) -> dict[str, Any]:
    """The measurements of one program, taken by this file in a fresh process."""
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
    """Seconds of first and second compiles of each form, and what the programs are."""
    import girih

    built = build(name)
    with tempfile.TemporaryDirectory() as place:
        exported, file = export(built, Path(place))
        module = girih.import_model(exported)
        girih.import_model(file)
        row: dict[str, Any] = {"name": name}
        inputs = built.flat_inputs()
        with tempfile.TemporaryDirectory() as folder:
            one_compile(module, folder, inputs)  # pays for imports and fresh memory
        for form, source in zip(FORMS, (module, exported, file), strict=True):
            times: dict[str, list[float]] = {}
            for _ in range(turns):
                with tempfile.TemporaryDirectory() as folder:
                    for which in ("first", "second"):
                        taken = one_compile(source, folder, inputs if form == "module" else None)
                        for key, seconds in taken.items():
                            times.setdefault(which + key, []).append(seconds)
                    row["entry_bytes"] = sum(
                        path.stat().st_size for path in Path(folder).rglob("*.program")
                    )
            row[form] = {key: min(values) for key, values in times.items()}
            row[form]["ratio"] = row[form]["second"] / row[form]["first"]
            row[form]["cpu_ratio"] = row[form]["second_cpu"] / row[form]["first_cpu"]
        row["weight_bytes"] = sum(weight.type.bytes for weight in module.weights.values())
        row["same_bytes"] = same_bytes(module, Path(place))
    return row


def build(name: str) -> Built:
    if not name.startswith(STEPS):
        return model(name).build()
    from models.training import TRAINING

    step, inputs = TRAINING[name.removeprefix(STEPS)]()
    return Built(step, inputs, "jax")


def export(built: Built, folder: Path) -> tuple[Any, Path]:
    """The framework's exported program, and a file of it."""
    if built.framework == "torch":
        import torch

        exported = torch.export.export(built.source, built.inputs)
        file = folder / "program.pt2"
        torch.export.save(exported, file)
        return exported, file
    from jax import export

    exported = export.export(built.source)(*built.inputs)
    file = folder / "program.jax"
    file.write_bytes(exported.serialize())
    return exported, file


def one_compile(source: Any, folder: str, inputs: list[np.ndarray] | None) -> dict[str, float]:
    """Seconds of one compile that knows what is in the folder, and nothing else: of the clock, of
    the process, and, given inputs, to the first result."""
    import girih
    from girih.backends.cpu import build

    build.CACHE.kernels.clear()
    gc.collect()
    options = girih.Options(cache=folder)
    begun, begun_cpu = time.perf_counter(), time.process_time()
    program = girih.compile(source, options=options)
    compiled, compiled_cpu = time.perf_counter(), time.process_time()
    taken = {"": compiled - begun, "_cpu": compiled_cpu - begun_cpu}
    if inputs is not None:
        program.call_flat([*inputs, *program.initial_state])
        taken["_call"] = time.perf_counter() - begun
    return taken


def same_bytes(module: Any, folder: Path) -> bool:
    """Whether the bundles of a first and a second compile are equal."""
    import girih

    options = girih.Options(cache=str(folder / "cache"))
    digests = []
    for _ in range(2):
        file = folder / "program.girih"
        girih.compile(module, options=options).save(file)
        with file.open("rb") as data:
            digests.append(hashlib.file_digest(data, "sha256").digest())
        file.unlink()
    return digests[0] == digests[1]


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table(title=f"seconds of a first and a second compile; the gate is {GATE:g}")
    headings = ("first", "second", "ratio", "CPU ratio", "object", "file", "first call", "second")
    for heading in ("program", *headings, "weights MB", "entry kB", "same bytes"):
        shown.add_column(heading, justify="left" if heading == "program" else "right")
    for row in rows:
        if "failed" in row:
            shown.add_row(row["name"], "failed")
            continue
        own = row["module"]
        shown.add_row(
            row["name"],
            f"{own['first']:.3f}",
            f"{own['second']:.4f}",
            f"{own['ratio']:.3f}",
            f"{own['cpu_ratio']:.3f}",
            *(f"{row[form]['ratio']:.3f}" for form in FORMS[1:]),
            f"{own['first_call']:.2f}",
            f"{own['second_call']:.2f}",
            f"{row['weight_bytes'] / 1e6:.1f}",
            f"{row['entry_bytes'] / 1e3:.0f}",
            "yes" if row["same_bytes"] else "[red]no[/]",
        )
    return shown


if __name__ == "__main__":
    sys.exit(main())
