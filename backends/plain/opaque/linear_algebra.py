"""cholesky, triangular_solve, pivots_to_permutation: plain loops, matrices in parallel."""

from __future__ import annotations

import math

from ....hlo.graph import Op
from ... import llvm
from ...llvm import complex_math, elements
from ...llvm import math as vector_math
from ...llvm.elements import Pair, Register
from ...llvm.index import LoopAxis, of_axis
from ...llvm.target import KernelCode, Target
from ..frame import tile_range
from ..monoid import flat, unflat
from .frame import frame_of


class _Numbers:
    """Real or complex scalars of one element type in matrices of one size."""

    def __init__(self, op: Op, target: Target) -> None:
        self.frame, self.emitter = frame_of(op, target)
        self.f, self.scopes = self.frame.function, self.frame.scopes
        self.element = op.operands[0].element
        self.zero = elements.register_constant(self.element, self.element.dtype.type(0), 1)

    def place(self, *parts: tuple[llvm.Operand, int]) -> llvm.Value:
        """sum of index * stride."""
        total = llvm.constant("i64", 0)
        for index, stride in parts:
            total = self.f.add(total, self.f.mul(self.f.lift(index, "i64"), stride))
        return total

    def load(self, pointer: llvm.Value, at: llvm.Value, conjugate: bool = False) -> Register:
        axis = of_axis(LoopAxis(at, 1 << 40, depth=self.scopes.depth))
        value = self.emitter.load(pointer, self.element, axis)
        if conjugate and isinstance(value, Pair):
            return Pair(value.real, self.f.neg(value.imaginary))
        return value

    def store(self, pointer: llvm.Value, at: llvm.Value, value: Register) -> None:
        axis = of_axis(LoopAxis(at, 1 << 40, depth=self.scopes.depth))
        if isinstance(value, llvm.Value):
            value = elements.rounded(self.f, value, self.element)
        self.emitter.store(pointer, value, self.element, axis)

    def binary(self, name: str, a: Register, b: Register) -> Register:
        if isinstance(a, Pair):
            found = complex_math.apply(self.f, name, [a, b])
            assert found is not None
            return found
        assert isinstance(b, llvm.Value)
        method = {"subtract": self.f.sub, "multiply": self.f.mul, "divide": self.f.div}[name]
        return method(a, b)

    def conjugate(self, value: Register) -> Register:
        return Pair(value.real, self.f.neg(value.imaginary)) if isinstance(value, Pair) else value


def cholesky(op: Op, target: Target) -> KernelCode:
    """L with L L* = a (lower), or its adjoint; the other triangle is zero."""
    n = _Numbers(op, target)
    f, frame = n.f, n.frame
    size = op.type.dims[-1]
    batch = math.prod(op.type.dims[:-2])
    if not op.type.size:
        return frame.finish(0, 0.0)
    source, result = frame.pointers[0], frame.outputs[0]
    row, column = (size, 1) if op.attributes.get("lower", False) else (1, size)
    mirrored = row == 1
    with tile_range(frame, 0, batch) as (low, high), n.scopes.loop(low, high, extent=batch) as (
        _, matrix,
    ):  # fmt: skip
        base = f.mul(matrix.index, size * size)

        def at(i: llvm.Operand, j: llvm.Operand) -> llvm.Value:
            return f.add(base, n.place((i, row), (j, column)))

        with f.for_range(0, size * size) as every:
            n.store(result, f.add(base, every.index), n.zero)
        with f.for_range(0, size) as columns:
            j = columns.index
            with f.for_range(j, size, at_least_once=True) as rows:
                i = rows.index
                start = n.load(source, at(i, j), mirrored)
                with f.for_range(0, j, 1, flat([start])) as inner:
                    (total,) = unflat(inner.carried, [start])
                    left = n.load(result, at(i, inner.index), mirrored)
                    right = n.load(result, at(j, inner.index), not mirrored)
                    product = n.binary("multiply", left, right)
                    inner.carry(*flat([n.binary("subtract", total, product)]))
                (total,) = unflat(inner.results, [start])
                branch = f.if_else(f.compare("eq", i, j))
                with branch.then():
                    real = total.real if isinstance(total, Pair) else total
                    pivot: Register = vector_math.sqrt(f, real)
                    if isinstance(total, Pair):
                        pivot = Pair(pivot, llvm.constant(pivot.type, 0.0))  # type: ignore[arg-type]
                    branch.give(*flat([pivot]))
                with branch.otherwise():
                    pivot = n.load(result, at(j, j))
                    branch.give(*flat([n.binary("divide", total, pivot)]))
                (value,) = unflat(branch.results, [start])
                n.store(result, at(i, j), n.conjugate(value) if mirrored else value)
        # A pivot that is NaN makes all later ones NaN: then the whole result is.
        last = n.load(result, at(size - 1, size - 1))
        part = last.real if isinstance(last, Pair) else last
        with f.if_then(f.compare("uno", part, part)), f.for_range(0, size * size) as every:
            nan = n.element.dtype.type(float("nan"))
            filled = elements.register_constant(n.element, nan, 1)
            n.store(result, f.add(base, every.index), filled)
    return frame.finish(batch, op.definition.flops(op))


