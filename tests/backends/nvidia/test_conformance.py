"""StableHLO's own test programs, compiled as a whole and run in the simulator: a sample of them.

All of them: `python -m girih.tests.conformance.runner ARCHIVE --on ptx-sim`.
"""

from __future__ import annotations

import pytest

from girih.tests.conformance.programs import CHOSEN, INTERPRETER, read_programs
from girih.tests.conformance.runner import verdicts

EVERY, SHARDS = 24, 4
DEVICES = "UnsupportedError: several devices"
PROGRAMS = sorted([*read_programs(CHOSEN), *read_programs(INTERPRETER)])[::EVERY]


@pytest.mark.parametrize("shard", range(SHARDS))
def test_programs(shard: int) -> None:
    found = verdicts(PROGRAMS[shard::SHARDS], "ptx-sim")
    assert not {name: said for name, said in found.items() if said not in ("pass", DEVICES)}
    assert sum(said == "pass" for said in found.values()) > 8
