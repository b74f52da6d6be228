"""Whole-matrix operations: cholesky, triangular_solve, fft."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..access import Access, IterationKind, Space, at, identity
from ..factors import Factor, FactorBuilder, FactorKind, Factors
from ..graph import Op
from ..room import Case, OpDefinition, attribute, constraint, operand
from ..room import operand as second
from ..types import C64, C128, F32, F64, TensorType, Type
from . import numerics
from .clauses import same_dim, same_dims
from .examples import counting, f32


class Cholesky(OpDefinition, name="cholesky"):
    """result = L with L L^H = a, from a's lower triangle (or U with U^H U = a, from the upper).

    The other triangle is zero. A matrix that is not positive definite gives NaN everywhere.
    """

    pattern = "opaque"
    a = operand()
    lower = attribute(bool, False)
    C2 = constraint("rank(a) >= 2", lambda o: o.a.rank >= 2)
    C3 = constraint("a's matrices are square", lambda o: same_dim(o.a.dims[-2], o.a.dims[-1]))
    C4 = constraint("a is float or complex", lambda o: o.a.element.kind in ("float", "complex"))

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.a.type]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        dtype = arrays[0].dtype
        a = numerics.wide(arrays[0])
        if not o.lower:
            a = _adjoint(a)
        with np.errstate(all="ignore"):
            result = np.zeros_like(a)
            for j in range(a.shape[-1]):
                done = result[..., :, :j]
                column = a[..., j:, j] - np.einsum(
                    "...ij,...j->...i", done[..., j:, :], np.conj(done[..., j, :])
                )
                pivot = np.sqrt(column[..., :1].real)
                result[..., j:, j] = column / pivot
                result[..., j, j] = pivot[..., 0]
            failed = np.isnan(result).any((-2, -1), keepdims=True)
            result = np.where(failed, result.dtype.type(np.nan), result)
        return numerics.narrow(result if o.lower else _adjoint(result), dtype)

    def access(self, o: Op) -> Access | None:
        space = Space(o.type.dims)
        return space.access((*identity(o.a.rank - 2), *space.whole(o.a.dims[-2:])))

    def shard(self, o: Op) -> Factors | None:
        rank = o.a.rank
        rule = FactorBuilder(o).batch(rank - 2)
        for d in range(rank - 2, rank):
            rule.everywhere(d, Factor(o.a.dims[d], FactorKind.REPLICATE))
        return rule.build()

    def flops(self, o: Op) -> float:
        return o.a.tensor.size * o.a.dims[-1] / 3.0

    def cases(self) -> Iterator[Case]:
        base = np.array([[2.0, 0, 0], [1, 3, 0], [-1, 0.5, 1]])
        for dtype in (np.float32, np.float64):
            a = (base @ base.T).astype(dtype)
            yield Case(f"cholesky_lower_{a.dtype}", (np.stack([a, 2 * a]),), {"lower": True})
            yield Case(f"cholesky_upper_{a.dtype}", (a,), {"lower": False})
        z = base + 1j * np.tril(base, -1)
        yield Case("cholesky_complex", ((z @ z.conj().T).astype(np.complex64),), {"lower": True})
        yield Case("cholesky_indefinite", (f32([[1, 2], [2, 1]]),), {"lower": True})


def _adjoint(a: Any) -> Any:
    return np.conj(np.swapaxes(a, -1, -2))


TRANSPOSES = ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")


class TriangularSolve(OpDefinition, name="triangular_solve"):
    """result = X with op(a) X = b (left_side) or X op(a) = b; op is transpose_a."""

    pattern = "opaque"
    a = operand()
    b = second()
    left_side = attribute(bool)
    lower = attribute(bool)
    unit_diagonal = attribute(bool)
    transpose_a = attribute(str)
    C1 = constraint(
        "a and b have the same element type, float or complex",
        lambda o: o.a.element is o.b.element and o.a.element.kind in ("float", "complex"),
    )
    C2 = constraint("rank(a) = rank(b) >= 2", lambda o: o.a.rank == o.b.rank >= 2)
    C3 = constraint(
        "a is square, batches agree, and b's solved dimension fits",
        lambda o: (
            same_dims(o.a.dims[:-2], o.b.dims[:-2])
            and same_dim(o.a.dims[-1], o.a.dims[-2])
            and same_dim(o.a.dims[-1], o.b.dims[-2 if o.left_side else -1])
        ),
    )
    C4 = constraint(
        "transpose_a is NO_TRANSPOSE, TRANSPOSE or ADJOINT", lambda o: o.transpose_a in TRANSPOSES
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.b.type]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        dtype = arrays[1].dtype
        a, b = map(numerics.wide, arrays)
        lower = o.lower
        a = np.tril(a) if lower else np.triu(a)
        if o.transpose_a != "NO_TRANSPOSE":
            a = np.swapaxes(a, -1, -2)
            a = np.conj(a) if o.transpose_a == "ADJOINT" else a
            lower = not lower
        if not o.left_side:  # X a = b is a^T X^T = b^T
            a, b, lower = np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2), not lower
        count = a.shape[-1]
        result = np.zeros_like(b)
        with np.errstate(all="ignore"):
            for row in range(count) if lower else range(count - 1, -1, -1):
                known = slice(0, row) if lower else slice(row + 1, count)
                rest = a[..., row : row + 1, known] @ result[..., known, :]
                value = b[..., row : row + 1, :] - rest
                if not o.unit_diagonal:
                    value = value / a[..., row : row + 1, row : row + 1]
                result[..., row : row + 1, :] = value
        return numerics.narrow(result if o.left_side else np.swapaxes(result, -1, -2), dtype)

    def access(self, o: Op) -> Access | None:
        space = Space(o.type.dims)
        batch = identity(o.b.rank - 2)
        matrix = space.whole(o.a.dims[-2:])
        solved, other = (-2, -1) if o.left_side else (-1, -2)
        sides = {
            solved: space.inner(o.b.dims[solved], IterationKind.GATHER),
            other: at(o.b.rank + other),
        }
        return space.access((*batch, *matrix), (*batch, sides[-2], sides[-1]))

    def shard(self, o: Op) -> Factors | None:
        rank, last = o.b.rank, o.b.rank - 1
        rule = FactorBuilder(o).batch(rank - 2)
        row, column = (rank - 2, last) if o.transpose_a == "NO_TRANSPOSE" else (last, rank - 2)
        if not o.left_side:
            row, column = column, row
        solved, other = (rank - 2, last) if o.left_side else (last, rank - 2)
        need = Factor(o.a.dims[-1], FactorKind.REPLICATE)
        across = Factor(o.b.dims[other], FactorKind.REPLICATE)
        if not o.left_side:
            rule.add(across, {1: other}, {0: other})
        rule.add(need, {0: row, 1: solved})
        if o.left_side:
            rule.add(across, {1: other}, {0: other})
        rule.add(need, {0: column}, {0: solved})
        return rule.build()

    def flops(self, o: Op) -> float:
        return float(o.b.tensor.size) * o.a.dims[-1]

    def cases(self) -> Iterator[Case]:
        a = f32([[2, 7, 8], [1, 4, 9], [3, -1, 5]])
        b = counting(3, 2) - 2
        for left in (True, False):
            for lower in (True, False):
                for transpose in TRANSPOSES[:2]:
                    for unit in (True, False):
                        name = f"solve_{left:d}{lower:d}{unit:d}_{transpose}"
                        facts = {
                            "left_side": left, "lower": lower, "unit_diagonal": unit,
                            "transpose_a": transpose,
                        }  # fmt: skip
                        yield Case(name, (a, b if left else b.T.copy()), facts)
        facts = {
            "left_side": True, "lower": True, "unit_diagonal": False, "transpose_a": "ADJOINT",
        }  # fmt: skip
        z = (a + 1j * a.T).astype(np.complex64)
        right = np.stack([b, b]).astype(np.complex64) * np.complex64(1 + 2j)
        yield Case("solve_complex", (np.stack([z, 2 * z]), right), facts)


FFT_TYPES = ("FFT", "IFFT", "RFFT", "IRFFT")


class Fft(OpDefinition, name="fft"):
    """result = (inverse) discrete Fourier transform over the last size(fft_length) dimensions."""

    pattern = "opaque"
    operand = operand()
    fft_type = attribute(str)
    fft_length = attribute(tuple)
    C1 = constraint(
        "size(fft_length) <= rank(operand)", lambda o: len(o.fft_length) <= o.operand.rank
    )
    C2 = constraint("fft_type fits the element type", lambda o: _fft_element(o) is not None)
    C3 = constraint("1 <= size(fft_length) <= 3", lambda o: 1 <= len(o.fft_length) <= 3)
    C5 = constraint(
        "operand's last dimensions are fft_length (half of the last one, for IRFFT)",
        lambda o: same_dims(o.operand.dims[o.operand.rank - len(o.fft_length) :], _fft_input(o)),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        dims = list(o.operand.dims)
        if o.fft_type == "RFFT":
            dims[-1] = o.fft_length[-1] // 2 + 1 if o.fft_length[-1] else 0
        elif o.fft_type == "IRFFT":
            dims[-1] = o.fft_length[-1]
        return [TensorType(dims, _fft_element(o))]

    def evaluate(self, o: Op, *arrays: Any, **context: Any) -> Any:
        result = o.type
        if result.size == 0 or arrays[0].size == 0:
            return np.zeros(result.dims, result.dtype)
        axes = range(arrays[0].ndim - len(o.fft_length), arrays[0].ndim)
        function = {
            "FFT": np.fft.fftn, "IFFT": np.fft.ifftn, "RFFT": np.fft.rfftn, "IRFFT": np.fft.irfftn,
        }[o.fft_type]  # fmt: skip
        with np.errstate(all="ignore"):
            return function(arrays[0], o.fft_length, axes).astype(result.dtype)

    def access(self, o: Op) -> Access | None:
        space = Space(o.type.dims)
        rows = o.operand.rank - len(o.fft_length)
        return space.access((*identity(rows), *space.whole(o.operand.dims[rows:])))

    def shard(self, o: Op) -> Factors | None:
        rule = FactorBuilder(o)
        dims, last = o.operand.dims, o.operand.rank - 1
        for d, size in enumerate(dims):
            if d < o.operand.rank - len(o.fft_length):
                factor = Factor(size)
            else:
                longer = d == last and size != o.type.dims[last]
                factor = Factor(size, FactorKind.REPLICATE, blocked=longer)
            rule.everywhere(d, factor)
        return rule.build()

    def flops(self, o: Op) -> float:
        return 5.0 * o.operand.tensor.size * math.log2(max(2, math.prod(o.fft_length)))

    def cases(self) -> Iterator[Case]:
        x = (counting(2, 4, 6) % 5).astype(np.float32)
        z = (x + 1j * (x % 3)).astype(np.complex64)
        yield Case("fft", (z,), {"fft_type": "FFT", "fft_length": (4, 6)})
        yield Case("ifft", (z,), {"fft_type": "IFFT", "fft_length": (6,)})
        yield Case("rfft", (x,), {"fft_type": "RFFT", "fft_length": (4, 6)})
        half = np.fft.rfft(x).astype(np.complex64)
        yield Case("irfft", (half,), {"fft_type": "IRFFT", "fft_length": (6,)})
        odd = np.fft.rfft(x[..., :5].astype(np.float64))
        yield Case("irfft_odd_f64", (odd,), {"fft_type": "IRFFT", "fft_length": (5,)})


def _fft_element(o: Op) -> Any:
    """The result's element type; None where the operand's does not fit."""
    source = o.operand.element
    if o.fft_type == "RFFT":
        return {F32: C64, F64: C128}.get(source)
    if o.fft_type == "IRFFT":
        return {C64: F32, C128: F64}.get(source)
    return source if o.fft_type in FFT_TYPES and source.is_complex else None


def _fft_input(o: Op) -> tuple[int, ...]:
    lengths = tuple(o.fft_length)
    if o.fft_type != "IRFFT" or not lengths:
        return lengths
    return (*lengths[:-1], lengths[-1] // 2 + 1 if lengths[-1] else 0)


ROOMS = (Cholesky(), TriangularSolve(), Fft())
