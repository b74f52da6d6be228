"""Kernels inside PyTorch programs: the custom operator `girih::kernel(Tensor[], str) -> Tensor[]`.

The string is the whole kernel, so an export needs nothing else. Its derivatives are those of the
reference that this process has seen the kernel with: a function of torch tensors, or one that JAX
traces, whose derivative becomes one more kernel. Needs torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ...hlo.errors import UserError
from ...hlo.graph import Op, Origin
from ..torch.exported import element_of
from . import payload
from .batching import batched, starts
from .foreign import ForeignDefinition
from .values import Array

Reference = Callable[..., Any]
Kind = tuple[tuple[int, ...], Any]  # dims and dtype of a tensor

# By the kernel's string. All references of one kernel compute the same, so any of them will do.
_REFERENCES: dict[str, Reference] = {}
_KEPT = 4096


def with_reference(text: str, reference: Reference | None) -> str:
    """The kernel's string, whose derivatives are from now on those of the reference."""
    if reference is not None and text not in _REFERENCES:
        if len(_REFERENCES) >= _KEPT:
            _REFERENCES.pop(next(iter(_REFERENCES)))
        _REFERENCES[text] = reference
    return text


@functools.cache
def operator(run: Callable[[str, Sequence[Any]], list[Any]]) -> Any:
    """The operator, registered once; `run` computes on CPU tensors."""
    import torch

    def kernel(inputs: Sequence[Any], text: str) -> list[Any]:
        return run(text, inputs)

    def fake(inputs: Sequence[Any], text: str) -> list[Any]:
        device = inputs[0].device if inputs else "cpu"
        return [torch.empty(dims, dtype=dtype, device=device) for dims, dtype in _results(text)]

    made = torch.library.custom_op(
        "girih::kernel", kernel, mutates_args=(), schema="(Tensor[] inputs, str kernel) -> Tensor[]"
    )
    made.register_fake(fake)
    made.register_autograd(_backward, setup_context=_save)
    made.register_vmap(_batch)
    return torch.ops.girih.kernel.default


@functools.cache
def _function() -> Any:
    """The operator for torch.func and forward derivatives, for which PyTorch asks more than a
    custom operator can say."""
    import torch

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(text: str, *inputs: Any) -> Any:
            return tuple(torch.ops.girih.kernel.default(list(inputs), text))

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            _save(ctx, (list(inputs[1:]), inputs[0]), output)
            ctx.save_for_forward(*inputs[1:])

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            found, _ = _backward(ctx, gradients)
            return None, *found

        @staticmethod
        def jvp(ctx: Any, _: None, *tangents: Any) -> Any:
            return _forward(ctx, tangents)

        @staticmethod
        def vmap(info: Any, in_dims: Any, text: str, *inputs: Any) -> Any:
            results, dims = _batch(info, (in_dims[1:], None), inputs, text)
            return tuple(results), tuple(dims)

    return Kernel


def call(inputs: Sequence[Any], text: str) -> Sequence[Any]:
    """The kernel's results on tensors, in a form that TorchDynamo can follow."""
    import torch

    if not torch.compiler.is_dynamo_compiling() and _is_transformed():
        return _function().apply(text, *inputs)  # type: ignore[no-any-return]
    return torch.ops.girih.kernel.default(list(inputs), text)  # type: ignore[no-any-return]


def _is_transformed() -> bool:
    """Whether torch.func or forward derivatives are at work."""
    import torch
    from torch.autograd import forward_ad

    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    tensors, ctx.text = inputs
    ctx.save_for_backward(*tensors)
    ctx.reference = _REFERENCES.get(ctx.text)


def _backward(ctx: Any, gradients: Sequence[Any]) -> tuple[list[Any], None]:
    """The gradients of the inputs that have one: those of the reference."""
    import torch

    inputs, results = list(ctx.saved_tensors), _results(ctx.text)
    wanted = [at for at, x in enumerate(inputs) if _is_smooth(x.dtype)]
    given = [at for at, (_, dtype) in enumerate(results) if _is_smooth(dtype)]
    vectors = [
        torch.zeros(results[at][0], dtype=results[at][1], device=inputs[0].device)
        if gradients[at] is None
        else gradients[at]
        for at in given
    ]
    found: list[Any] = [None] * len(inputs)
    parts = _derivative(ctx, inputs, wanted, given, vectors, forward=False)
    return _filled(found, wanted, parts), None


