"""Factorisations in torch models: the classes, shapes and numbers that torch gives.

Phases of eigenvectors and singular vectors are free: what they multiply to is compared.
"""

from __future__ import annotations

from typing import Any

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
    with pytest.raises(UserError, match="which minor is not positive"):
        girih.compile(Body(LINALG.cholesky_ex), POSITIVE)
