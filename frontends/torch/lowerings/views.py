"""Operators that move elements without computing: view, permute, expand, split, cat, pad, ..."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.symbols import Dim, ceildiv
from ....hlo.types import I64
from ..context import Blocked, Context, axis_of, bounds, place_of, sized, static
from .matrices import adjoint


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
    sizes: list[Dim] = [sized(c.data.of_number(given)) for given in size]
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
        self.dims[axis - first]
        if type(given) is int and given == -1
        else sized(c.data.of_number(given))
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


def narrow(c: Context, self: Value, dim: int, start: int | Value, length: int) -> Value:
    axis = axis_of(dim, self.rank)
    if isinstance(start, Value):
        start = c.convert(c.builder.reshape(start, ()), I64)
        size = c.size(self.dims[axis])
        start = c("select", c.compare("LT", start, 0), c("add", start, size), start)
        starts = [start if d == axis else c.scalar(0, I64) for d in range(self.rank)]
        sizes = (*self.dims[:axis], sized(length), *self.dims[axis + 1 :])
        return c("dynamic_slice", self, *starts, slice_sizes=sizes)
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


def rot90(c: Context, self: Value, k: int = 1, dims: Sequence[int] = (0, 1)) -> Value:
    """Turned by 90 degrees k times, from the first of two dimensions to the second."""
    first, second = (axis_of(axis, self.rank) for axis in dims)
    turns = k % 4
    if turns == 2:
        return flip(c, self, [first, second])
    if turns == 1:
        return transpose(c, flip(c, self, [second]), first, second)
    return flip(c, transpose(c, self, first, second), [second]) if turns else self


def chunk_cat(c: Context, tensors: Sequence[Value], dim: int, num_chunks: int) -> Value:
    """Each tensor in as many equal parts of its dim, padded by zeros, one row each: of all tensors
    what is in the same part follows each other."""
    axis = axis_of(dim, tensors[0].rank)
    columns = []
    for value in tensors:
        value = c.convert(value, c.element)
        size = value.dims[axis]
        each = ceildiv(size, num_chunks)
        pads = [(0, 0, 0)] * value.rank
        pads[axis] = (0, each * num_chunks - size, 0)  # type: ignore[assignment]
        value = c.pad(value, 0, pads)
        rest = each * math.prod(value.dims[axis + 1 :])
        columns.append(c.builder.reshape(value, (*value.dims[:axis], num_chunks, rest)))
    return c.builder.reshape(c.concatenate(columns, columns[0].rank - 1), c.dims)


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
        swapped = indexing == "xy" and len(tensors) > 1 and number < 2
        axis = 1 - number if swapped else number
        flat = c.builder.reshape(value, (math.prod(value.dims),))
        results.append(c.builder.broadcast(flat, c.type_of(number).dims, [axis]))
    return tuple(results)


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


_SAME = (
    "alias.default", "clone.default", "contiguous.default", "detach.default", "detach_.default",
    "lift.default", "lift_fresh.default", "lift_fresh_copy.default", "positive.default",
    "alias_copy.default", "detach_copy.default", "requires_grad_.default", "resolve_conj.default",
    "resolve_neg.default",
)  # fmt: skip
_CONVERTED = (
    "_to_copy.default", "to.device", "to.dtype", "to.dtype_layout", "to.other", "type_as.default",
    "to.prim_Device", "to.prim_dtype", "to_dense.default",
    *(f"_cast_{name}.default" for name in (
        "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")),
)  # fmt: skip
_VIEWED = ("view", "_unsafe_view", "reshape", "view_copy")
_RESHAPED = (
    "flatten.using_ints", "unflatten.int", "squeeze.default", "squeeze.dim", "squeeze.dims",
    "unsqueeze.default", "view_as.default", "reshape_as.default", "squeeze_copy.default",
    "squeeze_copy.dim", "squeeze_copy.dims", "unsqueeze_copy.default", "_reshape_alias.default",
    "_reshape_copy.default", "ravel.default", "atleast_1d.default", "atleast_2d.default",
    "atleast_3d.default",
)  # fmt: skip

TABLE: dict[str, Callable[..., Any]] = {
    **{f"aten.{name}": same for name in _SAME},
    **{f"aten.{name}": converted for name in _CONVERTED},
    "prims.convert_element_type.default": converted,
    **{f"aten.{name}": reshaped for name in _RESHAPED},
    **{f"aten.{name}.default": viewed for name in _VIEWED},
    **{
        f"aten.{name}.default": conjugate
        for name in ("conj", "_conj", "_conj_copy", "conj_physical", "_conj_physical")
    },
    **{f"aten.{name}.default": adjoint for name in ("adjoint", "mH", "matrix_H")},
    "aten._chunk_cat.default": chunk_cat,
    "aten._stack.default": stack,
    "aten.broadcast_tensors.default": broadcast_all,
    "aten.broadcast_to.default": expand,
    "aten.cat.default": cat,
    "aten.channel_shuffle.default": channel_shuffle,
    "aten.native_channel_shuffle.default": channel_shuffle,
    "aten.chunk.default": chunk,
    "aten.complex.default": make_complex,
    "aten.concat.default": cat,
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
    "aten.narrow.Tensor": narrow,
    "aten.narrow.default": narrow,
    "aten.narrow_copy.default": narrow,
    "aten.numpy_T.default": reverse_dims,
    "aten.permute.default": permute,
    "aten.permute_copy.default": permute,
    "aten.pixel_shuffle.default": pixel_shuffle,
    "aten.pixel_unshuffle.default": pixel_unshuffle,
    "aten.polar.default": polar,
    "aten.real.default": part_of_complex("real"),
    "aten.repeat.default": repeat,
    "aten.repeat_interleave.self_int": repeat_interleave,
    "aten.roll.default": roll,
    "aten.rot90.default": rot90,
    "aten.select.int": select,
    "aten.select_copy.int": select,
    "aten.slice.Tensor": slice_along,
    "aten.slice_copy.Tensor": slice_along,
    "aten.split.Tensor": split,
    "aten.split.sizes": split_sizes,
    "aten.split_copy.Tensor": split,
    "aten.split_with_sizes.default": split_sizes,
    "aten.split_with_sizes_copy.default": split_sizes,
    "aten.stack.default": stack,
    "aten.swapaxes.default": transpose,
    "aten.swapdims.default": transpose,
    "aten.t.default": reverse_dims,
    "aten.t_copy.default": reverse_dims,
    "aten.tensor_split.sections": tensor_split,
    "aten.tile.default": repeat,
    "aten.transpose.default": transpose,  # of transpose_
    "aten.transpose.int": transpose,
    "aten.transpose_copy.int": transpose,
    "aten.unbind.int": unbind,
    "aten.unbind_copy.int": unbind,
    "aten.unsafe_chunk.default": chunk,
    "aten.unsafe_split.Tensor": split,
    "aten.unsafe_split_with_sizes.default": split_sizes,
}
