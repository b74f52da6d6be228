"""Convolutions with any dimension numbers as products over windows (implicit GEMM).

What runs innermost in the result decides the sides: where neighbours are pixels (NCHW), weights are
the left side and unfolded windows the right one; where they are features (NHWC), windows are the
left side and weights the right one. Windows are unfolded into scratch a tile at a time, or read in
place where a 1x1 kernel makes them plain rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....hlo.deciding import surely_below
from ....hlo.graph import Op, Region
from ....hlo.ops.convolution import window_attributes
from ... import llvm
from ..codegen import Target
from . import blocking, phases, runs
from .blocking import Blocking
from .depthwise import emit_depthwise
from .dot import Uneven, accumulator_of, origin_of, right_side
from .epilogue import Epilogue
from .grouped import emit_grouped, engine_for
from .left import LeftSide, PackedLeftSide
from .lines import WindowLines, chunks
from .operands import OperandArray
from .product import Product, emit_product
from .right import RightSide
from .views import Dimension, OperandView, Segment, merge, view_of
from .window import Position, Spatial, WindowLeft, WindowRight
from .winograd import emit_winograd

_ROW_BLOCK = 1 << 18  # bytes of a row block's left side
_FEWEST_PANELS, _MOST_PANELS = 4, 16  # row panels of it
_MOST_PACKED = 19 << 15  # bytes of those that are packed: what workers may hold each
_FEW_ROWS = 64  # of one line of results
_GROUPS = 4  # column groups of a tile
_ENOUGH_TILES = 16
_SMALL_WEIGHTS = 1 << 21  # bytes


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
        return all(s.inside and s.kernel == 1 for s in self.spatial)


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


def emit_convolution(
    module: llvm.Module,
    name: str,
    op: Op,
    body: Region | None,
    arguments: Sequence[object],
    target: Target,
) -> tuple[int, int]:
    """Defines the kernel; its tiles and scratch bytes. `arguments` are the kernel's operands."""
    geometry = geometry_of(op)
    accumulator = accumulator_of(op)
    inputs = body, arguments, accumulator, target
    parts = phases.of(geometry)
    if len(parts) == 1:
        found = _emit_special(module, name, geometry, *inputs)
        if found is not None:
            return found
        parts = phases.edges(geometry)
    if len(parts) == 1:
        return _emit_product(module, name, geometry, *inputs)
    each = [(f"{name}_part{n}", part, *inputs) for n, part in enumerate(parts)]
    with module.parts():
        found = [_emit_special(module, *one) or _emit_product(module, *one) for one in each]
    return phases.emit_all(module, name, found)


def _emit_special(
    module: llvm.Module,
    name: str,
    geometry: Geometry,
    body: Region | None,
    arguments: Sequence[object],
    accumulator: str,
    target: Target,
) -> tuple[int, int] | None:
    """Defines the kernel where a convolution has a form of its own; its tiles and scratch bytes."""
    inputs = module, name, geometry, body, arguments, accumulator, target
    return emit_depthwise(*inputs) or emit_winograd(*inputs)


def _emit_product(
    module: llvm.Module,
    name: str,
    geometry: Geometry,
    body: Region | None,
    arguments: Sequence[object],
    accumulator: str,
    target: Target,
) -> tuple[int, int]:
    """Defines the kernel of a convolution, or of one part of it, as a product over windows; its
    tiles and scratch bytes."""
    minor = _minor_run(geometry)
    if minor == [geometry.op.output_feature_dimension]:
        product = _features_as_columns(geometry, body, arguments, accumulator, target)
    else:
        product = _pixels_as_columns(geometry, minor, body, arguments, accumulator, target)
    return emit_grouped(module, name, product) or emit_product(
        module, name, *_cut(product, geometry.share)
    )


