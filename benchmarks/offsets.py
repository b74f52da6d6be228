"""Offsets: known hard instances, and the memory plans of whole programs.

    python benchmarks/offsets.py --instances FOLDER [--nodes N]
    python benchmarks/offsets.py [NAME ...]

FOLDER holds CSV files `NAME.CAPACITY.csv` with the columns id, lower, upper, size (steps; upper is
exclusive), as those of google/minimalloc. Programs, all or those named, are planned raw (one kernel
for each operation) and as they are compiled for a CPU, at alignments of 64, 256 and 4096 bytes; the
compiled ones' plans are also checked by optimizer/certify.py. Seconds are this process's own.
Results are merged into benchmarks/results/offsets.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import girih
from girih.backends import find
from girih.optimizer.certify import check_plan
from girih.optimizer.memory import Interval, Placement, place
from girih.optimizer.offsets import search
from girih.optimizer.output_reuse import reuse_outputs
from girih.optimizer.pipeline import pipeline_for
from girih.optimizer.plan import KernelFacts, Planner
from girih.optimizer.schedule import Schedule, live_ranges, schedule
from models import model
from models.training import TRAINING

RESULTS = Path(__file__).resolve().parent / "results" / "offsets.json"
ALIGNMENTS = (64, 256, 4096)
FORWARD = (
    "bert-base", "gpt2", "vit-b16", "resnet50", "mobilenet-v2", "convnext-tiny", "llama",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="programs; none: all")
    parser.add_argument("--instances", type=Path, help="a folder of CSV files")
    parser.add_argument("--nodes", type=int, default=2_000_000, help="of a search of an instance")
    chosen = parser.parse_args()
    if chosen.instances:
        for path in sorted(chosen.instances.glob("*.csv")):
            keep("instances", instance(path, chosen.nodes))
        return
    for name in chosen.names or (*TRAINING, *FORWARD):
        for row in program(name):
            keep("programs", row)


def keep(kind: str, row: dict[str, Any]) -> None:
    """Print a row, and put it in the place of the one of its name."""
    print(json.dumps(row))
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rows = {one["name"]: one for one in known.get(kind, ())} | {row["name"]: row}
    known[kind] = [rows[name] for name in sorted(rows)]
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


def instance(path: Path, nodes: int) -> dict[str, Any]:
    """One search at the capacity that the file's name says."""
    with path.open() as file:
        intervals = [
            Interval(int(row["size"]), int(row["lower"]), int(row["upper"]) - 1)
            for row in csv.DictReader(file)
        ]
    name, capacity, _ = path.name.split(".")
    begin = time.process_time()
    outcome = search(intervals, int(capacity), nodes)
    seconds = time.process_time() - begin
    arena = None
    if outcome.offsets is not None:
        assert apart(intervals, outcome.offsets)
        arena = max(o + i.bytes for o, i in zip(outcome.offsets, intervals, strict=True))
    return {
        "name": name, "buffers": len(intervals), "capacity": int(capacity), "arena": arena,
        "nodes": outcome.nodes, "seconds": round(seconds, 3),
    }  # fmt: skip


def apart(intervals: list[Interval], offsets: tuple[int, ...]) -> bool:
    """Whether no two that live at once overlap."""
    boxes = list(zip(intervals, offsets, strict=True))
    return not any(
        one.first <= other.last
        and other.first <= one.last
        and low < high + other.bytes
        and high < low + one.bytes
        for number, (one, low) in enumerate(boxes)
        for other, high in boxes[:number]
    )


def program(name: str) -> list[dict[str, Any]]:
    """A program's plans, raw and as it is compiled."""
    if name in TRAINING:
        source, inputs = TRAINING[name]()
    else:
        built = model(name).build()
        source, inputs = built.source, built.inputs
    options = girih.Options()
    backend = find("cpu", options, None)
    backend.begin()
    simple, fused = pipeline_for(backend, options).run(girih.import_model(source, *inputs))
    return [
        placed(f"{name}, raw", schedule(simple)),
        placed(name, schedule(fused, backend.in_tiles)),
    ]


def placed(name: str, steps: Schedule) -> dict[str, Any]:
    """Placements at all alignments, and the seconds of checking the plan of the first."""
    ranges = live_ranges(steps)
    reused = reuse_outputs(steps, ranges)
    intervals = [Interval(b.bytes, *life) for b, life in ranges.items() if b not in reused]
    row: dict[str, Any] = {"name": name, "steps": len(steps.steps), "buffers": len(intervals)}
    for alignment in ALIGNMENTS:
        begin = time.process_time()
        found = place(intervals, alignment)
        row[str(alignment)] = described(found, time.process_time() - begin)
    planner = Planner(steps, "null", lambda key, op: KernelFacts(1))
    plan = planner.run()
    begin = time.process_time()
    check_plan(plan, planner.results(), planner.reused_places())
    row["check_seconds"] = round(time.process_time() - begin, 4)
    return row


def described(found: Placement, seconds: float) -> dict[str, Any]:
    return {
        "arena": found.arena_bytes, "bound": found.bound_bytes, "strategy": found.strategy,
        "proof": found.proof, "nodes": found.nodes, "seconds": round(seconds, 3),
    }  # fmt: skip


if __name__ == "__main__":
    main()
