"""Products of few rows with a weight of a narrow type: the weight streams from memory once.

Every column group reads its panel of the weight line after line and widens it in registers; sums
are formed in f32. This is what one-token steps do with bf16, f16 and 8-bit weights.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from ....hlo.deciding import at_hint
from ....hlo.symbols import SymbolicDim
from ....hlo.views import merge
from ... import llvm
from ..codegen import Target
from .left import LeftSide, PackedLeftSide
from .operands import ColumnGroup, ColumnGroups, constant_mask, unravel
from .product import Product
from .right import CopiedRight, DirectRight

Value = llvm.Value

WIDTH = 64  # columns of a panel
ROWS = 4
_NARROW = frozenset({"bf16", "f16", "i8", "ui8"})
_TURN = 512  # bytes of the weight in one turn of the loop
_AHEAD = 1024  # bytes


def most_rows(target: Target) -> int:
    """Rows whose sums leave registers for what is read."""
    return min(ROWS, target.vector_registers // 2 // (WIDTH // target.lanes("float")))


def fits(target: Target, element: Any, accumulator: str, rows: int) -> bool:
    """Whether a right side of such elements is streamed for so many rows."""
    if element.name not in _NARROW or accumulator != "float":
        return False
    return 0 < at_hint(rows) <= most_rows(target)


def emit_stream(module: llvm.Module, name: str, product: Product) -> tuple[int, int] | None:
    """Defines the kernel `name`; its tiles and scratch bytes. None where the weight does not lie in
    whole vectors of columns, or the call decides its sizes, or rows are many."""
    right = product.right
    side = right if isinstance(right, DirectRight) else getattr(right, "_direct", None)
    if not isinstance(side, DirectRight):
        return None
    if not fits(product.target, right.source.element, product.accumulator, product.rows):
        return None
    if not isinstance(right, DirectRight | CopiedRight) or not product.columns:
        return None
    steps = math.prod(product.depth)
    if isinstance(steps, SymbolicDim) or isinstance(product.columns, SymbolicDim):
        return None
    lanes = product.lanes
    loops = [loop for loop in side._loops if loop.size != 1]
    if len(merge(loops)) > 1 or not steps:
        return None
    stride = loops[-1].stride if loops else 0
    if side.block and side.block % WIDTH:
        return None
    left = _contiguous(product.left, product.depth)
    rows = product.rows
    parts = ColumnGroups(ColumnGroup(lanes, WIDTH // lanes), product.columns)
    groups = parts.count
    # Of rows that the call decides, as many at a time as there are registers for.
    opened = isinstance(rows, SymbolicDim)
    most = most_rows(product.target) if opened else rows
    names = {n: f"{name}_rows{n}" for n in range(1, most + 1)} if opened else {rows: name}
    row_bytes = -(-left.row_stride * 4 // 64) * 64
    scratch_bytes = most * row_bytes if left.packed else 0
    f = module.kernel(name)
    args, begin, end, scratch = f.arguments
    for kind, group in parts.kinds:
        for count, own in names.items():
            helper = f"{own}_{kind}"
            _emit_group(module, helper, product, left, side, group, steps, stride, count)
    with f.for_range(begin, end) as loop:
        number, flat = f.urem(loop.index, groups), f.udiv(loop.index, groups)
        coordinates = unravel(f, flat, product.outer)

        def some_rows(row: Value, count: int) -> None:
            if left.packed:
                left.pack(f, args, coordinates, row, f.add(row, count), scratch)  # noqa: B023
                start = scratch
            else:
                start = left.rows(f, args, coordinates, row)  # noqa: B023
            column = parts.first_column(f, number)  # noqa: B023
            operands = args, flat, start, column, *([row] if opened else [])  # noqa: B023
            parts.each_kind(
                f, number,  # noqa: B023
                lambda kind, _: f.call(f"{names[count]}_{kind}", "void", *operands),
            )  # fmt: skip

        if opened:
            with f.for_range(0, rows, most) as some:
                bodies = {n: partial(some_rows, some.index, n) for n in range(1, most + 1)}
                f.switch(f.min(f.sub(rows, some.index), most), bodies)
        else:
            some_rows(llvm.constant("i64", 0), rows)
    f.ret()
    return math.prod(product.outer) * groups, scratch_bytes


def _contiguous(left: LeftSide, depth: tuple[int, ...]) -> LeftSide:
    """The left side with plain elements along one loop of the depth."""
    if left.packed:
        return left
    loops = [(size, step) for size, step in zip(depth, left.depth, strict=True) if size != 1]
    if len(loops) <= 1:
        return left
    return left.copied(depth, ROWS, 1)


def _emit_group(
    module: llvm.Module,
    name: str,
    product: Product,
    left: LeftSide,
    side: DirectRight,
    group: ColumnGroup,
    steps: int,
    stride: int,
    rows: int,
) -> None:
    """Defines name(args, outer, left, column): the sums of a column group, and what follows. Where
    the call decides how many rows there are, it takes the first one, too."""
    parameters = [
        ("ptr noalias readonly", "args"),
        ("i64", "outer"),
        ("ptr", "left"),
        ("i64", "column"),
    ]
    if isinstance(product.rows, SymbolicDim):
        parameters.append(("i64", "row"))
    f = module.helper(name, parameters, inline="noinline")
    args, flat, rows_at, column, *first = f.arguments
    coordinates = unravel(f, flat, product.outer)
    source, accumulator, lanes = side.source, product.accumulator, group.lanes
    base = side.open(f, args, coordinates, column, group, rows_at)
    masked = side.mask_tail(group)
    along = [step for size, step in zip(product.depth, left.depth, strict=True) if size != 1]
    step_left = 1 if isinstance(left, PackedLeftSide) or not along else along[-1]
    kind = llvm.vector(lanes, accumulator)
    zeros = [llvm.constant(kind, 0)] * (rows * group.vectors)
    line = source.element.bits // 8 * group.columns

    def step(at: Value, totals: list[Value]) -> list[Value]:
        place = f.mul(at, stride)
        columns = []
        for number, start in enumerate(side.offsets(group)):
            if masked and number == group.vectors - 1:
                mask = constant_mask(lanes, group.tail)
                columns.append(source.masked_load(f, base, f.add(place, start), mask))
            else:
                columns.append(source.load(f, base, f.add(place, start), lanes))
        updated = []
        for row in range(rows):
            offset = f.add(f.mul(at, step_left), row * left.row_stride)
            value = f.splat(f.load(accumulator, f.pointer(rows_at, offset, accumulator)), lanes)
            for number, right in enumerate(columns):
                updated.append(f.fma(value, right, totals[row * group.vectors + number]))
        return updated

    unroll = max(1, _TURN // line)
    whole = steps // unroll * unroll
    totals: list[Value] = list(zeros)
    if whole:
        with f.for_range(0, whole, unroll, zeros, at_least_once=True) as loop:
            totals = list(loop.carried)
            ahead = source.at(f, base, f.mul(loop.index, stride))
            for number in range(max(1, unroll * line // 64)):
                f.prefetch(f.pointer(ahead, _AHEAD + 64 * number, "i8"), locality=3)
            for turn in range(unroll):
                totals = step(f.add(loop.index, turn), totals)
            loop.carry(*totals)
        totals = list(loop.results)
    for turn in range(steps - whole):
        totals = step(llvm.constant("i64", whole + turn), totals)
    tile = f.alloca(accumulator, rows * group.columns)
    for number, total in enumerate(totals):
        row, vector = divmod(number, group.vectors)
        place = f.pointer(tile, row * group.columns + vector * lanes, accumulator)
        f.store(total, place)
    count = llvm.constant("i64", rows)
    row_at = first[0] if first else llvm.constant("i64", 0)
    product.epilogue.emit(f, args, coordinates, row_at, column, count, tile, group)
    f.ret()
