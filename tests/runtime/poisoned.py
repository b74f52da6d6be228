"""Runs a CPU program's steps one by one in memory that tells what a kernel should not touch.

Whatever is not live holds NaN (all bits one): the arena before a buffer's first step and after its
last one, the scratch of a kernel, and results before they are written. `apart` gives every buffer a
place of its own between red zones, which are looked at after every step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from girih.runtime.devices.cpu import CpuVariant
from girih.runtime.devices.libraries import address_of
from girih.specs.generated import plan_pb2

ZONE = 256  # bytes around each buffer
GUARD, DEAD = 0xA5, 0xFF


class Trespass(AssertionError):
    """A kernel has written outside of its results."""


def room(size: int) -> np.ndarray:
    """So many dead bytes, aligned as the arena is."""
    memory = np.full(size + 64, DEAD, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size]


def run(program: Any, inputs: Sequence[np.ndarray], apart: bool) -> list[np.ndarray]:
    """The results of a CPU program; Trespass if a kernel writes where it must not."""
    variant = CpuVariant(program.plan, program.parts.variants[program.target].image,
                         used_weights(program), threads=1)  # fmt: skip
    return _Run(variant, inputs, apart).results()


def used_weights(program: Any) -> dict[str, np.ndarray]:
    given = {**program.parts.weights, **program.parts.variants[program.target].weights}
    return {
        b.weight: np.ascontiguousarray(given[b.weight]) for b in program.plan.buffers if b.weight
    }


class _Run:
    def __init__(self, variant: CpuVariant, inputs: Sequence[np.ndarray], apart: bool) -> None:
        self.variant, self.plan = variant, variant.plan
        self.inputs = [np.ascontiguousarray(value).copy() for value in inputs]
        plan, arena = self.plan, plan_pb2.ARENA
        self.outputs = [room(plan.buffers[number].bytes) for number in plan.outputs]
        self.offsets = [buffer.offset for buffer in plan.buffers]
        size = plan.memory.arena_bytes
        if apart:
            size = ZONE
            for number, buffer in enumerate(plan.buffers):
                if buffer.place == arena:
                    self.offsets[number] = size
                    size += -(-buffer.bytes // 64) * 64 + ZONE
        self.arena = room(size)
        self.guarded = np.ones(size, bool) if apart else np.zeros(size, bool)
        for number, buffer in enumerate(plan.buffers):
            if buffer.place == arena:
                start = self.offsets[number]
                self.guarded[start : start + buffer.bytes] = False
        self.arena[self.guarded] = GUARD
        self.own = room(max(1, plan.worker_bytes))
        self.scratch = room(max(1, variant.scratch_bytes) + 2 * ZONE)
        self.functions: dict[int, Any] = {}

    def results(self) -> list[np.ndarray]:
        at, plan = 0, self.plan
        while at < len(plan.steps):
            step = plan.steps[at]
            action = step.WhichOneof("action")
            following = at + 1
            if action == "run":
                self.kernel(step.run)
            elif action == "branch_if_false":
                flag = self.bytes(step.branch_if_false.condition)[:1]
                following = at + 1 if flag[0] else step.branch_if_false.target
            elif action == "switch":
                index = int(self.bytes(step.switch.index)[:4].view(np.int32)[0])
                targets = step.switch.targets
                following = targets[index if 0 <= index < len(targets) else -1]
            else:
                following = step.jump.target
            if not (self.arena[self.guarded] == GUARD).all():
                raise Trespass(f"step {at} has written between buffers")
            self.bury(at, following)
            at = following
        return [
            out.view(buffer_type(plan.buffers[number])).reshape(plan.buffers[number].dims)
            for out, number in zip(self.outputs, plan.outputs, strict=True)
        ]

    def bury(self, at: int, following: int) -> None:
        """What no later step needs is dead; what a loop carries is, when the loop is left."""
        live = np.zeros(len(self.arena), bool)
        dying = []
        for number, buffer in enumerate(self.plan.buffers):
            if buffer.place == plan_pb2.ARENA:
                span = slice(self.offsets[number], self.offsets[number] + buffer.bytes)
                if at <= buffer.last_step < following:
                    dying.append(span)
                elif buffer.first_step <= at < buffer.last_step:
                    live[span] = True
        for span in dying:
            self.arena[span][~live[span]] = DEAD

    def bytes(self, argument: plan_pb2.Argument) -> np.ndarray:
        """The memory of an argument, from where it begins."""
        buffer = self.plan.buffers[argument.buffer]
        if buffer.place == plan_pb2.ARENA:
            start = self.offsets[argument.buffer]
            return self.arena[start + argument.offset : start + buffer.bytes]
        if buffer.place == plan_pb2.INPUT:
            whole = self.inputs[buffer.index]
        elif buffer.place == plan_pb2.OUTPUT:
            whole = self.outputs[buffer.index]
        elif buffer.place == plan_pb2.WORKER:
            whole = self.own[buffer.offset : buffer.offset + buffer.bytes]
        else:
            whole = self.variant._weights[buffer.weight]
        return whole.reshape(-1).view(np.uint8)[argument.offset :]

    def kernel(self, run: plan_pb2.Run) -> None:
        kernel = self.plan.kernels[run.kernel]
        addresses = [self.bytes(argument).ctypes.data for argument in run.arguments]
        addresses += [address_of(name) for name in kernel.functions]
        table = (ctypes.c_int64 * max(1, len(addresses)))(*addresses)
        function = self.functions.get(run.kernel)
        if function is None:
            kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
            function = kind(self.variant.image.address + kernel.entry)
            self.functions[run.kernel] = function
        self.scratch[:] = DEAD
        self.scratch[:ZONE] = self.scratch[ZONE + kernel.scratch_bytes :] = GUARD
        function(ctypes.addressof(table), 0, run.tiles, self.scratch[ZONE:].ctypes.data)
        zones = self.scratch[:ZONE], self.scratch[ZONE + kernel.scratch_bytes :]
        if not all((zone == GUARD).all() for zone in zones):
            raise Trespass(f"{kernel.name} has written outside of its scratch")


def buffer_type(buffer: plan_pb2.Buffer) -> Any:
    from girih.hlo.types import element_type

    return element_type(buffer.element_type).dtype
