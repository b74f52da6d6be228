"""ldmatrix, stmatrix, movmatrix: 8x8 matrices between shared memory and the lanes of a warp."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from .access import load_vector, store
from .matrix import expect_registers, items, unsupported, whole_warps
from .syntax import Instruction
from .table import Bound, operation
from .traffic import shared_place

if TYPE_CHECKING:
    from .engine import At


def _rows(at: At, address: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Threads and addresses of the rows: the first 8 * count lanes of each warp."""
    chosen = (at.threads % 32) < 8 * count
    threads, address = at.threads[chosen], np.asarray(address)[chosen]
    shared_place(at, address, 16, 16, at.instruction.parts[0], threads)
    return threads, address


def _form(instruction: Instruction) -> tuple[int, bool]:
    """(number of matrices, transposed)."""
    parts = instruction.parts
    found = re.search(r"\.m8n8\.x([124])\.", instruction.opcode)
    if not found or parts[-1] != "b16" or not any(part.startswith("shared") for part in parts):
        raise unsupported(instruction, "only 8x8 matrices of 16 bits in shared memory are")
    return int(found.group(1)), "trans" in parts


@operation("ldmatrix", lockstep=True)
def ldmatrix(instruction: Instruction) -> Bound:
    count, transposed = _form(instruction)
    target, address = instruction.operands
    expect_registers(instruction, target, count, "the result")

    def run(at: At, address: Any) -> Any:
        warps = whole_warps(at)
        threads, places = _rows(at, address, count)
        words = load_vector(at.state, threads, at.node.number, "shared", places, 0, "u4", 16, 4)
        data = np.stack([np.broadcast_to(w, threads.size) for w in words], -1)
        matrices = data.reshape(warps, count, 8, 4)
        if transposed:
            cells = np.ascontiguousarray(matrices).view(np.uint16).reshape(warps, count, 8, 8)
            matrices = np.ascontiguousarray(cells.transpose(0, 1, 3, 2)).view(np.uint32)
        lanes = matrices.reshape(warps, count, 32)
        return tuple(lanes[:, matrix].reshape(-1) for matrix in range(count))

    return Bound(run, ((address, "address"),), tuple((r, "u4") for r in items(target)))


@operation("stmatrix", lockstep=True)
def stmatrix(instruction: Instruction) -> Bound:
    count, transposed = _form(instruction)
    address, source = instruction.operands
    expect_registers(instruction, source, count, "the source")

    def run(at: At, address: Any, *registers: Any) -> None:
        warps = whole_warps(at)
        threads, places = _rows(at, address, count)
        words = np.stack([r.reshape(warps, 32) for r in registers], 1)  # [warp, matrix, lane]
        rows = np.ascontiguousarray(words).reshape(warps, count, 8, 4)
        if transposed:
            cells = rows.view(np.uint16).reshape(warps, count, 8, 8)
            rows = np.ascontiguousarray(cells.transpose(0, 1, 3, 2)).view(np.uint32)
        values = [np.ascontiguousarray(rows[..., i]).reshape(-1) for i in range(4)]
        store(at.state, threads, at.node.number, "shared", places, 0, "u4", 16, values)

    return Bound(run, ((address, "address"), *((r, "u4") for r in items(source))))


@operation("movmatrix", lockstep=True)
def movmatrix(instruction: Instruction) -> Bound:
    target, source = instruction.operands

    def run(at: At, words: Any) -> Any:
        warps = whole_warps(at)
        cells = np.ascontiguousarray(words).view(np.uint16).reshape(warps, 8, 8)
        transposed = np.ascontiguousarray(cells.transpose(0, 2, 1)).view(np.uint32)
        return (transposed.reshape(-1),)

    return Bound(run, ((source, "u4"),), ((target, "u4"),))
