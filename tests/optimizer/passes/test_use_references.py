"""Kernels that a target has no code for become their references."""

from __future__ import annotations

import pytest

import girih
from girih.hlo.build import build_module, build_region, make_op
from girih.hlo.graph import Module, Origin
from girih.hlo.verify import INLINED, verify
from girih.optimizer.passes.use_references import UseReferences

from .modules import LINE, f32, names


def program(reference: bool) -> Module:
    regions = (build_region([LINE], lambda b, x: [b("add", x, x)]),) if reference else ()

    def body(b, x):
        facts = {"kernel": "twice", "codes": ()}
        place = (Origin("model.py", 5),)
        op = b.append(make_op("foreign_call", [x], facts, regions, [LINE], place, check=False))
        return [b("negate", op.result)]

    return build_module([LINE], body)


def test_a_kernel_without_code_becomes_its_reference() -> None:
    module = program(reference=True)
    after = UseReferences(lambda op: "it has no code")(module)
    verify(after, INLINED)
    assert names(after) == ["add", "negate"]
    assert after.notes == ("kernel 'twice' runs as its reference: it has no code",)
    assert girih.interpret(after, [f32([1, 2, 3, 4])])[0].tolist() == [-2, -4, -6, -8]


def test_a_kernel_with_code_stays() -> None:
    module = program(reference=True)
    assert UseReferences(lambda op: "")(module) is module


def test_without_a_reference_there_is_nothing_to_run() -> None:
    with pytest.raises(girih.UnsupportedError, match=r"model.py:5: kernel 'twice': none, and it"):
        UseReferences(lambda op: "none")(program(reference=False))
