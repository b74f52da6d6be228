"""The names of the language: what a kernel's body may call (specs/kernel_language.md).

Each function works on tiles while a kernel is traced; shapes, axes and types are constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...hlo.types import (
    BF16,
    F16,
    F32,
    F64,
    I1,
    I8,
    I16,
    I32,
    I64,
    UI8,
    UI16,
    UI32,
    UI64,
    ElementType,
    TensorType,
)
from . import arithmetic, windows
from .values import (
    INDEX,
    Affine,
    Array,
    LanguageError,
    Tile,
    TracedMemory,
    current,
    dtype_of,
    is_number,
    shape_of,
)

Traced = Any
"""A tile. Type checkers cannot follow a traced expression, so kernels' bodies are not checked."""

bool_, int8, int16, int32, int64 = I1, I8, I16, I32, I64
uint8, uint16, uint32, uint64 = UI8, UI16, UI32, UI64
bfloat16, float16, float32, float64 = BF16, F16, F32, F64


class static_range:  # noqa: N801 - it is written like `range`
    """Like `range`, for a loop that is unrolled: its variable is a constant in every round."""

    def __init__(self, *bounds: int) -> None:
        self.rounds = range(*bounds)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rounds)


def cdiv(size: int, part: int) -> int:
    """How many parts cover `size`: size / part rounded up. Also for grids, outside of kernels."""
    return -(-size // part)


# The grid.


def tile_id(axis: int) -> Traced:
    """The number of this tile along an axis of the grid, an i32 scalar."""
    trace = current()
    if not 0 <= axis < len(trace.grid):
        raise LanguageError(f"the grid has {len(trace.grid)} axes, there is no axis {axis}")
    if trace.grid[axis] == 1:
        return arithmetic.index_of(0)
    value = trace.op("tile_id", axis=axis)
    trace.natural.add(value)
    return Tile(value)


def tile_count(axis: int) -> int:
    """How many tiles the grid has along an axis, a constant."""
    grid = current().grid
    if not 0 <= axis < len(grid):
        raise LanguageError(f"the grid has {len(grid)} axes, there is no axis {axis}")
    return grid[axis]


# Memory.


def _memory(value: Any) -> TracedMemory:
    if not isinstance(value, TracedMemory):
        raise LanguageError(f"an array of the kernel is needed here, not {value!r}")
    return value


def load(memory: Any, offsets: Any, sizes: Any, fill: float = 0.0, mask: Any = None) -> Traced:
    """The window at the offsets; elements outside, or where `mask` fails, are `fill`."""
    memory = _memory(memory)
    return windows.load(memory, windows.explicit(memory, offsets, sizes), fill, mask)


def store(memory: Any, offsets: Any, value: Any, mask: Any = None, combine: str = "") -> None:
    """Write a tile at the offsets, combined with what stands there: "add", "maximum", "minimum"."""
    memory = _memory(memory)
    tile = arithmetic.tile_of(value, memory.dtype, (1,) * memory.ndim)
    window = windows.explicit(memory, offsets, tile.shape)
    windows.store(memory, window, tile, mask, combine)


def gather(
    memory: Any, rows: Any, offsets: Any, sizes: Any, axis: int = 0, fill: float = 0.0
) -> Traced:
    """The window whose place along `axis` is `rows` plus the offset; outside it is `fill`."""
    memory = _memory(memory)
    return windows.load(memory, windows.explicit(memory, offsets, sizes, rows, axis), fill)


def scatter(
    memory: Any, rows: Any, offsets: Any, value: Any, axis: int = 0, combine: str = ""
) -> None:
    """Write a tile at the window whose place along `axis` is `rows` plus the offset."""
    memory = _memory(memory)
    tile = arithmetic.tile_of(value, memory.dtype)
    window = windows.explicit(memory, offsets, tile.shape, rows, axis)
    windows.store(memory, window, tile, None, combine)


# New tiles.


def full(shape: Any, value: Any, dtype: Any = None) -> Traced:
    """A tile with every element the same; `dtype` is the value's if it is left out."""
    dims = shape_of(shape)
    if is_number(value):
        return arithmetic.tile_of(value, dtype_of(dtype) if dtype is not None else None, dims)
    tile = arithmetic.tile_of(value)
    tile = arithmetic.cast(tile, dtype_of(dtype)) if dtype is not None else tile
    return arithmetic.spread(tile, dims)


def zeros(shape: Any, dtype: Any = float32) -> Traced:
    return full(shape, 0, dtype)


def ones(shape: Any, dtype: Any = float32) -> Traced:
    return full(shape, 1, dtype)


def arange(*bounds: int, dtype: Any = int32) -> Traced:
    """The integers of range(*bounds) with step 1, as a tile of one dim."""
    if not 1 <= len(bounds) <= 2 or any(not isinstance(n, int) for n in bounds):
        raise LanguageError("arange takes constant bounds: arange(stop) or arange(start, stop)")
    rounds = range(*bounds)
    kind = TensorType((len(rounds),), dtype_of(dtype))
    count = Tile(current().builder("iota", type=kind, iota_dimension=0))
    return arithmetic.apply("add", count, bounds[0]) if len(bounds) == 2 and bounds[0] else count


# Elementwise.


def _on_floats(name: str, document: str) -> Callable[[Any], Traced]:
    def function(x: Any) -> Traced:
        tile = arithmetic.tile_of(x)
        if not tile.dtype.is_float:
            raise LanguageError(f"this needs floating point, not {tile}; cast it with .to(...)")
        return Tile(current().op(name, tile.value))

    function.__doc__ = document
    return function


exp = _on_floats("exponential", "e to the power of x.")
expm1 = _on_floats("exponential_minus_one", "exp(x) - 1, exact near 0.")
log = _on_floats("log", "Natural logarithm.")
log1p = _on_floats("log_plus_one", "log(1 + x), exact near 0.")
sqrt = _on_floats("sqrt", "Square root.")
rsqrt = _on_floats("rsqrt", "1 / sqrt(x).")
tanh = _on_floats("tanh", "Hyperbolic tangent.")
sigmoid = _on_floats("logistic", "1 / (1 + exp(-x)).")
erf = _on_floats("chlo.erf", "Error function.")
sin = _on_floats("sine", "Sine.")
cos = _on_floats("cosine", "Cosine.")
floor = _on_floats("floor", "Largest whole number not above x.")
ceil = _on_floats("ceil", "Smallest whole number not below x.")
round_ = _on_floats("round_nearest_even", "Nearest whole number, halves to the even one.")
isfinite = _on_floats("is_finite", "Whether x is neither infinite nor NaN.")


def abs_(x: Any) -> Traced:
    """Absolute value."""
    return Tile(current().op("abs", arithmetic.tile_of(x).value))


def sign(x: Any) -> Traced:
    """-1, 0 or 1."""
    return Tile(current().op("sign", arithmetic.tile_of(x).value))


def isnan(x: Any) -> Traced:
    return arithmetic.compare("NE", x, x)


def maximum(x: Any, y: Any) -> Traced:
    """Elementwise, NaN if one is."""
    return arithmetic.apply("maximum", x, y)


def minimum(x: Any, y: Any) -> Traced:
    """Elementwise, NaN if one is."""
    return arithmetic.apply("minimum", x, y)


def clamp(x: Any, low: Any, high: Any) -> Traced:
    """min(max(x, low), high)."""
    return minimum(maximum(x, low), high)


def where(condition: Any, x: Any, y: Any) -> Traced:
    """x where the condition holds, else y; all broadcast."""
    held = arithmetic.tile_of(condition)
    if held.dtype is not I1:
        raise LanguageError(f"the condition is {held}; compare it with something")
    left, right = arithmetic.together(x, y)
    dims = arithmetic.common_dims(held.shape, left.shape)
    parts = [arithmetic.spread(tile, dims).value for tile in (held, left, right)]
    return Tile(current().op("select", *parts))


def cast(x: Any, dtype: Any) -> Traced:
    """x as another element type: rounded to the nearest, floats to integers towards zero."""
    return arithmetic.cast(arithmetic.tile_of(x), dtype_of(dtype))


def bitcast(x: Any, dtype: Any) -> Traced:
    """The same bits as another element type of the same width."""
    tile, element = arithmetic.tile_of(x), dtype_of(dtype)
    if tile.dtype.bits != element.bits:
        raise LanguageError(f"{tile.dtype} and {element} have not the same width")
    kind = tile.value.tensor.with_element(element)
    return Tile(current().builder("bitcast_convert", tile.value, type=kind))


# Reductions.


def _axes(tile: Tile, axis: Any) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(tile.ndim))
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    for number in axes:
        if not isinstance(number, int) or not -tile.ndim <= number < tile.ndim:
            raise LanguageError(f"there is no axis {number!r} in {tile}")
    return tuple(sorted({number % tile.ndim for number in axes}))


