"""Offsets: known hard instances, and the memory plans of whole programs.

    python benchmarks/offsets.py --instances FOLDER [--nodes N]
    python benchmarks/offsets.py [--programs NAME ...]

FOLDER holds CSV files `NAME.CAPACITY.csv` with the columns id, lower, upper, size (steps; upper is
exclusive), as the benchmarks of google/minimalloc do. Programs are planned raw (one kernel for each
operation) and as they are compiled, at alignments of 64, 256 and 4096 bytes. Seconds are this
process's own. Results go to benchmarks/results/offsets.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from rich.console import Console
from rich.table import Table

import girih
from girih.optimizer.certify import check_plan
from girih.optimizer.lending import lend
from girih.optimizer.memory import Interval, place
from girih.optimizer.offsets import search
from girih.optimizer.plan import KernelFacts, Planner
from girih.optimizer.schedule import Schedule, live_ranges, schedule

RESULTS = Path(__file__).resolve().parent / "results" / "offsets.json"
ALIGNMENTS = (64, 256, 4096)
NODES = 2_000_000


def instance(path: Path, nodes: int) -> dict[str, Any]:
    """One search at the capacity that the file's name says."""
    with path.open() as file:
        rows = [{name: int(text) for name, text in row.items() if name != "id"}
                for row in csv.DictReader(file)]  # fmt: skip
    intervals = [Interval(row["size"], row["lower"], row["upper"] - 1) for row in rows]
    capacity = int(path.name.split(".")[1])
    begin = time.process_time()
    outcome = search(intervals, capacity, nodes)
    seconds = time.process_time() - begin
    arena = None
    if outcome.offsets is not None:
        assert apart(intervals, outcome.offsets)
        arena = max(o + i.bytes for o, i in zip(outcome.offsets, intervals, strict=True))
    return {
        "name": path.name.split(".")[0], "buffers": len(intervals), "capacity": capacity,
        "arena": arena, "nodes": outcome.nodes, "seconds": round(seconds, 3),
    }  # fmt: skip


def apart(intervals: list[Interval], offsets: tuple[int, ...]) -> bool:
    """Whether no two that live at once overlap."""
    boxes = list(zip(intervals, offsets, strict=True))
    return not any(
        one.first <= other.last and other.first <= one.last
        and low < high + other.bytes and high < low + one.bytes
        for number, (one, low) in enumerate(boxes) for other, high in boxes[:number]
    )  # fmt: skip


def jax_program(build: Callable[[], Any]) -> Any:
    """A program of JAX, as a module."""
    step, inputs = build()
    return girih.import_jax(step, *inputs) if hasattr(girih, "import_jax") else (step, inputs)


def plans(build: Callable[[], Any]) -> Iterator[tuple[str, Schedule]]:
    yield from ()
