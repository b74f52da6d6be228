"""mma.sync: products by a warp, operands in registers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from ....hlo.errors import UserError
from .fragments import (
    ELEMENTS,
    accumulator_places,
    decode,
    from_matrix,
    operand_places,
    product,
    to_matrix,
)
from .syntax import Instruction, Operand, Vector
from .table import Bound, operation

if TYPE_CHECKING:
    from .engine import At

# Shapes that the ISA has, by the type of A.
_SHAPES = {
    "f16": {(16, 8, 8), (16, 8, 16)},
    "bf16": {(16, 8, 8), (16, 8, 16)},
    "tf32": {(16, 8, 4), (16, 8, 8)},
    "f64": {(8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)},
    "s8": {(8, 8, 16), (16, 8, 16), (16, 8, 32)},
    "u8": {(8, 8, 16), (16, 8, 16), (16, 8, 32)},
    "s4": {(8, 8, 32), (16, 8, 32), (16, 8, 64)},
    "u4": {(8, 8, 32), (16, 8, 32), (16, 8, 64)},
    "e4m3": {(16, 8, 16), (16, 8, 32)},
    "e5m2": {(16, 8, 16), (16, 8, 32)},
}
_ACCUMULATORS = {"f16": ("f16", "f32"), "f64": ("f64",), "bf16": ("f32",), "tf32": ("f32",)}


def unsupported(instruction: Instruction, reason: str) -> UserError:
    return UserError(
        f"PTX line {instruction.line}: '{instruction.opcode}' is not simulated: {reason}"
    )


def items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def expect_registers(instruction: Instruction, operand: Operand, count: int, what: str) -> None:
    if len(items(operand)) != count:
        raise UserError(
            f"PTX line {instruction.line}: {what} of '{instruction.opcode}' is "
            f"{count} register{'s' * (count != 1)}, here {len(items(operand))}"
        )


def whole_warps(at: At) -> int:
    """The number of warps that execute together; a fault where one is not complete."""
    threads = at.threads
    count = threads.size // 32
    if threads.size % 32 or (threads.reshape(count, 32) % 32 != np.arange(32)).any():
        at.fault(
            "divergence",
            "every lane of a warp has to execute it together; some lanes left or took another path",
        )
    return count


@operation("mma.sync", "mma.sp", "mma.sp::ordered_metadata", "wmma")
def mma(instruction: Instruction) -> Bound:
    parts = instruction.parts
    if parts[0] == "wmma" or parts[1] != "sync":
        raise unsupported(instruction, "only dense mma.sync is")
    match = re.search(r"\.m(\d+)n(\d+)k(\d+)\.", instruction.opcode)
    if not match:
        raise unsupported(instruction, "it names no shape")
    m, n, k = (int(size) for size in match.groups())
    types = [part for part in parts[3:] if part in ELEMENTS or part in _SHAPES]
    if len(types) != 4:
        raise unsupported(instruction, "its element types are not known here")
    d, a, b, c = types
    same_family = a == b or {a, b} in ({"s8", "u8"}, {"s4", "u4"}, {"e4m3", "e5m2"})
    accumulators = _ACCUMULATORS.get(a, ("f16", "f32") if a[0] == "e" else ("s32",))
    if (m, n, k) not in _SHAPES[a] or not same_family or c != d or d not in accumulators:
        raise unsupported(instruction, f"no m{m}n{n}k{k} for these types")
    if "row" not in parts or "col" not in parts or any(p in parts for p in ("xor", "and")):
        raise unsupported(instruction, "A is by rows and B by columns")
    if any(part.startswith("block_scale") for part in parts):
        raise unsupported(instruction, "block scales")
    bits = ELEMENTS[a][0]
    d_bits = ELEMENTS[d][0]
    word = 64 if a == "f64" else 32
    counts = [m * n * d_bits, m * k * bits, k * n * bits, m * n * d_bits]
    names = ("D", "A", "B", "C")
    for operand, size, name in zip(instruction.operands, counts, names, strict=True):
        expect_registers(instruction, operand, size // 32 // word, name)
    register = "u8" if word == 64 else "u4"
    a_places, b_places = operand_places(m, k, bits), operand_places(n, k, bits)
    d_places = accumulator_places(m, n)
    saturate = "satfinite" in parts
    a_count, b_count = len(items(instruction.operands[1])), len(items(instruction.operands[2]))

    def run(at: At, *words: np.ndarray) -> Any:
        warps = whole_warps(at)
        stacked = [np.broadcast_to(w, at.threads.shape) for w in words]

        def group(registers: list[np.ndarray], element: str) -> np.ndarray:
            packed = np.stack(registers, -1).reshape(warps, 32, -1)
            return decode(packed, element)

        left = to_matrix(group(stacked[:a_count], a), a_places, m, k)
        right = to_matrix(group(stacked[a_count : a_count + b_count], b), b_places, n, k)
        old = to_matrix(group(stacked[a_count + b_count :], c), d_places, m, n)
        new = product(left, right.transpose(0, 2, 1), old, d, saturate)
        fresh = np.ascontiguousarray(from_matrix(new, d_places))
        fresh = fresh.view(np.uint64 if word == 64 else np.uint32).reshape(warps * 32, -1)
        return tuple(fresh.T)

    sources = tuple(
        (register_, register) for op in instruction.operands[1:] for register_ in items(op)
    )
    targets = tuple((register_, register) for register_ in items(instruction.operands[0]))
    return Bound(run, sources, targets)
