"""`girih doctor` names what a file is and what would mend it; `girih convert` writes for readers
of an older format."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module, build_region
from girih.hlo.types import F32, TensorType
from girih.hlo.wire import encode, read_message
from girih.runtime.archive import Archive
from girih.runtime.bundle import Bundle
from girih.runtime.devices.processors import this_processor

from ..runtime.fakes import FLAT, adding_program

TESTS = Path(__file__).parents[1]
SAMPLES = TESTS / "data" / "readers"
ROW = TensorType((4,), F32)
TANH = build_module([ROW], lambda b, x: [b("tanh", x)])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A bundle for the null target: everything but machine code."""
    path = tmp_path_factory.mktemp("doctor") / "tanh.girih"
    girih.compile(TANH, target="null").save(path, seal=False)
    return path


@pytest.fixture
def examined(girih_command):
    def call(path: Path, *options: str, code: int) -> dict:
        found, out, err = girih_command("doctor", path, "--json", *options)
        assert (found, err) == (code, ""), out + err
        document = json.loads(out)
        assert document["exit_code"] == code
        return document

    return call


@pytest.mark.parametrize(
    "name, kind, version",
    [
        ("data/readers/pretty.mlir", "StableHLO text", ""),
        ("data/readers/classifier.jax_export", "jax.export file", "calling convention"),
        ("fuzz/seeds/archive/mixed.pt2", "PyTorch archive (.pt2)", "8."),
        ("data/readers/hlo/step.hlo", "XLA HLO text", ""),
        ("data/readers/hlo/step.hlo.pb", "XLA HLO protobuf", ""),
    ],
)
def test_every_kind_of_source_is_known(examined, name, kind, version):
    found = examined(TESTS / name, code=0)
    assert found["kind"] == kind and found["version"].startswith(version)
    assert found["can"] == {"read": True, "compile": True} and not found["problems"]
    assert sum(found["operations"].values()) > 0


def test_all_blockers_of_an_import_are_problems(examined):
    found = examined(SAMPLES / "stablehlo_1_20_0.mlirbc", code=2)
    assert (found["kind"], found["version"]) == ("StableHLO portable artifact", "1.20.0")
    assert found["can"]["read"] is False
    assert all(problem["remedy"] for problem in found["problems"])
    assert any("custom call 'foo'" in problem["reason"] for problem in found["problems"])


def test_files_that_are_nothing(examined, tmp_path):
    for content in (b"", b"\0\1\2" * 50, b"# a page\n\nabout something\n"):
        path = tmp_path / "file"
        path.write_bytes(content)
        (problem,) = examined(path, code=2)["problems"]
        assert problem["reason"] and problem["remedy"]
    (problem,) = examined(tmp_path / "absent", code=2)["problems"]
    assert "No such file" in problem["reason"]


def test_a_bundle_that_works(examined, compiled, girih_command):
    found = examined(compiled, code=0)
    assert found["kind"] == "girih bundle" and found["version"] == "1.0"
    assert found["needs"] == {"op:tanh": "1.0", "type:f32": "1.0"}
    assert found["can"] == {"read": True, "run": True, "compile": True}
    assert [variant["target"] for variant in found["variants"]] == ["null"]
    code, out, _ = girih_command("doctor", compiled)
    assert code == 0 and "can run" in out and "problem" not in out
    assert examined(compiled, "--compile", code=0)["can"]["compile"]


def test_damage_is_found_where_it_is(examined, compiled, tmp_path):
    data = bytearray(compiled.read_bytes())
    place = Archive(bytes(data)).entries["provenance.json"].start
    data[place + 5] ^= 1
    broken = tmp_path / "broken.girih"
    broken.write_bytes(data)
    reasons = [p["reason"] for p in examined(broken, code=2)["problems"]]
    assert any("provenance.json" in reason for reason in reasons)
    broken.write_bytes(compiled.read_bytes()[:-100])
    (problem,) = examined(broken, code=2)["problems"]
    assert "damaged" in problem["reason"] and "fresh copy" in problem["reason"]


def test_a_program_from_the_future(examined, tmp_path):
    message = read_message(encode(TANH))
    message.minimum_reader = "1.7"
    message.features.add(name="op:dream", since="1.7")
    program = adding_program(FLAT)
    girih.Program.from_parts(
        message.SerializeToString(), FLAT, {"adding": (program.plan, b"")}
    ).save(tmp_path / "new.girih")
    found = examined(tmp_path / "new.girih", code=2)
    problem = found["problems"][0]
    assert "format 1.7 for op:dream" in problem["reason"] and "newer girih" in problem["remedy"]
    assert found["needs"]["op:dream"] == "1.7"


