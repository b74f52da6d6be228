"""A plan that is newer than the runtime, or contradicts itself, is refused before anything runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import girih
from girih.hlo.build import build_module
from girih.hlo.errors import UserError
from girih.hlo.types import F32, TensorType
from girih.optimizer import plan as planner
from girih.runtime.bundle import Variant
from girih.runtime.devices import open_device
from girih.runtime.parts import copied_parts
from girih.runtime.plans import NEWEST, check_version, parse_plan, plan_version
from girih.runtime.program import Program
from girih.specs.generated import plan_pb2

SQUARE = TensorType((4, 4), F32)


@pytest.fixture(scope="module")
def program():
    """Two kernels with a temporary between them."""

    def body(b: Any, x: Any) -> list[Any]:
        product = b(
            "dot_general", x, x, lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,)
        )
        sums = b.reduce("add", product, b.constant(np.float32(0)), (0,))
        return [b("tanh", sums), product]

    return girih.compile(build_module([SQUARE], body))


def changed(program: Any, change: Any) -> Any:
    plan = plan_pb2.Plan()
    plan.CopyFrom(program.plan)
    change(plan)
    return plan


def opened(program: Any, plan: Any) -> Any:
    return open_device(plan, program.parts.variants["cpu"].image, {}, 1).context()


def test_the_runtime_executes_what_the_planner_writes(program):
    written = planner.PLAN_FORMAT, planner.WITH_FUNCTIONS, planner.WITH_LAUNCHES, planner.WITH_STEPS
    for version in (*written, planner.WITH_SCRATCH, planner.WITH_RANGES):
        plan = plan_pb2.Plan(format_version=version)
        assert plan_version(plan) <= NEWEST
        check_version(plan)
    assert opened(program, program.plan)


@pytest.mark.parametrize("version", ["1.9", "2.0", "1.10"])
def test_a_newer_plan(version):
    with pytest.raises(UserError, match=f"format {version}, this girih executes up to"):
        check_version(plan_pb2.Plan(format_version=version))


@pytest.mark.parametrize("version", ["", "1", "1.x", "-1.0", "1.0.0", "9" * 20 + ".0"])
def test_a_version_that_is_none(version):
    data = plan_pb2.Plan(format_version=version).SerializeToString()
    with pytest.raises(UserError, match="malformed"):
        parse_plan(Variant(data))


def _entry(plan):
    plan.kernels[0].entry = 1 << 40


def _executor(plan):
    plan.executor_entry = 1 << 20


def _place(plan):
    plan.buffers[0].place = 9


def _offset(plan):
    plan.buffers.add(place=plan_pb2.ARENA, offset=1 << 40, bytes=4)


def _wide(plan):
    plan.buffers.add(place=plan_pb2.OUTPUT, index=0, bytes=4096)


def _input(plan):
    next(b for b in plan.buffers if b.place == plan_pb2.INPUT).index = 7


def _buffer(plan):
    plan.steps[0].run.arguments[0].buffer = 99


def _beyond(plan):
    plan.steps[0].run.arguments[0].offset = 1 << 30


def _kernel(plan):
    plan.steps[0].run.kernel = 99


def _nothing(plan):
    plan.steps.add()


def _jump(plan):
    plan.steps.add().jump.target = 99


def _arena(plan):
    plan.memory.arena_bytes = 1 << 62


def _scratch(plan):
    plan.kernels[0].scratch_bytes = (1 << 64) - 1


FAULTS = (
    _entry, _executor, _place, _offset, _wide, _input, _buffer, _beyond, _kernel, _nothing, _jump,
    _arena, _scratch,
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__[1:])
def test_a_plan_that_contradicts_itself(program, fault):
    with pytest.raises(UserError, match=r"malformed|the system gives no"):
        opened(program, changed(program, fault))


def test_a_plan_without_its_code(program):
    """Memory is mapped in pages, whose rest is no code."""
    (target, variant), *_ = program.parts.variants.items()
    for code in (b"", bytes(variant.image)[:16]):
        with pytest.raises(UserError, match="a function lies outside its code"):
            Program(copied_parts(program.parts, variants={target: replace(variant, image=code)}))
