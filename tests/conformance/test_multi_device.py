"""StableHLO's own programs of several devices: every one gives the numbers that it expects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import girih
from girih.frontends.stablehlo import read_tree

from . import multi_device
from .compare import agrees
from .programs import read_programs
from .runner import Case, read_cases, spelled_out

ARCHIVE = Path(__file__).parent / "stablehlo_interpret.tar.xz"
PROGRAMS = {name: text for name, text in read_programs(ARCHIVE) if "run_parallel" in text}
CASES = [c for name, text in PROGRAMS.items() for c in read_cases(name, text) if c.parallel]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_program(case: Case) -> None:
    results = multi_device.run(case)
    assert len(results) == 2 * len(case.checks) > 0
    for check, actual, expected in zip(case.checks, results[::2], results[1::2], strict=True):
        assert agrees(check, actual, expected)


def test_all_programs_are_there() -> None:
    assert len(CASES) == 36
    assert {"infeed", "send_recv", "replica_id"} <= {case.name for case in CASES}


def test_outfeed_has_no_checks_of_its_own() -> None:
    name = next(name for name in PROGRAMS if name.endswith("outfeed"))
    document = read_tree(spelled_out(PROGRAMS[name]), name)
    module = multi_device.entry(document, "outfeed")
    data = np.arange(8, dtype=np.int64).reshape(2, 2, 2)
    found = girih.interpret_parallel(module, [[data, None]])
    assert found.results == [[]]
    np.testing.assert_array_equal(found.outfeed[0][0][0], data)
