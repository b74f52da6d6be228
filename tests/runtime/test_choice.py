"""Which variant of a bundle runs where, and how the words for it read."""

from __future__ import annotations

import numpy as np
import pytest

import girih
from girih.hlo.errors import UserError
from girih.runtime import devices
from girih.runtime.bundle import Bundle, MemoryParts, Variant
from girih.runtime.bundle_writer import write
from girih.runtime.devices import cuda
from girih.runtime.devices.architectures import architecture_of, parse_architecture
from girih.runtime.devices.choice import choose, simulated
from girih.runtime.devices.nvidia import choose_code
from girih.runtime.loading import choose_variant

from .fakes import plan_for
from .gpu_fakes import FakeGpu, PlanOf, add_one, flat

ONES = np.ones(4, np.float32)


class Gpu(FakeGpu):
    def __init__(self, major: int, minor: int) -> None:
        super().__init__(add_one=add_one)
        self.capability = major, minor
        self.name = f"GPU {major}.{minor}"


GPUS = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)]


@pytest.mark.parametrize(
    ("name", "binary", "compiled"),
    [
        ("sm_80", [(8, 0), (8, 6), (8, 9)], GPUS[1:]),
        ("sm_86", [(8, 6), (8, 9)], GPUS[2:]),
        ("sm_90", [(9, 0)], GPUS[4:]),
        ("sm_90a", [(9, 0)], [(9, 0)]),
        ("sm_100f", [(10, 0), (10, 3)], [(10, 0), (10, 3)]),
        ("sm_120a", [(12, 0)], [(12, 0)]),
    ],
)
def test_which_gpus_take_code_for_an_architecture(name, binary, compiled):
    architecture = parse_architecture(name)
    assert str(architecture) == name
    for gpu in GPUS:
        assert architecture.runs_binary_on(gpu) == (gpu in binary)
        assert architecture.compiles_for(gpu) == (gpu in compiled)


@pytest.mark.parametrize("name", ["sm_9", "sm_090", "sm_90b", "90a", "sm_90a ", "", "sm_90aa"])
def test_names_that_are_no_architecture(name):
    with pytest.raises(UserError, match="is no architecture of NVIDIA"):
        parse_architecture(name)


def test_targets_of_other_families_have_no_architecture():
    assert architecture_of("cpu") is None and architecture_of("nvidia") is None
    assert devices.family("nvidia:sm_90a") == "nvidia" and devices.family("cpu") == "cpu"


VARIANTS = {
    "cpu": Variant(b""),
    "nvidia:sm_80": Variant(b"", cubins={"sm_80": b"", "sm_86": b""}),
    "nvidia:sm_90a": Variant(b""),
}


@pytest.mark.parametrize(
    ("gpu", "target", "reason"),
    [
        ((9, 0), "nvidia:sm_90a", r"PTX for sm_90a runs on GPU 9.0 \(sm_90\)"),
        ((8, 9), "nvidia:sm_80", "the cubin for sm_86 runs on GPU 8.9"),
        ((8, 0), "nvidia:sm_80", "the cubin for sm_80"),
        ((12, 0), "nvidia:sm_80", "PTX for sm_80"),
        ((7, 5), "cpu", r"nvidia:sm_80, nvidia:sm_90a, which does not run on GPU 7.5 \(sm_75\)"),
    ],
)
def test_the_best_variant_is_taken(gpu, target, reason):
    import re

    found = choose(VARIANTS, None, "file", lambda: [Gpu(*gpu)])
    assert found.target == target and re.search(reason, found.reason)
    assert (found.driver is None) == (target == "cpu")


def test_the_first_gpu_that_can_run_it_is_taken():
    gpus = [Gpu(7, 5), Gpu(8, 0), Gpu(9, 0)]
    assert choose(VARIANTS, None, "file", lambda: gpus).driver is gpus[1]
    assert choose(VARIANTS, "nvidia:sm_90a", "file", lambda: gpus).driver is gpus[2]


def _no_gpus():
    raise UserError("no NVIDIA driver can be loaded (x); get one")


def test_without_a_gpu_the_cpu_runs_unless_another_target_is_asked_for():
    found = choose(VARIANTS, None, "file", _no_gpus)
    assert found.target == "cpu" and "no NVIDIA driver" in found.reason
    for variants, target in ((VARIANTS, "nvidia"), ({"nvidia:sm_80": Variant(b"")}, None)):
        with pytest.raises(UserError, match=r"^file: no NVIDIA driver .*--simulate.*--add cpu"):
            choose(variants, target, "file", _no_gpus)
    assert choose(VARIANTS, "cpu", "file", _no_gpus).reason == "it was asked for"
    with pytest.raises(UserError, match="was not compiled for 'nvidia:sm_120a', only for"):
        choose(VARIANTS, "nvidia:sm_120a", "file", _no_gpus)


def test_the_newest_variant_is_simulated():
    made = simulated(VARIANTS, None, "file", lambda name: name)  # type: ignore[arg-type]
    assert made.target == made.driver == "nvidia:sm_90a"
    made = simulated(VARIANTS, "nvidia:sm_80", "file", lambda name: name)  # type: ignore[arg-type]
    assert made.target == "nvidia:sm_80"
    with pytest.raises(UserError, match="nothing to simulate"):
        simulated({"cpu": Variant(b"")}, None, "file", lambda name: name)  # type: ignore[arg-type]


