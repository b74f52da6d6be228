"""Prefill and decode of a Llama in one bundle, beside PyTorch's eager mode and beside themselves
compiled alone.

    python benchmarks/generate.py                 12 layers of width 768, a cache of 2,048
    python benchmarks/generate.py --layers 2      a smaller model

Shows the bundle's size beside those of one entry point, load and first token, tokens a second, the
bytes of cache that a step copies, and what a session holds. All contenders take turns. The whole
benchmark writes benchmarks/results/generate.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from zoo import machine

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "generate"))
import girih  # noqa: E402
from model import Config, Llama, entry_points  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results"
MOST_SIZE = 1.02  # of the bundle, times the larger of one entry point
MOST_LOAD = 0.4  # seconds
LEAST_SPEED = 0.97  # of decode in the bundle, times decode compiled alone
TURNS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--capacity", type=int, default=2048)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=32, help="tokens of a turn")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--target", default="cpu")
    asked = parser.parse_args()
    config = Config(
        asked.vocabulary, asked.width, asked.width * 8 // 3, asked.layers, asked.width // 64,
        asked.width // 64, asked.prompt, asked.capacity,
    )  # fmt: skip
    model = Llama(config).eval()
    options = girih.Options(threads=asked.threads, cache="off")
    sources = {name: entry_points(model)[name] for name in ("prefill", "decode")}
    with tempfile.TemporaryDirectory() as folder:
        found = measured(model, sources, Path(folder), options, asked)
    if asked == parser.parse_args([]):  # the whole benchmark
        RESULTS.mkdir(exist_ok=True)
        text = json.dumps({"machine": machine(), "asked": vars(asked), **found}, indent=1)
        (RESULTS / "generate.json").write_text(text + "\n")
    show(found)
    good = found["size_ratio"] <= MOST_SIZE and found["load_seconds"] <= MOST_LOAD
    good &= found["of_decode_alone"] >= LEAST_SPEED and not found["cache_bytes_copied"]
    return 0 if good else 1


def measured(
    model: Llama, sources: dict[str, Any], folder: Path, options: girih.Options, asked: Any
) -> dict[str, Any]:
    """All figures."""
    paths: dict[str, Path] = {}
    for name, some in {"both": sources, **{n: {n: one} for n, one in sources.items()}}.items():
        paths[name] = folder / f"{name}.girih"
        girih.compile(some, target=asked.target, options=options).save(paths[name])
    sizes = {name: os.path.getsize(path) for name, path in paths.items()}
    tokens = np.zeros((1, asked.prompt), np.int64)
    tokens[0] = np.random.default_rng(0).integers(1, asked.vocabulary, asked.prompt)
    count = np.array([asked.prompt])
    simulate = asked.target.startswith("ptx-sim")
    loads, firsts = [], []
    for _ in range(TURNS):
        begin = time.perf_counter()
        program = girih.load(paths["both"], threads=asked.threads, simulate=simulate)
        loads.append(time.perf_counter() - begin)
        program.session().prefill(tokens, count)
        firsts.append(time.perf_counter() - begin)
    alone = girih.load(paths["decode"], threads=asked.threads, simulate=simulate)
    session, single = program.session(), alone.session()
    session.prefill(tokens, count)
    single.state = session.state
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)

    def eager(name: str, *arrays: Any) -> Any:
        with torch.no_grad():
            return getattr(model, name)(*map(torch.from_numpy, arrays)).numpy()

    wanted = eager("prefill", tokens, count)
    again = program.session()
    error = float(np.abs(again.prefill(tokens, count) - wanted).max() / np.abs(wanted).max())
    one = np.array([[7]])
    steps = {
        "girih, one bundle": lambda: session.decode(one),
        "girih, decode alone": lambda: single.decode(one),
        "torch eager": lambda: eager("decode", one),
    }
    prefills = {
        "girih, one bundle": lambda: again.prefill(tokens, count),
        "torch eager": lambda: eager("prefill", tokens, count),
    }
    decoded, filled = turns(steps, asked.new), turns(prefills, 3)
    speeds = {name: 1 / median(times) for name, times in decoded.items()}
    return {
        "bytes": sizes,
        "size_ratio": sizes["both"] / max(sizes["prefill"], sizes["decode"]),
        "load_seconds": median(loads),
        "load_to_first_token_seconds": median(firsts),
        "relative_error": error,
        "tokens_per_second": speeds,
        "of_decode_alone": speeds["girih, one bundle"] / speeds["girih, decode alone"],
        "prefill_seconds": {name: median(times) for name, times in filled.items()},
        "cache_bytes_copied": copied(program.entry("decode")),
        "session_bytes": session.memory,
        "weights_stored_twice": [
            note for name in program.entries for note in program.entry(name).plan.notes
            if "stored twice" in note
        ],
    }  # fmt: skip


def turns(calls: dict[str, Callable[[], Any]], times: int) -> dict[str, list[float]]:
    """Seconds of every call but the first of each turn; contenders take turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            call()
            for _ in range(times):
                begin = time.perf_counter()
                call()
                found[name].append(time.perf_counter() - begin)
    return found


def copied(program: girih.Program) -> int:
    """Bytes of state that steps of the plan copy as a whole, rather than write rows of."""
    plan = program.plan
    large = {a.state for a in program.signature.arguments if a.state is not None}
    total = 0
    for step in plan.steps:
        run = step.run
        for argument in run.arguments[run.operands :]:
            buffer = plan.buffers[argument.buffer]
            if buffer.HasField("replaces") and buffer.bytes > 4096 and run.bytes >= buffer.bytes:
                total += buffer.bytes
    replaced = {b.replaces for b in plan.buffers if b.HasField("replaces")}
    kept = [n for n, a in enumerate(program.signature.arguments) if a.state in large and a.donated]
    lost = [n for n in kept if n not in replaced]  # a new buffer in each step
    return total + sum(plan.buffers[plan.inputs[n]].bytes for n in lost)


def show(found: dict[str, Any]) -> None:
    """The figures as tables."""
    console = Console()
    table = Table("bundle", "MB")
    for name, size in found["bytes"].items():
        table.add_row(name, f"{size / 1e6:.2f}")
    console.print(table)
    table = Table("decode", "tokens a second", "prefill, ms")
    for name, speed in found["tokens_per_second"].items():
        prefill = found["prefill_seconds"].get(name)
        table.add_row(name, f"{speed:.1f}", "" if prefill is None else f"{1e3 * prefill:.1f}")
    console.print(table)
    console.print(
        f"both / larger {found['size_ratio']:.4f} (at most {MOST_SIZE}), load "
        f"{found['load_seconds']:.3f} s (at most {MOST_LOAD}), first token after "
        f"{found['load_to_first_token_seconds']:.3f} s, decode / decode alone "
        f"{found['of_decode_alone']:.3f} (at least {LEAST_SPEED}), cache copied per step "
        f"{found['cache_bytes_copied']} bytes, a session holds {found['session_bytes']:,} bytes, "
        f"error {found['relative_error']:.1e}"
    )


if __name__ == "__main__":
    sys.exit(main())
