"""Every lowering of PyTorch's operators against PyTorch, through memory and through a file."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree

import girih
from girih.frontends.torch.exported import array_of
from girih.frontends.torch.importing import import_torch
from girih.hlo.interpret import interpret

from . import torch_place_cases, torch_window_cases  # noqa: F401 - they add to CASES
from .torch_op_cases import CASES, OpCase


class _Body(nn.Module):
    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.body = body

    def forward(self, *inputs: Any) -> Any:
        return self.body(*inputs)


def check(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], tolerance: float) -> None:
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    if expected.dtype.kind not in "fcV":
        np.testing.assert_array_equal(actual, expected)
        return
    actual, expected = (a.astype(np.float64) for a in (actual, expected))
    finite = expected[np.isfinite(expected)]
    scale = max(1.0, float(np.abs(finite).max(initial=0.0)))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale)


def test_case_names_are_unique() -> None:
    names = [c.name for c in CASES]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("op_case", CASES, ids=lambda op_case: op_case.name)
def test_operator(op_case: OpCase) -> None:
    """The interpreter on the imported program gives PyTorch's numbers, machine code gives the
    interpreter's, and a file becomes the same program."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(_Body(op_case.body).eval(), op_case.inputs, strict=False)
    module = import_torch(program)
    copies = tuple(x.clone() for x in op_case.inputs)
    expected = _pytree.tree_leaves(op_case.body(*copies))
    inputs = [array_of(x) for x in op_case.inputs]
    results = interpret(module, inputs)
    assert len(results) == len(expected)
    for actual, wanted in zip(results, expected, strict=True):
        check(actual, array_of(wanted), op_case.tolerance)

    file = io.BytesIO()
    torch.export.save(program, file)
    reread = import_torch(file.getvalue())
    assert str(reread).split("\n")[1:] == str(module).split("\n")[1:]

    compiled = _pytree.tree_leaves(girih.compile(module)(*inputs))
    for actual, wanted in zip(compiled, results, strict=True):
        check(np.asarray(actual), wanted, max(1e-5, 3 * op_case.tolerance))
