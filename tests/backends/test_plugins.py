"""Backends and devices of other packages: found by entry points, refused with a reason, checked."""

from __future__ import annotations

import shutil
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
from girih import backends, conformance
from girih.backends import API, Plugin, plugins
from girih.hlo.build import build_module, build_region
from girih.hlo.errors import UserError
from girih.hlo.types import I64, TensorType
from girih.runtime import devices
from girih.stages import Stages, names, read, written

EXAMPLE = Path(girih.__file__).parent / "examples" / "backend"
AFRESH = girih.Options(cache="off")
Install = Callable[..., Any]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """install(group, name, value): a package with that entry point; more of a module's names."""

    def installed(group: str, name: str, value: str, **content: Any) -> None:
        package = f"package{len(list(tmp_path.iterdir()))}"
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
        if content:
            module = types.ModuleType(value.partition(":")[0])
            vars(module).update(content)
            monkeypatch.setitem(sys.modules, module.__name__, module)
        forget()

    def forget() -> None:
        plugins.cache_clear()
        devices._installed.cache_clear()

    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    yield installed
    monkeypatch.undo()
    forget()


@pytest.fixture
def c_backend(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of examples/backend."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    install("girih.backends", "cpu:c", "girih_c:BACKEND")


def layers(x: Any, w: Any, b: Any) -> Any:
    import jax
    import jax.numpy as jnp

    y = jax.nn.softmax(jnp.tanh(x @ w + b), axis=-1)
    return jnp.sort(y, axis=-1), jax.lax.fori_loop(0, 3, lambda i, c: c * 2 + i, y.sum())


@pytest.mark.usefixtures("c_backend")
def test_kernels_in_c_give_what_the_cpu_gives(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(s).astype(np.float32) for s in ((5, 7), (7, 19), (19,))]
    program = girih.compile(layers, *given, target="cpu:c", options=AFRESH)
    wanted = girih.compile(layers, *given, target="cpu", options=AFRESH)(*given)
    for found, right in zip(program(*given), wanted, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)
    program.save(tmp_path / "c.girih")
    plugins.cache_clear()
    found = girih.load(tmp_path / "c.girih")  # needs neither the package nor a compiler
    assert found.target == "cpu:c"
    np.testing.assert_array_equal(found(*given)[0], program(*given)[0])


@pytest.mark.usefixtures("c_backend")
def test_wide_keys_in_c() -> None:
    """Short lines of 64-bit numbers are sorted by keys of 128 bits."""
    body = build_region([TensorType((), I64)] * 2, lambda b, x, y: [b.compare("LT", x, y)])
    module = build_module(
        [TensorType((5, 7), I64)], lambda b, x: [b("sort", x, regions=(body,), dimension=0)]
    )
    x = np.random.default_rng(0).integers(-9, 9, (5, 7))
    program = girih.compile(module, target="cpu:c", options=AFRESH)
    np.testing.assert_array_equal(program(x)[0], np.sort(x, axis=0))


@pytest.mark.usefixtures("c_backend")
def test_a_plugin_states_its_stages() -> None:
    backend = backends.find("cpu:c", AFRESH)
    stages = Stages(backend, AFRESH)
    assert names(backend)[-3:] == ("llvm", "c", "plan")
    module = girih.import_model(lambda x: x + x, np.ones(4, np.float32))
    texts = stages.texts(module, ["llvm", "c"])
    code = texts["c"]
    assert not isinstance(code, str)
    (c,) = code.values()
    assert "#include <stdint.h>" in c and "define void" not in c
    given = read(written(texts["llvm"]), "llvm", backend)
    assert stages.texts(given, ["c"], "llvm") == {"c": texts["c"]}


@pytest.mark.usefixtures("c_backend")
def test_the_kit_passes_what_is_right() -> None:
    names = ["reduce", "convolution", "scatter", "chlo.erf", "while"]
    for report in conformance.check("cpu:c", names):
        assert report.agreed and not report.failed, report


def test_the_kit_tells_faults_and_deaths(install: Install) -> None:
    import os

    (report,) = conformance.check("null", ["xor"])
    assert report.failed and not report.agreed
    dies = Plugin("dies", lambda *given: os._exit(3), API)
    install("girih.backends", "dies", "dying:IT", IT=dies)
    (report,) = conformance.check("dies", ["xor"])
    assert report.failed == ["ended the process with status 3"]
    assert not list(conformance.check("cpu", ["fusion"]))  # the compiler's own: no program has it
    with pytest.raises(UserError, match="no operation 'xorr'"):
        next(conformance.check("cpu", ["xorr"]))


def test_what_cannot_be_used_is_refused_with_a_reason(install: Install) -> None:
    install("girih.backends", "away", "no_such_module:IT")
    install("girih.backends", "old", "ancient:IT", IT=Plugin("old", backends.find))
    install("girih.backends", "other", "stranger:IT", IT=object())
    for name, words in (
        ("away", "target away: no_such_module:IT of the package package0 1.0 cannot be imported"),
        ("old", f"is for interface 1 of backends, this girih has {API}: install a version"),
        ("other", "is no girih.backends.Plugin of that name"),
        ("nowhere", "there is no target 'nowhere'.*, away, old, other of other packages"),
    ):
        with pytest.raises(UserError, match=words):
            backends.find(name, AFRESH)


class Doubling:
    """A device of another package: every result is twice the argument."""

    def __init__(
        self, plan: Any, image: Any, weights: Any, threads: Any, pin: bool = False
    ) -> None:
        self.plan = plan

    def context(self) -> None:
        return None


def run(context: None, inputs: Any, outputs: Any, profile: bool = False) -> list[Any]:
    for given, result in zip(inputs, outputs, strict=True):
        result[...] = 2 * given
    return []


def test_a_device_of_another_package_runs_its_targets(install: Install) -> None:
    from girih.optimizer.plan import KernelFacts, Planner

    def planned(schedules: Any) -> Any:
        return [
            Planner(s, "twice:v1", lambda *_: KernelFacts(1), n).run() for s, n in schedules
        ], b""

    plugin = Plugin("twice", lambda name, options, tuner: backends.Backend(name, planned), API)
    install("girih.backends", "twice", "doubling_backend:IT", IT=plugin)
    x = np.arange(4, dtype=np.float32)
    program = girih.compile(lambda x: x + x, x, target="twice:v1", options=AFRESH)
    with pytest.raises(UserError, match="this girih runs the targets cpu, nvidia, null; the"):
        program(x)
    install("girih.devices", "twice", f"{__name__}:Doubling")
    program = girih.compile(lambda x: x + x, x, target="twice:v1", options=AFRESH)
    np.testing.assert_array_equal(program(x), x + x)
