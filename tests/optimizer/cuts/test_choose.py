"""Kernels of CPUs say how they are cut, by the prices of a machine, before they are emitted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import girih
from girih.backends import find
from girih.backends.cpu import codegen, kernels, machines
from girih.hlo.build import build_module, build_region, make_op
from girih.hlo.errors import UserError
from girih.hlo.graph import Module, Op, arguments
from girih.hlo.parse import parse_module
from girih.hlo.text import print_module
from girih.hlo.types import BF16, F32, TensorType
from girih.optimizer.cuts.choose import CUT, Cut, Cuts, cut_of, with_cut
from girih.optimizer.cuts.convolutions import ConvolutionCut
from girih.optimizer.cuts.loops import LoopBlocking
from girih.optimizer.cuts.products import Blocking
from girih.optimizer.partial import partial
from girih.optimizer.pipeline import lowering_pipeline, run_pipeline, simplify_pipeline

OPTIONS = girih.Options(cache="off")
TARGET = codegen.level_target("avx2")


def product(element: Any = F32) -> Module:
    kinds = [TensorType((96, 80), element), TensorType((80, 64), element)]
    facts = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
    result = TensorType((96, 64), element)

    def body(b: Any, x: Any, w: Any) -> list[Any]:
        return [b("tanh", b("dot_general", x, w, type=result, **facts))]

    return build_module(kinds, body)


def convolution(features: int = 16) -> Module:
    facts = {
        "window_strides": (1, 1), "padding": ((1, 1), (1, 1)), "lhs_dilation": (1, 1),
        "rhs_dilation": (1, 1), "window_reversal": (False, False), "input_batch_dimension": 0,
        "input_feature_dimension": 3, "input_spatial_dimensions": (1, 2),
        "kernel_input_feature_dimension": 2, "kernel_output_feature_dimension": 3,
        "kernel_spatial_dimensions": (0, 1), "output_batch_dimension": 0,
        "output_feature_dimension": 3, "output_spatial_dimensions": (1, 2),
        "feature_group_count": 1, "batch_group_count": 1,
    }  # fmt: skip
    kinds = [TensorType((1, 20, 20, 8), F32), TensorType((3, 3, 8, features), F32)]
    result = TensorType((1, 20, 20, features), F32)
    return build_module(kinds, lambda b, x, w: [b("convolution", x, w, type=result, **facts)])


def softmax() -> Module:
    def body(b: Any, x: Any) -> list[Any]:
        grown = b("exponential", x)
        total = b.reduce("add", grown, b.constant(0, TensorType((), F32)), (1,))
        return [b("divide", grown, b.broadcast(total, x.dims, (0,))), b("sine", x)]

    return build_module([TensorType((40, 300), F32)], body)


PROGRAMS = {"product": product, "convolution": convolution, "rows": softmax}


def lowered(module: Module, level: str = "avx2") -> Module:
    backend = find(f"cpu:{level}", OPTIONS)
    passes = (*simplify_pipeline(OPTIONS), *lowering_pipeline(backend, OPTIONS))
    return run_pipeline(module, passes)


def made(module: Module) -> Iterator[Op]:
    return (op for op in module.body.ops if op.name == "fusion")


@pytest.mark.parametrize("level", ["avx512", "avx2", "neon"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_say_what_they_would_ask_for(name: str, level: str) -> None:
    """A kernel without the attribute asks for the same cut while it is emitted."""
    target = codegen.level_target(level)
    found = list(made(lowered(PROGRAMS[name](), level)))
    assert any(CUT in op.attributes for op in found)
    for op in found:
        facts = {name: fact for name, fact in op.attributes.items() if name != CUT}
        bare = Op(op.definition, op.operands, facts, op.regions, op.result_types, op.origin)
        assert kernels.emit(op, target).ir_text == kernels.emit(bare, target).ir_text
        shape = kernels.shape_of(op, target)
        cuts = Cuts(machines.machine_of(target))
        assert cut_of(op) == (None if shape is None else cuts.of(shape))


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("product", Blocking(2, 1, 80, 1, 1, 1, False, False)),
        ("rows", LoopBlocking(1, 1, 1, 300)),
    ],
)
def test_emitters_read_the_attribute(name: str, cut: Cut) -> None:
    (op, *_) = made(lowered(PROGRAMS[name]()))
    other = with_cut(op, cut)
    assert cut_of(other) == cut
    assert kernels.emit(other, TARGET).ir_text != kernels.emit(op, TARGET).ir_text


def test_convolutions_say_the_way_in_which_rows_come() -> None:
    (op,) = made(lowered(convolution()))
    found = cut_of(op)
    assert isinstance(found, ConvolutionCut)
    assert cut_of(with_cut(op, found)) == found


def test_texts_have_cuts() -> None:
    module = lowered(softmax())
    again = parse_module(print_module(module))
    assert [cut_of(op) for op in made(again)] == [cut_of(op) for op in made(module)]


def test_narrow_products_have_none() -> None:
    """Instructions for narrow numbers divide them by rules."""
    for op in made(lowered(product(BF16), "avx512-bf16")):
        assert CUT not in op.attributes


def test_a_part_of_a_kernel_is_cut_again() -> None:
    def body(b: Any, x: Any) -> list[Any]:
        shared = b("tanh", x)
        return [b("add", shared, x), b("multiply", shared, x)]

    kind = TensorType((40, 300), F32)
    op = make_op("fusion", arguments([kind]), {"kind": "loop"}, [build_region([kind], body)])
    op = with_cut(op, LoopBlocking(8, 1, 4, 300))
    assert CUT not in partial(op, 1).attributes


@pytest.mark.parametrize("row", [(1, 2), (-1, 1, 1, 1), "wide", (1, 2, 3, 4, 5, 6, 7, 8)])
def test_what_is_no_cut_is_refused(row: Any) -> None:
    (op, *_) = made(lowered(softmax()))
    facts = {**op.attributes, CUT: row}
    wrong = Op(op.definition, op.operands, facts, op.regions, op.result_types, op.origin)
    with pytest.raises(UserError, match=re.escape(f"{CUT} = {row} is no cut of such a kernel")):
        kernels.emit(wrong, TARGET)


def test_measured_kernels_are_left_to_the_measurement(tmp_path: Any) -> None:
    options = girih.Options(cache="off", measure=1)
    program = girih.compile(softmax(), options=options)
    x = np.random.default_rng(0).standard_normal((40, 300)).astype(np.float32)
    for found, wanted in zip(program(x), girih.compile(softmax(), options=OPTIONS)(x), strict=True):
        np.testing.assert_array_equal(found, wanted)
