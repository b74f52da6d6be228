"""The innermost loop of a product of narrow numbers in vector registers.

    tile[i, j] = sum over k of left[i, k] * right[k, j]

One instruction adds two bf16 products (`vdpbf16ps`), or four of bytes (`vpdpbusd`), to each 32-bit
sum. Bytes are multiplied unsigned by signed: for signed by signed, 128 is added to the left side,
and 128 times the right side's sum is taken away at the end; all of it exact modulo 2**32.
"""

from __future__ import annotations

from collections.abc import Sequence

from ... import llvm
from ..codegen import Target

Value = llvm.Value

LANES = 16
LINE = 64  # bytes of a cache's line


def supports(target: Target, left: str, right: str) -> bool:
    """Whether the target has an instruction for elements such as "bf16", "i8" and "ui8"."""
    if left == "bf16":
        return "avx512bf16" in target.features
    return "avx512vnni" in target.features and (left, right) != ("ui8", "ui8")


def unit(left: str) -> int:
    """Rows of a block of sums, which with two vectors of columns fill the 32 registers: words of
    bf16 are spread by the instruction itself, those of bytes take a register."""
    return 14 if left == "bf16" else 12


def emit_vector_micro(
    module: llvm.Module,
    name: str,
    elements: tuple[str, str],
    rows: int,
    vectors: int,
    loops: Sequence[tuple[int, int, int]],
    left_pitch: int,
    tile_pitch: int,
    fetched: int = 0,
) -> None:
    """Defines name(left, right, tile, ahead): sums over the depth. From `ahead` on, `fetched`
    lines of a cache are brought near with each step of the right side.

    vectors: of 16 columns. loops: over the depth in steps of four bytes, how many there are and how
    many bytes apart they lie on the left and on the right side. pitches in bytes: of left rows, of
    the tile.
    """
    parameters = [
        ("ptr noalias readonly", "left"),
        ("ptr noalias readonly", "right"),
        ("ptr noalias", "tile"),
        ("ptr", "ahead"),
    ]
    f = module.helper(name, parameters, inline="noinline")
    left, right, tile, ahead = f.arguments
    sums = llvm.vector(LANES, "float" if elements[0] == "bf16" else "i32")
    extra = vectors if elements == ("i8", "i8") else 0
    places = [
        f.pointer(tile, row * tile_pitch + 64 * vector, "i8")
        for row in range(rows)
        for vector in range(vectors)
    ]
    zeros = [llvm.constant(sums, 0)] * (len(places) + extra)

    def nest(number: int, carried: Sequence[Value]) -> list[Value]:
        """The loops from `number` on: where the sides and what is fetched go on, and the sums."""
        count, left_step, right_step = loops[number]
        with f.for_range(0, count, 1, carried) as loop:
            a, b, next_lines, *totals = loop.carried
            if number + 1 == len(loops):
                columns = [
                    f.load(llvm.vector(LANES, "i32"), f.pointer(b, 64 * v, "i8"))
                    for v in range(vectors)
                ]
                for line in range(fetched):
                    f.prefetch(f.pointer(next_lines, LINE * line, "i8"), locality=2)
                totals = _step(f, elements, rows, a, left_pitch, columns, totals)
                next_lines = f.pointer(next_lines, LINE * fetched, "i8")
            else:
                _, _, next_lines, *totals = nest(number + 1, loop.carried)
            moved = f.pointer(a, left_step, "i8"), f.pointer(b, right_step, "i8")
            loop.carry(*moved, next_lines, *totals)
        return list(loop.results)

    _, _, _, *totals = nest(0, [left, right, ahead, *zeros])
    for number, place in enumerate(places):
        value = totals[number]
        if extra:
            value = f.sub(value, totals[len(places) + number % vectors])
        f.store(value, place)
    f.ret()


def _step(
    f: llvm.Function,
    elements: tuple[str, str],
    rows: int,
    left: Value,
    left_pitch: int,
    columns: Sequence[Value],
    totals: Sequence[Value],
) -> list[Value]:
    """All sums with the products of four more bytes of each row."""
    updated: list[Value] = []
    for row in range(rows):
        word = f.load("i32", f.pointer(left, row * left_pitch, "i8"))
        if elements == ("i8", "i8"):
            word = f.xor(word, -0x7F7F7F80)  # 128 more in each byte, which are unsigned then
        spread = f.splat(word, LANES)
        for vector, column in enumerate(columns):
            updated.append(_dot(f, elements, totals[row * len(columns) + vector], spread, column))
    if elements == ("i8", "i8"):
        offset = llvm.constant(llvm.vector(LANES, "i32"), -0x7F7F7F80)
        for vector, column in enumerate(columns):
            total = totals[rows * len(columns) + vector]
            updated.append(_dot(f, elements, total, offset, column))
    return updated


def _dot(
    f: llvm.Function, elements: tuple[str, str], total: Value, left: Value, right: Value
) -> Value:
    if elements[0] == "bf16":
        kind = llvm.vector(2 * LANES, "bfloat")
        # Only the last operand can be spread from memory; products commute.
        name, pair = "llvm.x86.avx512bf16.dpbf16ps.512", (right, left)
    else:
        kind = llvm.vector(4 * LANES, "i8")
        name = "llvm.x86.avx512.vpdpbusd.512"
        pair = (right, left) if elements == ("i8", "ui8") else (left, right)
    operands = [f.bitcast(value, kind) for value in pair]
    return f.call(name, total.type, total, *operands, declare=True)
