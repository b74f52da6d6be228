"""The example's Llama, small, for tests of entry points and of state."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np

import girih

FOLDER = Path(__file__).parents[1] / "examples" / "generate"
SMALL = {
    "vocabulary": 64, "width": 32, "hidden": 64, "layers": 2, "heads": 4, "key_heads": 2,
    "prompt": 8, "capacity": 32,
}  # fmt: skip


@functools.cache
def example(name: str) -> Any:
    """A file of the example as a module."""
    spec = importlib.util.spec_from_file_location(f"generate_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[f"generate_{name}"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small_llama(**sizes: int) -> Any:
    room = example("model")
    return room.Llama(room.Config(**{**SMALL, **sizes})).eval()


def sources(model: Any, *names: str) -> dict[str, Any]:
    """Entry points of the model: prefill and decode, or those that are named."""
    every = example("model").entry_points(model)
    return {name: every[name] for name in names or ("prefill", "decode")}


@functools.cache
def llama_program(target: str = "cpu") -> girih.Program:
    """Prefill and decode of a small Llama, compiled once."""
    return girih.compile(sources(small_llama()), target=target, options=girih.Options(cache="off"))


def prompt(seed: int = 0, size: int = 8, length: int = 5) -> tuple[Any, Any]:
    tokens = np.zeros((1, size), np.int64)
    tokens[0, :length] = np.random.default_rng(seed).integers(1, 60, length)
    return tokens, np.array([length])


def token(number: int) -> Any:
    return np.array([[number]])


def eager(model: Any, name: str, *arrays: Any) -> Any:
    import torch

    with torch.no_grad():
        return getattr(model, name)(*map(torch.from_numpy, arrays)).numpy()
