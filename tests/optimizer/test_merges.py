"""Which independent steps are one launch: what is merged, at which price, in how much memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import girih
from girih.backends.nvidia import target_of
from girih.hlo.build import Builder, build_module, build_region, make_op
from girih.hlo.errors import CompilerBug, UserError
from girih.hlo.graph import Function, Module, Op, Origin, Value, arguments
from girih.hlo.sizes import Symbol
from girih.hlo.symbols import SymbolicDim
from girih.hlo.types import F16, TensorType
from girih.optimizer.cost.merging import (
    ERROR,
    BlockNeeds,
    LaunchWork,
    Prices,
    Tile,
    prices,
    work_of,
)
from girih.optimizer.machine import Residency
from girih.optimizer.merges import Candidate, EarliestStart, Merging, best
from girih.optimizer.prove import prove
from girih.optimizer.tiles.tilings import BLOCK_TILINGS, tile_of
from girih.specs.generated import plan_pb2

from .control_programs import Program as Generated

MACHINE = target_of("nvidia:sm_90a").machine
MOST = Residency(2048, 32, 65536, 228 << 10, 1 << 10)


def _dot(b: Any, x: Value, y: Value) -> Value:
    return b("dot_general", x, y, lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,))


def products(count: int, size: int) -> Module:
    """Products of size x size that need nothing of each other."""
    kind = TensorType((size, size), F16)

    def body(b: Any, *values: Value) -> list[Value]:
        return [_dot(b, values[2 * n], values[2 * n + 1]) for n in range(count)]

    return build_module([kind] * (2 * count), body)


def plan_of(
    module: Module, schedule: str = "auto", target: str = "nvidia:sm_90a", **more: Any
) -> Any:
    options = girih.Options(schedule=schedule, cache="off", **more)
    return girih.compile(module, target=target, options=options).plan


def test_many_small_products_are_one_launch():
    """64 of 256^3, of one body: most multiprocessors are busy, and the price says why."""
    plan = plan_of(products(64, 256))
    (merge,) = plan.merges
    assert [one.step for one in merge.steps] == [*range(64)]
    (kernel,) = plan.kernels
    each = kernel.launches[0].grid[0]
    assert [one.first_block for one in merge.steps] == [*range(0, 64 * each, each)]
    assert merge.busy >= 0.8
    assert merge.seconds < (1 - ERROR) * merge.seconds_of_branches < merge.seconds_in_turn


def test_large_products_stay_apart():
    plan = plan_of(products(2, 4096))
    assert not plan.merges
    (merge,) = plan_of(products(2, 4096), "merged").merges
    assert merge.seconds <= 1.02 * merge.seconds_of_branches  # what forcing it may lose


def test_what_gains_less_than_the_model_may_be_wrong_is_no_gain():
    assert Prices(0.99 - ERROR, 1.0, 1.0, 1, 1.0).gains()
    assert not Prices(0.99 - ERROR, 1.0, 1.0, 1, 1.0).gains(0.02)
    assert not Prices(1.01 - ERROR, 1.0, 1.0, 1, 1.0).gains()


def test_what_would_have_to_wait_for_another_is_not_merged():
    """Unless the program's end does not wait for it."""
    launch = plan_pb2.Launch(grid=(8, 1, 1), block=(128, 1, 1))
    launch.arguments.add().memory.slot = 0
    work = LaunchWork(8, BlockNeeds(128, 0, 32), 0.0, 1e-6, (), 128.0)
    both = [Candidate(step, 0, (launch,), work) for step in range(2)]
    merging = Merging(MACHINE, MOST, 4352)

    def merged(slack: float, forced: bool = False) -> bool:
        ready = {0: EarliestStart(0, 0.0, slack), 1: EarliestStart(1, 1e-3, 0.0)}
        return best(both, ready, replace(merging, forced=forced)) is not None

    assert merged(1e-3) and not merged(0.0) and merged(0.0, forced=True)


def test_a_launch_takes_the_most_registers_and_shared_memory():
    """A small kernel in the blocks of a large one has as few of them at a time."""
    small, large = BlockNeeds(128, 0, 32), BlockNeeds(128, 100 << 10, 168)
    works = [LaunchWork(1000, needs, 0.0, 1e-3, (), 128.0) for needs in (small, large)]
    assert small.resident(MOST) == 16 and large.resident(MOST) == 2
    alone, both = prices(works[:1], MACHINE, MOST), prices(works, MACHINE, MOST)
    assert alone.resident == 16 and both.resident == 2
    again = prices([works[0], works[0]._replace(needs=large)], MACHINE, MOST)
    assert again.merged > prices([works[0], works[0]], MACHINE, MOST).merged


def bearing(*tilings: tuple[int, ...]) -> Op:
    """A product of 256 x 256 with the tilings that it is recorded to have."""
    kinds = [TensorType((256, 256), F16)] * 2
    region = build_region(kinds, lambda b, x, y: [_dot(b, x, y)])
    facts = {"kind": "contract", BLOCK_TILINGS: tilings}
    return make_op("fusion", arguments(kinds), facts, (region,), region.result_types)


