"""How many wrong twins of the rewrite rules their automatic check catches, and which it does not.

    python benchmarks/rule_mutants.py [rule ...]

A mutant drops a condition, flips operands or changes a constant of one rule. Results of all rules
go to benchmarks/results/rule_mutants.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from girih.optimizer.rules import RULES
from girih.optimizer.rules.mutants import is_caught, mutants

RESULTS = Path(__file__).resolve().parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rules", nargs="*", help="names of rules; default: all")
    chosen = parser.parse_args().rules
    begin = time.process_time()
    count, survivors, without = 0, [], []
    for rule in RULES:
        if chosen and rule.name not in chosen:
            continue
        own = list(mutants(rule))
        count += len(own)
        if not own:
            without.append(rule.name)
        for mutant in own:
            if not is_caught(mutant):
                survivors.append(mutant.name)
                print(mutant.name)
    seconds = time.process_time() - begin
    caught = 1 - len(survivors) / max(count, 1)
    print(f"{count} mutants, {caught:.1%} caught, {len(survivors)} survive, {seconds:.0f} s")
    if not chosen:
        result = {
            "mutants": count, "caught": round(caught, 4), "cpu_seconds": round(seconds),
            "survivors": survivors, "rules_without_mutants": without,
        }  # fmt: skip
        RESULTS.joinpath("rule_mutants.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
