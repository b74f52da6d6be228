"""Operators that move elements without computing: view, permute, expand, split, cat, pad, ..."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.symbols import Dim, ceildiv
from ....hlo.types import I1, ElementType
from ..context import Blocked, Context, Number, axis_of, bounds, place_of, sized, static


def same(c: Context, self: Value, *args: Any, **kwargs: Any) -> Value:
    """The tensor itself: memory and gradients are no part of a program."""
    return self


def converted(c: Context, self: Value, *args: Any, **kwargs: Any) -> Value:
    """The tensor in the declared element type."""
    if self.element.is_complex and not c.element.is_complex:
        self = c("real", self)
    return c.convert(self, c.element)


def reshaped(c: Context, self: Value, *args: Any, **kwargs: Any) -> Value:
    """The same elements, row-major, with the declared dims."""
    return c.builder.reshape(self, c.dims)


def viewed(c: Context, self: Value, size: Sequence[Any]) -> Value:
    """The same elements, row-major, with these dims, of which -1 is what is left for it. The
    declared dims may be formulas that only hold where the trace was made."""
    sizes: list[Dim] = [sized(given) for given in size]
    if all(isinstance(given, int) for given in (*self.dims, *sizes)):
        return reshaped(c, self)
    if -1 in sizes:
        free = sizes.index(-1)
        sizes[free] = math.prod(self.dims) // math.prod(sizes[:free] + sizes[free + 1 :])
    return c.builder.reshape(self, sizes)


def permute(c: Context, self: Value, dims: Sequence[int]) -> Value:
    return c.builder.transpose(self, [axis_of(axis, self.rank) for axis in dims])


def transpose(c: Context, self: Value, dim0: int, dim1: int) -> Value:
    order = list(range(self.rank))
    if order:
        first, second = axis_of(dim0, self.rank), axis_of(dim1, self.rank)
        order[first], order[second] = second, first
    return c.builder.transpose(self, order)


def reverse_dims(c: Context, self: Value) -> Value:
    """t, numpy_T: all dimensions in reverse."""
    return c.builder.transpose(self, list(reversed(range(self.rank))))


def matrix_transpose(c: Context, self: Value) -> Value:
    return transpose(c, self, -2, -1)


def movedim(c: Context, self: Value, source: Any, destination: Any) -> Value:
    """Dimensions `source` end up at `destination`; the others keep their order."""
    sources = [source] if isinstance(source, int) else list(source)
    targets = [destination] if isinstance(destination, int) else list(destination)
    sources = [axis_of(axis, self.rank) for axis in sources]
    targets = [axis_of(axis, self.rank) for axis in targets]
    rest = iter(axis for axis in range(self.rank) if axis not in sources)
    placed = dict(zip(targets, sources, strict=True))
    return c.builder.transpose(
        self, [placed[i] if i in placed else next(rest) for i in range(self.rank)]
    )


def expand(c: Context, self: Value, size: Sequence[Any], implicit: bool = False) -> Value:
    """self repeated along dims of size 1, and along new ones in front; -1 keeps a size."""
    first = len(size) - self.rank
    sizes = [
        self.dims[axis - first] if type(given) is int and given == -1 else sized(given)
        for axis, given in enumerate(size)
    ]
    return c.spread(self, sizes)


def broadcast_all(c: Context, tensors: Sequence[Value]) -> Any:
    """Every tensor spread over the common dims."""
    return tuple(c.spread(value, c.type_of(at).dims) for at, value in enumerate(tensors))


def expand_as(c: Context, self: Value, other: Value) -> Value:
    return c.spread(self, c.dims)


def slice_along(
    c: Context,
    self: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    """self[start:end:step] along one dimension."""
    axis = axis_of(dim, self.rank)
    end = None if end == 2**63 - 1 else end
    if start in (None, 0) and end is None and step == 1:
        return self
    first, last = bounds(c, self.dims[axis], start, end)
    return c.slice(self, axis, first, last, step)


def narrow(c: Context, self: Value, dim: int, start: int, length: int) -> Value:
    axis = axis_of(dim, self.rank)
    first = place_of(c, start, self.dims[axis])
    return c.slice(self, axis, first, first + sized(length))


def select(c: Context, self: Value, dim: int, index: int) -> Value:
    """self[index] along one dimension, which vanishes."""
    axis = axis_of(dim, self.rank)
    if isinstance(index, Value):
        raise Blocked("selects by a position that is computed", "use torch.index_select")
    at = place_of(c, index, self.dims[axis])
    return c.builder.reshape(c.slice(self, axis, at, at + 1), c.dims)


def _pieces(c: Context, value: Value, axis: int, sizes: Sequence[Dim]) -> tuple[Value, ...]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(
        c.slice(value, axis, start, start + size) for start, size in zip(starts, sizes, strict=True)
    )


def split_sizes(c: Context, self: Value, split_sizes: Sequence[int], dim: int = 0) -> Any:
    return _pieces(c, self, axis_of(dim, self.rank), [sized(size) for size in split_sizes])


def split(c: Context, self: Value, split_size: int, dim: int = 0) -> Any:
    """Pieces of `split_size`, the last one shorter."""
    axis = axis_of(dim, self.rank)
    size, piece = self.dims[axis], sized(split_size)
    count = len(c.node.outputs)  # which the export has fixed
    last = size - (count - 1) * piece
    if not isinstance(size, int) or not isinstance(piece, int):
        c.require(last, "<=", piece)
        c.require(1 if count > 1 else 0, "<=", last)
    return _pieces(c, self, axis, [*(piece,) * (count - 1), last])


def chunk(c: Context, self: Value, chunks: int, dim: int = 0) -> Any:
    """At most `chunks` equal pieces, the last one shorter."""
    size = self.dims[axis_of(dim, self.rank)]
    if size == 0:
        return (self,) * chunks
    return split(c, self, ceildiv(size, chunks), dim)


def tensor_split(c: Context, self: Value, sections: int, dim: int = 0) -> Any:
    """`sections` pieces whose sizes differ by at most one."""
    axis = axis_of(dim, self.rank)
    size = self.dims[axis]  # the first ones are larger by 1: ceil((size - i) / sections)
    return _pieces(c, self, axis, [ceildiv(size - i, sections) for i in range(sections)])


def unbind(c: Context, self: Value, dim: int = 0) -> Any:
    """Every element along one dimension."""
    axis = axis_of(dim, self.rank)
    dims = self.dims[:axis] + self.dims[axis + 1 :]
    return tuple(
        c.builder.reshape(c.slice(self, axis, i, i + 1), dims)
        for i in range(static(self.dims[axis]))
    )


def cat(c: Context, tensors: Sequence[Value], dim: int = 0) -> Value:
    """The tensors one after the other; empty ones of rank 1 are left out, as PyTorch does."""
    axis = axis_of(dim, c.type.rank)
    kept = [v for v in tensors if v.rank == c.type.rank]
    return c.concatenate([c.convert(value, c.element) for value in kept], axis)


def stack(c: Context, tensors: Sequence[Value], dim: int = 0) -> Value:
    """The tensors along a new dimension."""
    axis = axis_of(dim, c.type.rank)
    parts = []
    for value in tensors:
        dims = (*value.dims[:axis], 1, *value.dims[axis:])
        parts.append(c.builder.reshape(c.convert(value, c.element), dims))
    return c.concatenate(parts, axis)


def flip(c: Context, self: Value, dims: Sequence[int]) -> Value:
    axes = tuple(sorted(axis_of(axis, self.rank) for axis in dims))
    return c("reverse", self, dimensions=axes) if axes else self


def roll(c: Context, self: Value, shifts: Any, dims: Any = ()) -> Value:
    """Elements moved on by `shifts`, those that fall off come back at the front."""
    moves = [shifts] if isinstance(shifts, int) else list(shifts)
    axes = [dims] if isinstance(dims, int) else list(dims)
    value = self
    if not axes:
        axes, value = [0], c.builder.reshape(self, (math.prod(self.dims),))
    for move, axis in zip(moves, axes, strict=True):
        axis = axis_of(axis, value.rank)
        size = value.dims[axis]
        at = -sized(move) % size if size != 0 else 0
        if not isinstance(size, int):
            c.require(1, "<=", size)
        if at != 0:
            parts = [c.slice(value, axis, at, size), c.slice(value, axis, 0, at)]
            value = c.concatenate(parts, axis)
    return c.builder.reshape(value, self.dims)


def repeat(c: Context, self: Value, repeats: Sequence[int]) -> Value:
    """The tensor tiled `repeats` times in each dimension."""
    counts = list(repeats)
    dims = [1] * (len(counts) - self.rank) + list(self.dims)
    counts = [1] * (len(dims) - len(counts)) + counts
    if all(count == 1 for count in counts):
        return c.builder.reshape(self, dims)
    wide = [size for pair in zip(counts, dims, strict=True) for size in pair]
    first = len(dims) - self.rank
    mapped = [2 * (first + axis) + 1 for axis in range(self.rank)]
    return c.builder.reshape(c.builder.broadcast(self, wide, mapped), c.dims)


def repeat_interleave(
    c: Context, self: Value, repeats: int, dim: int | None = None, output_size: Any = None
) -> Value:
    """Each element `repeats` times in a row."""
    if isinstance(repeats, Value):
        raise Blocked("repeats by a tensor of counts", "repeat by a fixed number")
    value = self
    if dim is None:
        value, axis = c.builder.reshape(self, (math.prod(self.dims),)), 0
    else:
        axis = axis_of(dim, self.rank)
    wide = (*value.dims[: axis + 1], repeats, *value.dims[axis + 1 :])
    mapped = [*range(axis + 1), *range(axis + 2, len(wide))]
    return c.builder.reshape(c.builder.broadcast(value, wide, mapped), c.dims)


def constant_pad(c: Context, self: Value, pad: Sequence[int], value: Number = 0) -> Value:
    """(low, high) pairs from the last dimension backwards; negative ones cut."""
    return c.pad(self, value, _pads(self.rank, pad))


def _pads(rank: int, pad: Sequence[Dim]) -> list[tuple[Dim, Dim, int]]:
    pads = [(0, 0, 0)] * rank
    for number in range(len(pad) // 2):
        pads[rank - 1 - number] = (sized(pad[2 * number]), sized(pad[2 * number + 1]), 0)
    return pads


def edge_pad(mode: str) -> Callable[..., Value]:
    """Padding by the border's own elements: "reflect", "replicate" or "circular"."""

    def lower(c: Context, self: Value, padding: Sequence[int]) -> Value:
        return _edge_pad(c, self, padding, mode)

    return lower


