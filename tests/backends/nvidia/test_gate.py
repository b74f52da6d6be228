"""Every kernel assembles for each architecture, without spills or arrays in local memory."""

from __future__ import annotations

import numpy as np
import pytest

from girih.backends.nvidia.assemble import assemble
from girih.backends.nvidia.build import emitted, merged, ptx_of
from girih.backends.nvidia.lines import Files, located
from girih.backends.nvidia.target import target
from girih.backends.plain.single import LIMITATIONS
from girih.hlo.errors import UnsupportedError
from girih.hlo.graph import Op
from girih.hlo.ops import DEFINITIONS
from girih.hlo.types import TensorType

from .harness import operation

EVERY = 9  # of so many examples one is assembled, for each architecture others
NAMES = ("sm_80", "sm_89", "sm_90a")


def examples() -> list[Op]:
    """The operations of all rooms' examples that are kernels."""
    found = []
    for definition in DEFINITIONS:
        control = definition.pattern in ("control", "source") and definition.name != "iota"
        if control or definition.name in LIMITATIONS or definition.communicates:
            continue
        for case in definition.cases():
            op = operation(definition, case)
            values = (*op.operands, *op.results)
            if all(isinstance(v.type, TensorType) and v.type.is_static for v in values):
                found.append(op)
    return found


@pytest.mark.requires_ptxas
@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_examples_assemble(number: int) -> None:
    on = target(NAMES[number])
    texts, files = dict[str, str](), Files()
    for op in examples()[number * EVERY // 3 :: EVERY]:
        try:
            code = emitted(op, on)
        except UnsupportedError:
            assert op.name.startswith("linalg.") or op.name in ("foreign_call", "kernel_call")
            continue
        texts[code.symbol] = located(ptx_of(code.text, on.architecture), (), files)
    assert len(texts) > 50
    made = assemble(merged(list(texts.values()), on.architecture, files), on.architecture)
    assert len(made.usages) >= len(texts) * 0.9
    assert made.faults() == []
    assert max(usage.registers for usage in made.usages.values()) <= 255


def test_unsupported_operations_say_why() -> None:
    unsupported = []
    for op in examples():
        if op.name.startswith("linalg.") or op.name == "sort":
            try:
                emitted(op, target("sm_90a"))
            except UnsupportedError as error:
                unsupported.append(str(error))
    assert unsupported
    assert all("target nvidia" in said for said in unsupported)
    assert np.unique(unsupported).size > 10
