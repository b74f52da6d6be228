"""Systems of linear equations: solve, inv, triangular and factorised ones, pinv, lstsq.

Where PyTorch raises on a matrix that cannot be inverted, so does a call; the `_ex` operators give
infinities and NaN there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes

from ....hlo.graph import Value
from ....hlo.ops.factorizations import real_element
from ....hlo.types import F64
from ..context import Blocked, Context, broadcast_dims, static
from .matrices import adjoint, check_info, eye, product, rows_at, together


def permutation(c: Context, pivots: Value, rows: int) -> Value:
    """Row i of P^T a is row permutation[i] of a; pivots as linalg.lu gives them."""
    return c("linalg.pivots_to_permutation", c.subtract(pivots, 1), size=rows)


def inverted(c: Context, order: Value) -> Value:
    """The inverse of permutations along the last axis."""
    *batch, size = order.dims
    dims, last = (*batch, size, size), order.rank
    wide = c.builder.broadcast(order, dims, [*range(last - 1), last])
    here = c.builder.compare("EQ", wide, c.iota(dims, last - 1, order.element))
    places = c.select(here, c.iota(dims, last, order.element), 0)
    return c.reduce("add", places, [last])


def triangular(
    c: Context, a: Value, b: Value, lower: bool, unit: bool = False, form: str = "NO_TRANSPOSE",
    left: bool = True,
) -> Value:  # fmt: skip
    """X with op(a) X = b (left) or X op(a) = b, of one batch."""
    return c(
        "triangular_solve", a, b, left_side=left, lower=lower, unit_diagonal=unit,
        transpose_a=form,
    )  # fmt: skip


def solved(
    c: Context, packed: Value, pivots: Value, b: Value, left: bool = True, flipped: bool = False
) -> Value:
    """X with A X = b (left) or X A = b; A^H instead of A, if flipped. A as linalg.lu packs it."""
    if not left:
        return adjoint(c, solved(c, packed, pivots, adjoint(c, b), True, not flipped))
    order = permutation(c, pivots, static(packed.dims[-1]))
    batch = broadcast_dims(packed.dims[:-2], b.dims[:-2])
    order = c.spread(order, (*batch, order.dims[-1]))
    packed, b = together(c, packed, b)
    if flipped:
        x = triangular(c, packed, b, False, form="ADJOINT")
        x = triangular(c, packed, x, True, True, "ADJOINT")
        return rows_at(c, x, inverted(c, order))
    x = triangular(c, packed, rows_at(c, b, order), True, True)
    return triangular(c, packed, x, False)


def lu_solve(
    c: Context, LU: Value, pivots: Value, B: Value, left: bool = True, adjoint: bool = False
) -> Value:
    """X with A X = B (left) or X A = B; `adjoint`: with A^H."""
    return solved(c, LU, pivots, B, left, adjoint)


def old_lu_solve(c: Context, self: Value, LU_data: Value, LU_pivots: Value) -> Value:
    return solved(c, LU_data, LU_pivots, self)


def solve_ex(
    c: Context, A: Value, B: Value, left: bool = True, check_errors: bool = False
) -> tuple[Value, Value | None, Value | None, Value]:
    """X with A X = B (left) or X A = B; then LU, pivots and info."""
    if c.used[1] or c.used[2]:
        raise Blocked("its factorisation is of A or of its transpose, by how A lies in memory",
                      "use torch.linalg.lu_factor and torch.linalg.lu_solve")  # fmt: skip
    x, info = _solution(c, A, B, left)
    if check_errors:
        check_info(c, info, "linalg.solve")
    return x, None, None, info


def public_solve_ex(
    c: Context, A: Value, B: Value, left: bool = True, check_errors: bool = False
) -> tuple[Value, Value]:
    x, info = _solution(c, A, B, left)
    if check_errors:
        check_info(c, info, "linalg.solve")
    return x, info


def solve(c: Context, A: Value, B: Value, left: bool = True) -> Value:
    return public_solve_ex(c, A, B, left, check_errors=True)[0]


def _solution(c: Context, a: Value, b: Value, left: bool) -> tuple[Value, Value]:
    packed, pivots, info = c.builder.op("linalg.lu", [a]).results
    is_vector = b.rank == 1 or (b.rank == a.rank - 1 and b.dims == a.dims[:-1])
    if not is_vector:
        return solved(c, packed, pivots, b, left), info
    column = c.builder.reshape(b, (*b.dims, 1))
    x = solved(c, packed, pivots, column, left)
    return c.builder.reshape(x, x.dims[:-1]), info


def inverse_ex(c: Context, A: Value, check_errors: bool = False) -> tuple[Value, Value]:
    """The inverse, and info."""
    packed, pivots, info = c.builder.op("linalg.lu", [A]).results
    if check_errors:
        check_info(c, info, "linalg.inv")
    return solved(c, packed, pivots, eye(c, A.dims, A.element)), info


def inverse(c: Context, A: Value) -> Value:
    return inverse_ex(c, A, check_errors=True)[0]


def solve_triangular(
    c: Context, self: Value, B: Value, upper: bool, left: bool = True, unitriangular: bool = False
) -> Value:
    """X with A X = B (left) or X A = B, A a triangle of self."""
    a, b = together(c, self, B)
    return triangular(c, a, b, not upper, unitriangular, left=left)


def old_triangular_solve(
    c: Context,
    self: Value,
    A: Value,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Value, Value]:
    """X with A X = self or A^T X = self; then A."""
    a, b = together(c, A, self)
    form = "TRANSPOSE" if transpose else "NO_TRANSPOSE"
    return triangular(c, a, b, not upper, unitriangular, form), a


def cholesky_solve(c: Context, self: Value, input2: Value, upper: bool = False) -> Value:
    """X with A X = self, A given by its Cholesky factor."""
    factor, b = together(c, input2, self)
    forms = ("ADJOINT", "NO_TRANSPOSE") if upper else ("NO_TRANSPOSE", "ADJOINT")
    for form in forms:
        b = triangular(c, factor, b, not upper, form=form)
    return b


def cholesky_inverse(c: Context, self: Value, upper: bool = False) -> Value:
    return cholesky_solve(c, eye(c, self.dims, self.element), self, upper)


# Solutions of least squares.


def tolerance(c: Context, a: Value, largest: Value, atol: Any, rtol: Any) -> Value:
    """What singular values of a have to exceed to count: max(atol, rtol largest), with
    dims (*batch, 1), those of atol and rtol as well; rtol is by default eps times the longer side
    where atol is not positive."""
    real, (rows, columns) = real_element(a.element), map(static, a.dims[-2:])
    usual = float(ml_dtypes.finfo(real.dtype).eps) * max(rows, columns)
    if rtol is None:
        if atol is None:
            rtol = c.full(usual, (), real)
        else:
            rtol = c.select(c.compare("GT", atol, 0.0), 0.0, c.full(usual, atol.dims, atol.element))
    atol = c.full(0.0, (), real) if atol is None else atol
    batch = broadcast_dims(largest.dims[:-1], atol.dims, rtol.dims)
    largest = c.spread(largest, (*batch, 1))
    absolute, relative = (
        c.builder.reshape(c.spread(c.convert(value, real), batch), largest.dims)
        for value in (atol, rtol)
    )
    return c("maximum", absolute, c("multiply", relative, largest))


def tolerances(c: Context, *given: Any) -> list[Value | None]:
    """Tolerances that may be numbers as values."""
    return [c.scalar(v, F64) if isinstance(v, (int, float)) else v for v in given]


def pseudoinverse(
    c: Context, self: Value, atol: Any = None, rtol: Any = None, hermitian: bool = False
) -> Value:
    """V S^+ U^H of the singular values above the tolerance, or the eigenvalues, if hermitian."""
    atol, rtol = tolerances(c, atol, rtol)
    if 0 in self.dims:
        return c.full(0, c.dims, c.element)
    if hermitian:
        left, s, _ = c.builder.op("linalg.eigh", [self]).results
        sizes, right = c("abs", s), left
    else:
        s, left, rows, _ = c.builder.op("linalg.svd", [self], {"full_matrices": False}).results
        sizes, right = s, adjoint(c, rows)
    largest = c.reduce("maximum", sizes, [s.rank - 1])
    largest = c.builder.reshape(largest, (*largest.dims, 1))
    limit = tolerance(c, self, largest, atol, rtol)
    batch = limit.dims[:-1]  # wider than that of the matrices where a tensor has several tolerances
    s, sizes, limit = (c.spread(v, (*batch, *s.dims[-1:])) for v in (s, sizes, limit))
    left, right = (c.spread(v, (*batch, *v.dims[-2:])) for v in (left, right))
    one = c.full(1, s.dims, s.element)
    inverse = c.select(c.compare("GT", sizes, limit), c("divide", one, s), 0.0)
    inverse = c.convert(inverse, self.element)
    columns = c.builder.broadcast(inverse, right.dims, [*range(s.rank - 1), s.rank])
    return product(c, c("multiply", right, columns), adjoint(c, left))


def pseudoinverse_rcond(
    c: Context, self: Value, rcond: Any = 1e-15, hermitian: bool = False
) -> Value:
    return pseudoinverse(c, self, None, rcond, hermitian)


TABLE: dict[str, Callable[..., Any]] = {
    "aten._linalg_solve_ex.default": solve_ex,
    "aten.cholesky_inverse.default": cholesky_inverse,
    "aten.cholesky_solve.default": cholesky_solve,
    "aten.inverse.default": inverse,
    "aten.linalg_inv.default": inverse,
    "aten.linalg_inv_ex.default": inverse_ex,
    "aten.linalg_lu_solve.default": lu_solve,
    "aten.linalg_pinv.atol_rtol_float": pseudoinverse,
    "aten.linalg_pinv.atol_rtol_tensor": pseudoinverse,
    "aten.linalg_pinv.default": pseudoinverse_rcond,
    "aten.linalg_pinv.rcond_tensor": pseudoinverse_rcond,
    "aten.linalg_solve.default": solve,
    "aten.linalg_solve_ex.default": public_solve_ex,
    "aten.linalg_solve_triangular.default": solve_triangular,
    "aten.lu_solve.default": old_lu_solve,
    "aten.pinverse.default": pseudoinverse_rcond,
    "aten.triangular_solve.default": old_triangular_solve,
}
