"""Emits kernels and runs them in the simulator, beside the interpreter: one, or those that the
optimizer makes of an operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from girih.backends.nvidia import simulator
from girih.backends.nvidia.capabilities import capabilities
from girih.backends.nvidia.compile import compile_ptx
from girih.backends.nvidia.fits import kind_of
from girih.backends.nvidia.kernels import emit
from girih.backends.nvidia.launch import (
    Argument,
    Immediate,
    KernelCode,
    KernelTensorMap,
    Launch,
    Size,
)
from girih.backends.nvidia.target import NvidiaTarget, target
from girih.backends.plain.single import as_region
from girih.hlo.build import build_region, make_op
from girih.hlo.graph import Op, Region, arguments
from girih.hlo.symbols import bound
from girih.hlo.types import tensor_of
from girih.optimizer.kernels.tiled import Tilings
from girih.optimizer.passes.kernels import Kernels

from ..support import compare as compare
from ..support import expected as expected
from ..support import fusion as fusion

PATTERN = 0xA5
TARGET = target("sm_90a")


def free(on: NvidiaTarget) -> NvidiaTarget:
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


@dataclass(frozen=True)
class Emitted:
    """The program of the kernels that an operation becomes, of its operands, and their codes."""

    region: Region
    codes: Mapping[Op, KernelCode]

    @property
    def launches(self) -> list[Launch]:
        return [launch for code in self.codes.values() for launch in code.launches]

    @property
    def notes(self) -> list[str]:
        return [note for code in self.codes.values() for note in code.notes]

    def compiled(self, on: NvidiaTarget) -> Emitted:
        """With PTX for text."""
        codes = {
            op: replace(code, text=compile_ptx(code.text, on.architecture), language="ptx")
            for op, code in self.codes.items()
        }
        return replace(self, codes=codes)

    @property
    def text(self) -> str:
        return "\n".join(code.text for code in self.codes.values())


def with_tilings(op: Op, on: NvidiaTarget = TARGET) -> Op:
    """A contraction as a fusion with its tilings, in the form that it has; others as they are."""
    if kind_of(op) != "contract":
        return op
    region = op.regions[0] if op.name == "fusion" else as_region(op)
    tilings = Tilings(on.machine, capabilities(on.architecture)).listed(region)
    facts = {"kind": "contract", **tilings}
    return make_op("fusion", op.operands, facts, (region,), region.result_types, op.origin)


def emitted(op: Op, on: NvidiaTarget = TARGET) -> Emitted:
    """What the optimizer makes of an operation, with the kernels for it."""
    own = arguments([value.type for value in op.operands])
    alone = with_tilings(op, on).with_operands(own)
    able = capabilities(on.architecture)
    region = Kernels(on.machine, able).region(Region(own, [alone], alone.results))
    return Emitted(region, {one: emit(one, on) for one in region.ops if one.name != "reshape"})


def run(
    op: Op,
    inputs: Sequence[np.ndarray],
    *,
    code: KernelCode | Emitted | None = None,
    on: NvidiaTarget = TARGET,
    sizes: Mapping[str, int] | None = None,
    **options: Any,
) -> list[np.ndarray]:
    """The results of an operation by its kernel, or by those that the optimizer makes of it;
    `sizes`: the symbols' values, where the code is for sizes that a call decides; other options are
    those of `launched`."""
    code = code or emitted(op, on)
    if isinstance(code, KernelCode):
        return launched(op, inputs, code, on=on, sizes=sizes, **options)
    known = dict(zip(code.region.arguments, inputs, strict=True))
    for one in code.region.ops:
        given = [known[value] for value in one.operands]
        if one in code.codes:
            results = launched(one, given, code.codes[one], on=on, sizes=sizes, **options)
        else:
            results = [given[0].reshape([bound(n, sizes or {}) for n in one.result.dims])]
        known.update(zip(one.results, results, strict=True))
    return [known[value] for value in code.region.results]


def launched(
    op: Op,
    inputs: Sequence[np.ndarray],
    code: KernelCode,
    *,
    on: NvidiaTarget = TARGET,
    shared: Sequence[tuple[int, int]] = (),
    reports: list[simulator.Report] | None = None,
    sizes: Mapping[str, int] | None = None,
    **options: Any,
) -> list[np.ndarray]:
    """The results of one kernel. `shared`: (operand, result) that lie in the same memory; `options`
    go to the simulator, whose reports are appended to `reports`."""
    sizes = sizes or {}
    results = [
        value.tensor.with_dims([bound(n, sizes) for n in value.dims]) for value in op.results
    ]
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
        place = argument.memory if isinstance(argument, KernelTensorMap) else argument
        address = scratch if place.slot < 0 else addresses[place.slot]
        address += bound(place.offset, sizes)
        if not isinstance(argument, KernelTensorMap):
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
    emitter: Callable[[], KernelCode | Emitted] | None = None,
    **options: Any,
) -> list[np.ndarray]:
    """Kernel and interpreter agree."""
    results = run(op, inputs, code=emitter() if emitter else None, **options)
    for got, wanted in zip(results, expected(op, inputs), strict=True):
        compare(got, wanted, tolerance)
    return results
