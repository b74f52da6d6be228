"""Real models of real widths with open sizes: one bundle each, equal to PyTorch at many sizes.

    python benchmarks/open_models.py [--model bert ...] [--layers 2] [--sizes 40]
        [--tokens 4096] [--seed 0] [--save]

Each model is exported with open batch (1 to 64) and length (1 to 512), or sides of images, compiled
once and saved. Another process loads the bundle and runs it at the corners and at random sizes,
primes and neighbours of powers of two among them, of at most `--tokens` tokens (for images: of as
many patches), which bounds memory; it also tells whether anything of the compiler was imported
there. Prints the largest difference as a share of the largest magnitude of PyTorch's result, and
bytes of the bundle beside those of one for a single size. `--layers 0`: all layers. `--save`:
results go to benchmarks/results/open_models.json, one entry for each model and depth.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import pickle
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

RESULTS = Path(__file__).resolve().parent / "results" / "open_models.json"
TOLERANCE = 1e-3  # the zoo's
EDGES = (1, 2, 3, 7, 8, 13, 15, 16, 17, 31, 32, 33, 61, 64, 97, 127, 128, 129, 251, 256, 257, 509)
COMPILER = ("girih.optimizer", "girih.backends", "girih.frontends", "llvmlite", "torch", "jax")
Sizes = Mapping[str, int]


class Case(NamedTuple):
    """A model with open sizes; `dims` names those of each input's dimensions that are open."""

    build: Callable[[int], Any]
    layers: int  # of the whole model
    inputs: Callable[[Sizes], tuple[Any, ...]]
    dims: tuple[dict[int, str], ...]
    ranges: dict[str, range]
    tokens: Callable[[Sizes], int]
    is_named: bool = True  # whether the export takes named dims: not where it guards by `!=`


BATCH, LENGTH, SIDE = range(1, 65), range(1, 513), range(160, 289)
VOCABULARY = {"bert": 30522, "gpt2": 50257, "llama": 32000, "t5": 32128}


def _zoo(name: str) -> Callable[[int], Any]:
    def build(layers: int) -> Any:
        from models import torch_models

        module, _ = getattr(torch_models, name)(layers)
        return module

    return build


