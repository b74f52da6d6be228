"""The checker accepts what the planners make, and rejects whatever is changed in it."""

from __future__ import annotations

import itertools
import random

import pytest

from girih.hlo.build import build_module, build_region
from girih.hlo.errors import CompilerBug
from girih.hlo.types import F32, I1, I32, TensorType
from girih.optimizer.certify import (
    Forced,
    OrderBound,
    Peak,
    ReusedPlace,
    Task,
    Tasks,
    Why,
    check_order_bound,
    check_plan,
    peak_of,
)
from girih.optimizer.passes.fuse import Fuse
from girih.optimizer.passes.order import Order
from girih.optimizer.pipeline import run_pipeline
from girih.optimizer.plan import KernelFacts, Planner
from girih.optimizer.schedule import schedule
from girih.specs.generated import plan_pb2

from .test_output_reuse import PROGRAMS, ROWS

SQUARE = TensorType((96, 96), F32)


def branched(b, p, x, w):
    """A value of the outside is needed in one branch only."""
    kept = b("reverse", b("sine", x), dimensions=(0,))

    def on(b):
        return [b("reverse", b("tanh", kept), dimensions=(1,))]

    def off(b):
        return [b("reverse", b("cosine", x), dimensions=(0,))]

    either = b.op("if", [p], {}, (build_region([], on), build_region([], off))).result
    return [b("reverse", b("add", either, kept), dimensions=(0,))]


def nested(b, x, w):
    """A loop in a loop, and a value of the outside that the inner one needs in every turn."""
    kinds = [TensorType((), I32), ROWS]
    outside = b("reverse", b("sine", x), dimensions=(0,))

    def cond(b, i, x):
        return [b.compare("LT", i, b.constant(4, kinds[0]))]

    def inner(b, i, x):
        y = b("reverse", b("add", x, outside), dimensions=(1,))
        return [b("add", i, b.constant(1, kinds[0])), b("reverse", y, dimensions=(0,))]

    def outer(b, i, x):
        regions = (build_region(kinds, cond), build_region(kinds, inner))
        loop = b.op("while", [b.constant(0, kinds[0]), x], {}, regions)
        y = b("reverse", b("tanh", loop.results[1]), dimensions=(1,))
        return [b("add", i, b.constant(1, kinds[0])), b("reverse", y, dimensions=(0,))]

    regions = (build_region(kinds, cond), build_region(kinds, outer))
    return [b.op("while", [b.constant(0, kinds[0]), x], {}, regions).results[1]]


MODULES = {
    **PROGRAMS,
    "branch": lambda: build_module([TensorType((), I1), ROWS, SQUARE], branched),
    "nested": lambda: build_module([ROWS, SQUARE], nested),
}


@pytest.fixture(scope="module", params=MODULES)
def planned(request):
    """A plan, the results of its steps, and what lies in outputs."""
    steps = schedule(run_pipeline(MODULES[request.param](), [Fuse(), Order()]))
    planner = Planner(steps, "null", lambda key, op: KernelFacts(1))
    return planner.run(), planner.results(), planner.reused_places()


def changed(plan, change):
    copy = plan_pb2.Plan()
    copy.CopyFrom(plan)
    change(copy)
    return copy


def arena_buffers(plan):
    return [n for n, buffer in enumerate(plan.buffers) if buffer.place == plan_pb2.ARENA]


def rejected(plan, results, reused, match=None, peak=None):
    with pytest.raises(CompilerBug, match=match):
        check_plan(plan, results, reused, peak)


def test_every_moved_offset_is_rejected(planned):
    plan, results, reused = planned
    check_plan(plan, results, reused)
    arena = arena_buffers(plan)
    for number in arena:
        buffer = plan.buffers[number]
        targets = [(buffer.offset + 8, "aligned"), (plan.memory.arena_bytes, "ends behind")]
        targets += [
            (plan.buffers[other].offset, f"{min(number, other)}|{max(number, other)}")
            for other in arena
            if other != number
            and plan.buffers[other].first_step <= buffer.last_step
            and buffer.first_step <= plan.buffers[other].last_step
        ]
        for offset, match in targets:

            def move(copy, number=number, offset=offset):
                copy.buffers[number].offset = offset

            rejected(changed(plan, move), results, reused, match)


def test_every_shortened_life_is_rejected(planned):
    plan, results, reused = planned
    for number in arena_buffers(plan):
        if plan.buffers[number].first_step == plan.buffers[number].last_step:
            continue

        def later(copy, number=number):
            copy.buffers[number].first_step += 1

        def earlier(copy, number=number):
            copy.buffers[number].last_step -= 1

        rejected(changed(plan, later), results, reused, f"needs buffer {number},")
        rejected(changed(plan, earlier), results, reused, f"needs buffer {number},")


