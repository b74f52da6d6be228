"""The innermost loop of a product of narrow numbers in AMX's tile registers.

    tile[i, j] = sum over k of left[i, k] * right[k, j]        up to 32 rows and 32 columns

Tile registers 0-3 hold the sums (row half, column half), 4 and 5 left rows, 6 and 7 right columns;
each is up to 16 rows of 64 bytes. Rows of the left side are contiguous along the depth; the right
side lies in groups of four bytes along the depth. `configure` must run before, on the same thread.
"""

from __future__ import annotations

from ... import llvm
from ..codegen import Target

Value = llvm.Value

ROWS = 16  # of a tile register
BYTES = 64  # of a row of a tile register
LANES = 16  # 32-bit sums in a row
UNIT = 2 * ROWS  # rows of a block of sums
_LEFT, _RIGHT = 4, 6  # first registers


def supports(target: Target, kind: str) -> bool:
    """Whether the target multiplies "bf16", or 8-bit integers ("i8"), in tiles."""
    return {"amx-tile", "amx-bf16" if kind == "bf16" else "amx-int8"} <= set(target.features)


def product_name(left: str, right: str) -> str:
    """The instruction for element types such as "bf16", "i8", "ui8"."""
    if left == "bf16":
        return "llvm.x86.tdpbf16ps"
    sign = {"i8": "s", "ui8": "u"}
    return f"llvm.x86.tdpb{sign[left]}{sign[right]}d"


def configure(f: llvm.Function, rows: int | Value) -> None:
    """Sizes the tile registers for blocks of `rows` rows (1 to 32)."""
    if isinstance(rows, int):
        place = f.module.data(_configuration(rows))
    else:
        every = f.module.data(b"".join(map(_configuration, range(1, UNIT + 1))))
        place = f.pointer(every, f.mul(f.sub(rows, 1), 64), "i8")
    f.call("llvm.x86.ldtilecfg", "void", place, declare=True)


def _configuration(rows: int) -> bytes:
    """What sizes the tile registers."""
    config = bytearray(64)
    config[0] = 1
    upper, lower = min(rows, ROWS), max(rows - ROWS, 0)
    heights = (upper, upper, lower, lower, upper, lower, ROWS, ROWS)
    for number, height in enumerate(heights):
        if height:
            config[16 + 2 * number] = BYTES
            config[48 + number] = height
    return bytes(config)


def release(f: llvm.Function) -> None:
    f.call("llvm.x86.tilerelease", "void", declare=True)


def emit_tile_micro(
    module: llvm.Module,
    name: str,
    instruction: str,
    rows: int,
    vectors: int,
    depth: int,
    left_pitch: int,
    right_pitch: int,
    tile_pitch: int,
) -> None:
    """Defines name(left, right, tile): sums over `depth` bytes, a multiple of 64.

    vectors: 1 or 2 times 16 columns; pitches in bytes: of left rows, of right groups, of the tile.
    """
    parameters = [
        ("ptr noalias readonly", "left"),
        ("ptr noalias readonly", "right"),
        ("ptr noalias", "tile"),
    ]
    f = module.helper(name, parameters, inline="noinline")
    left, right, tile = f.arguments
    halves = 1 + (rows > ROWS)

    def register(number: int) -> Value:
        return llvm.constant("i8", number)

    def move(what: str, number: int, pointer: Value, pitch: int) -> None:
        stride = llvm.constant("i64", pitch)
        f.call(f"llvm.x86.{what}", "void", register(number), pointer, stride, declare=True)

    blocks = [(half, vector) for half in range(halves) for vector in range(vectors)]
    for half, vector in blocks:
        f.call("llvm.x86.tilezero", "void", register(2 * half + vector), declare=True)
    with f.for_range(0, depth, BYTES, [left, right]) as loop:
        a, b = loop.carried
        for vector in range(vectors):
            move("tileloadd64", _RIGHT + vector, f.pointer(b, vector * BYTES, "i8"), right_pitch)
        for half in range(halves):
            at = f.pointer(a, half * ROWS * left_pitch, "i8")
            move("tileloadd64", _LEFT + half, at, left_pitch)
            for vector in range(vectors):
                registers = (2 * half + vector, _LEFT + half, _RIGHT + vector)
                f.call(instruction, "void", *map(register, registers), declare=True)
        loop.carry(f.pointer(a, BYTES, "i8"), f.pointer(b, ROWS * right_pitch, "i8"))
    for half, vector in blocks:
        place = f.pointer(tile, half * ROWS * tile_pitch + vector * BYTES, "i8")
        move("tilestored64", 2 * half + vector, place, tile_pitch)
    f.ret()
