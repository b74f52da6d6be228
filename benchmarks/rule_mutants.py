"""How many wrong twins of the rewrite rules their automatic check catches, and which it does not.

    python benchmarks/rule_mutants.py [rule ...]

A mutant drops a condition, flips operands or changes a constant of one rule. Of those that survive,
the ones are told apart that do what their rule does on every program of the check: conditions that
others imply. Rules of which less than 95 % of the others are caught are listed with their rate.
Results of all rules, with a table of them, go to benchmarks/results/rule_mutants.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from girih.optimizer.rules import RULES
from girih.optimizer.rules.check import check_rule
from girih.optimizer.rules.mutants import alters, is_caught, mutants

LEAST_RATE = 0.95  # of the mutants of a rule that change something
RESULTS = Path(__file__).resolve().parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rules", nargs="*", help="names of rules; default: all")
    chosen = parser.parse_args().rules
    begin = time.process_time()
    count, survivors, idle, without = 0, [], [], []
    table: dict[str, list[int]] = {}  # rule -> caught, not caught, without effect
    checking = 0.0
    for rule in RULES:
        if chosen and rule.name not in chosen:
            continue
        started = time.process_time()
        assert not check_rule(rule), rule.name
        checking += time.process_time() - started
        own = list(mutants(rule))
        count += len(own)
        before = len(survivors), len(idle)
        if not own:
            without.append(rule.name)
        for mutant in own:
            if not is_caught(mutant):
                (survivors if alters(mutant, rule) else idle).append(mutant.name)
        missed, same = len(survivors) - before[0], len(idle) - before[1]
        if own:
            table[rule.name] = [len(own) - missed - same, missed, same]
    seconds = time.process_time() - begin
    print(*survivors, "without effect on any program:", *idle, sep="\n")
    low = {n: c / (c + m) for n, (c, m, _) in table.items() if m and c / (c + m) < LEAST_RATE}
    print(
        "rules below the rate that is asked:", *(f"{n} {r:.1%}" for n, r in low.items()), sep="\n"
    )
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
            "cpu_seconds_of_self_checks": round(checking),
            "rules_below_95_percent": low,
            "caught_missed_without_effect": {n: ", ".join(map(str, c)) for n, c in table.items()},
            "survivors": survivors, "without_effect_on_any_program": idle,
            "rules_without_mutants": without,
        }  # fmt: skip
        RESULTS.joinpath("rule_mutants.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
