"""Factorisations of matrices: eigh, eig, svd, qr, cholesky, lu, ldl, det, slogdet.

Where PyTorch raises on a matrix that has no such factorisation, so does a call; the `_ex` operators
tell it by their info alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ....hlo.graph import Value
from ....hlo.types import I32
from ..context import Blocked, Context, static
from .linear_systems import permutation
from .matrices import adjoint, check_info, diagonal, eye, failure, nothing, triangle


def eigh(
    c: Context, A: Value, UPLO: str = "L", compute_v: bool = True
) -> tuple[Value, Value | None]:
    """Rising eigenvalues and, in columns, orthonormal eigenvectors of Hermitian matrices."""
    values, vectors = _eigh(c, A, UPLO)
    return values, vectors if compute_v else nothing(c, 1)


def eigvalsh(c: Context, self: Value, UPLO: str = "L") -> Value:
    return _eigh(c, self, UPLO)[0]


def _eigh(c: Context, a: Value, triangle: str) -> tuple[Value, Value]:
    facts = {"lower": triangle.upper() == "L"}
    vectors, values, info = c.builder.op("linalg.eigh", [a], facts).results
    check_info(c, info, "linalg.eigh")
    return values, vectors


def eig(c: Context, self: Value) -> tuple[Value, Value]:
    """Eigenvalues and, in columns, eigenvectors of length one, both complex."""
    return _eig(c, self, True)


def eigvals(c: Context, self: Value) -> Value:
    return _eig(c, self, False)[0]


def _eig(c: Context, a: Value, vectors: bool) -> tuple[Value, Value]:
    facts = {"left": False, "right": vectors}
    values, _, right, info = c.builder.op("linalg.eig", [a], facts).results
    check_info(c, info, "linalg.eig")
    return values, right


def svd(
    c: Context, A: Value, full_matrices: bool = False, compute_uv: bool = True, driver: Any = None
) -> tuple[Value | None, Value, Value | None]:
    """U, S and V^H with A = U diag(S) V^H, S falling."""
    s, u, vh = _svd(c, A, full_matrices, compute_uv)
    return (u, s, vh) if compute_uv else (nothing(c, 0), s, nothing(c, 2))


def public_svd(
    c: Context, A: Value, full_matrices: bool = True, driver: Any = None
) -> tuple[Value | None, Value, Value | None]:
    return svd(c, A, full_matrices)


def old_svd(
    c: Context, self: Value, some: bool = True, compute_uv: bool = True
) -> tuple[Value | None, Value, Value | None]:
    """U, S and V with A = U diag(S) V^H; U and V are zero where they are not computed."""
    u, s, vh = svd(c, self, not some, compute_uv)
    return u, s, adjoint(c, vh) if vh is not None and compute_uv else vh


def singular_values(c: Context, A: Value, driver: Any = None) -> Value:
    return _svd(c, A, False, False)[0]


def _svd(c: Context, a: Value, full: bool, vectors: bool) -> tuple[Value, Value, Value]:
    facts = {"full_matrices": full, "compute_uv": vectors}
    s, u, vh, info = c.builder.op("linalg.svd", [a], facts).results
    check_info(c, info, "linalg.svd")
    if vectors and 0 in a.dims[-2:]:  # bases of the whole space, or of nothing
        u, vh = (eye(c, value.dims, value.element) for value in (u, vh))
    return s, u, vh


def qr(c: Context, A: Value, mode: str = "reduced") -> tuple[Value | None, Value]:
    """Q and R with A = Q R: reduced, complete, or R alone."""
    packed, taus = geqrf(c, A)
    rows, columns = map(static, A.dims[-2:])
    kept = rows if mode == "complete" else min(rows, columns)
    upper = triangle(c, c.slice(packed, A.rank - 2, 0, kept), lower=False)
    if mode == "r":
        return nothing(c, 0), upper
    reflectors = c.slice(packed, A.rank - 1, 0, min(kept, columns))
    pads = [(0, 0, 0)] * (A.rank - 1) + [(0, max(kept - columns, 0), 0)]
    return c("linalg.householder_product", c.pad(reflectors, 0, pads), taus), upper


def old_qr(c: Context, self: Value, some: bool = True) -> tuple[Value | None, Value]:
    return qr(c, self, "reduced" if some else "complete")


def geqrf(c: Context, self: Value) -> tuple[Value, Value]:
    """R and, below it, the reflectors whose product is Q; their factors."""
    packed, taus = c.builder.op("linalg.qr", [self]).results
    return packed, taus


def householder_product(c: Context, input: Value, tau: Value) -> Value:
    return c("linalg.householder_product", input, tau)


def householder_multiply(
    c: Context,
    self: Value,
    input2: Value,
    input3: Value,
    left: bool = True,
    transpose: bool = False,
) -> Value:
    """Q or, transposed, Q^H times input3 (left), or input3 times it."""
    facts = {"left": left, "transpose": transpose}
    return c.builder.op("linalg.householder_multiply", [self, input2, input3], facts).results[0]


def cholesky(c: Context, self: Value, upper: bool = False) -> Value:
    """L with L L^H = A, or U with U^H U = A."""
    return _cholesky(c, self, upper, True)[0]


def cholesky_ex(
    c: Context, self: Value, upper: bool = False, check_errors: bool = False
) -> tuple[Value, Value | None]:
    """The factor, NaN where A is not positive definite; info: the first leading minor that is not,
    counted from 1."""
    factor, failed = _cholesky(c, self, upper, check_errors)
    return factor, _first_minor(c, self, failed, upper) if c.used[1] else None


def _cholesky(c: Context, a: Value, upper: bool, check: bool) -> tuple[Value, Value]:
    """The factor, and where there is none."""
    factor = c("cholesky", a, lower=not upper)
    failed = _is_nan(c, factor)
    if check:
        any_failed = c.reduce("or", failed, range(failed.rank))
        c.check(c("not", any_failed), failure("linalg.cholesky"))
    return factor, failed


def _is_nan(c: Context, factor: Value) -> Value:
    """Which matrices of the batch hold a NaN."""
    failed = c.is_nan(factor)
    return c.reduce("or", failed, [factor.rank - 2, factor.rank - 1])


def _first_minor(c: Context, a: Value, failed: Value, upper: bool) -> Value:
    """The order of the first leading minor that is not positive definite, 0 where there is none; it
    is looked for, by halves, only if one of the batch has it."""
    size = static(a.dims[-1])
    none = c.full(0, failed.dims, I32)

    def search() -> list[Value]:
        good = none  # so many leading minors are positive definite
        for bit in reversed(range(size.bit_length())):
            tried = c.add(good, 1 << bit)
            order = c.builder.broadcast(tried, a.dims, range(failed.rank))
            inside = [
                c.builder.compare("LT", c.iota(a.dims, axis, I32), order)
                for axis in (a.rank - 2, a.rank - 1)
            ]
            part = c("select", c("and", *inside), a, eye(c, a.dims, a.element))
            wrong = _is_nan(c, c("cholesky", part, lower=not upper))
            small = c.builder.compare("LE", tried, c.full(size, tried.dims, I32))
            good = c("select", c("and", small, c("not", wrong)), tried, good)
        return [c("select", failed, c.add(good, 1), none)]

    any_failed = c.reduce("or", failed, range(failed.rank))
    regions = [c.nested((), search), c.nested((), lambda: [c.full(0, none.dims, I32)])]
    return c.builder.op("if", [any_failed], {}, regions, [none.tensor]).results[0]


def lu_factor_ex(
    c: Context, A: Value, pivot: bool = True, check_errors: bool = False
) -> tuple[Value, Value, Value]:
    """LU as one matrix, pivots counted from 1, and info."""
    if not pivot:
        raise Blocked("factorises without pivots, which PyTorch has for CUDA only",
                      "leave pivot=False out")  # fmt: skip
    packed, pivots, info = c.builder.op("linalg.lu", [A]).results
    if check_errors:
        check_info(c, info, "linalg.lu_factor")
    return packed, pivots, info


def lu_factor(c: Context, A: Value, pivot: bool = True) -> tuple[Value, Value]:
    return lu_factor_ex(c, A, pivot, check_errors=True)[:2]


def old_lu(
    c: Context, self: Value, pivot: bool = True, check_errors: bool = True
) -> tuple[Value, Value, Value]:
    return lu_factor_ex(c, self, pivot, check_errors)


def lu(c: Context, A: Value, pivot: bool = True) -> tuple[Value | None, ...]:
    """P, L and U with A = P L U."""
    packed, pivots, _ = lu_factor_ex(c, A, pivot)
    return lu_unpack(c, packed, pivots)


def lu_unpack(
    c: Context,
    LU_data: Value,
    LU_pivots: Value,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
) -> tuple[Value | None, ...]:
    """P, L and U of a factorisation."""
    lower, upper = nothing(c, 1), nothing(c, 2)
    order = nothing(c, 0)
    rank, (rows, columns) = LU_data.rank, map(static, LU_data.dims[-2:])
    kept = min(rows, columns)
    if unpack_data:
        left = c.slice(LU_data, rank - 1, 0, kept)
        ones = eye(c, left.dims, left.element)
        lower = c("add", triangle(c, left, lower=True, beside=1), ones)
        upper = triangle(c, c.slice(LU_data, rank - 2, 0, kept), lower=False)
    if unpack_pivots and c.used[0]:
        places = permutation(c, LU_pivots, rows)
        dims = (*LU_data.dims[:-2], rows, rows)
        wide = c.builder.broadcast(places, dims, [*range(rank - 2), rank - 1])
        here = c.builder.compare("EQ", wide, c.iota(dims, rank - 2, I32))
        order = c.convert(here, LU_data.element)
    return order, lower, upper


def slogdet(c: Context, A: Value) -> tuple[Value, Value, Value, Value]:
    """The determinant's sign and the logarithm of its size, then LU and pivots."""
    packed, pivots, entries = _lu(c, A)
    sizes = c("abs", entries)
    sign = c("multiply", _parity(c, pivots, entries), _product(c, c("sign", entries)))
    return sign, c.reduce("add", c("log", sizes), [sizes.rank - 1]), packed, pivots


