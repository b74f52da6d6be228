"""Who may import whom: the table of docs/architecture.md, read off every import statement."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import girih

ROOT = Path(girih.__file__).parent
# Folder -> the rooms of girih that its code may import, besides itself.
MAY_IMPORT = {
    "specs": {"hlo"},  # the page generator reads the rooms
    "hlo": {"specs"},
    "frontends": {"hlo", "runtime"},  # runtime: a .girih file as a source
    # workers: when a second worker pays, which the plan and the runtime judge by
    "optimizer": {"hlo", "specs", "options", "workers"},
    "backends": {"hlo", "specs", "optimizer", "options", "workers"},
    # on demand: to compile anew, and to simulate a GPU
    "runtime": {"hlo", "specs", "compiler", "simulated", "__version__", "workers"},
}
# What backends take from the optimizer: plans, machines, and what its operations mean.
MEANINGS = {
    "asynchronous.configuration", "asynchronous.epilogue_loads", "asynchronous.fits",
    "asynchronous.roles", "asynchronous.work", "expansions", "fusable", "machine", "overwriting",
    "passes.approximate", "passes.encode", "plan", "schedule", "tiles.raster", "tuning", "windows",
}  # fmt: skip
# Choices that still stand in backends, and go to the optimizer: what they take for these.
CHOICES = {
    "cpu": {"cost", "cost.construct", "cost.model", "passes.fuse"},
    "null": set(),
    "nvidia": {
        "cost.blocks", "cost.model", "kernels.convolution_form", "tiles.contraction", "tiles.write",
    },
}  # fmt: skip
# What a call of a loaded bundle may import of hlo/ at module level (the rest is on demand).
RUNTIME_AT_ONCE = {
    "hlo.errors", "hlo.extras", "hlo.files", "hlo.signature", "hlo.size_text", "hlo.sizes",
    "hlo.symbols", "hlo.trees", "hlo.types", "workers",
}  # fmt: skip
ON_A_MESH = {  # more
    "runtime/distributed/layout.py": {"hlo.placement", "hlo.sharding"},
    "runtime/distributed/transfers.py": {"hlo.messages"},
    "runtime/devices/exchanges.py": {"hlo.messages"},
}


def imports(path: Path, top_only: bool) -> Iterator[str]:
    """Rooms of girih that a file imports, as dotted names from the root."""
    package = path.relative_to(ROOT).parent.parts
    tree = ast.parse(path.read_text())
    guarded: set[ast.AST] = set()
    for node in ast.walk(tree):
        lazy = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and top_only
        typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if lazy or typing:
            guarded.update(ast.walk(node))
    for node in ast.walk(tree):
        if node in guarded:
            continue
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            name = ".".join((*base, *(node.module or "").split("."))).strip(".")
            if node.module is None or name in ("hlo", "runtime", "specs"):
                yield from (f"{name}.{alias.name}".strip(".") for alias in node.names)
            else:
                yield name


def files(folder: str) -> list[Path]:
    return [p for p in sorted((ROOT / folder).rglob("*.py")) if "_pb2" not in p.name]


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_follow_the_plan(folder):
    allowed = MAY_IMPORT[folder] | {folder}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files(folder)
        for name in imports(path, top_only=False)
        if name and name.split(".")[0] not in allowed
    ]
    assert not wrong


@pytest.mark.parametrize("backend", CHOICES)
def test_backends_choose_no_more(backend):
    taken = {
        name.removeprefix("optimizer.")
        for path in files(f"backends/{backend}")
        for name in imports(path, top_only=False)
        if name.startswith("optimizer.")
    }
    assert taken - MEANINGS == CHOICES[backend]


def test_the_runtime_needs_little_of_the_program_at_once():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files("runtime")
        for name in imports(path, top_only=True)
        if name.startswith(("hlo", "optimizer", "backends", "frontends", "compiler"))
        and ".".join(name.split(".")[:2])
        not in RUNTIME_AT_ONCE | ON_A_MESH.get(path.relative_to(ROOT).as_posix(), set())
    ]
    assert not wrong


def test_this_test_sees_imports():
    assert "hlo.graph" in set(imports(ROOT / "optimizer" / "passes" / "fuse.py", top_only=False))
    assert len(files("frontends")) > 10
