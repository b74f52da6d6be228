"""Whole programs through the runtime: memory, graphs, branches, others' arrays, bundles."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import girih
from girih.hlo.build import Builder, build_module, build_region
from girih.hlo.graph import Module
from girih.hlo.types import BF16, F32, I32, TensorType

from .kernels import random
from .prepared import Folder, is_small
from .trial import Array, error

MODELS = ("gpt2-decode", "bert-base", "resnet50")  # of the zoo
MODEL_TOLERANCE = 2e-2


class Wrong(Exception):  # noqa: N818  # an answer of a check, no fault of it
    """Results that are not what they should be."""


def scalar(b: Builder, value: float) -> Any:
    return b.constant(value, TensorType((), F32))


def mlp() -> tuple[Module, list[Array], float]:
    """Two layers of bf16 with their weights inside, and a row-wise normalisation."""
    weights = random(128, 192) / 16, random(192, 128) / 16

    def body(b: Builder, x: Any) -> list[Any]:
        for weight in weights:
            kind = TensorType((x.dims[0], weight.shape[1]), BF16)
            facts: dict[str, Any] = {
                "lhs_contracting_dimensions": (1,),
                "rhs_contracting_dimensions": (0,),
            }
            x = b("tanh", b("dot_general", x, b.constant(weight), type=kind, **facts))
        wide = b.convert(x, F32)
        total = b.reduce("add", b("multiply", wide, wide), scalar(b, 0.0), (1,))
        shrink = b("rsqrt", b("add", total, b.broadcast(scalar(b, 1e-3), total.dims, ())))
        return [b("multiply", wide, b.broadcast(shrink, wide.dims, (0,)))]

    x = random(72, 128)
    return build_module([TensorType(x.shape, BF16)], body), [x], 2e-2


def chain() -> tuple[Module, list[Array], float]:
    """A transpose, a product of f32, a softmax and a sort: several steps in the arena."""

    def body(b: Builder, x: Any) -> list[Any]:
        turned = b.transpose(x, (1, 0))
        facts: dict[str, Any] = {
            "lhs_contracting_dimensions": (1,),
            "rhs_contracting_dimensions": (0,),
        }
        product = b("dot_general", turned, x, type=TensorType((96, 96), F32), **facts)
        top = b.reduce("maximum", product, scalar(b, -1e30), (1,))
        shifted = b("subtract", product, b.broadcast(top, product.dims, (0,)))
        powers = b("exponential", shifted)
        total = b.reduce("add", powers, scalar(b, 0.0), (1,))
        soft = b("divide", powers, b.broadcast(total, powers.dims, (0,)))
        pair = [TensorType((), F32)] * 2
        less = build_region(pair, lambda c, p, q: [c.compare("LT", p, q)])
        ordered = b("sort", soft, regions=(less,), dimension=1, is_stable=True)
        return [ordered, b.reduce("add", product, scalar(b, 0.0), (0, 1))]

    x = random(128, 96, dtype=np.float32) / 8
    return build_module([TensorType(x.shape, F32)], body), [x], 1e-4


def loop() -> tuple[Module, list[Array], float]:
    """A loop whose end the host reads."""
    kinds = [TensorType((), I32), TensorType((1000,), F32)]

    def goes_on(b: Builder, i: Any, a: Any) -> list[Any]:
        return [b.compare("LT", i, b.constant(5, kinds[0]))]

    def turn(b: Builder, i: Any, a: Any) -> list[Any]:
        return [b("add", i, b.constant(1, kinds[0])), b("add", a, b("sine", a))]

    def body(b: Builder, x: Any) -> list[Any]:
        regions = (build_region(kinds, goes_on), build_region(kinds, turn))
        start = b.constant(0, kinds[0])
        return list(b.op("while", [start, x], regions=regions).results)

    x = random(1000, dtype=np.float32)
    return build_module([kinds[1]], body), [x], 1e-5


def large() -> tuple[Module, list[Array], float]:
    """Two products of several waves of tiles: clusters, also in a graph."""

    def body(b: Builder, x: Any, w: Any) -> list[Any]:
        facts: dict[str, Any] = {
            "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)
        }  # fmt: skip
        for _ in range(2):
            x = b("tanh", b("dot_general", x, w, type=TensorType((8192, 2048), BF16), **facts))
        return [x]

    inputs = [random(8192, 2048), random(2048, 2048) / 32]
    return build_module([TensorType(x.shape, BF16) for x in inputs], body), inputs, 3e-2


PROGRAMS: dict[str, Callable[[], tuple[Module, list[Array], float]]] = {
    "mlp": mlp, "chain": chain, "loop": loop, "large": large,
}  # fmt: skip
SLOW = ("large",)  # for the simulator


def checked(found: Any, wanted: list[Array], tolerance: float, what: str) -> float:
    """The error of results; Wrong where it is too large."""
    given = found if isinstance(found, (list, tuple)) else [found]
    worst = error([np.asarray(x) for x in given], wanted)
    if not worst <= tolerance:
        raise Wrong(f"{what}: the error is {worst:.2e}, {tolerance:.0e} is allowed")
    return worst


@dataclass(frozen=True)
class Source:
    """Where programs come from: compiled for `target` here, or made ahead into `folder`."""

    target: str
    folder: Folder | None = None

    @property
    def simulate(self) -> bool:
        return self.target.startswith("ptx-sim")

    def load(self, file: Path) -> Any:
        return girih.load(file, target="nvidia", simulate=self.simulate, allow_native=True)

    def program(self, name: str) -> tuple[Any, list[Array], list[Array], float]:
        """The program, its inputs, what it has to give, and how far off that may be."""
        module, inputs, tolerance = PROGRAMS[name]()
        wanted = None
        if self.folder is None:
            program = girih.compile(module, target=self.target)
        else:
            program = self.load(self.folder.bundle(f"program: {name}"))
            wanted = self.folder.get(f"program: {name}")
        if wanted is None:
            wanted = _interpreted(module, inputs)
        return program, inputs, wanted, tolerance


def _interpreted(module: Module, inputs: list[Array]) -> list[Array]:
    return [np.asarray(x) for x in girih.interpret(module, inputs)]


def prepare(name: str, architecture: str, folder: Folder) -> None:
    """The bundle of a program, and its results where they are small."""
    module, inputs, _ = PROGRAMS[name]()
    program = girih.compile(module, target=f"nvidia:{architecture}")
    program.save(folder.file(f"program: {name}", ".girih"))
    folder.put(f"program: {name}", _interpreted(module, inputs) if is_small(inputs) else None)


def called(name: str, source: Source) -> float:
    """From the host: plainly, then as a recorded graph, then with a clock around each step."""
    program, inputs, wanted, tolerance = source.program(name)
    worst = 0.0
    for turn in range(3):
        worst = max(worst, checked(program(*inputs), wanted, tolerance, f"call {turn + 1}"))
    profile = program.profile(*inputs)
    if not profile.events or min(event.duration for event in profile.events) < 0:
        raise Wrong(f"the profile has {len(profile.events)} events")
    return worst


def stayed(name: str, source: Source) -> float:
    """Results on the device, twice, the first ones alive during the second call."""
    program, inputs, wanted, tolerance = source.program(name)
    twice = [program.on_device(*inputs) for _ in range(2)]
    return max(
        checked([x.numpy() for x in results], wanted, tolerance, f"call {turn + 1}")
        for turn, results in enumerate(twice)
    )


def bundled(name: str, source: Source) -> float:
    """Through a file; on a GPU with machine code where ptxas is at hand."""
    program, inputs, wanted, tolerance = source.program(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.girih"
        program.save(path)
        again = source.load(path)
        return checked(again(*inputs), wanted, tolerance, again.reason)


def with_torch(name: str, source: Source) -> float:
    """torch's arrays on a stream of its own, without a copy on the way in and out."""
    import torch

    program, inputs, wanted, tolerance = source.program(name)
    worst = 0.0
    for _ in range(3):
        with torch.cuda.stream(torch.cuda.Stream()):
            given = [torch.zeros(x.shape, device="cuda") for x in inputs]
            torch.cuda._sleep(20_000_000)  # what reads too early reads zeros
            for tensor, x in zip(given, inputs, strict=True):
                tensor.copy_(torch.from_numpy(np.asarray(x, np.float32)).pin_memory(), True)
            kinds = {"bfloat16": torch.bfloat16, "float32": torch.float32}
            given = [t.to(kinds[x.dtype.name]) for t, x in zip(given, inputs, strict=True)]
            results = program.on_device(*given)
            taken = [torch.from_dlpack(x).float().cpu().numpy() for x in results]
        worst = max(worst, checked(taken, wanted, tolerance, "with torch"))
    return worst


