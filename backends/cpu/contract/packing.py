"""Weights in the order in which contractions read them.

A weight that is the right side of a product is stored as panels of columns, [panels, depth, width]:
one tile streams one panel from memory, line after line. The packing and its inverse are ordinary
operations, so that a program with packed weights means the same to everything else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....hlo.build import Builder
from ....hlo.deciding import at_hint
from ....hlo.graph import Op, Value
from ....hlo.ops.contraction import free_dims
from ....hlo.views import view_of
from ....optimizer.cuts.products import PANEL_VECTORS
from ....optimizer.passes.encode import PackedWindows, Packing, stored_operand
from ..codegen import Target
from . import inner, stream, winograd_form
from .dot import accumulator_of
from .grouped import GROUP_COLUMNS, Engine, engine_for

_STREAMED_ROWS = 4  # products of so few rows read weights once, in whatever order they lie
_SMALLEST = 1 << 14  # elements of a weight worth packing
_SMALLEST_KERNEL = 1 << 8  # the same of a convolution, whose products have many rows


@dataclass(frozen=True)
class _Panels:
    """Panels of a right operand, whose dims are summed (`depth`, in order) or not (`columns`)."""

    depth: tuple[int, ...]
    columns: tuple[int, ...]
    width: int  # columns of a panel
    dims: tuple[int, ...]  # of the operand
    group: int = 1  # steps of the depth that lie side by side: products of one instruction
    step: int = 1  # the depth is padded to a multiple of it, which is one of `group`
    whole: bool = False  # of a window, kernels may read behind the last step unless it is the whole

    def forward(self, b: Builder, weight: Value) -> Value:
        """weight -> [panels, depth, width], zeros behind the last step and column; with groups
        [panels, depth / group, width, group]."""
        depth, columns = self._sizes
        matrix = b.reshape(b.transpose(weight, (*self.depth, *self.columns)), (depth, columns))
        whole = columns // self.width * self.width
        if whole == columns or not whole:
            return self._panels(b, matrix)
        # The last panel alone is padded: of the others, nothing is copied twice.
        parts = [
            self._panels(b, b(
                "slice", matrix, start_indices=(0, low), limit_indices=(depth, high),
                strides=(1, 1),
            ))
            for low, high in ((0, whole), (whole, columns))
        ]  # fmt: skip
        return b("concatenate", *parts, dimension=0)

    def _panels(self, b: Builder, matrix: Value) -> Value:
        """[depth, columns] -> its panels."""
        depth, columns = matrix.dims
        behind, extra = -depth % self.step, -columns % self.width
        if behind or extra:
            zero = b.constant(0, matrix.tensor.with_dims(()))
            matrix = b(
                "pad", matrix, zero, edge_padding_low=(0, 0), edge_padding_high=(behind, extra),
                interior_padding=(0, 0),
            )  # fmt: skip
        panels, group = (columns + extra) // self.width, self.group
        depth += behind
        if group > 1:
            split = b.reshape(matrix, (depth // group, group, panels, self.width))
            return b.transpose(split, (2, 0, 3, 1))
        return b.transpose(b.reshape(matrix, (depth, panels, self.width)), (1, 0, 2))

    def inverse(self, b: Builder, packed: Value) -> Value:
        """What `forward` gave -> the weight."""
        depth, columns = self._sizes
        if depth % self.step:  # groups are whole: what lies behind the last step goes first
            limits = (packed.dims[0], depth // self.group, *packed.dims[2:])
            starts = (0,) * packed.tensor.rank
            packed = b(
                "slice", packed, start_indices=starts, limit_indices=limits,
                strides=(1,) * packed.tensor.rank,
            )  # fmt: skip
        padded = packed.dims[0] * packed.dims[2]
        order = (1, 3, 0, 2) if self.group > 1 else (1, 0, 2)
        matrix = b.reshape(b.transpose(packed, order), (depth, padded))
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
        """The same for `optimizer.passes.encode`."""
        groups = f"x{self.group}" if self.group > 1 else ""
        groups += f"by{self.step}" if self.step > 1 else ""
        name = f"panels{self.width}{groups}:{self.depth}:{self.columns}".replace(" ", "")
        return Packing(1, name, self.forward, self.inverse, self._windows)

    @property
    def _windows(self) -> PackedWindows | None:
        """Windows are whole panels, of any groups of steps where the depth is one dim."""
        depth, columns = (
            [d for d in dims if self.dims[d] != 1] or list(dims[:1])
            for dims in (self.depth, self.columns)
        )
        if len(columns) != 1 or self.step > 1:
            return None
        along = (depth[0], self.group) if len(depth) == 1 and not self.whole else None
        steps = ((columns[0], self.width), along, None, None)[: 4 if self.group > 1 else 3]
        return PackedWindows(steps, lambda dims: replace(self, dims=dims).packing)


def packing_for(
    op: Op, target: Target, reassociates: bool = False, streams: bool = True
) -> Packing | None:
    """How the right operand of a contraction, or of the one inside a fusion, should be stored if it
    is a weight; None = as it is. `reassociates` allows forms whose sums round differently.
    `streams`: few rows may have an order of their own; False: that of many rows."""
    if op.name == "fusion":
        op = next(inner for inner in op.regions[0].ops if inner.definition.pattern == "contract")
    weight = op.operands[1]
    if op.name == "convolution" and weight.element.is_float:
        depthwise = _depthwise_packing(op)
        if depthwise is not None:
            return depthwise
    stored = stored_operand(weight)
    if stored.element.name not in ("f32", "f64"):
        return _narrow_packing(op, stored, target, streams)
    lanes = target.lanes(accumulator_of(op))
    width = PANEL_VECTORS * lanes
    if op.name == "convolution":
        if reassociates and winograd_form.applies(op, lanes):
            return winograd_form.packing(op, lanes)
        return _packing_along_inputs(op, lanes) or _convolution_packing(op, width, lanes)
    if not weight.tensor.is_static or weight.tensor.size < _SMALLEST:
        return None
    if op.rhs_batching_dimensions:
        return _batched_packing(op)
    columns = free_dims(op, "rhs")
    count = math.prod(weight.dims[d] for d in columns)
    rows = math.prod(op.lhs.dims[d] for d in free_dims(op, "lhs"))
    depth = tuple(op.rhs_contracting_dimensions)
    if streams and at_hint(rows) <= _STREAMED_ROWS and depth == (weight.rank - 1,):
        return None
    if count < width or (count % width and len(columns) > 1) or not depth:
        return None
    return _Panels(depth, tuple(columns), width, weight.dims).packing


def _batched_packing(op: Op) -> Packing | None:
    """One matrix after the other, where their elements lie side by side; None where each matrix
    lies together as it is."""
    dims, batch = op.rhs.dims, tuple(op.rhs_batching_dimensions)
    last = max((d for d in range(op.rhs.rank) if dims[d] != 1), default=0)
    if last not in batch:
        return None
    order = (*batch, *op.rhs_contracting_dimensions, *free_dims(op, "rhs"))
    return _in_order(f"matrices:{order}".replace(" ", ""), order)


def _in_order(name: str, order: Sequence[int]) -> Packing:
    """Any window of a weight whose dims lie in another order."""
    back = [order.index(d) for d in range(len(order))]
    windows = PackedWindows(tuple((d, 1) for d in order), lambda dims: _in_order(name, order))
    return Packing(
        1, name, lambda b, x: b.transpose(x, order), lambda b, x: b.transpose(x, back), windows
    )


def _narrow_packing(op: Op, weight: Value, target: Target, streams: bool) -> Packing | None:
    """A weight of a narrow type: streamed as it lies for few rows, else in groups of the depth that
    one instruction multiplies; None where neither reads it."""
    if weight.dims != op.rhs.dims:
        return None
    if op.name == "convolution":
        engine = engine_for(target, op.lhs.element, op.rhs.element, accumulator_of(op))
        inputs = op.rhs.dims[op.kernel_input_feature_dimension]
        if engine is None or inputs * 4 % (engine.group * engine.step):
            return None
        return _convolution_packing(op, GROUP_COLUMNS, GROUP_COLUMNS, engine)
    small = weight.tensor.size < _SMALLEST
    if small or op.name != "dot_general" or op.rhs_batching_dimensions:
        return None
    columns, depth = free_dims(op, "rhs"), tuple(op.rhs_contracting_dimensions)
    count = math.prod(weight.dims[d] for d in columns)
    steps = math.prod(weight.dims[d] for d in depth)
    rows = math.prod(op.lhs.dims[d] for d in free_dims(op, "lhs"))
    accumulator = accumulator_of(op)
    if streams and stream.fits(target, weight.element, accumulator, rows):
        width, group, step, engine = stream.WIDTH, 1, 1, None
    else:
        engine = engine_for(target, op.lhs.element, op.rhs.element, accumulator)
        if engine is None or steps % engine.group:
            return None
        width, group = GROUP_COLUMNS, engine.group
        step = engine.steps if steps % engine.steps else 1
        if step > 1 and count <= width:
            return None  # one panel alone does not show how far it reaches
    if count < width or (count % width and len(columns) > 1):
        return None
    whole = engine is not None and engine.steps > group
    return _Panels(depth, tuple(columns), width, weight.dims, group, step, whole).packing


def _convolution_packing(
    op: Op, width: int, lanes: int, engine: Engine | None = None
) -> Packing | None:
    """Kernels are the right side only where features are innermost in the result."""
    features = op.output_feature_dimension
    if features != op.type.rank - 1 or op.batch_group_count != 1:
        return None
    outputs = op.kernel_output_feature_dimension
    of_group = op.rhs.dims[outputs] // op.feature_group_count
    taps, inputs = op.kernel_spatial_dimensions, op.kernel_input_feature_dimension
    # Windows of an image whose columns are innermost are copied feature by feature.
    by_run = op.input_spatial_dimensions[-1:] == (op.type.rank - 1,)
    depth = (inputs, *taps) if by_run else (*taps, inputs)
    if op.rhs.tensor.size < _SMALLEST_KERNEL or of_group == 1 < op.feature_group_count:
        return None
    if engine is not None:
        if by_run or (of_group % width if op.feature_group_count > 1 else of_group < width):
            return None
        whole = engine.steps > engine.group
        return _Panels(depth, (outputs,), width, op.rhs.dims, engine.group, whole=whole).packing
    if op.feature_group_count > 1:
        # A panel belongs to one group: several of a group, or one for all of its features.
        width = width if of_group % width == 0 else of_group
    else:
        width = min(width, -(-of_group // lanes) * lanes)
    return _Panels(depth, (outputs,), width, op.rhs.dims).packing


def _packing_along_inputs(op: Op, lanes: int) -> Packing | None:
    """Kernels of few output features, which are inner products with windows where pixels have their
    features side by side."""
    image, inputs = view_of(op.lhs), op.kernel_input_feature_dimension
    if image is None or op.feature_group_count * op.batch_group_count != 1:
        return None
    if op.lhs.element is not op.rhs.element or not op.type.is_static:
        return None
    outputs = op.kernel_output_feature_dimension
    if not inner.fits_windows(op.rhs.dims[outputs], op.rhs.dims[inputs], lanes):
        return None
    if [segment.stride for segment in image.dims[op.input_feature_dimension].segments] != [1]:
        return None
    order = (outputs, *op.kernel_spatial_dimensions, inputs)
    return _in_order(f"along:{order}".replace(" ", ""), order)


def _depthwise_packing(op: Op) -> Packing | None:
    """Taps of all features side by side, for kernels that run along features."""
    features, inputs = op.kernel_output_feature_dimension, op.kernel_input_feature_dimension
    last = op.output_feature_dimension == op.input_feature_dimension == op.type.rank - 1
    single = op.rhs.dims[inputs] == 1 and op.rhs.dims[features] == op.feature_group_count
    if not last or not single or features == op.type.rank - 1:
        return None
    order = (*op.kernel_spatial_dimensions, inputs, features)
    back = tuple(order.index(d) for d in range(op.type.rank))
    name = f"taps:{order}".replace(" ", "")
    return Packing(1, name, lambda b, x: b.transpose(x, order), lambda b, x: b.transpose(x, back))
