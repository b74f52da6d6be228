"""Every cut of a loop kernel gives the interpreter's results."""

from __future__ import annotations

import numpy as np
import pytest

from girih.backends.cpu import codegen, machines
from girih.backends.cpu.loops import loop, reduce, rows
from girih.hlo.build import build_module
from girih.hlo.graph import Region
from girih.hlo.interpret import interpret
from girih.hlo.types import F32, I32, TensorType
from girih.optimizer.cost.construct import ranked, score
from girih.optimizer.cuts import loops

from .harness import compiled

pytestmark = pytest.mark.usefixtures("each_level")
SCALAR = TensorType((), F32)


def total(b, x, dim):
    return b.reduce("add", x, b.constant(0, SCALAR), (dim,))


def softmax(b, x):
    grown = b("exponential", x)
    return b("divide", grown, b.broadcast(total(b, grown, 1), x.dims, (0,)))


def looked_up(b, x):
    places = b.constant(np.arange(0, 280, 2, dtype=np.int32)[:, None], TensorType((140, 1), I32))
    return b(
        "gather", x, places, type=TensorType((3, 140), F32), offset_dims=(0,),
        collapsed_slice_dims=(1,), start_index_map=(1,), index_vector_dim=1, slice_sizes=(3, 1),
    )  # fmt: skip


CASES = {
    "loop": ((3, 700), lambda b, x: b("multiply", x, x), loop),
    "transpose": ((40, 70), lambda b, x: b.transpose(x, (1, 0)), loop),
    "gather": ((3, 700), looked_up, loop),
    "lines": ((5, 333), lambda b, x: total(b, x, 1), reduce),
    "columns": ((9, 77), lambda b, x: total(b, x, 0), reduce),
    "rows": ((4, 333), softmax, rows),
}


def parts(name, target):
    dims, formula, room = CASES[name]
    module = build_module([TensorType(dims, F32)], lambda b, x: [formula(b, x)])
    region = Region(module.body.arguments, module.body.ops, module.body.results)
    return module, loops.LoopProblem(room.shape_of(region, target)), region, room.emit


@pytest.mark.parametrize("name", CASES)
def test_every_cut_is_right(name):
    target = codegen.host_target()
    module, problem, region, emit = parts(name, target)
    x = np.random.default_rng(0).random(region.arguments[0].dims, np.float32)
    (wanted,) = (np.asarray(result) for result in interpret(module, [x]))
    for cut, found in results(problem, region, emit, target, x, wanted.shape):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, err_msg=str(cut))


@pytest.mark.parametrize("length", [16, 24, 333])
def test_sums_begin_with_their_initial_zero(length):
    """Also where a row is code without a loop: no sum of nothing but -0 and +0 is -0."""
    target = codegen.host_target()
    module = build_module([TensorType((5, length), F32)], lambda b, x: [total(b, x, 1)])
    region = Region(module.body.arguments, module.body.ops, module.body.results)
    problem = loops.LoopProblem(rows.shape_of(region, target))
    x = np.full((5, length), -0.0, np.float32)
    for cut, found in results(problem, region, rows.emit, target, x, (5,)):
        assert not np.signbit(found).any(), cut


def results(problem, region, emit, target, x, dims):
    """Each cut that has code of its own, with what it computes."""
    cuts = [loops.blocking_of(row) for row in problem.configurations]
    texts = set()
    for cut in cuts:
        code = emit(region, target, 0.0, cut)
        if code.ir_text in texts:
            continue
        texts.add(code.ir_text)
        found = np.full(dims, np.nan, np.float32)
        scratch = np.zeros(code.scratch_bytes + 64, np.uint8)
        place = scratch.ctypes.data + -scratch.ctypes.data % 64
        table = np.array([x.ctypes.data, found.ctypes.data], np.uint64)
        compiled(code, target)(table.ctypes.data, 0, code.tiles, place)
        yield cut, found


@pytest.mark.parametrize("name", CASES)
def test_cuts_make_different_kernels(name):
    avx2 = codegen.level_target("avx2")
    _, problem, region, emit = parts(name, avx2)
    cuts = [loops.blocking_of(row) for row in problem.configurations]
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


@pytest.mark.parametrize("name", CASES)
def test_kernels_get_the_cut_that_is_predicted_best(name):
    target = codegen.host_target()
    _, problem, region, emit = parts(name, target)
    best = loops.choose(problem.shape, machines.machine_of(target))
    assert emit(region, target, 0.0).ir_text == emit(region, target, 0.0, best).ir_text
    first = ranked(problem, machines.machine_of(target))[0][0]
    assert loops.blocking_of(first) == best


def test_shapes_say_what_kernels_do():
    target = codegen.level_target("avx2")
    shapes = {name: parts(name, target)[1].shape for name in CASES}
    kinds = {name: shape.kind for name, shape in shapes.items()}
    assert kinds == {name: "loop" if name == "gather" else name for name in CASES}
    assert [shapes[name].across for name in ("columns", "transpose")] == [9, 70]
    (one,) = shapes["gather"].passes
    assert one.gathered == 1 and shapes["gather"].table == 3 * 700 * 4
    first, second = shapes["rows"].passes
    assert (first.sums, first.operations[2], second.operations[1]) == (1, 1, 1)


def test_narrow_vectors_and_lone_accumulators_are_slower():
    """What the model must know: full vectors, and additions that do not wait for each other."""
    target = codegen.level_target("avx2")
    machine = machines.machine_of(target)
    for name in ("loop", "lines"):
        problem = parts(name, target)[1]
        best = ranked(problem, machine)[0][0]
        assert best["lanes"] == problem.shape.lanes
    assert ranked(parts("lines", target)[1], machine)[0][0]["accumulators"] > 1


def test_rows_that_no_cut_divides_are_one_tile():
    """A row whose length is no multiple of a turn's vectors is not cut for that."""
    target = codegen.host_target()
    module = build_module([TensorType((9, 100), F32)], lambda b, x: [b("multiply", x, x)])
    region = Region(module.body.arguments, module.body.ops, module.body.results)
    shape = loop.shape_of(region, target)
    assert shape is not None
    cut = loops.LoopBlocking(shape.lanes, 1, 4, 900)
    assert loop.emit(region, target, 0.0, cut).tiles == 1
