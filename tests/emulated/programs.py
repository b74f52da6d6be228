"""Compiles, on this machine, what emulated CPUs run: bundles, and what is expected of them.

    python -m girih.tests.emulated.programs cases|models FOLDER LEVEL...

`cases` are all of StableHLO's test programs, which check themselves. `models` are programs with
inputs and the interpreter's results: networks, factorisations (LAPACK), and one for many workers.
FOLDER gets a folder per level, and one of bundles for SEVERAL levels, with a `.pickle` of arrays
beside each bundle that needs them.
"""

from __future__ import annotations

import json
import pickle
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import girih
from girih.hlo.build import build_module
from girih.hlo.cases import all_examples
from girih.hlo.graph import Module
from girih.hlo.types import F32, TensorType

from ..conformance.programs import CHOSEN, INTERPRETER, read_programs
from ..conformance.runner import AS_WRITTEN, Case, read_cases

MODELS = 36
SEVERAL = "avx2 avx512 neon"
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # the zoo
LARGE = TensorType((300, 400), F32)


class Model(NamedTuple):
    """A program with inputs. `signs`: whether only magnitudes of its results are determined."""

    name: str
    module: Module
    inputs: Sequence[Any]
    tolerance: float
    signs: bool = False


def cases() -> Iterator[Case]:
    """Those for one device."""
    for name, text in sorted([*read_programs(CHOSEN), *read_programs(INTERPRETER)]):
        yield from (case for case in read_cases(name, text) if not case.parallel)


def models() -> Iterator[Model]:
    yield from _factorisations()
    yield Model("large", build_module([LARGE, LARGE], _large), [_random(), _random()], 1e-4)
    yield from _jax()
    yield from _architectures()


def _large(b: Any, x: Any, y: Any) -> list[Any]:
    """Products, rows and elements enough for several workers."""
    dims = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (1,)}
    product = b("dot_general", x, y, **dims)
    grown = b("exponential", b("tanh", product))
    total = b.reduce("add", grown, b.constant(0, TensorType((), F32)), (1,))
    return [b("divide", grown, b.broadcast(total, grown.dims, (0,)))]


def _random() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(LARGE.dims, np.float32) / 20


def _factorisations() -> Iterator[Model]:
    seen = set()
    for made in all_examples():
        room = made.definition.name
        if room.startswith("linalg.") and room not in seen:
            seen.add(room)
            yield Model(made.name, made.module, made.inputs, max(made.tolerance, 1e-4), signs=True)


def _jax() -> Iterator[Model]:
    import jax

    from ..zoo.test_zoo_on_ptx import MODELS as small

    for name, make in small.items():
        source, inputs = make()
        module = girih.import_model(source, *inputs)
        flat = [np.array(leaf) for leaf in jax.tree_util.tree_leaves(inputs)]
        yield Model(name, replace(module, signature=None), flat, 1e-3)


def _architectures() -> Iterator[Model]:
    """Every sixth one of transformers, at tiny size."""
    import torch

    from girih.frontends.torch.exported import array_of

    from ..zoo import architectures as zoo

    for entry in zoo.ARCHITECTURES[::6]:
        model, inputs = zoo.build(entry)
        with torch.no_grad():
            try:
                exported = torch.export.export(model, (), dict(inputs), strict=False)
            except Exception:  # noqa: BLE001, S112 - docs/architectures.md says which and why
                continue
        module = girih.import_model(exported)
        assert module.signature is not None
        leaves = [array_of(leaf) for leaf in module.signature.flatten((), inputs)]
        tolerance = zoo.TOLERANCE[entry.dtype]
        yield Model(entry.name, replace(module, signature=None), leaves, tolerance)


def write_cases(folder: Path, levels: Sequence[str]) -> None:
    checks = {}
    for number, case in enumerate(cases()):
        name = f"{number:04} {case.name.replace('/', '_')}"
        checks[name] = case.checks
        module = case.module()
        for level in levels:
            program = girih.compile(module, target=f"cpu:{level}", options=AS_WRITTEN)
            program.save(folder / level / f"{name}.girih", seal=False)
    for level in levels:
        (folder / level / "checks.json").write_text(json.dumps(checks))


def write_models(folder: Path, levels: Sequence[str]) -> None:
    for model, _ in zip(models(), range(MODELS), strict=False):
        with np.errstate(all="ignore"):
            wanted = girih.interpret(model.module, list(model.inputs))
        arrays = [[np.asarray(array) for array in group] for group in (model.inputs, wanted)]
        about = (*arrays, model.tolerance, model.signs)
        for level in (*levels, SEVERAL):
            path = folder / level / f"model {model.name}.girih"
            targets = [f"cpu:{name}" for name in level.split()]
            girih.compile(model.module, target=targets).save(path, seal=False)
            path.with_suffix(".pickle").write_bytes(pickle.dumps(about))


def main() -> None:
    warnings.simplefilter("ignore")
    what, folder, *levels = sys.argv[1:]
    for level in (*levels, SEVERAL):
        (Path(folder) / level).mkdir(parents=True, exist_ok=True)
    {"cases": write_cases, "models": write_models}[what](Path(folder), levels)


if __name__ == "__main__":
    main()
