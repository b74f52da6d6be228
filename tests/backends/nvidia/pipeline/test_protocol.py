"""What roles do to rings, as emitters write it down, ends in every block and overwrites nothing
early; of every step that is left out or moved the check says what it breaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from girih.backends.nvidia.pipeline.decisions import PipelineDecisions
from girih.backends.nvidia.pipeline.emit import code_of
from girih.hlo.graph import Op
from girih.optimizer.asynchronous.configuration import Style
from girih.optimizer.asynchronous.protocol import (
    FIRST,
    ROUND,
    TILE,
    Program,
    Repeat,
    check,
    lines,
)

from .support import (
    SMALL,
    attention,
    call_of,
    gated,
    matmul,
    matrices,
    planned,
    random,
    residual,
)


def product(depth: int, **tile: int) -> Op:
    sizes = {"M": 512, "N": 512, "K": depth}
    return call_of(matmul, *matrices(512, 512, depth), **sizes, **{"TM": 128, "TN": 128, **tile})


def attends(keys: int, **options: Any) -> Op:
    return call_of(attention, random(1, 256, 64), *(random(1, keys, 64) for _ in "kv"), **options)


CALLS = {
    "chain": lambda: product(512, TK=64),
    "one window": lambda: product(64, TK=64),
    "epilogue loads": lambda: call_of(
        residual, *matrices(256, 256, 256), random(256, 256), TM=128, TN=128
    ),
    "two products": lambda: call_of(gated, random(256, 256), random(256, 128), random(256, 128)),
    "rotate": lambda: attends(512),
    "masks": lambda: attends(512, causal=True),
    "sequence": lambda: attends(128),
}


def decided(name: str) -> PipelineDecisions:
    found = code_of(planned(CALLS[name](), SMALL), SMALL).decided
    assert isinstance(found, PipelineDecisions)
    return found


def checked(found: PipelineDecisions, copies: Program, multiplies: Program) -> str:
    """Of a block with one tile and with two, and all numbers of rounds in which rings go around
    twice."""
    plan = found.plan
    stages = [ring.stages for ring in plan.rings]
    most = 2 * max(stages) if plan.work.loop is not None else 1
    least = 0 if plan.style is Style.SEQUENCE else 1
    for tiles in (1, 2):
        for rounds in range(least, most + 1):
            wrong = check(copies, multiplies, stages, plan.groups, tiles, rounds)
            if wrong:
                return wrong
    return ""


@pytest.mark.parametrize("name", CALLS)
def test_what_is_emitted_ends(name: str) -> None:
    found = decided(name)
    assert checked(found, found.copies, found.multiplies) == ""


def broken(program: Program) -> Iterator[tuple[str, Program]]:
    """Programs with one verb less, or with one that is about another stage or other products."""
    for number, step in enumerate(program):
        before, behind = program[:number], program[number + 1 :]
        if isinstance(step, Repeat):
            for what, inner in broken(step.steps):
                yield what, [*before, Repeat(step.each, list(inner)), *behind]
            continue
        if step.kind != "start":  # who computes nothing breaks no rule of rings
            yield f"no {step}", [*before, *behind]
        if step.kind == "release":
            yield f"later {step}", [*before, step._replace(count=step.count + 1), *behind]
        if step.late:
            yield f"always {step}", [*before, step._replace(late=False), *behind]


@pytest.mark.parametrize("name", CALLS)
def test_faults_are_told(name: str) -> None:
    found = decided(name)
    unseen = [
        what for what, one in broken(found.copies) if not checked(found, one, found.multiplies)
    ]
    unseen += [
        what for what, one in broken(found.multiplies) if not checked(found, found.copies, one)
    ]
    assert not unseen


def test_a_deadlock_names_all_who_wait() -> None:
    """A product in flight reads the stage before the current one: that takes two."""
    found = decided("chain")
    assert check(found.copies, found.multiplies, [2], 2, 1, 3) == ""
    assert check(found.copies, found.multiplies, [1], 2, 1, 3) == (
        "deadlock: the role that copies waits at tile 0, round 1: fill ring 0; "
        "group 0 that multiplies waits at tile 0, round 1: wait ring 0; "
        "group 1 that multiplies waits at tile 0, round 1: wait ring 0"
    )


def test_the_stage_prints_programs() -> None:
    found = decided("masks")
    text = [*lines(found.multiplies)]
    assert text[:3] == ["give the own turn by the first group", f"{TILE}:", "  wait ring 0"]
    assert (
        text.count(f"  {ROUND}:") == 2 and f"  {FIRST}:" in text
    )  # rounds without a mask, with it
