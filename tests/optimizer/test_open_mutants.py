"""What is wrong with open programs and their plans is seen; `benchmarks/random_programs.py
--mutants` tries many."""

from __future__ import annotations

import pytest

from .open_mutants import SAME, mutant_of_program, mutants_of_plan


def test_wrong_plans_are_caught() -> None:
    found = [mutant for seed in range(8) for mutant in mutants_of_plan(seed)]
    assert {"tiles", "extent", "place"} <= {mutant.kind for mutant in found}
    effective = [mutant for mutant in found if not mutant.is_idle]
    # Extents that are one off read what lies behind an array: it is not the same in each process.
    assert all(mutant.is_caught for mutant in effective if mutant.kind != "extent")
    assert 2 * sum(mutant.is_caught for mutant in effective) > len(effective)


# Of the first, a symbol's range needs more memory than there are addresses.
@pytest.mark.parametrize("seed", [13, 21, 32, *range(8)])
def test_wrong_programs_are_refused_or_right(seed: int) -> None:
    assert mutant_of_program(seed) in (SAME, "refused")
