"""What operators of linear algebra determine, where their results are not unique: signs and phases
of vectors, rows of equal pivots, bases of spaces.

Each function takes the arguments that are tensors and the results (of either side), and gives what
both sides have to agree on; shapes and types of the results are part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

Results = Sequence[Any]
Reconstruction = Callable[[Sequence[torch.Tensor], Results], list[Any]]


def _adjoint(a: Any) -> Any:
    return np.conj(np.swapaxes(a, -1, -2))


def _kinds(results: Results) -> list[Any]:
    """Dims and types, as numbers."""
    arrays = [np.asarray(x) for x in results]
    return [np.asarray([*x.shape, ord(x.dtype.char)]) for x in arrays]


def _gram(a: Any) -> Any:
    return _adjoint(a) @ a


def _powers(values: Any) -> list[Any]:
    """Sums of powers, which no order changes, with values of size 1."""
    scale = np.maximum(np.abs(values).max(-1, keepdims=True, initial=0), 1e-30)
    return [np.asarray(((values / scale) ** k).sum(-1)) for k in (1, 2, 3)]


def eigh(given: Sequence[torch.Tensor], results: Results) -> list[Any]:
    w, v = map(np.asarray, results)
    return [*_kinds(results), w, (v * w[..., None, :]) @ _adjoint(v), _gram(v)]


def eig(given: Sequence[torch.Tensor], results: Results) -> list[Any]:
    w, v = map(np.asarray, results)
    a = given[0].numpy()
    scale = max(1.0, float(np.abs(a).max(initial=0)))
    lengths = np.sqrt((np.abs(v) ** 2).sum(-2))
    return [*_kinds(results), *_powers(w), (a @ v - v * w[..., None, :]) / scale, lengths]


def eigvals(given: Sequence[torch.Tensor], results: Results) -> list[Any]:
    return [*_kinds(results), *_powers(np.asarray(results[0]))]


def svd(given: Sequence[torch.Tensor], results: Results) -> list[Any]:
    """Of U, S, V^H, or of S alone."""
    u, s, vh = map(np.asarray, results)
    k = s.shape[-1]
    whole = (u[..., :k] * s[..., None, :]) @ vh[..., :k, :]
    return [*_kinds(results), s, whole, _gram(u), _gram(_adjoint(vh))]


def old_svd(given: Sequence[torch.Tensor], results: Results) -> list[Any]:
    u, s, v = map(np.asarray, results)
    return svd(given, [u, s, _adjoint(v)])


def cholesky_ex(given: Sequence[torch.Tensor], results: Results) -> list[Any]:
    """The factors of those matrices that have one, and which have not."""
    factor, info = map(np.asarray, results)
    return [*_kinds(results), np.where(info[..., None, None] == 0, factor, 0), info]


def qr(given: Sequence[torch.Tensor], results: Results) -> list[Any]:
    q, r = map(np.asarray, results)
    if q.size == 0:  # R alone
        return [*_kinds(results), _gram(r)]
    return [*_kinds(results), q @ r, _gram(q), _gram(r)]


def geqrf(given: Sequence[torch.Tensor], results: Results) -> list[Any]:
    a, tau = (torch.from_numpy(np.array(x)) for x in results)
    k = tau.shape[-1]
    q = torch.linalg.householder_product(a[..., :k], tau)
    return [*_kinds(results), (q @ a[..., :k, :].triu()).numpy()]


def lu(given: Sequence[torch.Tensor], results: Results) -> list[Any]:
    p, lower, upper = map(np.asarray, results)
    return [*_kinds(results), p @ lower @ upper, np.abs(lower).max(initial=0) <= 1.001]


def lu_factor(given: Sequence[torch.Tensor], results: Results) -> list[Any]:
    packed, pivots, *info = (torch.from_numpy(np.array(x)) for x in results)
    parts = [x.numpy() for x in torch.lu_unpack(packed, pivots)]
    return [*_kinds(results), *lu(given, parts), *(x.numpy() for x in info)]


def ldl_factor(given: Sequence[torch.Tensor], results: Results) -> list[Any]:
    """The same solutions, for both symmetric and Hermitian factors."""
    packed, pivots, *info = (torch.from_numpy(np.array(x)) for x in results)
    one = torch.eye(packed.shape[-1], dtype=packed.dtype).expand_as(packed)
    found = []
    for hermitian in (True, False) if packed.is_complex() else (False,):
        x = torch.linalg.ldl_solve(packed, pivots, one, hermitian=hermitian).numpy()
        found.append(x / np.maximum(np.abs(x).max((-1, -2), keepdims=True, initial=0), 1.0))
    return [*_kinds(results), *found, *(x.numpy() for x in info)]


RECONSTRUCTIONS: dict[str, Reconstruction] = {
    "geqrf": geqrf,
    "linalg.cholesky_ex": cholesky_ex,
    "linalg.eig": eig,
    "linalg.eigh": eigh,
    "linalg.eigvals": eigvals,
    "linalg.ldl_factor": ldl_factor,
    "linalg.ldl_factor_ex": ldl_factor,
    "linalg.lu": lu,
    "linalg.lu_factor": lu_factor,
    "linalg.lu_factor_ex": lu_factor,
    "linalg.qr": qr,
    "linalg.svd": svd,
    "lu": lu_factor,
    "qr": qr,
    "svd": old_svd,
}
