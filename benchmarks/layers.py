"""How the time of a compilation grows with the number of equal layers: Llama with 4 and with 64.

    python benchmarks/layers.py [--layers 4 --layers 64] [--width 256] [--runs 7]

Each compilation has a process of its own, without girih's caches, and starts from a module; with
and without `reroll`. Modules of Python come from their bytecode, which one run that does not count
has written. The runs take turns, and medians count. What is asked for is judged by
`processor_ratio`, the processor's time of all threads of the process: it hardly changes with what
else the machine does, and cores that are idle hide none of it. `ratio` is of the time that passed.
Results go to benchmarks/results/layers.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).resolve().parent / "results"


def compiled(layers: int, width: int, rolled: bool) -> dict[str, Any]:
    """One compilation in this process: its seconds and what came out."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import girih
    from models.torch_models import Outputs, scattered, tokens

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=width * 8 // 3 // 64 * 64,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        vocab_size=2000,
        use_cache=False,
    )
    model = Outputs(scattered(LlamaForCausalLM(config)), ("input_ids",), ("logits",))
    with torch.no_grad():
        exported = torch.export.export(model, (tokens(64, config.vocab_size),))
    module = girih.import_model(exported)
    options = girih.Options(cache="off", disable=() if rolled else ("reroll",))
    wall, processor = time.perf_counter(), time.process_time()
    program = girih.compile(module, options=options)
    return {
        "seconds": time.perf_counter() - wall,
        "processor_seconds": time.process_time() - processor,
        "operations": sum(1 for _ in module.walk()),
        "steps": len(program.plan.steps),
        "kernels": len(program.plan.kernels),
    }


def apart(layers: int, width: int, rolled: bool) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", f"{layers},{width},{int(rolled)}"]
    bytecode = {**os.environ}
    bytecode.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=bytecode)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, action="append")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        layers, width, rolled = map(int, chosen.one.split(","))
        print(json.dumps(compiled(layers, width, bool(rolled))))
        return
    counts = chosen.layers or [4, 64]
    apart(counts[0], chosen.width, True)
    found: dict[tuple[int, bool], list[dict[str, Any]]] = {}
    for _ in range(chosen.runs):
        for rolled in (True, False):
            for layers in counts:
                found.setdefault((layers, rolled), []).append(apart(layers, chosen.width, rolled))
    rows = [
        {
            "layers": layers, "width": chosen.width, "rolled": rolled,
            **{key: statistics.median(row[key] for row in runs) for key in runs[0]},
        }
        for (layers, rolled), runs in found.items()
    ]  # fmt: skip
    for row in rows:
        first = next(one for one in rows if one["rolled"] == row["rolled"])
        row["ratio"] = row["seconds"] / first["seconds"]
        row["processor_ratio"] = row["processor_seconds"] / first["processor_seconds"]
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)
    text = json.dumps({"cores": os.cpu_count(), "rows": rows}, indent=1)
    (RESULTS / "layers.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
