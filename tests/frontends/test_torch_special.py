"""Special functions beside SciPy in f64 and f32; elementwise functions of extreme values beside
PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree

import girih
from girih.frontends.torch.exported import array_of
from girih.frontends.torch.importing import import_torch
from girih.hlo.graph import Module
from girih.hlo.interpret import interpret

from .torch_special_cases import BESIDE_EAGER, BESIDE_SCIPY


class _All(nn.Module):
    """Many functions, each of its own tensors: one export is much quicker than one for each."""

    def __init__(self, bodies: Mapping[str, Any]) -> None:
        super().__init__()
        self.bodies = bodies

    def forward(self, inputs: dict[str, tuple[Any, ...]]) -> Any:
        return {name: self.bodies[name](*given) for name, given in inputs.items()}


def imported(bodies: Mapping[str, Any], inputs: Mapping[str, tuple[Any, ...]]) -> Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_torch(torch.export.export(_All(bodies), (dict(inputs),), strict=False))


F32_LIMIT = {"digamma": 5e-6, "ndtr": 3e-6, "log_ndtr": 3e-6, "multigammaln": 3e-6}
"""What f32 reaches where it is more than 2e-6: tails of erfc, and zeros of sums."""


@pytest.mark.parametrize(("dtype", "limit"), [(np.float64, 1e-13), (np.float32, 2e-6)])
def test_special_functions(dtype: Any, limit: float) -> None:
    """PyTorch's own bessel_j0, j1, y0, y1 and airy_ai are off by 1e-6, so SciPy is asked."""
    inputs = {name: [np.asarray(x, dtype) for x in at] for name, (*_, at) in BESIDE_SCIPY.items()}
    module = imported(
        {name: ours for name, (ours, *_) in BESIDE_SCIPY.items()},
        {name: tuple(map(torch.from_numpy, at)) for name, at in inputs.items()},
    )
    found = interpret(module, [x for at in inputs.values() for x in at])
    errors = {}
    for name, result in zip(BESIDE_SCIPY, found, strict=True):
        assert result.dtype == dtype
        wanted = BESIDE_SCIPY[name][1](*(x.astype(np.float64) for x in inputs[name]))
        near = np.isfinite(wanted)
        np.testing.assert_array_equal(result[~near], wanted[~near], name)
        error = np.abs(result[near] - wanted[near]) / np.maximum(1.0, np.abs(wanted[near]))
        allowed = limit if dtype is np.float64 else max(limit, F32_LIMIT.get(name, 0))
        if error.max() > allowed:
            errors[name] = error.max()
    assert not errors


def test_special_functions_on_the_cpu() -> None:
    """Machine code gives SciPy's numbers."""
    names = ("gammainc", "zeta-below", "airy", "y1", "ndtri")
    inputs = {name: BESIDE_SCIPY[name][2] for name in names}
    module = imported(
        {name: BESIDE_SCIPY[name][0] for name in names},
        {name: tuple(map(torch.from_numpy, at)) for name, at in inputs.items()},
    )
    found = girih.compile(module)(inputs)
    for name in names:
        wanted = BESIDE_SCIPY[name][1](*inputs[name])
        np.testing.assert_allclose(np.asarray(found[name]), wanted, 1e-11, 1e-13, err_msg=name)


def test_like_eager() -> None:
    """Numbers, element types and what becomes of infinities, nan and overflows are PyTorch's."""
    inputs = {name: at for name, (_, at) in BESIDE_EAGER.items()}
    bodies = {name: body for name, (body, _) in BESIDE_EAGER.items()}
    expected = {name: body(*(x.clone() for x in inputs[name])) for name, body in bodies.items()}
    found = interpret(imported(bodies, inputs), [array_of(x) for at in inputs.values() for x in at])
    places = [
        name for name, results in expected.items() for _ in range(len(_pytree.tree_leaves(results)))
    ]
    flat = map(array_of, _pytree.tree_leaves(expected))
    for name, result, wanted in zip(places, found, flat, strict=True):
        assert result.dtype == wanted.dtype and result.shape == wanted.shape, name
        if wanted.dtype.kind in "biu":
            np.testing.assert_array_equal(result, wanted, name)
            continue
        kind = np.complex128 if wanted.dtype.kind == "c" else np.float64
        limit = 2e-2 if wanted.dtype.itemsize == 2 else 5e-5
        result, wanted = result.astype(kind), wanted.astype(kind)
        # Errors of cosines of multiples of an angle are parts of the angle, also at their zeros.
        near = 4e-6 if "chebyshev" in name else 1e-44
        np.testing.assert_allclose(result, wanted, limit, near, err_msg=name)
