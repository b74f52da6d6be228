"""Hand-written kernels and plans for the tests of the native side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from girih.backends.cpu import codegen, executor, image
from girih.backends.llvm.target import KernelCode
from girih.runtime.devices import cpu
from girih.specs.generated import plan_pb2


def build(
    kernels: Sequence[tuple[str, str]], target: codegen.Target | None = None
) -> tuple[plan_pb2.Plan, bytes]:
    """A plan without steps, and the image, of kernels given as (IR, symbol)."""
    target = target or codegen.host_target()
    objects = [codegen.compile_object(text, target) for text, _ in kernels]
    linked = image.link([codegen.compile_object(executor.emit(target), target), *objects])
    plan = plan_pb2.Plan(format_version="1.0", triple=target.triple, features=target.features)
    plan.executor_entry = linked.symbols[executor.RUN_SYMBOL]
    plan.worker_entry = linked.symbols[executor.WORKER_SYMBOL]
    for _, symbol in kernels:
        plan.kernels.add(name=symbol, entry=linked.symbols[symbol])
    return plan, linked.data


def add_buffers(plan: plan_pb2.Plan, place: int, arrays: Sequence[np.ndarray]) -> list[int]:
    """Appends a buffer per array, and the program's inputs or outputs; their buffer numbers."""
    numbers = []
    for index, array in enumerate(arrays):
        numbers.append(len(plan.buffers))
        plan.buffers.add(place=place, index=index, bytes=array.nbytes)
    if place == plan_pb2.INPUT:
        plan.inputs.extend(numbers)
    elif place == plan_pb2.OUTPUT:
        plan.outputs.extend(numbers)
    return numbers


def add_run(
    plan: plan_pb2.Plan,
    kernel: int,
    buffers: Sequence[int],
    tiles: int,
    *,
    wait: bool = True,
    parallel: bool = True,
) -> None:
    run = plan.steps.add().run
    run.kernel, run.tiles, run.wait, run.parallel, run.flops = kernel, tiles, wait, parallel, 1e9
    for number in buffers:
        run.arguments.add(buffer=number)


def run_kernel(
    code: KernelCode,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    threads: int = 2,
    target: codegen.Target | None = None,
    times: int = 1,
) -> None:
    """Compiles and runs one kernel over all its tiles; again, with what its scratch holds then."""
    plan, linked = build([(code.ir_text, code.symbol)], target)
    plan.kernels[0].scratch_bytes = code.scratch_bytes
    numbers = add_buffers(plan, plan_pb2.INPUT, inputs) + add_buffers(
        plan, plan_pb2.OUTPUT, outputs
    )
    add_run(plan, 0, numbers, code.tiles, parallel=code.parallel)
    variant = cpu.CpuVariant(plan, linked, {}, threads)
    context = variant.context()
    for _ in range(times):
        cpu.run(context, inputs, outputs)
