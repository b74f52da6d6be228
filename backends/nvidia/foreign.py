"""Kernels that were written elsewhere: PTX with its launches, as the user's record has them."""

from __future__ import annotations

from ...hlo import ptx
from ...hlo.errors import UserError
from ...hlo.foreign import Argument, BufferAddress, DeviceCode, Number, read_codes
from ...hlo.foreign import TensorMap as TensorMapRecord
from ...hlo.graph import Op, symbols_in
from .launch import Argument as LaunchArgument
from .launch import Immediate, KernelCode, KernelMemory, KernelTensorMap, Launch
from .target import NvidiaTarget


def lacks(op: Op, target: NvidiaTarget) -> str:
    """Why no code of a foreign_call runs on the target; "" if one does. UserError for PTX that
    cannot be read."""
    codes = [code for code in read_codes(op.codes) if isinstance(code, DeviceCode)]
    try:
        reasons = [_misfit(code, target) for code in codes]
    except UserError as error:
        raise UserError(f"{_place(op)}: {error}") from error
    if "" in reasons:
        return ""
    return "; ".join(reasons) or "it has no code for NVIDIA GPUs"


def _misfit(code: DeviceCode, target: NvidiaTarget) -> str:
    wanted = ptx.declared(code.ptx).target
    name = target.architecture.name
    if not ptx.runs_on(wanted, name):
        return f"its PTX is for {wanted}, not {name}"
    limit = target.architecture.shared_bytes
    most = max((launch.shared for launch in code.launches), default=0)
    return f"it needs {most} bytes of shared memory, {name} has {limit}" if most > limit else ""


def refusal(op: Op, target: NvidiaTarget) -> str:
    """Why a foreign_call has no kernel, "" if it has one."""
    reason = lacks(op, target)
    if not reason and (names := symbols_in(op)):
        reason = f"its launches are for fixed sizes, and calls decide {', '.join(names)}; "
        reason += "fix them with sizes={...} (--size NAME=NUMBER)"
    return f"{_place(op)}: {reason}" if reason else ""


def emit(op: Op, target: NvidiaTarget) -> KernelCode:
    """The first code that fits; UserError for a wrong one."""
    codes = [code for code in read_codes(op.codes) if isinstance(code, DeviceCode)]
    code = next(code for code in codes if not _misfit(code, target))
    try:
        ptx.check(code)
    except UserError as error:
        raise UserError(f"{_place(op)}: {error}") from error
    launches = tuple(
        Launch(
            one.entry, one.grid, one.block, tuple(map(_argument, one.arguments)), one.shared,
            one.cluster,
        )
        for one in code.launches
        if 0 not in one.grid
    )  # fmt: skip
    moved = float(sum(value.tensor.bytes for value in (*op.operands, *op.results)))
    flops = sum(inner.definition.flops(inner) for region in op.regions for inner in region.ops)
    return KernelCode(code.ptx, launches, flops, moved, code.scratch, language="ptx")


def _place(op: Op) -> str:
    return f"{op.place}kernel '{op.kernel}'"


def _argument(argument: Argument) -> LaunchArgument:
    if isinstance(argument, Number):
        return Immediate(argument.data)
    if isinstance(argument, TensorMapRecord):
        return KernelTensorMap(
            _memory(argument.buffer), argument.element, argument.dims, argument.strides,
            argument.box, argument.swizzle,
        )  # fmt: skip
    return _memory(argument)


def _memory(buffer: BufferAddress) -> KernelMemory:
    return KernelMemory(buffer.slot, buffer.offset)
