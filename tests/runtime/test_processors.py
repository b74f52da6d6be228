"""Which code for CPUs runs on which machine: processors are data, and not this one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import girih
from girih.backends.cpu.codegen import level_target
from girih.hlo.build import build_module
from girih.hlo.errors import UserError
from girih.hlo.types import F32, TensorType
from girih.runtime.bundle import Bundle
from girih.runtime.devices import cpu, processors
from girih.runtime.devices.processors import Processor
from girih.runtime.loading import choose_variant

LINE = TensorType((64,), F32)
MODULE = build_module([LINE], lambda b, x: [b("tanh", x)])
X = np.linspace(-2, 2, 64, dtype=np.float32)
LEVELS = ("baseline", "avx2", "avx512", "neon")
CPUINFO = {
    "nehalem": "fpu sse pni ssse3 sse4_1 sse4_2 popcnt cx16",
    "haswell": "fpu pni ssse3 sse4_1 sse4_2 popcnt cx16 avx avx2 bmi1 bmi2 f16c fma abm movbe",
}
CPUINFO["skylake-x"] = f"{CPUINFO['haswell']} avx512f avx512bw avx512cd avx512dq avx512vl"


def processor(name: str) -> Processor:
    if name == "cortex-a72":
        return Processor("aarch64", frozenset({"fp", "asimd"}))
    return Processor("x86_64", frozenset(CPUINFO[name].split()))


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("nehalem", ("baseline",)), ("haswell", ("baseline", "avx2")),
        ("skylake-x", ("baseline", "avx2", "avx512")), ("cortex-a72", ("neon",)),
    ],
)  # fmt: skip
def test_what_runs_where(name, runs):
    for level in LEVELS:
        target = level_target(level)
        reason = processor(name).lacks(target.triple, target.features)
        assert (reason == "") == (level in runs), (level, reason)
    here = Processor("x86_64", None)  # nobody tells its features
    assert not here.lacks("x86_64-unknown-linux-gnu", ["avx2"])
    assert "aarch64, this machine is x86_64" in here.lacks("aarch64-unknown-linux-gnu", ["neon"])


@pytest.mark.parametrize("text", ["processor : 0\nBogoMIPS : 1\n", "Features : fp aes\n", None])
def test_every_aarch64_has_neon(monkeypatch, text):
    """Containers may leave out the line of features, or the file."""

    def read(path: Path) -> str:
        if text is None:
            raise FileNotFoundError(path)
        return text

    monkeypatch.setattr(processors.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(Path, "read_text", read)
    found = processors.this_processor.__wrapped__()
    assert found.architecture == "aarch64" and "asimd" in (found.features or ())
    assert not found.lacks("aarch64-unknown-linux-gnu", ["neon"])


@pytest.fixture
def pretend(monkeypatch):
    """Makes this machine another one, as far as choosing code goes."""
    monkeypatch.setattr(cpu, "_permit_tiles", lambda: False)
    return lambda name: monkeypatch.setattr(cpu, "this_processor", lambda: processor(name))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("levels") / "levels.girih"
    girih.compile(MODULE, target=[f"cpu:{level}" for level in LEVELS]).save(path, seal=False)
    return path


@pytest.mark.parametrize(
    ("name", "level"),
    [("nehalem", "baseline"), ("haswell", "avx2"), ("skylake-x", "avx512"), ("cortex-a72", "neon")],
)
def test_the_best_code_is_chosen(bundle, pretend, name, level):
    pretend(name)
    choice = choose_variant(Bundle(bundle))
    assert choice.target == f"cpu:{level}" and not choice.problem
    assert "uses most features that this one has" in choice.reason
    others = (
        "cpu:neon's code is for aarch64" if level != "neon" else "cpu:avx2's code is for x86_64"
    )
    assert others in choice.reason


def test_the_code_of_this_machine_runs(bundle):
    program = girih.load(bundle, allow_native=True)
    assert program.target.startswith("cpu:") and "features" in program.reason
    np.testing.assert_allclose(program(X)[0], np.tanh(X), rtol=1e-5)
    assert sorted(Bundle(bundle).variants) == sorted(f"cpu:{level}" for level in LEVELS)


def test_equal_bytes_wherever_it_is_compiled(bundle, tmp_path):
    again = girih.compile(MODULE, target=[f"cpu:{level}" for level in LEVELS])
    again.save(tmp_path / "again.girih", seal=False)
    assert (tmp_path / "again.girih").read_bytes() == bundle.read_bytes()


def test_code_for_other_machines_is_saved_and_not_run(bundle, pretend, tmp_path):
    pretend("nehalem")
    program = girih.compile(MODULE, target="cpu:neon")
    assert program.target == "cpu:neon" and program.plan.target == "cpu:neon"
    with pytest.raises(UserError, match="code is for aarch64, this machine is x86_64; compile"):
        program(X)
    with pytest.raises(UserError, match="code is for aarch64"):
        program.prepare(X)
    path = tmp_path / "neon.girih"
    program.save(path)
    assert list(Bundle(path).variants) == ["cpu:neon"]
    with pytest.raises(UserError, match="neon.girih: the bundle's code is for aarch64"):
        girih.load(path, target="cpu:neon")


def test_what_does_not_run_is_compiled_anew(pretend, tmp_path, monkeypatch):
    """For this machine, whose code is the real one's."""
    path = tmp_path / "newer.girih"
    girih.compile(MODULE, target=["cpu:avx512", "cpu:neon"]).save(path)
    pretend("haswell")
    with pytest.raises(UserError, match="it was not compiled for 'cpu:avx2'"):
        girih.load(path, target="cpu:avx2")
    monkeypatch.setattr("girih.runtime.loading.is_installed", lambda name: False)
    with pytest.raises(UserError, match="no code for this machine: cpu:avx512's code needs CPU"):
        girih.load(path)
    monkeypatch.undo()
    foreign = tmp_path / "foreign.girih"
    girih.compile(MODULE, target="cpu:neon").save(foreign)
    if processors.this_processor().architecture == "aarch64":
        return
    with pytest.warns(UserWarning, match="code is for aarch64.*so the program is compiled anew"):
        program = girih.load(foreign)
    assert program.target == "cpu"
    np.testing.assert_allclose(program(X)[0], np.tanh(X), rtol=1e-5)