def _edge_pad(c: Context, value: Value, padding: Sequence[int], mode: str) -> Value:
    for axis, (low, high, _) in enumerate(_pads(value.rank, padding)):
        size = value.dims[axis]
        before, after = c.larger(low, 0), c.larger(high, 0)
        value = c.slice(value, axis, c.larger(-low, 0), size - c.larger(-high, 0))
        size = value.dims[axis]
        parts = [value]
        for count, at_front in ((before, True), (after, False)):
            if count != 0:
                part = _border(c, value, axis, size, count, at_front, mode)
                parts = [part, *parts] if at_front else [*parts, part]
        value = c.concatenate(parts, axis)
    return value


def _border(
    c: Context, value: Value, axis: int, size: Dim, count: Dim, at_front: bool, mode: str
) -> Value:
    if mode == "replicate":
        edge = c.slice(value, axis, 0, 1) if at_front else c.slice(value, axis, size - 1, size)
        dims = (*value.dims[:axis], count, *value.dims[axis + 1 :])
        return c.builder.broadcast(edge, dims, range(value.rank))
    if mode == "circular":
        first = size - count if at_front else 0
        return c.slice(value, axis, first, first + count)
    first = 1 if at_front else size - 1 - count
    return c("reverse", c.slice(value, axis, first, first + count), dimensions=(axis,))


