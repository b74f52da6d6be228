"""1.1 to 1.2: collectives, communication, asynchronous operations, matrix factorisations.

Nothing of 1.1 changed. Downwards, an asynchronous operation is done where it starts.
"""

from __future__ import annotations

from typing import Any

from .inline import Inliner

VERSION = "1.2"
OPERATIONS = frozenset(
    {
        "all_gather",
        "all_reduce",
        "all_to_all",
        "async_done",
        "async_start",
        "chlo.broadcast_next_after",
        "chlo.broadcast_polygamma",
        "chlo.broadcast_select",
        "chlo.broadcast_shift_left",
        "chlo.broadcast_shift_right_arithmetic",
        "chlo.broadcast_shift_right_logical",
        "chlo.broadcast_zeta",
        "collective_broadcast",
        "collective_permute",
        "collective_reduce",
        "cross-replica-sum",
        "einsum",
        "infeed",
        "linalg.eig",
        "linalg.eigh",
        "linalg.hessenberg",
        "linalg.householder_multiply",
        "linalg.householder_product",
        "linalg.lu",
        "linalg.pivots_to_permutation",
        "linalg.qr",
        "linalg.qr_pivoted",
        "linalg.schur",
        "linalg.svd",
        "linalg.tridiagonal",
        "linalg.tridiagonal_solve",
        "outfeed",
        "recv",
        "reduce_scatter",
        "sdy.manual_computation",
        "send",
        "unary_einsum",
    }
)
TYPES = frozenset({"future"})
ATTRIBUTES: frozenset[str] = frozenset()
REMEDIES = {
    "async_start": "start and end it in the same function, and use what it starts nowhere else",
    "infeed": "make what it receives an input of the program",
    "outfeed": "make what it sends a result of the program",
    "recv": "make what it receives an input of the program",
    "send": "make what it sends a result of the program",
}


def upgrade(message: Any) -> None:
    """Nothing to do."""


def downgrade(message: Any) -> None:
    """Do asynchronous operations where they start, where nothing but `async_done` reads them."""
    Inliner(message, lambda name, regions: None, ("async_start", "async_done")).run()
