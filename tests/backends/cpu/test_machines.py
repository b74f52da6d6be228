"""Machines of the CPU: which one code is made for, where this one is kept, and measuring it."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest

import girih
from girih.backends.cpu import calibrate, codegen, machines, probes
from girih.hlo.build import build_module
from girih.hlo.types import F32, TensorType
from girih.optimizer.machine import from_json, to_json
from girih.runtime.devices.cpu import map_image

MATRIX = TensorType((64, 256), F32)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))


@pytest.fixture(scope="module")
def load():
    kept = []

    def map_code(data):
        kept.append(map_image(data))
        return kept[-1].address

    return map_code


def product():
    def body(b, x, y):
        empty = {"lhs_batching_dimensions": (), "rhs_batching_dimensions": ()}
        sides = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (1,)}
        return [b.op("dot_general", [x, y], {**empty, **sides}).result]

    return build_module([MATRIX, MATRIX], body)


def test_each_level_has_a_machine():
    x86 = "x86_64-unknown-linux-gnu"
    for triple, features, bits, name in (
        (x86, ("avx512f",), 512, "avx512"), (x86, ("avx2",), 256, "avx2"),
        (x86, (), 128, "baseline"), ("aarch64-unknown-linux-gnu", ("neon",), 128, "neon"),
    ):  # fmt: skip
        target = codegen.Target(triple, features, bits)
        machine = machines.machine_of(target)
        assert machine.name == name
        assert machine.unit("f32").registers == target.vector_registers
        assert machine.unit("f32").lanes == target.lanes("float")
        assert machine.unit("f64").lanes == target.lanes("double")


def test_this_machine_must_be_calibrated_first():
    with pytest.raises(girih.UserError, match="not calibrated yet; run: girih machine --calibrate"):
        girih.compile(product(), options=girih.Options(machine="host"))
    with pytest.raises(girih.UserError, match="machine file 'nowhere.json' cannot be read"):
        girih.compile(product(), options=girih.Options(machine="nowhere.json"))


def test_a_kept_machine_is_found_again():
    machine = replace(machines.typical("avx2"), name="mine")
    path = machines.keep(machine)
    assert path == machines.host_file() and machines.find("host") == machine
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_provenance_names_the_machine(tmp_path):
    def recorded(**options):
        program = girih.compile(product(), options=girih.Options(**options))
        path = tmp_path / "program.girih"
        program.save(path)
        with zipfile.ZipFile(path) as bundle:
            return json.loads(bundle.read("provenance.json"))["options"]["machine"]

    typical = machines.machine_of(codegen.host_target())
    file = tmp_path / "mine.json"
    file.write_text(to_json(replace(typical, name="mine")))
    assert recorded() == typical.name
    assert recorded(machine=str(file)) == machines.label(replace(typical, name="mine"))
    file.write_text(to_json(replace(typical, executors=2)))
    assert recorded(machine=str(file)) != typical.name, "a changed typical machine is none"


def test_results_are_right_for_any_machine(tmp_path):
    rng = np.random.default_rng(0)
    x, y = (rng.random(MATRIX.dims, np.float32) for _ in range(2))
    tiny = json.loads(to_json(machines.typical("avx512")))
    for level, size in zip(tiny["levels"], (1 << 10, 1 << 12, 1 << 14, 1 << 30), strict=True):
        level["capacity"] = size
    file = tmp_path / "tiny.json"
    file.write_text(json.dumps(tiny))
    for choice in (None, str(file)):
        found = girih.compile(product(), options=girih.Options(machine=choice))(x, y)
        np.testing.assert_allclose(np.asarray(found[0]), x @ y.T, rtol=1e-5)


def one_turn(run, turns):
    """Every turn takes a microsecond, however long it took."""
    run(1)
    return turns * 1e-6


def few_turns(here, meet, system, number, turns, handover=calibrate._handover):
    return handover(here, meet, system, number, 3)


def test_calibration_fills_a_machine(load, monkeypatch):
    # That every figure is measured, by code that runs; not how fast this host is.
    monkeypatch.setattr(calibrate, "_timed", one_turn)
    monkeypatch.setattr(calibrate, "_handover", few_turns)
    monkeypatch.setattr(calibrate, "_DRAM_BYTES", 16 << 20)
    monkeypatch.setattr(calibrate, "_LARGEST_SHARED", 4 << 20)
    monkeypatch.setattr(probes, "register_blocks", lambda target: [(1, 1), (4, 1), (4, 2)])
    machine = calibrate.calibrate(codegen.host_target(), "this", 2, load, seconds=1)
    assert from_json(to_json(machine)) == machine
    assert machine.executors == 2 and len(machine.levels) >= 2
    assert machine.unit("f32").flops == pytest.approx(2 * machine.unit("f64").flops, rel=1e-3)
    for unit in machine.units:
        assert max(row.fraction for row in unit.efficiency) == 1
    for level in machine.levels:
        assert [row.executors for row in level.bandwidth] == [1, 2]
        assert level.rate(1) > 0 < level.latency
    assert machine.math.exp > 0 < machine.sync.step
    assert machine.sync.dispatch == 1e-6


def test_one_executor_needs_no_other(load, monkeypatch):
    laboratory = calibrate._Laboratory(codegen.host_target(), load, 0.001)
    sync = calibrate._sync(laboratory, 1)
    assert sync.step == sync.wake == 0 < sync.dispatch