def triangular_solve(op: Op, target: Target) -> KernelCode:
    """X with op(a) X = b, or X op(a) = b: one right side per tile, by substitution."""
    n = _Numbers(op, target)
    f, frame = n.f, n.frame
    a_value, b_value = op.operands
    if not b_value.tensor.size:
        return frame.finish(0, 0.0)
    size = a_value.dims[-1]
    rows, columns = b_value.dims[-2:]
    batch = math.prod(b_value.dims[:-2])
    transposed = op.transpose_a != "NO_TRANSPOSE"
    conjugated = op.transpose_a == "ADJOINT"
    lower = op.lower != transposed
    a_row, a_column = (1, size) if transposed else (size, 1)
    if op.left_side:
        sides, x_step, x_side = columns, columns, 1
    else:
        sides, x_step, x_side = rows, 1, columns
        a_row, a_column, lower = a_column, a_row, not lower
    a_pointer, b_pointer = frame.pointers
    result = frame.outputs[0]
    tiles = batch * sides
    with tile_range(frame, 0, tiles) as (low, high), n.scopes.loop(low, high, extent=tiles) as (
        _, tile,
    ):  # fmt: skip
        matrix = f.udiv(tile.index, sides)
        side = f.sub(tile.index, f.mul(matrix, sides))
        a_base = f.mul(matrix, size * size)
        x_base = f.add(f.mul(matrix, rows * columns), f.mul(side, x_side))

        def a_at(i: llvm.Value, k: llvm.Value) -> llvm.Value:
            return f.add(a_base, n.place((i, a_row), (k, a_column)))

        def x_at(i: llvm.Value) -> llvm.Value:
            return f.add(x_base, n.place((i, x_step)))

        with f.for_range(0, size) as steps:
            i = steps.index if lower else f.sub(size - 1, steps.index)
            start = n.load(b_pointer, x_at(i))
            with f.for_range(0, steps.index, 1, flat([start])) as inner:
                k = inner.index if lower else f.sub(size - 1, inner.index)
                (total,) = unflat(inner.carried, [start])
                factor = n.load(a_pointer, a_at(i, k), conjugated)
                product = n.binary("multiply", factor, n.load(result, x_at(k)))
                inner.carry(*flat([n.binary("subtract", total, product)]))
            (value,) = unflat(inner.results, [start])
            if not op.unit_diagonal:
                value = n.binary("divide", value, n.load(a_pointer, a_at(i, i), conjugated))
            n.store(result, x_at(i), value)
    return frame.finish(tiles, op.definition.flops(op))


def pivots_to_permutation(op: Op, target: Target) -> KernelCode:
    """0, 1, ..., size - 1 with entries exchanged one after the other."""
    frame, _ = frame_of(op, target)
    f, scopes = frame.function, frame.scopes
    count, size = op.operands[0].dims[-1], op.size
    rows = math.prod(op.type.dims[:-1])
    if not op.type.size:
        return frame.finish(0, 0.0)

    def entry(line: llvm.Value, at: llvm.Operand) -> llvm.Value:
        return f.pointer(line, at, "i32")

    with tile_range(frame, 0, rows) as (low, high), scopes.loop(low, high, extent=rows) as (
        _, row,
    ):  # fmt: skip
        pivots = entry(frame.pointers[0], f.mul(row.index, count))
        line = entry(frame.outputs[0], f.mul(row.index, size))
        with f.for_range(0, size) as each:
            f.store(f.cast("trunc", each.index, "i32"), entry(line, each.index))
        with f.for_range(0, count) as each:
            pivot = f.cast("sext", f.load("i32", entry(pivots, each.index)), "i64")
            inside = f.compare("ult", pivot, size)
            other = entry(line, f.select(inside, pivot, each.index))
            mine = entry(line, each.index)
            first, second = f.load("i32", mine), f.load("i32", other)
            f.store(second, mine)
            f.store(first, other)
    return frame.finish(rows, 0.0)
