"""Programs that call LAPACK: they say so, run from bundles, and say what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module
from girih.hlo.types import F32, TensorType
from girih.runtime.devices import libraries

pytest.importorskip("scipy")

A = np.array([[2, 1, 0], [1, 3, 1], [0, 1, 4]], np.float32)


def program(**options: Any) -> girih.Program:
    module = build_module(
        [TensorType((3, 3), F32)], lambda b, a: b.op("linalg.eigh", [a], {}).results
    )
    return girih.compile(module, options=girih.Options(**options))


def test_a_bundle_runs_without_the_compiler(tmp_path: Path) -> None:
    """Only numpy, protobuf and scipy are imported."""
    path = tmp_path / "eigh.girih"
    program().save(path)
    text = (
        "import sys, numpy as np, girih\n"
        f"loaded = girih.load({str(path)!r}, allow_native=True)\n"
        f"v, w, info = loaded(np.array({A.tolist()}, np.float32))\n"
        "assert info == 0 and abs(v @ np.diag(w) @ v.T - "
        f"np.array({A.tolist()})).max() < 1e-5\n"
        "assert not {'jax', 'torch', 'llvmlite', 'girih.backends'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", text], check=True)


def test_the_plan_names_the_library(tmp_path: Path) -> None:
    made = program()
    (kernel,) = [k for k in made.plan.kernels if k.functions]
    assert kernel.engine == "library" and list(kernel.functions) == ["lapack.ssyevd"]
    assert list(kernel.notes) == ["library: scipy LAPACK ssyevd"]


def test_inspect_shows_it(tmp_path: Path) -> None:
    path = tmp_path / "eigh.girih"
    program().save(path)
    command = [sys.executable, "-m", "girih", "inspect", str(path)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "library: scipy LAPACK ssyevd" in " ".join(shown.split())


def test_strict_refuses_it() -> None:
    with pytest.raises(girih.UserError, match="library: scipy LAPACK ssyevd"):
        program(strict=True)


def test_loading_without_scipy_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "eigh.girih"
    program().save(path)
    libraries.address_of.cache_clear()
    monkeypatch.setitem(sys.modules, "scipy.linalg.cython_lapack", None)
    with pytest.raises(
        girih.UserError, match="LAPACK .ssyevd. through scipy.*pip install 'girih.linalg"
    ):
        girih.load(path, allow_native=True)
    libraries.address_of.cache_clear()


@pytest.mark.parametrize("name", ["lapack.no_such_routine", "other.function"])
def test_unknown_functions_are_refused(name: str) -> None:
    with pytest.raises(girih.UserError, match="no_such_routine|other.function"):
        libraries.address_of(name)
