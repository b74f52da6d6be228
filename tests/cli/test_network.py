"""What processes of a launcher measure of each other."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from girih.backends.cpu import machines
from girih.cli.network import SIZES, line
from girih.optimizer.machine import ENGINES, KINDS, from_json, to_json

from ..runtime.distributed.launch import launched, needs_mpi

seconds = st.floats(1e-7, 1e-2)


@given(seconds, st.floats(1e-12, 1e-7))
def test_a_line_through_what_lies_on_one(call, byte):
    found = line([(size, call + byte * size) for size in SIZES])
    assert found == pytest.approx((call, byte), rel=1e-6, abs=1e-9 * call)


@given(st.lists(seconds, min_size=4, max_size=4))
def test_neither_is_negative(taken):
    found = line(list(zip(SIZES, taken, strict=True)))
    assert min(found) >= 0 and max(found) > 0


def calibrated(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    file = folder / "rank.py"
    file.write_text(CALIBRATE)
    return launched(2, file, *arguments, XDG_CACHE_HOME=str(folder), LOCALAPPDATA=str(folder))


CALIBRATE = """
import sys
from girih.backends.cpu import machines
from girih.cli import machine, network
if len(sys.argv) > 1 and machine.own_rank() == 0:
    machines.keep(machines.typical("baseline"))
machine.the_world().communicator.Barrier()
network.SECONDS, network.SIZES = 0.01, (1 << 12, 1 << 16)
machine.show_machine(None, True, True)
"""


@pytest.mark.mpi
@needs_mpi
def test_calibration_under_a_launcher_measures_what_is_between(tmp_path):
    done = calibrated(tmp_path, "known")
    assert done.returncode == 0, done.stderr
    measured = from_json(done.stdout)  # of one process: two documents were no JSON
    rows = {(row.kind, row.engine) for row in measured.network}
    assert rows == {(k, e) for k in KINDS for e in ENGINES} - {("exchange", "library")}
    assert {row.processes for row in measured.network} == {2}
    assert replace(measured, network=()) == machines.typical("baseline")
    (file,) = (tmp_path / "girih" / "machines").iterdir()
    assert file.read_text() == to_json(measured) and json.loads(file.read_text())["network"]


@pytest.mark.mpi
@needs_mpi
def test_cores_are_measured_before(tmp_path):
    done = calibrated(tmp_path)
    assert done.returncode != 0
    assert "run first girih machine --calibrate without a launcher" in done.stderr
    assert not (tmp_path / "girih" / "machines").exists()
