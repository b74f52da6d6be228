"""How values lie on devices: the operator of `girih.shard`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....hlo import ops
from ....hlo.errors import UserError
from ....hlo.graph import Op, Value
from ...shard_specs import sharding_in
from ..context import Blocked, Context


def shard(c: Context, x: Value, spec: str) -> Value:
    """The value behind a constraint."""
    try:
        kind = x.tensor.with_sharding(sharding_in(c.meshes, spec))
    except UserError as error:
        raise Blocked(str(error), "export the model again") from None
    definition = ops.find("sharding_constraint")
    return c.builder.append(Op(definition, [x], {}, (), (kind,), c.builder.origin)).result


TABLE: dict[str, Callable[..., Any]] = {"girih.shard.default": shard}
