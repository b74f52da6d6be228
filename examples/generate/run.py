"""Generating text with one bundle: prefill, decode and sample of a Llama share weights and a cache.

    make demo-generate        (or: python examples/generate/run.py)

The model is compiled once, saved, and loaded again. Greedy and sampled tokens are compared with
those of PyTorch; then many sessions generate at once, each with a cache of its own, fork, and go on
from a file.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.panel import Panel

import girih
from model import Llama, entry_points

OUT = Path(__file__).resolve().parent / "out"
NEW, SESSIONS, THREADS = 48, 64, 8
console = Console(width=None if sys.stdout.isatty() else 124, highlight=False)


def main() -> int:
    OUT.mkdir(exist_ok=True)
    console.print(Panel("[b]girih[/b]: three entry points, one bundle, many sessions"))
    model = Llama().eval()
    program = compiled(model, OUT / "llama.girih")
    good = agrees(model, program)
    good &= many_sessions(program)
    good &= forks_and_files(program)
    return 0 if good else 1


def compiled(model: Llama, path: Path) -> girih.Program:
    """One bundle of all entry points, beside those of one each."""
    sources = entry_points(model)
    girih.compile(sources).save(path)
    alone = OUT / "alone.girih"
    sizes = {}
    for name, source in sources.items():
        girih.compile({name: source}).save(alone)
        sizes[name] = os.path.getsize(alone)
    begin = time.perf_counter()
    program = girih.load(path)
    console.print(
        f"bundle of {', '.join(program.entries)}: {os.path.getsize(path) / 1e6:.2f} MB, of prefill "
        f"alone {sizes['prefill'] / 1e6:.2f} MB; loaded in {time.perf_counter() - begin:.3f} s"
    )
    return program


def prompt_of(size: int, seed: int, length: int = 11) -> tuple[Any, Any]:
    """(tokens padded to the size, how many they are)."""
    tokens = np.zeros((1, size), np.int64)
    tokens[0, :length] = np.random.default_rng(seed).integers(1, 500, length)
    return tokens, np.array([length])


def greedy(model: Any, tokens: Any, count: Any, new: int) -> list[int]:
    """Tokens of a session, or of a torch model whose calls take arrays."""
    logits = model.prefill(tokens, count)
    found = [int(logits.argmax())]
    while len(found) < new:
        found.append(int(model.decode(np.array([[found[-1]]])).argmax()))
    return found


def sampled(model: Any, tokens: Any, count: Any, new: int, seed: int) -> list[int]:
    """The same, drawn in the program from numbers of this seed."""
    random = np.random.default_rng(seed)
    logits = model.prefill(tokens, count)
    found = [int(logits.argmax())]
    while len(found) < new:
        uniform = random.uniform(1e-6, 1 - 1e-6, logits.shape).astype(np.float32)
        token = model.sample(np.array([[found[-1]]]), uniform, np.array([0.8], np.float32))
        found.append(int(token[0, 0]))
    return found


class Eager:
    """The torch model, called with arrays."""

    def __init__(self, model: Llama) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.model, name)

        def call(*arrays: Any) -> Any:
            with torch.no_grad():
                return method(*map(torch.from_numpy, arrays)).numpy()

        return call


def agrees(model: Llama, program: girih.Program) -> bool:
    """Greedy and sampled tokens, beside PyTorch's own."""
    tokens, count = prompt_of(model.c.prompt, seed=1)
    eager, session = Eager(model), program.session()
    one = greedy(session, tokens, count, NEW) == greedy(eager, tokens, count, NEW)
    two = sampled(session, tokens, count, NEW, 7) == sampled(eager, tokens, count, NEW, 7)
    console.print(f"{NEW} greedy tokens equal: {one}, sampled ones: {two}")
    console.print(f"a session holds {session.memory / 1e6:.2f} MB of keys and values")
    return one and two


def many_sessions(program: girih.Program) -> bool:
    """Sessions in threads give what each gives alone."""
    size = program.entry("prefill").signature.arguments[0].dims[1]

    def answer(seed: int) -> list[int]:
        return greedy(program.session(), *prompt_of(int(size), seed), NEW)

    alone = list(map(answer, range(SESSIONS)))
    begin = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        together = list(pool.map(answer, range(SESSIONS)))
    took = time.perf_counter() - begin
    console.print(
        f"{SESSIONS} sessions in {THREADS} threads: {SESSIONS * NEW / took:,.0f} tokens a second, "
        f"equal to those of each alone: {together == alone}"
    )
    return together == alone


def forks_and_files(program: girih.Program) -> bool:
    """A fork goes its own way; a file keeps a session for later."""
    size = program.entry("prefill").signature.arguments[0].dims[1]
    session = program.session()
    session.prefill(*prompt_of(int(size), seed=3))
    other = session.fork()
    session.save(OUT / "session.safetensors")
    first = session.decode(np.array([[5]]))
    other.decode(np.array([[6]]))
    later = program.session()
    later.load(OUT / "session.safetensors")
    good = bool(np.array_equal(later.decode(np.array([[5]])), first))
    console.print(f"a session from a file goes on with the same bits: {good}")
    return good


if __name__ == "__main__":
    sys.exit(main())
