"""A device that adds in numpy, and programs for it: the runtime's tests need no compiler."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from girih.hlo.signature import Signature
from girih.hlo.trees import Tree
from girih.runtime import devices
from girih.runtime.inputs import Leaf
from girih.runtime.program import Program
from girih.specs.generated import plan_pb2


class Event(NamedTuple):
    step: int
    worker: int
    begin: float
    duration: float


class AddingVariant:
    """Every result is the sum of all inputs, plus the weight `bias` if there is one."""

    contexts_made = 0

    def __init__(self, plan, image, weights, threads, pin=False):
        self.weights = weights

    def context(self):
        AddingVariant.contexts_made += 1
        return {"bias": self.weights.get("bias", 0), "busy": False}


def run(context, inputs, outputs, profile=False):
    assert not context["busy"], "two calls share a context"
    context["busy"] = True
    for array in (*inputs, *outputs):
        assert array.flags.c_contiguous and array.flags.aligned
    for output in outputs:
        total = sum(np.asarray(array, output.dtype) for array in inputs)
        output[...] = total + np.asarray(context["bias"], output.dtype)
    context["busy"] = False
    return [Event(0, 0, 0.0, 2.0), Event(0, 1, 0.5, 3.0)] if profile else []


@contextmanager
def adding_device() -> Iterator[None]:
    """Target `adding` exists inside."""
    module = types.ModuleType("girih.runtime.devices.adding")
    vars(module).update(AddingVariant=AddingVariant, run=run)
    sys.modules[module.__name__] = module
    devices.TARGETS["adding"] = ("adding", "AddingVariant")
    try:
        yield
    finally:
        del devices.TARGETS["adding"], sys.modules[module.__name__]


def plan_for(signature: Signature, target: str = "adding") -> plan_pb2.Plan:
    """A plan with one kernel and one buffer per argument and result."""
    plan = plan_pb2.Plan(format_version="1.0", target=target)
    for place, leaves in (
        (plan_pb2.INPUT, signature.arguments),
        (plan_pb2.OUTPUT, signature.results),
    ):
        for index, leaf in enumerate(leaves):
            size = Leaf(leaf).bytes if all(isinstance(dim, int) for dim in leaf.dims) else 0
            plan.buffers.add(place=place, index=index, element_type=leaf.element, bytes=size)
    plan.buffers.add(place=plan_pb2.WEIGHT, weight="bias")
    count = len(signature.arguments)
    plan.inputs.extend(range(count))
    plan.outputs.extend(range(count, count + len(signature.results)))
    plan.kernels.add(name="add_0", kind="loop", ops=["add"])
    plan.kernels[0].origins.add(file="/home/me/model.py", line=41)
    plan.steps.add().run.MergeFrom(plan_pb2.Run(kernel=0, tiles=1, flops=8, bytes=48))
    plan.memory.arena_bytes = 512
    return plan


FLAT = Signature.plain([((2, 3), "f32"), ((2, 3), "f32")], [((2, 3), "f32")])
NESTED = Signature.build(
    inputs=Tree.of(({"w": [0, 0], "b": None}, 0)),
    argument_types=[((3,), "f32")] * 3,
    outputs=Tree.of({"loss": 0, "more": (0, [0])}),
    result_types=[((3,), "f32")] * 3,
    names=("params", "x"),
)


def adding_program(signature: Signature = FLAT, image: bytes = b"", **parts) -> Program:
    """A program of target `adding`."""
    variants = {"adding": (plan_for(signature), image)}
    return Program.from_parts(b"wire form", signature, variants, **parts)