def _reduce(name: str, tile: Tile, axis: Any, keepdims: bool, start: Any) -> Traced:
    trace = current()
    axes = _axes(tile, axis)
    scalar = TensorType((), tile.dtype)
    value = trace.builder.reduce(name, tile.value, trace.constant(start, scalar), axes)
    if keepdims:
        dims = [1 if d in axes else n for d, n in enumerate(tile.shape)]
        value = trace.builder.reshape(value, dims)
    return Tile(value)


def sum_(x: Any, axis: Any = None, keepdims: bool = False) -> Traced:
    """Sum along axes (all of them for None); f16 and bf16 are summed in f32 and rounded once."""
    tile = arithmetic.tile_of(x)
    if tile.dtype is I1:
        raise LanguageError("truth values are counted with .to(tl.int32), or tested with tl.any")
    wide = F32 if tile.dtype.is_float and tile.dtype.bits < 32 else tile.dtype
    total = _reduce("add", arithmetic.cast(tile, wide), axis, keepdims, 0)
    return arithmetic.cast(total, tile.dtype)


def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Traced:
    """Sum along axes, divided by the number of elements."""
    tile = arithmetic.tile_of(x)
    count = 1
    for d in _axes(tile, axis):
        count *= tile.shape[d]
    return arithmetic.divide(sum_(tile, axis, keepdims), count)