def public_slogdet(c: Context, A: Value) -> tuple[Value, Value]:
    return slogdet(c, A)[:2]


def determinant(c: Context, A: Value) -> tuple[Value, Value, Value]:
    """The determinant, then LU and pivots."""
    packed, pivots, entries = _lu(c, A)
    return c("multiply", _parity(c, pivots, entries), _product(c, entries)), packed, pivots


def public_determinant(c: Context, A: Value) -> Value:
    return determinant(c, A)[0]


def logarithm_of_determinant(c: Context, A: Value) -> Value:
    """log of the determinant; of real matrices nan where that is negative."""
    sign, size, *_ = slogdet(c, A)
    if sign.element.is_complex:
        return c.add(c("log", sign), c.convert(size, sign.element))
    return c.select(c.compare("EQ", sign, -1), math.nan, size)


def _lu(c: Context, a: Value) -> tuple[Value, Value, Value]:
    """LU, pivots, and the diagonal of U."""
    packed, pivots, _ = c.builder.op("linalg.lu", [a]).results
    return packed, pivots, diagonal(c, packed)


def _parity(c: Context, pivots: Value, like: Value) -> Value:
    """-1 where an odd number of rows was exchanged, else 1."""
    own = c.add(c.iota(pivots.dims, pivots.rank - 1, I32), 1)
    moved = c.convert(c.builder.compare("NE", pivots, own), I32)
    odd = c("remainder", count := c.reduce("add", moved, [moved.rank - 1]),
            c.full(2, count.dims, I32))  # fmt: skip
    return c.convert(c.subtract(1, c.multiply(odd, 2)), like.element)


