"""`girih.shard` inside PyTorch programs: the custom operator `girih::shard(Tensor, str) -> Tensor`.

Needs torch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ..shard_specs import Spec, spec_text, with_dim


def call(x: Any, dims: Sequence[Spec]) -> Any:
    """The tensor behind the operator where a program is traced, else the tensor itself, in a form
    that TorchDynamo can follow."""
    import torch

    text = _text(tuple(dims), x.dim())
    if not torch.compiler.is_compiling():
        return x
    return torch.ops.girih.shard.default(x, text)


def _text(dims: tuple[Spec, ...], rank: int) -> str:
    operator()
    return spec_text(dims, rank)


# TorchDynamo calls it while it traces (torch.compiler.assume_constant_result, without its import).
_text._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def operator() -> Any:
    """The operator, registered once."""
    import torch

    made = torch.library.custom_op(
        "girih::shard",
        lambda x, spec: x.clone(),  # no result of an operator may lie in its operand's memory
        mutates_args=(),
        schema="(Tensor x, str spec) -> Tensor",
    )
    made.register_fake(lambda x, spec: torch.empty_like(x))
    made.register_autograd(_backward, setup_context=_save)
    made.register_vmap(_batch)
    return torch.ops.girih.shard.default


def _save(ctx: Any, inputs: tuple[Any, str], output: Any) -> None:
    ctx.spec = inputs[1]


def _backward(ctx: Any, gradient: Any) -> tuple[Any, None]:
    import torch

    return torch.ops.girih.shard.default(gradient, ctx.spec), None


def _batch(info: Any, places: tuple[int, None], x: Any, spec: str) -> tuple[Any, int]:
    """vmap: one more dim, of which nothing is said."""
    import torch

    return torch.ops.girih.shard.default(x, with_dim(spec, places[0])), places[0]
