"""Quantised programs give what the specification's formulas give, spelled out in numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import girih
from girih.frontends.stablehlo.write import write_text
from girih.hlo.build import build_module
from girih.hlo.interpret import interpret
from girih.hlo.quantized import is_quantized, legalized
from girih.hlo.sizes import Symbol
from girih.hlo.symbols import SymbolicDim
from girih.hlo.types import F32, I8, QuantizedType, TensorType
from girih.hlo.verify import HLO, verify

from .quantized_programs import COLUMNS, EVEN, SKEWED, Program, drawn, programs, real, stored

PROGRAMS = programs()


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.name for program in PROGRAMS])
def test_formulas(program: Program) -> None:
    verify(program.module, HLO)
    legal = legalized(program.module)
    verify(legal, HLO)
    assert not is_quantized(legal) and legalized(legal) is legal
    for found, wanted in zip(
        interpret(program.module, program.inputs), program.expected, strict=True
    ):
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        if program.steps:
            assert np.abs(found.astype(int) - wanted.astype(int)).max() <= program.steps
        else:
            np.testing.assert_array_equal(found, wanted)


def test_movements_keep_the_quantisation() -> None:
    kind = TensorType((4,), SKEWED)
    module = build_module(
        [kind], lambda b, x: [b("reverse", x, type=kind.with_element(EVEN), dimensions=(0,))]
    )
    with pytest.raises(girih.UserError, match="reverse"):
        verify(module, HLO)
        interpret(module, [np.zeros(4, np.int8)])


def test_signature_tells_what_the_integers_stand_for() -> None:
    kind = TensorType((4,), SKEWED)
    module = build_module([kind], lambda b, x: [b("negate", x), b("uniform_dequantize", x)])
    signature = legalized(module).signature
    assert signature is not None
    (argument,), (negated, real) = signature.arguments, signature.results
    assert (argument.element, argument.quantization) == ("i8", SKEWED.name)
    assert (negated.element, negated.quantization) == ("i8", SKEWED.name)
    assert (real.element, real.quantization) == ("f32", None)
    assert type(signature).from_json(signature.to_json()) == signature


def test_new_and_old_spellings_are_read() -> None:
    for spelling, kind in (
        ("i8:f32, 0.5:3", QuantizedType(I8, F32, None, (0.5,), (3,), -128, 127)),
        ("i8<-100:90>:f32, 5.0e-1", QuantizedType(I8, F32, None, (0.5,), (0,), -100, 90)),
        ("i8:f32:0, {0.5:3,1.0}", QuantizedType(I8, F32, 0, (0.5, 1.0), (3, 0), -128, 127)),
    ):
        tensor = f"tensor<2x!quant.uniform<{spelling}>>"
        text = f"func.func @main(%x: {tensor}) -> {tensor} {{\n  return %x : {tensor}\n}}"
        module = girih.import_model(text)
        assert module.body.arguments[0].element is kind
        again = girih.import_model(write_text(module).text)
        assert again.body.arguments[0].element is kind


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (QuantizedType(F32, F32, None, (0.5,), (0,), 0, 1), "store integers for floats"),
        (QuantizedType(I8, F32, None, (0.5,), (0,), -129, 127), "bounds must lie in -128 to 127"),
        (QuantizedType(I8, F32, None, (0.0,), (0,), -128, 127), "positive and finite"),
        (QuantizedType(I8, F32, None, (np.inf,), (0,), -128, 127), "positive and finite"),
        (QuantizedType(I8, F32, None, (0.5,), (200,), -128, 127), "zero points must lie"),
        (QuantizedType(I8, F32, None, (0.5, 1.0), (0, 0), -128, 127), "needs one scale"),
        (QuantizedType(I8, F32, 1, (0.5,) * 4, (0,) * 4, -128, 127), "has no dimension 1"),
        (QuantizedType(I8, F32, 0, (0.5,) * 3, (0,) * 3, -128, 127), "needs 4 scales"),
    ],
)
def test_types_without_meaning_are_refused(kind: QuantizedType, reason: str) -> None:
    module = build_module([TensorType((4,), kind)], lambda b, x: [x])
    with pytest.raises(girih.UserError, match=reason):
        verify(module, HLO)


def test_sizes_may_be_left_open() -> None:
    kind = TensorType((SymbolicDim("n"), 4), COLUMNS)
    module = build_module(
        [kind], lambda b, x: [b("add", x, x, type=kind), b("uniform_dequantize", x)]
    )
    x = drawn(COLUMNS, (3, 4), 1)
    total, values = interpret(replace(module, symbols={"n": Symbol(1, 8)}), [x])
    np.testing.assert_array_equal(values, real(x, COLUMNS))
    np.testing.assert_array_equal(total, stored(2 * real(x, COLUMNS), COLUMNS))
