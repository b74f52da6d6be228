"""Kernels that users write: the custom operator that carries one as a string."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.errors import UserError
from ....hlo.graph import Value
from ...kernel import payload
from ..context import Blocked, Context


def kernel(c: Context, inputs: Sequence[Value], text: str) -> tuple[Value, ...]:
    """The kernel in the string on these inputs."""
    try:
        op = payload.call_of(payload.from_text(text), list(inputs), c.builder.origin)
    except UserError as error:
        raise Blocked(str(error), "export the model again") from None
    return c.builder.append(op).results


TABLE: dict[str, Callable[..., Any]] = {"girih.kernel.default": kernel}