def test_workers_stay_as_they_were_asked_for():
    options = girih.Options(threads=1)
    program = girih.compile(MODULE, target=["cpu", "cpu:baseline", "cpu:neon"], options=options)
    assert program.profile(X) is not None and program._workers == {"threads": 1, "pin": False}


def test_the_first_that_runs_here_is_taken():
    other = "x86_64" if processors.this_processor().architecture == "aarch64" else "aarch64"
    first, here = ("cpu:neon", "cpu:baseline") if other == "aarch64" else ("cpu:avx2", "cpu:neon")
    program = girih.compile(MODULE, target=[first, here])
    assert program.target == here
    np.testing.assert_allclose(program(X)[0], np.tanh(X), rtol=1e-5)


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        (
            "cpu:sse9",
            {},
            "there is no target 'cpu:sse9'; for CPUs there are cpu .this one., cpu:amx",
        ),
        ("cpu:avx2", {"cpu_level": "avx2"}, "both name a level; drop one"),
        ("cpu:avx2", {"measure": 2}, "cannot run its code"),
        ("cpu:avx2", {"machine": "host"}, "machine 'host' is another architecture"),
    ],
)
def test_what_cannot_be_asked(monkeypatch, target, options, said):
    monkeypatch.setattr(
        "girih.backends.cpu.codegen.host_target", lambda level=None: level_target("neon")
    )
    with pytest.raises(UserError, match=said):
        girih.compile(MODULE, target=target, options=girih.Options(**options))