def _forward(ctx: Any, tangents: Sequence[Any]) -> tuple[Any, ...]:
    """The tangents of the results: those of the reference."""
    import torch

    inputs, results = list(ctx.saved_tensors), _results(ctx.text)
    wanted = [at for at, x in enumerate(inputs) if _is_smooth(x.dtype)]
    given = [at for at, (_, dtype) in enumerate(results) if _is_smooth(dtype)]
    vectors = [
        torch.zeros_like(inputs[at]) if tangents[at] is None else tangents[at] for at in wanted
    ]
    parts = _derivative(ctx, inputs, wanted, given, vectors, forward=True)
    return tuple(_filled([None] * len(results), given, parts))


def _is_smooth(dtype: Any) -> bool:
    return bool(dtype.is_floating_point or dtype.is_complex)


def _derivative(
    ctx: Any,
    inputs: Sequence[Any],
    wanted: Sequence[int],
    given: Sequence[int],
    vectors: Sequence[Any],
    *,
    forward: bool,
) -> Sequence[Any]:
    """The product of the derivative of some results by some inputs with vectors: tangents of those
    inputs, or gradients of those results."""
    import torch

    text, reference = ctx.text, ctx.reference
    if reference is None:
        raise UserError(
            f"{payload.described(text)} has no reference=, so it has no derivative; give it a "
            "function of torch tensors, or one that JAX can trace, that computes the same"
        )

    def on_torch(*parts: Any) -> tuple[Any, ...]:
        results = _as_tensors(text, reference(*_filled(inputs, wanted, parts)))
        return tuple(results[at] for at in given)

    parts = tuple(inputs[at] for at in wanted)
    # The kernel computes in the types that it was made for, and so does its derivative.
    with torch.autocast(inputs[0].device.type, enabled=False):
        try:
            if forward:
                return torch.func.jvp(on_torch, parts, tuple(vectors))[1]
            return torch.func.vjp(on_torch, *parts)[1](tuple(vectors))  # type: ignore[no-any-return]
        except UserError:
            raise
        except Exception as error:  # a user's function, perhaps one of other arrays
            reason = error

    def on_jax(*arrays: Any) -> list[Any]:
        import jax

        own, others = arrays[: len(inputs)], arrays[len(inputs) :]

        def function(*parts: Any) -> list[Any]:
            results = reference(*_filled(own, wanted, parts))
            several = results if isinstance(results, (tuple, list)) else (results,)
            return [several[at] for at in given]

        parts = [own[at] for at in wanted]
        if forward:
            return jax.jvp(function, parts, list(others))[1]
        return list(jax.vjp(function, *parts)[1](list(others)))

    outputs = [_results(text)[at] for at in given]
    kinds = outputs if forward else [(tuple(part.shape), part.dtype) for part in parts]
    try:
        derivative = _traced(text, "derivative", on_jax, [*inputs, *vectors], kinds)
    except UserError as error:
        raise UserError(
            f"{payload.described(text)} has no derivative: its reference takes no torch tensors "
            f"({_first_line(reason)}), and JAX cannot differentiate it ({_first_line(error)})"
        ) from reason
    return call([*inputs, *vectors], derivative)


def _filled(inputs: Sequence[Any], places: Sequence[int], parts: Sequence[Any]) -> list[Any]:
    """The inputs with other values in those places."""
    filled = list(inputs)
    for at, part in zip(places, parts, strict=True):
        filled[at] = part
    return filled