def _cut(product: Product, share: float) -> tuple[Product, Blocking]:
    """A convolution as it is multiplied, and its blocking. Where weights lie as they are read, a
    tile is a few column groups of a row block that stays in the L2 cache, so that results are
    written in long runs. `share`: see `Geometry`."""
    shape = blocking.at_hints(product.shape)
    cut = blocking.default(shape)
    if cut.pack_right:
        return product, cut
    unit = 1  # panels that a block has a multiple of
    found = _lines(product, cut.rows)
    if found is not None:
        product, cut = replace(product, left=found), replace(cut, rows=found.panel)
        unit = found.chunk // found.panel
    panels, size, larger = blocking.row_panels(shape.rows, cut.rows)
    all_groups = -(-shape.columns // (cut.vectors * shape.lanes))
    packed = (size + (larger > 0)) * shape.depth * shape.element_bytes if cut.pack_left else 0
    if found is not None:
        packed = found.chunk_bytes // unit
    fitting = _ROW_BLOCK // max(1, packed or size * shape.depth * shape.element_bytes)
    wanted = min(panels, max(_FEWEST_PANELS, min(_MOST_PANELS, fitting)))
    units = -(-wanted // unit)
    while units > 1 and units * unit * packed > _MOST_PACKED:
        units = -(-units // 2)
    groups = min(all_groups, _GROUPS)
    enough = math.ceil(_ENOUGH_TILES * share)
    # Each part of the columns packs the left side anew, which lines make cheap.
    fewest = _GROUPS if cut.pack_left and found is None else 1

    def tiles() -> int:
        return shape.outer * -(-panels // (units * unit)) * -(-all_groups // groups)

    while tiles() < enough and groups > fewest:
        groups = -(-groups // 2)
    # Each row block reads all weights: large ones come from memory, and are better read once.
    small = shape.depth * shape.columns * shape.element_bytes <= _SMALL_WEIGHTS
    while small and tiles() < enough and units > 1:
        units = -(-units // 2)
    return product, replace(cut, panels=min(panels, units * unit), blocks=1, groups=groups)


def _lines(product: Product, most: int) -> WindowLines | None:
    """The unfolded windows of a convolution as lines that neighbours share, if that copies less;
    `most`: rows of a micro-kernel."""
    left = product.left
    if not isinstance(left, WindowLeft):
        return None
    inputs = left.source, left.features, left.positions, left.walk
    cut = chunks(*inputs, most)
    return None if cut is None else WindowLines(*inputs, cut)


def _minor_run(geometry: Geometry) -> list[int]:
    """The innermost result dims that columns run over: features, or pixels, or the batch."""
    op = geometry.op
    order = range(op.type.rank)
    spatial = list(op.output_spatial_dimensions)
    last = next((d for d in reversed(order) if op.type.dims[d] != 1), order[-1])
    if last not in spatial:
        return [last]

    def is_dense(dim: int) -> bool:
        return geometry.spatial[spatial.index(dim)].output_step == geometry.result_steps[dim]

    if not is_dense(last):
        return [last]  # columns of a phase do not follow each other from line to line
    run: list[int] = []
    wanted = len(spatial) - 1
    for dim in reversed(order):
        if wanted >= 0 and dim == spatial[wanted]:
            if not is_dense(dim):
                break  # nor do lines
            run.insert(0, dim)
            wanted -= 1
        elif op.type.dims[dim] != 1:
            break
    return run or [last]


def _sources(
    geometry: Geometry,
    arguments: Sequence[object],
    accumulator: str,
    outer: Sequence[tuple[int, int, int, int]],
) -> tuple[OperandArray, OperandArray]:
    """The image and the kernel; outer entries are (size, image stride, kernel stride, result)."""
    image = OperandArray(
        arguments.index(geometry.input.source), geometry.input.source.element, accumulator,
        geometry.input.offset, tuple(a for _, a, _, _ in outer),
    )  # fmt: skip
    reversed_taps = sum(-s.kernel_step * (s.kernel - 1) for s in geometry.spatial if s.reversed)
    kernel = OperandArray(
        arguments.index(geometry.kernel.source), geometry.kernel.source.element, accumulator,
        geometry.kernel.offset + reversed_taps, tuple(b for _, _, b, _ in outer),
    )  # fmt: skip
    return image, kernel


def _outer(
    geometry: Geometry, inner: Sequence[int]
) -> tuple[list[tuple[int, int, int, int]], dict[Spatial, int]]:
    """Loops over what is neither rows nor columns: batch, groups, other spatial dims."""
    op = geometry.op
    outer: list[tuple[int, int, int, int]] = []
    places: dict[Spatial, int] = {}
    if op.output_batch_dimension not in inner:
        outer.append((geometry.batch, geometry.batch_step, 0, geometry.result_batch_step))
    if geometry.groups > 1:
        outer.append((
            geometry.groups, geometry.group_step, geometry.kernel_groups,
            geometry.outputs * geometry.result_feature_step,
        ))  # fmt: skip
    for spatial, dim in zip(geometry.spatial, op.output_spatial_dimensions, strict=True):
        if dim not in inner:
            places[spatial] = len(outer)
            # Windows find their own way from the coordinate; 1x1 kernels step evenly.
            step = spatial.stride * spatial.input_step if geometry.pointwise else 0
            outer.append((spatial.outputs, step, 0, spatial.output_step))
    return outer, places


def _window_offset(geometry: Geometry) -> int:
    """Where the first window of a pointwise convolution begins: negative padding cuts the input."""
    return sum(-s.low * s.input_step for s in geometry.spatial) if geometry.pointwise else 0


def _kernel_depth(geometry: Geometry, features_first: bool) -> list[Segment]:
    taps = [Segment(s.kernel, s.kernel_step) for s in geometry.spatial]
    if len(geometry.kernel_inputs.segments) > 1 and not features_first:
        return [*taps, *geometry.kernel_inputs.segments]
    features = Segment(geometry.inputs, geometry.kernel_input_step)
    return [features, *taps] if features_first else [*taps, features]


def _pixels_as_columns(
    geometry: Geometry,
    minor: Sequence[int],
    body: Region | None,
    arguments: Sequence[object],
    accumulator: str,
    target: Target,
) -> Product:
    op = geometry.op
    outer, places = _outer(geometry, minor)
    image, kernel = _sources(geometry, arguments, accumulator, outer)
    by_dim = dict(zip(op.output_spatial_dimensions, geometry.spatial, strict=True))
    walk: list[tuple[int, Spatial | int]] = [
        (by_dim[d].outputs, by_dim[d]) if d in by_dim else (op.type.dims[d], geometry.batch_step)
        for d in minor
    ]
    last = by_dim.get(minor[-1])
    step = geometry.result_steps[minor[-1]] if last is None else last.output_step
    columns = math.prod(size for size, _ in walk)
    depth = _kernel_depth(geometry, True)
    left = _left_side(geometry, kernel, depth)
    right: RightSide
    if geometry.pointwise:
        segments = merge([
            Segment(size, what.stride * what.input_step if isinstance(what, Spatial) else what)
            for size, what in walk
        ])  # fmt: skip
        image = OperandArray(
            image.argument, image.element, accumulator,
            image.offset + _window_offset(geometry), image.outer,
        )  # fmt: skip
        steps = [Segment(geometry.inputs, geometry.input_step)]
        steps += [Segment(1, 0) for _ in geometry.spatial]
        right = right_side(image, steps, segments, columns, target)
    else:
        positions = [Position(s, places.get(s)) for s in geometry.spatial]
        features = Segment(geometry.inputs, geometry.input_step)
        right = WindowRight(image, features, positions, walk, columns)
    epilogue = Epilogue(
        op, body, len(arguments), accumulator,
        tuple((size, result) for size, _, _, result in outer),
        (geometry.outputs, geometry.result_feature_step),
        (columns, step), geometry.result_offset,
    )  # fmt: skip
    return Product(
        target, accumulator, tuple(size for size, *_ in outer), geometry.outputs, columns,
        tuple(loop.size for loop in depth), left, right, epilogue,
    )  # fmt: skip


def _left_side(geometry: Geometry, kernel: OperandArray, depth: Sequence[Segment]) -> LeftSide:
    """Weights as rows."""
    segments = geometry.kernel_outputs.segments
    if kernel.plain and len(segments) <= 1:
        step = segments[0].stride if segments else 0
        return LeftSide(kernel, step, [loop.stride for loop in depth])
    return PackedLeftSide(kernel, segments, depth)


def _features_as_columns(
    geometry: Geometry,
    body: Region | None,
    arguments: Sequence[object],
    accumulator: str,
    target: Target,
) -> Product:
    op = geometry.op
    run, lines = _row_run(geometry)
    dims = [d for d, s in zip(op.output_spatial_dimensions, geometry.spatial, strict=True)
            if s in run]  # fmt: skip
    outer, places = _outer(geometry, [op.output_feature_dimension, *dims])
    image, kernel = _sources(geometry, arguments, accumulator, outer)
    walk = [(spatial.outputs, spatial) for spatial in run]
    count = math.prod(size for size, _ in walk)
    features = Segment(geometry.inputs, geometry.input_step)
    positions = [Position(s, places.get(s)) for s in geometry.spatial]
    lanes = target.lanes(accumulator)
    direct = geometry.pointwise and len(_row_segments(walk)) <= 1
    # Vectors of elements that are widened would be masked element by element.
    whole = image.plain or engine_for(target, image.element, kernel.element, accumulator)
    unit = runs.run_unit(features, positions, lanes) if whole and not direct else None
    depth = _kernel_depth(geometry, unit == 1)
    left: LeftSide
    if direct:
        image = OperandArray(
            image.argument, image.element, accumulator,
            image.offset + _window_offset(geometry), image.outer,
        )  # fmt: skip
        segments = _row_segments(walk)
        step = segments[0].stride if segments else 0
        left = LeftSide(image, step, [*(0 for _ in geometry.spatial), features.stride])
        if not image.plain:
            left = PackedLeftSide(image, segments, _pixel_depth(geometry), lanes)
    else:
        image = OperandArray(
            image.argument, image.element, accumulator, image.offset,
            tuple(0 if i in places.values() else s for i, s in enumerate(image.outer)),
        )  # fmt: skip
        if unit is None:
            left = WindowLeft(image, features, positions, walk, lanes)
        else:
            left = runs.WindowRuns(image, features, positions, walk, lanes, unit)
    segments = geometry.kernel_outputs.segments
    right = right_side(kernel, depth, segments, geometry.outputs, target)
    epilogue = Epilogue(
        op, body, len(arguments), accumulator,
        tuple((size, result) for size, _, _, result in outer),
        (count, run[-1].output_step if run else 0),
        (geometry.outputs, geometry.result_feature_step), geometry.result_offset, lines,
    )  # fmt: skip
    return Product(
        target, accumulator, tuple(size for size, *_ in outer), count, geometry.outputs,
        tuple(loop.size for loop in depth), left, right, epilogue,
    )  # fmt: skip


def _pixel_depth(geometry: Geometry) -> list[Segment]:
    """The summed steps of a single pixel, as they lie in the input."""
    features = Segment(geometry.inputs, geometry.input_step)
    return [*(Segment(1, 0) for _ in geometry.spatial), features]


def _row_segments(walk: Sequence[tuple[int, Spatial]]) -> tuple[Segment, ...]:
    """The rows of a product of single pixels, as they lie in the input."""
    return merge([Segment(size, s.stride * s.input_step) for size, s in walk])


def _row_run(geometry: Geometry) -> tuple[list[Spatial], tuple[int, int] | None]:
    """The spatial dims, outermost first, that are the rows of a pixel block: those whose results
    lie evenly, and while these are few, one more, of (rows, stride) in the result."""
    run: list[Spatial] = []
    for spatial in reversed(geometry.spatial):
        if run and spatial.output_step != run[0].output_step * run[0].outputs:
            count = math.prod(inner.outputs for inner in run)
            if not surely_below(count, _FEW_ROWS):
                break
            return [spatial, *run], (count, spatial.output_step)
        run.insert(0, spatial)
    return run, None