def test_variants_that_do_not_run_here(examined, tmp_path, monkeypatch):
    path, program = tmp_path / "elsewhere.girih", girih.compile(TANH)
    if not program.plan.features:  # as on x86-64 without more than every one has
        program = with_plan(program, features=["sse2"])
    program.save(path, seal=False)
    found = examined(path, code=1)
    assert "not compiled by this user" in found["problems"][0]["reason"]
    assert found["can"]["run"]  # compiled anew
    assert found["variants"][0]["features"]
    older = this_processor()._replace(features=frozenset())
    monkeypatch.setattr("girih.runtime.devices.cpu.this_processor", lambda: older)
    found = examined(path, code=1)
    assert any("CPU features" in problem["reason"] for problem in found["problems"])
    monkeypatch.setattr("girih.cli.doctor.is_installed", lambda package: False)
    found = examined(path, code=1)
    assert not found["can"]["run"] and not found["can"]["compile"]
    assert any("girih[cpu]" in problem["remedy"] for problem in found["problems"])


def with_plan(program, **fields):
    """A program of TANH whose plan says something else."""
    plan = type(program.plan)()
    plan.CopyFrom(program.plan)
    plan.MergeFrom(type(plan)(**fields))
    image = program.parts.variants["cpu"].image
    return girih.Program.from_parts(encode(TANH), program.signature, {"cpu": (plan, image)}, {})


def test_a_plan_from_the_future(examined, tmp_path):
    program = girih.compile(TANH)
    with_plan(program, format_version="9.0").save(tmp_path / "new.girih")
    found = examined(tmp_path / "new.girih", code=1)
    assert "plan has format 9.0" in found["problems"][0]["reason"]
    with pytest.warns(UserWarning, match=r"format 9\.0.*compiled anew"):
        loaded = girih.load(tmp_path / "new.girih")
    x = np.ones(4, np.float32)
    np.testing.assert_array_equal(loaded(x)[0], program(x)[0])


def test_code_for_another_cpu_is_no_problem_beside_code_for_this_one(examined, tmp_path):
    other = "cpu:neon" if this_processor().architecture == "x86_64" else "cpu:baseline"
    girih.compile(TANH, target=["cpu", other]).save(tmp_path / "both.girih")
    found = examined(tmp_path / "both.girih", code=0)
    assert found["can"]["run"] and not found["problems"]
    (variant,) = (one for one in found["variants"] if one["target"] == other)
    assert "the bundle's code is for" in variant["reason"] and not variant.get("runs")


class TestConvert:
    def test_a_kernel_becomes_its_reference(self, girih_command, tmp_path):
        path, old = tmp_path / "new.girih", tmp_path / "old.girih"
        doubled(reference=True).save(path)
        code, out, err = girih_command("convert", path, "--format", "1.0", "-o", old)
        assert (code, err) == (0, "") and "program format 1.0 (was 1.1)" in out
        assert read_message(Bundle(old).program).minimum_reader == "1.0"
        x = np.arange(8, dtype=np.float32)
        np.testing.assert_array_equal(girih.load(old)(x)[0], 2 * x)
        again = tmp_path / "again.girih"
        girih.load(path).save(again, version="1.0")
        assert again.read_bytes() == old.read_bytes()

    def test_what_cannot_be_said_is_listed(self, girih_command, tmp_path):
        path = tmp_path / "new.girih"
        doubled(reference=False).save(path)
        code, out, err = girih_command(
            "convert", path, "--format", "1.0", "-o", tmp_path / "old.girih"
        )
        assert code == 2 and not out and "kernel_call" in err and "reference=" in err
        assert not (tmp_path / "old.girih").exists()

    def test_a_program_that_uses_nothing_new_stays(self, girih_command, compiled, tmp_path):
        same = tmp_path / "same.girih"
        code, out, _ = girih_command("convert", compiled, "--format", "1.0", "-o", same, "--json")
        assert code == 0 and json.loads(out)["format"] == "1.0"
        assert same.read_bytes() == compiled.read_bytes()

    def test_damage_is_not_sealed(self, girih_command, compiled, tmp_path):
        broken = tmp_path / "broken.girih"
        shutil.copy(compiled, broken)
        data = bytearray(broken.read_bytes())
        data[Archive(bytes(data)).entries["program.pb"].start] ^= 1
        broken.write_bytes(data)
        code, _, err = girih_command(
            "convert", broken, "--format", "1.0", "-o", tmp_path / "out.girih"
        )
        assert code == 2 and "program.pb" in err


def doubled(reference: bool) -> girih.Program:
    """2 * x by a kernel."""
    from girih.hlo.types import I32

    kind, tile = TensorType((8,), F32), TensorType((4,), F32)

    def body(b, x, out):
        four = b.constant(4, TensorType((), I32))
        at = b("multiply", b("tile_id", axis=0), four)
        value = b("tile_load", x, at, sizes=tile.dims)
        b.op("tile_store", [out, b("add", value, value), at], {})
        return []

    regions = [build_region([kind, kind], body)]
    if reference:
        regions.append(build_region([kind], lambda b, x: [b("add", x, x)]))
    attributes = {"kernel": "double", "grid": (2,)}
    module = build_module(
        [kind], lambda b, x: [b.op("kernel_call", [x], attributes, regions, [kind]).result]
    )
    return girih.compile(module)
