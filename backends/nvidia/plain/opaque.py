"""Kernels of the plain ABI (backends/plain/opaque) on a GPU: one thread per tile."""

from __future__ import annotations

from collections.abc import Sequence

from ....hlo.graph import Op
from ...llvm.target import KernelCode, Target
from ...plain.composite import renamed
from ...plain.opaque import EMITTERS
from ...plain.single import as_region, missing
from .work import Place, Worker

SCRATCH_BYTES = 64 << 20  # of all threads together, where one tile needs less
_ALIGNMENT = 64  # of a tile's scratch


def single(op: Op, target: Target) -> KernelCode:
    """The plain kernel of an operation alone."""
    emitter = EMITTERS.get(op.name)
    if emitter is None:
        raise missing(op, "nvidia")
    return emitter(as_region(op).ops[0], target)


def launch(work: Worker, op: Op, operands: Sequence[Place], results: Sequence[Place]) -> None:
    """Runs the plain kernel of an operation: each thread takes some of its tiles."""
    code = single(op, work.unit.target)
    if not code.tiles:
        return
    room = -(-code.scratch_bytes // _ALIGNMENT) * _ALIGNMENT
    threads = min(code.tiles, work.threads(code.tiles))
    if room:
        threads = max(1, min(threads, SCRATCH_BYTES // room))
    name = f"plain{len(work.unit.pieces)}"
    work.unit.pieces.append(renamed(code.ir_text, code.symbol, name))
    writes = [*results, work.reserve(threads * room)] if room else list(results)
    step = work.begin(operands, writes, threads)
    f = step.function
    pointers = step.pointers[: len(operands) + len(results)]
    table = f.alloca("ptr", max(1, len(pointers)), align=8)
    for slot, pointer in enumerate(pointers):
        f.store(pointer, f.pointer(table, slot, "ptr"))
    with step.turns(code.tiles, threads) as (thread, tile):
        scratch = f.pointer(step.pointers[-1], f.mul(thread, room), "i8") if room else table
        f.call(name, "void", table, tile, f.add(tile, 1), scratch)
    work.end(step, threads)
