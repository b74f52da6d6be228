"""What happens to complete sums: the elementwise rest of the fusion, and the stores."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....hlo.graph import Op, Region, Value
from ....hlo.symbols import SymbolicDim
from ... import llvm
from ...llvm import elements
from ...llvm.elements import Register
from ...llvm.elementwise import ElementEmitter, Mask
from ...llvm.index import (
    CONSECUTIVE,
    SAME,
    ZERO,
    Affine,
    LoopAxis,
    Scopes,
    linear,
    number,
    of_axis,
)
from ...plain.frame import weight
from .operands import ColumnGroup

_SHORT = 8  # instructions that follow a sum
_CACHE_LINE = 64


@dataclass(frozen=True)
class Epilogue:
    """Finishes the sums of `contraction`, alone or inside the body of a fusion.

    The strides say where an element stands in the contraction's row-major result: per outer
    coordinate, per row, per column.
    """

    contraction: Op
    body: Region | None
    arguments: int  # number of operands, which the results' pointers follow
    accumulator: str
    outer: tuple[tuple[int, int], ...]  # (size, stride)
    rows: tuple[int, int]
    columns: tuple[int, int]
    offset: int = 0  # of the first element
    lines: tuple[int, int] | None = None  # (rows, stride) of runs of rows that do not lie evenly

    @property
    def results(self) -> tuple[Value, ...]:
        return tuple(self.body.results) if self.body is not None else (self.contraction.result,)

    @property
    def plain(self) -> bool:
        """Whether sums are results as they are, and neighbouring columns neighbours in memory."""
        element = self.contraction.type.element
        return (
            self.results == (self.contraction.result,)
            and element.name in ("f32", "f64")
            and elements.register_type(element) == self.accumulator
            and self.columns[1] == 1
            and self.lines is None
        )

    def pointer(
        self,
        f: llvm.Function,
        args: llvm.Value,
        outer: Sequence[llvm.Value],
        row: llvm.Value,
        column: llvm.Value,
    ) -> llvm.Value:
        """Address of one element of the only result."""
        at = f.add(f.mul(row, self.rows[1]), f.mul(column, self.columns[1]))
        for coordinate, (_, stride) in zip(outer, self.outer, strict=True):
            at = f.add(at, f.mul(coordinate, stride))
        at = f.add(at, self.offset)
        base = f.load("ptr", f.pointer(args, self.arguments, "ptr"))
        return f.pointer(base, at, self.accumulator)

    def emit(
        self,
        f: llvm.Function,
        args: llvm.Value,
        outer: Sequence[llvm.Value],
        row: llvm.Value,
        column: llvm.Value,
        count: llvm.Value,
        tile: llvm.Value,
        group: ColumnGroup,
    ) -> None:
        """Finishes the sums in `tile`: `count` rows of one column group, from (row, column) on."""
        scopes = Scopes(f)
        emitter = self._emitter(f, args, scopes)
        width = 1 if self.columns[0] == 1 else group.lanes
        places = self._places(f, outer, column, group, width)
        masks = self._masks(f, column, group, width)

        def finish(line: llvm.Value, row_part: Affine) -> None:
            for position, place in enumerate(places):
                start = f.pointer(line, position * group.lanes, self.accumulator)
                sums = f.load(llvm.vector(width, self.accumulator), start)
                self._finish(emitter, args, place + row_part, sums, width, masks[position])

        rows, _ = self.rows
        if rows == 1:
            finish(tile, ZERO)
            return
        end = f.add(row, count)
        with scopes.loop(row, end, extent=rows, at_least_once=True) as (index, loop):
            offset = f.mul(f.sub(loop.index, row), group.tile_stride)
            place = self._row(emitter, index)
            finish(f.pointer(tile, offset, self.accumulator), place)

    def fetch(
        self,
        f: llvm.Function,
        args: llvm.Value,
        outer: Sequence[llvm.Value],
        row: llvm.Value,
        column: llvm.Value,
        count: int,
        group: ColumnGroup,
    ) -> None:
        """Brings near what `count` rows of a column group are finished with, and where results go,
        while they are still summed: rows lie too far apart for hardware to guess the next."""
        if self.body is None or self.lines is not None or self.columns[1] != 1:
            return
        emitter = self._emitter(f, args, Scopes(f))
        first = of_axis(LoopAxis(row, self.rows[0])) if self.rows[0] != 1 else ZERO
        start = self._places(f, outer, column, group, group.lanes)[0]
        for position, value in enumerate((*self.body.arguments, *self.results)):
            read = position >= self.arguments or value in self.body.uses
            if not read or value.dims != self.contraction.result.dims:
                continue
            base = f.load("ptr", f.pointer(args, position, "ptr"))
            kind = elements.memory_type(f, value.element)
            for line in range(count):
                at = start + self._row(emitter, first + line)
                begin = f.pointer(base, emitter.indexer.scalar(at), kind)
                for byte in range(0, group.columns * value.element.itemsize, _CACHE_LINE):
                    f.prefetch(f.pointer(begin, byte, "i8"))

    def _row(self, emitter: ElementEmitter, index: Affine) -> Affine:
        """Where a row stands."""
        if self.lines is None:
            return index * self.rows[1]
        size, line_stride = self.lines
        line, rest = emitter.indexer.divide(index, size, 1)
        return line * line_stride + rest * self.rows[1]

    @property
    def short(self) -> bool:
        """Whether what follows is little enough to be done while the sums are in registers."""
        if self.body is None or self.columns[0] == 1:
            return self.columns[0] != 1
        following = [op for op in self.body.ops if op is not self.contraction]
        return sum(map(weight, following)) <= _SHORT

    def finish(
        self,
        f: llvm.Function,
        args: llvm.Value,
        outer: Sequence[llvm.Value],
        row: llvm.Value,
        column: llvm.Value,
        sums: Sequence[llvm.Value],
        group: ColumnGroup,
    ) -> None:
        """Finishes sums in registers: row by row, the vectors of one column group."""
        emitter = self._emitter(f, args, Scopes(f))
        places = self._places(f, outer, column, group, group.lanes)
        masks = self._masks(f, column, group, group.lanes)
        rows, stride = self.rows
        first = of_axis(LoopAxis(row, rows)) if rows != 1 else ZERO
        if self._merged is not None:
            self._finish_lines(emitter, args, [at + first * stride for at in places], sums, masks)
            return
        for place, total in enumerate(sums):
            line, position = divmod(place, group.vectors)
            at = places[position] + self._row(emitter, (first + line).within(0, rows - 1))
            self._finish(emitter, args, at, total, group.lanes, masks[position])

    @functools.cached_property
    def _merged(self) -> tuple[range, ...] | None:
        """Runs of the result's dims that nothing which follows the sums tells apart, where the call
        decides sizes: each dim by itself where more follows than elementwise operations. None where
        sizes are numbers."""
        dims = self.contraction.result.dims
        each = tuple(range(d, d + 1) for d in range(len(dims)))
        sized = not any(isinstance(size, SymbolicDim) for size in dims)
        if sized or self.lines is not None or any(result.dims != dims for result in self.results):
            return None
        cuts = {0, len(dims)}
        above = _above(self.contraction)
        uniform = set[Value]()  # values all of whose elements are one number
        for op in self.body.ops if self.body is not None else ():
            if op is self.contraction or op in above:
                continue
            if op.name == "reshape" and op.operands[0] in uniform:
                uniform.add(op.result)
            elif op.name == "broadcast_in_dim":
                source = op.operands[0]
                to = list(op.broadcast_dimensions)
                if not source.rank or source in uniform:
                    uniform.add(op.result)
                    continue
                if op.result.dims != dims or to != sorted(to):
                    return each
                kept = {d for n, d in zip(source.dims, to, strict=True) if n == dims[d]}
                cuts |= {d for d in range(1, len(dims)) if (d in kept) != (d - 1 in kept)}
            elif op.name == "slice" and op.operands[0].op is None and op.result.dims == dims:
                # Lines of whole dims lie one behind the other.
                parts = enumerate(zip(op.operands[0].dims, dims, op.strides, strict=True))
                for d, (size, kept, step) in parts:
                    cuts |= {d} if size != kept else set()
                    cuts |= {d, d + 1} if step != 1 else set()
            elif op.name != "constant" and op.definition.pattern != "elementwise":
                return each
        ends = sorted(cuts)
        return tuple(range(a, b) for a, b in zip(ends, ends[1:], strict=False))

    def _finish_lines(
        self,
        emitter: ElementEmitter,
        args: llvm.Value,
        places: Sequence[Affine],
        sums: Sequence[llvm.Value],
        masks: Sequence[Mask | None],
    ) -> None:
        """Finishes rows of vectors that begin at `places`, whose indices are found once."""
        width = sums[0].lanes
        rows, stride = self.rows
        along = None  # which index grows from row to row
        inner = 1
        for place_of_run, run in reversed(list(enumerate(self._merged or ()))):
            size = math.prod(self.contraction.result.dims[d] for d in run)
            if inner == stride and (place_of_run == 0 or size == rows):
                along = self._stands(run)
            inner = inner * size
        for position, at in enumerate(places):
            index = self._index(emitter, at, width)
            for line in range(len(sums) // len(places)):
                here = at + stride * line
                if line and along is not None:
                    moved = list(index)
                    moved[along] = moved[along] + line
                    place = tuple(moved)
                else:
                    place = self._index(emitter, here, width) if line else index
                total = sums[line * len(places) + position]
                self._finish(emitter, args, here, total, width, masks[position], place)

    def _index(self, emitter: ElementEmitter, at: Affine, width: int) -> tuple[Affine, ...]:
        """A row-major position of the result as an index, dims that are not told apart as one: it
        stands at one of them."""
        dims, runs = self.contraction.result.dims, self._merged or ()
        sizes = [math.prod(dims[d] for d in run) for run in runs]
        index = [ZERO] * len(dims)
        for run, one in zip(runs, unravel(emitter, at, sizes, width), strict=True):
            index[self._stands(run)] = one
        return tuple(index)

    def _stands(self, run: range) -> int:
        """Where the index of a run of dims stands: at the last that is not of size 1, for accesses
        leave those out."""
        dims = self.contraction.result.dims
        return next((d for d in reversed(run) if dims[d] != 1), run[-1])

    def _places(
        self,
        f: llvm.Function,
        outer: Sequence[llvm.Value],
        column: llvm.Value,
        group: ColumnGroup,
        width: int,
    ) -> list[Affine]:
        """Where the vectors of a column group stand in row 0."""
        base = number(self.offset)
        for coordinate, (size, stride) in zip(outer, self.outer, strict=True):
            if size != 1:
                base = base + of_axis(LoopAxis(coordinate, size)) * stride
        places: list[Affine] = []
        for position in range(group.vectors):
            at = f.add(column, position * group.lanes)
            lanes = CONSECUTIVE if width > 1 else SAME
            axis = LoopAxis(at, self.columns[0], lanes, 0, group.lanes)
            places.append(base + of_axis(axis) * self.columns[1] if self.columns[0] != 1 else base)
        return places

    def _masks(
        self, f: llvm.Function, column: llvm.Value, group: ColumnGroup, width: int
    ) -> list[Mask | None]:
        """The real lanes of each vector of a column group; None for all of them."""
        masks: list[Mask | None] = [None] * group.vectors
        if width > 1 and group.tail == 1:
            # Of a mask known to hold one lane LLVM stores too much, see `tail_mask`.
            masks[-1] = Mask(f.tail_mask(llvm.constant("i64", 1), width), 0)
        elif width > 1 and group.partial:
            masks[-1] = Mask(group.mask(f, column), 0)
        return masks

    def _emitter(self, f: llvm.Function, args: llvm.Value, scopes: Scopes) -> ElementEmitter:
        body = self.body if self.body is not None else Region((), (), ())
        pointers = [f.load("ptr", f.pointer(args, i, "ptr")) for i in range(len(body.arguments))]
        return ElementEmitter(f, body, pointers, scopes=scopes)

    def _finish(
        self,
        emitter: ElementEmitter,
        args: llvm.Value,
        at: Affine,
        sums: llvm.Value,
        width: int,
        mask: Mask | None,
        known: tuple[Affine, ...] | None = None,
    ) -> None:
        """Computes and stores the results whose row-major position is `at`; `known` is their
        index."""
        f = emitter.function
        register = self._register(f, sums)
        emitter.overrides[self.contraction.result] = lambda index, lanes, mask: (
            register if lanes == width else f.extract(register, 0)
        )
        finished: list[tuple[Value, Affine, Register]] = []
        if known is None and self._merged is not None:
            known = self._index(emitter, at, width)
        for result in self.results:
            index = known or unravel(emitter, at, result.dims, width)
            value = emitter.value(result, index, width, mask)
            place = linear(index, result.dims) if known is None else at
            finished.append((result, place, value))
        # What an operand gives is read before anything is written where it lies.
        for position, (result, place, value) in enumerate(finished):
            target = f.load("ptr", f.pointer(args, self.arguments + position, "ptr"))
            emitter.store(target, value, result.element, place, width, mask)

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


def _above(contraction: Op) -> set[Op]:
    """What the contraction's operands are made by."""
    found: set[Op] = set()
    waiting = [value.op for value in contraction.operands]
    while waiting:
        op = waiting.pop()
        if op is not None and op not in found:
            found.add(op)
            waiting += [value.op for value in op.operands]
    return found


def unravel(
    emitter: ElementEmitter, position: Affine, dims: Sequence[int], width: int
) -> tuple[Affine, ...]:
    """A row-major position as an index into dims."""
    index: list[Affine] = []
    for place in range(len(dims) - 1, -1, -1):
        size = dims[place]
        if size == 1:
            index.append(number(0))
        elif all(other == 1 for other in dims[:place]):
            index.append(position)
        else:
            position, rest = emitter.indexer.divide(position, size, width)
            index.append(rest)
    return tuple(reversed(index))
