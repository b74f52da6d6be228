"""Quantised values become the integers that they are stored as (hlo/test_quantized.py: what they
mean)."""

from __future__ import annotations

import numpy as np

import girih
from girih.hlo.build import build_module
from girih.hlo.quantized import is_quantized
from girih.hlo.types import F32, I8, QuantizedType, TensorType
from girih.hlo.verify import HLO, verify
from girih.optimizer.passes.legalize_quantized import LegalizeQuantized

from .modules import LINE, same


def test_quantised_values_become_integers() -> None:
    kind = TensorType((4,), QuantizedType(I8, F32, None, (0.5,), (3,), -128, 127))
    module = build_module([kind, kind], lambda b, x, y: [b("add", x, y, type=kind)])
    after = LegalizeQuantized()(module)
    verify(after, HLO)
    assert is_quantized(module) and not is_quantized(after)
    x, y = np.array([1, 2, 127, -128], np.int8), np.array([3, 3, 127, -128], np.int8)
    assert same(module, after, x, y)
    assert LegalizeQuantized()(after) is after


def test_a_program_without_them_stays_as_it_is() -> None:
    module = build_module([LINE], lambda b, x: [b("negate", x)])
    assert LegalizeQuantized()(module) is module
    assert girih.interpret(module, [np.zeros(4, np.float32)])[0].shape == (4,)
