"""How the files hang together: no circles of imports, what is imported late and why, and functions
that fit on a screen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import girih
from girih.hlo.ops import DEFINITIONS

ROOT = Path(girih.__file__).parent
OUTSIDE = {"tests", "benchmarks", "examples", "docs", "build", "dist"}
LONGEST = 80  # lines of a function

# What is imported inside functions: rooms that need a package which not everybody has,
OPTIONAL = {
    "cli.app": "typer",
    "frontends.jax": "jax",
    "frontends.kernel.jax_primitive": "jax",
    "frontends.kernel.torch_operator": "torch",
    "frontends.torch": "torch",
    "runtime.devices.cuda": "cuda-python",
    "runtime.distributed": "mpi4py, or nccl4py and torch",
}
# the compiler, from the runtime, whose test (test_layers.py) says what it has at once; and
LATE = {
    ("compiler", "spmd"): "a mesh: as much code as everything else that a compilation needs",
    ("simulated", "backends.nvidia"): "the simulator, in the place of a device",
}


class Import(NamedTuple):
    """One module that a file imports; `late`: inside a function."""

    module: str
    line: int
    late: bool


def paths() -> list[Path]:
    """Every file of the package that somebody wrote."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        top = path.relative_to(ROOT).parts[0]
        if top not in OUTSIDE and not top.startswith(".") and "_pb2" not in path.name:
            found.append(path)
    return found


