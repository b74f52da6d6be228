"""Embedding texts of all lengths with one bundle: all-MiniLM-L6-v2, batch and length open.

    make demo-embed        (or: python examples/embed/run.py [--texts 512] [--rounds 5])

The model is exported once with an open batch and an open length, compiled without example inputs,
saved, and loaded again. Texts go through it in batches of similar length, so that little is padded;
PyTorch and ONNX Runtime get the same batches, in turns. Prints sentences a second of each, and how
far the vectors are from PyTorch's.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model comes from a Python package

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "demo"))  # its model and its sentences

import numpy as np  # noqa: E402
import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.panel import Panel  # noqa: E402
from rich.table import Table  # noqa: E402

import girih  # noqa: E402
from minilm import model_folder, torch_module  # noqa: E402
from sentences import SENTENCES  # noqa: E402

OUT = HERE / "out"
LONGEST, LARGEST = 256, 64  # tokens of a text, texts of a batch
TOKENS = 2048  # of a batch, padding included: what keeps the cores busy and fits in their caches
TOLERANCE = 1e-4

Batch = tuple[np.ndarray, np.ndarray]  # ids and mask: int64 [batch, length]
Engine = Callable[[np.ndarray, np.ndarray], np.ndarray]  # -> unit vectors: f32 [batch, 384]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 124, highlight=False)
    console.print(Panel("[b]girih[/b]: one bundle for texts of all lengths"))
    OUT.mkdir(exist_ok=True)
    lists = tokens_of(texts(chosen.texts))
    batches = batched(lists)
    real, padded = sum(map(len, lists)), sum(ids.size for ids, _ in batches.values())
    console.print(
        f"{len(lists)} texts of {min(map(len, lists))} to {max(map(len, lists))} tokens in "
        f"{len(batches)} batches: {padded / real - 1:.1%} of padding"
    )
    module = torch_module()
    engines = {"girih": girih_engine(module, console), "PyTorch": torch_engine(module)}
    if (other := onnx_engine(module)) is not None:
        engines["ONNX Runtime"] = other
    vectors = {name: embedded(engine, batches, len(lists)) for name, engine in engines.items()}
    times: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(chosen.rounds):
        for name, engine in engines.items():
            begin = time.perf_counter()
            embedded(engine, batches, len(lists))
            times[name].append(time.perf_counter() - begin)
    table = Table()
    for column in ("", "texts a second", "beside girih", "farthest from PyTorch"):
        table.add_column(column, justify="right" if column else "left")
    for name, found in times.items():
        away = float(np.abs(vectors[name] - vectors["PyTorch"]).max())
        table.add_row(
            name, f"{len(lists) / median(found):.0f}",
            f"{median(times['girih']) / median(found):.2f}", f"{away:.1e}",
        )  # fmt: skip
    console.print(table)
    return 0 if np.abs(vectors["girih"] - vectors["PyTorch"]).max() < TOLERANCE else 1


def texts(count: int) -> list[str]:
    """Texts of one to twelve sentences, most of them short."""
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.geometric(0.35, count), 12)
    return [" ".join(rng.choice(SENTENCES, length)) for length in lengths]


def tokens_of(found: list[str]) -> list[list[int]]:
    """The ids of each text."""
    from tokenizers import Tokenizer

    words = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    words.enable_truncation(LONGEST)
    words.no_padding()
    return [encoding.ids for encoding in words.encode_batch(found)]


def batched(lists: list[list[int]]) -> dict[tuple[int, ...], Batch]:
    """Texts of similar length together; keys: their places in the list."""
    made: dict[tuple[int, ...], Batch] = {}
    left = sorted(range(len(lists)), key=lambda place: len(lists[place]))
    while left:
        longest = len(lists[left[-1]])
        count = min(LARGEST, max(1, TOKENS // longest), len(left))
        left, taken = left[:-count], left[-count:]
        ids, mask = np.zeros((2, count, longest), np.int64)
        for row, place in enumerate(taken):
            ids[row, : len(lists[place])] = lists[place]
            mask[row, : len(lists[place])] = 1
        made[tuple(taken)] = ids, mask
    return made


def embedded(engine: Engine, batches: dict[tuple[int, ...], Batch], count: int) -> np.ndarray:
    """The vectors of all texts, in their order: f32 [count, 384]."""
    found = np.zeros((count, 384), np.float32)
    for places, (ids, mask) in batches.items():
        found[list(places)] = engine(ids, mask)
    return found


def exported(module: Any) -> Any:
    """The model's export, with names for its open sizes."""
    example = torch.ones(2, 2, 16, dtype=torch.int64)
    batch = torch.export.Dim("batch", min=1, max=LARGEST)
    length = torch.export.Dim("length", min=1, max=LONGEST)
    sizes = {0: batch, 1: length}
    return torch.export.export(module, tuple(example), dynamic_shapes=(sizes, sizes))


def girih_engine(module: Any, console: Console) -> Engine:
    begin = time.perf_counter()
    program = girih.compile(exported(module))
    sizes = ", ".join(f"{name} {said}" for name, said in program.sizes.items())
    console.print(f"exported and compiled in {time.perf_counter() - begin:.1f} s, for {sizes}")
    path = OUT / "minilm.girih"
    program.save(path)
    begin = time.perf_counter()
    program = girih.load(path)
    seconds = time.perf_counter() - begin
    console.print(f"{path.stat().st_size / 1e6:.1f} MB, loaded in {seconds:.2f} s")
    return lambda ids, mask: np.asarray(program(ids, mask))


def torch_engine(module: Any) -> Engine:
    def call(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return module(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()

    return call


def onnx_engine(module: Any) -> Engine | None:
    """None where ONNX Runtime or the exporter is not installed."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - the exporter needs it
    except ImportError:
        return None
    path = OUT / "minilm.onnx"
    torch.onnx.export(exported(module), f=path, dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    names = [argument.name for argument in session.get_inputs()]

    def call(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return np.asarray(session.run(None, dict(zip(names, (ids, mask), strict=True)))[0])

    return call


if __name__ == "__main__":
    sys.exit(main())