def test_every_lengthened_life_is_rejected(planned):
    """It would make the bound larger than what is needed."""
    plan, results, reused = planned
    for number in arena_buffers(plan):

        def earlier(copy, number=number):
            copy.buffers[number].first_step -= 1

        def later(copy, number=number):
            copy.buffers[number].last_step = len(plan.steps)

        if plan.buffers[number].first_step:
            rejected(changed(plan, earlier), results, reused, f"buffer {number} is needed from")
        rejected(changed(plan, later), results, reused, f"buffer {number} is needed from")


def test_a_carried_value_that_nobody_reads_lives_to_the_end_of_its_loop():
    """It is dead before the peak, but has its memory there."""
    kinds = [TensorType((), I32), ROWS, ROWS]

    def program(b, x):
        first = b("reverse", b("sine", x), dimensions=(0,))
        second = b("reverse", b("cosine", x), dimensions=(0,))
        loop = b.op("while", [b.constant(0, kinds[0]), first, second], {}, regions)
        return [b("reverse", loop.results[1], dimensions=(0,))]

    def cond(b, i, x, dead):
        return [b.compare("LT", i, b.constant(4, kinds[0]))]

    def body(b, i, x, dead):
        written = b("reverse", x, dimensions=(0,))
        y = b("reverse", x, dimensions=(1,))
        z = b("reverse", b("add", b("reverse", y, dimensions=(0,)), y), dimensions=(0,))
        return [b("add", i, b.constant(1, kinds[0])), b("reverse", z, dimensions=(0,)), written]

    regions = (build_region(kinds, cond), build_region(kinds, body))
    steps = schedule(build_module([ROWS], program))
    plan = Planner(steps, "null", lambda key, op: KernelFacts(1)).run()
    assert plan.memory.lower_bound_bytes == peak_of(plan).bytes


