"""Vector math stays as exact as specs/numerics.md says, on fewer points."""

from __future__ import annotations

import numpy as np
import pytest

from math_ulp import FUNCTIONS, measure, run

pytestmark = pytest.mark.usefixtures("each_level")
LIMIT = {"chlo.erfc": 5.0}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_in_units_of_the_last_place(name: str, dtype: type) -> None:
    found = measure(name, np.dtype(dtype), 20_000 if dtype is np.float32 else 300)
    assert found["largest"] <= LIMIT.get(name, 3.0), found
    assert found["special values agree"], found


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_remainders_are_exact(dtype: type) -> None:
    generator, count = np.random.default_rng(0), 2000
    bits = generator.integers(0, 256, (2, count * np.dtype(dtype).itemsize), np.uint8)
    x, y = bits.view(dtype)
    x[::2] = generator.standard_normal(count // 2) * 1e6
    y[::3] = generator.standard_normal(len(y[::3]))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run("remainder", [x, y]), np.fmod(x, y))
