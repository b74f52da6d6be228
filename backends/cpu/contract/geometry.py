"""A convolution in terms of what is stored: sizes and strides, and what its kernels are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....hlo.graph import Op, Region
from ....hlo.ops.convolution import window_attributes
from ....hlo.views import Dimension, OperandView, Segment, merge, view_of
from ... import llvm
from ..codegen import Target
from .dot import Uneven, origin_of
from .operands import OperandArray, Phases
from .window import Spatial


@dataclass(frozen=True)
class Geometry:
    """A convolution in terms of what is stored; strides in elements.

    groups: (count, input stride, output features of one). Features: `inputs` of one group.
    """

    op: Op
    input: OperandView
    kernel: OperandView
    batch: int
    batch_step: int
    groups: int
    group_step: int
    inputs: int
    input_step: int
    outputs: int  # output features of one group
    kernel_inputs: Dimension  # two segments where a packed weight holds groups of them
    kernel_outputs: Dimension  # of one group
    kernel_groups: int  # stride of groups in the kernel
    spatial: tuple[Spatial, ...]
    result_steps: tuple[int, ...]  # stride per dim of the result
    result_offset: int = 0  # where the first result stands
    share: float = 1.0  # of the results between two edges, those that are computed

    @property
    def kernel_input_step(self) -> int:
        """Stride of the kernel's input features; Uneven where they are several segments."""
        return _stride(self.op, self.kernel_inputs)

    @property
    def result_batch_step(self) -> int:
        return self.result_steps[self.op.output_batch_dimension]

    @property
    def result_feature_step(self) -> int:
        return self.result_steps[self.op.output_feature_dimension]

    @property
    def pointwise(self) -> bool:
        """Whether every window is one element, never padding."""
        return all(s.inside and s.kernel == 1 and s.low == s.least_low for s in self.spatial)


def geometry_of(op: Op) -> Geometry:
    views = [view_of(value) for value in op.operands]
    strides: list[list[int]] = []
    outputs_dim = op.kernel_output_feature_dimension
    for which, view in enumerate(views):
        if view is None:
            raise Uneven(f"{origin_of(op)}: a fused operand of {op.name} has no strides")
        unstrided = (outputs_dim, op.kernel_input_feature_dimension) if which == 1 else ()
        strides.append([
            0 if i in unstrided else _stride(op, dim) for i, dim in enumerate(view.dims)
        ])  # fmt: skip
    image, kernel = views
    assert image is not None and kernel is not None
    dims = op.type.dims
    result_steps = tuple(math.prod(dims[i + 1 :]) for i in range(len(dims)))
    window = zip(*window_attributes(op), strict=True)
    spatial = []
    for number, (stride, (low, _), base, dilation, reverse) in enumerate(window):
        i, k = op.input_spatial_dimensions[number], op.kernel_spatial_dimensions[number]
        o = op.output_spatial_dimensions[number]
        spatial.append(
            Spatial(
                op.lhs.dims[i], op.type.dims[o], op.rhs.dims[k], stride, low, base, dilation,
                strides[0][i], -strides[1][k] if reverse else strides[1][k], result_steps[o],
                bool(reverse),
            )
        )  # fmt: skip
    groups = op.feature_group_count * op.batch_group_count
    kernel_groups, kernel_outputs = _split(op, kernel.dims[outputs_dim], groups)
    batch = op.type.dims[op.output_batch_dimension]
    batch_step = strides[0][op.input_batch_dimension]
    feature_step = strides[0][op.input_feature_dimension]
    inputs = op.rhs.dims[op.kernel_input_feature_dimension]
    by_batch = op.batch_group_count > 1
    return Geometry(
        op, image, kernel, batch, batch_step, groups,
        batch * batch_step if by_batch else inputs * feature_step,
        inputs, feature_step, op.rhs.dims[outputs_dim] // groups,
        kernel.dims[op.kernel_input_feature_dimension], kernel_outputs, kernel_groups,
        tuple(spatial), result_steps,
    )  # fmt: skip


def _split(op: Op, dim: Dimension, groups: int) -> tuple[int, Dimension]:
    """The stride of the groups that a dimension consists of, and the dimension of one group;
    Uneven where groups do not lie evenly."""
    if groups == 1:
        return 0, dim
    group_stride, inner, wanted = 0, list(dim.segments), groups
    while wanted > 1 and inner and dim.exact:
        size, stride = inner.pop(0)
        if group_stride not in (0, size * stride):
            break
        if size % wanted == 0:
            inner.insert(0, Segment(size // wanted, stride))
            group_stride, wanted = stride * (size // wanted), 1
        elif wanted % size == 0:
            group_stride, wanted = stride, wanted // size
        else:
            break
    if wanted > 1:
        raise Uneven(f"{origin_of(op)}: the groups of {op.name}'s weights lie unevenly")
    return group_stride, Dimension(dim.extent // groups, merge(inner))


def _stride(op: Op, dim: Dimension) -> int:
    """The stride of a dimension that is one segment (0 for a single index)."""
    if len(dim.segments) > 1:
        raise Uneven(f"{origin_of(op)}: a fused operand of {op.name} lies unevenly")
    return dim.segments[0].stride if dim.segments else 0


@dataclass(frozen=True)
class ConvolutionKernel:
    """A kernel to define: the function `name` of `module`, which computes a convolution, or a part
    of it, alone or inside the body of a fusion. `arguments` are the kernel's operands."""

    module: llvm.Module
    name: str
    geometry: Geometry
    body: Region | None
    arguments: Sequence[object]
    accumulator: str
    target: Target

    @property
    def lanes(self) -> int:
        return self.target.lanes(self.accumulator)

    def source(
        self, view: OperandView, outer: Sequence[int | Phases], shift: int = 0
    ) -> OperandArray:
        """A stored operand, read from `shift` elements behind its first one on."""
        return OperandArray(
            self.arguments.index(view.source), view.source.element, self.accumulator,
            view.offset + shift, tuple(outer),
        )  # fmt: skip

    def part(self, number: int, geometry: Geometry) -> ConvolutionKernel:
        """The kernel of one of several parts."""
        return replace(self, name=f"{self.name}_part{number}", geometry=geometry)
