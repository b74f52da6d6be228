"""Orders keep the meaning and never raise the peak."""

import numpy as np
import pytest

import girih
from girih.cli.inspecting import inspect_bundle
from girih.hlo.build import build_module, build_region
from girih.hlo.interpret import interpret
from girih.hlo.types import F32, I32, TensorType
from girih.hlo.verify import verify
from girih.optimizer.measure import measure
from girih.optimizer.passes.order import Order
from girih.optimizer.schedule import ORDER_BOUND, ORDER_PROOF

BIG, SMALL = TensorType((64, 64), F32), TensorType((64,), F32)
COUNT = TensorType((), I32)


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
    before, after = measure(module).total_bytes, measure(ordered).total_bytes
    assert before > 8 * BIG.bytes and after <= 4 * BIG.bytes
    assert 3 * BIG.bytes <= ordered.attributes[ORDER_BOUND] <= measure(ordered).arena_bytes
    x = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(interpret(module, [x])[0], interpret(ordered, [x])[0])


def test_the_best_order_is_kept():
    module = build_module([SMALL], lambda b, x: [b("negate", b("tanh", x))])
    ordered = Order()(module)
    assert ordered.body is module.body
    assert ordered.attributes[ORDER_PROOF] == "proven by bound"
    assert Order()(ordered) is ordered


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
    ordered = Order()(module)
    verify(ordered)
    assert measure(ordered).total_bytes <= measure(module).total_bytes
    assert ordered.attributes[ORDER_BOUND] <= measure(ordered).arena_bytes
    x = np.linspace(-1, 1, 64, dtype=np.float32)
    for left, right in zip(interpret(module, [x]), interpret(ordered, [x]), strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_search_without_work_proves_nothing():
    found = Order(work=1)(build_module([SMALL], wide)).attributes[ORDER_PROOF]
    assert found == "proven by bound" or found.startswith("not proven, stopped after")


def turn(b, i, x):
    y = b("add", wide(b, x)[0], x)
    return [b("add", i, b.constant(1, COUNT)), y]


def looped(b, x):
    kinds = [COUNT, SMALL]
    until = build_region(kinds, lambda b, i, x: [b.compare("LT", i, b.constant(3, COUNT))])
    loop = [b.constant(0, COUNT), x]
    return [b.op("while", loop, {}, (until, build_region(kinds, turn))).results[1]]


def test_bodies_of_loops_are_ordered():
    module = build_module([SMALL], looped)
    ordered = Order()(module)
    verify(ordered)
    before, after = measure(module).total_bytes, measure(ordered).total_bytes
    assert before > 8 * BIG.bytes and after <= 4 * BIG.bytes
    x = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(interpret(module, [x])[0], interpret(ordered, [x])[0])


def test_the_plan_tells_what_is_proven_and_inspect_prints_it(tmp_path, capsys):
    program = girih.compile(build_module([SMALL], looped))
    memory = program.plan.memory
    assert memory.order_proof == "proven by bound"
    assert memory.order_bound_bytes == memory.lower_bound_bytes
    program.save(tmp_path / "looped.girih")
    inspect_bundle(tmp_path / "looped.girih", kernels=3, members=False, as_json=False)
    assert "this no more: proven by bound" in capsys.readouterr().out