def module_of(path: Path) -> str:
    """The dotted name from the root: "hlo.graph", "hlo.ops" for its __init__."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in paths()}
TREES = {module: ast.parse(path.read_text()) for module, path in MODULES.items()}


def imports(module: str) -> Iterator[Import]:
    """The modules of girih that a module imports when it runs: not for types alone."""
    package = MODULES[module].relative_to(ROOT).parent.parts

    def inside(node: ast.AST, late: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.ImportFrom) and child.level:
                base = package[: len(package) - child.level + 1]
                source = ".".join((*base, *filter(None, [child.module])))
                for alias in child.names:
                    name = f"{source}.{alias.name}".strip(".")
                    yield Import(name if name in MODULES else source, child.lineno, late)
            yield from inside(child, late or isinstance(child, ast.FunctionDef | ast.Lambda))

    return inside(TREES[module], False)


IMPORTS = {module: list(imports(module)) for module in MODULES}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of several modules of which each leads to all others (Tarjan)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in graph.get(module, ()):
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            place = stack.index(module)
            group = stack[place:]
            del stack[place:]
            if len(group) > 1:
                found.append(sorted(group))

    for module in graph:
        if module not in number:
            visit(module)
    return found


def test_no_circles_of_imports() -> None:
    """Also none that imports inside of functions would hide."""
    graph = {module: {one.module for one in found} - {module} for module, found in IMPORTS.items()}
    assert circles(graph) == []


def test_this_test_finds_circles() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []


def allowed_late(module: str, other: str) -> bool:
    """Whether `module` may import `other` inside of a function."""
    if any(f"{other}.".startswith(f"{room}.") for room in OPTIONAL):
        return True
    if module.startswith("runtime.") and not other.startswith("runtime"):
        return True
    return any(module == one and f"{other}.".startswith(f"{room}.") for one, room in LATE)


def test_imports_stand_at_the_top() -> None:
    """All but those of what is optional."""
    late = [
        f"{MODULES[module].relative_to(ROOT)}:{one.line} imports {one.module} in a function"
        for module, found in IMPORTS.items()
        for one in found
        if one.late and not allowed_late(module, one.module)
    ]
    assert not late


@pytest.mark.parametrize("room", [*OPTIONAL, *(room for _, room in LATE)])
def test_exceptions_are_needed(room: str) -> None:
    assert any(
        one.late and f"{one.module}.".startswith(f"{room}.")
        for found in IMPORTS.values()
        for one in found
    )


def test_functions_fit_on_a_screen() -> None:
    long = [
        f"{MODULES[module].relative_to(ROOT)} {node.name}"
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= LONGEST
    ]
    assert not long


LOWERING = 6500  # lines of both rooms that lower tile functions to a GPU


def test_tile_functions_are_lowered_in_few_lines() -> None:
    rooms = (ROOT / "backends" / "nvidia" / room for room in ("tile", "pipeline"))
    paths = [path for room in rooms for path in room.rglob("*.py")]
    assert sum(len(path.read_text().splitlines()) for path in paths) <= LOWERING


def test_the_optimizer_names_no_instructions() -> None:
    """Barriers, phases and instructions of a machine are made where code is."""
    words = re.compile(
        r"mbarrier|parity|wgmma|cp\.async|ldmatrix|mma\.sync|\bptx|nvvm", re.IGNORECASE
    )
    named = [path for path in MODULES.values() if "optimizer" in path.parts]
    assert [path.name for path in named if words.search(path.read_text())] == []


def test_names_of_classes_say_which() -> None:
    """No more than two classes have one name, with or without an underscore, outside of the
    simulator, whose instructions have their own."""
    places: dict[str, list[str]] = {}
    for module, tree in TREES.items():
        if not module.startswith("backends.nvidia.simulator"):
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name.lstrip("_"), []).append(module)
    assert {name: found for name, found in places.items() if len(found) > 2} == {}


def test_words_name_files_that_exist() -> None:
    """Each `folder/file.py` of docs/words.md, by its last folders."""
    files = [f"/{path.relative_to(ROOT)}" for path in MODULES.values()]
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / "docs/words.md").read_text())
    assert named
    assert [one for one in named if not any(path.endswith(f"/{one}") for path in files)] == []


def test_words_name_classes_that_exist() -> None:
    """Each `CamelCase` name of docs/words.md that is not a field's word in parentheses."""
    classes = {
        node.name
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    text = re.sub(r"\*\*.*", "", (ROOT / "docs/words.md").read_text())
    named = re.findall(r"`([A-Z][a-z]+(?:[A-Z]\w+)?)\b[^`]*`s?", text)
    assert named
    assert [one for one in named if one not in classes | {"LaunchTensorMap"}] == []


TABLES = 15  # of names of operations that may stand in the optimizer and in backends


def test_few_tables_of_operations() -> None:
    """What is true of an operation stands in its room (`OpDefinition`), not in sets of names.
    Tables that have a rule for each name are no such sets; those that have True or False are."""
    names = {definition.name for definition in DEFINITIONS}

    def strings(node: ast.AST) -> list[str]:
        if isinstance(node, ast.Call) and node.args:
            return strings(node.args[0])
        if isinstance(node, ast.BinOp):
            return strings(node.left) + strings(node.right)
        if isinstance(node, ast.Dict):
            values = [one.value for one in node.values if isinstance(one, ast.Constant)]
            elements = node.keys if all(isinstance(one, bool) for one in values) and values else []
        elif isinstance(node, ast.Set | ast.Tuple | ast.List):
            elements = node.elts
        else:
            return []
        constants = (one.value for one in elements if isinstance(one, ast.Constant))
        return [one for one in constants if isinstance(one, str)]

    found = []
    for module, tree in TREES.items():
        if module.split(".")[0] in ("optimizer", "backends") and "simulator" not in module:
            for node in ast.walk(tree):
                target = node.targets[0] if isinstance(node, ast.Assign) else None
                if isinstance(node, ast.AnnAssign) and node.value is not None:
                    target = node.target
                if target is None or isinstance(target, ast.Tuple):
                    continue
                listed = strings(node.value)  # type: ignore[union-attr]
                known = [one for one in listed if one in names]
                if len(known) > 1 and 2 * len(known) > len(listed):
                    found.append(f"{module}.{ast.unparse(target)}: {' '.join(listed)}")
    assert len(found) <= TABLES, "\n".join(found)


INLINE = 20  # conditions of the optimizer and of backends that list names of operations


def test_few_conditions_list_operations() -> None:
    """As for tables: `op.name in ("a", "b")` is a set of names as well."""
    names = {definition.name for definition in DEFINITIONS}
    found = []
    for module, tree in TREES.items():
        if module.split(".")[0] in ("optimizer", "backends") and "simulator" not in module:
            for node in ast.walk(tree):
                if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                    listed = node.comparators[0]
                    elements = listed.elts if isinstance(listed, ast.Tuple | ast.Set) else []
                    values = [one.value for one in elements if isinstance(one, ast.Constant)]
                    if len(values) > 1 and all(value in names for value in values):
                        found.append(f"{module}: {ast.unparse(node)}")
    assert len(found) <= INLINE, "\n".join(found)


FOLDERS = [module for module, path in MODULES.items() if module and path.name == "__init__.py"]


def folder_of(module: str) -> str:
    return module if module in FOLDERS else module.rpartition(".")[0]


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_say_what_comes_in_goes_out_and_who_imports_them(folder: str) -> None:
    """In ten lines at most; of another room its name stands for all folders in it."""
    text = " ".join((ast.get_docstring(TREES[folder]) or "").split())
    assert len((ast.get_docstring(TREES[folder]) or "").splitlines()) <= 10
    assert re.search(r"\bIn: .+ Out: ", text)
    found = re.search(r"Imported by ((?:`[\w/]+`(?:, )?)+|name alone)\.$", text)
    assert found
    said = {name.strip("`") for name in found[1].split(", ")} - {"name alone"}
    real = {
        folder_of(module).replace(".", "/") or "girih"
        for module, imported in IMPORTS.items()
        if not f"{module}.".startswith(f"{folder}.")
        for one in imported
        if one.module in MODULES and folder_of(one.module) == folder
    }
    covered = {name: {one for one in real if f"{one}/".startswith(f"{name}/")} for name in said}
    assert real == set().union(*covered.values()) and all(covered.values())
