"""Generated programs: none may compute something else than the interpreter, or be unfinished.

    python benchmarks/random_programs.py [count]
    python benchmarks/random_programs.py --open [count] [--from SEED]
    python benchmarks/random_programs.py --mutants [count] [--from SEED]

Half of the programs (20,000 by default) are simplified bit for bit and compared so; the others with
the default licences, compared loosely. All are simplified a second time, and nothing may change.
The programs are those of tests/optimizer/test_random_programs.py, of seeds 0, 1, ... Results go to
benchmarks/results/random_programs.json.

With --open, programs with symbols (3,000 by default), those of
tests/optimizer/test_random_open_programs.py: compiled once for the CPU, run at five sizes each;
a twentieth has a size that data decide. Results go to benchmarks/results/random_open_programs.json;
what there is no code for stands there with its reason.

With --mutants, so many programs with symbols (300 by default) are made wrong in one place of their
plan, and in one of their text (tests/optimizer/open_mutants.py). Of the plans: how many of those
mutants that change results at some of 45 sizes are caught at the program's own five; of the texts:
none may give something else than the interpreter, raise another error than girih's, or end its
process. Results go to the same file, under "mutants".
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

from girih.optimizer.licence import BITWISE, DEFAULT_LICENCES, Ledger
from girih.optimizer.passes.simplify import Simplify
from girih.optimizer.pipeline import run_pipeline, simplify_pipeline
from girih.options import Options

ROOT = Path(__file__).resolve().parents[1]
programs: Any = importlib.import_module("girih.tests.optimizer.test_random_programs")
open_programs: Any = importlib.import_module("girih.tests.optimizer.test_random_open_programs")
mutants: Any = importlib.import_module("girih.tests.optimizer.open_mutants")


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


def closed(seeds: range) -> dict[str, Any]:
    """What becomes of programs with fixed sizes."""
    hits: Counter[str] = Counter()
    wrong = {seed: found for seed in seeds if (found := told(seed, problem(seed, hits)))}
    return {"wrong": wrong, "rules_that_fired": len(hits), "hits": dict(sorted(hits.items()))}


def with_symbols(seeds: range) -> dict[str, Any]:
    """What becomes of programs with symbols."""
    wrong, refused = {}, {}
    for seed in seeds:
        try:
            found = open_programs.problem(seed)
        except Exception as error:  # noqa: BLE001 - told
            found = f"{type(error).__name__}: {error}"
        if found.startswith("refused: "):
            refused[seed] = found.removeprefix("refused: ")
        elif told(seed, found):
            wrong[seed] = found
    return {"wrong": wrong, "refused": refused}


def mutated(seeds: range) -> dict[str, Any]:
    """What becomes of mutants of programs with symbols, and of their plans."""
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in mutants.KINDS}
    texts: Counter[str] = Counter()
    missed, wrong = [], {}
    for seed in seeds:
        for mutant in mutants.mutants_of_plan(seed):
            count = counts[mutant.kind]
            if mutant.is_caught:
                deadly = mutant.found.startswith("dies")
                count["process ended" if deadly else "caught"] += 1
            else:
                count["without effect" if mutant.is_idle else "missed"] += 1
            if not (mutant.is_caught or mutant.is_idle):
                missed.append(f"{seed}: {mutant.kind}: {told(seed, mutant.effect)}")
        outcome = mutants.mutant_of_program(seed)
        good = outcome in ("same", "refused")
        texts[outcome if good else "wrong"] += 1
        if not good:
            wrong[seed] = told(seed, outcome)
    totals = sum(counts.values(), Counter())
    caught = totals["caught"] + totals["process ended"]
    return {
        "plans": {kind: dict(sorted(count.items())) for kind, count in counts.items()},
        "caught": round(caught / max(1, caught + totals["missed"]), 4),
        "missed": missed, "texts": dict(sorted(texts.items())), "wrong": wrong,
    }  # fmt: skip


def told(seed: int, found: str) -> str:
    if found:
        print(seed, found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("count", type=int, nargs="?")
    parser.add_argument("--open", action="store_true", dest="is_open")
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    chosen = parser.parse_args()
    look, usual = closed, 20_000
    if chosen.mutants:
        look, usual = mutated, 300
    elif chosen.is_open:
        look, usual = with_symbols, 3_000
    count = chosen.count or usual
    begin = time.process_time()
    found = look(range(chosen.first, chosen.first + count))
    seconds = time.process_time() - begin
    print(f"{count} programs, {len(found['wrong'])} wrong, {seconds:.0f} s")
    result = {"programs": count, "first_seed": chosen.first, "cpu_seconds": round(seconds), **found}
    name = "random_programs" if look is closed else "random_open_programs"
    file = ROOT / "benchmarks" / "results" / f"{name}.json"
    known = json.loads(file.read_text())
    if chosen.mutants:
        result = {**known, "mutants": result}
    elif chosen.is_open and "mutants" in known:
        result["mutants"] = known["mutants"]
    file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
