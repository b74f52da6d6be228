"""Modules as StableHLO, for other compilers."""

from __future__ import annotations

from typing import Any

from .frontends.stablehlo.versions import parse_version
from .frontends.stablehlo.write import write_artifact, write_text
from .imports import import_model


def export_stablehlo(
    source: Any,
    *example_inputs: Any,
    version: str | None = None,
    text: bool = False,
    weights_as_arguments: bool = False,
    **keywords: Any,
) -> bytes | str:
    """A program of any source that `import_model` takes as StableHLO, for XLA and other compilers.

    version: of StableHLO, "0.9.0" to "1.20.0"; by default the lowest from 1.0.0 on that has all
        that the program needs, so that most readers know it.
    text: StableHLO text, in which CHLO's operations stay unless a version is given, instead of a
        portable artifact (MLIR bytecode), in which they are composites.
    weights_as_arguments: `main` takes the weights, named by their locations, after the inputs.
    Raises ExportBlockers, which lists every reason at once, where StableHLO cannot say the program.
    """
    chosen = None if version is None else parse_version(version)
    module = import_model(source, *example_inputs, **keywords)
    if text:
        return write_text(module, chosen, weights_as_arguments).text
    return write_artifact(module, chosen, weights_as_arguments).data
