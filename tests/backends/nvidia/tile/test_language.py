"""Kernels of the kernel language in the simulator: a sample of those that the CPU runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
from girih.backends.nvidia import tile
from girih.kernels import Kernel

from ....frontends.kernel import test_kernel_language as language
from .. import harness
from .support import SM_80

SAMPLE = ("exp", "sin_cos", "floor_divide", "isnan", "softmax", "columns", "parts", "cumsum")


@pytest.fixture(autouse=True)
def on_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of kernels run in the simulator."""

    def run(kernel: Kernel, *arrays: Any, **constants: Any) -> Any:
        values = [np.asarray(array) for array in arrays]
        op = kernel.module(*values, **constants).body.ops[0]
        results = harness.run(op, values, code=tile.emit(op, SM_80), on=SM_80)
        return results[0] if len(results) == 1 else tuple(results)

    monkeypatch.setattr(girih.kernels.Kernel, "__call__", run)


@pytest.mark.parametrize("name", [name for name in SAMPLE if name in language.UNARY])
def test_elementwise(name: str) -> None:
    body, expected = language.UNARY[name]
    kernel = language.elementwise(body)
    result = language.both(kernel, language.X)
    np.testing.assert_allclose(result, expected(language.X), rtol=2e-5, atol=2e-5)
