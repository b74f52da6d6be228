"""What co-scheduling adds to the time of compiling: graphs of small products, whose steps count
what is complete, beside the same where workers meet (`schedule="launches"`), proof included.

    python benchmarks/coschedule_time.py [--turns 7]

Seconds of CPU time, medians of turns in which both are compiled, one after the other, in one
process; nothing is kept in the cache, so each compiles its kernel. Writes
benchmarks/results/coschedule_time.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import girih
from girih.hlo.build import build_module
from girih.hlo.graph import Module, Value
from girih.hlo.types import F32, TensorType
from zoo import machine

RESULTS = Path(__file__).resolve().parent / "results" / "coschedule_time.json"
WIDE, DEEP = 8, (32, 275)
SHAPE = TensorType((64, 64), F32)


def graph(deep: int) -> Module:
    """Levels of 8 products, each of two of the level before."""

    def body(b: Any, *level: Value) -> list[Value]:
        for _ in range(deep):
            level = tuple(
                b("dot_general", level[n], level[(n + 1) % WIDE], lhs_contracting_dimensions=(1,),
                  rhs_contracting_dimensions=(0,))
                for n in range(WIDE)
            )  # fmt: skip
        return [*level]

    return build_module([SHAPE] * WIDE, body)


def seconds(module: Module, schedule: str) -> tuple[float, Any]:
    begin = time.process_time()
    program = girih.compile(module, options=girih.Options(cache="off", schedule=schedule))
    return time.process_time() - begin, program.plan


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=7)
    turns = parser.parse_args().turns
    rows = []
    for deep in DEEP:
        module, taken, plans = graph(deep), {"launches": [], "auto": []}, {}
        for _ in range(turns + 1):
            for schedule, times in taken.items():
                spent, plans[schedule] = seconds(module, schedule)
                times.append(spent)
        # The first turn loads what the others have.
        meet, count = (statistics.median(times[1:]) for times in taken.values())
        assert plans["auto"].ranges and not plans["launches"].ranges
        rows.append({
            "steps": len(plans["auto"].steps), "meeting": round(meet, 3),
            "counting": round(count, 3), "adds": round(count - meet, 3),
            "part": round(count / meet - 1, 3),
        })  # fmt: skip
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)
    RESULTS.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


main()
