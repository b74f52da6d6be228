"""Prices stand in one place, machines' files and optimizer/cost/, and are the same for all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import girih

ROOT = Path(girih.__file__).parent
ROOMS = ("optimizer", "backends", "runtime")
# What a constant of a machine is called, or what its comment says that it is.
NAMED = re.compile(
    r"(^|_)(CLOCKS?|CYCLES?|RATES?|LATENC\w+|BANDWIDTH|SECONDS|MICROSECONDS|NANOSECONDS|US|NS|PER|"
    r"TRAFFIC|SYNC|BARRIER|DISPATCH|SERIAL|BETWEEN)(_|$)"
)
SAID = re.compile(r"\bper (clock|cycle|second|us|microsecond)|\bclocks\b|\bflops? per\b|/s\b|GB/s")
# Constants that are no prices: of waits for people and processes, and names of things.
NO_PRICES = {
    "backends/cpu/foreign.py": {"_SECONDS"},
    "backends/nvidia/pipeline/schedule.py": {"_BARRIER"},
}


def numbers(path: Path) -> Iterator[tuple[str, str]]:
    """Names of the module's and its classes' constants that hold a number, with their line."""
    text = path.read_text()
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Module, ast.ClassDef)):
            continue
        for one in node.body:
            if isinstance(one, (ast.Assign, ast.AnnAssign)) and one.value is not None:
                held = [n.value for n in ast.walk(one.value) if isinstance(n, ast.Constant)]
                if any(isinstance(v, (int, float)) and not isinstance(v, bool) for v in held):
                    targets = one.targets if isinstance(one, ast.Assign) else [one.target]
                    for target in targets:
                        for name in ast.walk(target):
                            if isinstance(name, ast.Name):
                                yield name.id, lines[one.lineno - 1]


def prices(path: Path) -> list[str]:
    """Constants of a file that are prices of a machine, by their names or comments."""
    return [
        name
        for name, line in numbers(path)
        if NAMED.search(name) or SAID.search(line.partition("#")[2])
    ]


def test_no_price_stands_elsewhere() -> None:
    found = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith("optimizer/cost/"):
                known = NO_PRICES.get(name, set())
                found += [f"{name}: {one}" for one in prices(path) if one not in known]
    assert not found


def test_prices_are_found(tmp_path: Path) -> None:
    path = tmp_path / "room.py"
    path.write_text(
        "_CACHE = 64.0  # bytes per clock from the L2 cache\n_FIXED = 900.0  # clocks of a tile\n"
        "SERIAL_US, FEW = 1.5, 3\nBYTES_PER_US: float = 20e3\nWIDTH = 16  # bytes\nPERMUTED = 3\n"
    )
    assert prices(path) == ["_CACHE", "_FIXED", "SERIAL_US", "BYTES_PER_US"]
