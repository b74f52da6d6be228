"""Every lowering of PyTorch's operators against PyTorch, through memory and through a file."""

from __future__ import annotations

import functools
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
from girih.frontends.torch import import_torch
from girih.frontends.torch.exported import array_of
from girih.hlo.graph import Module
from girih.hlo.interpret import interpret

from . import torch_place_cases, torch_window_cases  # noqa: F401 - they add to CASES
from .torch_op_cases import CASES


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


@functools.cache
def exported(at: int) -> tuple[Any, Module]:
    """A case's export and what it becomes."""
    op_case = CASES[at]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(_Body(op_case.body).eval(), op_case.inputs, strict=False)
    return program, import_torch(program)


every_case = pytest.mark.parametrize("at", range(len(CASES)), ids=[c.name for c in CASES])


@every_case
def test_operator(at: int) -> None:
    """The interpreter on the imported program gives PyTorch's numbers; a file gives the same."""
    op_case = CASES[at]
    program, module = exported(at)
    copies = tuple(x.clone() for x in op_case.inputs)
    expected = _pytree.tree_leaves(op_case.body(*copies))
    results = interpret(module, [array_of(x) for x in op_case.inputs])
    assert len(results) == len(expected)
    for actual, wanted in zip(results, expected, strict=True):
        check(actual, array_of(wanted), op_case.tolerance)
    file = io.BytesIO()
    torch.export.save(program, file)
    reread = import_torch(file.getvalue())
    assert str(reread).split("\n")[1:] == str(module).split("\n")[1:]


@every_case
def test_operator_on_the_cpu(at: int) -> None:
    """Machine code gives the interpreter's numbers."""
    op_case = CASES[at]
    module = exported(at)[1]
    inputs = [array_of(x) for x in op_case.inputs]
    results = _pytree.tree_leaves(girih.compile(module)(*inputs))
    for actual, wanted in zip(results, interpret(module, inputs), strict=True):
        check(np.asarray(actual), wanted, max(1e-5, 3 * op_case.tolerance))
