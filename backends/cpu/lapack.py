"""Matrix factorisations as calls of LAPACK, matrix by matrix: columns go to scratch, results back.

A kernel finds the routine's address behind its operands and results, where the runtime puts it (see
`Kernel.functions` in specs/plan.proto). Workspaces are as large as LAPACK needs to work in blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ...hlo.deciding import surely_below
from ...hlo.graph import Op, Value
from ...hlo.ops import lapack
from ...hlo.symbols import SymbolicDim, maximum, minimum
from .. import llvm
from ..llvm.target import KernelCode
from ..plain.frame import tile_range
from ..plain.opaque.frame import frame_of
from .codegen import Target

BLOCK = 64  # columns that LAPACK works on at once, at most
_REFLECTORS = 65 * 64  # numbers that it keeps of a block's reflectors
_TRANSPOSED = 16  # rows and columns of a block of a transposed copy

Words = tuple[llvm.Value, llvm.Value]  # pointers to a workspace and to its length


class LapackCall:
    """One kernel: `tile` is the number of the matrix at work."""

    def __init__(self, op: Op, target: Target, name: str) -> None:
        self.op = op
        self.frame, _ = frame_of(op, target)
        self.f = f = self.frame.function
        self.prefix = lapack.PREFIXES[op.operands[0].element.name]
        self.complex = self.prefix in "cz"
        self.routine = lapack.routine(name, self.prefix)
        self.component = 4 if self.prefix in "sc" else 8
        self.size = self.component * (2 if self.complex else 1)
        self.real = "float" if self.component == 4 else "double"
        count = len(op.operands) + len(op.results)
        self.address = f.load("ptr", f.pointer(f.arguments[0], count, "ptr"))
        self.scratch = 0
        self.tile: llvm.Value = f.arguments[1]

    # What routines take.

    def integer(self, number: int) -> llvm.Value:
        """Where a number stands; of a size that the call decides, in the function's frame."""
        if not isinstance(number, SymbolicDim):
            return self.f.module.data(np.int32(number).tobytes())
        place = self.f.alloca("i32")
        self.f.store(self.f.constant("i32", number), place)
        return place

    def letter(self, letter: str) -> llvm.Value:
        return self.f.module.data(letter.encode() + b"\0")

    def reserve(self, size: int) -> llvm.Value:
        """Scratch of that many bytes."""
        place = self.f.pointer(self.frame.scratch, self.scratch, "i8")
        self.scratch += -(-maximum(size, 1) // 64) * 64
        return place

    def numbers(self, count: int) -> llvm.Value:
        return self.reserve(count * self.size)

    def work(self, count: int) -> Words:
        """A workspace of numbers, and its length."""
        return self.numbers(count), self.integer(count)

    def reals(self, count: int) -> list[llvm.Value]:
        """The second workspace that routines for complex numbers take."""
        return [self.reserve(count * self.component)] if self.complex else []

    def entry(self, base: llvm.Value, count: int, size: int) -> llvm.Value:
        """This tile's part of an array with `count` entries for each."""
        return self.f.pointer(base, self.f.mul(self.tile, count * size), "i8")

    def operand(self, number: int) -> llvm.Value:
        value = self.op.operands[number]
        size = math.prod(value.dims[len(self.batch) :])
        return self.entry(self.frame.pointers[number], size, value.element.itemsize)

    def result(self, number: int) -> llvm.Value:
        value = self.op.results[number]
        size = math.prod(value.dims[len(self.batch) :])
        return self.entry(self.frame.outputs[number], size, value.element.itemsize)

    @property
    def batch(self) -> Sequence[int]:
        first = self.op.operands[0]
        return first.dims[: first.rank - (1 if self.op.name == _SOLVE else 2)]

    def call(self, *arguments: llvm.Value) -> None:
        self.f.call_pointer(self.address, "void", *arguments)

    # Copies.

    def columns(self, number: int, rows: int, columns: int, width: int | None = None) -> llvm.Value:
        """An operand's matrix, or its first columns, column after column in scratch."""
        target = self.numbers(rows * columns)
        source, kind = self.operand(number), f"i{8 * self.size}"
        self.transposed(target, source, kind, columns, rows, width or columns)
        return target

    def rows(self, number: int, source: llvm.Value, rows: int, columns: int) -> None:
        """A result from a matrix that stands column after column in scratch."""
        size = self.op.results[number].element.itemsize
        self.transposed(self.result(number), source, f"i{8 * size}", rows, columns, rows)

    def transposed(
        self,
        target: llvm.Value,
        source: llvm.Value,
        kind: str,
        rows: int,
        columns: int,
        stride: int,
    ) -> None:
        """target[i, j] = source[j, i], `stride` entries from one j to the next."""
        f = self.f
        align = min(self.component, 8)
        with (
            f.for_range(0, rows, _TRANSPOSED) as outer,
            f.for_range(0, columns, _TRANSPOSED) as inner,
        ):
            last_row = f.min(f.add(outer.index, _TRANSPOSED), rows)
            last_column = f.min(f.add(inner.index, _TRANSPOSED), columns)
            with (
                f.for_range(outer.index, last_row) as i,
                f.for_range(inner.index, last_column) as j,
            ):
                from_place = f.add(f.mul(j.index, stride), i.index)
                to_place = f.add(f.mul(i.index, columns), j.index)
                value = f.load(kind, f.pointer(source, from_place, kind), align=align)
                f.store(value, f.pointer(target, to_place, kind), align=align)

    def copied(self, number: int, offset: int, count: int) -> llvm.Value:
        """Consecutive numbers of an operand in scratch."""
        target = self.numbers(count)
        source = self.f.pointer(self.operand(number), offset * self.size, "i8")
        self.f.copy(target, source, count * self.size)
        return target

    def cleared(self, number: int) -> None:
        """A result without meaning is zero."""
        value = self.op.results[number]
        size = math.prod(value.dims[len(self.batch) :]) * value.element.itemsize
        self.f.fill(self.result(number), 0, size)

    def if_some(self, body: Callable[[], None]) -> None:
        """The body; where the call may decide that a matrix is empty, only if it is not: then
        results are zero."""
        sizes = [math.prod(value.dims[len(self.batch) :]) for value in _matrices(self.op)]
        doubtful = [size for size in sizes if not surely_below(0, size)]
        if not doubtful:
            body()
            return
        some = llvm.constant("i1", True)
        for size in doubtful:
            some = self.f.land(some, self.f.compare("sgt", self.f.constant("i64", size), 0))
        branch = self.f.if_else(some)
        with branch.then():
            body()
        with branch.otherwise():
            for number in range(len(self.op.results)):
                self.cleared(number)

    def if_finite(self, matrix: llvm.Value, count: int) -> llvm.Branch:
        """An if on whether all numbers of a matrix in scratch are finite."""
        f = self.f
        parts = count * self.size // self.component
        with f.for_range(0, parts, 1, [llvm.constant("i1", True)]) as each:
            value = f.load(self.real, f.pointer(matrix, each.index, self.real))
            zero = f.mul(value, llvm.constant(self.real, 0.0))
            each.carry(f.land(each.carried[0], f.compare("oeq", zero, zero)))
        return f.if_else(each.results[0])

    def complex_from(self, number: int, real: llvm.Value, imaginary: llvm.Value, n: int) -> None:
        """Complex result `number` from separate parts."""
        f, target = self.f, self.result(number)
        with f.for_range(0, n) as each:
            for offset, source in enumerate((real, imaginary)):
                value = f.load(self.real, f.pointer(source, each.index, self.real))
                place = f.add(f.mul(each.index, 2), offset)
                f.store(value, f.pointer(target, place, self.real))


_SOLVE = "linalg.tridiagonal_solve"
Body = Callable[[LapackCall], None]


def _matrices(op: Op) -> Sequence[Value]:
    """The operands without which there is nothing to do; a product of no reflectors is one."""
    parts = {"linalg.householder_product": slice(1), "linalg.householder_multiply": slice(2, 3)}
    return op.operands[parts.get(op.name, slice(2))]


def kernel(name: str | Callable[[Op], str], body: Body) -> Callable[[Op, Target], KernelCode]:
    """The emitter of an operation that is a call of the routine of that name."""

    def emit(op: Op, target: Target) -> KernelCode:
        call = LapackCall(op, target, name if isinstance(name, str) else name(op))
        frame = call.frame
        if any(value.tensor.size == 0 for value in _matrices(op)):
            with frame.scopes.branch(call.f.compare("slt", frame.begin, frame.end)):
                for value, pointer in zip(op.results, frame.outputs, strict=True):
                    call.f.fill(pointer, 0, value.tensor.bytes)
            return frame.finish(1, 0.0, parallel=False)
        tiles = math.prod(call.batch)
        with (
            tile_range(frame, 0, tiles) as (low, high),
            frame.scopes.loop(low, high, extent=tiles) as (_, loop),
        ):
            call.tile = loop.index
            call.if_some(lambda: body(call))
        note = f"library: scipy LAPACK {call.routine}"
        made = frame.finish(tiles, op.definition.flops(op), scratch=call.scratch, notes=(note,))
        return replace(made, functions=(f"lapack.{call.routine}",))

    return emit


def _dims(c: LapackCall) -> tuple[int, int]:
    m, n = c.op.operands[0].dims[-2:]
    return m, n


def _lu(c: LapackCall) -> None:
    m, n = _dims(c)
    a = c.columns(0, m, n)
    c.call(c.integer(m), c.integer(n), a, c.integer(m), c.result(1), c.result(2))
    c.rows(0, a, m, n)


def _qr(c: LapackCall) -> None:
    m, n = _dims(c)
    a = c.columns(0, m, n)
    work = c.work(n * BLOCK)
    c.call(c.integer(m), c.integer(n), a, c.integer(m), c.result(1), *work, c.reserve(4))
    c.rows(0, a, m, n)


def _qr_pivoted(c: LapackCall) -> None:
    m, n = _dims(c)
    a = c.columns(0, m, n)
    pivots = c.result(1)
    c.f.copy(pivots, c.operand(1), 4 * n)
    work = c.work(2 * n + (n + 1) * BLOCK)
    c.call(
        c.integer(m), c.integer(n), a, c.integer(m), pivots, c.result(2), *work,
        *c.reals(2 * n), c.reserve(4),
    )  # fmt: skip
    c.rows(0, a, m, n)


def _householder_product(c: LapackCall) -> None:
    m, n = _dims(c)
    k = c.op.operands[1].dims[-1]
    a = c.columns(0, m, n)
    c.call(
        c.integer(m), c.integer(n), c.integer(k), a, c.integer(m), c.operand(1),
        *c.work(n * BLOCK), c.reserve(4),
    )  # fmt: skip
    c.rows(0, a, m, n)


def _householder_multiply(c: LapackCall) -> None:
    rows, width = _dims(c)
    k = c.op.operands[1].dims[-1]
    m, n = c.op.operands[2].dims[-2:]
    a, other = c.columns(0, rows, k, width), c.columns(2, m, n)
    adjoint = "C" if c.complex else "T"
    work = c.work(maximum(m, n) * BLOCK + _REFLECTORS)
    c.call(
        c.letter("L" if c.op.left else "R"), c.letter(adjoint if c.op.transpose else "N"),
        c.integer(m), c.integer(n), c.integer(k), a, c.integer(rows), c.operand(1),
        other, c.integer(m), *work, c.reserve(4),
    )  # fmt: skip
    c.rows(0, other, m, n)


def _eigh(c: LapackCall) -> None:
    n = _dims(c)[0]
    a = c.columns(0, n, n)
    least = 2 * n + n * n if c.complex else 1 + 6 * n + 2 * n * n
    work = c.work(maximum(least, n * (BLOCK + 2)))
    real_count = 1 + 5 * n + 2 * n * n
    reals = [*c.reals(real_count), c.integer(real_count)] if c.complex else []
    whole = 3 + 5 * n
    c.call(
        c.letter("V"), c.letter("L" if c.op.lower else "U"), c.integer(n), a, c.integer(n),
        c.result(1), *work, *reals, c.reserve(4 * whole), c.integer(whole), c.result(2),
    )  # fmt: skip
    c.rows(0, a, n, n)


def _svd(c: LapackCall) -> None:
    m, n = _dims(c)
    k, longer = minimum(m, n), maximum(m, n)
    full, wanted = c.op.full_matrices, c.op.compute_uv
    left, right = (m, n) if full else (k, k)
    a = c.columns(0, m, n)
    u, vt = (c.numbers(m * left), c.numbers(right * n)) if wanted else (c.numbers(1),) * 2
    letter = c.letter(("A" if full else "S") if wanted else "N")
    work = c.work(4 * k * k + 8 * k + longer + (m + n) * BLOCK)
    divided = c.op.algorithm == "gesdd"
    jobs = [letter] if divided else [letter, letter]
    if divided:
        most = maximum(5 * k * k + 5 * k, 2 * longer * k + 2 * k * k + k) if wanted else 7 * k
        extra = [*c.reals(most), c.reserve(4 * 8 * k)]
    else:
        extra = c.reals(5 * k)
    c.call(
        *jobs, c.integer(m), c.integer(n), a, c.integer(m), c.result(0), u, c.integer(m),
        vt, c.integer(right), *work, *extra, c.result(3),
    )  # fmt: skip
    if wanted:
        c.rows(1, u, m, left)
        c.rows(2, vt, right, n)
    else:
        c.cleared(1)
        c.cleared(2)


def _eig(c: LapackCall) -> None:
    n = _dims(c)[0]
    a = c.columns(0, n, n)
    sides = (c.op.left, c.op.right)
    letters = [c.letter("V" if wanted else "N") for wanted in sides]
    vectors = [c.numbers(n * n if wanted else 1) for wanted in sides]
    values = [c.result(0)] if c.complex else [c.numbers(n), c.numbers(n)]
    work = c.work(n * (BLOCK + 4))
    placed = [part for v in vectors for part in (v, c.integer(n))]
    reals = c.reals(2 * n)
    branch = c.if_finite(a, n * n)
    with branch.then():
        c.call(
            *letters, c.integer(n), a, c.integer(n), *values, *placed, *work, *reals, c.result(3)
        )
        if not c.complex:
            c.complex_from(0, values[0], values[1], n)
        for number, (wanted, v) in enumerate(zip(sides, vectors, strict=True), 1):
            if not wanted:
                c.cleared(number)
            elif c.complex:
                c.rows(number, v, n, n)
            else:
                _unpack(c, number, v, values[1], n)
    with branch.otherwise():
        for number in range(3):
            c.cleared(number)
        c.f.store(llvm.constant("i32", -4), c.result(3))


def _unpack(c: LapackCall, number: int, packed: llvm.Value, imaginary: llvm.Value, n: int) -> None:
    """Complex vectors from real ones: a conjugate pair shares two columns, real and imaginary."""
    f, target = c.f, c.result(number)
    zero = llvm.constant(c.real, 0.0)
    with f.for_range(0, n) as column:
        j = column.index
        sign = f.load(c.real, f.pointer(imaginary, j, c.real))
        first, second = f.compare("ogt", sign, zero), f.compare("olt", sign, zero)
        real_column = f.sub(j, f.select(second, llvm.constant("i64", 1), 0))
        other_column = f.add(
            real_column, f.select(f.lor(first, second), llvm.constant("i64", 1), 0)
        )
        with f.for_range(0, n) as row:
            i = row.index

            def read(of: llvm.Value, at: llvm.Value = i) -> llvm.Value:
                place = f.add(f.mul(of, n), at)
                return f.load(c.real, f.pointer(packed, place, c.real))

            part = read(other_column)
            part = f.select(second, f.neg(part), f.select(first, part, zero))
            place = f.mul(f.add(f.mul(i, n), j), 2)
            f.store(read(real_column), f.pointer(target, place, c.real))
            f.store(part, f.pointer(target, f.add(place, 1), c.real))


def _schur(c: LapackCall) -> None:
    n = _dims(c)[0]
    a = c.columns(0, n, n)
    wanted = c.op.vectors
    z = c.numbers(n * n if wanted else 1)
    values = [c.result(2)] if c.complex else [c.numbers(n), c.numbers(n)]
    work = c.work(n * (BLOCK + 4))
    reals, sorted_count, selected = c.reals(n), c.reserve(4), c.reserve(4 * n)
    branch = c.if_finite(a, n * n)
    with branch.then():
        c.call(
            c.letter("V" if wanted else "N"), c.letter("N"), llvm.constant("ptr", 0), c.integer(n),
            a, c.integer(n), sorted_count, *values, z, c.integer(n), *work, *reals, selected,
            c.result(3),
        )  # fmt: skip
        c.rows(0, a, n, n)
        if not c.complex:
            c.complex_from(2, values[0], values[1], n)
        if wanted:
            c.rows(1, z, n, n)
        else:
            c.cleared(1)
    with branch.otherwise():
        for number in range(3):
            c.cleared(number)
        c.f.store(llvm.constant("i32", -4), c.result(3))


def _hessenberg(c: LapackCall) -> None:
    n = _dims(c)[0]
    a = c.columns(0, n, n)
    work = c.work(n * BLOCK + _REFLECTORS)
    bounds = c.integer(c.op.low), c.integer(c.op.high)
    c.call(c.integer(n), *bounds, a, c.integer(n), c.result(1), *work, c.result(2))
    c.rows(0, a, n, n)


def _tridiagonal(c: LapackCall) -> None:
    n = _dims(c)[0]
    a = c.columns(0, n, n)
    letter = c.letter("L" if c.op.lower else "U")
    diagonals = c.result(1), c.result(2), c.result(3)
    work = c.work(n * BLOCK)
    c.call(letter, c.integer(n), a, c.integer(n), *diagonals, *work, c.result(4))
    c.rows(0, a, n, n)


def _tridiagonal_solve(c: LapackCall) -> None:
    n, sides = c.op.operands[3].dims[-2:]
    dl, d, du = c.copied(0, 1, n - 1), c.copied(1, 0, n), c.copied(2, 0, n - 1)
    b = c.columns(3, n, sides)
    c.call(c.integer(n), c.integer(sides), dl, d, du, b, c.integer(n), c.result(1))
    c.rows(0, b, n, sides)


EMITTERS: dict[str, Callable[[Op, Target], KernelCode]] = {
    "linalg.lu": kernel("getrf", _lu),
    "linalg.qr": kernel("geqrf", _qr),
    "linalg.qr_pivoted": kernel("geqp3", _qr_pivoted),
    "linalg.householder_product": kernel("orgqr", _householder_product),
    "linalg.householder_multiply": kernel("ormqr", _householder_multiply),
    "linalg.eigh": kernel("syevd", _eigh),
    "linalg.svd": kernel(lambda op: op.algorithm, _svd),
    "linalg.eig": kernel("geev", _eig),
    "linalg.schur": kernel("gees", _schur),
    "linalg.hessenberg": kernel("gehrd", _hessenberg),
    "linalg.tridiagonal": kernel("sytrd", _tridiagonal),
    _SOLVE: kernel("gtsv", _tridiagonal_solve),
}
