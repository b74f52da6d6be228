"""Open sizes beside code for just that size, interleaved, and beside other engines that are there.

    python -m girih.benchmarks.open_sizes [--model bert] [--sizes 20] [--rounds 30] [--threads 2]
        [--layers 4] [--width 256] [--engines onnxruntime openvino torch.compile]
        [--overhead] [--compile]

One program of open sizes is compiled for each model; at each size its calls take turns with those
of a program that was compiled for that size alone, of the same girih. Prints the milliseconds of
both, medians of the rounds, and open / fixed; then the milliseconds of other engines, each with
one program for all sizes as well. `--overhead`: what a call of a program of one operation costs,
of sizes that were called before and of new ones. `--compile`: seconds of all threads in which each
model is compiled for one size, for all sizes by one plan, and by as many as the default options
have, with no kernel known before (asked: all sizes <= 1.3 x one size). `--save`: results of what is
measured go to benchmarks/results/open_sizes.json.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch

import girih
from girih.backends.cpu import build
from girih.options import Options

from .turns import in_turns

RESULTS = Path(__file__).resolve().parent / "results" / "open_sizes.json"
TURNS, COMPILATIONS = 5, 3
BATCHES, LENGTHS = (1, 8), (1, 256)
GIVEN = (
    (1, 1), (1, 7), (1, 16), (1, 37), (1, 64), (1, 100), (1, 128), (1, 200), (1, 256), (2, 8),
    (2, 33), (2, 131), (3, 64), (4, 16), (4, 128), (5, 97), (6, 48), (8, 1), (8, 32), (8, 256),
)  # fmt: skip
GRIDS = tuple((b, s) for b in (1, 2, 4, 8) for s in (2, 4, 7, 10, 14))  # a picture's patches
Array = np.ndarray[Any, Any]


class Attention(torch.nn.Module):
    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = width // 64, causal
        self.inner = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Any, mask: Any) -> Any:
        b, t, width = x.shape
        q, k, v = (one(x).reshape(b, t, self.heads, 64).transpose(1, 2) for one in self.inner[:3])
        attend = torch.nn.functional.scaled_dot_product_attention
        z = attend(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.inner[3](z.transpose(1, 2).reshape(b, t, width))


class Layer(torch.nn.Module):
    def __init__(self, width: int, causal: bool, first: bool) -> None:
        super().__init__()
        self.attention, self.first = Attention(width, causal), first
        self.wide = torch.nn.Linear(width, 4 * width)
        self.narrow = torch.nn.Linear(4 * width, width)
        self.one, self.two = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)

    def feed(self, x: Any) -> Any:
        return self.narrow(torch.nn.functional.gelu(self.wide(x)))

    def forward(self, x: Any, mask: Any) -> Any:
        if self.first:  # norms come first
            x = x + self.attention(self.one(x), mask)
            return x + self.feed(self.two(x))
        x = self.one(x + self.attention(x, mask))
        return self.two(x + self.feed(x))


class Bert(torch.nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(2000, width)
        self.places = torch.nn.Embedding(LENGTHS[1], width)
        self.norm = torch.nn.LayerNorm(width)
        self.layers = torch.nn.ModuleList(Layer(width, False, False) for _ in range(layers))

    def forward(self, ids: Any, mask: Any) -> Any:
        x = self.norm(self.tokens(ids) + self.places(torch.arange(ids.shape[1])))
        hidden = (1.0 - mask[:, None, None, :].float()) * -1e9
        for layer in self.layers:
            x = layer(x, hidden)
        return x


class Gpt(torch.nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(2000, width)
        self.places = torch.nn.Embedding(LENGTHS[1], width)
        self.layers = torch.nn.ModuleList(Layer(width, True, True) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x, None)
        return self.norm(x) @ self.tokens.weight.T


class Vit(torch.nn.Module):
    """Patches of 16 x 16 of pictures of any side, cut by the caller: [batch, side * side, 768]."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.patches = torch.nn.Linear(768, width)
        self.places = torch.nn.Embedding(GRIDS[-1][1] ** 2, width)
        self.layers = torch.nn.ModuleList(Layer(width, False, True) for _ in range(layers))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, 1000)

    def forward(self, patches: Any) -> Any:
        x = self.patches(patches) + self.places(torch.arange(patches.shape[1]))
        for layer in self.layers:
            x = layer(x, None)
        return self.head(self.norm(x).mean(1))


