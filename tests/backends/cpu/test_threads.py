"""The number of workers changes no bit, in loops and between small steps as well."""

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module, build_region
from girih.hlo.types import F32, I32, TensorType

pytestmark = pytest.mark.usefixtures("each_level")
WIDTH = 256
ROW, MATRIX, SCALAR = (
    TensorType((1, WIDTH), F32),
    TensorType((WIDTH, WIDTH), F32),
    TensorType((), I32),
)
STACK = TensorType((16, WIDTH), F32)


def recurrence(b, x, w):
    """h <- tanh(h w + h), sixteen times, every h kept: serial and parallel steps take turns."""

    def condition(b, i, h, kept):
        return [b.compare("LT", i, b.constant(16, SCALAR))]

    def step(b, i, h, kept):
        product = b(
            "dot_general", h, w_inner[0], lhs_contracting_dimensions=(1,),
            rhs_contracting_dimensions=(0,), lhs_batching_dimensions=(), rhs_batching_dimensions=(),
        )  # fmt: skip
        new = b("tanh", b("add", product, h))
        kept = b("dynamic_update_slice", kept, new, i, b.constant(0, SCALAR))
        return [b("add", i, b.constant(1, SCALAR)), new, kept]

    w_inner = [w]
    types = [SCALAR, ROW, STACK]
    start = [b.constant(0, SCALAR), x, b.constant(0.0, STACK)]
    regions = (build_region(types, condition), build_region(types, step))
    return b.op("while", start, {}, regions, types).results[1:]


@pytest.mark.parametrize("calls", [150])
def test_a_loop_gives_the_same_bits_on_one_and_on_two_workers(calls):
    module = build_module([ROW, MATRIX], recurrence)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(ROW.dims).astype(np.float32)
    w = (rng.standard_normal(MATRIX.dims) / 32).astype(np.float32)
    alone = girih.compile(module, options=girih.Options(threads=1))(x, w)
    program = girih.compile(module, options=girih.Options(threads=2))
    for _ in range(calls):
        for left, right in zip(alone, program(x, w), strict=True):
            np.testing.assert_array_equal(left, right)
    for left, right in zip(alone, girih.interpret(module, [x, w]), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)
