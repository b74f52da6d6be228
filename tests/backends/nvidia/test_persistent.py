"""Plans as one cooperative launch: events, what cannot be one, what stops it, and broken ones."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import girih
from girih.backends.nvidia.assemble import assemble
from girih.backends.nvidia.target import ARCHITECTURES
from girih.hlo.errors import CompilerBug, UserError
from girih.optimizer.prove import prove
from girih.runtime.bundle import MemoryParts
from girih.runtime.program import Program
from girih.simulated import simulated_gpu

from ...optimizer.control_programs import Program as Generated

OPTIONS = girih.Options(schedule="persistent")
WHILE = """module @m {
  func.func public @main(%x: tensor<1x24xf32>, %w: tensor<24x24xf32>, %n: tensor<i32>)
      -> (tensor<i32>, tensor<1x24xf32>) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %r:2 = stablehlo.while(%i = %zero, %h = %x) : tensor<i32>, tensor<1x24xf32>
      cond {
        %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %j = stablehlo.add %i, STEP : tensor<i32>
        %p = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0]
            : (tensor<1x24xf32>, tensor<24x24xf32>) -> tensor<1x24xf32>
        %t = stablehlo.tanh %p : tensor<1x24xf32>
        %u = stablehlo.dot_general %t, %w, contracting_dims = [1] x [0]
            : (tensor<1x24xf32>, tensor<24x24xf32>) -> tensor<1x24xf32>
        stablehlo.return %j, %u : tensor<i32>, tensor<1x24xf32>
      }
    return %r#0, %r#1 : tensor<i32>, tensor<1x24xf32>
  }
}
"""
CELL = WHILE.replace("STEP", "%one")
ENDLESS = WHILE.replace("STEP", "%zero")
DRAW = np.random.default_rng(0)
X, W = (DRAW.standard_normal(shape, dtype=np.float32) for shape in ((1, 24), (24, 24)))


def compiled(source: Any, target: str = "ptx-sim:sm_80") -> Any:
    return girih.compile(source, target=target, options=OPTIONS)


def image_of(program: Any) -> str:
    (variant,) = program.parts.variants.values()
    return bytes(variant.image).decode()


def changed(program: Any, change: Callable[[str], str]) -> Any:
    """The program with other PTX, on a device that draws its order."""
    ((name, variant),) = program.parts.variants.items()
    text = change(image_of(program))
    assert text != image_of(program)
    parts = replace(program.parts, variants={name: replace(variant, image=text.encode())})
    driver = simulated_gpu(program.target)
    driver.seed = 1
    return Program(parts, program.target, driver=driver)


def test_a_loop_is_one_launch():
    """Between its begin and its end the host gets nothing."""
    program = compiled(CELL)
    exact = girih.compile(CELL, target="ptx-sim:sm_80", options=girih.Options(schedule="host"))
    for turns in (0, 1, 5):
        before = program.events
        found, wanted = (one(X, W, np.int32(turns)) for one in (program, exact))
        for left, right in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(left, right)
        asked = {name: count - before[name] for name, count in program.events.items()}
        assert asked == {
            "launches": 1, "graph_launches": 0, "nodes": 0, "edges": 0, "copies_to_host": 2,
            "synchronisations": 1,
        }  # fmt: skip
    assert [event.step for event in program.profile(X, W, np.int32(1)).events]


BRANCH = "branch_if_false"
COUNTED = CELL.replace(", %n: tensor<i32>)", ")").replace(
    "    %zero =", "    %n = stablehlo.constant dense<5> : tensor<i32>\n    %zero =", 1
)


@pytest.mark.parametrize("schedule", ["host", "launches", "graph"])
def test_turns_that_the_compiler_counts_are_not_read_back(schedule):
    """The simulator looks whether the plan is right in that."""
    options = girih.Options(schedule=schedule, disable=("loops",))
    program = girih.compile(COUNTED, target="ptx-sim:sm_80", options=options)
    found, wanted = program(X, W), compiled(CELL)(X, W, np.int32(5))
    for left, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(left, right)
    assert (program.events["copies_to_host"], program.events["synchronisations"]) == (2, 1)
    if schedule != "graph":
        ((name, variant),) = program.parts.variants.items()
        plan = type(program.plan).FromString(variant.plan)
        (known,) = (one.branch_if_false.known for one in plan.steps if one.HasField(BRANCH))
        known.turns += 1
        variants = {name: replace(variant, plan=plan.SerializeToString())}
        assert isinstance(program.parts, MemoryParts)
        parts = replace(program.parts, variants=variants)
        with pytest.raises(CompilerBug, match="not as many turns as its plan says"):
            Program(parts, name, driver=simulated_gpu(name))(X, W)


def test_one_that_never_ends_is_stopped(monkeypatch):
    """As soon as the host says so; then the next call finds the barrier as it was."""
    program = compiled(ENDLESS)
    driver = simulated_gpu(program.target)
    words: list[np.ndarray] = []
    mapped, simulate = driver.mapped_memory, driver.simulate

    def keep(size: int) -> Any:
        found = mapped(size)
        words.append(found[0])
        return found

    def stop(*arguments: Any) -> Any:
        words[0][:1] = 1
        return simulate(*arguments)

    monkeypatch.setattr(driver, "mapped_memory", keep)
    program = Program(program.parts, program.target, driver=driver)
    program(X, W, np.int32(0))
    monkeypatch.setattr(driver, "simulate", stop)
    program(X, W, np.int32(3))
    assert words[0][0] == 1


@pytest.mark.parametrize("target", ["nvidia:sm_80", "nvidia:sm_90a"])
def test_the_assembler_takes_it(target):
    if shutil.which("ptxas") is None:
        pytest.skip("needs ptxas")
    program = compiled(Generated(1).module(), target)
    made = assemble(image_of(program), ARCHITECTURES[target.partition(":")[2]])
    usage = made.usages[program.plan.persistent.entry]
    assert not made.faults() and usage.registers * program.plan.persistent.threads <= 65536


PRODUCT = """module @m {
  func.func public @main(%x: tensor<256x256xbf16>) -> tensor<256x256xbf16> {
    %p = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
        : (tensor<256x256xbf16>, tensor<256x256xbf16>) -> tensor<256x256xbf16> loc("model.py":7:1)
    return %p : tensor<256x256xbf16>
  }
}
"""
OPEN = """module @m {
  func.func public @main(%x: tensor<?xf32>) -> tensor<?xf32> {
    %y = stablehlo.exponential %x : tensor<?xf32> loc("model.py":9:1)
    return %y : tensor<?xf32>
  }
}
"""


@pytest.mark.parametrize("source, target, sizes, says", [
    (PRODUCT, "ptx-sim:sm_90a", None,
     r"model.py:7: schedule='persistent': kernel \w+: the copy engine works for it, so that"),
    (OPEN, "ptx-sim:sm_80", {"d0": (1, 512)},
     r"model.py:9: schedule='persistent': kernel \w+: calls decide its sizes, so that"),
])  # fmt: skip
def test_what_cannot_be_one_launch(source, target, sizes, says):
    with pytest.raises(UserError, match=says) as said:
        girih.compile(source, target=target, options=OPTIONS, sizes=sizes)
    assert "take 'graph' or 'host', or leave it out" in str(said.value)


MEETING = re.compile(
    r"\tsetp\.ne\.u32 \t%stop, %first, %first;\n.*?@%out bra \t\$L_step_\d+;\n", re.DOTALL
)
BROKEN = {
    "no barrier": lambda text: MEETING.sub("", text),
    "a barrier of blocks alone": lambda text: MEETING.sub("\tbar.sync \t0;\n", text),
    "a relaxed arrival": lambda text: text.replace("add.release.gpu", "add.relaxed.gpu"),
    "a relaxed wait": lambda text: text.replace("ld.acquire.gpu", "ld.relaxed.gpu"),
    "a block that nobody waits for": lambda text: text.replace(
        "mov.u32 \t%blocks, %nctaid.x", "mov.u32 \t%blocks, %nctaid.x;\n\tsub.u32 \t%blocks, "
        "%blocks, 1"
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", BROKEN)
def test_broken_launches_are_found_by_the_simulator(form):
    program = changed(compiled(CELL), BROKEN[form])
    with pytest.raises(UserError, match=r"(race|deadlock) in 'persistent\$0'"):
        program(X, W, np.int32(3))


ROWS = """module @m {
  func.func public @main(%x: tensor<4x4096xf32>) -> tensor<4xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %y = stablehlo.tanh %x : tensor<4x4096xf32>
    %p = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [1]
        : (tensor<4x4096xf32>, tensor<f32>) -> tensor<4xf32>
    return %p : tensor<4xf32>
  }
}
"""


@pytest.mark.parametrize("threads, says", [
    (64, r"deadlock(?s:.)*warp 1 waits for barrier 0 of its(?s:.)*warp 2 waits for barrier 15"),
    (72, r"divergent in 'persistent\$0'"),
])  # fmt: skip
def test_threads_that_leave_a_body_before_its_barrier_hang(threads, says):
    """Where a kernel is alone, such threads have ended, and no barrier counts them."""

    def leaving(text: str) -> str:
        entry = text.index("persistent$0(")
        begin = text.index("\tbar.sync \t", entry)
        (label, *_) = re.findall(r"\$L_left_\d+", text[entry:])
        branch = f"\tsetp.ge.u32 \t%other, %rest, {threads};\n\t@%other bra \t{label};\n"
        return f"{text[:begin]}\tmov.u32 \t%rest, %tid.x;\n{branch}{text[begin:]}"

    program = changed(compiled(ROWS), leaving)
    with pytest.raises(UserError, match=says):
        program(np.ones((4, 4096), np.float32))


def plans() -> Any:
    """A plan, and how many arguments each step writes, which is known here of runs."""
    plan = compiled(Generated(2).module()).plan
    results = {
        number: len(step.run.arguments) - step.run.operands
        for number, step in enumerate(plan.steps)
        if step.WhichOneof("action") == "run"
    }
    return plan, results


def mutated(plan: Any, change: Callable[[Any], None]) -> Any:
    other = type(plan)()
    other.CopyFrom(plan)
    change(other.persistent)
    return other


@pytest.mark.parametrize("change, says", [
    (lambda one: setattr(one, "blocks", 109), "109 blocks, 108 are resident"),
    (lambda one: setattr(one, "blocks", 0), "0 blocks"),
    (lambda one: setattr(one, "threads", 32), "does not fit into a persistent block"),
    (lambda one: setattr(one, "table_bytes", one.table_bytes - 64), "outside of their table"),
    (lambda one: one.steps.add(), "not the steps of its plan"),
    (lambda one: one.steps[0].places.append(0), "have no place"),
    (lambda one: one.steps[0].places.__setitem__(0, 8), "share a place"),
    (lambda one: one.ClearField("barriers"), "may begin while a block is in step"),
])  # fmt: skip
def test_wrong_plans_are_refused(change, says):
    plan, results = plans()
    prove(plan, results, resident=108)
    with pytest.raises(CompilerBug, match=says):
        prove(mutated(plan, change), results, resident=108)


def test_a_plan_without_one_of_its_barriers_is_refused():
    """But where blocks meet just before, since a loop decides, or at the first step of a loop or
    an arm, before which they meet whatever they come from."""
    plan, results = plans()
    entered, deciding = set(), set()
    for number, step in enumerate(plan.steps):
        kind = step.WhichOneof("action")
        if kind != "run":
            action = getattr(step, kind)
            entered.update(action.targets if kind == "switch" else [action.target])
        if kind in ("switch", "branch_if_false"):
            deciding.add(number)
    before, refused = -1, 0
    for barrier in plan.persistent.barriers:
        other = mutated(plan, lambda one, barrier=barrier: one.barriers.remove(barrier))
        try:
            prove(other, results, resident=108)
            assert barrier in entered or before in deciding, barrier
        except CompilerBug as error:
            assert "may begin while" in str(error) or "cannot be stopped" in str(error)
            refused += 1
        before = barrier
    assert refused > 10