def _lowest(element: ElementType, sign: int) -> Any:
    if element.is_float:
        return -sign * float("inf")
    if element is I1:
        return sign < 0
    low = -(1 << (element.bits - 1)) if element.kind == "int" else 0
    high = (1 << (element.bits - (element.kind == "int"))) - 1
    return low if sign > 0 else high


def max_(x: Any, axis: Any = None, keepdims: bool = False) -> Traced:
    """Largest element along axes; NaN if one is."""
    tile = arithmetic.tile_of(x)
    return _reduce("maximum", tile, axis, keepdims, _lowest(tile.dtype, 1))


def min_(x: Any, axis: Any = None, keepdims: bool = False) -> Traced:
    """Smallest element along axes; NaN if one is."""
    tile = arithmetic.tile_of(x)
    return _reduce("minimum", tile, axis, keepdims, _lowest(tile.dtype, -1))


def any_(x: Any, axis: Any = None, keepdims: bool = False) -> Traced:
    """Whether an element along axes is not zero."""
    return _reduce("or", arithmetic.cast(arithmetic.tile_of(x), I1), axis, keepdims, False)


def all_(x: Any, axis: Any = None, keepdims: bool = False) -> Traced:
    """Whether no element along axes is zero."""
    return _reduce("and", arithmetic.cast(arithmetic.tile_of(x), I1), axis, keepdims, True)


