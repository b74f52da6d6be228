"""Sizes that no compiled code can have are refused before anything else is done."""

from __future__ import annotations

import pytest

import girih
from girih.hlo.build import build_module
from girih.hlo.symbols import SymbolicDim
from girih.hlo.types import F32, TensorType
from girih.optimizer.passes.require_static import RequireStatic

from .modules import LINE

OPEN = r"argument 0: .* has open sizes.* what n \(input\[0\].0\) are .*--size"


def test_fixed_sizes_pass() -> None:
    module = build_module([LINE], lambda b, x: [b("negate", x)])
    assert RequireStatic()(module) is module


def test_a_size_that_is_not_fixed_is_refused_by_every_compilation() -> None:
    kind = TensorType((SymbolicDim("n"),), F32)
    module = build_module([kind], lambda b, x: [b("negate", x)])
    with pytest.raises(
        girih.UnsupportedError,
        match=OPEN,
    ):
        RequireStatic()(module)
    with pytest.raises(
        girih.UnsupportedError,
        match=OPEN,
    ):
        girih.compile(module, target="null", options=girih.Options(disable=("require-static",)))
