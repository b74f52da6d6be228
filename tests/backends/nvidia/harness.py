"""Emits single kernels and runs them in the simulator, beside the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from girih.backends.nvidia import simulator
from girih.backends.nvidia.compile import compile_ptx
from girih.backends.nvidia.kernels import emit
from girih.backends.nvidia.launch import Argument, Immediate, KernelCode, Size, TensorMap
from girih.backends.nvidia.target import Target, target
from girih.hlo.build import build_region, make_op
from girih.hlo.graph import Op, arguments
from girih.hlo.symbols import bound
from girih.hlo.types import tensor_of

from ..support import compare as compare
from ..support import expected as expected
from ..support import fusion as fusion

PATTERN = 0xA5
TARGET = target("sm_90a")


def free(on: Target) -> Target:
    """A target on whose machine launches cost nothing, and memory is fast."""
    machine = on.machine
    levels = [
        replace(one, bandwidth=tuple(row._replace(read=1e18, write=1e18) for row in one.bandwidth))
        for one in machine.levels
    ]
    assert machine.blocks is not None
    blocks = replace(machine.blocks, fill=1e-12, tile=1e-12)
    sync = replace(machine.sync, step=0.0)
    return replace(on, machine=replace(machine, levels=tuple(levels), blocks=blocks, sync=sync))


def operation(definition: Any, case: Any) -> Op:
    """A room's example as an operation."""
    operands = arguments([tensor_of(np.asarray(x)) for x in case.inputs])
    regions = case.regions(build_region) if case.regions else ()
    return make_op(definition.name, operands, case.attributes, regions, case.result_types)


def run(
    op: Op,
    inputs: Sequence[np.ndarray],
    *,
    code: KernelCode | None = None,
    on: Target = TARGET,
    shared: Sequence[tuple[int, int]] = (),
    reports: list[simulator.Report] | None = None,
    sizes: Mapping[str, int] | None = None,
    **options: Any,
) -> list[np.ndarray]:
    """The kernel's results. `shared`: (operand, result) that lie in the same memory; `options` go
    to the simulator, whose reports are appended to `reports`. `sizes`: the symbols' values, where
    the code is for sizes that a call decides."""
    sizes = sizes or {}
    code = code or emit(op, on)
    results = [value.tensor for value in op.results]
    if not code.launches:
        assert not any(kind.bytes for kind in results)
        return [np.empty(kind.dims, kind.dtype) for kind in results]
    ptx = code.text if code.language == "ptx" else compile_ptx(code.text, on.architecture)
    module = simulator.parse(ptx)
    memory = simulator.GlobalMemory()
    addresses = []
    for array in inputs:
        addresses.append(memory.allocate(max(1, array.nbytes)))
        memory.write(addresses[-1], np.ascontiguousarray(array))
    placed = {result: addresses[operand] for operand, result in shared}
    for number, kind in enumerate(results):
        if number in placed:
            addresses.append(placed[number])
            continue
        addresses.append(memory.allocate(max(1, kind.bytes)))
        memory.write(addresses[-1], np.full(kind.bytes, PATTERN, np.uint8))
    scratch_bytes = bound(code.scratch_bytes, sizes)
    scratch = memory.allocate(max(1, scratch_bytes))
    memory.write(scratch, np.full(scratch_bytes, 0xFF, np.uint8))

    def packed(argument: Argument) -> bytes:
        if isinstance(argument, Immediate):
            return argument.data
        if isinstance(argument, Size):
            return argument.size.bind(sizes).to_bytes(8, "little", signed=True)
        place = argument.memory if isinstance(argument, TensorMap) else argument
        address = scratch if place.slot < 0 else addresses[place.slot]
        address += bound(place.offset, sizes)
        if not isinstance(argument, TensorMap):
            return address.to_bytes(8, "little")
        return simulator.encode_tensor_map(
            argument.element, address, [bound(n, sizes) for n in argument.dims],
            [bound(n, sizes) for n in argument.strides], argument.box,
            argument.steps or None, swizzle=argument.swizzle,
        )  # fmt: skip

    for launch in code.launches:
        x, y, z = (bound(extent, sizes) for extent in launch.grid)
        report = simulator.launch(
            module, launch.symbol, (x, y, z), launch.block, [*map(packed, launch.arguments)],
            memory, cluster=launch.cluster, shared_bytes=launch.shared_bytes, **options,
        )  # fmt: skip
        if reports is not None:
            reports.append(report)
    return [
        memory.read(address, kind.dtype, kind.dims)
        for address, kind in zip(addresses[len(inputs) :], results, strict=True)
    ]


def check(
    op: Op,
    inputs: Sequence[np.ndarray],
    *,
    tolerance: float = 0.0,
    emitter: Callable[[], KernelCode] | None = None,
    **options: Any,
) -> list[np.ndarray]:
    """Kernel and interpreter agree."""
    results = run(op, inputs, code=emitter() if emitter else None, **options)
    for got, wanted in zip(results, expected(op, inputs), strict=True):
        compare(got, wanted, tolerance)
    return results
