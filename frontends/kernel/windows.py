"""Windows of memory: what `a[i : i + 16, 0:64]` loads and stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...hlo.graph import Value
from ...hlo.types import I1, I32
from . import arithmetic
from .values import INDEX, Affine, LanguageError, Tile, TracedMemory, current, is_number, shape_of

COMBINES = ("", "add", "maximum", "minimum")


class KernelWindow(NamedTuple):
    """Offsets and sizes per dim of the memory; `kept` has the dims that stay in the tile.

    rows: the index tile of a gather or scatter along `axis`, else None.
    """

    offsets: tuple[Any, ...]
    sizes: tuple[int, ...]
    kept: tuple[int, ...]
    rows: Tile | None = None
    axis: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.sizes[d] for d in self.kept)


def window_of(memory: TracedMemory, index: Any) -> KernelWindow:
    """The window that a subscript names. Its sizes are constants, its offsets may be scalars."""
    entries = list(index) if isinstance(index, tuple) else [index]
    if any(entry is Ellipsis for entry in entries):
        at = next(i for i, e in enumerate(entries) if e is Ellipsis)
        missing = memory.ndim - (len(entries) - 1)
        entries[at : at + 1] = [slice(None)] * missing
    if any(entry is None for entry in entries):
        raise LanguageError("None adds a dim to tiles, not to memory: load first, then a[:, None]")
    if len(entries) > memory.ndim:
        raise LanguageError(f"{memory} has {memory.ndim} dims, the window names {len(entries)}")
    entries += [slice(None)] * (memory.ndim - len(entries))
    offsets: list[Any] = []
    sizes: list[int] = []
    kept: list[int] = []
    rows, axis = None, 0
    for d, (entry, dim) in enumerate(zip(entries, memory.shape, strict=True)):
        if isinstance(entry, slice):
            offset, size = _slice(entry, dim)
            kept.append(d)
        elif isinstance(entry, Tile) and entry.ndim == 1 and entry.dtype.is_integer:
            if rows is not None:
                raise LanguageError("a window has at most one index tile")
            rows, axis, offset, size = entry, d, 0, entry.shape[0]
            kept.append(d)
        else:
            offset, size = _single(entry, dim), 1
        offsets.append(offset)
        sizes.append(size)
    return KernelWindow(tuple(offsets), tuple(sizes), tuple(kept), rows, axis)


def _single(entry: Any, dim: int) -> Any:
    if isinstance(entry, (int, np.integer)) and not isinstance(entry, bool):
        if not -dim <= entry < dim:
            raise LanguageError(f"index {entry} is outside of a dim of {dim}")
        return int(entry) % dim
    return scalar_index(entry)


def scalar_index(entry: Any) -> Any:
    """An index: an integer constant, or an integer scalar that the kernel computes, as i32."""
    if isinstance(entry, (int, np.integer)) and not isinstance(entry, bool):
        return int(entry)
    if isinstance(entry, Tile) and entry.ndim == 0 and entry.dtype.is_integer:
        return arithmetic.cast(entry, I32)
    raise LanguageError(f"an index is an integer scalar, a slice or an index tile, not {entry!r}")


def _slice(entry: slice, dim: int) -> tuple[Any, int]:
    if entry.step is not None and entry.step != 1:
        raise LanguageError("windows have no steps; load the whole window and use tl.where")
    start = 0 if entry.start is None else scalar_index(entry.start)
    stop = dim if entry.stop is None else scalar_index(entry.stop)
    if isinstance(entry.start, int) and start < 0 or isinstance(entry.stop, int) and stop < 0:
        raise LanguageError(
            "a constant negative bound is not counted from the end; use tl.load(a, offsets, sizes)"
        )
    first, last = Affine.of(start), Affine.of(stop)
    assert first is not None and last is not None
    length = last.plus(first, -1)
    if length.terms:
        raise LanguageError(
            "the size of this window is not a constant; write it as a[i : i + SIZE]"
        )
    if length.constant < 0:
        raise LanguageError(f"this window has the size {length.constant}")
    return start, length.constant


def explicit(
    memory: TracedMemory, offsets: Any, sizes: Any, rows: Any = None, axis: int = 0
) -> KernelWindow:
    """The window of `tl.load(memory, offsets, sizes)`."""
    found = shape_of(sizes, "the window's sizes")
    starts = tuple(offsets) if isinstance(offsets, (tuple, list)) else (offsets,)
    if len(found) != memory.ndim or len(starts) != memory.ndim:
        raise LanguageError(
            f"{memory} has {memory.ndim} dims; {len(starts)} offsets and {len(found)} sizes given"
        )
    starts = tuple(map(scalar_index, starts))
    kept = tuple(range(memory.ndim))
    if rows is None:
        return KernelWindow(starts, found, kept)
    if not isinstance(rows, Tile) or rows.ndim != 1 or not rows.dtype.is_integer:
        raise LanguageError(f"rows are a tile of integers of one dim, not {rows!r}")
    if not 0 <= axis < memory.ndim:
        raise LanguageError(f"axis {axis} of {memory}, which has {memory.ndim} dims")
    if found[axis] != rows.shape[0]:
        raise LanguageError(f"{rows.shape[0]} rows, but size {found[axis]} along axis {axis}")
    return KernelWindow(starts, found, kept, rows, axis)


def load(memory: TracedMemory, window: KernelWindow, fill: Any = 0.0, mask: Any = None) -> Tile:
    """The tile of a window; elements outside the memory, and where the mask fails, are `fill`."""
    if not is_number(fill):
        raise LanguageError(f"fill is a constant number, not {fill!r}")
    if memory.dtype.is_complex:
        raise LanguageError(f"{memory} is complex, which tiles are not")
    trace = current()
    offsets = _offset_values(window)
    facts: dict[str, Any] = {"sizes": window.sizes}
    if float(fill) != 0.0:
        facts["fill"] = float(fill)
    if window.rows is None:
        value = trace.op("tile_load", memory.value, *offsets, **facts)
    else:
        rows = arithmetic.cast(window.rows, I32).value
        value = trace.op(
            "tile_gather", memory.value, rows, *offsets, axis=window.axis, **facts
        )  # fmt: skip
    tile = Tile(trace.builder.reshape(value, window.shape))
    if mask is None:
        return tile
    held = _mask(mask, window.shape)
    other = arithmetic.tile_of(fill, tile.dtype, tile.shape)
    return Tile(trace.op("select", held.value, tile.value, other.value))


def store(
    memory: TracedMemory, window: KernelWindow, value: Any, mask: Any = None, combine: str = ""
) -> None:
    """Write a value into a window; what lies outside the memory is dropped."""
    if not memory.is_output:
        raise LanguageError(f"{memory} is an input; kernels write to their outputs alone")
    if combine not in COMBINES:
        raise LanguageError(f"combine is one of 'add', 'maximum' and 'minimum', not {combine!r}")
    tile = arithmetic.tile_of(value, memory.dtype)
    if tile.dtype is not memory.dtype:
        raise LanguageError(
            f"{memory} takes {memory.dtype}, the value is {tile}; cast it with .to({memory.name}"
            ".dtype)"
        )
    trace = current()
    whole = arithmetic.spread(tile, window.shape)
    stored = trace.builder.reshape(whole.value, window.sizes)
    facts: dict[str, Any] = {"combine": combine} if combine else {}
    operands: list[Value] = [memory.value, stored]
    if window.rows is not None:
        if mask is not None:
            raise LanguageError("a scatter has no mask; give the rows to leave out the index -1")
        operands.append(arithmetic.cast(window.rows, I32).value)
        trace.builder.op(
            "tile_scatter", [*operands, *_offset_values(window)], {"axis": window.axis, **facts}
        )
        return
    operands += _offset_values(window)
    if mask is not None:
        held = _mask(mask, window.shape)
        operands.append(trace.builder.reshape(held.value, window.sizes))
        facts["masked"] = True
    trace.builder.op("tile_store", operands, facts)


def _mask(mask: Any, dims: tuple[int, ...]) -> Tile:
    tile = arithmetic.tile_of(mask, None)
    if tile.dtype is not I1:
        raise LanguageError(f"a mask is a tile of truth values, not {tile}")
    return arithmetic.spread(tile, dims)


def _offset_values(window: KernelWindow) -> Sequence[Value]:
    trace = current()
    return [
        offset.value if isinstance(offset, Tile) else trace.constant(offset, INDEX)
        for offset in window.offsets
    ]


def tile_part(tile: Tile, index: Any) -> Tile:
    """`x[:, None]`, `x[0]`, `x[2:4]`: constant parts of a tile, and new dims of size 1."""
    entries = list(index) if isinstance(index, tuple) else [index]
    named = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if named > tile.ndim:
        raise LanguageError(f"{tile} has {tile.ndim} dims, the index names {named}")
    rest = [slice(None)] * (tile.ndim - named)
    if any(entry is Ellipsis for entry in entries):
        at = next(i for i, entry in enumerate(entries) if entry is Ellipsis)
        entries[at : at + 1] = rest
    else:
        entries += rest
    starts, stops, strides, dims = [], [], [], []
    sizes = iter(tile.shape)
    for entry in entries:
        if entry is None:
            dims.append(1)
            continue
        size = next(sizes)
        start, stop, step, stays = _constant_part(entry, size)
        starts.append(start)
        stops.append(stop)
        strides.append(step)
        if stays:
            dims.append(len(range(start, stop, step)))
    value = tile.value
    trace = current()
    if tuple(starts) != (0,) * tile.ndim or tuple(stops) != tile.shape or set(strides) - {1}:
        value = trace.op(
            "slice", value, start_indices=tuple(starts), limit_indices=tuple(stops),
            strides=tuple(strides),
        )  # fmt: skip
    return Tile(trace.builder.reshape(value, dims))


def _constant_part(entry: Any, size: int) -> tuple[int, int, int, bool]:
    parts = (entry.start, entry.stop, entry.step) if isinstance(entry, slice) else (entry,)
    if any(isinstance(part, Tile) for part in parts):
        raise LanguageError("parts of a tile are constant; only memory is read at an index")
    if isinstance(entry, slice):
        start, stop, step = entry.indices(size)
        if step < 1:
            raise LanguageError(f"the step {step} of a part is not positive")
        return start, max(start, stop), step, True
    if not isinstance(entry, (int, np.integer)) or isinstance(entry, bool):
        raise LanguageError(f"{entry!r} does not index a tile")
    if not -size <= entry < size:
        raise LanguageError(f"index {entry} is outside of a dim of {size}")
    return int(entry) % size, int(entry) % size + 1, 1, False
