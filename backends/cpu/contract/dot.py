"""dot_general with any dimension numbers, as a product of strided operands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....hlo.deciding import at_hint
from ....hlo.errors import CompilerBug, UnsupportedError
from ....hlo.graph import Op, Region
from ....hlo.ops.contraction import free_dims
from ....hlo.types import F64
from ....hlo.views import OperandView, Segment, align, merge, merged_depth, view_of
from ....optimizer.cuts.products import Blocking
from ... import llvm
from ...llvm import elements
from ..codegen import Target
from . import inner
from .epilogue import Epilogue
from .grouped import emit_grouped, engine_for
from .inner import InnerProducts, emit_inner_products
from .left import LeftSide, PackedLeftSide
from .operands import OperandArray
from .product import Product, emit_product
from .right import ContiguousColumns, DirectRight, GatheredRight, RightSide, TransposedRight
from .stream import emit_stream, fits


@dataclass(frozen=True)
class _DotLoops:
    """A dot_general as loops; strides in elements of the stored operands."""

    outer: list[tuple[int, int, int, int]]  # size, left, right, result
    rows: tuple[Segment, ...]
    row_count: int
    columns: tuple[Segment, ...]
    column_count: int
    depth: list[tuple[int, int, int]]  # size, left, right
    left: OperandView
    right: OperandView


class Uneven(Exception):
    """An operand was fused that does not lie in strides; the kernel needs it stored first."""


def accumulator_of(op: Op) -> str:
    """The LLVM type that the sums of a contraction are formed in."""
    element = op.type.element
    for value in (*op.operands, op.result):
        if value.element.is_complex or value.element.kind == "quantized":
            raise UnsupportedError(
                f"{origin_of(op)}: target cpu: {op.name} of {value.element} is not supported"
            )
    if element.is_bool:
        return "i32"
    if element.is_float:
        is_double = any(value.element is F64 for value in (*op.operands, op.result))
        return "double" if is_double else "float"
    return elements.register_type(element)


def origin_of(op: Op) -> str:
    return str(op.origin[0]) if op.origin else "unknown"


def emit_dot(
    module: llvm.Module,
    name: str,
    op: Op,
    body: Region | None,
    arguments: Sequence[object],
    target: Target,
    blocking: Blocking | None = None,
) -> tuple[int, int]:
    """Defines the kernel; its tiles and scratch bytes. `arguments` are the kernel's operands."""
    made = _product(op, body, arguments, target)
    if isinstance(made, Product):
        found = emit_stream(module, name, made) or emit_grouped(module, name, made)
        return found or emit_product(module, name, made, blocking)
    if blocking is not None:
        raise CompilerBug(f"{origin_of(op)}: inner products have no blocking")
    return emit_inner_products(module, name, made)


def is_narrow(product: Product) -> bool:
    """Whether instructions for narrow numbers may compute it, or its weight may stream."""
    elements = product.left.source.element, product.right.source.element
    if engine_for(product.target, *elements, product.accumulator) is not None:
        return True
    return fits(product.target, elements[1], product.accumulator, product.rows)


def product_of(
    op: Op, body: Region | None, arguments: Sequence[object], target: Target
) -> Product | None:
    """The product that a dot_general is; None where inner products compute it."""
    made = _product(op, body, arguments, target)
    return made if isinstance(made, Product) else None


def _product(
    op: Op, body: Region | None, arguments: Sequence[object], target: Target
) -> Product | InnerProducts:
    form = _swapped(_form(op))
    accumulator = accumulator_of(op)
    left, right = _sides(form, arguments, accumulator, target)
    epilogue = Epilogue(
        op,
        body,
        len(arguments),
        accumulator,
        tuple((size, stride) for size, _, _, stride in form.outer),
        (form.row_count, form.column_count),
        (form.column_count, 1),
    )
    row_segments = form.rows or (Segment(1, 0),)
    lanes = target.lanes(accumulator)
    plain = left.source.plain and right.source.plain and llvm.is_float(accumulator)
    if (
        plain
        and len(row_segments) == 1
        and inner.applies(form.row_count, form.columns, form.depth, lanes)
    ):
        return InnerProducts(
            lanes, tuple(size for size, *_ in form.outer), form.row_count, form.column_count,
            tuple(form.depth), (left.source, row_segments[0].stride),
            LeftSide(right.source, form.columns[0].stride, [right for *_, right in form.depth]),
            epilogue, target.vector_registers,
        )  # fmt: skip
    return Product(
        target,
        accumulator,
        tuple(size for size, *_ in form.outer),
        form.row_count,
        form.column_count,
        tuple(size for size, *_ in form.depth),
        left,
        right,
        epilogue,
    )


