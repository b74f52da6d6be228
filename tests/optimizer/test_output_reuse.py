"""Values in the memory of outputs that are written later."""

from __future__ import annotations

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module, build_region
from girih.hlo.interpret import interpret
from girih.hlo.types import F32, I32, TensorType
from girih.optimizer.output_reuse import reuse_outputs
from girih.optimizer.passes.fuse import Fuse
from girih.optimizer.passes.order import Order
from girih.optimizer.pipeline import run_pipeline
from girih.optimizer.schedule import (
    Buffer,
    CopyStep,
    JumpStep,
    Label,
    Schedule,
    live_ranges,
    schedule,
    touched,
)

from .transformer import transformer_layer

ROWS = TensorType((64, 96), F32)


def chain(b, x, w):
    """Values that die one after another, then a large output."""
    for _ in range(3):
        x = b("tanh", _dot(b, b("reverse", x, dimensions=(0,)), w))
    return [b.broadcast(x, (5, 64, 96), (1, 2))]


def _dot(b, x, w):
    dims = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
    return b("dot_general", x, w, type=ROWS, **dims)


def looped(b, x, w):
    """The output is the loop's: nothing that lives inside the loop may stand in it."""
    kinds = [TensorType((), I32), ROWS]

    def cond(b, i, x):
        return [b.compare("LT", i, b.constant(4, kinds[0]))]

    def body(b, i, x):
        y = b("reverse", b("tanh", _dot(b, x, w)), dimensions=(1,))
        return [b("add", i, b.constant(1, kinds[0])), b("reverse", y, dimensions=(0,))]

    before = b("reverse", b("sine", _dot(b, x, w)), dimensions=(1,))
    regions = (build_region(kinds, cond), build_region(kinds, body))
    loop = b.op("while", [b.constant(0, kinds[0]), before], {}, regions)
    return [loop.results[1]]


PROGRAMS = {
    "chain": lambda: build_module([ROWS, TensorType((96, 96), F32)], chain),
    "loop": lambda: build_module([ROWS, TensorType((96, 96), F32)], looped),
    "transformer": transformer_layer,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_lent_is_free(name):
    steps = schedule(run_pipeline(PROGRAMS[name](), [Fuse(), Order()]))
    ranges = live_ranges(steps)
    reused = reuse_outputs(steps, ranges)
    for buffer, (output, offset) in reused.items():
        assert offset + buffer.bytes <= output.bytes
        first = min(n for n, step in enumerate(steps.steps) if output in touched(step))
        assert ranges[buffer][1] < first
        for other, (owner, start) in reused.items():
            together = (
                ranges[other][0] <= ranges[buffer][1] and ranges[buffer][0] <= ranges[other][1]
            )
            if other is not buffer and owner is output and together:
                assert start + other.bytes <= offset or offset + buffer.bytes <= start
    if name == "chain":
        assert reused


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_lent_values_are_right(name):
    module = PROGRAMS[name]()
    rng = np.random.default_rng(0)
    inputs = [
        (rng.standard_normal(a.dims) * 0.3).astype(a.tensor.dtype) for a in module.body.arguments
    ]
    program = girih.compile(module, options=girih.Options(threads=2))
    for _ in range(3):
        found = program(*inputs)
        for a, b in zip(found, interpret(module, inputs), strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=2e-5, atol=2e-5)
    if name == "chain":
        assert program.memory.temporary_bytes == 64 * 96 * 4  # what the last step reads


def test_of_equal_values_those_are_lent_that_leave_least():
    """The all-reduce of a product: what is multiplied, terms of the sum, those of others, their
    sum. The first and the third never live together, so that only the terms need memory."""

    def buffer(index, kilobytes, place="arena"):
        return Buffer(place, TensorType((256 * kilobytes,), F32), index)

    product, terms, received, part = (buffer(n, k) for n, k in enumerate((4, 8, 8, 1)))
    output = buffer(0, 8, "output")
    end = Label()
    steps = Schedule([*[JumpStep(end)] * 4, CopyStep(part, output)], {end: 5}, outputs=[output])
    ranges = {product: (0, 1), terms: (1, 2), received: (2, 3), part: (3, 4)}
    reused = reuse_outputs(steps, ranges)
    assert reused == {received: (output, 0), product: (output, 0)}
