"""Generated programs through the simplifier: none may compute something else or be unfinished.

    python benchmarks/random_programs.py [count]

Half of the programs (20,000 by default) are simplified bit for bit and compared so; the others with
the default licences, compared loosely. All are simplified a second time, and nothing may change.
The programs are those of tests/optimizer/test_random_programs.py, of seeds 0, 1, ... Results go to
benchmarks/results/random_programs.json.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "optimizer"))

programs: Any = importlib.import_module("test_random_programs")

from girih.optimizer.licence import BITWISE, DEFAULT_LICENCES, Ledger  # noqa: E402
from girih.optimizer.passes.simplify import Simplify  # noqa: E402
from girih.optimizer.pipeline import run_pipeline, simplify_pipeline  # noqa: E402
from girih.options import Options  # noqa: E402


def problem(seed: int, hits: Counter[str]) -> str:
    """What is wrong with what becomes of one program; "" if nothing is."""
    exact = seed % 2 == 0
    module, inputs = programs.program(random.Random(seed), sums=not exact)
    ledger = Ledger()
    options = Options(numerics="bitwise") if exact else Options()
    after = run_pipeline(module, simplify_pipeline(options, ledger), check=True)
    hits.update(ledger.hits)
    if ledger.exhausted:
        return "rules do not end"
    if Simplify(BITWISE if exact else DEFAULT_LICENCES)(after) is not after:
        return "not finished"
    return programs.apart(module, after, inputs, exact)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    begin = time.process_time()
    hits: Counter[str] = Counter()
    wrong = {}
    for seed in range(count):
        found = problem(seed, hits)
        if found:
            wrong[seed] = found
            print(seed, found)
    seconds = time.process_time() - begin
    print(f"{count} programs, {len(wrong)} wrong, {len(hits)} rules fired, {seconds:.0f} s")
    result = {
        "programs": count, "wrong": wrong, "rules_that_fired": len(hits),
        "cpu_seconds": round(seconds), "hits": dict(sorted(hits.items())),
    }  # fmt: skip
    text = json.dumps(result, indent=1) + "\n"
    ROOT.joinpath("benchmarks", "results", "random_programs.json").write_text(text)


if __name__ == "__main__":
    main()