def _place(best: Callable[..., Traced], x: Any, axis: int, keepdims: bool) -> Traced:
    """The first place of the best element along an axis; that of the first NaN if there is one."""
    tile = arithmetic.tile_of(x)
    (number,) = _axes(tile, axis)
    found = arithmetic.compare("EQ", tile, best(tile, number, True))
    if tile.dtype.is_float:
        found = arithmetic.apply("or", found, isnan(tile))
    trace = current()
    places = Tile(trace.builder("iota", type=TensorType(tile.shape, I32), iota_dimension=number))
    size = tile.shape[number]
    return _reduce("minimum", where(found, places, size), number, keepdims, size)


def argmax(x: Any, axis: int, keepdims: bool = False) -> Traced:
    """The place of the largest element along an axis, the first of equals, as i32."""
    return _place(max_, x, axis, keepdims)


def argmin(x: Any, axis: int, keepdims: bool = False) -> Traced:
    """The place of the smallest element along an axis, the first of equals, as i32."""
    return _place(min_, x, axis, keepdims)


def cumsum(x: Any, axis: int = 0) -> Traced:
    """Sums of all elements up to each one along an axis, in log2(size) steps."""
    tile = arithmetic.tile_of(x)
    (number,) = _axes(tile, axis)
    trace = current()
    zero = trace.constant(0, TensorType((), tile.dtype))
    shift = 1
    while shift < tile.shape[number]:
        low, high = [0] * tile.ndim, [0] * tile.ndim
        low[number], high[number] = shift, -shift
        shifted = trace.op(
            "pad", tile.value, zero, edge_padding_low=tuple(low), edge_padding_high=tuple(high),
            interior_padding=(0,) * tile.ndim,
        )  # fmt: skip
        tile = arithmetic.apply("add", tile, Tile(shifted))
        shift *= 2
    return tile


# Products.


def dot(a: Any, b: Any, acc: Any = None, dtype: Any = None) -> Traced:
    """acc + a @ b. Dims before the last two are a batch, equal in both.

    The product is summed in f32 for f16 and bf16, in i32 for small integers, else in the operands'
    own type, or in `dtype`; it is the result's type, which `acc` must have.
    """
    x, y = arithmetic.tile_of(a), arithmetic.tile_of(b)
    if x.ndim < 2 or x.ndim != y.ndim:
        raise LanguageError(f"dot needs two matrices, got {x} and {y}")
    if x.dtype is not y.dtype:
        raise LanguageError(f"dot needs one element type, got {x} and {y}; cast one of them")
    if x.shape[:-2] != y.shape[:-2] or x.shape[-1] != y.shape[-2]:
        raise LanguageError(f"dot cannot multiply {x} by {y}")
    result = dtype_of(dtype) if dtype is not None else _sum_type(x.dtype)
    batch = tuple(range(x.ndim - 2))
    left, left_depth = _untransposed(x, x.ndim - 1)
    right, right_depth = _untransposed(y, y.ndim - 2)
    dims = (*x.shape[:-1], y.shape[-1])
    facts: dict[str, Any] = {"lhs_batching_dimensions": batch, "rhs_batching_dimensions": batch}
    product = Tile(
        current().builder(
            "dot_general", left, right, type=TensorType(dims, result),
            lhs_contracting_dimensions=(left_depth,), rhs_contracting_dimensions=(right_depth,),
            **(facts if batch else {}),
        )
    )  # fmt: skip
    if acc is None:
        return product
    total = arithmetic.tile_of(acc, result, dims)
    if total.value.type is not product.value.type:
        raise LanguageError(f"the product is {product}, acc is {total}")
    return arithmetic.apply("add", total, product)


def _sum_type(element: ElementType) -> ElementType:
    if element.is_float:
        return F32 if element.bits < 32 else element
    return I32 if element.bits < 32 else element


def _untransposed(tile: Tile, depth: int) -> tuple[Any, int]:
    """The operand of a transpose of the last two dims, with where its dim `depth` is then."""
    op = tile.value.op
    last = tile.ndim - 1
    swap = (*range(last - 1), last, last - 1)
    if op is not None and op.name == "transpose" and op.permutation == swap:
        return op.operands[0], last - 1 if depth == last else last
    return tile.value, depth


