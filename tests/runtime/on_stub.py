"""Runs kernels on the library that stands in for libcuda (stub_cuda.c): `on_stub.py ARCHITECTURE`.

Every instruction and kernel of benchmarks/gpu/first_run.py, and models at small width, go through
the real bindings of CUDA's driver, whose calls the library checks; nothing is computed. Prints how
many launches there were.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "benchmarks" / "gpu")]

from first import atoms, kernels  # noqa: E402  # pyright: ignore[reportMissingImports]
from first.trial import made, run  # noqa: E402  # pyright: ignore[reportMissingImports]
from models import jax_models  # noqa: E402

import girih  # noqa: E402
from girih.backends.nvidia.target import target  # noqa: E402
from girih.runtime.devices.cuda import find_gpus  # noqa: E402
from girih.runtime.parts import copied_parts  # noqa: E402

MODELS: tuple[Any, ...] = (  # without loops, whose end nothing would compute
    lambda: jax_models.mlp_train(layers=2, width=32, batch=8),
    lambda: transformer(),
    lambda: convolutions(),
)


def transformer() -> tuple[Any, Any]:
    import torch
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_embd=128, n_head=2, vocab_size=64, use_cache=False)
    return GPT2Model(config).bfloat16().eval(), (torch.arange(64).reshape(1, 64),)


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
    for build in MODELS:
        source, inputs = build()
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
