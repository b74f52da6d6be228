"""A convolution as a product that is walked over taps and blocks of input features.

    out[box of pixels, features] = sum over tap, block of
        image[box moved by the tap, block] * kernel[tap, block, features]

The box's pixels are the rows of the product; nothing is unfolded in memory: each turn of the loop
loads the window of the image that its tap sees (zeros outside are the padding, gaps are strides)
and the tap's part of the kernel. What is computed before and after stands in the same tile
function.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ...hlo.build import Builder, make_op
from ...hlo.deciding import at_hint
from ...hlo.graph import Op, Value
from ...hlo.ops.convolution import window_attributes
from ...hlo.ops.tile_examples import INDEX
from ...hlo.precision import operand_facts
from ...hlo.types import F32, ElementType, TensorType
from .access import Box, Span, TilePropagation, propagate, whole
from .build import TileGroup, grid_axes, root_box, tile_counts
from .expressions import Expression, expression, variable
from .write import TileWriter, Unwritable, inside, numbers


def refusal(op: Op) -> str:
    """Why a convolution is no product over its taps; "" if it is."""
    if op.batch_group_count != 1:
        return "groups of batches"
    if any(d != 1 for d in op.lhs_dilation):
        return "a dilated image"
    if op.operands[0].element.is_complex or op.result.element.is_bool:
        return f"a convolution of {op.operands[0].element}"
    if op.feature_group_count != 1 and group_features(op)[0] < _LEAST_OF_A_GROUP:
        return "groups of few features"
    return ""


_LEAST_OF_A_GROUP = 8


def group_features(op: Op) -> tuple[int, int]:
    """Input and output features of one group."""
    depth = op.operands[1].dims[op.kernel_input_feature_dimension]
    features = op.result.dims[op.output_feature_dimension]
    return depth, features // op.feature_group_count


def taps(op: Op) -> tuple[int, ...]:
    """The sizes of the window."""
    return tuple(op.operands[1].dims[d] for d in op.kernel_spatial_dimensions)


def pixel_dims(op: Op) -> tuple[int, ...]:
    """The dims of the result that are no features, in order."""
    return tuple(d for d in range(op.result.rank) if d != op.output_feature_dimension)


def boxes(dims: Sequence[int], rows: int) -> Iterator[tuple[int, ...]]:
    """Boxes of `rows` pixels, a power of two, that need the fewest tiles for `dims`; those that are
    long in the last dims first."""
    limits = [1 << max(0, n - 1).bit_length() for n in dims]
    while dims and math.prod(limits) < rows:  # fewer pixels than rows: some are none
        limits[limits.index(max(limits))] *= 2
    found: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
    powers = [[1 << b for b in range(n.bit_length())] for n in limits]
    for sizes in itertools.product(*powers):
        if math.prod(sizes) == rows:
            tiles = at_hint(math.prod(tile_counts(dims, sizes)))
            found.append((tiles, tuple(-n for n in reversed(sizes)), sizes))
    least = min((tiles for tiles, _, _ in found), default=0)
    for tiles, _, sizes in sorted(found):
        if tiles == least:
            yield sizes


def step_of(depth: int, most: int, least: int) -> int:
    """Features of one turn, a power of two between `least` and `most`: little beyond `depth`, and
    few turns."""
    steps = [least << n for n in range((most // least).bit_length())]
    return min(steps, key=lambda step: (-(-depth // step) * (step + least // 2), -step))


def sum_type(op: Op) -> ElementType:
    """What the products are summed in: f32 for narrower floats."""
    element = op.result.element
    if element.is_float and element.bits < 32:
        return F32
    return element


def build_implicit(
    group: TileGroup, operands: Sequence[Value], sizes: Sequence[int], name: str, step: int
) -> Op:
    """The kernel_call on `operands`, which stand for the group's inputs, in tiles of `sizes` of the
    convolution's result; `step` features in one turn. Unwritable where it cannot be one."""
    (main,) = (op for op in group.ops if op.name == "convolution")
    reason = refusal(main)
    if reason:
        raise Unwritable(reason)
    return _ImplicitWriter(group, main, sizes, step).kernel(operands, name)


