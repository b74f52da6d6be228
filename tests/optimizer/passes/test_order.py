"""Orders keep the meaning and never raise the peak."""

import numpy as np
import pytest

from girih.hlo.build import build_module
from girih.hlo.interpret import interpret
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import verify
from girih.optimizer.passes.order import Order, _Graph, order_region

BIG, SMALL = TensorType((64, 64), F32), TensorType((64,), F32)


def wide(b, x):
    """Eight big values made first, each reduced only later: a poor order on purpose."""
    bigs = [b("add", b.broadcast(x, BIG.dims, (0,)), b.constant(float(i), BIG)) for i in range(8)]
    zero = b.constant(0.0, TensorType((), F32))
    sums = [b.reduce("add", big, zero, (1,)) for big in bigs]
    total = sums[0]
    for other in sums[1:]:
        total = b("add", total, other)
    return [total]


def test_a_poor_order_is_mended():
    module = build_module([SMALL], wide)
    ordered = Order()(module)
    verify(ordered)
    before = _Graph(module.body).peak(module.body.ops)
    after = _Graph(ordered.body).peak(ordered.body.ops)
    assert before > 8 * BIG.bytes and after <= 4 * BIG.bytes
    x = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(interpret(module, [x])[0], interpret(ordered, [x])[0])


def test_the_best_order_is_kept():
    module = build_module([SMALL], lambda b, x: [b("negate", b("tanh", x))])
    assert Order()(module) is module


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs(seed):
    rng = np.random.default_rng(seed)

    def body(b, x):
        pool = [x]
        for _ in range(30):
            v, w = (pool[int(rng.integers(len(pool)))] for _ in range(2))
            pool.append(b("add", v, w) if rng.random() < 0.5 else b("tanh", v))
        return [pool[-1], pool[5]]

    module = build_module([SMALL], body)
    region = order_region(module.body)
    ordered = module.with_main(region)
    verify(ordered)
    graph = _Graph(module.body)
    assert graph.peak(region.ops) <= graph.peak(module.body.ops)
    x = np.linspace(-1, 1, 64, dtype=np.float32)
    for left, right in zip(interpret(module, [x]), interpret(ordered, [x]), strict=True):
        np.testing.assert_array_equal(left, right)
