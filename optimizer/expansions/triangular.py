"""cholesky and triangular_solve by halves: all but blocks along the diagonal are products.

Halves are powers of two of the block, so that most products and blocks are of the same few sizes,
and their kernels the same code.
"""

from __future__ import annotations

from typing import Any

from ...hlo.build import Builder
from ...hlo.graph import Op, Value
from .matrices import Matrix

BLOCK = 32
"""Rows of a matrix that are left to one kernel, a thread for each matrix or right side."""


def half(size: int) -> int:
    """Where a matrix that is larger than a block is cut."""
    first = BLOCK
    while 2 * first < size:
        first *= 2
    return first


def cholesky(b: Builder, o: Op, a: Value) -> list[Value]:
    """The factor; not a number everywhere where it does not exist, as the operation says."""
    matrix = Matrix(b, a)
    factor = _factor(matrix if o.lower else matrix.adjoint)
    last = factor[-1:, -1:].real  # is NaN if any pivot was
    factor = last.differs(last).where(float("nan"), factor)
    return [(factor if o.lower else factor.adjoint).value]


def _factor(a: Matrix) -> Matrix:
    if a.rows <= BLOCK:
        return Matrix(a.b, a.b("cholesky", a.value, lower=True))
    cut = half(a.rows)
    first = _factor(a[:cut, :cut])
    below = solve(first, a[cut:, :cut], left=False, lower=True, transpose="ADJOINT")
    rest = _factor(a[cut:, cut:] - below @ below.adjoint)
    zeros = a.filled(0, cut, a.rows - cut)
    return first.beside(zeros).above(below.beside(rest))


def triangular_solve(b: Builder, o: Op, a: Value, right: Value) -> list[Value]:
    facts: dict[str, Any] = {"left": o.left_side, "lower": o.lower, "unit": o.unit_diagonal}
    return [solve(Matrix(b, a), Matrix(b, right), transpose=o.transpose_a, **facts).value]


def solve(
    a: Matrix, c: Matrix, *, left: bool, lower: bool, unit: bool = False,
    transpose: str = "NO_TRANSPOSE",
) -> Matrix:  # fmt: skip
    """X with op(a) X = c, or X op(a) = c."""
    facts: dict[str, Any] = {"left": left, "lower": lower, "unit": unit, "transpose": transpose}
    if a.rows <= BLOCK:
        return Matrix(
            a.b,
            a.b(
                "triangular_solve", a.value, c.value, left_side=left, lower=lower,
                unit_diagonal=unit, transpose_a=transpose,
            ),
        )  # fmt: skip
    cut = half(a.rows)
    beside = a[cut:, :cut] if lower else a[:cut, cut:]
    if transpose != "NO_TRANSPOSE":
        beside = beside.adjoint if transpose == "ADJOINT" else beside.transposed
    is_lower = lower == (transpose == "NO_TRANSPOSE")
    parts = [a[:cut, :cut], a[cut:, cut:]]
    sides = [c[:cut, :], c[cut:, :]] if left else [c[:, :cut], c[:, cut:]]
    first = 0 if is_lower == left else 1  # the part that depends on no other
    known = solve(parts[first], sides[first], **facts)
    product = beside @ known if left else known @ beside
    other = solve(parts[1 - first], sides[1 - first] - product, **facts)
    found = (known, other) if first == 0 else (other, known)
    return found[0].above(found[1]) if left else found[0].beside(found[1])
