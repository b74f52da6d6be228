"""What emitters have decided about a kernel, as text: where tiles lie, and what runs when.

These texts tell of decisions that code is already made by: nothing reads them. The operation that
they are about is the tile function that the emitter has seen.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...hlo.graph import Function, Module, Op, Region, arguments
from ...hlo.text import names_in, print_module
from .launch import Argument, Immediate, KernelCode, KernelMemory, KernelTensorMap, Launch, Size


def layouts_text(op: Op, code: KernelCode) -> str:
    """The kernel as a module, whose operations say as attribute `layout` where the tiles lie that
    they give: those of a loop, in their order. The text can be parsed."""
    if code.decided is None:
        return str(_alone(op))
    layouts = code.decided.layouts()
    more: dict[Op, Mapping[str, tuple[str, ...]]] = {}
    kernel = code.decided.kernel
    for one in (inner for region in kernel.regions for inner in region.walk()):
        if any(value in layouts for value in one.results):
            more[one] = {"layout": tuple(layouts.get(value, "") for value in one.results)}
    return print_module(_alone(kernel), more=more)


def pipeline_text(op: Op, code: KernelCode) -> str:
    """Each launch with what it is given, then what the emitter of a tile function has decided
    about roles, copies and matrix instructions; values are called as in `layouts_text`."""
    kernel = op if code.decided is None else code.decided.kernel
    lines = [line for launch in code.launches for line in _launch(launch, len(kernel.operands))]
    if code.scratch_bytes:
        lines.append(f"scratch: {code.scratch_bytes} bytes of global memory")
    if code.decided is not None:
        lines += code.decided.lines(names_in(_alone(kernel).main))
    return "\n".join([*lines, *(f"note: {note}" for note in code.notes), ""])


def _alone(op: Op) -> Module:
    """The program that is one kernel."""
    own = arguments([value.type for value in op.operands])
    kernel = op.with_operands(own)
    return Module({"main": Function("main", Region(own, (kernel,), kernel.results))})


def _launch(launch: Launch, operands: int) -> list[str]:
    def extent(sizes: tuple[object, ...]) -> str:
        return " x ".join(map(str, sizes))

    text = f"launch {launch.symbol}: {extent(launch.grid)} blocks of {extent(launch.block)} threads"
    if launch.cluster != (1, 1, 1):
        text += f", clusters of {extent(launch.cluster)}"
    if launch.shared_bytes:
        text += f", {launch.shared_bytes} bytes of shared memory"
    if launch.persistent:
        text += ", each walks tiles"
    return [text, *(f"  {_argument(one, operands)}" for one in launch.arguments)]


def _argument(argument: Argument, operands: int) -> str:
    if isinstance(argument, Immediate):
        return f"number 0x{argument.data.hex()}"
    if isinstance(argument, Size):
        return f"size {argument.size}"
    if isinstance(argument, KernelMemory):
        return _memory(argument, operands)
    assert isinstance(argument, KernelTensorMap)
    text = f"tensor map of {_memory(argument.memory, operands)}: {argument.element}"
    text += f" {list(argument.dims)}, strides {list(argument.strides)} bytes, fastest dim first"
    text += f"; box {list(argument.box)}, swizzled by {argument.swizzle} bytes"
    return text + (f", every {list(argument.steps)}" if argument.steps else "")


def _memory(memory: KernelMemory, operands: int) -> str:
    if memory.slot < 0:
        name = "scratch"
    elif memory.slot < operands:
        name = f"operand {memory.slot}"
    else:
        name = f"result {memory.slot - operands}"
    return f"{name} from byte {memory.offset}" if memory.offset else name
