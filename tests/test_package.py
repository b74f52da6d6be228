"""The package: what is in it, what importing it costs, and what it must not import."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import girih

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OUTSIDE = {"tests", "benchmarks", "examples", "docs", "build", "dist"}
EXTRAS = ["jax", "jaxlib", "torch", "llvmlite", "cuda", "typer", "rich", "onnxruntime"]


def package_folders() -> set[str]:
    """Every folder of the tree that belongs to the package, as a dotted name."""
    names = {"girih"}
    for init in ROOT.glob("*/**/__init__.py"):
        parts = init.parent.relative_to(ROOT).parts
        if parts[0] not in OUTSIDE and not parts[0].startswith("."):
            names.add(".".join(("girih", *parts)))
    return names


def test_pyproject_lists_every_folder_of_the_package() -> None:
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    assert listed == package_folders()


def test_folders_with_code_are_packages() -> None:
    """A folder that holds modules but no `__init__.py` would be missing from the wheel."""
    for path in ROOT.glob("*/**/*.py"):
        parts = path.relative_to(ROOT).parts
        if parts[0] not in OUTSIDE and not parts[0].startswith("."):
            assert (path.parent / "__init__.py").exists(), f"{path.parent} needs an __init__.py"


def test_the_wheel_holds_every_module(tmp_path: Path) -> None:
    copy = tmp_path / "source"  # a build leaves files beside its source
    hidden = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info", "out", "*.girih")
    shutil.copytree(ROOT, copy, ignore=hidden)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    how = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(copy)]
    subprocess.run([*pip, *how], check=True)
    (wheel,) = tmp_path.glob("girih-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in package_folders():
        folder = ROOT.joinpath(*package.split(".")[1:])
        for module in (*folder.glob("*.py"), *folder.glob("*.json")):
            inside = "/".join((*package.split("."), module.name))
            assert inside in names
    assert "girih/py.typed" in names
    assert {f"girih/specs/{spec}.proto" for spec in ("hlo", "bundle", "plan")} <= names
    strays = [name for name in names if name.split("/")[1] in OUTSIDE]
    assert not strays


def test_the_core_needs_four_packages() -> None:
    names = {re.split(r"[<>=]", need)[0] for need in PROJECT["project"]["dependencies"]}
    assert names == {"numpy", "protobuf", "ml_dtypes", "safetensors"}


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_import_brings_no_extra() -> None:
    code = "import sys, girih; print(*sys.modules)"
    loaded = set(run(code).split())
    assert not loaded & set(EXTRAS)


def test_every_public_name_is_there() -> None:
    for name in girih.__all__:
        assert getattr(girih, name) is not None
    assert set(girih.__all__) <= set(dir(girih))


def test_import_is_quick() -> None:
    """Under 0.15 s above the bare interpreter; the least of five, since machines are shared."""

    def seconds(code: str) -> float:
        started = time.perf_counter()
        run(code)
        return time.perf_counter() - started

    bare = min(seconds("pass") for _ in range(5))
    loaded = min(seconds("import girih") for _ in range(5))
    assert loaded - bare < 0.15


def test_versions_agree() -> None:
    assert girih.__version__ == PROJECT["project"]["version"]
    assert girih.__version__ in (ROOT / "CHANGELOG.md").read_text()


def test_requirements_pin_exactly() -> None:
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    exact = r"[\w.-]+==[\w.]+( *; *sys_platform == \"linux\")?"
    assert all(re.fullmatch(exact, pin) for pin in pins)
    named = {pin.split("==")[0].lower() for pin in pins}
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [need for extra in ("cpu", "jax", "torch", "cli", "dev") for need in extras[extra]]
    wanted += PROJECT["project"]["dependencies"]
    for need in wanted:
        name = re.split(r"[<>=\[;]", need)[0].strip().lower()
        assert name == "girih" or name in named, f"{name} has no pin"
