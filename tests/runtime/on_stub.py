"""Runs kernels on the library that stands in for libcuda (stub_cuda.c).

    python tests/runtime/on_stub.py ARCHITECTURE [FIRST STEP]

Every instruction and kernel of benchmarks/gpu/first_run.py, and the zoo's models with one layer, go
through the real bindings of CUDA's driver, whose calls the library checks; nothing is computed.
FIRST, STEP: of the zoo only each STEP-th model, from number FIRST on.
Prints how many launches there were.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "benchmarks" / "gpu")]

import girih  # noqa: E402
from first import atoms, kernels  # noqa: E402  # pyright: ignore[reportMissingImports]
from first.trial import made, run  # noqa: E402  # pyright: ignore[reportMissingImports]
from girih.backends.nvidia.target import target  # noqa: E402
from girih.runtime.devices.cuda import find_gpus  # noqa: E402
from girih.runtime.devices.gpu_context import NvidiaContext  # noqa: E402
from girih.runtime.devices.launches import Choose  # noqa: E402
from girih.runtime.parts import copied_parts  # noqa: E402
from models import ZOO  # noqa: E402

WITHOUT_LAYERS = ("mobilenet-v2",)  # models that are always as deep as they are


def zoo(first: int = 0, step: int = 1) -> Iterator[tuple[Any, Any]]:
    """The zoo's models, those of PyTorch in bfloat16, and one in float32."""
    import torch
    from torch.utils import _pytree as pytree

    def narrowed(leaf: Any) -> Any:
        return leaf.bfloat16() if leaf.is_floating_point() else leaf

    for entry in ZOO[first::step]:
        built = entry.build(None if entry.name in WITHOUT_LAYERS else 1)
        if built.framework == "torch":
            yield built.source.to(torch.bfloat16), pytree.tree_map(narrowed, built.inputs)
        else:
            yield built.source, built.inputs
    yield convolutions()


def convolutions() -> tuple[Any, Any]:
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 32, 3, 2, 1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    layers += [torch.nn.Conv2d(32, 64, 3, 1, 1, groups=2), torch.nn.AdaptiveAvgPool2d(1)]
    return torch.nn.Sequential(*layers).eval(), (torch.randn(2, 3, 32, 32),)


def main() -> None:
    on = target(sys.argv[1])
    (gpu,) = find_gpus()
    launches = 0
    trials = [(name, [("", make(on))]) for name, make in atoms.atoms(on)]
    trials += [(name, make(on)) for name, make in kernels.everything(on)]
    for _, several in trials:
        for label, trial in several:
            run(gpu, made(label, trial, on))
            launches += len(trial.code.launches)
    turns: defaultdict[Choose, count[int]] = defaultdict(count)

    def in_turn(self: NvidiaContext, bases: list[int], step: Choose) -> int:
        return next(turns[step]) % len(step.targets)

    NvidiaContext._read = in_turn  # nothing computes conditions, and loops have to end
    for source, inputs in zoo(*map(int, sys.argv[2:])):
        program = girih.compile(source, *inputs, target=on.name)
        variant = replace(program.parts.variants[on.name], cubins={})  # PTX can be read
        program = program.with_parts(copied_parts(program.parts, variants={on.name: variant}))
        for _ in range(3):  # launches, then a graph, which takes other addresses
            results = program.on_device(*inputs)
        del results
        program.profile(*inputs)
        launches += sum(len(kernel.launches) for kernel in program.plan.kernels)
    print(launches, "launches")


main()
