"""Operations that simplification leaves, beside those of XLA:CPU just before it fuses.

    python benchmarks/operations.py [name ...]

Names are of the zoo and of the training steps (`train-mlp`, ...). Both compilers read the same
StableHLO, with weights as arguments, so that neither computes anything of them beforehand. Counted
is what computes or moves elements: no parameters, constants, tuples, reshapes or bitcasts, and not
the bodies of reductions, scatters and sorts; bodies of loops and branches are. The zoo's models are
cut to two layers where they have many. Results of all go to benchmarks/results/operations.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = f"--xla_dump_to={tempfile.mkdtemp()} --xla_dump_hlo_pass_re=fusion"

import jax
from jax.extend.backend import get_backend
from jaxlib import xla_client
from rich.console import Console
from rich.table import Table

import girih
from girih.hlo.graph import Module, Region
from girih.imports import import_model
from girih.optimizer.pipeline import run_pipeline, simplify_pipeline
from models import ZOO
from models.training import TRAINING

DUMPS = Path(os.environ["XLA_FLAGS"].split()[0].partition("=")[2])
RESULTS = Path(__file__).resolve().parent / "results"
DEEP = ("bert-base", "gpt2", "gpt2-decode", "llama", "t5-small", "vit-b16")
OURS_TRIVIAL = {"constant", "weight", "reshape", "tuple", "get_tuple_element",
                "optimization_barrier"}  # fmt: skip
XLA_TRIVIAL = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "reshape",
               "opt-barrier"}  # fmt: skip
WITH_BODIES = {"while", "if", "case"}


def source_of(name: str) -> str:
    """The program as StableHLO text."""
    if name.startswith("train-"):
        step, inputs = TRAINING[name.removeprefix("train-")]()
        return step.lower(*inputs).as_text()
    (entry,) = (model for model in ZOO if model.name == name)
    built = entry.build(2 if name in DEEP else None)
    text = girih.export_stablehlo(built.source, *built.inputs, text=True, weights_as_arguments=True)
    assert isinstance(text, str)
    return text


def ours(module: Module) -> int:
    """Operations of a module as this script counts them."""

    def count(region: Region) -> int:
        inner = [op.regions if op.name in WITH_BODIES else () for op in region.ops]
        own = sum(op.name not in OURS_TRIVIAL for op in region.ops)
        return own + sum(count(body) for regions in inner for body in regions)

    return count(module.body)


def of_xla(text: str) -> int:
    """Operations of HLO text as this script counts them."""
    bodies = {body for op, body in re.findall(r" (\S+?)\(.*?to_apply=(%[\w.-]+)", text)
              if op != "call"}  # fmt: skip
    total = 0
    for head, body in re.findall(r"^(?:ENTRY )?(%[\w.-]+) .*?\{\n(.*?)^\}", text, re.M | re.S):
        if head not in bodies:
            found = re.findall(r"^ +(?:ROOT )?%\S+ = (?:\(.*?\)|\S+) ([\w-]+)\(", body, re.M)
            total += sum(op not in XLA_TRIVIAL for op in found)
    return total


def compile_with_xla(text: str) -> str:
    """HLO text of the program just before fusion."""
    before = set(DUMPS.iterdir())
    backend: Any = get_backend("cpu")
    devices = xla_client.DeviceList(tuple(jax.devices("cpu")[:1]))
    backend.compile_and_load(text, devices, xla_client.CompileOptions())
    new = [path for path in DUMPS.iterdir() if path not in before]
    (dump,) = (path for path in new if path.name.endswith(".before_fusion.txt"))
    result = dump.read_text()
    for path in new:
        if path.is_file():
            path.unlink()
    return result


def measure(name: str) -> dict[str, Any]:
    text = source_of(name)
    module = import_model(text)
    begin = time.process_time()
    after = run_pipeline(module, simplify_pipeline())
    seconds = time.process_time() - begin
    left, xla = ours(after), of_xla(compile_with_xla(text))
    return {
        "name": name, "imported": sum(1 for _ in module.body.walk()), "left": left, "xla": xla,
        "simplify_cpu_seconds": round(seconds, 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    chosen = parser.parse_args().names
    names = [*(f"train-{name}" for name in TRAINING), *(model.name for model in ZOO)]
    rows = []
    table = Table("program", "imported", "left", "XLA", "ratio", "simplify CPU s")
    for name in chosen or names:
        row = measure(name)
        rows.append(row)
        table.add_row(
            name, str(row["imported"]), str(row["left"]), str(row["xla"]),
            f"{row['left'] / max(row['xla'], 1):.2f}", f"{row['simplify_cpu_seconds']:.2f}",
        )  # fmt: skip
    Console(width=100).print(table)
    if not chosen:
        RESULTS.joinpath("operations.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
