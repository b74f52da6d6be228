"""Steps as regions that nest, and as nodes of one graph: generated programs against the walk."""

from __future__ import annotations

import random

import pytest

from girih.hlo.signature import Signature
from girih.runtime.devices.exchanges import Communicate
from girih.runtime.devices.gpu_steps import Choose, Jump, KernelStep, Where
from girih.runtime.devices.regions import LoopRegion, NoRegions, regions
from girih.specs.generated import plan_pb2

from .gpu_fakes import FakeGpu, PlanOf

WORDS = 8  # of state; the first ones decide
TURNS = 3


class Generated:
    """A plan with loops and branches, as schedules lay them out: the state is one buffer, which
    every step changes by a number of its own. Loops count down words that nothing else changes."""

    def __init__(self, seed: int) -> None:
        self.drawn, self.count, self.loops = random.Random(seed), 0, 0
        self.plan = PlanOf().outputs(y=4 * WORDS)
        self.plan.buffer("c", plan_pb2.ARENA, 1, offset=256)
        self.plan.buffer("i", plan_pb2.ARENA, 4, offset=512)
        for loop in range(40):
            self.plan.buffer(f"n{loop}", plan_pb2.ARENA, 4, offset=1024 + 256 * loop)
        self.plan.run("clear", "y")
        self.items(0)
        self.plan.results("y")

    def mix(self) -> None:
        self.count += 1
        self.plan.run("mix", "y", numbers=(self.count,))

    def items(self, depth: int) -> None:
        for _ in range(self.drawn.randrange(1, 4)):
            kind = self.drawn.choice(["mix", "loop", "if", "case"] if depth < 3 else ["mix"])
            getattr(self, kind)(*() if kind == "mix" else (depth,))

    def jump(self) -> plan_pb2.Jump:
        self.plan.jump(0)
        return self.plan.plan.steps[-1].jump

    @property
    def here(self) -> int:
        return len(self.plan.plan.steps)

    def loop(self, depth: int) -> None:
        number, self.loops = self.loops, self.loops + 1
        if number >= 40:
            return
        self.plan.run("turns", "y", f"n{number}", numbers=(self.drawn.randrange(1, 99),))
        begin, ways = self.here, self.drawn.randrange(1, 4)
        exits = []
        for _ in range(ways):
            if self.drawn.random() < 0.2:
                self.conditional(depth + 1)
            self.plan.run("countdown", f"n{number}", "c").branch("c", 0)
            exits.append(self.plan.plan.steps[-1].branch_if_false)
            self.items(depth + 1)
        self.plan.jump(begin)
        ends = []
        for number, leaving in enumerate(exits[1:], 1):
            leaving.target = self.here
            self.mix()
            if number < len(exits) - 1:
                ends.append(self.jump())
        exits[0].target = self.here
        for end in ends:
            end.target = self.here

    def conditional(self, depth: int) -> None:
        getattr(self, self.drawn.choice(["if", "case"]))(depth)

    def arms(self, depth: int, targets: list[int], count: int) -> None:
        """Arms of a branch, whose first steps go into `targets`."""
        ends = []
        for arm in range(count):
            targets.append(self.here)
            if self.drawn.random() < 0.8:
                self.items(depth + 1)
            if arm < count - 1:
                ends.append(self.jump())
        for end in ends:
            end.target = self.here

    def case(self, depth: int) -> None:
        count = self.drawn.randrange(1, 4)
        self.plan.run("index", "y", "i").switch("i")
        at, targets = self.here - 1, []
        self.arms(depth, targets, count)
        self.plan.plan.steps[at].switch.targets.extend(targets)


def _if(self: Generated, depth: int) -> None:
    self.plan.run("odd", "y", "c").branch("c", 0)
    at, targets = self.here - 1, []
    self.arms(depth, targets, 2)
    self.plan.plan.steps[at].branch_if_false.target = targets[1]


setattr(Generated, "if", _if)


def mix(gpu: FakeGpu, y: int, number: int) -> None:
    state = gpu.words(y, WORDS)
    state[number % WORDS] = (int(state.sum()) * 31 + number) % 65521


def clear(gpu: FakeGpu, y: int) -> None:
    gpu.words(y, WORDS)[...] = 0


def turns(gpu: FakeGpu, y: int, n: int, number: int) -> None:
    gpu.words(n)[0] = (abs(int(gpu.words(y, WORDS).sum())) + number) % TURNS


def countdown(gpu: FakeGpu, n: int, condition: int) -> None:
    gpu.words(n)[...] -= 1
    gpu.at(condition, 1)[0] = gpu.words(n)[0] >= 0


def odd(gpu: FakeGpu, y: int, condition: int) -> None:
    gpu.at(condition, 1)[0] = int(gpu.words(y, WORDS).sum()) & 1


def index(gpu: FakeGpu, y: int, i: int) -> None:
    gpu.words(i)[0] = int(gpu.words(y, WORDS).sum()) % 5 - 1


@pytest.mark.parametrize("seed", range(60))
def test_all_schedules_take_the_same_way(seed):
    found, events = [], {}
    for schedule in ("launches", "host", "graph"):
        plan = Generated(seed).plan
        plan.plan.schedule = schedule
        gpu = FakeGpu(mix=mix, clear=clear, turns=turns, countdown=countdown, odd=odd, index=index)
        program = plan.program(Signature.plain([], [((WORDS,), "i32")]), gpu)
        found += [program()[0].tolist() for _ in range(2)]
        events[schedule] = program.events
    assert all(one == found[0] for one in found)
    assert events["graph"]["copies_to_host"] == events["graph"]["graph_launches"] == 2
    assert not events["graph"]["launches"] and not events["launches"]["graph_launches"]


def kernel() -> KernelStep:
    return KernelStep("k", "", (), (), (), Where(0, 0), 0)


def choose(*targets: int, size: int = 1) -> Choose:
    return Choose(Where(0, 0), size, targets)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([kernel(), Jump(0)], "a loop without a condition"),
        ([choose(2, 1), kernel(), kernel()], "step 1 ends no arm of a branch"),
        ([choose(4, 1), Jump(0), Jump(0), kernel()], "step 0 begins two loops"),
        ([choose(3, 1, size=4), kernel(), Jump(0), kernel()], "leaves a loop by an index"),
        ([kernel(), Communicate("", "", (), ())], "step 1: processes exchange"),
        ([choose(9, 1), kernel(), Jump(0)], "step 9 is reached from another region"),
    ],
)  # fmt: skip
def test_steps_that_do_not_nest(steps, said):
    with pytest.raises(NoRegions, match=said):
        regions(steps)


def test_a_loop_has_its_condition_before_it_and_at_the_end_of_each_turn():
    found = regions([kernel(), kernel(), choose(5, 3), kernel(), Jump(1), kernel()])
    assert [type(item).__name__ for item in found] == [
        "StepRange",
        "StepRange",
        "Again",
        "LoopRegion",
        "StepRange",
    ]
    loop = found[3]
    assert isinstance(loop, LoopRegion)
    assert [type(item).__name__ for item in loop.body] == ["StepRange", "StepRange", "Again"]
