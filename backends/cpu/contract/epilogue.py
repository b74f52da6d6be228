"""What happens to complete sums: the elementwise rest of the fusion, and the stores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....hlo.graph import Op, Region, Value
from .. import elements, llvm
from ..elementwise import ElementEmitter, Mask
from ..index import CONSECUTIVE, SAME, ZERO, Affine, Axis, Scopes, linear, number, of_axis
from .operands import constant_mask


@dataclass(frozen=True)
class Layout:
    """Which dims of the contraction's result the outer coordinates, rows and columns stand for.

    Each is a list of result dims; together, in the order outer, rows, columns, they need not be the
    result's own order. An index of rows or columns runs over its dims row-major.
    """

    dims: tuple[int, ...]
    outer: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    # An outer coordinate and the rows may share a dim: dim = coordinate * size + row.
    split: int | None = None  # the shared dim
    split_size: int = 1

    @property
    def identity_order(self) -> bool:
        return (*self.outer, *self.rows, *self.columns) == tuple(range(len(self.dims)))


class Epilogue:
    """Finishes sums of one contraction inside `region` (its own single op, or a fusion's)."""

    def __init__(
        self, contraction: Op, region: Region | None, operands: int, layout: Layout, accumulator: str
    ) -> None:
        self.contraction, self.region, self.layout = contraction, region, layout
        self.operands = operands  # arguments before the results
        self.accumulator = accumulator

    @property
    def plain(self) -> bool:
        """Whether the sums are stored as they are, in the order that they have in memory."""
        results = self.region.results if self.region is not None else (self.contraction.result,)
        element = self.contraction.type.element
        return (
            tuple(results) == (self.contraction.result,)
            and element.name in ("f32", "f64")
            and elements.register_type(element) == self.accumulator
            and self.column_run
        )

    @property
    def column_run(self) -> bool:
        """Whether neighbouring columns are neighbours in the result."""
        rank = len(self.layout.dims)
        columns = self.layout.columns
        return columns == tuple(range(rank - len(columns), rank))

    @property
    def row_stride(self) -> int | None:
        """Elements of the result from one row to the next; None if that is not one number."""
        dims, rows = self.layout.dims, self.layout.rows
        if not rows:
            return math.prod(dims[d] for d in self.layout.columns)
        if tuple(rows) != tuple(range(rows[0], rows[-1] + 1)):
            return None
        return math.prod(dims[rows[-1] + 1 :])

    def pointer(
        self,
        f: llvm.Function,
        args: llvm.Value,
        outer: Sequence[llvm.Value],
        row: llvm.Value,
        column: llvm.Value,
    ) -> llvm.Value:
        """Address of one element of the only result."""
        scopes = Scopes(f)
        emitter = ElementEmitter(f, Region((), (), ()), scopes=scopes)
        index = self._index(emitter, outer, of_axis(Axis(row, 1 << 62)), of_axis(Axis(column, 1 << 62)))
        at = emitter.indexer.scalar(linear(index, self.layout.dims))
        base = f.load("ptr", f.pointer(args, self.operands, "ptr"))
        return f.pointer(base, at, self.accumulator)

    def emit(
        self,
        f: llvm.Function,
        args: llvm.Value,
        outer: Sequence[llvm.Value],
        row: llvm.Value,
        column: llvm.Value,
        count: llvm.Value,
        rows: int,
        columns: int,
        tile: llvm.Value,
        lanes: int,
        vectors: int,
        tail: int,
    ) -> None:
        """Finishes a tile in memory of `count` rows and `vectors` vectors, `tail` lanes in the
        last one (0: all), which begins at (outer, row, column) of rows x columns."""
        scopes = Scopes(f)
        emitter = self._emitter(f, args, scopes)
        width = 1 if columns == 1 else lanes
        column_axis = Axis(column, columns, CONSECUTIVE if width > 1 else SAME, 0, lanes)
        row_axis = of_axis(Axis(row, rows, SAME, 0)) if rows > 1 else ZERO
        kind = llvm.vector(lanes, self.accumulator)

        def finish(line: llvm.Value, at_row: Affine) -> None:
            for position in range(vectors):
                start = position * lanes
                sums = f.load(kind, f.pointer(line, start, self.accumulator))
                at_column = (of_axis(column_axis) + start).within(0, columns - 1)
                index = self._index(emitter, outer, at_row.within(0, rows - 1), at_column)
                mask = None
                if width > 1 and tail and position == vectors - 1:
                    mask = Mask(constant_mask(lanes, tail), 0)
                self._finish(emitter, args, index, sums, width, mask)

        if rows == 1:
            finish(tile, ZERO)
            return
        with scopes.loop(0, count, extent=rows, at_least_once=True) as (index, loop):
            line = f.pointer(tile, f.mul(loop.index, vectors * lanes), self.accumulator)
            finish(line, row_axis + index)

    def _emitter(self, f: llvm.Function, args: llvm.Value, scopes: Scopes) -> ElementEmitter:
        region = self.region if self.region is not None else Region((), (), ())
        pointers: list[llvm.Value | None] = [
            f.load("ptr", f.pointer(args, i, "ptr")) for i in range(len(region.arguments))
        ]
        return ElementEmitter(f, region, pointers, scopes=scopes)

    def _finish(
        self,
        emitter: ElementEmitter,
        args: llvm.Value,
        index: tuple[Affine, ...],
        sums: llvm.Value,
        width: int,
        mask: Mask | None,
    ) -> None:
        """Computes and stores the results at one index."""
        f = emitter.function
        element = self.contraction.type.element
        register = self._register(f, sums if width > 1 else f.extract(sums, 0))
        emitter.overrides[self.contraction.result] = lambda at, lanes: (
            register if lanes == width else f.extract(register, 0)
        )
        results: Sequence[Value] = (self.contraction.result,)
        if self.region is not None:
            results = self.region.results
        for position, result in enumerate(results):
            at = index
            if result.dims != self.layout.dims:
                at = unravel(emitter, linear(index, self.layout.dims), result.dims, width)
            if result is self.contraction.result:
                value = register
            else:
                value = emitter.value(result, at, width, mask)
            target = f.load("ptr", f.pointer(args, self.operands + position, "ptr"))
            element = result.element
            emitter.store(target, value, element, linear(at, result.dims), width, mask)

    def _register(self, f: llvm.Function, sums: llvm.Value) -> llvm.Value:
        """Sums in the form that registers of the result's element type have."""
        element = self.contraction.type.element
        wanted = elements.register_type(element)
        if element.is_bool:
            return f.compare("ne", sums, 0)
        if sums.element != wanted:
            opcode = "fptrunc" if llvm.is_float(wanted) else "trunc"
            sums = f.cast(opcode, sums, wanted)
        if element.is_float:
            return elements.rounded(f, sums, element)
        return elements.wrapped(f, sums, element)

    def _index(
        self,
        emitter: ElementEmitter,
        outer: Sequence[llvm.Value],
        row: Affine,
        column: Affine,
    ) -> tuple[Affine, ...]:
        """The index in the contraction's result."""
        layout = self.layout
        index = [ZERO] * len(layout.dims)
        parts: list[tuple[Affine, tuple[int, ...]]] = [(row, layout.rows), (column, layout.columns)]
        for coordinate, dim in zip(outer, layout.outer, strict=True):
            extent = layout.dims[dim]
            if dim == layout.split:
                extent //= layout.split_size
            if extent > 1:
                scale = layout.split_size if dim == layout.split else 1
                index[dim] = emitter.index([coordinate], [extent], 1)[0] * scale
        for position, dims in parts:
            sizes = [
                layout.split_size if d == layout.split else layout.dims[d] for d in dims
            ]
            width = 2 if position.lanes != SAME else 1
            width = max(width, self._lanes) if position.lanes != SAME else 1
            for dim, at in zip(dims, unravel(emitter, position, sizes, width), strict=True):
                index[dim] = index[dim] + at
        return tuple(index)

    _lanes = 1


def unravel(
    emitter: ElementEmitter, position: Affine, sizes: Sequence[int], width: int
) -> tuple[Affine, ...]:
    """A linear position as an index into dims of these sizes."""
    index: list[Affine] = []
    for number_of_dim, size in enumerate(reversed(sizes)):
        if size == 1:
            index.append(number(0))
        elif all(s == 1 for s in sizes[: len(sizes) - 1 - number_of_dim]):
            index.append(position)
        else:
            position, rest = emitter.indexer.divide(position, size, width)
            index.append(rest)
    return tuple(reversed(index))
