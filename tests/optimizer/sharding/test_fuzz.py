"""Random operations, shapes and shardings: equal, legal, explained to the byte.

With GIRIH_THOROUGH more than 5,000 of them.
"""

from __future__ import annotations

import os

import pytest

from girih.hlo.factors import FactorKind
from girih.hlo.graph import Module
from girih.optimizer.sharding.partition.partitioner import axes_of_factors

from .families import FAMILIES
from .fuzz import run

CASES = 150 if os.environ.get("GIRIH_THOROUGH") else 12

ALONG = {
    "sort": "sort", "top_k": "chlo.top_k", "arg_max": "reduce", "cumulative": "reduce_window",
    "selection": "select_and_scatter", "concatenation": "concatenate",
    "convolution": "convolution",
}  # fmt: skip
"""Operations of families that are computed along a dim of which a device needs more than it has."""


@pytest.mark.parametrize("family", FAMILIES)
def test_random_shardings(family: str) -> None:
    along = sum(_along(run(family, seed), ALONG.get(family, "")) for seed in range(CASES))
    assert along or family not in ALONG


def _along(decided: Module, name: str) -> bool:
    """Whether an operation of that name is cut along a factor that does not pass."""
    (mesh,) = decided.meshes.values()
    for op in decided.body.ops:
        if op.name == name:
            factors = op.definition.divide(op)
            assert factors is not None
            axes = axes_of_factors(op, factors, mesh)
            if any(cut and factor.kind not in (FactorKind.PASS, FactorKind.REDUCTION)
                   for cut, factor in zip(axes, factors.factors, strict=True)):  # fmt: skip
                return True
    return False
