"""Levels of CPU features: this host's, pretending a lower one, and tests that run at each of them.

A module whose `pytestmark` is `pytest.mark.usefixtures("each_level")` has its tests shared out
among the levels: a test without parameters runs at the host's own level and at one below; of one
with parameters half the cases run at the host's own level, the others each at one below.
GIRIH_THOROUGH=1 runs every case at the host's own level and at one below. A test with a parameter
`level` of its own goes through the levels by itself.
"""

from __future__ import annotations

import os
import zlib

import pytest
from llvmlite import binding

from girih.backends.cpu import codegen
from girih.runtime.devices import cpu, processors


def levels() -> list[str]:
    """What this host can run, its own level first."""
    host = codegen.host_target()
    known = [name for name, _, _ in codegen._LEVELS[host.architecture]]
    return [name for name in known if codegen.level_target(name).runs_on(host)]


def pretend_level(level: str, patch: pytest.MonkeyPatch) -> None:
    """Compiler and runtime of this process see no feature of the CPU above a level."""
    here, host, kept = cpu.this_processor(), codegen.host_target(), codegen.host_target(level)
    lost = map(processors._cpuinfo_name, {*host.features} - {*kept.features})
    older = here._replace(features=here.features and here.features.difference(lost))
    patch.setattr(cpu, "this_processor", lambda: older)
    patch.setattr(binding, "get_host_cpu_features", lambda: dict.fromkeys(kept.features, True))
    codegen.host_target.cache_clear()


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
    if case is None or not lower or "each_level" not in case.params or "level" in case.params:
        return True
    level = case.params["each_level"]
    name = item.nodeid.partition("[")[0]
    name += case.id.removesuffix(f"-{level}").removeprefix(f"{level}-").removesuffix(level)
    draw = zlib.crc32(name.encode())
    both = len(case.params) == 1 or bool(os.environ.get("GIRIH_THOROUGH"))
    if level == own:
        return both or draw % 2 == 0
    return (both or draw % 2 == 1) and lower[draw // 2 % len(lower)] == level
