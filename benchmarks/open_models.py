"""Real models of real widths with open sizes: one bundle each, equal to PyTorch at many sizes.

    python benchmarks/open_models.py [--only bert,t5] [--layers 2] [--sizes 40] [--tokens 4096]
        [--largest vit] [--seed 0] [--save]
    python benchmarks/open_models.py --times [--only bert] [--layers 0] [--sizes 20]
        [--engines onnxruntime,openvino,torch.compile,fixed] [--seconds 1] [--save]

Each model is exported with open batch (1 to 64) and length (1 to 512), or sides of images, compiled
once and saved. Another process loads the bundle and runs it at the corners and at random sizes,
primes and neighbours of powers of two among them, of at most `--tokens` tokens (for images: of as
many patches), which bounds memory and time; of the models of `--largest`, at the largest of all
sizes as well, whatever that takes. It also tells whether anything of the compiler was imported
there. Prints the largest difference as a share of the largest magnitude of PyTorch's result, and
bytes of the bundle beside those of one for a single size. `--layers 0`: all layers.

`--times`: milliseconds at each size instead, beside engines that have one program for all sizes as
well (open_engines.py), and `fixed`, girih's own program of each size alone; what an engine cannot
do is told with its reason.

`--save`: results go to benchmarks/results/open_models.json, one entry for each model and depth, as
soon as the model is done; one of `--times` goes on where it was left, unless the commit differs.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import pickle
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

RESULTS = Path(__file__).resolve().parent / "results" / "open_models.json"
PEERS = ("onnxruntime", "openvino", "torch.compile", "fixed")
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


def chosen(
    case: Case, count: int, most: int, seed: int, largest: bool = False
) -> list[dict[str, int]]:
    """The corners that have at most so many tokens, then edges and random sizes, small ones as
    often as large ones. largest: the corner of all largest sizes in any case."""
    chance = random.Random(seed)
    found = [{name: said[-1] for name, said in case.ranges.items()}] if largest else []

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
    largest = name in options.largest.split(",")
    sizes = chosen(case, options.sizes, options.tokens, options.seed, largest)
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
            text = _spelled(at)
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


def timed(name: str, layers: int, options: argparse.Namespace, kept: Any, save: Any) -> Any:
    """Milliseconds of girih and its peers at each size, which take turns. kept: what an earlier run
    has found; save: is told what there is after each size."""
    import torch
    from torch.utils import _pytree as pytree

    import girih
    from open_engines import ENGINES, Unavailable
    from turns import usual_seconds

    case, saving = CASES[name], girih.Options(cache="off")
    sizes = chosen(case, options.sizes, options.tokens, options.seed)
    found = {"rows": {}, "unavailable": {}, **kept}
    rows: dict[str, dict[str, float]] = found["rows"]
    left = [at for at in sizes if _spelled(at) not in rows]
    if not left:
        return _summed(found)
    model = case.build(layers)
    source = exported(case, model)
    program = girih.compile(source, options=saving, sizes=stated(case, source))
    peers: dict[str, Callable[..., Any]] = {}
    for engine in options.engines.split(","):
        try:
            if engine != "fixed":
                peers[engine] = ENGINES[engine](model, source)
        except Unavailable as reason:
            found["unavailable"][engine] = str(reason)
            print(f"{name}: {engine} is not available: {reason}", flush=True)
    for at in left:
        given = case.inputs(at)
        arrays = [x.numpy() for x in given]
        with torch.inference_mode():
            wanted = [x.numpy() for x in pytree.tree_leaves(model(*given))]
        calls: dict[str, Callable[[], Any]] = {"girih": partial(program.call_flat, arrays)}
        calls |= {engine: partial(call, arrays) for engine, call in peers.items()}
        if "fixed" in options.engines.split(","):
            one = girih.compile(source, options=saving, sizes=stated(case, source, at))
            calls["fixed"] = partial(one.call_flat, arrays)
        for engine, call in list(calls.items()):
            try:
                off = error([np.asarray(x) for x in call()], wanted)
                reason = f"its result differs by {off:.1e}" if off > TOLERANCE else ""
            except Exception as failed:
                reason = f"its call failed: {(str(failed).strip().splitlines() or [''])[-1][:160]}"
            if reason:
                del calls[engine]
                found["unavailable"][f"{engine} at {_spelled(at)}"] = reason
                print(f"{name} at {_spelled(at)}: {engine}: {reason}", flush=True)
        usual, _ = usual_seconds(calls, options.seconds)
        rows[_spelled(at)] = {engine: round(1e3 * one, 4) for engine, one in usual.items()}
        told = ", ".join(f"{engine} {one:.2f}" for engine, one in rows[_spelled(at)].items())
        print(f"{name} at {_spelled(at)}: {told} ms", flush=True)
        save(_summed(found))
    return _summed(found)


def _summed(found: dict[str, Any]) -> dict[str, Any]:
    """With the geometric mean of girih's time as a share of each other's, where both ran."""
    shares: dict[str, list[float]] = {}
    for row in found["rows"].values():
        for engine, one in row.items():
            if engine != "girih" and "girih" in row:
                shares.setdefault(engine, []).append(row["girih"] / one)
    means = {engine: round(statistics.geometric_mean(x), 4) for engine, x in shares.items()}
    worst = {engine: round(max(x), 4) for engine, x in shares.items()}
    return {**found, "share_of_the_time_of": means, "worst_share": worst}


def _spelled(at: Sizes) -> str:
    return " x ".join(map(str, at.values()))


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


def saved(key: str, described: dict[str, Any], found: dict[str, Any]) -> None:
    """Keep what was found in the results, which keep the rest."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept[key] = {"machine": described, **found}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="NAMES", default=",".join(CASES), help="of models")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--sizes", type=int)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--largest", metavar="NAMES", default="", help="of models")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--engines", metavar="NAMES", default=",".join(PEERS))
    parser.add_argument("--seconds", type=float, default=1.0, help="for each engine and size")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return 0
    from zoo import machine

    options.sizes = options.sizes or (20 if options.times else 40)
    wrong, described = 0, machine()
    for name in options.only.split(","):
        layers = options.layers or CASES[name].layers
        key = f"{name}, {layers} layers" + ", times" * options.times
        save = partial(saved, key, described) if options.save else (lambda found: None)
        if options.times:
            known = json.loads(RESULTS.read_text()).get(key, {}) if options.save else {}
            before = known.get("machine", {}).get("commit", "")
            same = before.rstrip("+") == described["commit"].rstrip("+")  # results are files, too
            found = timed(name, layers, options, known if same else {}, save)
            shares = ", ".join(
                f"{one} of {engine}'s (worst {found['worst_share'][engine]})"
                for engine, one in found["share_of_the_time_of"].items()
            )
            print(f"{key}: girih's time is {shares}", flush=True)
        else:
            result = compare(name, layers, options)
            wrong += len(result["wrong"]) + result["compilations_after_load"]
            save(result)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