def test_code_of_a_variant():
    gpu = Gpu(9, 0)
    cubins = {"sm_80": b"8", "sm_90a": b"9"}
    assert bytes(choose_code("nvidia:sm_80", b"ptx", cubins, gpu).data) == b"9"
    found = choose_code("nvidia:sm_80", b"ptx", {"sm_80": b"8"}, gpu)
    assert found.is_ptx and str(found) == "PTX for sm_80"
    with pytest.raises(UserError, match=r"is sm_89; .*retarget FILE --add nvidia:sm_89"):
        choose_code("nvidia:sm_90a", b"ptx", {}, Gpu(8, 9))
    with pytest.raises(UserError, match=r"is sm_120; .*retarget FILE --add nvidia:sm_120a"):
        choose_code("nvidia:sm_90a", b"ptx", cubins, Gpu(12, 0))
    with pytest.raises(UserError, match="no target of NVIDIA"):
        choose_code("adding", b"ptx", {}, gpu)


def parts() -> MemoryParts:
    plan = PlanOf().inputs(x=16).outputs(y=16).run("add_one", "x", "y").results("y").plan
    gpu = Variant(
        plan.SerializeToString(), b".version 8.3", native=True, cubins={"sm_90a": b"\x7fELF"}
    )
    host = plan_for(flat(1, 1)).SerializeToString()
    variants = {"nvidia:sm_90a": gpu, "adding": Variant(host)}
    return MemoryParts(b"program", {"main": flat(1, 1)}, variants=variants)


@pytest.fixture
def bundle(tmp_path):
    write(tmp_path / "both.girih", parts())
    return tmp_path / "both.girih"


def test_a_bundle_keeps_ptx_and_cubins(bundle, tmp_path):
    read = Bundle(bundle)
    assert "variants/nvidia-sm_90a/kernels.ptx" in read.members
    assert "variants/nvidia-sm_90a/sm_90a.cubin" in read.members
    variant = read.variants["nvidia:sm_90a"]
    assert bytes(variant.image) == b".version 8.3" and variant.native
    assert {name: bytes(code) for name, code in variant.cubins.items()} == {"sm_90a": b"\x7fELF"}
    assert not read.variants["adding"].cubins
    write(tmp_path / "again.girih", read)
    assert (tmp_path / "again.girih").read_bytes() == bundle.read_bytes()


def test_a_cubin_alone_is_native(tmp_path):
    plan = plan_for(flat(1, 1), "null").SerializeToString()
    variants = {"nvidia:sm_80": Variant(plan, cubins={"sm_80": b"1"})}
    write(tmp_path / "x.girih", MemoryParts(b"", {"main": flat(1, 1)}, variants=variants))
    assert Bundle(tmp_path / "x.girih").variants["nvidia:sm_80"].native


def test_load_takes_the_gpu(bundle, monkeypatch):
    gpu = Gpu(9, 0)
    asked = []
    monkeypatch.setattr(cuda, "find_gpus", lambda number=None: asked.append(number) or [gpu])
    program = girih.load(bundle)
    assert program.target == "nvidia:sm_90a" and "the cubin for sm_90a runs on" in program.reason
    assert program(ONES)[0].tolist() == [2.0] * 4
    assert gpu.log[0] == "load the cubin for sm_90a"
    assert girih.load(bundle, device=3).target == "nvidia:sm_90a" and asked == [None, 3]
    assert choose_variant(Bundle(bundle), "adding")[0] == "adding"


def test_load_says_what_is_missing(bundle, monkeypatch):
    monkeypatch.setattr(cuda, "find_gpus", lambda number=None: _no_gpus())
    with pytest.raises(UserError, match="no NVIDIA driver"):
        girih.load(bundle)
    assert girih.load(bundle, target="adding").reason == "it was asked for"
    with pytest.raises(UserError, match="no NVIDIA driver"):
        girih.load(bundle, device=0)


def test_a_gpu_for_a_bundle_without_code_for_one(tmp_path):
    plan = plan_for(flat(1, 1)).SerializeToString()
    path = tmp_path / "host.girih"
    write(path, MemoryParts(b"", {"main": flat(1, 1)}, variants={"adding": Variant(plan)}))
    with pytest.raises(UserError, match="it holds no code for a GPU; add some"):
        girih.load(path, device=0)


def test_code_of_a_stranger_does_not_run_on_a_gpu(tmp_path, monkeypatch):
    write(tmp_path / "theirs.girih", parts(), seal=False)
    monkeypatch.setattr(cuda, "find_gpus", lambda number=None: [Gpu(9, 0)])
    monkeypatch.setattr("girih.runtime.loading.is_installed", lambda name: False)
    with pytest.raises(UserError, match="was not compiled by this user"):
        girih.load(tmp_path / "theirs.girih")
    assert girih.load(tmp_path / "theirs.girih", allow_native=True)(ONES)[0].tolist() == [2.0] * 4
