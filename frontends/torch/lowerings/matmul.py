"""Products of matrices: mm, addmm, bmm, matmul, linear, ... all as one dot_general."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....hlo.graph import Value
from ....hlo.types import F32
from ..context import Context, Number, Operand, broadcast_dims, is_low


def mm(c: Context, self: Value, mat2: Value) -> Value:
    """[n, k] x [k, m], also of a batch [b, n, k] x [b, k, m]."""
    batch = tuple(range(self.rank - 2))
    return c.dot(self, mat2, ((self.rank - 1,), (self.rank - 2,)), (batch, batch))


def added(
    c: Context, self: Operand, mat1: Value, mat2: Value, beta: Number = 1, alpha: Number = 1
) -> Value:
    """beta * self + alpha * (mat1 @ mat2)."""
    wide = is_low(mat1.element) and (beta != 1 or alpha != 1)
    batch = tuple(range(mat1.rank - 2))
    last = 0 if mat2.rank == 1 else mat1.rank - 2
    result = c.dot(
        mat1, mat2, ((mat1.rank - 1,), (last,)), (batch, batch), F32 if wide else None
    )
    result = result if alpha == 1 else c.multiply(result, alpha)
    if beta == 0:
        return c.narrow(result)
    bias = c.fill(self, c.type.with_element(result.element))
    bias = bias if beta == 1 else c.multiply(bias, beta)
    return c.narrow(c("add", result, bias))


def linear(c: Context, input: Value, weight: Value, bias: Value | None = None) -> Value:
    """input @ weight^T + bias, contracted with the weight's last dimension in place."""
    last = weight.rank - 1
    result = c.dot(input, weight, ((input.rank - 1,), (last,)))
    return result if bias is None else c("add", result, c.spread(bias, result.dims))


def matmul(c: Context, self: Value, other: Value) -> Value:
    """numpy's matmul: vectors contract, leading dimensions are a broadcast batch."""
    if other.rank <= 2:
        return c.dot(self, other, ((self.rank - 1,), (max(other.rank - 2, 0),)))
    if self.rank == 1:
        batch = tuple(range(other.rank - 2))
        row = c.builder.reshape(self, (1, *self.dims))
        wide = c.spread(row, (*other.dims[:-2], *row.dims))
        result = c.dot(wide, other, ((wide.rank - 1,), (other.rank - 2,)), (batch, batch))
        return c.builder.reshape(result, c.dims)
    common = broadcast_dims(self.dims[:-2], other.dims[:-2])
    left = c.spread(self, (*common, *self.dims[-2:]))
    right = c.spread(other, (*common, *other.dims[-2:]))
    return mm(c, left, right)


def mv(c: Context, self: Value, vec: Value) -> Value:
    """A matrix times a vector, or two vectors."""
    return c.dot(self, vec, ((self.rank - 1,), (0,)))


def outer(c: Context, self: Value, vec2: Value) -> Value:
    """result[i, j] = self[i] * vec2[j]."""
    left = c.builder.broadcast(c.convert(self, c.element), c.dims, [0])
    return c("multiply", left, c.builder.broadcast(c.convert(vec2, c.element), c.dims, [1]))


TABLE: dict[str, Callable[..., Any]] = {
    "aten.addmm.default": added,
    "aten.addmv.default": added,
    "aten.baddbmm.default": added,
    "aten.bmm.default": mm,
    "aten.dot.default": mv,
    "aten.ger.default": outer,
    "aten.inner.default": linear,
    "aten.linear.default": linear,
    "aten.matmul.default": matmul,
    "aten.mm.default": mm,
    "aten.mv.default": mv,
    "aten.outer.default": outer,
    "aten.vdot.default": mv,
}
