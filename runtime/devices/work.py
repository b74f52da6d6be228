"""How long steps of a plan take at sizes that a call decides, as far as workers are concerned.

A plan says what its steps do in a likely call. What a step does in another one is taken to grow
with the bytes of its arguments, but for weights, which are the same at all sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...specs.generated import plan_pb2
from ...workers import call_loses, step_pays, step_saves

LOOP_TRIPS = 64  # what a loop of unknown length counts for


class _StepKind(NamedTuple):
    """Steps that do the same: operations for each byte of arguments, bytes of
    weights and of other arguments of fixed sizes, and how often each size counts."""

    compute: float
    weights: int
    fixed: int
    sizes: tuple[tuple[int, int], ...]  # formula, how many arguments have these bytes


class OpenWork:
    """The steps that several workers may run, of a plan whose sizes calls decide. rows: of the step
    table, those of each kind of steps."""

    def __init__(self, plan: plan_pb2.Plan) -> None:
        kinds: dict[_StepKind, list[int]] = {}
        counts = loop_weights(plan)
        meetings = 0.0
        for row, step in enumerate(plan.steps):
            if step.WhichOneof("action") != "run":
                continue
            run = step.run
            meetings += counts[row] * run.wait
            if not run.parallel:
                continue
            weights = fixed = 0
            sizes: dict[int, int] = {}
            for number in {argument.buffer for argument in run.arguments}:
                buffer = plan.buffers[number]
                if buffer.place == plan_pb2.WEIGHT:
                    weights += buffer.bytes
                elif buffer.bytes_formula:
                    sizes[buffer.bytes_formula - 1] = sizes.get(buffer.bytes_formula - 1, 0) + 1
                else:
                    fixed += buffer.bytes
            moved = max(run.bytes - weights, 1.0)
            kind = _StepKind(run.flops / moved, weights, fixed, tuple(sorted(sizes.items())))
            kinds.setdefault(kind, []).append(row)
        self.rows = tuple(kinds.values())
        self._kinds = [(kind, sum(counts[row] for row in rows)) for kind, rows in kinds.items()]
        self._lost = call_loses(meetings)

    def at(self, sizes: Sequence[int]) -> tuple[list[bool], bool]:
        """Whether steps of each kind are long enough for several workers, and whether the whole
        program is too short for them."""
        pays: list[bool] = []
        saved = 0.0
        for kind, count in self._kinds:
            moved = kind.fixed
            for formula, times in kind.sizes:
                moved += sizes[formula] * times
            flops, every = kind.compute * moved, moved + kind.weights
            pays.append(step_pays(flops, every))
            if pays[-1]:
                saved += step_saves(flops, every) * count
        return pays, saved < self._lost


def loop_weights(plan: plan_pb2.Plan) -> list[float]:
    """How often each step counts."""
    weights = [1.0] * len(plan.steps)
    for index, step in enumerate(plan.steps):
        if step.WhichOneof("action") == "jump" and step.jump.target <= index:
            for inside in range(step.jump.target, index + 1):
                weights[inside] *= LOOP_TRIPS
    return weights


def too_small(plan: plan_pb2.Plan) -> bool:
    """Whether waking workers costs more than they save."""
    saved = meetings = 0.0
    for weight, step in zip(loop_weights(plan), plan.steps, strict=True):
        if step.WhichOneof("action") == "run":
            run = step.run
            several = run.parallel and run.tiles > 1
            saved += weight * step_saves(run.flops, run.bytes) if several else 0.0
            meetings += weight * (run.wait or bool(run.waits))
    return saved < call_loses(meetings)
