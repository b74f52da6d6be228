"""Kernels of the plain ABI (backends/plain/opaque) on a GPU: one thread per tile."""

from __future__ import annotations

from collections.abc import Sequence

from ....hlo.graph import Op
from ...llvm.target import KernelCode, Target
from ...plain.composite import renamed
from ...plain.opaque import EMITTERS
from ...plain.single import as_region, missing
from ..launch import Memory
from .work import Work, block_for

SCRATCH_BYTES = 64 << 20  # of all threads together, where one tile needs less
_ALIGNMENT = 64  # of a tile's scratch


def single(op: Op, target: Target) -> KernelCode:
    """The plain kernel of an operation alone."""
    emitter = EMITTERS.get(op.name)
    if emitter is None:
        raise missing(op, "nvidia")
    return emitter(as_region(op).ops[0], target)


def launch(work: Work, op: Op, operands: Sequence[Memory], results: Sequence[Memory]) -> None:
    """Runs the plain kernel of an operation: each thread takes some of its tiles."""
    code = single(op, work.unit.target)
    if not code.tiles:
        return
    room = -(-code.scratch_bytes // _ALIGNMENT) * _ALIGNMENT
    threads = code.tiles if not room else max(1, min(code.tiles, SCRATCH_BYTES // room))
    name = f"plain{len(work.launches)}"
    work.unit.pieces.append(renamed(code.ir_text, code.symbol, name))
    writes = [*results, work.reserve(threads * room)] if room else list(results)
    entry = work.entry(operands, writes, block_for(threads))
    f = entry.function
    pointers = entry.pointers[: len(operands) + len(results)]
    table = f.alloca("ptr", max(1, len(pointers)), align=8)
    for slot, pointer in enumerate(pointers):
        f.store(pointer, f.pointer(table, slot, "ptr"))
    first = entry.position()
    with entry.guarded(first, threads):
        scratch = table
        if room:
            scratch = f.pointer(entry.pointers[-1], f.mul(first, room), "i8")
        with f.for_range(first, code.tiles, threads, at_least_once=True) as loop:
            end = f.add(loop.index, 1)
            f.call(name, "void", table, loop.index, end, scratch)
    work.launch(entry, threads)
