"""jnp.linalg and jax.scipy.linalg, exported and traced: what JAX computes, on both engines.

Signs and phases of vectors are free, but both sides call LAPACK the same way here; where they may
still differ, invariants of the factorisation are compared.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
import pytest
from jax import export, lax

import girih
from girih.frontends.jax.importing import read_exported
from girih.frontends.stablehlo import read_tree
from girih.frontends.stablehlo.convert import Converter, EntryArgument
from girih.hlo.graph import Module
from girih.hlo.types import tensor_of

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)


def matrices(dtype: Any, *dims: int, seed: int = 3) -> np.ndarray[Any, Any]:
    """Well conditioned random matrices with eigenvalues and singular values apart."""
    generator = np.random.default_rng(seed)
    a = generator.standard_normal(dims)
    if np.dtype(dtype).kind == "c":
        a = a + 1j * generator.standard_normal(dims)
    return (a + 2 * np.eye(dims[-2], dims[-1])).astype(dtype)


def hermitian(a: Any) -> Any:
    return a + jnp.conj(jnp.swapaxes(a, -1, -2))


def definite(a: Any) -> Any:
    return a @ jnp.conj(jnp.swapaxes(a, -1, -2)) + jnp.eye(a.shape[-1], dtype=a.dtype)


def columns(v: Any) -> Any:
    """Projectors on the columns, which no phase changes."""
    return jnp.einsum("...ik,...jk->...kij", v, jnp.conj(v))


def eigenvalues(w: Any) -> Any:
    """Symmetric functions of eigenvalues, which no order changes."""
    return jnp.stack([(w**power).sum(-1) for power in (1, 2, 3)])


def eig(a: Any) -> Any:
    w, v = jnp.linalg.eig(a)
    scaled = v * w[..., None, :]
    return eigenvalues(w), jnp.abs(a.astype(v.dtype) @ v - scaled).max() < 1e-3


def eigh(a: Any) -> Any:
    w, v = jnp.linalg.eigh(hermitian(a))
    return w, columns(v)


def svd(a: Any, full: bool) -> Any:
    u, s, vt = jnp.linalg.svd(a, full_matrices=full)
    k = s.shape[-1]
    product = (u[..., :k] * s[..., None, :].astype(u.dtype)) @ vt[..., :k, :]
    gram = jnp.conj(jnp.swapaxes(u, -1, -2)) @ u
    return s, product, gram


def schur(a: Any) -> Any:
    t, z = jsl.schur(a)
    return z @ t @ jnp.conj(z.T), jnp.conj(z.T) @ z, jnp.diagonal(t, -2)


def perturbed(a: Any) -> Any:
    return a[..., :1, :] * 0.5 + a


SQUARE: dict[str, Callable[[Any], Any]] = {
    "cholesky": lambda a: jnp.linalg.cholesky(definite(a)),
    "cholesky_upper": lambda a: jnp.linalg.cholesky(definite(a), upper=True),
    "solve": lambda a: jnp.linalg.solve(a, perturbed(a)),
    "inv": jnp.linalg.inv,
    "det": jnp.linalg.det,
    "slogdet": jnp.linalg.slogdet,
    "qr": lambda a: tuple(jnp.linalg.qr(a)),
    "svd": lambda a: svd(a, True),
    "singular_values": lambda a: jnp.linalg.svd(a, compute_uv=False),
    "eigh": eigh,
    "eigvalsh": lambda a: jnp.linalg.eigvalsh(hermitian(a)),
    "eig": eig,
    "eigvals": lambda a: eigenvalues(jnp.linalg.eigvals(a)),
    "matrix_rank": jnp.linalg.matrix_rank,
    "cond": jnp.linalg.cond,
    "norm_2": lambda a: jnp.linalg.norm(a, 2, axis=(-2, -1)),
    "norm_nuclear": lambda a: jnp.linalg.norm(a, "nuc", axis=(-2, -1)),
    "pinv": jnp.linalg.pinv,
    "expm": lambda a: jsl.expm(a * 0.2),
    "matrix_power": lambda a: jnp.linalg.matrix_power(a, -2),
    "lu": jsl.lu,
    "lu_solve": lambda a: jsl.lu_solve(jsl.lu_factor(a), perturbed(a)),
    "cho_solve": lambda a: jsl.cho_solve(jsl.cho_factor(definite(a)), a),
    "triangular": lambda a: jsl.solve_triangular(a, perturbed(a), lower=True, trans="T"),
    "adjoint_triangular": lambda a: jsl.solve_triangular(a, a, trans="C"),
    "right_triangular": lambda a: lax.linalg.triangular_solve(a, a, unit_diagonal=True, lower=True),
    "hessenberg": lambda a: lax.linalg.hessenberg(a),
    "tridiagonal": lambda a: lax.linalg.tridiagonal(hermitian(a)),
    "tridiagonal_solve": lambda a: lax.linalg.tridiagonal_solve(
        a[..., 0, :], a[..., 1, :] + 4, a[..., 2, :], a
    ),
    "lu_parts": lax.linalg.lu,
    "ormqr": lambda a: lax.linalg.ormqr(a, a[..., 0, :] * 0.1, a, transpose=True),
    "svd_qr": lambda a: lax.linalg.svd(
        a, compute_uv=False, algorithm=lax.linalg.SvdAlgorithm.QR
    ),
    "qr_pivoted": lambda a: lax.linalg.qr(a, pivoting=True),
    "multi_dot": lambda a: jnp.linalg.multi_dot([a[0], a[1], a[0]]) if a.ndim > 2 else a,
}  # fmt: skip
SINGLE: dict[str, Callable[[Any], Any]] = {
    "schur": schur,
    "sqrtm": lambda a: jsl.sqrtm(definite(a)),
    "funm": lambda a: jsl.funm(definite(a), jnp.log),
    "polar": jsl.polar,
    "hessenberg_matrix": lambda a: jsl.hessenberg(a, calc_q=True),
    "lstsq": lambda a: jnp.linalg.lstsq(a, a[:, 0])[0],
    "svd_wide": lambda a: svd(a[:3], False),
    "singular_values_wide": lambda a: jnp.linalg.svd(a[:3], full_matrices=True, compute_uv=False),
    "svd_tall": lambda a: svd(a[:, :3], True),
    "qr_tall": lambda a: jnp.linalg.qr(a[:, :2], mode="complete"),
    "qr_wide": lambda a: jnp.linalg.qr(a[:2]),
    "lu_tall": lambda a: jsl.lu(a[:, :2]),
    "lu_wide": lambda a: jsl.lu(a[:2]),
    "qr_pivoted_scipy": lambda a: jsl.qr(a, pivoting=True),
    "not_definite": lambda a: jnp.linalg.cholesky(-definite(a)),
    "singular": lambda a: jnp.linalg.inv(a.at[0].set(a[1])) * 0,
    "rsf2csf": lambda a: jnp.abs(jnp.tril(jsl.rsf2csf(*jsl.schur(a))[0], -1)).max() < 1e-3,
    "eigh_tridiagonal": lambda a: jsl.eigh_tridiagonal(
        a[0].real, a[1, 1:].real, eigvals_only=True
    ),
}  # fmt: skip


COMPLEX_SINGLE = (
    "schur", "hessenberg_matrix", "lstsq", "svd_wide", "qr_tall", "lu_wide", "not_definite",
)  # fmt: skip


def close(found: Any, wanted: Any, tolerance: float) -> None:
    left, right = jax.tree.leaves(found), jax.tree.leaves(wanted)
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype and a.shape == b.shape
        scale = np.abs(b[np.isfinite(b)]).max(initial=1.0)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)


def run(module: Module, *inputs: Any) -> Iterator[Any]:
    """The answers of the interpreter and of the cpu backend."""
    assert module.signature is not None
    yield module.signature.unflatten(girih.interpret(module, list(inputs)))
    program = girih.compile(module)
    yield program(*inputs)


CASES = [
    *((name, f, np.float32, ()) for name, f in SINGLE.items()),
    *((name, SINGLE[name], np.complex128, ()) for name in COMPLEX_SINGLE),
    *(
        (name, f, dtype, (2,) if number % 2 else ())
        for place, (name, f) in enumerate(SQUARE.items())
        for number, dtype in enumerate(DTYPES)
        if (place + number) % 2 == 0 or name in ("eig", "svd", "solve", "eigh", "qr")
    ),
]


@pytest.mark.parametrize(
    "name, function, dtype, batch",
    CASES,
    ids=[f"{name}-{np.dtype(dtype)}-{len(batch)}" for name, _, dtype, batch in CASES],
)
def test_agrees_with_jax(name: str, function: Any, dtype: Any, batch: tuple[int, ...]) -> None:
    tolerance = 2e-3 if np.dtype(dtype) in (np.float32, np.complex64) else 1e-9
    with jax.enable_x64(True):
        a = matrices(dtype, *batch, 5, 5)
        wanted = jax.jit(function)(a)
        for found in run(girih.import_model(jax.jit(function), a), a):
            close(found, wanted, tolerance)


@pytest.mark.parametrize("name", ["solve", "eig", "svd", "eigh", "cholesky", "qr", "tridiagonal"])
def test_exports_agree_with_jax(name: str) -> None:
    a = matrices(np.float32, 2, 4, 4)
    data = export.export(jax.jit(SQUARE[name]))(a).serialize()
    wanted = jax.jit(SQUARE[name])(a)
    for found in run(read_exported(bytes(data)), a):
        close(found, wanted, 1e-3)


# JAX's own files of earlier versions, which it promises to read.


def historical() -> Iterator[tuple[str, dict[str, Any]]]:
    package = "jax._src.internal_test_util.export_back_compat_test_data"
    try:
        root = importlib.import_module(package)
    except ImportError:
        return
    for found in pkgutil.iter_modules(root.__path__):
        if found.name.startswith(("cpu_", "tpu_", "stablehlo_", "cuda_threefry", "cuda_lu_pivots")):
            try:
                members = vars(importlib.import_module(f"{package}.{found.name}"))
            except ImportError:
                continue
            for key, value in members.items():
                if key.startswith("data") and isinstance(value, dict):
                    yield from _files(f"{found.name}-{key}", value)


def _files(name: str, value: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    if "mlir_module_serialized" in value:
        yield name, value
    else:
        for key, inner in value.items():
            if isinstance(inner, dict):
                yield from _files(f"{name}-{key}", inner)


HISTORICAL = dict(historical())
# Vectors with free phases, an initial value that each element of a window meets as often as the
# target likes, and programs for several devices.
PHASES_FREE = ("eig_", "eigh_", "Eigh", "schur_")
NOT_COMPARED = ("reduce_window-data_variadic", "tpu_Sharding", "shardy")


@pytest.mark.parametrize("name", sorted(HISTORICAL))
def test_historical_exports(name: str) -> None:
    if any(part in name for part in NOT_COMPARED):
        pytest.skip("its numbers are left open, or it is for several devices")
    case = HISTORICAL[name]
    inputs = [np.asarray(x) for x in case["inputs"]]
    types = dict(enumerate(map(tensor_of, inputs)))
    layout = [EntryArgument(index) for index in range(len(inputs))]
    document = read_tree(case["mlir_module_serialized"])
    if inputs:
        module = Converter(document, entry_arguments=layout, input_types=types).module()
    else:
        module = Converter(document).module()
    found = girih.interpret(module, inputs)
    wanted = case["expected_outputs"]
    wanted = wanted if isinstance(wanted, (tuple, list)) else [wanted]
    narrow = any(np.asarray(w).dtype in (np.float32, np.complex64) for w in wanted)
    tolerance = 2e-5 if narrow else 1e-11
    compared = zip(found, wanted, strict=True)
    if any(part in name for part in PHASES_FREE):
        compared = ((np.sort_complex(np.abs(a.ravel())), np.sort_complex(np.abs(b.ravel())))
                    for a, b in compared if a.ndim == 1)  # fmt: skip
    for a, b in compared:
        close(a, np.asarray(b).astype(a.dtype), tolerance)
