"""Which convolutions Winograd's form computes, and how their weights are stored for it."""

from __future__ import annotations

import math

from ....hlo.build import Builder
from ....hlo.deciding import at_hint
from ....hlo.graph import Op, Value
from ....hlo.ops.convolution import window_attributes
from ....hlo.symbols import SymbolicDim
from ....optimizer.cuts.products import PANEL_VECTORS, padded_depth
from ....optimizer.passes.encode import Packing

PLACES = 16  # of a transformed tile
TAPS = 9
_LEAST_FEATURES = 32
_LEAST_TILES = 16  # fewer do not repay transforming weights
_MOST_TRANSFORMED = 1 << 20  # bytes of a line of tiles


def applies(op: Op, lanes: int) -> bool:
    """Whether a convolution, features innermost on both sides, has this form and gains by it: each
    of its groups of features by itself."""
    strides, _, base, dilation, reversal = window_attributes(op)
    last = op.type.rank - 1
    if op.type.rank not in (4, 5) or op.input_feature_dimension != last:
        return False
    order = (op.output_batch_dimension, *op.output_spatial_dimensions, op.output_feature_dimension)
    places = op.input_batch_dimension, *op.input_spatial_dimensions
    taps = tuple(op.rhs.dims[d] for d in op.kernel_spatial_dimensions)
    if places != order[:-1] or places != tuple(range(last)) or op.batch_group_count != 1:
        return False
    if taps[-2:] != (3, 3) or 0 in taps:
        return False
    if {*strides[-2:], *base, *dilation[-2:]} != {1} or any(reversal):
        return False
    if {op.lhs.element.name, op.rhs.element.name, op.type.element.name} != {"f32"}:
        return False
    if isinstance(op.lhs.dims[last], SymbolicDim) or isinstance(op.type.dims[last], SymbolicDim):
        return False
    inputs, outputs = (n // op.feature_group_count for n in (op.lhs.dims[last], op.type.dims[last]))
    if inputs % lanes or outputs % lanes or min(inputs, outputs) < _LEAST_FEATURES:
        return False
    batch, (height, width) = op.type.dims[0], op.type.dims[last - 2 : last]
    across = -(-width // 2)
    few = 4 * PLACES * at_hint(across) * padded_depth(inputs, 4) <= _MOST_TRANSFORMED
    return few and at_hint(batch * -(-height // 2) * across) >= _LEAST_TILES


def packing(op: Op, lanes: int) -> Packing:
    """Weights as [panels, 9, taps of the planes * inputs, width]."""
    outputs, inputs = op.kernel_output_feature_dimension, op.kernel_input_feature_dimension
    *planes, line, column = op.kernel_spatial_dimensions
    order = (line, column, *planes, inputs, outputs)
    dims = [op.rhs.dims[d] for d in order]
    count = dims[-1]
    depth = math.prod(dims[2:-1])
    wide = PANEL_VECTORS * lanes
    width = wide if count // op.feature_group_count % wide == 0 else lanes

    def forward(b: Builder, weight: Value) -> Value:
        panels = b.reshape(b.transpose(weight, order), (TAPS, depth, count // width, width))
        return b.transpose(panels, (2, 0, 1, 3))

    def inverse(b: Builder, packed: Value) -> Value:
        taps = b.reshape(b.transpose(packed, (1, 2, 0, 3)), dims)
        return b.transpose(taps, [order.index(d) for d in range(len(order))])

    return Packing(1, f"winograd{width}:{order}".replace(" ", ""), forward, inverse)
