"""Sums have the sign of zero that their definition gives, under `bitwise`, on every target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import Builder, build_module
from girih.hlo.types import BF16, F16, F32, F64, TensorType

OPTIONS = girih.Options(numerics="bitwise", cache="off")
CASES = [((5, 1), (1,)), ((6, 7), (1,)), ((7, 33), (0,)), ((4, 256), (1,)), ((3, 0), (1,)),
         ((2, 3, 4), (0, 2)), ((300,), (0,))]  # fmt: skip


@pytest.mark.parametrize("target", ["cpu", "cpu:baseline", "ptx-sim:sm_90a", "ptx-sim:sm_80"])
@pytest.mark.parametrize("element", [F32, F64, F16, BF16], ids=lambda one: one.name)
@pytest.mark.parametrize("first", [0.0, -0.0])
def test_sums(target: str, element: Any, first: float) -> None:
    for dims, reduced in CASES:
        kind = TensorType(dims, element)

        def body(b: Builder, x: Any, kind: Any = kind, reduced: Any = reduced) -> list[Any]:
            start = b.constant(element.dtype.type(first), TensorType((), element))
            return [b.reduce("add", b("negate", b("abs", x)), start, reduced)]

        module = build_module([kind], body)
        zeros = np.zeros(dims, element.dtype)
        (found,) = girih.compile(module, target=target, options=OPTIONS).call_flat([zeros])
        (wanted,) = girih.interpret(module, [zeros])
        assert found.tobytes() == wanted.tobytes(), (dims, reduced)
        assert wanted.size == 0 or np.signbit(wanted).all() == (first.hex() == "-0x0.0p+0")