def _interpolating(layers: int) -> Any:
    import torch

    module = _zoo("vit_b16")(layers)

    class Interpolating(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module.model

        def forward(self, pixels: Any) -> Any:
            return self.model(pixels, interpolate_pos_encoding=True, return_dict=True).logits

    return Interpolating().eval()


def _ids(name: str, *shape: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(0, VOCABULARY[name], shape, generator=generator)


def _normal(*shape: int) -> Any:
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _bert(at: Sizes) -> tuple[Any, ...]:
    import torch

    ids = _ids("bert", at["batch"], at["length"])
    mask = torch.ones_like(ids)
    mask[::2, at["length"] * 3 // 4 + 1 :] = 0
    return ids, mask


def _sequence(name: str) -> Callable[[Sizes], tuple[Any, ...]]:
    return lambda at: (_ids(name, at["batch"], at["length"]),)


def _image(at: Sizes) -> tuple[Any, ...]:
    return (_normal(at["batch"], 3, at.get("height", 224), at.get("width", 224)),)


BOTH = {0: "batch", 1: "length"}
SEQUENCES = {"batch": BATCH, "length": LENGTH}
IMAGE = {0: "batch", 2: "height", 3: "width"}


def _area(at: Sizes) -> int:
    return at["batch"] * at.get("height", 224) * at.get("width", 224) // 256


def _tokens(at: Sizes) -> int:
    return math.prod(at.values())


CASES = {
    "bert": Case(_zoo("bert_base"), 12, _bert, (BOTH, BOTH), SEQUENCES, _tokens),
    "gpt2": Case(_zoo("gpt2"), 12, _sequence("gpt2"), (BOTH,), SEQUENCES, _tokens),
    "llama": Case(_zoo("llama"), 12, _sequence("llama"), (BOTH,), SEQUENCES, _tokens),
    "t5": Case(
        _zoo("t5_small"), 6,
        lambda at: (_ids("t5", at["batch"], at["length"]), _ids("t5", at["batch"], at["target"])),
        (BOTH, {0: "batch", 1: "target"}),
        {**SEQUENCES, "target": LENGTH},
        lambda at: at["batch"] * (at["length"] + at["target"]),
    ),
    "vit": Case(_zoo("vit_b16"), 12, _image, ({0: "batch"},), {"batch": BATCH}, _area),
    "vit-interpolated": Case(
        _interpolating, 12, _image, (IMAGE,),
        {"batch": BATCH, "height": SIDE[::16], "width": SIDE[::16]}, _area, is_named=False,
    ),
    "resnet50": Case(
        _zoo("resnet50"), 4, _image, (IMAGE,), {"batch": BATCH, "height": SIDE, "width": SIDE},
        _area,
    ),
    "whisper": Case(
        _zoo("whisper_encoder"), 4, lambda at: (_normal(at["batch"], 80, 3000),), ({0: "batch"},),
        {"batch": BATCH}, lambda at: at["batch"] * 1500,
    ),
}  # fmt: skip


def exported(case: Case, model: Any) -> Any:
    """The export, and what its symbols may be where it does not say."""
    import torch

    example = {name: range_[len(range_) // 3] for name, range_ in case.ranges.items()}
    example["batch"] = 3
    dim = torch.export.Dim
    dims = {n: dim(n, min=r[0], max=r[-1]) for n, r in case.ranges.items()}
    shapes = tuple(
        {axis: dims[name] if case.is_named else dim.AUTO for axis, name in one.items()}
        for one in case.dims
    )
    taken = inspect.signature(model.forward).parameters.values()
    starred = any(one.kind is one.VAR_POSITIONAL for one in taken)
    with torch.no_grad():
        return torch.export.export(
            model, case.inputs(example), strict=False,
            dynamic_shapes=(shapes,) if starred else shapes,
        )  # fmt: skip


def stated(case: Case, source: Any, at: Sizes | None = None) -> dict[str, Any]:
    """`sizes=` of a compilation: the case's ranges, or numbers."""
    import girih

    module = girih.import_model(source)
    found: dict[str, Any] = {}
    for argument, names in zip(module.body.arguments[-len(case.dims) :], case.dims, strict=True):
        for axis, name in names.items():
            found[str(argument.tensor.dims[axis])] = at[name] if at else case.ranges[name]
    return {name: said for name, said in found.items() if name in module.symbols}


def chosen(case: Case, count: int, most: int, seed: int) -> list[dict[str, int]]:
    """The corners that have at most so many tokens, then edges and random sizes, small ones as
    often as large ones."""
    chance = random.Random(seed)
    found: list[dict[str, int]] = []

    def add(at: dict[str, int]) -> None:
        if case.tokens(at) <= most and at not in found and len(found) < count:
            found.append(at)

    ends = {name: (said[0], said[-1]) for name, said in case.ranges.items()}
    for corner in range(2 ** len(ends)):
        add({name: both[corner >> n & 1] for n, (name, both) in enumerate(ends.items())})
    for _ in range(10_000):
        at = {}
        for name, said in case.ranges.items():
            near = [size for size in EDGES if size in said]
            is_edge = bool(near) and chance.random() < 0.4
            at[name] = chance.choice(near) if is_edge else _drawn(chance, said)
        add(at)
    return found


def _drawn(chance: random.Random, said: range) -> int:
    """Any, spread evenly over magnitudes."""
    return said[min(len(said) - 1, int(math.exp(chance.uniform(0, math.log(len(said))))) - 1)]


def error(found: list[Any], wanted: list[Any]) -> float:
    """The largest difference as a share of the largest magnitude of each result."""
    if len(found) != len(wanted) or any(
        one.shape != other.shape for one, other in zip(found, wanted, strict=True)
    ):
        return math.inf
    worst = 0.0
    for one, other in zip(found, wanted, strict=True):
        difference = float(np.abs(one - other).max(initial=0))
        share = difference / max(float(np.abs(other).max(initial=0)), 1e-30)
        worst = max(worst, share if share == share else math.inf)
    return worst


def compare(name: str, layers: int, options: argparse.Namespace) -> dict[str, Any]:
    import torch
    from torch.utils import _pytree as pytree

    import girih

    case = CASES[name]
    model, saving = case.build(layers), girih.Options(cache="off")
    source = exported(case, model)
    sizes = chosen(case, options.sizes, options.tokens, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        opened, single = Path(folder, "open.girih"), Path(folder, "one.girih")
        begin = time.perf_counter()
        program = girih.compile(source, options=saving, sizes=stated(case, source))
        seconds = time.perf_counter() - begin
        program.save(opened)
        plans = len(program.plans)
        del program
        likely = min(sizes, key=lambda at: abs(case.tokens(at) - 1024))
        begin = time.perf_counter()
        fixed = girih.compile(source, options=saving, sizes=stated(case, source, likely))
        fixed_seconds = time.perf_counter() - begin
        fixed.save(single)
        del fixed
        served = Served(opened)
        errors = {}
        for at in sizes:
            given = case.inputs(at)
            with torch.no_grad():
                wanted = [x.numpy() for x in pytree.tree_leaves(model(*given))]
            found = served.call([x.numpy() for x in given])
            text = " x ".join(map(str, at.values()))
            errors[text] = found if isinstance(found, str) else error(found, wanted)
            if isinstance(found, str) or errors[text] > TOLERANCE:
                print(f"{name} at {text}: {errors[text]}", flush=True)
        imported = served.end()
        found_bytes = opened.stat().st_size, single.stat().st_size
    numbers = [e for e in errors.values() if not isinstance(e, str)]
    result = {
        "layers": layers, "of": case.layers, "sizes": len(errors), "seed": options.seed,
        "ranges": {n: f"{r[0]}..{r[-1]}" + f" by {r.step}" * (r.step > 1)
                   for n, r in case.ranges.items()},
        "largest_error": max(numbers, default=math.inf),
        "wrong": {at: e for at, e in errors.items() if isinstance(e, str) or e > TOLERANCE},
        "compilations_after_load": len(imported), "plans": plans,
        "bytes": found_bytes[0], "bytes_of_one_size": found_bytes[1],
        "share": round(found_bytes[0] / found_bytes[1], 4),
        "seconds": round(seconds, 1), "seconds_of_one_size": round(fixed_seconds, 1),
        "called": list(errors),
    }  # fmt: skip
    print(f"{name}, {layers} of {case.layers} layers: {len(errors)} sizes,"
          f" {len(result['wrong'])} wrong, largest error {result['largest_error']:.1e},"
          f" imported {imported or 'no compiler'}, {plans} plans, bundle {found_bytes[0]:,} bytes ="
          f" {result['share']:.3f} x one size, compiled in {seconds:.0f} s"
          f" ({fixed_seconds:.0f} s)", flush=True)  # fmt: skip
    return result


class Served:
    """A process that has loaded a bundle and nothing else."""

    def __init__(self, bundle: Path) -> None:
        command = [sys.executable, __file__, "--serve", str(bundle)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def call(self, arrays: list[Any] | None) -> Any:
        assert self.process.stdin and self.process.stdout
        pickle.dump(arrays, self.process.stdin, protocol=5)
        self.process.stdin.flush()
        return pickle.load(self.process.stdout)  # noqa: S301 - our own process

    def end(self) -> list[str]:
        """Which parts of a compiler the process has imported."""
        found = self.call(None)
        self.process.wait()
        return found


def serve(bundle: str) -> None:
    import girih
    from girih.hlo.errors import GirihError

    program = girih.load(bundle)
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while True:
        arrays = pickle.load(source)  # noqa: S301 - from the process that started this one
        if arrays is None:
            answer: Any = [name for name in COMPILER if name in sys.modules]
        else:
            try:
                answer = [np.asarray(x) for x in program.call_flat(arrays)]
            except GirihError as refused:
                answer = str(refused)
        pickle.dump(answer, target, protocol=5)
        target.flush()
        if arrays is None:
            return


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", choices=tuple(CASES))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--sizes", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return 0
    wrong = 0
    for name in options.model or CASES:
        layers = options.layers or CASES[name].layers
        result = compare(name, layers, options)
        wrong += len(result["wrong"]) + result["compilations_after_load"]
        if options.save:
            kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            kept[f"{name}, {layers} layers"] = result
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
