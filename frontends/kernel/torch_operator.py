"""Kernels inside PyTorch programs: the custom operator `girih::kernel(Tensor[], str) -> Tensor[]`.

The string is the whole kernel, so an export needs nothing else. Needs torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..torch.exported import element_of
from . import payload


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
    return torch.ops.girih.kernel.default


@functools.lru_cache(maxsize=256)
def _results(text: str) -> tuple[tuple[tuple[int, ...], Any], ...]:
    results = payload.from_text(text).body.results
    return tuple((value.dims, dtype_named(value.element.name)) for value in results)


@functools.cache
def dtype_named(name: str) -> Any:
    """The torch dtype of an element type."""
    import torch

    candidates = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
    return next(dtype for dtype in candidates if _spelled(dtype) == name)


def _spelled(dtype: Any) -> str:
    from ...hlo.errors import UserError

    try:
        return element_of(dtype).name
    except UserError:
        return ""