def pad(
    c: Context, self: Value, pad: Sequence[int], mode: str = "constant", value: Any = None
) -> Value:
    """torch.nn.functional.pad."""
    if mode == "constant":
        return constant_pad(c, self, pad, value or 0)
    return _edge_pad(c, self, pad, mode)


def triangle(lower_part: bool) -> Callable[..., Value]:
    """tril and triu: zero above or below a diagonal."""

    def lower(c: Context, self: Value, diagonal: int = 0) -> Value:
        dims = self.dims[-2:]
        rows = c.add(c.iota(dims, 0), diagonal)
        kept = c.builder.compare("GE" if lower_part else "LE", rows, c.iota(dims, 1))
        return c.select(c.spread(kept, self.dims), self, 0)

    return lower


def diagonal(c: Context, self: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """The diagonal of two dimensions, as the last one: a strided slice of the flattened pair."""
    first, second = axis_of(dim1, self.rank), axis_of(dim2, self.rank)
    rest = [axis for axis in range(self.rank) if axis not in (first, second)]
    value = c.builder.transpose(self, [*rest, first, second])
    rows, columns = value.dims[-2:]
    count = c.dims[-1]
    flat = c.builder.reshape(value, (*value.dims[:-2], rows * columns))
    start = offset if offset >= 0 else -offset * columns
    if count == 0:
        return c.slice(flat, flat.rank - 1, 0, 0)
    stop = start + (count - 1) * (columns + 1) + 1
    return c.slice(flat, flat.rank - 1, start, stop, columns + 1)


def pixel_shuffle(c: Context, self: Value, upscale_factor: int) -> Value:
    """[..., c r r, h, w] -> [..., c, h r, w r]."""
    *batch, channels, height, width = self.dims
    r, n = upscale_factor, len(batch)
    dims = (*batch, channels // (r * r), r, r, height, width)
    value = c.builder.reshape(self, dims)
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    return c.builder.reshape(c.builder.transpose(value, order), c.dims)


def pixel_unshuffle(c: Context, self: Value, downscale_factor: int) -> Value:
    """[..., c, h r, w r] -> [..., c r r, h, w]."""
    *batch, channels, height, width = self.dims
    r, n = downscale_factor, len(batch)
    value = c.builder.reshape(self, (*batch, channels, height // r, r, width // r, r))
    order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    return c.builder.reshape(c.builder.transpose(value, order), c.dims)


def channel_shuffle(c: Context, self: Value, groups: int) -> Value:
    batch, channels, *space = self.dims
    value = c.builder.reshape(self, (batch, groups, channels // groups, *space))
    order = [0, 2, 1, *range(3, value.rank)]
    return c.builder.reshape(c.builder.transpose(value, order), self.dims)


def meshgrid(c: Context, tensors: Sequence[Value], indexing: str = "ij") -> Any:
    """Each tensor spread over the common grid."""
    results = []
    for number, value in enumerate(tensors):
        axis = number if indexing == "ij" or number > 1 else 1 - number
        flat = c.builder.reshape(value, (math.prod(value.dims),))
        results.append(c.builder.broadcast(flat, c.type_of(number).dims, [axis]))
    return tuple(results)


def view_dtype(c: Context, self: Value, dtype: ElementType) -> Value:
    """The same bytes read as another element type of the same width."""
    if self.element.bits != c.element.bits or I1 in (self.element, c.element):
        raise Blocked("views bytes as a type of another width", "convert with .to() instead")
    return c("bitcast_convert", self, type=c.type)


def view_as_complex(c: Context, self: Value) -> Value:
    last = self.rank - 1
    dims = self.dims[:-1]
    parts = [c.builder.reshape(c.slice(self, last, i, i + 1), dims) for i in (0, 1)]
    return c("complex", *parts)


def view_as_real(c: Context, self: Value) -> Value:
    parts = [c.part(name, self) for name in ("real", "imag")]
    return c.concatenate([c.builder.reshape(p, (*p.dims, 1)) for p in parts], self.rank)


def part_of_complex(name: str) -> Callable[..., Value]:
    def lower(c: Context, self: Value) -> Value:
        return c.part(name, self)

    return lower


def conjugate(c: Context, self: Value) -> Value:
    return c("chlo.conj", self) if self.element.is_complex else self


def make_complex(c: Context, real: Value, imag: Value) -> Value:
    return c("complex", *c.together(real, imag))


def polar(c: Context, abs: Value, angle: Value) -> Value:
    """abs * exp(i * angle)."""
    size, turn = c.together(abs, angle)
    parts = [c("multiply", size, c(name, turn)) for name in ("cosine", "sine")]
    return c("complex", *parts)


def as_strided(
    c: Context, self: Value, size: Any, stride: Any, storage_offset: Any = None
) -> Value:
    """Only where it is a plain reshape: dense, row-major, from the start, of no view."""
    if self.op is not None and self.op.name in ("broadcast_in_dim", "slice", "transpose"):
        raise Blocked("reads the memory behind a view", "use view, permute, expand or unfold")
    dense, step = [], 1
    for length in reversed(size):
        dense.insert(0, step)
        step *= length
    same_order = all(s == d for s, d, n in zip(stride, dense, size, strict=True) if n != 1)
    if storage_offset or not same_order or step != self.tensor.size:
        raise Blocked("reads memory through strides", "use view, permute, expand or unfold")
    return c.builder.reshape(self, c.dims)


_SAME = (
    "alias.default", "clone.default", "contiguous.default", "detach.default", "detach_.default",
    "lift.default", "lift_fresh.default", "lift_fresh_copy.default", "positive.default",
    "alias_copy.default", "detach_copy.default", "requires_grad_.default", "resolve_conj.default",
    "resolve_neg.default",
)  # fmt: skip
_CONVERTED = (
    "_to_copy.default", "to.device", "to.dtype", "to.dtype_layout", "to.other", "type_as.default",
    "to.prim_Device", "to.prim_dtype", "_cast_Float.default",
)  # fmt: skip
_VIEWED = ("view", "_unsafe_view", "reshape", "view_copy")
_RESHAPED = (
    "flatten.using_ints", "unflatten.int", "squeeze.default", "squeeze.dim", "squeeze.dims",
    "unsqueeze.default", "view_as.default", "reshape_as.default", "squeeze_copy.dims",
    "unsqueeze_copy.default", "ravel.default", "atleast_1d.default", "atleast_2d.default",
)  # fmt: skip

TABLE: dict[str, Callable[..., Any]] = {
    **{f"aten.{name}": same for name in _SAME},
    **{f"aten.{name}": converted for name in _CONVERTED},
    **{f"aten.{name}": reshaped for name in _RESHAPED},
    **{f"aten.{name}.default": viewed for name in _VIEWED},
    **{f"aten.reflection_pad{n}d.default": edge_pad("reflect") for n in (1, 2, 3)},
    **{f"aten.replication_pad{n}d.default": edge_pad("replicate") for n in (1, 2, 3)},
    **{
        f"aten.{name}.default": conjugate
        for name in ("conj", "_conj", "conj_physical", "_conj_physical")
    },
    "aten.as_strided.default": as_strided,
    "aten.broadcast_tensors.default": broadcast_all,
    "aten.broadcast_to.default": expand,
    "aten.cat.default": cat,
    "aten.channel_shuffle.default": channel_shuffle,
    "aten.chunk.default": chunk,
    "aten.complex.default": make_complex,
    "aten.concat.default": cat,
    "aten.constant_pad_nd.default": constant_pad,
    "aten.diagonal.default": diagonal,
    "aten.diagonal_copy.default": diagonal,
    "aten.expand.default": expand,
    "aten.expand_as.default": expand_as,
    "aten.expand_copy.default": expand,
    "aten.flip.default": flip,
    "aten.imag.default": part_of_complex("imag"),
    "aten.mT.default": matrix_transpose,
    "aten.meshgrid.default": meshgrid,
    "aten.meshgrid.indexing": meshgrid,
    "aten.movedim.int": movedim,
    "aten.movedim.intlist": movedim,
    "aten.narrow.default": narrow,
    "aten.numpy_T.default": reverse_dims,
    "aten.pad.default": pad,
    "aten.permute.default": permute,
    "aten.permute_copy.default": permute,
    "aten.pixel_shuffle.default": pixel_shuffle,
    "aten.pixel_unshuffle.default": pixel_unshuffle,
    "aten.polar.default": polar,
    "aten.real.default": part_of_complex("real"),
    "aten.repeat.default": repeat,
    "aten.repeat_interleave.self_int": repeat_interleave,
    "aten.roll.default": roll,
    "aten.select.int": select,
    "aten.select_copy.int": select,
    "aten.slice.Tensor": slice_along,
    "aten.slice_copy.Tensor": slice_along,
    "aten.split.Tensor": split,
    "aten.split.sizes": split_sizes,
    "aten.split_with_sizes.default": split_sizes,
    "aten.split_with_sizes_copy.default": split_sizes,
    "aten.stack.default": stack,
    "aten.swapaxes.default": transpose,
    "aten.swapdims.default": transpose,
    "aten.t.default": reverse_dims,
    "aten.tensor_split.sections": tensor_split,
    "aten.tile.default": repeat,
    "aten.transpose.int": transpose,
    "aten.transpose_copy.int": transpose,
    "aten.tril.default": triangle(True),
    "aten.triu.default": triangle(False),
    "aten.unbind.int": unbind,
    "aten.view.dtype": view_dtype,
    "aten.view_as_complex.default": view_as_complex,
    "aten.view_as_real.default": view_as_real,
}
