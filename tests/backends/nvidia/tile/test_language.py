"""Kernels of the kernel language in the simulator: a sample of those that the CPU runs."""

from __future__ import annotations

import numpy as np
import pytest

from girih.backends.nvidia import tile

from ....frontends.kernel import test_kernel_language as language
from .support import SM_80, call_through

SAMPLE = ("sin_cos", "floor_divide", "isnan", "softmax", "reshape", "transpose", "cumsum", "parts")

test_element_types = language.test_element_types
test_truth_values = language.test_truth_values
test_arg_reductions = language.test_arg_reductions
test_batched_and_transposed_products = language.test_batched_and_transposed_products
test_windows_of_every_form = language.test_windows_of_every_form
test_gather_and_scatter = language.test_gather_and_scatter
test_stores_combine_and_mask = language.test_stores_combine_and_mask
test_loops_carry_what_changes = language.test_loops_carry_what_changes
test_loops_with_computed_bounds = language.test_loops_with_computed_bounds
test_branches = language.test_branches
test_empty_grids_and_arrays = language.test_empty_grids_and_arrays


@pytest.fixture(autouse=True)
def on_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of kernels run in the simulator."""
    call_through(monkeypatch, lambda op: tile.emit(op, SM_80))


@pytest.mark.parametrize("name", SAMPLE)
def test_elementwise(name: str) -> None:
    body, expected = language.UNARY[name]
    kernel = language.elementwise(body)
    result = language.both(kernel, language.X)
    np.testing.assert_allclose(result, expected(language.X), rtol=2e-5, atol=2e-5)
