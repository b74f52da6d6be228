"""Levels of CPU features: this host's, pretending a lower one, and tests that run at each of them.

A module whose `pytestmark` is `pytest.mark.usefixtures("each_level")` has all its tests run at the
host's own level, and once more at one of the levels below, so that those levels share its tests. A
test with a parameter `level` of its own goes through the levels by itself.
"""

from __future__ import annotations

import zlib

import pytest
from llvmlite import binding

from girih.backends.cpu import codegen
from girih.runtime.devices import cpu


def levels() -> list[str]:
    """What this host can run, its own level first."""
    host = codegen.host_target()
    return [
        name
        for name, required, _ in codegen._LEVELS[host.architecture]
        if set(host.features).issuperset(required)
    ]


def pretend_level(level: str, patch: pytest.MonkeyPatch) -> None:
    """Compiler and runtime of this process see no feature of the CPU above a level."""
    kept = codegen.host_target(level).features
    lost = map(cpu._cpuinfo_name, {*codegen.host_target().features} - {*kept})
    seen = (cpu._machine_features() or frozenset()).difference(lost)
    codegen.host_target.cache_clear()
    patch.setattr(binding, "get_host_cpu_features", lambda: dict.fromkeys(kept, True))
    patch.setattr(cpu, "_machine_features", lambda: seen)


def parametrise(metafunc: pytest.Metafunc) -> None:
    """Gives a test that asks for `each_level` a case per level; `is_chosen` says which ones run."""
    if "each_level" in metafunc.fixturenames:
        found = levels()[: 1 if "level" in metafunc.fixturenames else None]
        ids = [pytest.HIDDEN_PARAM, *found[1:]]
        metafunc.parametrize("each_level", found, ids=ids, indirect=True)


def is_chosen(item: pytest.Item) -> bool:
    """Whether a test runs at the level that it has."""
    own, *lower = levels()
    case = getattr(item, "callspec", None)
    level = own if case is None else case.params.get("each_level", own)
    if case is None or level == own:
        return True
    name = item.nodeid.partition("[")[0]
    name += case.id.removesuffix(f"-{level}").removeprefix(f"{level}-").removesuffix(level)
    return lower[zlib.crc32(name.encode()) % len(lower)] == level
