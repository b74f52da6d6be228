"""Who may import whom: the table of docs/architecture.md, read off every import statement."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

import girih

ROOT = Path(girih.__file__).parent
PAGE = (ROOT / "docs" / "architecture.md").read_text().splitlines()


def table(head: str) -> list[list[str]]:
    """The cells of the page's table whose head begins so, row by row."""
    start = next(number for number, line in enumerate(PAGE) if line.startswith(f"| {head} |"))
    lines = takewhile(lambda line: line.startswith("|"), PAGE[start + 2 :])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


# Folder -> the rooms of girih that its code may import, besides itself.
MAY_IMPORT = {
    folder.strip("`/"): set(re.findall(r"`(\w+)(?:/|\.py)`", rooms))
    for folder, _, rooms in table("folder")
}
# (importer, folder) -> what it takes of the folder.
PARTS = {
    (importer.strip("`/"), folder.strip("`/")): set(re.findall(r"`([\w.]+)`", parts))
    for importer, folder, parts in table("importer")
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


def test_backends_take_plans_and_meanings():
    """Each file what the page says, and all that it says is taken by some."""
    meanings = PARTS["backends", "optimizer"]
    taken: set[tuple[str, str]] = set()
    for path in files("backends"):
        room = "/".join(path.relative_to(ROOT).parts[:2])
        names = {name for name in imports(path, top_only=False) if name.startswith("optimizer.")}
        names = {name.removeprefix("optimizer.") for name in names}
        assert names <= meanings | PARTS.get((room, "optimizer"), set()), path
        taken |= {(room if name not in meanings else "backends", name) for name in names}
    said = {
        (who, name) for (who, of), parts in PARTS.items() if of == "optimizer" for name in parts
    }
    assert taken == said


def test_the_runtime_needs_little_of_the_program_at_once():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files("runtime")
        for name in imports(path, top_only=True)
        if name.startswith(("hlo", "optimizer", "backends", "frontends", "compiler"))
        and name.removeprefix("hlo.").split(".")[0]
        not in PARTS["runtime", "hlo"]
        | PARTS.get((path.relative_to(ROOT).as_posix(), "hlo"), set())
    ]
    assert not wrong


def test_this_test_sees_imports():
    assert MAY_IMPORT["hlo"] == {"specs"} and "types" in PARTS["runtime", "hlo"]
    assert set(MAY_IMPORT) == {"specs", "hlo", "frontends", "optimizer", "backends", "runtime"}
    assert "hlo.graph" in set(imports(ROOT / "optimizer" / "passes" / "fuse.py", top_only=False))
    assert len(files("frontends")) > 10