def test_every_changed_bound_is_rejected(planned):
    plan, results, reused = planned
    for name, by in itertools.product(("lower_bound_bytes", "arena_bytes"), (-64, 64)):
        if getattr(plan.memory, name) + by < 0:
            continue

        def change(copy, name=name, by=by):
            setattr(copy.memory, name, getattr(copy.memory, name) + by)

        rejected(changed(plan, change), results, reused)
    peak = peak_of(plan)
    for number in range(len(plan.buffers)):
        buffer = plan.buffers[number]
        rounded = max(-(-buffer.bytes // 64), 1) * 64
        if number in peak.buffers:
            rest = tuple(n for n in peak.buffers if n != number)
            rejected(
                plan, results, reused, "claims a bound", Peak(peak.step, rest, peak.bytes - rounded)
            )
            rejected(plan, results, reused, "add up", Peak(peak.step, rest, peak.bytes))
        more = Peak(peak.step, (*peak.buffers, number), peak.bytes + rounded)
        rejected(plan, results, reused, f"buffer {number} does not live|add up", more)


def test_a_dropped_or_swapped_argument_is_rejected():
    """A plan whose step reads another buffer reads what is not there, or needs it for longer."""
    steps = schedule(run_pipeline(MODULES["transformer"](), [Fuse(), Order()]))
    planner = Planner(steps, "null", lambda key, op: KernelFacts(1))
    plan = planner.run()
    for number in arena_buffers(plan):
        last = plan.buffers[number].last_step
        for late in range(last + 1, len(plan.steps)):

            def read(copy, number=number, late=late):
                copy.steps[late].run.arguments.insert(0, plan_pb2.Argument(buffer=number))

            rejected(
                changed(plan, read), planner.results(), planner.reused_places(),
                f"needs buffer {number},|two values|overlap|not written",
            )  # fmt: skip


def test_lent_memory_is_checked():
    steps = schedule(run_pipeline(PROGRAMS["chain"](), [Fuse(), Order()]))
    planner = Planner(steps, "null", lambda key, op: KernelFacts(1))
    plan, results, reused = planner.run(), planner.results(), planner.reused_places()
    assert reused
    for index, place in enumerate(reused):
        owner = plan.buffers[place.owner]
        for wrong in (
            place._replace(offset=place.offset + 8),
            place._replace(offset=owner.bytes),
            place._replace(bytes=owner.bytes + 64),
            place._replace(last=len(plan.steps) - 1),
            place._replace(first=place.first + 1),
            place._replace(last=place.last - 1),
            place._replace(owner=plan.inputs[0]),
        ):
            rejected(plan, results, [*reused[:index], wrong, *reused[index + 1 :]])
        rejected(plan, results, [*reused[:index], *reused[index + 1 :]])
    rejected(plan, results, [*reused, reused[0]], "overlap")


def small_plan(*steps, replaces=None):
    """Argument 0 and output 1, one arena buffer 2; of each step what it reads and writes."""
    plan = plan_pb2.Plan(arena_alignment=64, inputs=[0], outputs=[1])
    plan.buffers.add(place=plan_pb2.INPUT, bytes=64)
    plan.buffers.add(place=plan_pb2.OUTPUT, bytes=64, replaces=replaces)
    plan.buffers.add(place=plan_pb2.ARENA, bytes=64, last_step=len(steps) - 1)
    for reads, writes in steps:
        arguments = [plan_pb2.Argument(buffer=n) for n in (*reads, *writes)]
        plan.steps.add().run.arguments.extend(arguments)
    plan.memory.arena_bytes = plan.memory.lower_bound_bytes = 64
    plan.memory.placement_proof = "proven by bound"
    plan.memory.peak_step = 0
    return plan, {number: len(writes) for number, (_, writes) in enumerate(steps)}


def test_a_donated_argument_is_not_needed_when_it_is_replaced():
    check_plan(*small_plan(([0], [2]), ([0, 2], [1]), replaces=0))
    late = small_plan(([0], [2, 1]), ([0, 2], [2]), replaces=0)
    rejected(*late, [], "needed after step 0")
    check_plan(*small_plan(([0], [2, 1]), ([0, 2], [2])))
    rejected(*small_plan(([0], [2]), ([0, 2], [1]), replaces=1), [], "cannot replace")


def test_reading_too_early_and_writing_an_argument_are_rejected():
    rejected(*small_plan(([2], [1]), ([0], [2])), [], "buffer 2 is not written on all ways")
    rejected(*small_plan(([0], [2]), ([2], [2])), [], "buffer 1 is not written.*it is returned")
    rejected(*small_plan(([0], [2]), ([2], [1, 0])), [], "step 1 writes buffer 0")
    rejected(*small_plan(([0], [2]), ([2], [1])), [ReusedPlace(1, 0, 64, 1, 1)])


def test_a_part_lies_with_its_rest():
    """A step that writes a part of its result has the rest as an operand."""
    inside = small_plan(([0], [2, 1]), ([1, 2], [1]))
    outside = small_plan(([0], [2]), ([2, 0], [1]))
    check_plan(*inside, parts={1: {0: 0}})
    check_plan(*outside)
    with pytest.raises(CompilerBug, match="step 1 writes a part of result 0, but operand 0"):
        check_plan(*outside, parts={1: {0: 0}})


# Orders.


def random_tasks(seed, count=6):
    """Every value is made by one task; sizes are small; some results may overwrite operands."""
    dice = random.Random(seed)
    sizes = [dice.randint(1, 4) for _ in range(count + 2)]
    tasks = []
    for number in range(count):
        reads = tuple(v for v in range(number + 2) if dice.random() < 0.35)
        alike = tuple(v for v in reads if v > 0 and sizes[v] == sizes[number + 2])
        over = ((number + 2, alike),) if alike else ()
        tasks.append(Task(reads, (number + 2,), (), dice.randrange(3), over))
    returned = frozenset(v for v in range(2, count + 2) if dice.random() < 0.2)
    return Tasks(tuple(tasks), tuple(sizes), returned, frozenset({0}))


def least_peak(graph):
    """By trying all orders; value 0 is kept, value 1 is donated."""
    best = sum(graph.sizes) + 100
    count = len(graph.tasks)
    makers = {v: n for n, task in enumerate(graph.tasks) for v in task.makes}
    for order in itertools.permutations(range(count)):
        place = {task: p for p, task in enumerate(order)}
        if any(
            place[makers[v]] > place[n]
            for n, task in enumerate(graph.tasks) for v in task.reads if v in makers
        ):  # fmt: skip
            continue
        last = {
            v: max((place[n] for n, task in enumerate(graph.tasks) if v in task.reads), default=-1)
            for v in range(len(graph.sizes))
        }
        peak = graph.at_end + sum(graph.sizes[v] for v in graph.returned | graph.kept)
        for position, number in enumerate(order):
            task = graph.tasks[number]
            live = [
                v for v in range(len(graph.sizes))
                if v in graph.kept
                or ((v not in makers or place[makers[v]] <= position)
                    and (last[v] >= position or v in graph.returned or v in task.makes))
            ]  # fmt: skip
            need = sum(graph.sizes[v] for v in live) + task.inside
            for _, operands in task.over:
                dying = [v for v in operands if last[v] == position and v not in graph.returned]
                need -= graph.sizes[dying[0]] if dying else 0
            peak = max(peak, need)
        best = min(best, peak)
    return best


def reached(graph, number, forward):
    makers = {v: n for n, task in enumerate(graph.tasks) for v in task.makes}
    edges = {
        (makers[v], n) for n, task in enumerate(graph.tasks) for v in task.reads if v in makers
    }
    found, size = {number}, 0
    while size != len(found):
        size = len(found)
        found |= {b if forward else a for a, b in edges if (a if forward else b) in found}
    return found - {number}


def claim(graph, number):
    """What every order holds at a task, and how many bytes that are."""
    task = graph.tasks[number]
    before, after = reached(graph, number, False), reached(graph, number, True)
    later = {v for n in after for v in graph.tasks[n].reads} | graph.returned
    makers = {v: n for n, t in enumerate(graph.tasks) for v in t.makes}
    forced = []
    for value in range(len(graph.sizes)):
        if value in graph.kept:
            forced.append(Forced(value, "kept"))
        elif value in task.makes:
            forced.append(Forced(value, "made here"))
        elif (value in task.reads or value in later) and makers.get(value, -1) in before | {-1}:
            forced.append(Forced(value, "passes"))
    total = sum(graph.sizes[one.value] for one in forced) + task.inside
    for made, operands in task.over:
        if any(v not in later and v not in graph.kept for v in operands):
            total -= graph.sizes[made]
    return OrderBound(number, tuple(forced), total)


@pytest.mark.parametrize("seed", range(40))
def test_order_bounds_hold_and_each_change_is_rejected(seed):
    graph = random_tasks(seed)
    least = least_peak(graph)
    for number, task in enumerate(graph.tasks):
        bound = claim(graph, number)
        check_order_bound(graph, bound)
        assert bound.bytes <= least
        wrong = [bound._replace(bytes=bound.bytes + 1), bound._replace(task=len(graph.tasks))]
        listed = {one.value for one in bound.forced}
        for value in range(len(graph.sizes)):
            reasons: list[Why] = ["passes", "made here", "returned"]
            if value not in listed:
                reasons.append("kept")
            size = graph.sizes[value]
            for why in reasons:
                more = (*bound.forced, Forced(value, why))
                wrong.append(bound._replace(forced=more, bytes=bound.bytes + size))
        for one in bound.forced:
            rest = tuple(other for other in bound.forced if other != one)
            if not any(one.value in operands for _, operands in task.over) and one.value not in [
                made for made, _ in task.over
            ]:
                wrong.append(bound._replace(forced=rest))
        for claimed in wrong:
            with pytest.raises(CompilerBug):
                check_order_bound(graph, claimed)


def test_a_broken_reachability_is_rejected():
    tasks = (Task((), (0,)), Task((0,), (1,)), Task((0, 1), (2,)))
    graph = Tasks(tasks, (4, 4, 4))
    bound = OrderBound(1, (Forced(0, "passes"), Forced(1, "made here")), 8)
    check_order_bound(graph, bound)
    broken = graph._replace(tasks=(tasks[0], Task((), (1,)), Task((1,), (2,))))
    with pytest.raises(CompilerBug, match="value 0 is not 'passes' at task 1"):
        check_order_bound(broken, bound)
    tied = broken._replace(tasks=(tasks[0], Task((), (1,), after=(0,)), Task((0, 1), (2,))))
    check_order_bound(tied, bound)


def test_what_is_needed_at_the_end():
    graph = Tasks((Task((), (0,)), Task((0,), (1,))), (4, 8), frozenset({1}), at_end=3)
    check_order_bound(graph, OrderBound(None, (Forced(1, "returned"),), 11))
    for wrong in (
        OrderBound(None, (Forced(1, "returned"),), 12),
        OrderBound(None, (Forced(0, "returned"), Forced(1, "returned")), 15),
        OrderBound(None, (Forced(1, "passes"),), 11),
    ):
        with pytest.raises(CompilerBug, match="the end"):
            check_order_bound(graph, wrong)


def test_what_dies_before_the_inside_begins_is_not_counted_twice():
    tasks = (Task((), (0,)), Task((0,), (1,), inside=10, gone=frozenset({0})))
    graph = Tasks(tasks, (6, 1))
    forced = (Forced(0, "passes"), Forced(1, "made here"))
    check_order_bound(graph, OrderBound(1, forced, 11))
    with pytest.raises(CompilerBug, match="11 bytes are forced at task 1, not 12"):
        check_order_bound(graph, OrderBound(1, forced, 12))
