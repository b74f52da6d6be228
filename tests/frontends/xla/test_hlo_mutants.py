"""Damaged files: whatever is wrong with one, the reader says so with a UserError.

The long runs are `python -m girih.tests.fuzz.run hlo_text hlo_protobuf`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from girih.frontends.xla import read_hlo
from girih.hlo.errors import UserError
from girih.hlo.verify import verify
from girih.tests.fuzz.mutate import MUTATORS

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "readers" / "hlo"
MUTANTS = 1500


@pytest.mark.parametrize(
    ("name", "kind"), [("opcodes.hlo", "text"), ("tensorflow_form.hlo.pb", "protobuf")]
)
def test_mutants_are_read_or_refused(name: str, kind: str) -> None:
    data = (SAMPLES / name).read_bytes()
    other = (SAMPLES / ("step.hlo" if kind == "text" else "step.hlo.pb")).read_bytes()
    refused = 0
    for number in range(MUTANTS):
        mutant = MUTATORS[kind](random.Random(number), data, [other])
        try:
            verify(read_hlo(mutant))
        except UserError:
            refused += 1
    assert MUTANTS // 5 < refused < MUTANTS
