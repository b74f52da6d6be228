"""StableHLO's own test programs on both engines: they agree, all of them, quantised ones too."""

from __future__ import annotations

import numpy as np
import pytest

from .compare import Check, agrees, ulp_distance
from .programs import CHOSEN, INTERPRETER, read_programs
from .runner import read_cases, run, verdict, verdicts

SHARDS = 16
PROGRAMS = sorted([*read_programs(CHOSEN), *read_programs(INTERPRETER)])
CHECKED = 1_500  # cases that these programs hold, at least
# The compiled code runs on one device.
DEVICES = "UnsupportedError: several devices"


@pytest.mark.parametrize("shard", range(SHARDS))
def test_interpreted(shard: int) -> None:
    agree("interpreter", shard, {"pass"})


@pytest.mark.usefixtures("each_level")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_compiled(shard: int) -> None:
    agree("cpu", shard, {"pass", DEVICES})


def agree(engine: str, shard: int, fine: set[str]) -> None:
    """The programs of one shard pass, nearly all of them."""
    found = verdicts(PROGRAMS[shard::SHARDS], engine)
    assert not {name: said for name, said in found.items() if said not in fine}
    assert len(found) > CHECKED / SHARDS / 2
    assert sum(said == "pass" for said in found.values()) > 0.8 * len(found)


def test_every_program_is_read() -> None:
    cases = [case for name, text in PROGRAMS for case in read_cases(name, text)]
    assert len(cases) >= CHECKED
    assert len({case.name for case in cases}) == len(cases)
    assert sum(len(case.checks) for case in cases) >= len(cases)


def test_the_checks_can_fail() -> None:
    name, text = next(item for item in PROGRAMS if item[0].startswith("add"))
    case = next(read_cases(name, text))
    actual, expected = run(case, "interpreter")[:2]
    assert agrees(case.checks[0], actual, expected)
    assert not agrees(case.checks[0], actual, expected + np.ones_like(expected))
    wrong = text.replace("stablehlo.add", "stablehlo.multiply")
    assert wrong != text
    assert verdict(next(read_cases(name, wrong)), "interpreter") == "wrong"


def test_distances_are_counted_in_floats() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        x = np.array([0, -0.0, 1, -1, np.inf, np.nan, 3], dtype)
        y = np.nextafter(np.nextafter(x, dtype(9)), dtype(9))
        assert ulp_distance(x, x) == [0] * 7
        assert ulp_distance(x[[0, 2, 3]], y[[0, 2, 3]]) == [2, 2, 2]
        assert ulp_distance(x[[1]], x[[0]]) == [0]
        assert min(ulp_distance(x[[4, 5]], x[[6, 6]])) > 1 << 60
    close = Check("expect_close", max_ulp_difference=1)
    one = np.array([1.0], np.float32)
    assert agrees(close, one, np.nextafter(one, np.float32(2)))
    assert not agrees(close, one, one + np.float32(1e-6))
