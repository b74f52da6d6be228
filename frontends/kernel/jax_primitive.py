"""Kernels inside JAX programs: a primitive that lowers to what the StableHLO frontend reads back.

With a reference it becomes a composite whose decomposition is the reference, so plain JAX runs
that; without one it becomes a custom call, which only girih can run. Needs jax.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ...hlo.errors import UserError
from ...hlo.types import TensorType
from ..user_line import hide_our_frames
from . import payload
from .batching import batched, starts

_IMPORTING: ContextVar[bool] = ContextVar("importing", default=False)
UNROLLED = 64  # calls of a foreign kernel for a batch; more are a loop
Run = Callable[[str, Sequence[Any]], list[Any]]


@contextmanager
def importing() -> Iterator[None]:
    """Inside, what is lowered is for girih, which needs no reference."""
    token = _IMPORTING.set(True)
    try:
        yield
    finally:
        _IMPORTING.reset(token)


def bind(
    inputs: Sequence[Any], kernel: str, reference: Callable[..., Any] | None, run: Run
) -> list[Any]:
    """The results of the kernel on JAX arrays or tracers; `run` computes on arrays."""
    from jax.dtypes import canonicalize_dtype

    for kind in _results(kernel):
        if canonicalize_dtype(kind.dtype) != kind.dtype:
            raise UserError(f"JAX has no {kind.element} here; set jax_enable_x64")
    return primitive().bind(*inputs, kernel=kernel, reference=reference, run=run)


@functools.cache
def primitive() -> Any:
    """The primitive of all kernels, made once."""
    from jax._src.export import _export
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    hide_our_frames()
    made = Primitive("girih_kernel")
    made.multiple_results = True
    made.def_impl(_run)
    made.def_abstract_eval(_abstract)
    mlir.register_lowering(made, _lower, cacheable=False)  # else all have the line of the first
    ad.primitive_jvps[made] = _differentiate
    batching.primitive_batchers[made] = _batch
    # Its string is a versioned format that every later girih reads, so exports may hold it.
    stable = getattr(_export, "_CUSTOM_CALL_TARGETS_GUARANTEED_STABLE", None)
    if isinstance(stable, set):
        stable.add(payload.NAME)
    return made


def _run(*inputs: Any, kernel: str, reference: Any, run: Run) -> list[Any]:
    return run(kernel, inputs)


@functools.lru_cache(maxsize=256)
def _results(kernel: str) -> tuple[TensorType, ...]:
    return tuple(value.tensor for value in payload.from_text(kernel).body.results)


def _abstract(*inputs: Any, kernel: str, reference: Any, run: Run) -> list[Any]:
    from jax.core import ShapedArray

    return [ShapedArray(kind.dims, kind.dtype) for kind in _results(kernel)]


def _lower(context: Any, *operands: Any, kernel: str, reference: Any, run: Run) -> Any:
    import jax
    from jax import lax
    from jax.interpreters import mlir

    if reference is not None:

        def decomposition(*inputs: Any, kernel: str) -> Any:
            return _referred(reference, inputs, kernel)

        def composite(*inputs: Any) -> Any:
            return lax.composite(decomposition, name=payload.NAME, version=1)(
                *inputs, kernel=kernel
            )

        return mlir.lower_fun(composite, multiple_results=True)(context, *operands)
    parameters = context.module_context.lowering_parameters
    if not (parameters.for_export or _IMPORTING.get()):
        name = payload.from_text(kernel).name
        raise UserError(
            f"kernel '{name}' has no reference=, so XLA cannot run it; give it one, or hand the "
            "function (or its jax.export) to girih.compile"
        )
    rule = jax.ffi.ffi_lowering(payload.NAME, api_version=2, backend_config=kernel)
    return rule(context, *operands)


def _referred(reference: Callable[..., Any], inputs: Sequence[Any], kernel: str) -> list[Any]:
    """What a reference returns as the kernel's results; UserError if it has other types, or where
    it takes no JAX arrays."""
    place = payload.described(kernel)
    try:
        found = reference(*inputs)
    except TypeError as error:  # among them those of numpy and torch about JAX's tracers
        reason = next(iter(str(error).splitlines()), "")
        raise UserError(f"{place}: JAX cannot trace its reference ({reason})") from error
    several, types = list(found) if isinstance(found, (tuple, list)) else [found], _results(kernel)
    if len(several) != len(types):
        raise UserError(
            f"{place}: the reference gives {len(several)} results where the kernel gives "
            f"{len(types)}"
        )
    for value, kind in zip(several, types, strict=True):
        if tuple(value.shape) != kind.dims or value.dtype != kind.dtype:
            given = f"{value.dtype}{list(value.shape)}"
            raise UserError(f"{place}: the reference gives {given} where the kernel gives {kind}")
    return several


def _batch(
    inputs: Sequence[Any], dims: Sequence[Any], *, kernel: str, reference: Any, run: Run
) -> tuple[list[Any], list[int]]:
    """vmap: one more axis of the grid; code of others is called once for each of the batch."""
    import jax
    import jax.numpy as jnp

    flags = [dim is not None for dim in dims]
    size = next(x.shape[d] for x, d in zip(inputs, dims, strict=True) if d is not None)
    moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(inputs, dims, strict=True)]
    if payload.from_text(kernel).body.ops[0].name == "foreign_call":
        results = _one_by_one(moved, flags, size, lambda given: bind(given, kernel, reference, run))
        return results, [0] * len(results)
    for at in starts(payload.from_text(kernel)):
        if not flags[at]:
            moved[at], flags[at] = jnp.broadcast_to(moved[at], (size, *moved[at].shape)), True
    text = payload.to_text(batched(payload.from_text(kernel), size, flags))
    mapped = None
    if reference is not None:
        mapped = jax.vmap(reference, in_axes=[0 if flag else None for flag in flags])
    results = bind(moved, text, mapped, run)
    return results, [0] * len(results)


def _one_by_one(
    inputs: Sequence[Any], flags: Sequence[bool], size: int, call: Callable[[list[Any]], list[Any]]
) -> list[Any]:
    """The results of calls on each part of the inputs that are marked, along a new first dim."""
    from jax import lax
    from jax import numpy as jnp

    def at(parts: Sequence[Any]) -> list[Any]:
        given = iter(parts)
        return call([next(given) if f else x for x, f in zip(inputs, flags, strict=True)])

    mapped = [x for x, flag in zip(inputs, flags, strict=True) if flag]
    if size > UNROLLED:
        return list(lax.map(at, mapped))
    calls = [at([x[number] for x in mapped]) for number in range(size)]
    return [jnp.stack(parts) for parts in zip(*calls, strict=True)]


def _differentiate(
    primals: Sequence[Any], tangents: Sequence[Any], *, kernel: str, reference: Any, run: Run
) -> Any:
    """Forward derivatives are those of the reference."""
    import jax
    from jax.interpreters import ad

    if reference is None:
        raise UserError(
            f"{payload.described(kernel)} has no reference=, so it has no derivative; give it a "
            "function that JAX can trace and that computes the same"
        )
    filled = [ad.instantiate_zeros(tangent) for tangent in tangents]
    _, derivative = jax.jvp(
        lambda *inputs: _referred(reference, inputs, kernel), tuple(primals), tuple(filled)
    )
    return bind(primals, kernel, reference, run), list(derivative)
