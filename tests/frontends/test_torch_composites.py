"""Composite operators from saved exports, which are read without PyTorch: a lowering for each."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree

from girih.frontends.torch.archive import read_archive
from girih.frontends.torch.exported import array_of
from girih.frontends.torch.importing import import_torch
from girih.hlo.interpret import interpret
from girih.tests.differential.outcomes import compare

from .torch_composite_cases import CASES, CompositeCase


class _Body(nn.Module):
    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.body = body

    def forward(self, *inputs: Any) -> Any:
        return self.body(*inputs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_composite(case: CompositeCase) -> None:
    """The file holds the operator, the program that is read of it gives eager's numbers, and so
    does the export in memory, which is the same program."""
    file = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = _pytree.tree_leaves(case.body(*(x.clone() for x in case.inputs)))
        exported = torch.export.export(_Body(case.body).eval(), case.inputs, strict=False)
        torch.export.save(exported, file)
    targets = {node.target for node in read_archive(file.getvalue()).graph.walk()}
    assert f"aten.{case.target}" in targets
    module = import_torch(file.getvalue())
    assert str(import_torch(exported)).split("\n")[1:] == str(module).split("\n")[1:]
    found = interpret(module, [array_of(x) for x in case.inputs])
    said = compare(found[: len(expected)], [array_of(x) for x in expected])
    assert said.verdict == "agrees", said.words


def test_views_that_the_schema_hides() -> None:
    """What is written through them comes back: PyTorch itself makes it functional."""

    def body(x: torch.Tensor) -> torch.Tensor:
        line = x.clone()
        torch.ops.aten.unflatten_dense_tensors(line, [x[:2], x[2:]])[1].mul_(2)
        return line

    line = torch.arange(5.0)
    exported = torch.export.export(_Body(body), (line,), strict=False)
    (found,) = interpret(import_torch(exported), [line.numpy()])
    assert found.tolist() == [0, 1, 4, 6, 8]
