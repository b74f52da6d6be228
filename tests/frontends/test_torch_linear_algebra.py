"""Factorisations in torch models: the classes, shapes and numbers that torch gives.

Phases of eigenvectors and singular vectors are free: what they multiply to is compared.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import girih
from girih.hlo.errors import UserError

GENERATOR = torch.Generator().manual_seed(0)
WIDE, SQUARE, BATCH = (
    torch.randn(*dims, generator=GENERATOR) for dims in ((3, 4), (4, 4), (2, 3, 3))
)
POSITIVE = SQUARE @ SQUARE.T + torch.eye(4)
LINALG = torch.linalg


class Body(nn.Module):
    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body

    def forward(self, *inputs: Any) -> Any:
        return self.body(*inputs)


def results(body: Any, *inputs: torch.Tensor) -> tuple[Any, Any]:
    """What the compiled body gives, and what torch gives; their classes and shapes agree."""
    found, expected = girih.compile(Body(body), *inputs)(*inputs), body(*inputs)
    if isinstance(expected, tuple):
        assert type(found) is type(expected)
        assert [x.shape for x in found] == [tuple(x.shape) for x in expected]
    return found, expected


@pytest.mark.parametrize(
    ("body", "given"),
    [
        (LINALG.slogdet, SQUARE),
        (LINALG.slogdet, BATCH),
        (LINALG.slogdet, SQUARE + 1j * SQUARE.T),
        (LINALG.det, BATCH),
        (torch.logdet, POSITIVE),
        (LINALG.cholesky, POSITIVE),
        (lambda x: LINALG.cholesky(x, upper=True), POSITIVE),
        (LINALG.eigvalsh, POSITIVE),
        (LINALG.svdvals, WIDE),
        (lambda x: LINALG.qr(x, mode="r"), WIDE),
    ],
)
def test_numbers(body, given):
    found, expected = results(body, given)
    several = isinstance(expected, tuple)
    pairs = zip(found, expected, strict=True) if several else [(found, expected)]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("given", [WIDE, WIDE.T, BATCH])
@pytest.mark.parametrize("mode", ["reduced", "complete"])
def test_qr(given, mode):
    found, _ = results(lambda x: LINALG.qr(x, mode=mode), given)
    np.testing.assert_allclose(found.Q @ found.R, given, atol=1e-5)


@pytest.mark.parametrize("given", [WIDE, WIDE.T, BATCH])
@pytest.mark.parametrize("full", [True, False])
def test_svd(given, full):
    found, _ = results(lambda x: LINALG.svd(x, full_matrices=full), given)
    k = found.S.shape[-1]
    product = found.U[..., :k] * found.S[..., None, :] @ found.Vh[..., :k, :]
    np.testing.assert_allclose(product, given, atol=1e-5)


@pytest.mark.parametrize("triangle", ["L", "U"])
def test_eigh(triangle):
    given = POSITIVE.tril() if triangle == "L" else POSITIVE.triu()
    found, _ = results(lambda x: LINALG.eigh(x, UPLO=triangle), given)
    vectors = found.eigenvectors
    np.testing.assert_allclose(vectors * found.eigenvalues @ vectors.T, POSITIVE, atol=1e-4)


def test_what_cannot_be_traced():
    with pytest.raises(UserError, match=r"PyTorch cannot trace torch.linalg.lstsq \(aten"):
        girih.compile(Body(lambda a, b: LINALG.lstsq(a, b)), SQUARE, SQUARE)


# All bodies in one program: as exported and after run_decompositions(), interpreted and on the CPU.


def random(shape: Any, kind: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=kind, generator=generator)


def positive(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mH + torch.eye(x.shape[-1], dtype=x.dtype)


def forms(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Solutions of A X = B, X A = B and both with A^H by one factorisation."""
    packed, pivots = LINALG.lu_factor(x)
    return [
        LINALG.lu_solve(packed, pivots, y if left else y.mT, left=left, adjoint=adjoint)
        for left in (True, False) for adjoint in (True, False)
    ]  # fmt: skip


