"""Kernels on windows of arrays (optimizer/windows.py): the kernel of the same elements, called with
the addresses at which the windows begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...hlo.types import TensorType
from ...optimizer.windows import Opened, Window
from .. import llvm
from ..llvm import elements
from ..llvm.target import KernelCode, Target
from .composite import merged, renamed
from .frame import SYMBOL


def placed(code: KernelCode, opened: Opened, target: Target) -> KernelCode:
    """A kernel of the whole arrays from that of their windows."""
    op = opened.op
    module = target.module()
    module.sizes = list(code.sizes)  # both read one table
    f = module.kernel(SYMBOL)
    given, *rest = f.arguments
    count = len(op.operands) + len(op.results) + len(code.functions)
    addresses = [f.load("ptr", f.pointer(given, slot, "ptr")) for slot in range(count)]
    types = [value.tensor for value in op.operands]
    table = f.alloca("ptr", count + bool(code.sizes))
    if code.sizes:
        sizes = f.load("ptr", f.pointer(given, -1, "ptr"))
        f.store(sizes, table)
        table = f.pointer(table, 1, "ptr")
    for slot, address in enumerate(addresses):
        if slot in opened.windows:
            behind = distance(f, opened.windows[slot], types, addresses)
            address = f.pointer(address, behind, "i8")
        f.store(address, f.pointer(table, slot, "ptr"))
    name = "windowed"
    f.call(name, "void", table, *rest)
    f.ret()
    text = merged([module.text(), renamed(code.ir_text, code.symbol, name)])
    return replace(code, ir_text=text, symbol=SYMBOL, sizes=tuple(module.sizes))


def distance(
    f: llvm.Function,
    window: Window,
    types: Sequence[TensorType],
    addresses: Mapping[int, llvm.Value] | Sequence[llvm.Value],
) -> llvm.Value:
    """The bytes from an array's beginning to its window's. types, addresses: of operands by
    number, which starts are read from."""
    total = llvm.constant("i64", window.constant)
    for start in window.starts:
        element = types[start.operand].element
        raw = f.load(elements.memory_type(f, element), addresses[start.operand])
        signed = element.kind == "int"
        at = f.cast("sext" if signed else "zext", raw, "i64")
        at = f.min(f.max(at, 0) if signed else at, start.last, signed=False)
        total = f.add(total, f.mul(at, start.stride))
    return total