# Shapes.


def reshape(x: Any, *shape: Any) -> Traced:
    """The same elements, row by row, in other dims; one of them may be -1."""
    tile = arithmetic.tile_of(x)
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    known = 1
    for size in sizes:
        known *= size if size != -1 else 1
    sizes = tuple(tile.value.tensor.size // known if n == -1 else n for n in sizes)
    dims = shape_of(sizes)
    if TensorType(dims, tile.dtype).size != tile.value.tensor.size:
        raise LanguageError(f"{tile} does not reshape to {list(dims)}")
    return Tile(current().builder.reshape(tile.value, dims))


def transpose(x: Any, *axes: int) -> Traced:
    """Dims in another order, reversed if none is given."""
    tile = arithmetic.tile_of(x)
    order = tuple(axes[0]) if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
    order = order or tuple(reversed(range(tile.ndim)))
    order = tuple(axis % tile.ndim if isinstance(axis, int) else axis for axis in order)
    if sorted(order) != list(range(tile.ndim)):
        raise LanguageError(f"{order} is no order of the dims of {tile}")
    return Tile(current().builder.transpose(tile.value, order))


def broadcast_to(x: Any, shape: Any) -> Traced:
    return arithmetic.spread(arithmetic.tile_of(x), shape_of(shape))


def expand_dims(x: Any, axis: int) -> Traced:
    """A dim of size 1 put in at `axis`."""
    tile = arithmetic.tile_of(x)
    place = axis % (tile.ndim + 1)
    return reshape(tile, (*tile.shape[:place], 1, *tile.shape[place:]))


def concatenate(tiles: Any, axis: int = 0) -> Traced:
    """Tiles one after the other along an axis."""
    parts = [arithmetic.tile_of(tile) for tile in tiles]
    element = arithmetic.promoted(*parts)
    values = [arithmetic.cast(part, element).value for part in parts]
    (number,) = _axes(parts[0], axis)
    return Tile(current().op("concatenate", *values, dimension=number))


FUNCTIONS: tuple[Any, ...] = (
    tile_id, tile_count, load, store, gather, scatter, full, zeros, ones, arange, exp, expm1, log,
    log1p, sqrt, rsqrt, tanh, sigmoid, erf, sin, cos, floor, ceil, round_, isfinite, abs_, sign,
    isnan, maximum, minimum, clamp, where, cast, bitcast, sum_, mean, max_, min_, any_, all_,
    argmax, argmin, cumsum, dot, reshape, transpose, broadcast_to, expand_dims, concatenate, cdiv,
)  # fmt: skip
"""Everything that the tracer calls as it is."""

METHODS: dict[str, Callable[..., Any]] = {
    "to": cast, "reshape": reshape, "transpose": transpose, "sum": sum_, "max": max_, "min": min_,
    "mean": mean, "any": any_, "all": all_, "argmax": argmax, "argmin": argmin, "cumsum": cumsum,
}  # fmt: skip
"""Methods of tiles."""


def attribute_of(value: Tile | TracedMemory, name: str) -> Any:
    """`x.shape`, `x.dtype`, `x.ndim`, `x.size`, `x.T`, or a method of a tile."""
    if name in ("shape", "dtype", "ndim"):
        return getattr(value, name)
    if name == "size":
        return value.value.tensor.size
    if isinstance(value, Tile):
        if name == "T":
            return transpose(value)
        if name in METHODS:
            method = METHODS[name]
            return lambda *inputs, **keywords: method(value, *inputs, **keywords)
        known = ("shape", "dtype", "ndim", "size", "T", *METHODS)
        raise LanguageError(f"a tile has no attribute '{name}'; it has {', '.join(known)}")
    raise LanguageError(
        f"{value} has no attribute '{name}'; read a window of it first, as in {value.name}[...]"
    )


__all__ = ["INDEX", "Affine", "Array", "FUNCTIONS", "METHODS", "attribute_of", "static_range"]
