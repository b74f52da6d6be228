"""Exports of JAX and PyTorch as modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .frontends.source import read_source
from .hlo.graph import Module
from .hlo.stated_sizes import Stated, with_stated_sizes
from .hlo.verify import verify


def import_model(
    source: Any,
    *example_inputs: Any,
    sizes: Mapping[str, Stated] | None = None,
    **keywords: Any,
) -> Module:
    """The module of a JAX or PyTorch export.

    source: a path (.mlir, .mlirbc, .hlo, .hlo.pb, .pt2, a jax.export file, .girih), StableHLO or
        HLO as text or bytes, a `jax.export.Exported`, a `torch.export.ExportedProgram`, or a torch
        module or traceable function with `example_inputs`.
    sizes: what its open sizes are, as in `compile`.
    Raises ImportBlockers, which lists every reason at once, if it cannot be imported.
    """
    module = read_source(source, *example_inputs, **keywords)
    if sizes is not None:
        module = with_stated_sizes(module, sizes)
    verify(module)
    return module
