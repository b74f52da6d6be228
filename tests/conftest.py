"""Fixtures that all tests share."""

from __future__ import annotations

import difflib
import gc
import gzip
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings


def share_cores() -> None:
    """Give each worker of `pytest -n` cores of its own: spinning threads do not share one well.
    NumPy's BLAS makes a thread for each core that there is when it is imported."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if worker and len(cores) >= count > 1:
        os.sched_setaffinity(0, cores[int(worker.removeprefix("gw")) % count :: count])


share_cores()

from girih.backends.cpu import codegen  # noqa: E402 - it imports NumPy
from girih.runtime.devices.cores import allowed_cpus  # noqa: E402

from .levels import is_chosen, levels, parametrise, pretend_level  # noqa: E402

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read at the first import of a framework
os.environ.setdefault("JAX_PLATFORMS", "cpu")

ROOT = Path(__file__).resolve().parent.parent
SHOWN = 60  # lines of how a golden file differs
sys.path.insert(0, str(ROOT / "benchmarks"))  # the zoo: `from models import ZOO`


# The same generated examples everywhere; others each time with GIRIH_THOROUGH=1.
settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.register_profile("others", deadline=None)
settings.load_profile("others" if os.environ.get("GIRIH_THOROUGH") else "same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files anew instead of comparing"
    )
    parser.addoption(
        "--cpu-level", help="pretend that the host's CPU has no more than this level, such as avx2"
    )
    parser.addoption("--cores", type=int, help="pretend that the host has so many cores")


def pytest_configure(config: pytest.Config) -> None:
    if level := config.getoption("--cpu-level"):
        if level not in levels():
            raise pytest.UsageError(f"--cpu-level: this host's CPU has {', '.join(levels())}")
        pretend_level(level, pytest.MonkeyPatch())
    if count := config.getoption("--cores"):
        pretend_cores(count)


def pretend_cores(count: int) -> None:
    """This process and its children get so many cores; where there are fewer, so many workers."""
    allowed = allowed_cpus()
    if count <= len(allowed):
        os.sched_setaffinity(0, allowed[:count])
    else:
        pytest.MonkeyPatch().setattr("girih.runtime.devices.cpu.default_threads", lambda: count)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrise(metafunc)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """A million objects live from here on, frameworks and tests: no search for garbage sees them,
    or each that a test causes would take half a second; and searches are rarer."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(5000, *gc.get_threshold()[1:])
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if not is_chosen(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if is_chosen(item)]


@pytest.fixture
def each_level(request: pytest.FixtureRequest) -> Iterator[str]:
    """The level of CPU features that the host seems to have; see levels.py."""
    with pytest.MonkeyPatch.context() as patch:
        pretend_level(request.param, patch)
        yield request.param
    codegen.host_target.cache_clear()


@pytest.fixture(autouse=True, scope="session")
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests, and processes that they start, leave nothing in the user's cache and settings, and
    find nothing there. Workers of `pytest -n` share the kernels that they compile."""
    folder = tmp_path_factory.mktemp("user")
    base = tmp_path_factory.getbasetemp()
    common = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(common / "cache"))
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        yield


@pytest.fixture(autouse=True)
def no_kept_programs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every compilation of a test compiles, also where a test has changed a pass or a kernel; the
    mark `program_cache` keeps programs as users' compilations do."""
    if request.node.get_closest_marker("program_cache") is None:
        monkeypatch.setattr("girih.compilation.open_programs", lambda choice: None)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: text equals tests/golden/<test file>/<name>; a missing file fails. A
    file whose name ends in .gz is packed.

    `pytest --update-golden` writes the files; the change then shows in the diff of the commit.
    """
    folder = ROOT / "tests" / "golden" / Path(request.node.path).stem
    update = request.config.getoption("--update-golden")

    def compare(name: str, text: str) -> None:
        path = folder / name
        packed = path.suffix == ".gz"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            data = text.encode()
            path.write_bytes(gzip.compress(data, mtime=0) if packed else data)
            return
        assert path.exists(), f"no golden file {path.relative_to(ROOT)}; run pytest --update-golden"
        data = path.read_bytes()
        expected = (gzip.decompress(data) if packed else data).decode()
        if text != expected:
            difference = difflib.unified_diff(
                expected.splitlines(), text.splitlines(), "golden", "now", lineterm=""
            )
            shown = "\n".join(list(difference)[:SHOWN])
            pytest.fail(f"{path.relative_to(ROOT)} differs (--update-golden keeps it):\n{shown}")

    return compare