def _as_tensors(text: str, found: Any) -> list[Any]:
    """What a reference returned as the kernel's results; TypeError where it is no tensor,
    UserError if it has other types."""
    import torch

    several = list(found) if isinstance(found, (tuple, list)) else [found]
    if not all(isinstance(one, torch.Tensor) for one in several):
        raise TypeError("it gives other arrays")
    types = [(tuple(one.shape), one.dtype) for one in several]
    if types != list(_results(text)):
        found = ", ".join(f"{dtype}{list(dims)}" for dims, dtype in types)
        wanted = ", ".join(f"{dtype}{list(dims)}" for dims, dtype in _results(text))
        raise UserError(
            f"{payload.described(text)}: the reference gives {found} where it gives {wanted}"
        )
    return several


def _traced(
    text: str, suffix: str, function: Reference, inputs: Sequence[Any], outputs: Sequence[Kind]
) -> str:
    """The string of a kernel that is a function which JAX traces, on tensors of those types;
    UserError where JAX cannot."""
    op = _op(text)
    definition = ForeignDefinition(
        function, [_array(*kind) for kind in outputs], (), "", label=f"{op.kernel}.{suffix}",
        inputs=tuple(f"x{at}" for at in range(len(inputs))),
        outputs_named=tuple(f"y{at}" for at in range(len(outputs))),
        origin=op.origin[0] if op.origin else Origin(),
    )  # fmt: skip
    built = definition.build([_array(one.shape, one.dtype) for one in inputs], {})
    return with_reference(payload.to_text(built.module), function)


def _array(dims: Sequence[int], dtype: Any) -> Array:
    return Array(tuple(dims), element_of(dtype))


def _batch(
    info: Any, in_dims: tuple[Any, ...], inputs: Sequence[Any], text: str
) -> tuple[Sequence[Any], list[int]]:
    """vmap: one more axis of the grid; code of others is called once for each of the batch."""
    import torch

    dims, reference = in_dims[0], _REFERENCES.get(text)
    flags = [dim is not None for dim in dims]
    pairs = list(zip(inputs, dims, strict=True))
    moved = [x if dim is None else x.movedim(dim, 0).contiguous() for x, dim in pairs]
    for at in starts(payload.from_text(text)):
        if not flags[at]:
            moved[at], flags[at] = moved[at].expand(info.batch_size, *moved[at].shape), True
    mapped = None if reference is None else _mapped(reference, flags)
    if _op(text).name == "kernel_call":
        more = payload.to_text(batched(payload.from_text(text), info.batch_size, flags))
        results = call(moved, with_reference(more, mapped))
    elif not _op(text).codes and mapped is not None:
        outputs = [((info.batch_size, *shape), dtype) for shape, dtype in _results(text)]
        results = call(moved, _traced(text, "batch", mapped, moved, outputs))
    else:
        calls = [
            call([x[at] if flag else x for x, flag in zip(moved, flags, strict=True)], text)
            for at in range(info.batch_size)
        ]
        results = [torch.stack(parts) for parts in zip(*calls, strict=True)]
    return results, [0] * len(results)


def _mapped(reference: Reference, flags: Sequence[bool]) -> Reference:
    """The reference over a first dim of the inputs that are marked, on tensors or JAX's arrays."""
    places = tuple(0 if flag else None for flag in flags)

    def mapped(*inputs: Any) -> Any:
        import torch

        if isinstance(inputs[0], torch.Tensor):
            return torch.vmap(reference, in_dims=places)(*inputs)
        import jax

        return jax.vmap(reference, in_axes=places)(*inputs)

    return mapped


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


@functools.lru_cache(maxsize=256)
def _op(text: str) -> Op:
    return payload.from_text(text).body.ops[0]


@functools.lru_cache(maxsize=256)
def _results(text: str) -> tuple[Kind, ...]:
    results = _op(text).results
    return tuple((value.dims, dtype_named(value.element.name)) for value in results)


@functools.cache
def dtype_named(name: str) -> Any:
    """The torch dtype of an element type."""
    import torch

    candidates = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
    return next(dtype for dtype in candidates if _spelled(dtype) == name)


def _spelled(dtype: Any) -> str:
    try:
        return element_of(dtype).name
    except UserError:
        return ""
