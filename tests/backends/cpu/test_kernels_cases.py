"""Every example of every room through its CPU kernel, beside the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from girih.backends.plain.single import LIMITATIONS, as_region
from girih.hlo.build import build_region, make_op
from girih.hlo.graph import Op, arguments
from girih.hlo.ops import DEFINITIONS
from girih.hlo.types import TensorType, tensor_of

from . import harness

pytestmark = pytest.mark.usefixtures("each_level")
CONTROL = ("control", "source")


def cases() -> Iterator[Any]:
    for definition in DEFINITIONS:
        if definition.pattern in CONTROL and definition.name != "iota":
            continue
        if definition.name in LIMITATIONS or definition.communicates:
            continue  # what several devices do together is no kernel of one
        for case in definition.cases():
            yield pytest.param(definition, case, id=f"{definition.name}-{case.name}")


def build(definition: Any, case: Any) -> Op:
    operands = arguments([tensor_of(np.asarray(x)) for x in case.inputs])
    regions = case.regions(build_region) if case.regions else ()
    return make_op(definition.name, operands, case.attributes, regions, case.result_types)


@pytest.mark.parametrize("definition, case", list(cases()))
def test_case(definition: Any, case: Any) -> None:
    op = build(definition, case)
    values = (*op.operands, *op.results)
    if not all(isinstance(v.type, TensorType) and v.type.is_static for v in values):
        pytest.skip("not a static tensor")
    inputs = [np.asarray(x) for x in case.inputs]
    floats = any(v.element.kind in ("float", "complex") for v in op.results)
    harness.check(op, inputs, tolerance=max(case.tolerance, 1e-5) if floats else 0.0)


def test_single_region_keeps_operands_apart() -> None:
    x = arguments([tensor_of(np.zeros(3, np.float32))])[0]
    region = as_region(make_op("add", [x, x]))
    assert len(region.arguments) == 2


def test_limitations_name_operations() -> None:
    assert {definition.name for definition in DEFINITIONS}.issuperset(LIMITATIONS)
