"""`girih.shard` inside JAX programs: a primitive that lowers to a composite, whose decomposition is
the identity, so that plain JAX runs it. Needs jax.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ..shard_specs import NAME, with_dim
from ..user_line import hide_our_frames


@functools.cache
def primitive() -> Any:
    """The primitive, made once. Its parameter `spec` is a text, `[{"data"}, {}]`."""
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    hide_our_frames()
    made = Primitive("girih_shard")
    made.def_impl(_same)
    made.def_abstract_eval(_same)
    mlir.register_lowering(made, _lower, cacheable=False)  # else all have the line of the first
    ad.deflinear2(made, lambda cotangent, _, *, spec: [made.bind(cotangent, spec=spec)])
    batching.primitive_batchers[made] = _batch
    return made


def _same(x: Any, *, spec: str) -> Any:
    return x


def _lower(context: Any, operand: Any, *, spec: str) -> Any:
    from jax import lax
    from jax.interpreters import mlir

    def composite(x: Any) -> Any:
        return lax.composite(_same, name=NAME, version=1)(x, spec=spec)

    return mlir.lower_fun(composite, multiple_results=False)(context, operand)


def _batch(inputs: Sequence[Any], places: Sequence[int], *, spec: str) -> tuple[Any, int]:
    """vmap: one more dim, of which nothing is said."""
    (x,), (place,) = inputs, places
    return primitive().bind(x, spec=with_dim(spec, place)), place
