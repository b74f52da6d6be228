"""Factorisations of matrices: eigh, svd, qr, cholesky, det, slogdet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....hlo.graph import Value
from ....hlo.types import I32, TensorType
from ..context import Blocked, Context, static


def eigh(
    c: Context, A: Value, UPLO: str = "L", compute_v: bool = True
) -> tuple[Value, Value | None]:
    """Rising eigenvalues and, in columns, orthonormal eigenvectors of Hermitian matrices."""
    vectors, values, _ = c.builder.op("linalg.eigh", [A], {"lower": UPLO.upper() == "L"}).results
    return values, vectors if compute_v else _nothing(c, 1)


def svd(
    c: Context, A: Value, full_matrices: bool = False, compute_uv: bool = True, driver: Any = None
) -> tuple[Value | None, Value, Value | None]:
    """U, S and V^H with A = U diag(S) V^H, S falling."""
    facts = {"full_matrices": full_matrices, "compute_uv": compute_uv}
    s, u, vh, _ = c.builder.op("linalg.svd", [A], facts).results
    return (u, s, vh) if compute_uv else (_nothing(c, 0), s, _nothing(c, 2))


def qr(c: Context, A: Value, mode: str = "reduced") -> tuple[Value | None, Value]:
    """Q and R with A = Q R: reduced, complete, or R alone."""
    packed, taus = c.builder.op("linalg.qr", [A]).results
    rows, columns = map(static, A.dims[-2:])
    kept = rows if mode == "complete" else min(rows, columns)
    upper = _triangle(c, c.slice(packed, A.rank - 2, 0, kept))
    if mode == "r":
        return _nothing(c, 0), upper
    reflectors = c.slice(packed, A.rank - 1, 0, min(kept, columns))
    pads = [(0, 0, 0)] * (A.rank - 1) + [(0, max(kept - columns, 0), 0)]
    return c("linalg.householder_product", c.pad(reflectors, 0, pads), taus), upper


def cholesky(c: Context, self: Value, upper: bool = False) -> Value:
    """L with L L^H = A, or U with U^H U = A; NaN where A is not positive definite."""
    return c("cholesky", self, lower=not upper)


def cholesky_ex(
    c: Context, self: Value, upper: bool = False, check_errors: bool = False
) -> tuple[Value, Value | None]:
    if c.used[1]:
        raise Blocked("says which minor is not positive", "use the factor alone: it is NaN there")
    return cholesky(c, self, upper), None


def slogdet(c: Context, A: Value) -> tuple[Value, Value, Value, Value]:
    """The determinant's sign and the logarithm of its size, then LU and pivots."""
    packed, pivots, diagonal = _lu(c, A)
    sizes = c("abs", diagonal)
    sign = c("multiply", _parity(c, pivots, diagonal), _product(c, c("sign", diagonal)))
    return sign, c.reduce("add", c("log", sizes), [sizes.rank - 1]), packed, pivots


def determinant(c: Context, A: Value) -> tuple[Value, Value, Value]:
    """The determinant, then LU and pivots."""
    packed, pivots, diagonal = _lu(c, A)
    return c("multiply", _parity(c, pivots, diagonal), _product(c, diagonal)), packed, pivots


def _nothing(c: Context, index: int) -> Value | None:
    """The empty tensor that PyTorch gives where a result is not computed."""
    return c.full(0, c.type_of(index).dims, c.type_of(index).element) if c.used[index] else None


def _lu(c: Context, a: Value) -> tuple[Value, Value, Value]:
    """LU, pivots, and the diagonal of U."""
    packed, pivots, _ = c.builder.op("linalg.lu", [a]).results
    rows = a.rank - 2
    places = c.builder.compare("EQ", *(c.iota(a.dims, axis) for axis in (rows, rows + 1)))
    chosen = c.select(places, packed, c.full(0, a.dims, a.element))
    return packed, pivots, c.reduce("add", chosen, [rows])


def _parity(c: Context, pivots: Value, like: Value) -> Value:
    """-1 where an odd number of rows was exchanged, else 1."""
    own = c.add(c.iota(pivots.dims, pivots.rank - 1, I32), 1)
    moved = c.convert(c.builder.compare("NE", pivots, own), I32)
    odd = c("remainder", count := c.reduce("add", moved, [moved.rank - 1]),
            c.full(2, count.dims, I32))  # fmt: skip
    return c.convert(c.subtract(1, c.multiply(odd, 2)), like.element)


def _product(c: Context, value: Value) -> Value:
    return c.reduce("multiply", value, [value.rank - 1])


def _triangle(c: Context, value: Value) -> Value:
    """The upper triangle, zero below it."""
    rows, columns = (c.iota(value.dims, axis) for axis in (value.rank - 2, value.rank - 1))
    kept = c.builder.compare("LE", rows, columns)
    return c("select", kept, value, c.fill(0, TensorType(value.dims, value.element)))


TABLE: dict[str, Callable[..., Any]] = {
    "aten._linalg_det.default": determinant,
    "aten._linalg_eigh.default": eigh,
    "aten._linalg_slogdet.default": slogdet,
    "aten._linalg_svd.default": svd,
    "aten.cholesky.default": cholesky,
    "aten.linalg_cholesky.default": cholesky,
    "aten.linalg_cholesky_ex.default": cholesky_ex,
    "aten.linalg_qr.default": qr,
}
