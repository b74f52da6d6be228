"""Choices that a tuning or a measurement decides: the code follows them, and nothing else does."""

from __future__ import annotations

import json

import numpy as np
import pytest
from google.protobuf import json_format

import girih
from girih.runtime import timing
from girih.runtime.bundle import Bundle
from girih.specs.generated import bundle_pb2

pytest.importorskip("llvmlite")

MODEL = """
func.func @main(%x: tensor<100x192xf32>, %w: tensor<192x160xf32>) -> tensor<100x160xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<100x192xf32>, tensor<192x160xf32>) -> tensor<100x160xf32>
  %1 = stablehlo.tanh %0 : tensor<100x160xf32>
  return %1 : tensor<100x160xf32>
}
"""
SMALLER = MODEL.replace("100x", "90x")


def compiled(source: object = MODEL, **options):
    return girih.compile(source, options=girih.Options(cache="off", **options))


def saved(program, path):
    program.save(path, seal=False)
    return path.read_bytes()


def image(program):
    return bytes(program.parts.variants["cpu"].image)


@pytest.fixture
def last_wins(monkeypatch):
    """A clock that calls the last variant the fastest; what it was asked to time."""
    timed = []

    def clock(variants, threads=None):
        timed.append(len(variants))
        return [1.0 / (number + 1) for number in range(len(variants))]

    monkeypatch.setattr(timing, "fastest", clock)
    return timed


def tuning_of(program) -> dict:
    """The choices that the program's bundle keeps."""
    assert program.parts.tuning is not None
    return program.parts.tuning


@pytest.fixture
def never(monkeypatch):
    def clock(variants, threads=None):
        raise AssertionError("timed")

    monkeypatch.setattr(timing, "fastest", clock)


def test_a_measured_bundle_is_compiled_again_to_the_same_bytes(tmp_path):
    program = compiled(measure=3)
    (entry,) = tuning_of(program)["kernels"].values()
    assert entry["measured"] > 0 and entry["predicted"] > 0 and entry["machine"]
    assert entry["kernel"] == "dot_general_tanh 1x100x160x192"
    first = saved(program, tmp_path / "first.girih")
    assert not program.plan.notes
    again = compiled(tuning=str(tmp_path / "first.girih"), locked=True, strict=True)
    assert saved(again, tmp_path / "second.girih") == first
    assert saved(compiled(tmp_path / "first.girih"), tmp_path / "third.girih") == first
    assert saved(compiled(first), tmp_path / "fourth.girih") == first
    assert saved(compiled(again), tmp_path / "fifth.girih") == first
    (tmp_path / "tuning.json").write_text(json.dumps(program.parts.tuning))
    named = compiled(tuning=str(tmp_path / "tuning.json"))
    assert saved(named, tmp_path / "sixth.girih") == first


def test_a_tuning_decides_the_blocking(tmp_path, last_wins):
    usual = compiled()
    measured = compiled(measure=4)
    assert last_wins == [4]
    assert image(measured) != image(usual)
    x, w = (
        np.random.default_rng(0).standard_normal(s, np.float32) for s in ((100, 192), (192, 160))
    )
    np.testing.assert_allclose(measured(x, w)[0], usual(x, w)[0], rtol=1e-4, atol=1e-5)
    saved(measured, tmp_path / "x.girih")
    assert image(compiled(tuning=str(tmp_path / "x.girih"))) == image(measured)
    assert last_wins == [4]


def test_nothing_is_timed_without_measure(tmp_path, never):
    with pytest.raises(AssertionError, match="timed"):
        compiled(measure=2)
    plain = saved(compiled(), tmp_path / "x")
    assert saved(compiled(locked=True), tmp_path / "y") == plain
    assert "tuning.json" not in Bundle(plain).members
    assert "tuning" not in [feature["name"] for feature in Bundle(plain).manifest["features"]]


def test_measure_and_locked_exclude_each_other():
    with pytest.raises(girih.UserError, match="measure and locked"):
        compiled(measure=2, locked=True)
    with pytest.raises(girih.UserError, match="target null runs nothing"):
        girih.compile(MODEL, target="null", options=girih.Options(measure=1))


