"""Vector math stays as exact as specs/numerics.md says, on fewer points."""

from __future__ import annotations

import numpy as np
import pytest
from math_ulp import FUNCTIONS, measure

LIMIT = {"chlo.erfc": 5.0}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_in_units_of_the_last_place(name: str, dtype: type) -> None:
    found = measure(name, np.dtype(dtype), 20_000 if dtype is np.float32 else 300)
    assert found["largest"] <= LIMIT.get(name, 3.0), found
    assert found["special values agree"], found