def _sides(
    form: _DotLoops, arguments: Sequence[object], accumulator: str, target: Target
) -> tuple[LeftSide, RightSide]:
    left_source = OperandArray(
        arguments.index(form.left.source),
        form.left.source.element,
        accumulator,
        form.left.offset,
        tuple(left for _, left, _, _ in form.outer),
    )
    right_source = OperandArray(
        arguments.index(form.right.source),
        form.right.source.element,
        accumulator,
        form.right.offset,
        tuple(right for _, _, right, _ in form.outer),
    )
    depth = [Segment(size, left) for size, left, _ in form.depth]
    left: LeftSide
    if left_source.plain and len(form.rows) <= 1:
        step = form.rows[-1].stride if form.rows else 0
        left = LeftSide(left_source, step, [segment.stride for segment in depth])
    else:
        left = PackedLeftSide(left_source, form.rows, depth)
    steps = [Segment(size, right) for size, _, right in form.depth]
    right = right_side(right_source, steps, form.columns, form.column_count, target)
    return left, right


def right_side(
    source: OperandArray,
    depth: Sequence[Segment],
    segments: Sequence[Segment],
    count: int,
    target: Target,
) -> RightSide:
    """How `count` columns that lie in segments are brought to the micro-kernel."""
    lanes = target.lanes(source.accumulator)
    columns = ContiguousColumns.of(segments, count, lanes)
    if columns is not None:
        side = DirectRight(source, depth, columns)
        return side if source.plain else side.copied()
    contiguous = depth and depth[-1].stride == 1 and at_hint(depth[-1].size) >= lanes // 2
    if contiguous and len(segments) == 1:
        return TransposedRight(source, depth, segments[0].stride)
    return GatheredRight(source, depth, segments, count)


def _form(op: Op) -> _DotLoops:
    views = [view_of(value) for value in op.operands]
    left, right = views
    if left is None or right is None:
        raise Uneven(f"{origin_of(op)}: an operand of {op.name} was fused that has no strides")

    def loops(lefts: Sequence[int], rights: Sequence[int]) -> list[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        for i, j in zip(lefts, rights, strict=True):
            aligned = align(left.dims[i], right.dims[j])
            if aligned is None:
                raise Uneven(f"{origin_of(op)}: operands of {op.name} lie unevenly")
            found += aligned
        return found

    batch = loops(op.lhs_batching_dimensions, op.rhs_batching_dimensions)
    depth = loops(op.lhs_contracting_dimensions, op.rhs_contracting_dimensions)
    rows, row_count = _free(op, left, "lhs")
    columns, column_count = _free(op, right, "rhs")
    outer: list[tuple[int, int, int, int]] = []
    stride = row_count * column_count
    for size, a, b in reversed(batch):
        outer.insert(0, (size, a, b, stride))
        stride *= size
    return _DotLoops(
        outer, rows, row_count, columns, column_count, merged_depth(depth), left, right
    )


def _free(op: Op, view: OperandView, side: str) -> tuple[tuple[Segment, ...], int]:
    """The free dims of an operand as one walk, and their indices."""
    free = free_dims(op, side)
    if len(free) == 1:
        dim = view.dims[free[0]]
        return dim.segments, dim.extent
    if not all(view.dims[i].exact for i in free):
        raise Uneven(f"{origin_of(op)}: a padded operand of {op.name} has several free dims")
    segments = [segment for i in free for segment in view.dims[i].segments]
    return merge(segments), math.prod(view.dims[i].extent for i in free)


def _swapped(form: _DotLoops) -> _DotLoops:
    """Sides exchanged where there is one column only, so that vectors run along the rows; outer
    segments of rows made outer coordinates."""
    if form.column_count == 1 and form.row_count != 1:
        form = _DotLoops(
            [(size, b, a, result) for size, a, b, result in form.outer],
            form.columns, 1, form.rows, form.row_count,
            [(size, b, a) for size, a, b in form.depth], form.right, form.left,
        )  # fmt: skip
    exact = form.row_count == math.prod(s.size for s in form.rows)
    if len(form.rows) > 1 and exact and at_hint(form.rows[-1].size) >= 6:
        outer, last = list(form.outer), form.rows[-1]
        stride = last.size * form.column_count
        added: list[tuple[int, int, int, int]] = []
        for segment in reversed(form.rows[:-1]):
            added.insert(0, (segment.size, segment.stride, 0, stride))
            stride *= segment.size
        return _DotLoops(
            outer + added, (last,), last.size, form.columns, form.column_count,
            form.depth, form.left, form.right,
        )  # fmt: skip
    return form