def test_a_price_takes_the_tile_that_is_recorded():
    """The first one that makes as many blocks; where blocks walk over tiles, the first."""
    op = bearing((1, 64, 16, 128), (1, 64, 64, 128), (1, 64, 128, 64))
    assert tile_of(op, 8, False) == Tile(64, 128)
    assert tile_of(op, 32, False) == tile_of(op, 132, False) == Tile(16, 128)
    assert tile_of(op, 8, True) is None
    needs = BlockNeeds(128, 0, 255)
    flops, moved = 2.0 * 256**3, 3 * 2.0 * 256**2
    wide, square = (
        work_of(op, flops, moved, 32, needs, MACHINE, False, tile)
        for tile in (Tile(16, 128), Tile(64, 32))
    )
    again = [2 * 256 * 256 * 256 * (r + c) / (r * c) for r, c in ((16, 128), (64, 32))]
    for work, total in zip((wide, square), again, strict=True):
        assert work.traffic[0].bytes + work.traffic[2].bytes == pytest.approx(total)


def test_what_depends_on_each_other_is_in_no_launch():
    kind = TensorType((512, 512), F16)

    def body(b: Any, x: Value, y: Value) -> list[Value]:
        return [_dot(b, _dot(b, x, y), _dot(b, y, x))]

    plan = plan_of(build_module([kind] * 2, body), "merged")
    (merge,) = plan.merges
    assert [one.step for one in merge.steps] == [0, 1] and len(plan.steps) == 3


def test_where_nothing_can_be_merged_is_an_error_with_its_line():
    origin = (Origin("model.py", 7),)

    def body(b: Any, x: Value, y: Value) -> list[Value]:
        with b.at(origin):
            return [_dot(b, x, y)]

    module = build_module([TensorType((64, 64), F16)] * 2, body)
    wanted = "^model.py:7: schedule='merged': no two kernels .* independent .*leave it out"
    with pytest.raises(UserError, match=wanted):
        plan_of(module, "merged")


def test_what_calls_decide_is_not_merged():
    b = Builder()
    kinds = [TensorType((SymbolicDim("n"), 64), F16), TensorType((64, 64), F16)] * 2
    x, y, z, w = b.arguments(kinds)
    region = b.region([_dot(b, x, y), _dot(b, z, w)])
    module = Module({"main": Function("main", region)}, symbols={"n": Symbol(1, 300)})
    assert not plan_of(module).merges
    with pytest.raises(UserError, match="schedule='merged': calls decide sizes"):
        plan_of(module, "merged")


def test_merged_steps_keep_their_memory_and_others_may_not_grow_it():
    """Without room for it nothing is merged, and a forced merge says so."""
    module = Generated(1).module()
    tight = plan_of(module, target="ptx-sim", overlap_memory=0.0)
    wide = plan_of(module, target="ptx-sim")
    apart = plan_of(module, "host", target="ptx-sim")
    assert tight.memory.arena_bytes <= apart.memory.arena_bytes
    assert len(tight.merges) <= len(wide.merges)


def _results(plan: Any) -> dict[int, int]:
    """How many arguments each step writes."""
    return {
        number: len(step.run.arguments) - step.run.operands
        for number, step in enumerate(plan.steps)
        if step.WhichOneof("action") == "run"
    }


def _mutants(plan: plan_pb2.Plan) -> list[tuple[str, plan_pb2.Plan]]:
    """Plans that merge what they must not: steps that wait for each other, that write the same
    bytes, or that have blocks of each other."""
    found = []

    def mutant(what: str) -> plan_pb2.Plan:
        made = plan_pb2.Plan()
        made.CopyFrom(plan)
        found.append((what, made))
        return made

    merged = {one.step for merge in plan.merges for one in merge.steps}
    owner = {step.run.signal - 1: n for n, step in enumerate(plan.steps) if step.run.signal}
    for number, step in enumerate(plan.steps):
        before = [owner[wait.counter] for wait in step.run.waits if wait.threshold]
        if number - 1 in before and not {number, number - 1} & merged:
            merge = mutant("pair").merges.add()
            first = 0
            for one in (number - 1, number):
                grid = plan.kernels[plan.steps[one].run.kernel].launches[0].grid
                blocks = int(np.prod(grid))
                merge.steps.add(step=one, first_block=first, blocks=blocks)
                first += blocks
    for place, merge in enumerate(plan.merges):
        made = mutant("blocks").merges[place]
        made.steps[1].first_block -= 1
        one, other = (plan.steps[merge.steps[n].step].run for n in range(2))
        mutant("memory").steps[merge.steps[1].step].run.arguments[-1].CopyFrom(one.arguments[-1])
        waiting = mutant("wait").steps[max(one.step for one in merge.steps)].run
        waiting.waits.add(counter=min(one.signal, other.signal) - 1, threshold=1)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_merges_are_proven_and_wrong_ones_are_not(seed):
    plan = plan_of(Generated(seed).module(), target="ptx-sim")
    assert plan.merges
    prove(plan, _results(plan))
    kinds = set()
    for what, mutant in _mutants(plan):
        with pytest.raises(CompilerBug):
            prove(mutant, _results(mutant))
        kinds.add(what)
    assert kinds >= {"blocks", "memory", "wait"}


def test_a_dependent_pair_in_one_launch_is_refused():
    kind = TensorType((512, 512), F16)

    def body(b: Any, x: Value, y: Value) -> list[Value]:
        return [_dot(b, _dot(b, x, y), y)]

    plan = plan_of(build_module([kind] * 2, body))
    ((what, mutant),) = _mutants(plan)
    assert what == "pair"
    with pytest.raises(CompilerBug, match="waits for one that it is merged with"):
        prove(mutant, _results(mutant))
    del mutant.steps[1].run.waits[:]
    with pytest.raises(CompilerBug, match="merged steps 0 and 1 touch the same memory"):
        prove(mutant, _results(mutant))
