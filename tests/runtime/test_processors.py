"""Which code for CPUs runs on which machine: processors are data, and not this one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import girih
from girih.backends.cpu.codegen import level_target, make_target
from girih.compiler import with_targets
from girih.hlo.build import build_module
from girih.hlo.errors import UserError
from girih.hlo.types import F32, TensorType
from girih.runtime.bundle import Bundle, Check
from girih.runtime.bundle_writer import write
from girih.runtime.devices import cpu, processors
from girih.runtime.devices.processors import Processor
from girih.runtime.loading import choose_variant
from girih.runtime.parts import copied_parts

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


def away() -> str:
    return "cpu:avx2" if processors.this_processor().architecture == "aarch64" else "cpu:neon"


def test_what_is_compiled_anew_keeps_its_numerics_and_checks(tmp_path):
    program = girih.compile(MODULE, target=away(), options=girih.Options(numerics="bitwise"))
    golden = tuple(girih.interpret(MODULE, [X]))
    path = tmp_path / "away.girih"
    program.with_golden([Check((X,), golden, 1e-6)]).save(path)
    with pytest.warns(UserWarning, match="compiled anew; to avoid that, compile .*--add cpu$"):
        found = girih.load(path)
    assert found.parts.provenance["options"]["numerics"] == "bitwise"
    ((error, _),) = found.run_checks()
    assert error <= 1e-6 and sorted(found.parts.variants) == ["cpu", away()]
    found.save(tmp_path / "again.girih")
    again = girih.load(tmp_path / "again.girih")  # without a warning
    assert again.target == "cpu" and len(again.run_checks()) == 1


def test_code_of_others_is_not_kept_where_it_is_compiled_anew(tmp_path):
    path = tmp_path / "theirs.girih"
    girih.compile(MODULE, target=["cpu", away()]).save(path, seal=False)
    with pytest.warns(UserWarning, match="not compiled by this user"):
        found = girih.load(path)
    assert list(found.parts.variants) == ["cpu"]
    np.testing.assert_allclose(found(X)[0], np.tanh(X), rtol=1e-5)


def test_code_of_others_is_not_sealed_by_who_did_not_run_it(tmp_path):
    path, copy = tmp_path / "theirs.girih", tmp_path / "copy.girih"
    girih.compile(MODULE, target=["cpu", "null"]).save(path, seal=False)
    with pytest.warns(UserWarning, match="cpu was not compiled by you, so the bundle is not seal"):
        girih.load(path, target="null").save(copy)
    assert not Bundle(copy).is_trusted
    girih.load(path, allow_native=True).save(copy)
    assert Bundle(copy).is_trusted


def test_damaged_numerics_of_a_bundle(tmp_path):
    program = girih.compile(MODULE, target=away())
    for value in ("quick", 3, ["bitwise"]):
        provenance = {"options": {"numerics": value}}
        write(tmp_path / "x.girih", copied_parts(program.parts, provenance=provenance))
        with (
            pytest.raises(UserError, match="the bundle's provenance is malformed: numerics"),
            pytest.warns(UserWarning, match="compiled anew"),
        ):
            girih.load(tmp_path / "x.girih")


def test_the_best_of_the_cpus_code_where_a_cpu_is_asked_for(bundle, pretend):
    pretend("haswell")
    choice = choose_variant(Bundle(bundle), "cpu")
    assert choice.target == "cpu:avx2" and "uses most features" in choice.reason
    pretend("cortex-a72")
    assert choose_variant(Bundle(bundle), "cpu").target == "cpu:neon"


def test_where_nobody_tells_the_features_the_fewest_are_needed(bundle, monkeypatch):
    monkeypatch.setattr(cpu, "this_processor", lambda: Processor("x86_64", None))
    choice = choose_variant(Bundle(bundle))
    assert choice.target == "cpu:baseline" and "needs fewest features" in choice.reason


def test_choices_that_were_measured_are_kept_for_every_target(tmp_path):
    square = TensorType((128, 128), F32)
    module = build_module(
        [square, square],
        lambda b, x, y: [
            b("dot_general", x, y, lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,))
        ],
    )
    here = "neon" if processors.this_processor().architecture == "aarch64" else "baseline"
    options = girih.Options(measure=2, threads=1, cache="off")
    program = girih.compile(module, target=["cpu", f"cpu:{here}"], options=options)
    alone = girih.compile(module, target="cpu", options=options)
    several = set((program.parts.tuning or {})["kernels"])
    assert several >= set((alone.parts.tuning or {})["kernels"])
    assert here == "neon" or len(several) == 2
    again = with_targets(program, ["cpu"])
    assert again.parts.tuning == program.parts.tuning
    assert not [note for note in again.plan.notes if "not in the tuning" in note]


def test_workers_stay_as_they_were_asked_for():
    options = girih.Options(threads=1)
    program = girih.compile(MODULE, target=["cpu", "cpu:baseline", "cpu:neon"], options=options)
    assert program.profile(X) is not None and program._workers["threads"] == 1


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
        ("cpu:", {}, "there is no target 'cpu:'; for CPUs there are"),
        ("avx2", {}, "there is no target 'avx2'; targets are cpu .*, cpu:avx2 and other levels"),
        (None, {}, "target: a name such as 'cpu', or a list of names, not None"),
        (b"cpu", {}, "or a list of names, not b'cpu'"),
        (["cpu", 5], {}, "or a list of names, not 5"),
        ("cpu", {"cpu_level": "avx2"}, "unknown level 'avx2' .*name a target, cpu:avx2"),
        ("cpu:avx2", {"cpu_level": "avx2"}, "both name a level; drop one"),
        ("cpu:avx2", {"measure": 2}, "cannot run its code"),
        ("cpu:avx2", {"machine": "host"}, "machine 'host' is another architecture"),
    ],
)
def test_what_cannot_be_asked(monkeypatch, target, options, said):
    neon = level_target("neon")
    monkeypatch.setattr(
        "girih.backends.cpu.facade.host_target",
        lambda level=None: make_target(neon.triple, set(neon.features), level),
    )
    with pytest.raises(UserError, match=said):
        girih.compile(MODULE, target=target, options=girih.Options(**options))


def test_what_is_wrong_with_a_later_target_is_said_first():
    def source(x):
        raise AssertionError("it was traced")

    for wrong in ("cpu:sse9", "nvidia:sm_1", "tpu"):
        with pytest.raises(UserError, match="no target|unknown architecture"):
            girih.compile(source, X, target=["cpu", wrong])
