"""Memory of training steps, girih beside XLA:CPU in one process, and of image models.

    python benchmarks/memory.py [name ...] [--passes]

"Total" is arguments + outputs - what is overwritten of the arguments + temporaries, for both. Also:
donated bytes that are not overwritten, and the seconds of compiling; --passes: of each pass. The
image models are those of the zoo without their classifiers, batch 1, weights counted once as the
program stores them, beside what was asked for.
Results of all programs go to benchmarks/results/memory.json and memory_inference.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import jax
from rich.console import Console
from rich.table import Table

import girih
from models import model
from models.training import TRAINING

RESULTS = Path(__file__).resolve().parent / "results"
INFERENCE = {"resnet50": 101.0, "mobilenet-v2": 19.5, "convnext-tiny": 119.5, "vit-b16": 349.0}
"""Asked-for totals of the zoo's models without their classifiers, in megabytes."""


def xla_total(step: Any, inputs: Any) -> int:
    """XLA's own count for the step, in bytes."""
    analysis = step.lower(*inputs).compile().memory_analysis()
    return (
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        - analysis.alias_size_in_bytes
        + analysis.temp_size_in_bytes
    )


def measure(name: str, passes: bool) -> dict[str, Any]:
    step, inputs = TRAINING[name]()
    stages: dict[str, float] = {}
    last: list[Any] = ["", time.perf_counter()]

    def progress(stage: str) -> None:
        now = time.perf_counter()
        stages[last[0]] = stages.get(last[0], 0.0) + now - last[1]
        last[:] = stage, now

    begin = time.perf_counter()
    options = girih.Options(cache="off")
    program = girih.compile(step, *inputs, options=options, progress=progress)
    progress("")
    seconds = time.perf_counter() - begin
    memory, plan = program.memory, program.plan
    donated = sum(leaf.nbytes for leaf in jax.tree.leaves(inputs[0]))
    total = memory.total_bytes
    xla = xla_total(step, inputs)
    if passes:
        for stage, spent in stages.items():
            print(f"  {stage:20} {spent:7.3f}")
    return {
        "name": name,
        "girih_bytes": total,
        "xla_bytes": xla,
        "ratio": total / xla,
        "arena_bytes": memory.arena_bytes,
        "scratch_bytes": memory.scratch_bytes * memory.workers,
        "constant_bytes": memory.constant_bytes,
        "donated_bytes": donated,
        "not_overwritten_bytes": donated - memory.replaced_bytes,
        "kernels": len(plan.steps),
        "moved_bytes": sum(s.run.bytes for s in plan.steps),
        "compile_seconds": seconds,
    }


def measure_inference(name: str) -> dict[str, Any]:
    from models.torch_models import Outputs

    built = model(name).build()
    body = Outputs(built.source.model.base_model, ("pixel_values",), ("last_hidden_state",))
    program = girih.compile(body.eval(), *built.inputs, options=girih.Options(cache="off"))
    memory = program.memory
    return {
        "name": name,
        "girih_bytes": memory.total_bytes,
        "asked_bytes": int(INFERENCE[name] * 1e6),
        "arena_bytes": memory.arena_bytes,
        "scratch_bytes": memory.scratch_bytes * memory.workers,
        "constant_bytes": memory.constant_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--passes", action="store_true")
    chosen = parser.parse_args()
    names = chosen.names or [*TRAINING, *INFERENCE]
    rows = [measure(name, chosen.passes) for name in names if name in TRAINING]
    table = Table(
        "program", "MB", "XLA MB", "ratio", "arena", "scratch", "lost", "steps", "GB", "s"
    )
    for row in rows:
        table.add_row(
            row["name"], f"{row['girih_bytes'] / 1e6:.1f}", f"{row['xla_bytes'] / 1e6:.1f}",
            f"{row['ratio']:.3f}", f"{row['arena_bytes'] / 1e6:.1f}",
            f"{row['scratch_bytes'] / 1e6:.1f}", f"{row['not_overwritten_bytes'] / 1e6:.2f}",
            str(row["kernels"]), f"{row['moved_bytes'] / 1e9:.2f}", f"{row['compile_seconds']:.1f}",
        )  # fmt: skip
    inference = [measure_inference(name) for name in names if name in INFERENCE]
    second = Table("inference", "MB", "asked", "arena", "scratch", "weights")
    for row in inference:
        kinds = ("girih", "asked", "arena", "scratch", "constant")
        second.add_row(row["name"], *(f"{row[f'{kind}_bytes'] / 1e6:.1f}" for kind in kinds))
    console = Console(width=120)
    console.print(table, second)
    if not chosen.names:
        for file, found in (("memory.json", rows), ("memory_inference.json", inference)):
            RESULTS.joinpath(file).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
