"""Every cut of a loop kernel gives the interpreter's results."""

from __future__ import annotations

import numpy as np
import pytest

from girih.backends.cpu import codegen, machines
from girih.backends.cpu.loops import blocking, loop, reduce, rows
from girih.hlo.build import build_module
from girih.hlo.graph import Region
from girih.hlo.interpret import interpret
from girih.hlo.types import F32, TensorType
from girih.optimizer.cost.construct import ranked, score

from .harness import compiled

pytestmark = pytest.mark.usefixtures("each_level")
SCALAR = TensorType((), F32)


def total(b, x, dim):
    return b.reduce("add", x, b.constant(0, SCALAR), (dim,))


def softmax(b, x):
    grown = b("exponential", x)
    return b("divide", grown, b.broadcast(total(b, grown, 1), x.dims, (0,)))


CASES = {
    "loop": ((3, 700), lambda b, x: b("multiply", x, x), loop.emit),
    "transpose": ((40, 70), lambda b, x: b.transpose(x, (1, 0)), loop.emit),
    "lines": ((5, 333), lambda b, x: total(b, x, 1), reduce.emit),
    "columns": ((9, 77), lambda b, x: total(b, x, 0), reduce.emit),
    "rows": ((4, 333), softmax, rows.emit),
}


def parts(name, target):
    dims, formula, emit = CASES[name]
    module = build_module([TensorType(dims, F32)], lambda b, x: [formula(b, x)])
    region = Region(module.body.arguments, module.body.ops, module.body.results)
    kind = "reduce" if name in ("lines", "columns") else name
    return module, blocking.LoopProblem(region, target, kind), region, emit


@pytest.mark.parametrize("name", CASES)
def test_every_cut_is_right(name):
    target = codegen.host_target()
    module, problem, region, emit = parts(name, target)
    x = np.random.default_rng(0).random(region.arguments[0].dims, np.float32)
    (wanted,) = (np.asarray(result) for result in interpret(module, [x]))
    cuts = [blocking.blocking_of(row) for row in problem.configurations]
    texts = set()
    for cut in cuts:
        code = emit(region, target, 0.0, cut)
        if code.ir_text in texts:
            continue
        texts.add(code.ir_text)
        found = np.full(wanted.shape, np.nan, np.float32)
        scratch = np.zeros(code.scratch_bytes + 64, np.uint8)
        place = scratch.ctypes.data + -scratch.ctypes.data % 64
        table = np.array([x.ctypes.data, found.ctypes.data], np.uint64)
        compiled(code, target)(table.ctypes.data, 0, code.tiles, place)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, err_msg=str(cut))


@pytest.mark.parametrize("name", CASES)
def test_cuts_make_different_kernels(name):
    avx2 = codegen.level_target("avx2")
    _, problem, region, emit = parts(name, avx2)
    cuts = [blocking.blocking_of(row) for row in problem.configurations]
    assert len({emit(region, avx2, 0.0, cut).ir_text for cut in cuts}) > 3


@pytest.mark.parametrize("name", CASES)
def test_predictions_are_finite_and_the_same_each_time(name):
    target = codegen.host_target()
    _, problem, _, _ = parts(name, target)
    machine = machines.machine_of(target)
    scores = score(problem, problem.configurations, machine)
    assert np.isfinite(scores.time).all() and (scores.time > 0).all()
    first, again = (ranked(problem, machine)[1] for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_the_usual_cut_is_one_of_them():
    target = codegen.host_target()
    _, problem, region, _ = parts("loop", target)
    usual = blocking.default(region, target)
    every = problem.configurations
    assert usual.lanes in every["lanes"] and usual.unroll in every["unroll"]
