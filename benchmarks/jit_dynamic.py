"""torch.compile(backend="girih") where sizes vary: how many programs, and what calls cost.

    python benchmarks/jit_dynamic.py                 a BERT at nine sizes, 200 tokens of a Llama
    python benchmarks/jit_dynamic.py --layers 12     a BERT of 12 layers
    python benchmarks/jit_dynamic.py --only generate

BERT: `dynamic=True`, each size beside eager. TorchDynamo makes a graph for each pattern of sizes
that are 1; compile times are those of girih, with a cache of kernels that is empty at first.
Generation: transformers' `generate` with both kinds of caches, the compiled `forward` beside eager,
in turns. The whole benchmark writes benchmarks/results/jit_dynamic.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch._dynamo.utils import counters
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from zoo import machine

RESULTS = Path(__file__).resolve().parent / "results"
SIZES = ((1, 16), (1, 17), (2, 16), (2, 17), (4, 64), (1, 1), (1, 128), (3, 1), (8, 128))
MOST_GRAPHS = 4  # programs of the BERT
MOST_LATER = 0.3  # of the first compilation, that later ones may take
MOST_PROGRAMS = 3  # of a generation
TURNS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=2, help="of the BERT")
    parser.add_argument("--width", type=int, default=768, help="of the BERT")
    parser.add_argument("--tokens", type=int, default=200, help="to generate")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--only", choices=("bert", "generate"), default=None)
    asked = parser.parse_args()
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        options = {"fallback": False, "cache": folder, "threads": asked.threads}
        if asked.only != "generate":
            found["bert"] = bert(asked, options)
        if asked.only != "bert":
            kinds = ("dynamic", "static")
            found["generate"] = {kind: generation(kind, asked, options) for kind in kinds}
    if asked == parser.parse_args([]):  # the whole benchmark
        RESULTS.mkdir(exist_ok=True)
        text = json.dumps({"machine": machine(), "asked": vars(asked), **found}, indent=1)
        (RESULTS / "jit_dynamic.json").write_text(text + "\n")
    good = [shown(name, one) for name, one in found.items()]
    return 0 if all(good) else 1


def bert(asked: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
    """Programs and milliseconds of each size, and seconds of each compilation."""
    config = BertConfig(
        hidden_size=asked.width, num_hidden_layers=asked.layers,
        num_attention_heads=asked.width // 64, intermediate_size=4 * asked.width,
    )  # fmt: skip
    model = BertModel(config).eval()
    begin()
    quick = torch.compile(model, backend="girih", dynamic=True, options=options)
    rows: list[dict[str, Any]] = []
    compilations: list[float] = []
    for batch, length in SIZES:
        ids = torch.randint(0, config.vocab_size, (batch, length))
        mask = torch.ones_like(ids)
        before = counters["girih"]["milliseconds"]

        def call(which: Any, ids: Any = ids, mask: Any = mask) -> Any:
            return which(ids, attention_mask=mask).last_hidden_state

        start = time.perf_counter()
        ours = call(quick)
        first = time.perf_counter() - start
        if counters["girih"]["milliseconds"] > before:
            compilations.append((counters["girih"]["milliseconds"] - before) / 1e3)
        times = turns({"girih": lambda c=call: c(quick), "eager": lambda c=call: c(model)}, 5)
        rows.append({
            "batch": batch, "length": length, "programs": counters["girih"]["programs"],
            "first_ms": 1e3 * first, "error": float((ours - call(model)).abs().max()),
            **{f"{name}_ms": 1e3 * median(some) for name, some in times.items()},
        })  # fmt: skip
    return {"sizes": rows, "compile_seconds": compilations}


def generation(kind: str, asked: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
    """Whether the tokens are eager's; programs; seconds of whole generations once warm."""
    config = LlamaConfig(
        vocab_size=1024, hidden_size=256, intermediate_size=688, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=1024,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    plain: Callable[..., Any] = model.forward
    begin()
    quick = torch.compile(plain, backend="girih", options=options)
    prompt = torch.randint(0, config.vocab_size, (1, 9))

    def generate(forward: Callable[..., Any]) -> torch.Tensor:
        model.forward = forward
        try:
            return model.generate(  # type: ignore[no-any-return, operator]
                prompt, max_new_tokens=asked.tokens, min_new_tokens=asked.tokens, do_sample=False,
                pad_token_id=0, cache_implementation=None if kind == "dynamic" else kind,
            )  # fmt: skip
        finally:
            model.forward = plain

    start = time.perf_counter()
    ours = generate(quick)
    first = time.perf_counter() - start
    equal = torch.equal(ours, generate(plain))
    times = turns({"girih": lambda: generate(quick), "eager": lambda: generate(plain)}, 1)
    return {
        "tokens_equal": equal, "programs": counters["girih"]["programs"], "first_seconds": first,
        "compile_seconds": counters["girih"]["milliseconds"] / 1e3,
        **{f"{name}_seconds": median(some) for name, some in times.items()},
    }  # fmt: skip


def begin() -> None:
    """Forget the graphs and figures of what was compiled before."""
    torch._dynamo.reset()
    counters.clear()


def turns(calls: dict[str, Callable[[], Any]], times: int) -> dict[str, list[float]]:
    """Seconds of every call; contenders take turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            for _ in range(times):
                start = time.perf_counter()
                call()
                found[name].append(time.perf_counter() - start)
    return found


def shown(name: str, found: dict[str, Any]) -> bool:
    """Prints the figures; whether they are as good as they have to be."""
    console = Console()
    if name == "bert":
        table = Table("BERT", "programs", "first, ms", "girih, ms", "eager, ms", "error")
        for row in found["sizes"]:
            table.add_row(
                f"{row['batch']} x {row['length']}", str(row["programs"]), f"{row['first_ms']:.0f}",
                f"{row['girih_ms']:.2f}", f"{row['eager_ms']:.2f}", f"{row['error']:.1e}",
            )  # fmt: skip
        console.print(table)
        first, *later = found["compile_seconds"]
        ratios = [one / first for one in later]
        console.print(
            f"compilations {', '.join(f'{one:.2f} s' for one in found['compile_seconds'])}: later "
            f"ones {', '.join(f'{one:.2f}' for one in ratios)} of the first (at most {MOST_LATER})"
        )
        few = found["sizes"][-1]["programs"] <= MOST_GRAPHS
        return few and max(ratios, default=0.0) <= MOST_LATER
    table = Table("cache", "tokens equal", "programs", "first, s", "girih, s", "eager, s")
    for kind, row in found.items():
        table.add_row(
            kind, str(row["tokens_equal"]), str(row["programs"]), f"{row['first_seconds']:.1f}",
            f"{row['girih_seconds']:.3f}", f"{row['eager_seconds']:.3f}",
        )  # fmt: skip
    console.print(table)
    return all(
        row["tokens_equal"] and row["programs"] <= MOST_PROGRAMS
        and row["girih_seconds"] <= row["eager_seconds"]
        for row in found.values()
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
