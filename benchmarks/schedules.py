"""Ways to run a program: the same bits by all of them, and what each asks a GPU's driver for.

    python benchmarks/schedules.py [--programs 200] [--first 0] [--models gpt2] [--layers N]

Generated programs with loops and branches run on the CPU and in the simulator, by every schedule;
results have to be equal. Models are compiled for the simulator's target and run on a driver that
computes nothing and counts: one call after those in which graphs are made. Whole models, unless
--layers says how many.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import girih
from girih.hlo.errors import UserError
from girih.options import SCHEDULES
from girih.runtime.devices.events import EVENTS
from girih.runtime.program import Program
from models import ZOO

sys.path.insert(0, str(Path(girih.__file__).parents[1]))
schedules: Any = importlib.import_module("girih.tests.backends.nvidia.test_schedules")
fakes: Any = importlib.import_module("girih.tests.runtime.gpu_fakes")
MEMORY = 8 << 30


class Counting(fakes.FakeGpu):
    """A GPU whose kernels do nothing."""

    cooperative = True

    def __init__(self) -> None:
        super().__init__(memory=MEMORY)

    def entry(self, module: str, start: Any) -> Any:
        return start.entry

    def prepare(self, entry: Any, start: Any, arguments: Sequence[bytes]) -> Any:
        return lambda: None

    def has_come(self, event: Any) -> bool:
        self.settle(event)
        return True


def counts(name: str, layers: int | None, schedule: str) -> dict[str, int]:
    """What one call of a model asks for."""
    entry = next(one for one in ZOO if one.name == name)
    built = entry.build(layers)
    options = girih.Options(schedule=schedule)
    made = girih.compile(built.source, *built.inputs, target="ptx-sim", options=options)
    program = Program(made.parts, made.target, driver=Counting())
    for _ in range(2):
        program(*built.inputs)
    before = dict(program.events)
    program(*built.inputs)
    return {event: count - before[event] for event, count in program.events.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--models", default="gpt2,bert-base")
    parser.add_argument("--layers", type=int)
    asked = parser.parse_args()
    console = Console()
    for seed in range(asked.first, asked.first + asked.programs):
        schedules.check(seed)
    if asked.programs:
        console.print(f"{asked.programs} programs give the same bits by all schedules")
    table = Table("model", "schedule", *EVENTS)
    models = [*filter(None, asked.models.split(","))]
    for name in models:
        for schedule in SCHEDULES[1:]:
            try:
                found = counts(name, asked.layers, schedule)
            except UserError as error:  # a program that cannot be run so
                table.add_row(name, schedule, str(error))
                continue
            table.add_row(name, schedule, *map(str, found.values()))
    if models:
        console.print(table)


main()
