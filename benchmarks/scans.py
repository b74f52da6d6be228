"""Bytes that loops of stacked results move in a turn, beside what they have to.

    python benchmarks/scans.py

"Ideal" reads each row and carried value once and writes each result once, nothing else; results go
to benchmarks/results/scans.json.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import girih

RESULTS = Path(__file__).resolve().parent / "results"
TURNS, ROW = 64, (128, 256)
SQUARE = (256, 256)


def running_sum(start: Any, rows: Any) -> Any:
    return jax.lax.scan(lambda s, v: (s + v, s + v), start, rows)


def mapped(start: Any, rows: Any) -> Any:
    return jax.lax.map(jnp.tanh, rows)


def recurrent(start: Any, rows: Any, weight: Any) -> Any:
    def turn(state: Any, row: Any) -> Any:
        state = jnp.tanh(state @ weight + row)
        return state, state

    return jax.lax.scan(turn, start, rows)


def several(start: Any, rows: Any) -> Any:
    """Rows that are computed from the new state, and the state as it was."""

    def turn(state: Any, row: Any) -> Any:
        new = state + row
        return new, (new * 2, new - row, state)

    return jax.lax.scan(turn, start, rows, reverse=True)


def wave(start: Any, rows: Any) -> Any:
    """Two states change places; what comes next is computed where the oldest lies."""

    def turn(states: Any, row: Any) -> Any:
        old, now = states
        return (now, 2 * now - old + row), None

    return jax.lax.scan(turn, (start, start + 1), rows)[0]


def moved(function: Any, *inputs: np.ndarray) -> tuple[float, int]:
    """Bytes of a turn as the plan counts them, and the steps that copy carried values of over
    4 KiB."""
    program = girih.compile(function, *inputs, options=girih.Options(cache="off"))
    steps, kernels = program.plan.steps, program.plan.kernels
    end = next(n for n, step in enumerate(steps) if step.HasField("jump") and step.jump.target < n)
    begin = steps[end].jump.target
    inside = [step for step in steps[begin:end] if step.HasField("run")]
    turns = sum(step.HasField("branch_if_false") for step in steps[begin:end])
    large = [step.run for step in inside if step.run.bytes > 2 * 4096]
    copies = sum("copy" in kernels[run.kernel].name for run in large)
    return sum(step.run.bytes for step in inside) / turns, copies


def main() -> None:
    row, square = (4 * int(np.prod(dims)) for dims in (ROW, SQUARE))
    start, rows = np.ones(ROW, np.float32), np.ones((TURNS, *ROW), np.float32)
    weight = np.ones(SQUARE, np.float32)
    programs: list[tuple[Any, int, list[np.ndarray]]] = [
        (running_sum, 4 * row, [start, rows]),
        (mapped, 2 * row, [start, rows]),
        (recurrent, 4 * row + square, [start, rows, weight]),
        (several, 6 * row, [start, rows]),
        (wave, 4 * row, [start, rows]),
    ]
    found = []
    table = Table("scan", "bytes of a turn", "ideal", "ratio", "copies")
    for function, ideal, inputs in programs:
        total, copies = moved(function, *inputs)
        name = function.__name__
        found.append({"name": name, "bytes": total, "ideal": ideal, "copies": copies})
        table.add_row(name, f"{total:,.0f}", f"{ideal:,}", f"{total / ideal:.2f}", str(copies))
    Console(width=100).print(table)
    RESULTS.joinpath("scans.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
