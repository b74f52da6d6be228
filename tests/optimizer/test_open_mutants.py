"""What is wrong with open programs and their plans is seen; `benchmarks/random_programs.py
--mutants` tries many."""

from __future__ import annotations

import pytest

from .open_mutants import SAME, mutant_of_program, mutants_of_plan


def test_wrong_plans_are_caught() -> None:
    found = [mutant for seed in range(8) for mutant in mutants_of_plan(seed)]
    assert {"tiles", "extent", "place"} <= {mutant.kind for mutant in found}
    assert any(mutant.is_caught for mutant in found)
    # A few show at sizes that the program itself does not try: of 1,000 programs' 3.6 %.
    missed = [mutant for mutant in found if not (mutant.is_caught or mutant.is_idle)]
    assert len(missed) <= len(found) // 10


# Of the first, a symbol's range needs more memory than there are addresses.
@pytest.mark.parametrize("seed", [13, 21, 32, *range(8)])
def test_wrong_programs_are_refused_or_right(seed: int) -> None:
    assert mutant_of_program(seed) in (SAME, "refused")
