"""MiniLM from its bundle to the first result in a fresh process, in seconds.

    python benchmarks/load_time.py

The gate is 0.4 s for load and first call together. Importing girih is shown beside it.
"""

from __future__ import annotations

import json
import os
import pickle
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
GATE = 0.4
RUNS = 7


def bundle(folder: Path) -> tuple[Path, Path]:
    """The compiled model and a file of example inputs."""
    import torch

    import girih

    sys.path.insert(0, str(HERE.parent / "examples" / "demo"))
    from minilm import encode, tokenizer, torch_module

    example = encode(tokenizer(), "A few tiles compose a pattern.")
    program = girih.compile(torch_module(), *map(torch.from_numpy, example))
    path, inputs = folder / "minilm.girih", folder / "minilm.inputs"
    program.save(path)
    inputs.write_bytes(pickle.dumps(example))
    return path, inputs


def main() -> int:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    folder = HERE / "out"
    folder.mkdir(exist_ok=True)
    path, inputs = bundle(folder)
    command = [sys.executable, str(HERE / "first_result.py"), str(path), str(inputs)]
    runs = [json.loads(subprocess.check_output(command)) for _ in range(RUNS)]
    report = {part: statistics.median(run[part] for run in runs) for part in runs[0]}
    report["load_and_first"] = statistics.median(run["load"] + run["first"] for run in runs)
    report["gate"] = GATE
    for name, value in report.items():
        print(f"{name:16s} {value * 1e3:8.1f} ms")
    file = HERE / "results" / "load_time.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if report["load_and_first"] <= GATE else 1


if __name__ == "__main__":
    sys.exit(main())
