"""dot_general and convolution of any element types, one thread per result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....hlo.graph import Op
from ....hlo.ops.contraction import accumulator, free_dims
from ....hlo.ops.convolution import window_attributes
from ....hlo.types import element_type_of
from ... import llvm
from ...llvm import arithmetic, complex_math, elements
from ...llvm.arithmetic import convert
from ...llvm.elements import Pair, Register
from ...llvm.elementwise import ElementEmitter, Inside
from ...llvm.index import Affine, delinear
from ...plain.sliding import Sliding
from .loops import nested
from .work import Place

if TYPE_CHECKING:
    from .region import RegionLowering


class Sum:
    """A sum of products of a contraction's operands, in the type of its room."""

    def __init__(self, f: llvm.Function, op: Op, width: int = 1) -> None:
        self.f, self.op = f, op
        left, right = (value.element.dtype for value in op.operands)
        result = op.result.element
        self.element = result
        if result.is_float or result.is_complex:
            self.element = element_type_of(accumulator(left, right, result.dtype))
        self.zero = elements.register_constant(self.element, self.element.dtype.type(0), width)

    def add(self, total: Register, registers: list[Register]) -> Register:
        """total + the product of the operands' elements."""
        f, kinds = self.f, [value.element for value in self.op.operands]
        left, right = (
            convert(f, register, kind, self.element)
            for register, kind in zip(registers, kinds, strict=True)
        )
        if isinstance(total, Pair):
            product = complex_math.apply(f, "multiply", [left, right])
            assert product is not None
            found = complex_math.apply(f, "add", [total, product])
            assert found is not None
            return found
        assert isinstance(left, llvm.Value) and isinstance(right, llvm.Value)
        if self.element.is_bool:
            return f.lor(total, f.land(left, right))
        if self.element.is_float:
            return f.fma(left, right, total)
        return f.add(total, f.mul(left, right))

    def finished(self, total: Register) -> Register:
        """The sum in the result's type."""
        if self.element.is_integer:
            assert isinstance(total, llvm.Value)
            return elements.wrapped(self.f, total, self.element)
        return convert(self.f, total, self.element, self.op.result.element)


def contraction(lowering: RegionLowering, op: Op, output: Place) -> None:
    """Every result sums products over the dims that a dot_general contracts, or over a window of a
    convolution and the input features of its group."""
    result = op.type
    if not result.size:
        return
    step, emitter = lowering.open(op.operands, [output], result.size)
    window = window_of(emitter, op)
    total = Sum(step.function, op)
    with step.each(result.size) as at:
        place = delinear(emitter.indexer, at, result.dims, 1)

        def body(inner: list[Affine], values: list[Register]) -> list[Register]:
            left, right, inside = window.indices(place, inner)
            if inside is False:
                return values
            lhs = emitter.value(op.operands[0], left, 1, None if inside is None else inside.value)
            rhs = emitter.value(op.operands[1], right)
            added = total.add(values[0], [lhs, rhs])
            if inside is None:
                return [added]
            return [arithmetic.select(step.function, inside.value, added, values[0])]

        (value,) = nested(step.scopes, window.extents, [total.zero], body)
        emitter.store(step.pointers[-1], total.finished(value), result.element, at)
    lowering.work.end(step, result.size)


def window_of(emitter: ElementEmitter, op: Op) -> DotWindow | ConvolutionWindow:
    """Where a contraction reads."""
    is_dot = op.name == "dot_general"
    return DotWindow(op) if is_dot else ConvolutionWindow(emitter, op)


class DotWindow:
    """Where a product reads for a result and a place along its sums, whose sizes are `extents`."""

    def __init__(self, op: Op) -> None:
        self.summed = op.lhs_contracting_dimensions, op.rhs_contracting_dimensions
        self.batch = op.lhs_batching_dimensions, op.rhs_batching_dimensions
        self.free = free_dims(op, "lhs"), free_dims(op, "rhs")
        self.extents = [op.operands[0].dims[d] for d in self.summed[0]]

    def indices(
        self, place: Sequence[Affine], inner: Sequence[Affine]
    ) -> tuple[list[Affine], list[Affine], Inside]:
        """The indices of lhs and rhs; nothing is padding."""
        batches, left = len(self.batch[0]), len(self.free[0])
        own = place[batches : batches + left], place[batches + left :]
        found = []
        for side in (0, 1):
            index = dict(zip(self.batch[side], place, strict=False))
            index.update(zip(self.free[side], own[side], strict=True))
            index.update(zip(self.summed[side], inner, strict=True))
            found.append(_ordered(index))
        return found[0], found[1], None


def convolution_slides(op: Op) -> list[Sliding]:
    """How a convolution's window slides along each spatial dim."""
    image, kernel = op.operands
    attributes: Any = window_attributes(op)
    strides, padding, base, dilation, _ = attributes
    columns = zip(
        (image.dims[d] for d in op.input_spatial_dimensions),
        (kernel.dims[d] for d in op.kernel_spatial_dimensions),
        strides, (low for low, _ in padding), dilation, base, strict=True,
    )  # fmt: skip
    return [Sliding(*column) for column in columns]


class ConvolutionWindow:
    """Where a convolution reads for `width` results and a place in the window. `extents`: of the
    spatial dims of the kernel, and the input features that a result sums over."""

    def __init__(self, emitter: ElementEmitter, op: Op, width: int = 1) -> None:
        self.emitter, self.op, self.width = emitter, op, width
        self.lhs, self.rhs = op.operands
        self.reversal = window_attributes(op)[4]
        self.features = self.rhs.dims[op.kernel_input_feature_dimension]
        self.slides = convolution_slides(op)
        self.sizes = [slide.size for slide in self.slides]
        self.extents = [*self.sizes, self.features]

    def indices(
        self, place: Sequence[Affine], inner: Sequence[Affine]
    ) -> tuple[list[Affine], list[Affine], Inside]:
        """The indices of lhs and rhs, and where the one of lhs is no padding."""
        op, emitter = self.op, self.emitter
        *window, feature = inner
        output, batch = place[op.output_feature_dimension], place[op.output_batch_dimension]
        outputs = self.rhs.dims[op.kernel_output_feature_dimension]
        left: dict[int, Affine] = {}
        right = {
            op.kernel_input_feature_dimension: feature,
            op.kernel_output_feature_dimension: output,
        }
        if op.feature_group_count > 1:
            group, _ = emitter.indexer.divide(output, outputs // op.feature_group_count, self.width)
            feature = feature + group * self.features
        left[op.input_feature_dimension] = feature
        if op.batch_group_count > 1:
            batches = self.lhs.dims[op.input_batch_dimension] // op.batch_group_count
            number, _ = emitter.indexer.divide(output, outputs // op.batch_group_count, self.width)
            batch = batch + number * batches
        left[op.input_batch_dimension] = batch
        inside: Inside = None
        for d, at in enumerate(window):
            slide, result = self.slides[d], place[op.output_spatial_dimensions[d]]
            valid, position = slide.place(emitter, result, at, self.width)
            if valid is False or inside is False:
                return [], [], False
            inside = emitter.both(inside, valid)
            left[op.input_spatial_dimensions[d]] = position
            flipped = Affine((), self.sizes[d] - 1) - at if self.reversal[d] else at
            right[op.kernel_spatial_dimensions[d]] = flipped
        return _ordered(left), _ordered(right), inside


def _ordered(index: dict[int, Affine]) -> list[Affine]:
    return [index[d] for d in sorted(index)]