def _product(c: Context, value: Value) -> Value:
    return c.reduce("multiply", value, [value.rank - 1])


def errors_checked(
    c: Context, info: Value, api_name: str, is_matrix: bool = False
) -> tuple[Value, ...]:
    """What PyTorch raises by an operator's info: a check of the call."""
    check_info(c, info, api_name)
    return ()


def ordered_effect(
    c: Context, token: Any, operator: str, *args: Any, **kwargs: Any
) -> tuple[Any, ...]:
    """An operator with an effect, in the order of tokens: a check, which needs none."""
    if operator.removeprefix("torch.ops.") != "aten._linalg_check_errors.default":
        raise Blocked(f"has the effect of {operator}")
    errors_checked(c, *args, **kwargs)
    return token, *(None for _ in c.node.outputs[1:])


TABLE: dict[str, Callable[..., Any]] = {
    "aten._linalg_check_errors.default": errors_checked,
    "aten._linalg_det.default": determinant,
    "aten._linalg_eigh.default": eigh,
    "aten._linalg_eigvals.default": eigvals,
    "aten._linalg_slogdet.default": slogdet,
    "aten._linalg_svd.default": svd,
    "aten._lu_with_info.default": old_lu,
    "aten.cholesky.default": cholesky,
    "aten.geqrf.default": geqrf,
    "aten.linalg_cholesky.default": cholesky,
    "aten.linalg_cholesky_ex.default": cholesky_ex,
    "aten.det.default": public_determinant,
    "aten.linalg_det.default": public_determinant,
    "aten.linalg_eig.default": eig,
    "aten.linalg_eigh.default": eigh,
    "aten.linalg_eigvals.default": eigvals,
    "aten.linalg_eigvalsh.default": eigvalsh,
    "aten.linalg_householder_product.default": householder_product,
    "aten.linalg_lu.default": lu,
    "aten.linalg_lu_factor.default": lu_factor,
    "aten.linalg_lu_factor_ex.default": lu_factor_ex,
    "aten.linalg_qr.default": qr,
    "aten.linalg_slogdet.default": public_slogdet,
    "aten.logdet.default": logarithm_of_determinant,
    "aten.slogdet.default": public_slogdet,
    "aten.linalg_svd.default": public_svd,
    "aten.linalg_svdvals.default": singular_values,
    "aten.lu_unpack.default": lu_unpack,
    "aten.orgqr.default": householder_product,
    "aten.ormqr.default": householder_multiply,
    "aten.qr.default": old_qr,
    "aten.svd.default": old_svd,
    "with_effects": ordered_effect,
}