def test_kernels_that_a_tuning_lacks(tmp_path, last_wins):
    saved(compiled(measure=2), tmp_path / "x.girih")
    options = {"tuning": str(tmp_path / "x.girih"), "locked": True}
    other = compiled(SMALLER, **options)
    assert image(other) == image(compiled(SMALLER))
    assert [n for n in other.plan.notes if "1 kernel (dot_general_tanh 1x90x160x192) not in" in n]
    with pytest.raises(girih.UserError, match="strict: .*not in the tuning"):
        compiled(SMALLER, strict=True, **options)
    both = compiled(SMALLER, tuning=options["tuning"], measure=2)  # only what is lacking is timed
    assert last_wins == [2, 2] and not both.plan.notes
    if "avx2" in compiled().plan.features:
        assert compiled(cpu_level="baseline", **options).plan.notes


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 1000},
        {"rows": 0},
        {"groups": 1 << 70},
        {"pack_left": 1},
        {"more": 1},
        {"rows": [1]},
    ],
)
def test_a_choice_that_no_kernel_has(tmp_path, last_wins, change):
    document = tuning_of(compiled(measure=2))
    for entry in document["kernels"].values():
        entry["choice"] = {**entry["choice"], **change}
    (tmp_path / "x.json").write_text(json.dumps(document))
    program = compiled(tuning=str(tmp_path / "x.json"))
    assert image(program) == image(compiled()) and "not in the tuning" in program.plan.notes[-1]


def test_files_that_are_no_tuning(tmp_path):
    plain, text = tmp_path / "x.girih", tmp_path / "x.json"
    saved(compiled(), plain)
    text.write_text("{")
    for path, words in (
        (plain, "holds no tuning; compile with measure"),
        (text, "is damaged: it is no JSON"),
        (tmp_path / "no.json", "cannot read .*no.json"),
        (tmp_path, "cannot read"),
        ("a\0b", "cannot read"),
    ):
        with pytest.raises(girih.UserError, match=words):
            compiled(tuning=str(path))


def test_an_altered_tuning_in_a_bundle(tmp_path, last_wins):
    data = saved(compiled(measure=2), tmp_path / "x.girih")
    bundle = Bundle(data)
    assert list(bundle.members)[-2:] == ["tuning.json", "provenance.json"]
    assert bundle.verify_all() == len(bundle.members)
    message = json_format.Parse(bytes(bundle.member("tuning.json")), bundle_pb2.Tuning())
    assert len(message.kernels) == 1 and message.version == 1
    changed = data.replace(b'"blocks": 1', b'"blocks": 2')
    assert changed != data
    for use in (lambda: Bundle(changed).verify_all(), lambda: compiled(changed)):
        with pytest.raises(girih.UserError, match=r"tuning\.json does not fit"):
            use()
    assert saved(girih.load(data, allow_native=True), tmp_path / "y.girih") == data


def test_tilings_of_connected_groups(tmp_path, last_wins):
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(0)
    x, u, v = (rng.standard_normal(s, np.float32) for s in ((16384, 64), (64, 256), (256, 64)))

    def layers(x):
        return jax.nn.gelu(x @ u) @ v

    def make(**options):
        chosen = girih.Options(cache="off", machine=None, cpu_level=None, **options)
        return girih.compile(layers, x, options=chosen)

    usual, measured = make(), make(measure=3)
    if not any(kernel.kind == "tile" for kernel in usual.plan.kernels):
        pytest.skip("nothing is connected on this machine")
    (entry,) = tuning_of(measured)["kernels"].values()
    assert set(entry["choice"]) == {"sizes", "step", "way"}
    assert last_wins == [3] and image(measured) != image(usual)
    np.testing.assert_allclose(measured(x), usual(x), rtol=1e-3, atol=1e-3)
    first = saved(measured, tmp_path / "x.girih")
    assert saved(make(tuning=str(tmp_path / "x.girih"), locked=True), tmp_path / "y.girih") == first
    document = tuning_of(measured)
    next(iter(document["kernels"].values()))["choice"]["sizes"] = [7, 7]
    (tmp_path / "x.json").write_text(json.dumps(document))
    other = make(tuning=str(tmp_path / "x.json"))
    assert image(other) == image(usual) and "not in the tuning" in other.plan.notes[-1]
