"""JAX programs: `jax.export` files and objects, and functions with example inputs.

Only a function needs jax; files are read by the project's own reader.
"""

from __future__ import annotations

from typing import Any

from ...hlo.graph import Module

__all__ = ["import_jax"]


def import_jax(function: Any, *examples: Any, name: str = "", **keywords: Any) -> Module:
    """The module of a JAX function called with the examples, or of a `jax.export.Exported`.

    Structure and names of inputs and outputs, donations and source lines are kept; closed-over
    arrays of 4 KiB and more become weights named `constant_0`, `constant_1`, ...
    """
    from .traced import import_function

    return import_function(function, examples, keywords, name)
