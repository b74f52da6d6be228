"""How many wrong twins of the rewrite rules their automatic check catches, and which it does not.

    python benchmarks/rule_mutants.py [rule ...]

A mutant drops a condition, flips operands or changes a constant of one rule. Of those that survive,
the ones are told apart that do what their rule does on every program of the check: conditions that
others imply. Results of all rules go to benchmarks/results/rule_mutants.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from girih.optimizer.rules import RULES
from girih.optimizer.rules.mutants import alters, is_caught, mutants

RESULTS = Path(__file__).resolve().parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rules", nargs="*", help="names of rules; default: all")
    chosen = parser.parse_args().rules
    begin = time.process_time()
    count, survivors, idle, without = 0, [], [], []
    for rule in RULES:
        if chosen and rule.name not in chosen:
            continue
        own = list(mutants(rule))
        count += len(own)
        if not own:
            without.append(rule.name)
        for mutant in own:
            if not is_caught(mutant):
                (survivors if alters(mutant, rule) else idle).append(mutant.name)
    seconds = time.process_time() - begin
    print(*survivors, "without effect on any program:", *idle, sep="\n")
    effective = count - len(idle)
    caught = effective - len(survivors)
    print(
        f"{count} mutants, {effective} of them change something; {caught} are caught: "
        f"{caught / max(effective, 1):.1%} of these, {caught / max(count, 1):.1%} of all; "
        f"{seconds:.0f} s"
    )
    if not chosen:
        result = {
            "mutants": count, "change_something": effective, "caught": caught,
            "caught_of_these": round(caught / effective, 4), "cpu_seconds": round(seconds),
            "survivors": survivors, "without_effect_on_any_program": idle,
            "rules_without_mutants": without,
        }  # fmt: skip
        RESULTS.joinpath("rule_mutants.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
