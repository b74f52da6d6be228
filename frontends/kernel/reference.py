"""What a kernel must compute, by a plain function: compared on demand, and traced into a region."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...hlo.errors import GirihError
from ...hlo.graph import Module, Region
from .cleanup import without_calls
from .values import Array


def traced(function: Callable[..., Any], inputs: Sequence[Array]) -> Region | None:
    """The region of the function on arrays of those types; None where JAX cannot trace it (a
    function that needs numpy arrays, or no JAX on this machine)."""
    try:
        import jax

        from ..jax.importing import import_jax

        shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype.dtype) for array in inputs]
        module = import_jax(function, *shapes)
    except (ImportError, GirihError):
        return None
    return region_of(module)


def region_of(module: Module) -> Region | None:
    """The entry's body without calls; None if it has weights, which no region may hold."""
    if module.weights:
        return None
    return without_calls(module.body, module.functions)


def bound(function: Callable[..., Any], constants: Mapping[str, Any]) -> Callable[..., Any]:
    """The reference as a function of the inputs: the constants that it names are fixed."""
    import inspect

    named = {
        name: constants[name]
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name in constants
    }
    return (lambda *inputs: function(*inputs, **named)) if named else function