class Case(NamedTuple):
    """A model, its inputs at sizes, and the sizes."""

    model: Any
    inputs: Callable[[int, int], tuple[Array, ...]]
    sizes: tuple[tuple[int, int], ...]
    length: tuple[int, int]

    def exported(self) -> Any:
        given = tuple(map(torch.from_numpy, self.inputs(3, 37)))
        batch = torch.export.Dim("batch", min=BATCHES[0], max=BATCHES[1])
        length = torch.export.Dim("length", min=self.length[0], max=self.length[1])
        dims = tuple({0: batch, 1: length} for _ in given)
        return torch.export.export(self.model, given, dynamic_shapes=dims)


def case_of(name: str, layers: int, width: int) -> Case:
    torch.manual_seed(0)

    def ids(b: int, t: int) -> Array:
        return np.random.default_rng(b * 1000 + t).integers(0, 2000, (b, t))

    def masked(b: int, t: int) -> tuple[Array, Array]:
        mask = np.ones((b, t), np.int64)
        mask[:, t // 2 + 1 :] = 0
        return ids(b, t), mask

    def patches(b: int, t: int) -> tuple[Array]:
        drawn = np.random.default_rng(b * 1000 + t).standard_normal((b, t, 768))
        return (drawn.astype(np.float32),)

    if name == "bert":
        return Case(Bert(layers, width).eval(), masked, GIVEN, LENGTHS)
    if name == "gpt":
        return Case(Gpt(layers, width).eval(), lambda b, t: (ids(b, t),), GIVEN, LENGTHS)
    grids = tuple((b, s * s) for b, s in GRIDS)
    return Case(Vit(layers, width).eval(), patches, grids, (1, GRIDS[-1][1] ** 2))


# Other engines: each gives a function of flat inputs, for all sizes.


def onnxruntime(case: Case, threads: int) -> Callable[..., Any]:
    import onnxruntime as runtime

    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(_onnx(case), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return lambda *arrays: session.run(None, dict(zip(names, arrays, strict=True)))


def openvino(case: Case, threads: int) -> Callable[..., Any]:
    import openvino as vino

    model = vino.Core().read_model(_onnx(case))
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = vino.Core().compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    return lambda *arrays: request.infer(list(arrays))


def torch_compile(case: Case, threads: int) -> Callable[..., Any]:
    torch.set_num_threads(threads)
    compiled = torch.compile(case.model, dynamic=True)

    def call(*arrays: Array) -> Any:
        with torch.inference_mode():
            return compiled(*map(torch.from_numpy, arrays))

    return call


def _onnx(case: Case) -> bytes:
    given = tuple(map(torch.from_numpy, case.inputs(3, 37)))
    file, names = io.BytesIO(), [f"x{n}" for n in range(len(given))]
    axes = {name: {0: "batch", 1: "length"} for name in names}
    torch.onnx.export(
        case.model, given, cast(Any, file), input_names=names, dynamic_axes=axes, dynamo=False,
        opset_version=17,
    )  # fmt: skip
    return file.getvalue()


ENGINES = {"onnxruntime": onnxruntime, "openvino": openvino, "torch.compile": torch_compile}


def medians(
    calls: Sequence[Callable[..., Any]], given: Sequence[Array], rounds: int
) -> list[float]:
    """Milliseconds of each of the functions, which take turns and are warm in theirs."""
    named = {str(n): partial(call, *given) for n, call in enumerate(calls)}
    found = in_turns(named, TURNS, max(1, rounds // TURNS))
    return [1e3 * statistics.median(times) for times in found.values()]


def compare(name: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds at each size, and what their ratios come to."""
    case = case_of(name, chosen.layers, chosen.width)
    exported, options = case.exported(), Options(cache="off", threads=chosen.threads)
    begin = time.perf_counter()
    program = girih.compile(exported, options=options)
    seconds = time.perf_counter() - begin
    print(f"{name}: compiled in {seconds:.1f} s")
    others: dict[str, Callable[..., Any]] = {}
    for engine in chosen.engines:
        try:
            others[engine] = ENGINES[engine](case, chosen.threads)
        except ImportError:
            print(f"{engine} is not there")
    head = "".join(f"{engine:>14}" for engine in others)
    print(f"{'batch x length':>16}{'open ms':>10}{'fixed ms':>10}{'ratio':>8}{head}")
    ratios, rows = [], []
    for batch, length in case.sizes[:: max(1, len(case.sizes) // chosen.sizes)]:
        fixed_sizes = {
            symbol: batch if said.last == BATCHES[1] else length
            for symbol, said in program.sizes.items()
        }
        fixed = girih.compile(exported, options=options, sizes=fixed_sizes)
        given = case.inputs(batch, length)
        np.testing.assert_allclose(program(*given), fixed(*given), atol=1e-3, rtol=1e-3)
        opened, static, *rest = medians([program, fixed, *others.values()], given, chosen.rounds)
        ratios.append(opened / static)
        named = zip(("open", "fixed", *others), (opened, static, *rest), strict=True)
        rows.append({"batch": batch, "length": length, **dict(named)})
        tail = "".join(f"{one:14.3f}" for one in rest)
        print(f"{batch:8} x {length:5}{opened:10.3f}{static:10.3f}{ratios[-1]:8.3f}{tail}")
    mean, worst = statistics.geometric_mean(ratios), max(ratios)
    print(f"{name}: geometric mean {mean:.3f}, worst {worst:.3f}")
    beside = {
        engine: statistics.geometric_mean(row["open"] / row[engine] for row in rows)
        for engine in others
    }
    for engine, ratio in beside.items():
        print(f"{name}: {ratio:.3f} of the time of {engine}")
    return {"seconds": seconds, "mean": mean, "worst": worst, "beside": beside, "rows": rows}


ONE = """
func.func @main(%x: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = stablehlo.tanh %x : tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
"""


def overhead(threads: int) -> dict[str, float]:
    """Microseconds of calls of one operation on 1 x 8 numbers: static, again, and a new size."""
    options = Options(cache="off", threads=threads)
    module = girih.import_model(ONE)
    ranges = dict.fromkeys(module.symbols, (1, 4096))
    program = girih.compile(module, options=options, sizes=ranges)
    both = dict(zip(sorted(program.sizes), (1, 8), strict=True))
    fixed = girih.compile(module, options=options, sizes=both)
    given = np.zeros((1, 8), np.float32)
    again, static = (
        1e3 * min(medians([one], [given], 20)[0] for _ in range(3)) for one in (program, fixed)
    )
    new = []
    for size in range(9, 1009):
        x = np.zeros((1, size), np.float32)
        begin = time.perf_counter()
        program(x)
        new.append((time.perf_counter() - begin) * 1e6)
    found = {"static": static, "open": again, "new": statistics.median(new)}
    said = ", ".join(f"{name} {one:.2f} us" for name, one in found.items())
    print(f"a call of one operation: {said}")
    return found


def compile_seconds(name: str, chosen: argparse.Namespace) -> dict[str, float]:
    """CPU seconds of compilations, the least of a few; the first one pays for what is loaded."""
    module = girih.import_model(case_of(name, chosen.layers, chosen.width).exported())
    one = {s: 4 if said.last == BATCHES[1] else 128 for s, said in module.symbols.items()}
    ways: dict[str, dict[str, Any]] = {
        "fixed": {"sizes": one}, "one plan": {"size_plans": 1}, "open": {},
    }  # fmt: skip
    found: dict[str, float] = {}
    for _ in range(COMPILATIONS):
        for way, said in ways.items():
            options = Options(cache="off", size_plans=said.get("size_plans", Options.size_plans))
            build.CACHE.kernels.clear()
            begin = time.process_time()
            girih.compile(module, options=options, sizes=said.get("sizes"))
            seconds = time.process_time() - begin
            found[way] = min(found.get(way, seconds), seconds)
    listed = ", ".join(
        f"{way} {one:.2f} s ({one / found['fixed']:.1f} x)" for way, one in found.items()
    )
    print(f"{name}: compiled in {listed}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", choices=("bert", "gpt", "vit"))
    parser.add_argument("--sizes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--engines", nargs="*", choices=tuple(ENGINES), default=())
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--save", action="store_true")
    chosen = parser.parse_args()
    found: dict[str, Any] = {"cores": os.cpu_count(), "threads": chosen.threads}
    models = chosen.model or ("bert", "gpt", "vit")
    whole = not (chosen.overhead or chosen.compile)
    if chosen.overhead or (whole and chosen.save):
        found["microseconds of a call"] = overhead(chosen.threads)
    if chosen.compile or (whole and chosen.save):
        found["seconds of compiling"] = {name: compile_seconds(name, chosen) for name in models}
    if whole:
        found |= {name: compare(name, chosen) for name in models}
    if chosen.save:
        known = json.loads(RESULTS.read_text())  # what was not measured today stays
        RESULTS.write_text(json.dumps({**known, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
