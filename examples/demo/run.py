"""The demo: two trained models become bundles, and answer like their frameworks.

1. all-MiniLM-L6-v2 from PyTorch ranks sentences against questions, in a process without PyTorch.
2. A JAX classifier reads handwritten digits.

    make demo        (or: python examples/demo/run.py)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model comes from a Python package
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.panel import Panel  # noqa: E402
from rich.table import Table  # noqa: E402

import digits  # noqa: E402
import girih  # noqa: E402
from minilm import encode, tokenizer, torch_module  # noqa: E402
from sentences import QUESTIONS, SENTENCES  # noqa: E402

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
TOLERANCE = 1e-3


def main() -> int:
    console = Console(record=True, width=None if sys.stdout.isatty() else 124)
    OUT.mkdir(exist_ok=True)
    console.print(Panel("[b]girih[/b]: an export becomes one file that runs without a framework"))
    good = sentence_search(console)
    good &= handwritten_digits(console)
    console.save_svg(str(OUT / "demo.svg"), title="girih demo")
    console.print("A picture of this page: examples/demo/out/demo.svg")
    return 0 if good else 1


def sentence_search(console: Console) -> bool:
    """Compile MiniLM, rank sentences in a fresh process, compare with PyTorch."""
    import torch

    words = tokenizer()
    module = torch_module()
    example = tuple(torch.from_numpy(array) for array in encode(words, SENTENCES[0]))
    started = time.perf_counter()
    program = girih.compile(module, *example)
    compiled = time.perf_counter() - started
    bundle = OUT / "minilm.girih"
    program.save(bundle)

    result = OUT / "embeddings.npz"
    command = [sys.executable, str(HERE / "search.py"), str(bundle), str(result)]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    found = np.load(result)["vectors"]
    expected, torch_time = torch_vectors(module, words)

    ours, theirs = ranking(found), ranking(expected)
    table = Table(title="Sentence search: all-MiniLM-L6-v2", expand=True)
    table.add_column("question", style="bold cyan", ratio=4)
    table.add_column("girih's three best", ratio=7)
    table.add_column("score", justify="right")
    table.add_column("PyTorch", justify="right")
    for number, question in enumerate(QUESTIONS):
        for place, index in enumerate(ours[0][number][:3]):
            table.add_row(
                question if place == 0 else "",
                SENTENCES[index] if place == 0 else f"[dim]{SENTENCES[index]}[/]",
                f"{ours[1][number][index]:.4f}",
                f"{theirs[1][number][index]:.4f}",
                end_section=place == 2,
            )
    console.print(table)

    error = float(np.abs(found - expected).max() / np.abs(expected).max())
    same = all(list(a) == list(b) for a, b in zip(ours[0], theirs[0], strict=True))
    facts = Table(show_header=False, box=None)
    facts.add_row("compiled in", f"{compiled:.2f} s", "bundle", megabytes(bundle))
    facts.add_row("loaded in a fresh process", seconds(report["load"]))
    facts.add_row("first sentence there", seconds(report["first"]))
    facts.add_row("a sentence, girih", seconds(report["sentence"]))
    facts.add_row("a sentence, PyTorch", seconds(torch_time))
    facts.add_row("largest difference", f"{error:.1e}", "same order", "yes" if same else "NO")
    console.print(facts)
    return same and error <= TOLERANCE


def torch_vectors(module: Any, words: Any) -> tuple[np.ndarray, float]:
    """PyTorch's vectors of all texts, and its median time for one, on one thread or on all:
    the better of the two, since its threads suffer on a busy machine.
    """
    import torch

    inputs = [
        [torch.from_numpy(array) for array in encode(words, text)]
        for text in (*SENTENCES, *QUESTIONS)
    ]
    medians, vectors = [], []
    for threads in (torch.get_num_threads(), 1):
        torch.set_num_threads(threads)
        vectors, times = [], []
        for ids, mask in inputs:
            started = time.perf_counter()
            with torch.inference_mode():
                vectors.append(module(ids, mask)[0].numpy())
            times.append(time.perf_counter() - started)
        medians.append(float(np.median(times)))
    return np.stack(vectors), min(medians)


def ranking(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each question, sentences from best to worst, and all scores."""
    scores = vectors[len(SENTENCES) :] @ vectors[: len(SENTENCES)].T
    return np.argsort(-scores, axis=1, kind="stable"), scores


def handwritten_digits(console: Console) -> bool:
    """Train in JAX, compile the export, compare the answers on images that were not trained on."""
    outcome = digits.run(OUT)
    jax_answers, answers = outcome.jax_scores.argmax(1), outcome.girih_scores.argmax(1)
    wrong = np.flatnonzero(answers != outcome.labels)
    room = max(3, console.width // 20)  # pictures beside each other
    shown = [*np.flatnonzero(answers == outcome.labels)[: room - 2], *wrong[:2]]
    table = Table(title="Handwritten digits: a JAX classifier, from its bundle", show_header=False)
    for _ in shown:
        table.add_column(justify="center", no_wrap=True)
    table.add_row(*(digits.drawing(outcome.images[index]) for index in shown))
    table.add_row(*(verdict(answers[index], outcome.labels[index]) for index in shown))
    console.print(table)
    ours, theirs = outcome.accuracy(outcome.girih_scores), outcome.accuracy(outcome.jax_scores)
    scale = np.abs(outcome.jax_scores).max()
    error = float(np.abs(outcome.girih_scores - outcome.jax_scores).max() / scale)
    console.print(
        f"{len(answers)} test images: accuracy girih {ours:.2%}, JAX {theirs:.2%}; "
        f"largest difference {error:.1e}; bundle {megabytes(outcome.bundle)}"
    )
    return ours == theirs and error <= TOLERANCE and bool((answers == jax_answers).all())


def verdict(answer: Any, label: Any) -> str:
    if answer == label:
        return f"[bold green]{answer}[/]"
    return f"[bold red]{answer}[/] [dim]is {label}[/]"


def seconds(value: float) -> str:
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"


def megabytes(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.1f} MB"


if __name__ == "__main__":
    sys.exit(main())
