"""A part of a kernel gives the same bits as the whole."""

import numpy as np
import pytest

from girih.backends import find
from girih.hlo.build import Builder, build_module
from girih.hlo.graph import Op, Region, Value, arguments
from girih.hlo.interpret import interpret
from girih.hlo.types import F32, TensorType
from girih.hlo.verify import FUSED, verify
from girih.optimizer.partial import partial
from girih.optimizer.pipeline import pipeline_for
from girih.options import Options

from .transformer import dot

SIDE = TensorType((256, 256), F32)


def kernels(activated: bool) -> list[Op]:
    """Kernels with several results: a product with what follows it, or loops alone."""

    def body(b: Builder, x: Value, w: Value) -> list[Value]:
        z = dot(b, x, w, 0, 1, 0) if activated else b("sine", b("add", x, w))
        act = b("multiply", z, b("tanh", z))
        return [z, act, b("exponential", b("negate", act))]

    options = Options()
    passes = pipeline_for(find("cpu:avx2", options), options)
    _, module = passes.run(build_module([SIDE, SIDE], body))
    return [op for op in module.body.ops if len(op.results) > 1]


def run(op: Op, values: dict[Value, np.ndarray]) -> list[np.ndarray]:
    own = arguments([value.type for value in op.operands])
    alone = Op(op.definition, own, op.attributes, op.regions, op.result_types, op.origin)
    module = build_module([v.type for v in own], lambda b, *_: [])
    module = module.with_main(Region(own, [alone], alone.results))
    verify(module, FUSED)
    return [np.asarray(r) for r in interpret(module, [values[v] for v in op.operands])]


@pytest.mark.parametrize("activated", [True, False])
@pytest.mark.parametrize("others", [True, False], ids=["others there", "alone"])
def test_each_result_alone(activated, others):
    found = kernels(activated)
    assert found
    chance = np.random.default_rng(0)
    for op in found:
        values = {v: chance.standard_normal(v.dims).astype(np.float32) for v in op.operands}
        whole = run(op, values)
        values.update(zip(op.results, whole, strict=True))
        for number, expected in enumerate(whole):
            there = [n for n in range(len(whole)) if n != number] if others else []
            part = partial(op, number, there)
            assert part is not op and len(part.results) == 1
            assert part.definition.flops(part) <= op.definition.flops(op)
            (result,) = run(part, values)
            assert result.tobytes() == expected.tobytes()


def test_what_has_one_result_stays_whole():
    (op,) = build_module([SIDE], lambda b, x: [b("sine", x)]).body.ops
    assert partial(op, 0) is op
