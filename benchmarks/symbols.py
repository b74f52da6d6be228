"""Arithmetic on sizes, and what is proven of them.

    python benchmarks/symbols.py

10,000 random expressions (+ - * // % max min of 3 symbols, depth 6) against Python at 50 points
each; the time that one takes to be built; what is true of the formulas of real exports (bounds,
comparisons, equalities, divisibility, by enumeration) and how much of it is proven; what jax.export
is asked and cannot answer. Results go to benchmarks/results/symbols.json.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from random import Random
from typing import Any

from girih.hlo.assumptions import Assumptions
from girih.hlo.size_text import parse_dim
from girih.hlo.sizes import Symbol
from girih.hlo.symbols import SizeTooLong, SymbolicDim, bound
from girih.tests.hlo.size_formulas import NAMES, facts, random_text, size_of

QUERIES = (
    "a//8*8 == a", "a*b >= 8", "(a+7)//8 <= a", "max(a,4) == a", "a % 4 == 0", "a*b % 8 == 0",
    "b*a <= 512*a",
)  # fmt: skip


def algebra(count: int = 10_000, points: int = 50) -> dict[str, Any]:
    """How many expressions have Python's values, and how many have none or are too long."""
    chance = Random(14)
    compared = wrong = without = 0
    for _ in range(count):
        text = random_text(chance, 6)
        try:
            size = size_of(text)
        except (ZeroDivisionError, SizeTooLong):
            without += 1
            continue
        code = compile(text, "size", "eval")
        for _ in range(points):
            values = {name: chance.randint(-40, 80) for name in NAMES}
            try:
                wanted = eval(code, {"max": max, "min": min, **values})
            except ZeroDivisionError:
                continue
            compared += 1
            wrong += bound(size, values) != wanted
    return {"expressions": count, "without value": without, "points": compared, "wrong": wrong}


def construction(repeats: int = 2000) -> dict[str, float]:
    """Median microseconds of one construction whose parts exist."""
    found = {}
    b, s, h = map(SymbolicDim, "bsh")
    for name, build in (
        ("b*s", lambda: b * s),
        ("4*b*s+1", lambda: 4 * b * s + 1),
        ("((h-1)//2)//2+1", lambda: ((h - 1) // 2) // 2 + 1),
        ("-h % 7", lambda: -h % 7),
        ("b*((h//16)*(s//16)+1)", lambda: b * ((h // 16) * (s // 16) + 1)),
    ):
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            build()
            times.append(time.perf_counter() - start)
        found[name] = statistics.median(times) * 1e6
    return found


def proofs() -> dict[str, Any]:
    start = time.perf_counter()
    listed = list(facts())
    seconds = time.perf_counter() - start
    true = [fact for fact in listed if fact.always]
    return {
        "facts": len(listed),
        "true": len(true),
        "proven": sum(fact.answer is True for fact in true),
        "wrong": sum(fact.is_wrong for fact in listed),
        "not proven": [fact.text for fact in true if not fact.answer],
        "seconds": seconds,
    }


def queries() -> dict[str, bool | None]:
    """What jax.export is asked under a >= 8, a % 8 == 0, b <= 512 (its symbols are positive)."""
    known = Assumptions({"a": Symbol(8, None, 8), "b": Symbol(1, 512)})
    answers: dict[str, bool | None] = {}
    for text in QUERIES:
        relation = next(r for r in ("==", "<=", ">=") if r in text)
        left, right = map(parse_dim, text.split(relation))
        if relation == "==":
            answers[text] = known.is_equal(left, right)
        else:
            low, high = (left, right) if relation == "<=" else (right, left)
            answers[text] = known.at_most(low, high)
    return answers


def main() -> None:
    results = {
        "algebra": algebra(), "construction, us": construction(), "proofs": proofs(),
        "queries": queries(),
    }  # fmt: skip
    print(json.dumps(results, indent=2))
    path = Path(__file__).parent / "results" / "symbols.json"
    path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
