"""The zoo on a GPU: girih beside torch eager, torch.compile and XLA, decoding among the models."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers import Prepared, Unavailable, _warmed, first_line, girih_model, gpu_jax

QUICK = ("bert-base", "gpt2-decode", "resnet50")


def names(quick: bool) -> list[str]:
    from models import ZOO

    known = [entry.name for entry in ZOO]
    return [name for name in known if name in QUICK] if quick else known


def engines_of(name: str) -> tuple[Any, dict[str, Callable[[], Prepared]]]:
    """The expected results of a model, and the makers of its engines."""
    from models import model

    built = model(name).build()
    expected = built.reference()
    if built.framework == "jax":
        return expected, {"girih": lambda: _girih(built), "xla": lambda: _xla(built)}
    return expected, {
        "girih": lambda: _girih(built),
        "torch": lambda: _torch(built, compiled=False),
        "torch.compile": lambda: _torch(built, compiled=True),
    }


def _on_gpu(tree: Any) -> Any:
    import numpy as np
    import torch
    from torch.utils import _pytree as pytree

    def moved(leaf: Any) -> Any:
        return (torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf).cuda()

    return pytree.tree_map(moved, tree)


def _girih(built: Any) -> Prepared:
    return girih_model(built.source, built.inputs, _on_gpu(built.inputs))


def _torch(built: Any, compiled: bool) -> Prepared:
    import copy

    import torch

    source, inputs = copy.deepcopy(built.source).cuda(), _on_gpu(built.inputs)
    torch._dynamo.reset()
    run = torch.compile(source) if compiled else source

    def call() -> Any:
        with torch.inference_mode():
            return run(*inputs)

    return _warmed(call)


def _xla(built: Any) -> Prepared:
    jax = gpu_jax()
    # Donation would use up the inputs, so the function is compiled anew without it.
    function = jax.jit(getattr(built.source, "__wrapped__", built.source))
    inputs = jax.device_put(built.inputs, jax.devices("gpu")[0])
    import torch

    def call() -> Any:
        results = function(*inputs)
        return [torch.from_dlpack(leaf) for leaf in jax.tree_util.tree_leaves(results)]

    return _warmed(call)


def make(maker: Callable[[], Prepared]) -> Prepared:
    """The engine; Unavailable with the reason for whatever it cannot do."""
    try:
        return maker()
    except Unavailable:
        raise
    except Exception as error:  # noqa: BLE001
        raise Unavailable(f"{type(error).__name__}: {first_line(error)}") from error


def error_of(results: Any, expected: Any) -> float:
    """The largest relative error over all results."""
    import numpy as np
    from torch.utils import _pytree as pytree

    from models import relative_error

    found = [np.asarray(leaf.detach().cpu()) for leaf in pytree.tree_leaves(results)]
    return max(relative_error(a, b) for a, b in zip(found, expected, strict=True))
