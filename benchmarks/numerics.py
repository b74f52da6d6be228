"""Errors against float64: girih and XLA:CPU on every model of the zoo, in float32.

    python benchmarks/numerics.py [model ...]

max |result - float64's| / max |float64's|, the largest over a model's results. The gate is twice
XLA's error. Models of PyTorch are evaluated in float64 by PyTorch. Results go to
benchmarks/results/numerics.json.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from engines import ENGINES, flat
from models import ZOO, Built, model, relative_error

GATE = 2.0


def wide(built: Built) -> list[np.ndarray]:
    """The model's results in float64."""
    if built.framework == "torch":
        import torch
        from torch.utils import _pytree as pytree

        source = copy.deepcopy(built.source).double()

        def doubled(leaf: Any) -> Any:
            return leaf.double() if leaf.is_floating_point() else leaf

        with torch.no_grad():
            results = source(*pytree.tree_map(doubled, built.inputs))
        return [leaf.detach().numpy() for leaf in pytree.tree_leaves(results)]
    import jax

    def widened(leaf: Any) -> Any:
        array = np.array(leaf)
        return array.astype(np.float64) if array.dtype == np.float32 else array

    with jax.enable_x64(True):
        results = built.source(*jax.tree_util.tree_map(widened, built.inputs))
        return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(results)]


def measure(name: str) -> dict[str, float]:
    built = model(name).build()
    exact = wide(built)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for engine in ("girih", "xla"):
            results = flat(ENGINES[engine](built, Path(folder), name).call())
            pairs = zip(results, exact, strict=False)
            found[engine] = max(relative_error(a.astype(np.float64), b) for a, b in pairs)
    return {**found, "ratio": found["girih"] / found["xla"] if found["xla"] else 1.0}


def main(names: list[str]) -> int:
    report = {}
    for entry in ZOO:
        if names and entry.name not in names:
            continue
        try:
            report[entry.name] = row = measure(entry.name)
        except Exception as error:  # one model must not hide the others
            print(f"{entry.name:18s} {type(error).__name__}: {str(error)[:120]}")
            continue
        print(
            f"{entry.name:18s} girih {row['girih']:.2e}  xla {row['xla']:.2e}  {row['ratio']:.2f}"
        )
    if not names:
        file = Path(__file__).resolve().parent / "results" / "numerics.json"
        file.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(row["ratio"] <= GATE for row in report.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
