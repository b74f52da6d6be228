"""Kernels of the plain ABI (backends/plain/opaque) on a GPU: one thread per tile."""

from __future__ import annotations

from collections.abc import Sequence

from ....hlo.deciding import largest
from ....hlo.graph import Op
from ....hlo.symbols import Dim, ceildiv, maximum, minimum
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


def shares(code: KernelCode, most: Dim) -> tuple[Dim, Dim]:
    """How many threads run a plain kernel, of so many at most, and the bytes that each has."""
    room = ceildiv(code.scratch_bytes, _ALIGNMENT) * _ALIGNMENT
    threads = minimum(code.tiles, most)
    if room:
        threads = maximum(1, minimum(threads, SCRATCH_BYTES // max(1, largest(room))))
    return threads, room


def launch(work: Worker, op: Op, operands: Sequence[Place], results: Sequence[Place]) -> None:
    """Runs the plain kernel of an operation: each thread takes some of its tiles."""
    code = single(op, work.unit.target)
    if not code.tiles:
        return
    threads, room = shares(code, work.threads(code.tiles))
    name = f"plain{len(work.unit.pieces)}"
    work.unit.pieces.append(renamed(code.ir_text, code.symbol, name))
    writes = [*results, work.reserve(threads * room)] if room else list(results)
    step = work.begin(operands, writes, threads)
    f = step.function
    pointers = step.pointers[: len(operands) + len(results)]
    table = f.alloca("ptr", max(1, len(pointers)) + bool(code.sizes), align=8)
    if code.sizes:  # in front of the arguments lies the address of the table of sizes
        sizes = f.alloca("i64", len(code.sizes), align=8)
        for slot, size in enumerate(code.sizes):
            f.store(f.constant("i64", size), f.pointer(sizes, slot, "i64"))
        f.store(sizes, table)
        table = f.pointer(table, 1, "ptr")
    for slot, pointer in enumerate(pointers):
        f.store(pointer, f.pointer(table, slot, "ptr"))
    with step.turns(code.tiles, threads) as (thread, tile):
        scratch = f.pointer(step.pointers[-1], f.mul(thread, room), "i8") if room else table
        f.call(name, "void", table, tile, f.add(tile, 1), scratch)
    work.end(step, threads)