class _ImplicitWriter:
    def __init__(self, group: TileGroup, main: Op, sizes: Sequence[int], step: int) -> None:
        self.group, self.main, self.step = group, main, step
        self.box = root_box(main.result.dims, sizes)
        self.rows = math.prod(sizes[d] for d in pixel_dims(main))
        self.columns = sizes[main.output_feature_dimension]
        depth, features = group_features(main)
        self.depth = depth
        if main.feature_group_count != 1 and (features % self.columns or depth % step):
            raise Unwritable("a tile of several groups")
        before, after = self.parts()
        self.before = before
        self.order = _order(main.result, group.roots, after)
        self.after = after

    def parts(self) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
        """The operations that the convolution reads, and those that are left."""
        ops = self.group.ops
        before = _ancestors(ops, self.main.operands)
        # What the roots need of the operations before is computed once more, for their tile.
        after = _ancestors([op for op in ops if op is not self.main], self.group.roots)
        return tuple(op for op in ops if op in before), tuple(op for op in ops if op in after)

    def kernel(self, operands: Sequence[Value], name: str) -> Op:
        group, main = self.group, self.main
        counts = tile_counts(main.result.dims, numbers(self.box))
        b = Builder(group.origin, check=False)
        memory = b.arguments([v.type for v in (*group.inputs, *group.roots)])
        axes = grid_axes(counts)
        ids = {f"t{d}": b("tile_id", axis=axis) for axis, d in enumerate(axes)}
        writer = TileWriter(b, dict(zip(group.inputs, memory, strict=False)), ids)
        own = Box(tuple(self.box.spans[d] for d in self.order))
        writer.define(main.result, self.result(writer, self.walked(writer)), self.box)
        if self.after:
            roots = {root: own for root in group.roots if root is not main.result}
            parts = propagate(self.after, roots)
            if parts.opaque or parts.runtime:
                raise Unwritable("what follows depends on values")
            needed = parts.boxes.get(main.result)
            if needed is not None and needed != self.box:
                raise Unwritable(f"what follows needs {needed} of {self.box}")
            writer.write(self.after, parts)
        for root, target in zip(group.roots, memory[len(group.inputs) :], strict=True):
            offsets = [writer.scalar(span.offset) for span in own.spans]
            b.op("tile_store", [target, writer.read(root, own), *offsets])
        attributes = {"kernel": name, "grid": tuple(counts[d] for d in axes)}
        types = [root.type for root in group.roots]
        return make_op("kernel_call", operands, attributes, (b.region([]),), types, group.origin)

    def result(self, w: TileWriter, sums: Value) -> Value:
        """The sums as a tile of the convolution's result."""
        main = self.main
        sizes = numbers(self.box)
        pixels = pixel_dims(main)
        tile = w.b.reshape(sums, (*(sizes[d] for d in pixels), self.columns))
        lies = (*pixels, main.output_feature_dimension)
        if lies != tuple(range(len(lies))):
            tile = w.b.transpose(tile, [lies.index(d) for d in range(len(lies))])
        return w.b.convert(tile, main.result.element)

    def walked(self, outer: TileWriter) -> Value:
        """The loop over taps and blocks; its sums are [rows, columns]."""
        b, sizes = outer.b, taps(self.main)
        blocks = -(-self.depth // self.step)
        turns = math.prod(sizes) * blocks
        kind = TensorType((self.rows, self.columns), sum_type(self.main))
        if turns == 1:
            return self.product(outer, [*[expression(0)] * len(sizes), expression(0)], kind)
        inner = Builder(b.origin, check=False)
        index, old = inner.arguments([INDEX, kind])
        w = outer.nested(inner, {})
        places = self.digits(inner, index, w, [*sizes, blocks])
        new = inner("add", old, self.product(w, places, kind))
        body = inner.region([new])
        bounds = [b.constant(0, INDEX), b.constant(turns, INDEX)]
        return b.op("tile_for", [*bounds, b.constant(0, kind)], {}, (body,)).result

    def digits(
        self, b: Builder, index: Value, w: TileWriter, sizes: Sequence[int]
    ) -> list[Expression]:
        """The row-major number of a turn taken apart."""
        found: list[Expression] = []
        rest = index
        for number in reversed(range(len(sizes))):
            size = sizes[number]
            name = f"k{number}"
            if size > 1:
                outermost = all(n == 1 for n in sizes[:number])
                digit = rest if outermost else b("remainder", rest, b.constant(size, INDEX))
                w.variables[name] = digit
                if not outermost:
                    rest = b("divide", rest, b.constant(size, INDEX))
            found.append(variable(name, 0, size - 1))
        return found[::-1]

    def product(self, w: TileWriter, places: Sequence[Expression], kind: TensorType) -> Value:
        """One tap's image times its kernel, for one block of features."""
        main, b = self.main, w.b
        *tap, block = places
        image = _behind(main.operands[0], self.image_box(tap, block))
        kernel = _behind(main.operands[1], self.kernel_box(tap, block))
        if image.value is kernel.value:
            raise Unwritable("a convolution of a value with itself")
        computed = {value for op in self.before for value in op.results}
        roots = {one.value: one.box for one in (image, kernel) if one.value in computed}
        if roots:
            parts: TilePropagation = propagate(self.before, roots)
            if parts.opaque or parts.runtime:
                raise Unwritable("an operand depends on values")
            w.write(self.before, parts)
        left = w.read(image.value, image.box, 0)
        right = w.read(kernel.value, kernel.box, 0)
        seen = (main.input_batch_dimension, *main.input_spatial_dimensions)
        results = (main.output_batch_dimension, *main.output_spatial_dimensions)
        order = [seen[results.index(d)] for d in pixel_dims(main)]
        moved = [image.lies.index(d) for d in (*order, main.input_feature_dimension)]
        if moved != sorted(moved):
            left = b.transpose(left, moved)
        left = b.reshape(left, (self.rows, self.step))
        # The kernel's two dims in the order in which memory has them.
        place = kernel.lies.index(main.kernel_input_feature_dimension)
        deep = place < kernel.lies.index(main.kernel_output_feature_dimension)
        dims = (self.step, self.columns) if deep else (self.columns, self.step)
        right = b.reshape(right, dims)
        facts: dict[str, Any] = {**operand_facts(main)}
        return b(
            "dot_general", left, right, type=kind, lhs_batching_dimensions=(),
            rhs_batching_dimensions=(), lhs_contracting_dimensions=(1,),
            rhs_contracting_dimensions=(0 if deep else 1,),
            precision_config=main.attributes.get("precision_config", ()), **facts,
        )  # fmt: skip

    def image_box(self, tap: Sequence[Expression], block: Expression) -> Box:
        main = self.main
        dims = main.operands[0].dims
        strides, padding, _, dilations, reversal = window_attributes(main)
        spans = list(whole(dims).spans)
        batch = main.input_batch_dimension
        spans[batch] = self.box.spans[main.output_batch_dimension]
        for number, dim in enumerate(main.input_spatial_dimensions):
            span = self.box.spans[main.output_spatial_dimensions[number]]
            size = taps(main)[number]
            place = expression(size - 1) - tap[number] if reversal[number] else tap[number]
            offset = span.offset * strides[number] + place * dilations[number]
            stride = strides[number] if span.size.constant != 1 else 1
            spans[dim] = Span(offset - padding[number][0], span.size, stride, dims[dim])
        feature = main.input_feature_dimension
        offset = block * self.step
        if main.feature_group_count != 1:
            _, features = group_features(main)
            column = self.box.spans[main.output_feature_dimension].offset
            # Tiles divide groups: which group it is, is a number of tiles.
            offset = offset + column // features * self.depth
        spans[feature] = Span(offset, expression(self.step), 1, dims[feature])
        return Box(tuple(spans))

    def kernel_box(self, tap: Sequence[Expression], block: Expression) -> Box:
        main = self.main
        dims = main.operands[1].dims
        spans = list(whole(dims).spans)
        for number, dim in enumerate(main.kernel_spatial_dimensions):
            spans[dim] = Span(tap[number], expression(1), 1, dims[dim])
        feature, depth = main.kernel_output_feature_dimension, main.kernel_input_feature_dimension
        spans[feature] = self.box.spans[main.output_feature_dimension]._replace(bound=dims[feature])
        spans[depth] = Span(block * self.step, expression(self.step), 1, dims[depth])
        return Box(tuple(spans))


class _BoxRead(NamedTuple):
    """A box of a value, and which dim of what was asked for each of its dims is."""

    value: Value
    box: Box
    lies: tuple[int, ...]


def _behind(value: Value, box: Box) -> _BoxRead:
    """A box of an operand as one of the value behind its transposes, and behind slices where the
    box reaches over no edge but the value's own."""
    spans, lies = list(box.spans), list(range(value.rank))
    while value.op is not None and value.op.name in ("transpose", "slice"):
        op = value.op
        (source,) = op.operands
        if op.name == "transpose":
            back = [op.permutation.index(d) for d in range(value.rank)]
            spans, lies = [spans[d] for d in back], [lies[d] for d in back]
        else:
            facts = zip(spans, value.dims, source.dims, op.strides, strict=True)
            if any(
                n != m and not inside(span) or step != 1 and span.size.constant != 1
                for span, n, m, step in facts
            ):
                break
            spans = [
                span._replace(offset=span.offset * step + first, bound=n)
                for span, first, n, step in zip(
                    spans, op.start_indices, source.dims, op.strides, strict=True
                )
            ]
        value = source
    return _BoxRead(value, Box(tuple(spans)), tuple(lies))


def _ancestors(ops: Sequence[Op], values: Sequence[Value]) -> set[Op]:
    """The operations that values are computed by, of these."""
    needed = set(values)
    found: set[Op] = set()
    for op in reversed(ops):
        if needed & set(op.results):
            found.add(op)
            needed.update(op.operands)
    return found


def _order(value: Value, roots: Sequence[Value], after: Sequence[Op]) -> tuple[int, ...]:
    """Which dim of `value` each dim of the roots is; Unwritable if that cannot be said."""
    orders: dict[Value, tuple[int, ...]] = {value: tuple(range(value.rank))}
    for op in after:
        for operand in op.operands:
            order = orders.get(operand)
            if order is None or not op.results:
                continue
            if op.name == "transpose":
                orders[op.result] = tuple(order[d] for d in op.permutation)
            elif op.definition.pattern == "elementwise" and op.results[0].dims == operand.dims:
                orders[op.results[0]] = order
            break
    found = {orders.get(root) for root in roots}
    order = found.pop()
    if found or order is None:
        raise Unwritable("what follows a convolution has other dims")
    return order
