"""The plain way for fusions that no specialised emitter takes: one operation after another.

Each operation becomes a function of its own, called over all its tiles; what they hand on lies in
scratch memory. One worker does it all. The result is right for every region whose operations have
kernels by themselves; the kernel's notes say that the slow way was taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ...hlo.deciding import larger
from ...hlo.graph import Op, Region, Value
from .. import llvm
from ..llvm.target import KernelCode, Target
from .frame import Frame

KernelOf = Callable[[Op], KernelCode]
_DEFINED = re.compile(r"^(?:define [^@\n]*)?@([\w.]+)(?: =|\()", re.MULTILINE)


def emit(region: Region, target: Target, flops: float, kernel_of: KernelOf) -> KernelCode:
    """A kernel that runs the region's operations in order; `kernel_of` has that of each."""
    frame = Frame(target, region.argument_types, region.result_types)
    f = frame.function
    places: dict[Value, llvm.Value] = dict(zip(region.arguments, frame.pointers, strict=True))
    results = dict(zip(region.results, frame.outputs, strict=True))
    scratch, most = 0, 0
    pieces: list[str] = []
    calls: list[tuple[Op, KernelCode]] = []
    for op in region.ops:
        for value in op.results:
            target_place = results.get(value)
            if target_place is None or value in places:
                target_place = f.pointer(frame.scratch, scratch, "i8")
                scratch += -(-value.tensor.bytes // 64) * 64 + 64
            places[value] = target_place
        code = kernel_of(op)
        most = larger(most, code.scratch_bytes)
        calls.append((op, code))
    most_values = max([len(o.operands) + len(o.results) for o, _ in calls], default=1)
    # In front of the arguments lies the address of the part's table of sizes.
    table = f.pointer(f.alloca("ptr", most_values + 1), 1, "ptr")
    most_sizes = max((len(code.sizes) for _, code in calls), default=0)
    sizes = f.alloca("i64", most_sizes) if most_sizes else None
    working = f.pointer(frame.scratch, scratch, "i8")
    with f.if_then(f.compare("slt", frame.begin, frame.end)):
        for number, (op, code) in enumerate(calls):
            for slot, value in enumerate((*op.operands, *op.results)):
                f.store(places[value], f.pointer(table, slot, "ptr"))
            if code.sizes and sizes is not None:
                for slot, size in enumerate(code.sizes):
                    f.store(f.constant("i64", size), f.pointer(sizes, slot, "i64"))
                f.store(sizes, f.pointer(table, -1, "ptr"))
            name = f"part{number}"
            tiles = f.constant("i64", code.tiles)
            f.call(name, "void", table, llvm.constant("i64", 0), tiles, working)
            pieces.append(renamed(code.ir_text, code.symbol, name))
        for number, (value, pointer) in enumerate(zip(region.results, frame.outputs, strict=True)):
            if places[value] is not pointer:
                f.copy(pointer, places[value], region.results[number].tensor.bytes)
    note = "computed one operation after another on one worker"
    code = frame.finish(1, flops, scratch=scratch + most, parallel=False, notes=(note,))
    text = merged([code.ir_text, *pieces])
    return KernelCode(
        text,
        code.symbol,
        1,
        code.scratch_bytes,
        flops,
        code.bytes,
        False,
        code.notes,
        sizes=code.sizes,
    )


def renamed(text: str, symbol: str, name: str) -> str:
    """The module's text with every definition named after `name` and internal."""
    names = {found: f"{name}_{found}" for found in _DEFINED.findall(text)}
    names[symbol] = name
    text = re.sub(r"@([\w.]+)", lambda match: "@" + names.get(match[1], match[1]), text)
    return text.replace(f"define void @{name}(", f"define internal void @{name}(")


def merged(texts: list[str]) -> str:
    """One module of several; declarations and attributes once, which all have in common."""
    shared: dict[str, None] = {}
    bodies: list[str] = []
    for text in texts:
        lines = []
        for line in text.splitlines():
            if line.startswith(("declare ", "attributes ")):
                shared[line] = None
            else:
                lines.append(line)
        bodies.append("\n".join(lines))
    return "\n".join([*bodies, *shared]) + "\n"