def triangles(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [
        LINALG.solve_triangular(x, y if left else y.mT, upper=upper, left=left, unitriangular=unit)
        for left in (True, False) for upper in (True, False) for unit in (True, False)
    ]  # fmt: skip


SOLUTIONS: dict[str, Any] = {
    "solve": LINALG.solve,
    "solve-vectors": lambda x, y: LINALG.solve(x, y[..., 0]),
    "solve-right": lambda x, y: LINALG.solve(x, y.mT, left=False),
    "solve-broadcast": lambda x, y: LINALG.solve(x, y.reshape(-1, *y.shape[-2:])[0]),
    "solve-ex": LINALG.solve_ex,
    "inverse": lambda x, y: (LINALG.inv(x), torch.inverse(x), *LINALG.inv_ex(x)),
    "lu": lambda x, y: (*LINALG.lu(x), *LINALG.lu_factor_ex(x)),
    "lu-solve": forms,
    "triangular": triangles,
    "triangular-old": lambda x, y: torch.triangular_solve(y, x, transpose=True)[0],
    "cholesky-solve": lambda x, y: [
        torch.cholesky_solve(y, LINALG.cholesky(positive(x), upper=upper), upper=upper)
        for upper in (True, False)
    ],
    "cholesky-inverse": lambda x, y: torch.cholesky_inverse(LINALG.cholesky(positive(x))),
    "powers": lambda x, y: [LINALG.matrix_power(x, n) for n in (0, 3, -2)],
    "exponential": lambda x, y: torch.matrix_exp(x * 2),
    "conditions": lambda x, y: [LINALG.cond(x, p) for p in (None, 1, "fro")],
    "norms": lambda x, y: [
        *(LINALG.matrix_norm(x, p) for p in ("fro", "nuc", 1, -1, 2, -2, torch.inf)),
        *(LINALG.vector_norm(x, p, dim=-1) for p in (0, 1, 2, 3, torch.inf, -torch.inf)),
    ],
    "products": lambda x, y: (
        torch.kron(x[..., 0, :], y), torch.tensordot(x, y, dims=cast(Any, ([-1], [-2]))),
        LINALG.vecdot(x, x.flip(-1)), torch.vdot(x[..., 0].flatten(), x[..., 1].flatten()),
    ),
    "cross": lambda x, y: LINALG.cross(x[..., :3], x[..., :1, :3]),
    "ldl": lambda x, y: LINALG.ldl_solve(*LINALG.ldl_factor(x + x.mT), y),
    "ldl-hermitian": lambda x, y: LINALG.ldl_solve(
        *LINALG.ldl_factor(x + x.mH, hermitian=True), y, hermitian=True
    ),
}  # fmt: skip


# PyTorch refuses some of them where there is nothing.
NOT_OF_NOTHING = ("solve-broadcast", "conditions", "norms", "products", "cross")


def agree(found: Any, wanted: Any, tolerance: float, name: str = "") -> None:
    for ours, theirs in zip(leaves(found), leaves(wanted), strict=True):
        ours, theirs = np.asarray(ours), theirs.resolve_conj()
        assert ours.shape == tuple(theirs.shape), name
        assert str(theirs.dtype)[6:] == ours.dtype.name, name
        scale = float(theirs.abs().max()) if theirs.numel() else 1.0
        np.testing.assert_allclose(
            ours, theirs, rtol=tolerance, atol=tolerance * scale, err_msg=name
        )


def leaves(value: Any) -> list[Any]:
    """One result, or those of a container."""
    return (
        [x for part in value for x in leaves(part)] if isinstance(value, (tuple, list)) else [value]
    )


@pytest.mark.parametrize(
    ("shape", "kind", "core", "compiled"),
    [
        ((4, 4), torch.float64, False, False),
        ((2, 3, 3), torch.complex128, True, False),
        ((2, 3, 3), torch.float32, False, True),
        ((0, 3, 3), torch.float64, True, False),
    ],
)
def test_solutions(shape, kind, core, compiled):
    names = [name for name in SOLUTIONS if all(shape) or name not in NOT_OF_NOTHING]
    x = random(shape, kind) + 2 * torch.eye(shape[-1], dtype=kind)
    y = random((*shape[:-1], 2), kind, seed=1)

    def body(x: torch.Tensor, y: torch.Tensor) -> list[list[Any]]:
        return [leaves(SOLUTIONS[name](x, y)) for name in names]

    exported = torch.export.export(Body(body), (x, y), strict=False)
    exported = exported.run_decompositions() if core else exported
    if compiled:
        found = girih.compile(exported)(x, y)
    else:
        module = girih.import_model(exported)
        assert module.signature is not None
        found = module.signature.unflatten(girih.interpret(module, [x.numpy(), y.numpy()]))
    tolerance = 2e-3 if kind is torch.float32 else 1e-9
    for name, ours, theirs in zip(names, found, body(x, y), strict=True):
        agree(ours, theirs, tolerance, name)


@pytest.mark.parametrize("hermitian", [True, False])
def test_ldl_exchanges_rows_as_lapack_does(hermitian):
    a = random((4, 6, 6), torch.complex128)
    a = a + (a.mH if hermitian else a.mT)
    a[0].diagonal().zero_()
    a[1] = 0
    a[1, 3, 4] = a[1, 4, 3] = 2
    body = lambda x: LINALG.ldl_factor_ex(x, hermitian=hermitian)  # noqa: E731
    exported = torch.export.export(Body(body), (a,), strict=False)
    found = girih.interpret(girih.import_model(exported), [a.numpy()])
    wanted = body(a)
    assert (wanted.pivots < 0).any() and (wanted.pivots > 0).any() and wanted.info.any()
    agree([np.asarray(value) for value in found], wanted, 1e-12)


def test_first_minor_that_is_not_positive():
    a = torch.stack([torch.diag(torch.tensor(d)) for d in ((1.0, 2, 3), (1.0, -1, 2), (0.0, 1, 1))])
    given = torch.cat([a, torch.diag(torch.tensor([1.0, 1, -1]))[None]])
    found = girih.compile(Body(LINALG.cholesky_ex), given)(given)
    assert found.info.tolist() == LINALG.cholesky_ex(given).info.tolist() == [0, 2, 1, 3]
    np.testing.assert_allclose(found.L[0], LINALG.cholesky(given[0]))


SINGULAR = torch.tensor([[1.0, 2], [2, 4]])


@pytest.mark.parametrize(
    ("body", "given", "reason"),
    [
        (LINALG.inv, SINGULAR, "torch.linalg.inv: the input matrix is singular"),
        (lambda x: LINALG.solve(x, x), SINGULAR, "torch.linalg.solve: the input matrix is sing"),
        (lambda x: LINALG.tensorinv(x[None], 2), SINGULAR[:, :, None], "is singular"),
        (LINALG.cholesky, -SINGULAR, "torch.linalg.cholesky: the input is not positive-def"),
        (LINALG.lu_factor, SINGULAR, "torch.linalg.lu_factor: U has a zero on its diagonal"),
        (LINALG.ldl_factor, 0 * SINGULAR, "torch.linalg.ldl_factor: D has a zero"),
        (LINALG.eig, SINGULAR * torch.inf, "torch.linalg.eig: .* is not finite"),
    ],
)
def test_what_pytorch_raises_a_call_does(body, given, reason):
    good = torch.eye(2).reshape(given.shape) if given.ndim == 2 else torch.eye(2)[:, :, None]
    exported = torch.export.export(Body(body), (good,), strict=False)
    for form in (exported, exported.run_decompositions()):
        module = girih.import_model(form)
        girih.interpret(module, [good.numpy()])
        with pytest.raises(UserError, match=reason):
            girih.interpret(module, [given.numpy()])


def test_singular_matrices_where_info_tells():
    found = girih.compile(Body(lambda x: LINALG.inv_ex(x)), SINGULAR)(SINGULAR)
    assert found.info == 2 and not np.isfinite(found.inverse).all()


@pytest.mark.parametrize("hermitian", [True, False])
def test_pseudoinverse_of_few_singular_values(hermitian):
    x = random((2, 4, 2), torch.complex64)
    given = x @ x.mH if hermitian else x @ random((2, 2, 3), torch.complex64, seed=1)
    found, wanted = results(lambda x: LINALG.pinv(x, rtol=1e-4, hermitian=hermitian), given)
    np.testing.assert_allclose(found, wanted, atol=1e-3)
    limits = torch.tensor([1e-4, 0.5, 1e-3])[:, None]  # of each matrix three
    found, wanted = results(lambda x, t: LINALG.pinv(x, rtol=t, hermitian=hermitian), given, limits)
    np.testing.assert_allclose(found, wanted, atol=1e-3)
    found, wanted = results(lambda x: LINALG.matrix_rank(x, rtol=1e-4), given)
    assert found.tolist() == wanted.tolist() == [2, 2]


def test_exponential_of_large_and_small():
    scales = torch.tensor([0, 1e-3, 1, 30, torch.inf], dtype=torch.float64)
    given = torch.tensor([[0.0, 1], [-1, 0]], dtype=torch.float64) * scales[:, None, None]
    exported = torch.export.export(Body(torch.matrix_exp), (given,), strict=False)
    (found,) = girih.interpret(girih.import_model(exported), [given.numpy()])
    assert np.isnan(found[4]).all()
    np.testing.assert_allclose(found[:4], torch.matrix_exp(given[:4]), atol=1e-12)


def test_eigenvectors():
    given = random((2, 3, 3), torch.float32)
    found, _ = results(LINALG.eig, given)
    vectors, values = found.eigenvectors, found.eigenvalues
    np.testing.assert_allclose(given @ vectors, vectors * values[:, None, :], atol=1e-5)
    powers = [(np.asarray(LINALG.eigvals(given)) ** n).sum(-1) for n in (1, 2, 3)]
    np.testing.assert_allclose([(values**n).sum(-1) for n in (1, 2, 3)], powers, rtol=1e-4)


def test_without_rows_or_columns():
    """Bases of the whole space where there is nothing to factorise."""
    given = torch.zeros(3, 0)
    body = lambda x: (  # noqa: E731
        LINALG.svd(x)[0], LINALG.svd(x.T)[2], LINALG.qr(x, mode="complete")[0],
        torch.ormqr(x, x[0], torch.ones(3, 2)), torch.svd(x, some=False)[0],
    )  # fmt: skip
    found, wanted = results(body, given)
    agree(list(found), wanted, 0)


def test_integers():
    given = torch.arange(12).reshape(3, 4)
    body = lambda x: (torch.trace(x), torch.addr(x, x[:, 0], x[0], beta=2, alpha=3),  # noqa: E731
                      torch.kron(x, x), LINALG.cross(x[:, :3], x[:, 1:]))  # fmt: skip
    found, wanted = results(body, given)
    agree(list(found), wanted, 0)
