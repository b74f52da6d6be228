"""How long compiling a program of open sizes takes beside the same program of fixed ones.

    python benchmarks/open_compile.py [count] [--from SEED] [--save]

The programs (200 by default, seeds 10,000 and on) are those of
tests/optimizer/test_random_open_programs.py with sizes that calls decide. Each is compiled once
with its symbols, and once for the last of its own calls, one after the other in this process; which
comes first alternates. A time is that of all threads of the process (CPU seconds), with no kernel
known before but what walks a plan's steps, which every program has, and without the collection of
garbage. Programs that have a size of 0 in that call, and those without code, are left out. Beside
the ratios stands how much of it LLVM takes, for how many modules and lines of text. Asked: a
geometric mean of at most 1.3. `--save`: results go to benchmarks/results/open_compile.json.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import girih
from girih.backends.cpu import build, codegen
from zoo import geometric_mean, machine

RESULTS = Path(__file__).resolve().parent / "results" / "open_compile.json"
FIRST, COUNT, WARMING, WORST = 10_000, 200, 6, 10
GATE = 1.3
programs: Any = importlib.import_module("girih.tests.optimizer.test_random_open_programs")


class Cost(NamedTuple):
    """CPU seconds of one compilation, those inside of LLVM, its modules and their lines."""

    seconds: float
    llvm: float
    modules: int
    lines: int


class Watch:
    """Counts what LLVM does, on any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.llvm, self.modules, self.lines = 0.0, 0, 0
        self.compile = codegen.compile_object
        codegen.compile_object = self.counted

    def counted(self, ir_text: str, *arguments: Any, **named: Any) -> bytes:
        begin = time.thread_time()
        made = self.compile(ir_text, *arguments, **named)
        taken = time.thread_time() - begin
        with self.lock:
            self.llvm += taken
            self.modules += 1
            self.lines += ir_text.count("\n")
        return made

    def cost(self, module: Any, sizes: Mapping[str, int] | None) -> Cost:
        """What compiling a module costs, of open sizes or of these."""
        kernels = build.CACHE.kernels
        for key in [key for key in kernels if key[0] != build._EXECUTOR]:
            del kernels[key]
        options = girih.Options(cache="off", numerics="bitwise")
        self.llvm, self.modules, self.lines = 0.0, 0, 0
        gc.collect()
        gc.disable()
        try:
            begin = time.process_time()
            girih.compile(module, options=options, sizes=sizes)
            seconds = time.process_time() - begin
        finally:
            gc.enable()
        return Cost(seconds, self.llvm, self.modules, self.lines)


def costs(seed: int, watch: Watch) -> tuple[Cost, Cost] | None:
    """Of a program of open sizes, and of the same one of fixed sizes; None of one left out."""
    programs_of_seed = [programs.open_program(random.Random(seed), 0.0) for _ in range(2)]
    opened, fixed = (one.module for one in programs_of_seed)
    at = programs_of_seed[1].sizes[-1]
    if 0 in at.values():
        return None
    given = {name: size for name, size in at.items() if name in fixed.symbols}
    try:
        if seed % 2:
            first = watch.cost(opened, None)
            return first, watch.cost(fixed, given)
        last = watch.cost(fixed, given)
        return watch.cost(opened, None), last
    except girih.UserError:
        return None


def summary(found: Mapping[int, tuple[Cost, Cost]]) -> dict[str, Any]:
    ratios = {seed: one.seconds / other.seconds for seed, (one, other) in found.items()}
    sides = [[pair[n] for pair in found.values()] for n in range(2)]
    means = {
        name: {part: round(statistics.mean(getattr(one, part) for one in side), 5)
               for part in Cost._fields}
        for name, side in zip(("open", "fixed"), sides, strict=True)
    }  # fmt: skip
    worst = sorted(ratios, key=lambda seed: -ratios[seed])[:WORST]
    return {
        "programs": len(found),
        "geometric_mean": round(geometric_mean(list(ratios.values())), 4),
        "median": round(statistics.median(ratios.values()), 4),
        "of_all_seconds": round(means["open"]["seconds"] / means["fixed"]["seconds"], 4),
        "mean": means,
        "worst": {seed: round(ratios[seed], 3) for seed in worst},
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("count", type=int, nargs="?", default=COUNT)
    parser.add_argument("--from", type=int, default=FIRST, dest="first", help="the first seed")
    parser.add_argument("--save", action="store_true")
    chosen = parser.parse_args()
    watch = Watch()
    found: dict[int, tuple[Cost, Cost]] = {}
    for seed in range(chosen.first - WARMING, chosen.first + chosen.count):
        pair = costs(seed, watch)
        if pair is not None and seed >= chosen.first:
            found[seed] = pair
    result = {"machine": machine(), "first_seed": chosen.first, **summary(found)}
    print(json.dumps({name: x for name, x in result.items() if name != "machine"}, indent=1))
    if chosen.save:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    return int(result["geometric_mean"] > GATE)


if __name__ == "__main__":
    sys.exit(main())
