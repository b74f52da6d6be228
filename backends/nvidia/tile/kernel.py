"""Kernels of tile functions: `emit(kernel_call, target)`."""

from __future__ import annotations

import math
from dataclasses import replace

from ....hlo.deciding import common_divisor, estimating
from ....hlo.errors import CompilerBug
from ....hlo.graph import Op, Value
from ... import llvm
from ...llvm import elements
from ..frame import Entry, Parameter, Unit, blocks
from ..launch import KernelCode, KernelMemory, Launch
from ..target import NvidiaTarget
from .analysis import Facts
from .assign import Assignment
from .decisions import TileDecisions
from .demand import Demand
from .emitter import Emitter
from .rules import RULES

MOST_WORDS = 1 << 16  # 32-bit words of a tile: a multiprocessor has no more registers


def fits(op: Op, target: NvidiaTarget) -> Assignment | str:
    """Where the tiles of a kernel_call lie; or why they have no place in registers and shared
    memory."""
    made = (value for inner in op.regions[0].walk() for value in inner.results)
    largest = max(map(words, made), default=0)
    if largest > MOST_WORDS:
        return f"a tile of {largest} words"
    found, limit = Assignment(Facts(op), target), target.architecture.shared_bytes
    demand = Demand(found, limit)
    if demand.bytes > limit:
        return f"up to {demand.bytes} bytes of shared memory"
    found.stages = demand.stages
    return found


def emit(op: Op, target: NvidiaTarget, shares: bool = False) -> KernelCode:
    """The kernel of a kernel_call that fits; `shares`: as for `emitted`."""
    found = fits(op, target)
    if isinstance(found, str):
        raise CompilerBug(found)
    return emitted(found, shares)


def emitted(assignment: Assignment, shares: bool = False) -> KernelCode:
    """The kernel of a kernel_call: a block of threads for each place of its grid. `shares`: a
    result may lie in the memory of an operand."""
    emitter = Emitter(assignment, RULES, shares)
    emitter.body()
    op, block = emitter.kernel, emitter.block
    if block.arena.size > assignment.target.architecture.shared_bytes:
        raise CompilerBug(f"{block.arena.size} bytes of shared memory")
    code = finished(op, block.entry, math.prod(op.grid), block.arena.size)
    return replace(code, decided=TileDecisions(emitter))


def finished(op: Op, entry: Entry, tiles: int, shared: int, scratch: int = 0) -> KernelCode:
    """The kernel whose entry is launched for so many blocks, behind what results start as."""
    launches = _starts(op, entry.unit)
    launch = entry.finish(blocks(tiles, 1), shared)
    if math.prod(op.grid):
        launches.append(launch)
    with estimating():
        moved = float(sum(value.tensor.bytes for value in op.regions[0].arguments))
    return entry.unit.code(launches, op.definition.flops(op), moved, scratch=scratch)


def words(value: Value) -> int:
    """32-bit words of a tile in registers."""
    kind = elements.register_type(value.element)
    each = max(1, llvm.bits_of(kind) // 32) << value.element.is_complex
    return math.prod(value.dims) * each


def _starts(op: Op, unit: Unit) -> list[Launch]:
    """Launches that copy inputs to the results that start as them."""
    launches = []
    inputs = len(op.operands)
    for number, start in enumerate(op.starts):
        size = op.operands[start].tensor.bytes if start >= 0 else 0
        if not size:
            continue
        result = KernelMemory(inputs + number)
        entry = unit.kernel(
            f"start{number}",
            [
                Parameter("source", KernelMemory(start), unique=False),
                Parameter("target", result, unique=False),
            ],
        )
        width = common_divisor(size, 16)
        f = entry.function
        kind = f"<{width // 4} x i32>" if width > 4 else f"i{8 * width}"
        with entry.guarded(entry.position(), size // width):
            at = f.mul(entry.position(), width)
            there, here = (f.pointer(pointer, at, "i8") for pointer in entry.pointers)
            f.store(f.load(kind, there, align=width), here, align=width)
        launches.append(entry.finish(blocks(size // width, entry.threads)))
    return launches
