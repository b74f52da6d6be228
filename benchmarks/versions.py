"""The oldest and the newest versions of all dependencies, on every Python that is here.

    python benchmarks/versions.py                  all, in .venv/versions; or: make versions
    python benchmarks/versions.py --only oldest    environments whose name has the word

Builds girih's wheel once, an environment for each row, and runs version_probe.py in it. What is
left out by design has to be told in a sentence with the line that installs it. Writes
benchmarks/results/versions.json and the table of docs/installing.md; Pythons that are not at hand
are rows too.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv" / "versions"
PAGE, RESULTS = ROOT / "docs" / "installing.md", ROOT / "benchmarks" / "results" / "versions.json"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SHOWN = ("numpy", "protobuf", "llvmlite", "jax", "typer", "scipy")
COLUMNS = ("MiniLM", "JAX", "kernels", "convolution", "Hopper", "LAPACK", "command")
BEGIN, END = "<!-- versions: begin -->", "<!-- versions: end -->"


class Environment(NamedTuple):
    """`lacks`: checks that have to name the package that is missing."""

    name: str
    python: str
    packages: tuple[str, ...]
    lacks: tuple[str, ...] = ()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", metavar="WORD", default="", help="environments with it in the name"
    )
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    wheel, given = build_wheel(), FOLDER / "given"
    export_minilm(given)
    rows = []
    for environment in environments():
        if options.only not in environment.name:
            continue
        row = tried(environment, wheel, given)
        print(f"{environment.name:28} {row.get('not_tried') or row['checks']}", flush=True)
        rows.append(row)
    if not options.only:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
        write_table(rows)
    return 0 if all(row["good"] for row in rows) else 1


def environments() -> Iterator[Environment]:
    """The oldest and the newest of what pyproject.toml declares, and each extra left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    core, cpu, jax, cli, linalg = (
        tuple(names)
        for names in (project["dependencies"], *map(extras.get, ("cpu", "jax", "cli", "linalg")))
    )

    def oldest(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name.replace(">=", "==") for name in names)

    yield Environment("oldest", "3.11", oldest((*core, *cpu, *cli, *linalg)), ("JAX",))
    # JAX asks for newer ones of what the core needs.
    yield Environment("oldest JAX", "3.11", (*core, *oldest((*cpu, jax[0])), jax[1], *cli, *linalg))
    for python in PYTHONS:
        yield Environment(f"newest, Python {python}", python, (*core, *cpu, *jax, *cli, *linalg))
    yield Environment("without JAX and SciPy", "3.11", (*core, *cpu, *cli), ("JAX", "LAPACK"))
    yield Environment("without the command", "3.11", (*core, *cpu), ("JAX", "LAPACK", "command"))
    yield Environment("without a compiler", "3.11", (*core, *cli), COLUMNS)


def build_wheel() -> Path:
    folder = FOLDER / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def export_minilm(folder: Path) -> None:
    """The demo's model as a file, with inputs and its result: reading it needs no PyTorch."""
    if (folder / "minilm.npz").exists():
        return
    sys.path.insert(0, str(ROOT / "examples" / "demo"))
    import numpy as np
    import torch

    from minilm import encode, tokenizer, torch_module

    folder.mkdir(exist_ok=True)
    model, (ids, mask) = torch_module(), encode(tokenizer(), "The cat sat on the mat.")
    inputs = torch.from_numpy(ids), torch.from_numpy(mask)
    torch.export.save(torch.export.export(model, inputs), folder / "minilm.pt2")
    with torch.no_grad():
        np.savez(folder / "minilm.npz", ids=ids, mask=mask, result=model(*inputs).numpy())


def tried(environment: Environment, wheel: Path, given: Path) -> dict[str, Any]:
    """What the probe says in an environment that is made anew."""
    row: dict[str, Any] = {"name": environment.name, "python": environment.python, "good": True}
    python = find_python(environment.python)
    if python is None:
        return {**row, "not_tried": f"there is no Python {environment.python} here"}
    folder = FOLDER / re.sub(r"\W+", "-", environment.name)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    inside = str(folder / "bin" / "python")
    pip = [inside, "-m", "pip", "--disable-pip-version-check", "-q"]
    for words in (["install", *environment.packages], ["install", "--no-deps", str(wheel)]):
        done = subprocess.run([*pip, *words], capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
            return {**row, "good": False, "not_tried": reason}
    listed = subprocess.run([*pip[:-1], "list", "--format", "json"], capture_output=True, text=True)
    versions = {one["name"].lower(): one["version"] for one in json.loads(listed.stdout)}
    probe = ROOT / "benchmarks" / "version_probe.py"
    done = subprocess.run(
        [inside, "-I", str(probe), str(given)], capture_output=True, text=True, cwd=folder
    )
    lines = [line.split("\t") for line in done.stdout.splitlines() if "\t" in line]
    checks: dict[str, str] = dict.fromkeys(COLUMNS, "the probe ended before it")
    checks.update((name, said) for name, said in lines)
    for name, said in checks.items():
        lacks = name in environment.lacks
        row["good"] &= ("pip install" in said) if lacks else said == "good"
    return {
        **row, "checks": checks, "lacks": list(environment.lacks),
        "versions": {name: versions.get(name) for name in SHOWN},
    }  # fmt: skip


def find_python(version: str) -> str | None:
    """A Python that starts; stand-ins of version managers may not."""
    candidates = [shutil.which(f"python{version}"), sys.executable]
    candidates += sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))
    for candidate in candidates:
        if candidate is None:
            continue
        script = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([candidate, "-c", script], capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    return None


def write_table(rows: list[dict[str, Any]]) -> None:
    head = ("environment", "Python", *SHOWN, *COLUMNS)
    lines = [" | ".join(head), " | ".join(["---"] * len(head))]
    for row in rows:
        if "checks" not in row:
            reason = row["not_tried"]
            lines.append(" | ".join([row["name"], row["python"], reason] + [""] * (len(head) - 3)))
            continue
        cells = [row["name"], row["python"]]
        cells += [row["versions"][name] or "-" for name in SHOWN]
        for name in COLUMNS:
            said = row["checks"][name]
            named = name in row["lacks"] and "pip install" in said
            cells.append("says what to install" if named else "good" if said == "good" else "FAILS")
        lines.append(" | ".join(cells))
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    table = "\n".join(f"| {line} |" for line in lines)
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    sys.exit(main())
