"""Weights in the order in which contractions read them.

A weight that is the right side of a product is stored as panels of columns, [panels, depth, width]:
one tile streams one panel from memory, line after line. The packing and its inverse are ordinary
operations, so that a program with packed weights means the same to everything else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....hlo.build import Builder
from ....hlo.graph import Op, Value
from ....hlo.ops.contraction import free_dims
from ....optimizer.encode import Packing
from ....optimizer.fusion import CONTRACTIONS
from ..codegen import Target
from .dot import accumulator_of
from .product import PANEL_VECTORS

_STREAMED_ROWS = 4  # products of so few rows read weights once, in whatever order they lie
_SMALLEST = 1 << 14  # elements of a weight worth packing


@dataclass(frozen=True)
class _Panels:
    """Panels of a right operand, whose dims are summed (`depth`, in order) or not (`columns`)."""

    depth: tuple[int, ...]
    columns: tuple[int, ...]
    width: int  # columns of a panel
    dims: tuple[int, ...]  # of the operand

    def forward(self, b: Builder, weight: Value) -> Value:
        """weight -> [panels, depth, width], zeros behind the last column."""
        depth, columns = self._sizes
        matrix = b.reshape(b.transpose(weight, (*self.depth, *self.columns)), (depth, columns))
        extra = -columns % self.width
        if extra:
            zero = b.constant(0, weight.tensor.with_dims(()))
            matrix = b(
                "pad", matrix, zero, edge_padding_low=(0, 0), edge_padding_high=(0, extra),
                interior_padding=(0, 0),
            )  # fmt: skip
        panels = (columns + extra) // self.width
        return b.transpose(b.reshape(matrix, (depth, panels, self.width)), (1, 0, 2))

    def inverse(self, b: Builder, packed: Value) -> Value:
        """[panels, depth, width] -> the weight."""
        depth, columns = self._sizes
        padded = packed.dims[0] * packed.dims[2]
        matrix = b.reshape(b.transpose(packed, (1, 0, 2)), (depth, padded))
        if padded != columns:
            matrix = b(
                "slice", matrix, start_indices=(0, 0), limit_indices=(depth, columns),
                strides=(1, 1),
            )  # fmt: skip
        order = (*self.depth, *self.columns)
        spread = b.reshape(matrix, [self.dims[d] for d in order])
        return b.transpose(spread, [order.index(d) for d in range(len(order))])

    @property
    def _sizes(self) -> tuple[int, int]:
        return (
            math.prod(self.dims[d] for d in self.depth),
            math.prod(self.dims[d] for d in self.columns),
        )

    @property
    def packing(self) -> Packing:
        """The same for `optimizer.encode`."""
        name = f"panels{self.width}:{self.depth}:{self.columns}".replace(" ", "")
        return Packing(1, name, self.forward, self.inverse)


def packing_for(op: Op, target: Target) -> Packing | None:
    """How the right operand of a contraction, or of the one inside a fusion, should be stored if it
    is a weight; None = as it is."""
    if op.name == "fusion":
        op = next(inner for inner in op.regions[0].ops if inner.name in CONTRACTIONS)
    weight = op.operands[1]
    if weight.element.name not in ("f32", "f64") or weight.tensor.size < _SMALLEST:
        return None
    width = PANEL_VECTORS * target.lanes(accumulator_of(op))
    if op.name == "convolution":
        return _convolution_packing(op, width)
    if op.rhs_batching_dimensions:
        return None
    columns = free_dims(op, "rhs")
    count = math.prod(weight.dims[d] for d in columns)
    rows = math.prod(op.lhs.dims[d] for d in free_dims(op, "lhs"))
    depth = tuple(op.rhs_contracting_dimensions)
    if rows <= _STREAMED_ROWS and depth == (weight.rank - 1,):
        return None
    if count < width or (count % width and len(columns) > 1) or not depth:
        return None
    return _Panels(depth, tuple(columns), width, weight.dims).packing


def _convolution_packing(op: Op, width: int) -> Packing | None:
    """Kernels are the right side only where features are innermost in the result."""
    features = op.output_feature_dimension
    if features != op.type.rank - 1 or op.feature_group_count * op.batch_group_count != 1:
        return None
    if any(op.window_reversal or ()):
        return None
    outputs = op.kernel_output_feature_dimension
    depth = (*op.kernel_spatial_dimensions, op.kernel_input_feature_dimension)
    if op.rhs.dims[outputs] < width:
        return None
    return _Panels(depth, (outputs,), width, op.rhs.dims).packing
