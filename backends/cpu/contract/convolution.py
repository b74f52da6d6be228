"""Convolutions with any dimension numbers as products over windows (implicit GEMM).

What runs innermost in the result decides the sides: where neighbours are pixels (NCHW), weights are
the left side and unfolded windows the right one; where they are features (NHWC), windows are the
left side and weights the right one. Windows are unfolded into scratch a tile at a time, or read in
place where a 1x1 kernel makes them plain rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ....hlo.deciding import at_hint, surely_below
from ....hlo.graph import Op, Region
from ....hlo.symbols import SymbolicDim
from ....hlo.views import Segment, merge, merged_depth
from ....optimizer.cuts import products
from ....optimizer.cuts.convolutions import ConvolutionCut, ConvolutionShape, Unfolding
from ....optimizer.cuts.products import Blocking, ProductShape
from ... import llvm
from ..codegen import Target
from ..machines import cuts_of
from . import inner, phases, runs, winograd
from .depthwise import depthwise
from .dot import Uneven, accumulator_of, origin_of, right_side
from .epilogue import Epilogue
from .geometry import ConvolutionKernel, Geometry, geometry_of
from .grouped import emit_grouped, engine_for
from .inner import InnerProducts, emit_inner_products
from .left import LeftSide, PackedLeftSide
from .lines import WindowLines, chunks, uneven_chunks
from .operands import OperandArray, Phases
from .product import Product, emit_product
from .right import RightSide
from .window import Position, Spatial, WindowLeft, WindowRight

_FEW_ROWS = 64  # of one line of results
_MANY_ROWS = 128  # of one plane


def emit_convolution(
    module: llvm.Module,
    name: str,
    op: Op,
    body: Region | None,
    arguments: Sequence[object],
    target: Target,
    cut: ConvolutionCut | None = None,
) -> tuple[int, int]:
    """Defines the kernel; its tiles and scratch bytes. `arguments` are the kernel's operands.
    `cut`: how it is cut, where that is not left to the cost model."""
    geometry = phases.of_image(geometry_of(op))
    kernel = ConvolutionKernel(module, name, geometry, body, arguments, accumulator_of(op), target)
    parts = phases.of(geometry)
    if len(parts) == 1:
        special = _special(kernel)
        if special is not None:
            return special()
        if parts[0] is geometry:
            parts = phases.edges(geometry)
    if len(parts) == 1:
        return _emit_product(replace(kernel, geometry=parts[0]), cut)
    each = [kernel.part(number, part) for number, part in enumerate(parts)]
    with module.parts():
        ways = [_special(one) or partial(_emit_product, one, cut) for one in each]
        found = [define() for define in ways]
    return phases.emit_all(module, name, found)


def windows_of(
    op: Op, body: Region | None, arguments: Sequence[object], target: Target
) -> ConvolutionShape | None:
    """The shape that cuts of a convolution are chosen for; None where it has another form, or
    several parts."""
    geometry = phases.of_image(geometry_of(op))
    if phases.of(geometry) != [geometry] or phases.edges(geometry) != [geometry]:
        return None
    module = llvm.Module()
    kernel = ConvolutionKernel(module, "", geometry, body, arguments, accumulator_of(op), target)
    if _special(kernel) or _inner_products(kernel):
        return None
    product = _product(kernel)
    elements = product.left.source.element, product.right.source.element
    if engine_for(target, *elements, product.accumulator) is not None:
        return None
    if len(geometry.kernel_inputs.segments) > 1:
        return None
    product, _, lefts = _ways(kernel, product)
    return _shape(product, geometry, lefts) if _reads_columns(product) else None


def _special(kernel: ConvolutionKernel) -> Callable[[], tuple[int, int]] | None:
    """What defines the kernel where a convolution has a form of its own; its tiles and scratch
    bytes."""
    return depthwise(kernel) or winograd.of_tiles(kernel)


def _emit_product(kernel: ConvolutionKernel, cut: ConvolutionCut | None = None) -> tuple[int, int]:
    """Defines the kernel as a product over windows; its tiles and scratch bytes."""
    few = _inner_products(kernel)
    if few is not None:
        return emit_inner_products(kernel.module, kernel.name, few)
    module, name, product = kernel.module, kernel.name, _product(kernel)
    found = emit_grouped(module, name, product)
    if found is not None:
        return found
    if len(kernel.geometry.kernel_inputs.segments) > 1:
        raise Uneven(f"{origin_of(kernel.geometry.op)}: features of a kernel lie in groups")
    product, usual, lefts = _ways(kernel, product)
    if _reads_columns(product):
        if cut is None:
            shape = _shape(product, kernel.geometry, lefts)
            cut = cuts_of(product.target).of_convolution(shape)
        return emit_product(module, name, replace(product, left=lefts[cut.way]), cut.blocking)
    if usual is None:
        return emit_product(module, name, product)
    shape = products.at_hints(product.shape)
    chunked = _of_chunks(shape, products.default(shape), usual)
    return emit_product(module, name, replace(product, left=usual), chunked)


def _product(kernel: ConvolutionKernel) -> Product:
    minor = _minor_run(kernel.geometry)
    if minor == [kernel.geometry.op.output_feature_dimension]:
        return _features_as_columns(kernel)
    return _pixels_as_columns(kernel, minor)


def _reads_columns(product: Product) -> bool:
    """Whether columns lie as they are read."""
    return not products.default(products.at_hints(product.shape)).pack_right


def _shape(product: Product, geometry: Geometry, lefts: Sequence[LeftSide]) -> ConvolutionShape:
    """What decides how a convolution is cut whose columns are read in place."""
    shape = products.at_hints(product.shape)
    if not shape.left_must_pack:
        row = shape.depth * shape.element_bytes
        copied = products.padded_depth(shape.depth, shape.element_bytes) * shape.element_bytes
        in_place = (Unfolding(0.0, 0.0), Unfolding(copied, 1.0))
        return ConvolutionShape(shape, in_place, shape.outer * shape.rows * row, geometry.share)
    pixels = geometry.batch * math.prod(spatial.size for spatial in geometry.spatial)
    image = at_hint(pixels * geometry.groups * geometry.inputs) * shape.element_bytes
    ways = [
        Unfolding(left.row_bytes, left.runs, left.panel, -(-left.chunk // left.panel), left.even)
        if isinstance(left, WindowLines)
        else Unfolding(left.row_bytes, left.runs)
        for left in lefts
    ]
    return ConvolutionShape(shape, tuple(ways), image, geometry.share)


def _of_chunks(shape: ProductShape, cut: Blocking, lines: WindowLines) -> Blocking:
    """The blocking with as many rows in a tile, about, whose row blocks are chunks of lines."""
    unit, every = lines.chunk // lines.panel, -(-shape.rows // lines.panel)
    tile = cut.rows * cut.panels * cut.blocks // lines.panel  # its row panels
    panels = min(every, max(unit, min(cut.panels, tile) // unit * unit))
    blocks = max(1, min(tile, every) // panels)
    return replace(cut, rows=lines.panel, panels=panels, blocks=blocks)


def _ways(
    kernel: ConvolutionKernel, product: Product
) -> tuple[Product, WindowLines | None, list[LeftSide]]:
    """The product, its windows as lines that neighbours share for panels of the usual rows, if that
    copies less, and all ways in which its rows are brought, in place and copied are two."""
    left, shape = product.left, products.at_hints(product.shape)
    if not isinstance(left, WindowLeft | runs.WindowRuns):
        return product, None, [left] if left.packed else [left, left]
    usual = products.default(shape)
    mosts = {products.most_rows(shape, v, True) for v in products.vector_choices(shape)}
    found: dict[int, WindowLines] = {}
    for most in sorted({usual.rows} if usual.pack_right else mosts | {usual.rows}):
        cut = chunks(*left.inputs, most, left.planes)
        if cut is not None:
            found[cut[1]] = WindowLines(*left.inputs, cut, left.planes, kernel.lanes)
    lines = list(found.values())
    if lines or usual.pack_right:
        return product, next(iter(lines), None), [left, *lines]
    # A tile of one line alone would pack a right side for few rows.
    of_line = _features_as_columns(kernel, one_line=True)
    single = of_line.left
    if isinstance(single, WindowLeft | runs.WindowRuns):
        cut = uneven_chunks(*single.inputs, usual.rows, single.planes)
        if cut is not None:
            uneven = WindowLines(*single.inputs, cut, single.planes, kernel.lanes)
            return replace(of_line, left=uneven), uneven, [uneven]
    return product, None, [left]


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


@dataclass(frozen=True)
class _Outer:
    """Loops over what is neither rows nor columns: phases, batch, groups, other spatial dims."""

    sizes: tuple[int, ...]
    image: tuple[int, ...]  # strides
    kernel: tuple[int | Phases, ...]
    result: tuple[int, ...]
    positions: tuple[Position, ...]  # of the spatial dims

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """What an epilogue needs to know."""
        return tuple(zip(self.sizes, self.result, strict=True))

    @property
    def windows(self) -> tuple[int, ...]:
        """Strides of the image where windows find their own way from coordinates."""
        spatial = {position.outer for position in self.positions}
        return tuple(0 if i in spatial else s for i, s in enumerate(self.image))


def _outer(geometry: Geometry, inner: Sequence[int]) -> _Outer:
    """The outer loops where the result's dims `inner` are rows and columns."""
    op = geometry.op
    loops: list[tuple[int, int, int | Phases, int]] = []
    walked: dict[Spatial, int] = {}
    shared: dict[Spatial, int] = {}
    for spatial in geometry.spatial:
        if spatial.phases is not None:
            count = spatial.phases.count
            shared[spatial] = len(loops)
            loops.append((count, 0, spatial.phases, spatial.output_step // count))
    if op.output_batch_dimension not in inner:
        loops.append((geometry.batch, geometry.batch_step, 0, geometry.result_batch_step))
    if geometry.groups > 1:
        loops.append((
            geometry.groups, geometry.group_step, geometry.kernel_groups,
            geometry.outputs * geometry.result_feature_step,
        ))  # fmt: skip
    for spatial, dim in zip(geometry.spatial, op.output_spatial_dimensions, strict=True):
        if dim not in inner:
            walked[spatial] = len(loops)
            # Windows find their own way from the coordinate; 1x1 kernels step evenly.
            step = spatial.stride * spatial.input_step if geometry.pointwise else 0
            loops.append((spatial.outputs, step, 0, spatial.output_step))
    positions = tuple(Position(s, walked.get(s), shared.get(s)) for s in geometry.spatial)
    sizes, image, kernel, result = zip(*loops, strict=True) if loops else ((),) * 4
    return _Outer(sizes, image, kernel, result, positions)


def _weights(kernel: ConvolutionKernel, outer: _Outer) -> OperandArray:
    """The kernel's weights, from the first tap of a window on."""
    geometry = kernel.geometry
    reversed_taps = sum(-s.kernel_step * (s.kernel - 1) for s in geometry.spatial if s.reversed)
    return kernel.source(geometry.kernel, outer.kernel, reversed_taps)


def _window_offset(geometry: Geometry) -> int:
    """Where the first window of a pointwise convolution begins: negative padding cuts the input."""
    return sum(-s.low * s.input_step for s in geometry.spatial) if geometry.pointwise else 0


def _kernel_depth(geometry: Geometry, features_first: bool) -> list[Segment]:
    taps = [Segment(s.kernel, s.kernel_step) for s in geometry.spatial]
    if len(geometry.kernel_inputs.segments) > 1 and not features_first:
        return [*taps, *geometry.kernel_inputs.segments]
    features = Segment(geometry.inputs, geometry.kernel_input_step)
    return [features, *taps] if features_first else [*taps, features]


def _pixels_as_columns(kernel: ConvolutionKernel, minor: Sequence[int]) -> Product:
    geometry, op = kernel.geometry, kernel.geometry.op
    outer = _outer(geometry, minor)
    by_dim = dict(zip(op.output_spatial_dimensions, geometry.spatial, strict=True))
    walk: list[tuple[int, Spatial | int]] = [
        (by_dim[d].outputs, by_dim[d]) if d in by_dim else (op.type.dims[d], geometry.batch_step)
        for d in minor
    ]
    last = by_dim.get(minor[-1])
    step = geometry.result_steps[minor[-1]] if last is None else last.output_step
    columns = math.prod(size for size, _ in walk)
    depth = _kernel_depth(geometry, True)
    left = _left_side(geometry, _weights(kernel, outer), depth)
    right: RightSide
    if geometry.pointwise:
        segments = merge([
            Segment(size, what.stride * what.input_step if isinstance(what, Spatial) else what)
            for size, what in walk
        ])  # fmt: skip
        image = kernel.source(geometry.input, outer.image, _window_offset(geometry))
        steps = [Segment(geometry.inputs, geometry.input_step)]
        steps += [Segment(1, 0) for _ in geometry.spatial]
        right = right_side(image, steps, segments, columns, kernel.target)
    else:
        image = kernel.source(geometry.input, outer.image)
        features = Segment(geometry.inputs, geometry.input_step)
        right = WindowRight(image, features, outer.positions, walk, columns)
    epilogue = Epilogue(
        op, kernel.body, len(kernel.arguments), kernel.accumulator, outer.places,
        (geometry.outputs, geometry.result_feature_step),
        (columns, step), geometry.result_offset,
    )  # fmt: skip
    return Product(
        kernel.target, kernel.accumulator, outer.sizes, geometry.outputs, columns,
        tuple(loop.size for loop in depth), left, right, epilogue,
    )  # fmt: skip


def _left_side(geometry: Geometry, kernel: OperandArray, depth: Sequence[Segment]) -> LeftSide:
    """Weights as rows."""
    segments = geometry.kernel_outputs.segments
    if kernel.plain and len(segments) <= 1:
        step = segments[0].stride if segments else 0
        return LeftSide(kernel, step, [loop.stride for loop in depth])
    return PackedLeftSide(kernel, segments, depth)


def _features_as_columns(kernel: ConvolutionKernel, one_line: bool = False) -> Product:
    """Rows are many results, or those of one line of them."""
    geometry, op, accumulator = kernel.geometry, kernel.geometry.op, kernel.accumulator
    run, lines = ([geometry.spatial[-1]], None) if one_line else _row_run(geometry)
    dims = [d for d, s in zip(op.output_spatial_dimensions, geometry.spatial, strict=True)
            if s in run]  # fmt: skip
    outer = _outer(geometry, [op.output_feature_dimension, *dims])
    walk = [(spatial.outputs, spatial) for spatial in run]
    count = math.prod(size for size, _ in walk)
    features = Segment(geometry.inputs, geometry.input_step)
    lanes = kernel.lanes
    direct = _single_pixels(geometry, walk)
    weights = _weights(kernel, outer)
    image = kernel.source(geometry.input, outer.windows)
    # Vectors of elements that are widened would be masked element by element.
    engine = engine_for(kernel.target, image.element, weights.element, accumulator)
    whole = image.plain or engine is not None
    unit = None
    if whole and direct is None:
        unit = runs.run_unit(features, outer.positions, lanes)
    depth = _kernel_depth(geometry, unit == 1)
    left: LeftSide
    if direct is not None:
        left = _pixel_rows(kernel, outer, direct)
        if not image.plain:
            left = PackedLeftSide(left.source, direct, _pixel_depth(geometry), lanes)
    elif unit is None:
        left = WindowLeft(image, features, outer.positions, walk, lanes)
    else:
        left = runs.WindowRuns(image, features, outer.positions, walk, lanes, unit)
    segments = geometry.kernel_outputs.segments
    right = right_side(weights, depth, segments, geometry.outputs, kernel.target)
    epilogue = Epilogue(
        op, kernel.body, len(kernel.arguments), accumulator, outer.places,
        (count, run[-1].output_step if run else 0),
        (geometry.outputs, geometry.result_feature_step), geometry.result_offset, lines,
    )  # fmt: skip
    return Product(
        kernel.target, accumulator, outer.sizes, count, geometry.outputs,
        tuple(loop.size for loop in depth), left, right, epilogue,
    )  # fmt: skip


def _inner_products(kernel: ConvolutionKernel) -> InnerProducts | None:
    """A convolution of few output features, its windows as columns; None where there are more, or
    operands do not lie along the input features."""
    geometry, op, lanes = kernel.geometry, kernel.geometry.op, kernel.lanes
    if not inner.fits_windows(geometry.outputs, geometry.inputs, lanes):
        return None
    if len(geometry.kernel_inputs.segments) > 1 or len(geometry.kernel_outputs.segments) > 1:
        return None
    if (geometry.input_step, geometry.kernel_input_step) != (1, 1):
        return None
    run, lines = _row_run(geometry)
    run = run if lines is None else run[1:]
    walk = [(spatial.outputs, spatial) for spatial in run]
    count = math.prod(size for size, _ in walk)
    if not run or isinstance(count, SymbolicDim):
        return None
    dims = [d for d, s in zip(op.output_spatial_dimensions, geometry.spatial, strict=True)
            if s in run]  # fmt: skip
    outer = _outer(geometry, [op.output_feature_dimension, *dims])
    weights, image = _weights(kernel, outer), kernel.source(geometry.input, outer.windows)
    if not (weights.plain and image.plain and llvm.is_float(kernel.accumulator)):
        return None
    right: LeftSide
    direct = _single_pixels(geometry, walk)
    if direct is not None:
        right = _pixel_rows(kernel, outer, direct)
    else:
        inputs = image, Segment(geometry.inputs, 1), outer.positions, walk
        cut = chunks(*inputs, lanes)
        right = WindowLeft(*inputs, lanes) if cut is None else WindowLines(*inputs, cut)
    depth = _kernel_depth(geometry, False)
    step = geometry.kernel_outputs.segments[0].stride if geometry.kernel_outputs.segments else 0
    epilogue = Epilogue(
        op, kernel.body, len(kernel.arguments), kernel.accumulator, outer.places,
        (geometry.outputs, geometry.result_feature_step), (count, run[-1].output_step),
        geometry.result_offset,
    )  # fmt: skip
    loops = [(loop.size, loop.stride, right_step)
             for loop, right_step in zip(depth, right.depth, strict=True)]  # fmt: skip
    return InnerProducts(
        lanes, outer.sizes, geometry.outputs, count, tuple(merged_depth(loops)), (weights, step),
        right, epilogue, kernel.target.vector_registers,
    )  # fmt: skip


def _single_pixels(
    geometry: Geometry, walk: Sequence[tuple[int, Spatial]]
) -> tuple[Segment, ...] | None:
    """The rows of a product of single pixels, as they lie in the input; None where windows are
    more, or lie unevenly."""
    segments = merge([Segment(size, s.stride * s.input_step) for size, s in walk])
    return segments if geometry.pointwise and len(segments) <= 1 else None


def _pixel_rows(kernel: ConvolutionKernel, outer: _Outer, segments: Sequence[Segment]) -> LeftSide:
    """Rows that are single pixels, where they lie."""
    geometry = kernel.geometry
    image = kernel.source(geometry.input, outer.image, _window_offset(geometry))
    step = segments[0].stride if segments else 0
    return LeftSide(image, step, [*(0 for _ in geometry.spatial), geometry.input_step])


def _pixel_depth(geometry: Geometry) -> list[Segment]:
    """The summed steps of a single pixel, as they lie in the input."""
    features = Segment(geometry.inputs, geometry.input_step)
    return [*(Segment(1, 0) for _ in geometry.spatial), features]


def _row_run(geometry: Geometry) -> tuple[list[Spatial], tuple[int, int] | None]:
    """The spatial dims, outermost first, that are the rows of a pixel block: those whose results
    lie evenly, and while these are few, one more, of (rows, stride) in the result."""
    run: list[Spatial] = []
    for spatial in reversed(geometry.spatial):
        count = math.prod(inner.outputs for inner in run)
        if len(run) == 2 and not geometry.pointwise and surely_below(_MANY_ROWS - 1, count):
            break  # windows of the lines of one plane share these
        if run and spatial.output_step != run[0].output_step * run[0].outputs:
            if not surely_below(count, _FEW_ROWS):
                break
            return [spatial, *run], (count, spatial.output_step)
        run.insert(0, spatial)
    return run, None