def with_jax(name: str, source: Source) -> float:
    """JAX's arrays, without a copy on the way in and out."""
    import jax

    program, inputs, wanted, tolerance = source.program(name)
    given = [jax.device_put(x, jax.devices("gpu")[0]) for x in inputs]
    results = [jax.dlpack.from_dlpack(x) for x in program.on_device(*given)]
    return checked(results, wanted, tolerance, "with JAX")


def model(name: str, source: Source) -> float:
    """A model of the zoo from its framework, beside that framework's answer."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from models import model as entry

    built = entry(name).build()
    wanted = [np.asarray(x) for x in built.reference()]
    program = girih.compile(built.source, *built.inputs, target=source.target)
    results = program(*built.inputs)
    from girih.hlo.errors import UserError

    leaves = _leaves(results)
    if len(leaves) != len(wanted):
        raise UserError(f"{len(leaves)} results, the framework has {len(wanted)}")
    return checked(leaves, wanted, MODEL_TOLERANCE, name)


def _leaves(tree: Any) -> list[Array]:
    from torch.utils import _pytree as pytree

    return [np.asarray(leaf) for leaf in pytree.tree_leaves(tree)]


def others(real: bool) -> Iterator[tuple[str, Callable[[Source], float]]]:
    """(name, check of programs from a source that gives the error) of what a program can do beside
    being called, and of models."""
    yield "program: results on the device", partial(stayed, "chain")
    yield "program: bundle", partial(bundled, "mlp")
    if real:
        yield "program: torch's arrays", partial(with_torch, "chain")
        yield "program: JAX's arrays", partial(with_jax, "chain")
        for name in MODELS:
            yield f"model: {name}", partial(model, name)
