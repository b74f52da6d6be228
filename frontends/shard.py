"""`girih.shard`: how a value lies on a mesh of devices, said where a function computes it.

    def loss(x, w):
        hidden = girih.shard(jax.nn.relu(x @ w), "data", "model")

It is the identity. In a program it becomes a `sharding_constraint`, on the mesh of the program that
has the axes, or on one whose sizes are open until `girih.compile(mesh=...)` gives them.
"""

from __future__ import annotations

import sys
from typing import Any, TypeVar, cast

import numpy as np

from .shard_specs import Spec, spec_text

_Array = TypeVar("_Array")


def shard(x: _Array, *dims: Spec) -> _Array:
    """`x`, whose dim i is cut by the mesh axes `dims[i]`: None, an axis, or several, major first.

    Dims that are left out are whole. Inside functions of JAX and PyTorch that are traced, exported
    or compiled the constraint becomes part of the program; its gradient is constrained alike, and
    a dim that `vmap` adds is open to propagation. Other arrays are returned as they are.
    UserError for more dims than `x` has, and for an axis that is used twice.
    """
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(x, torch.Tensor):
        from .torch.shard_operator import call

        return call(x, dims)  # type: ignore[no-any-return]
    text = spec_text(dims, np.ndim(cast(Any, x)))
    if jax is not None and isinstance(x, jax.Array):
        from .jax.shard_primitive import primitive

        return primitive().bind(x, spec=text)  # type: ignore[no-any-return]
    return x
