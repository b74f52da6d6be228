"""Reading an image between its elements: affine_grid, grid_sample in two and three dimensions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ....hlo.graph import Value
from ....hlo.symbols import Dim
from ....hlo.types import F64, I64
from ..context import Blocked, Context, sized
from .creation import line_of
from .scatters import scattered

BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


class Grid(NamedTuple):
    """How an image is read: [n, c, *space] at places [n, *points] of each dimension of space, the
    first one first. `gains`: what a place moves by where the grid's coordinate does."""

    mode: int
    padding: int
    corners: bool
    space: tuple[Dim, ...]
    places: list[Value]
    gains: list[Value]


class InterpolationTap(NamedTuple):
    """One of the elements that a result is a sum of: its place in each dimension, and the factor of
    each, None for ones; `slopes`: by what a factor changes with the place."""

    places: tuple[Value, ...]
    factors: tuple[Value | None, ...]
    slopes: tuple[Value | None, ...]


def grid_sampler(
    c: Context,
    input: Value,
    grid: Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Value:
    """input [n, c, y, x] read at grid [n, y, x, 2] of (x, y) in [-1, 1]; so for [n, c, z, y, x]."""
    read = _grid(c, input, grid, interpolation_mode, padding_mode, align_corners)
    total: Value | None = None
    for part in _parts(c, read):
        value = c.wide(_gathered(c, input, _inside(c, read, part)[1]))
        value = _weighted(c, value, _inside(c, read, part)[0], part.factors)
        total = value if total is None else c("add", total, value)
    assert total is not None
    return c.narrow(total)


def grid_sampler_backward(
    c: Context,
    grad_output: Value,
    input: Value,
    grid: Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Value | None, Value | None]:
    """Gradients of input and grid: what each element of the result took is given back to it."""
    read = _grid(c, input, grid, interpolation_mode, padding_mode, align_corners)
    grad = c.wide(grad_output)
    wanted = [asked and used for asked, used in zip(output_mask, c.used, strict=False)]
    image = c.full(0, input.dims, grad.element)
    moves: list[Value | None] = [None] * len(read.space)
    for part in _parts(c, read):
        inside, places = _inside(c, read, part)
        if wanted[0]:
            image = _given_back(c, image, places, _weighted(c, grad, inside, part.factors))
        if not wanted[1] or read.mode == NEAREST:
            continue
        value = c("multiply", grad, c.wide(_gathered(c, input, places)))
        value = _weighted(c, value, inside, ())
        value = c.reduce("add", value, [1])
        for number, slope in enumerate(part.slopes):
            factors = [*part.factors[:number], slope, *part.factors[number + 1 :]]
            moved = value
            for factor in factors:
                moved = moved if factor is None else c("multiply", moved, factor)
            before = moves[number]
            moves[number] = moved if before is None else c("add", before, moved)
    of_image = c.narrow(image) if wanted[0] else None
    if not wanted[1]:
        return of_image, None
    columns = []
    for move, gain in zip(reversed(moves), reversed(read.gains), strict=True):  # x first
        zero = c.full(0, gain.dims, gain.element)
        column = zero if move is None else c("multiply", move, gain)
        columns.append(c.builder.reshape(column, (*column.dims, 1)))
    return of_image, c.narrow(c.concatenate(columns, grid.rank - 1), 1)


def _grid(c: Context, input: Value, grid: Value, mode: int, padding: int, corners: bool) -> Grid:
    if mode == BICUBIC and input.rank != 4:
        raise Blocked("samples in three dimensions by cubic functions", "use mode='bilinear'")
    points, last = c.wide(grid), grid.rank - 1
    places, gains = [], []
    for axis, size in enumerate(input.dims[2:]):
        number = len(input.dims) - 3 - axis  # a point is x, y, ...: the last dimension first
        part = c.slice(points, last, number, number + 1)
        place = c.add(c.builder.reshape(part, grid.dims[:last]), 1)
        size_of = c.full(size, place.dims, place.element)
        if corners:
            gain = c.divide(c.subtract(size_of, 1), 2)
            place = c("multiply", place, gain)
        else:
            gain = c.divide(size_of, 2)
            place = c.divide(c.subtract(c("multiply", place, size_of), 1), 2)
        if mode != BICUBIC:
            place, turned = _bounded(c, place, size, padding, corners)
            gain = c("multiply", gain, turned)
        places.append(place)
        gains.append(gain)
    return Grid(mode, padding, corners, input.dims[2:], places, gains)


def _bounded(c: Context, place: Value, size: Dim, mode: int, corners: bool) -> tuple[Value, Value]:
    """Places outside moved to the border, or reflected at it (zeros are for the reader), and what
    they move by where the place does: 1, -1 or 0."""
    gain = c.full(1, place.dims, place.element)
    last = c.subtract(c.full(size, place.dims, place.element), 1)
    if mode == REFLECTION:
        low = 0.0 if corners else -0.5
        span = c.subtract(last, 2 * low)
        away = c.subtract(place, low)
        gain = c.select(c.compare("LT", away, 0.0), -1.0, gain)
        away = c("abs", away)
        safe = c.binary("maximum", span, 0.5)  # of an image of one element, whose only place is 0
        turns = c("floor", c("divide", away, safe))
        rest = c("subtract", away, c("multiply", turns, safe))
        odd = c.compare("NE", c("remainder", turns, c.full(2, turns.dims, turns.element)), 0.0)
        place = c.add(c("select", odd, c("subtract", span, rest), rest), low)
        gain = c("select", odd, c("negate", gain), gain)
        alone = c.compare("LE", span, 0.0)
        place, gain = c.select(alone, 0.0, place), c.select(alone, 0.0, gain)
    if mode in (BORDER, REFLECTION):
        zero = c.full(0, place.dims, place.element)
        stays = c("and", c.builder.compare("GT", place, zero), c.builder.compare("LT", place, last))
        gain = c.select(stays, gain, 0.0)
        # Of nan PyTorch reads the first element: that is what its maximum gives.
        place = c("select", c.is_nan(place), zero, place)
        place = c("clamp", zero, place, last)
    return place, gain


def _parts(c: Context, read: Grid) -> list[InterpolationTap]:
    """The elements that a result is made of."""
    lines = [_line(c, place, read.mode) for place in read.places]
    return [
        InterpolationTap(*(tuple(column) for column in zip(*chosen, strict=True)))
        for chosen in itertools.product(*lines)
    ]


def _line(c: Context, place: Value, mode: int) -> list[tuple[Value, Value | None, Value | None]]:
    """The same along one dimension: (place, factor, slope)."""
    if mode == NEAREST:
        return [(c("round_nearest_even", place), None, None)]
    low = c("floor", place)
    share = c("subtract", place, low)
    if mode == BILINEAR:
        one = c.full(1, share.dims, share.element)
        return [
            (low, c("subtract", one, share), c("negate", one)),
            (c.add(low, 1), share, one),
        ]
    return [
        (c.add(low, offset), *_cubic(c, c.add(share, -offset) if offset < 1 else
                                     c.subtract(offset, share), offset))
        for offset in (-1, 0, 1, 2)
    ]  # fmt: skip


def _cubic(c: Context, away: Value, offset: int) -> tuple[Value, Value]:
    """The cubic factor of an element that far away, and its slope along the place."""
    a = -0.75
    if offset in (0, 1):
        near = c.subtract(c.multiply(away, a + 2), a + 3)
        factor = c.add(c("multiply", c("multiply", near, away), away), 1)
        slope = c("multiply", c.subtract(c.multiply(away, 3 * (a + 2)), 2 * (a + 3)), away)
    else:
        factor = c.add(c.multiply(away, a), -5 * a)
        factor = c.add(c("multiply", factor, away), 8 * a)
        factor = c.add(c("multiply", factor, away), -4 * a)
        slope = c.add(c("multiply", c.subtract(c.multiply(away, 3 * a), 10 * a), away), 8 * a)
    return factor, slope if offset < 1 else c("negate", slope)


def _inside(c: Context, read: Grid, part: InterpolationTap) -> tuple[Value | None, list[Value]]:
    """Whether a part's place lies in the image, None where all do; and the place, as i64."""
    inside: Value | None = None
    places = []
    for place, size in zip(part.places, read.space, strict=True):
        if read.mode == BICUBIC:
            place = _bounded(c, place, size, read.padding, read.corners)[0]
        zero = c.full(0, place.dims, place.element)
        last = c.subtract(c.full(size, place.dims, place.element), 1)
        for holds in (
            c.builder.compare("GE", place, zero), c.builder.compare("LE", place, last)
        ):  # fmt: skip
            inside = holds if inside is None else c("and", inside, holds)
        safe = c("select", c.is_nan(place), zero, place)
        places.append(c.convert(c("clamp", zero, safe, last), I64))
    return inside, places


def _vectors(c: Context, places: Sequence[Value]) -> Value:
    """[n, *points, 1 + dims]: where each point reads, the image first."""
    batch = c.iota(places[0].dims, 0)
    parts = [c.builder.reshape(value, (*value.dims, 1)) for value in (batch, *places)]
    return c.concatenate(parts, batch.rank)


def _gathered(c: Context, input: Value, places: Sequence[Value]) -> Value:
    """input[n, :, *places]: [n, c, *points]."""
    at = (0, *range(2, input.rank))
    return c(
        "gather", input, _vectors(c, places), offset_dims=(1,), collapsed_slice_dims=at,
        operand_batching_dims=(), start_indices_batching_dims=(), start_index_map=at,
        index_vector_dim=input.rank - 1,
        slice_sizes=tuple(input.dims[1] if d == 1 else 1 for d in range(input.rank)),
        indices_are_sorted=False,
    )  # fmt: skip


def _given_back(c: Context, image: Value, places: Sequence[Value], values: Value) -> Value:
    """image with the values [n, c, *points] added at their places."""
    at = (0, *range(2, image.rank))
    return scattered(
        c, image, _vectors(c, places), values, "add", update_window_dims=(1,),
        inserted_window_dims=at, input_batching_dims=(), scatter_indices_batching_dims=(),
        scatter_dims_to_operand_dims=at, index_vector_dim=image.rank - 1,
    )  # fmt: skip


def _weighted(
    c: Context, values: Value, inside: Value | None, factors: Sequence[Value | None]
) -> Value:
    """values [n, c, *points] times factors [n, *points], zero where they are not inside."""
    axes = [0, *range(2, values.rank)]
    if inside is not None:
        values = c.select(c.builder.broadcast(inside, values.dims, axes), values, 0)
    weight: Value | None = None
    for factor in factors:
        if factor is not None:
            weight = factor if weight is None else c("multiply", weight, factor)
    if weight is None:
        return values
    return c("multiply", values, c.builder.broadcast(weight, values.dims, axes))


def affine_grid(c: Context, theta: Value, size: Sequence[Dim], align_corners: bool) -> Value:
    """The places of a grid of `size` [n, c, (z,) y, x] between -1 and 1, moved by theta
    [n, rows, rows + 1]: [n, (z,) y, x, rows]."""
    space = tuple(map(sized, size[2:]))
    last = len(space)
    parts = []
    for axis in reversed(range(last)):  # x first
        extent = space[axis]
        place = line_of(c, -1, 1, extent)
        if not align_corners:
            place = c.divide(c.multiply(place, c.size(extent - 1, F64)), extent)
        if extent == 1:
            place = c.full(0, (1,), F64)
        place = c.convert(place, c.wide(theta).element)
        parts.append(c.builder.broadcast(place, (*space, 1), [axis]))
    parts.append(c.full(1, (*space, 1), parts[0].element))
    grid = c.dot(c.wide(theta), c.concatenate(parts, last), ((2,), (last,)))
    return c.narrow(c.builder.transpose(grid, [0, *range(2, last + 2), 1]))


TABLE: dict[str, Callable[..., Any]] = {
    "aten.affine_grid_generator.default": affine_grid,
    "aten.grid_sampler.default": grid_sampler,
    **{f"aten.grid_sampler_{n}d.default": grid_sampler for n in (2, 3)},
    **{f"aten.grid_sampler_{n}d_backward.default": grid_sampler_backward for n in (2, 3)},
}
