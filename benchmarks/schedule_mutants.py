"""Wrong twins of schedules, and whether the proof refuses each that brute force finds unsafe.

    python benchmarks/schedule_mutants.py [--plans 400] [--only KIND]

Of each kind of schedule (counters of a CPU's task ranges, the edges of a GPU's graph, merged and
persistent launches) so many plans are made and changed in one place, by chance, in several ways.
What is unsafe is found by searches that share no code with the proof
(tests/optimizer/launch_plans.py, task_plans.py): steps that may be under way together and touch the
same bytes, waits without an end, blocks or arguments that are not a step's own. Ends with an error
where the proof accepts one of these, or refuses a plan as it was made. Writes
benchmarks/results/schedule_mutants.json when all kinds were asked for.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import girih

sys.path.insert(0, str(Path(girih.__file__).parents[1]))
mutants: Any = importlib.import_module("girih.tests.optimizer.schedule_mutants")
RESULTS = Path(__file__).resolve().parent / "results" / "schedule_mutants.json"
EACH = {"counters": 4, "graph": 6, "merged": 3, "persistent": 5}  # mutants of a plan by a mutation


def row(kind: str, plans: int) -> dict[str, Any]:
    """What became of the mutants of so many plans, by mutation: unsafe ones, all, and those that
    the proof refuses."""
    begin, made, wrong = time.process_time(), 0, []
    count: Counter[str] = Counter()
    each: dict[str, list[int]] = {}
    for seed in range(plans):
        for number, one in enumerate(mutants.tried(kind, seed, EACH[kind])):
            if one.accepted and not one.safe:
                wrong.append(f"plan {seed}, number {number}: {one.name} is accepted")
            if one.name == "as made":
                made += 1
                if not (one.safe and one.accepted):
                    wrong.append(f"plan {seed}: refused as made")
                continue
            count["mutants"] += 1
            count["unsafe"] += not one.safe
            count["unsafe_and_accepted"] += one.accepted and not one.safe
            count["safe_and_refused"] += one.safe and not one.accepted
            own = each.setdefault(one.name, [0, 0, 0])
            for place, what in enumerate((not one.safe, True, not one.accepted)):
                own[place] += what
    return {
        "kind": kind, "plans": made, **{name: count[name] for name in (
            "mutants", "unsafe", "unsafe_and_accepted", "safe_and_refused")},
        "wrong": wrong, "unsafe_all_refused": {n: ", ".join(map(str, c)) for n, c in each.items()},
        "cpu_seconds": round(time.process_time() - begin),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--plans", type=int, default=400)
    parser.add_argument("--only", choices=mutants.KINDS)
    asked = parser.parse_args()
    rows = []
    for kind in [asked.only] if asked.only else mutants.KINDS:
        rows.append(row(kind, asked.plans))
        print(json.dumps(rows[-1], indent=1), flush=True)
    if not asked.only:
        RESULTS.write_text(json.dumps({"plans": asked.plans, "rows": rows}, indent=1) + "\n")
    return int(any(one["wrong"] for one in rows))


if __name__ == "__main__":
    sys.exit(main())
