"""JAX programs: `jax.export` files and objects, and functions with example inputs.

Only objects and functions need jax; files are read by the project's own reader.
"""

from __future__ import annotations

from typing import Any

from ...hlo.errors import UserError
from ...hlo.graph import Module
from .exported import import_export, read_export_file
from .traced import export_of, import_function

__all__ = ["import_jax", "read_exported"]


def read_exported(
    data: bytes | memoryview, name: str = "", /, *examples: Any, **keywords: Any
) -> Module:
    """The module of a serialized `jax.export.Exported`; needs no jax.

    Shapes stay symbolic where the export has them so; example inputs fix them. UserError where the
    file is damaged, ImportBlockers where girih cannot import it.
    """
    return import_export(read_export_file(data, name or "<export>"), name, examples, keywords)


def import_jax(source: Any, /, *examples: Any, **keywords: Any) -> Module:
    """The module of a JAX function called with the examples, or of a `jax.export.Exported`.

    Structure and names of inputs and outputs, donations and source lines are kept; closed-over
    arrays of 4 KiB and more become weights named `constant_0`, `constant_1`, ... Examples are
    arrays, pytrees of arrays or `jax.ShapeDtypeStruct`; an Exported needs none, unless they are to
    fix its symbolic shapes.
    """
    if hasattr(source, "mlir_module_serialized"):
        return import_export(export_of(source), "", examples, keywords)
    if not callable(source):
        raise UserError(f"a JAX function or jax.export.Exported is needed, not {type(source)}")
    return import_function(source, examples, keywords)
