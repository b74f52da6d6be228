"""Operations on whole matrices as plain HLO, for targets without code, or fast code, for them.

In: a factorization, a triangular solve or a spectrum of matrices. Out: products, elementwise
operations and loops, in blocks so that most of the work is products. The pass `expand` puts them in
place of what a target asks for. Imported by `backends`, `optimizer/passes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...hlo.build import Builder
from ...hlo.graph import Op, Value
from . import householder, jacobi, lu, triangular

EXPANSIONS: dict[str, Callable[..., list[Value]]] = {
    "cholesky": triangular.cholesky,
    "triangular_solve": triangular.triangular_solve,
    "linalg.lu": lu.lu,
    "linalg.qr": householder.qr,
    "linalg.householder_product": householder.householder_product,
    "linalg.householder_multiply": householder.householder_multiply,
    "linalg.eigh": jacobi.eigh,
    "linalg.svd": jacobi.svd,
}


def expands(op: Op) -> bool:
    """Whether there is an expansion: of matrices that have elements, in sizes that are numbers."""
    sizes: list[Any] = [size for value in op.operands for size in value.dims[-2:]]
    return op.name in EXPANSIONS and all(isinstance(size, int) and size for size in sizes)


def has_blocks(op: Op) -> bool:
    """Whether its matrix is larger than what one kernel should compute alone."""
    return op.operands[0].dims[-1] > triangular.BLOCK


def expansion(b: Builder, op: Op, operands: Sequence[Value]) -> list[Value]:
    """What computes the operation's results, built on other operands."""
    return EXPANSIONS[op.name](b, op, *operands)
