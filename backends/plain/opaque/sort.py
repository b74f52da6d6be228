"""sort: by keys where the comparator has one, else a stable merge sort of positions by any
comparator; lines are the tiles."""

from __future__ import annotations

import math
from collections.abc import Callable

from ....hlo.deciding import at_hint
from ....hlo.graph import Op
from ... import llvm
from ...llvm.elements import Register
from ...llvm.elementwise import Override
from ...llvm.index import CONSECUTIVE, SAME, LoopAxis, of_axis
from ...llvm.target import KernelCode, Target
from ..frame import lanes_for_types, tile_range
from .frame import frame_of, lazy_region
from .order import Records, fill, key_bits, key_of


def emit(op: Op, target: Target) -> KernelCode:
    """Sorts positions in scratch, then moves the elements."""
    frame, emitter = frame_of(op, target)
    f, scopes = frame.function, frame.scopes
    dims = op.operands[0].dims
    if not op.operands[0].tensor.size:
        return frame.finish(0, 0.0)
    rank = len(dims)
    dimension = op.dimension % rank if rank else 0
    length = dims[dimension] if rank else 1
    stride = math.prod(dims[dimension + 1 :])
    lines = math.prod(dims[:dimension]) * stride
    key = key_of(op.regions[0])
    records = Records(f, key_bits(key.value.element) if key else 32, target.vector_bits)
    half = records.room(length) if key else -(-4 * length // 64) * 64
    width = lanes_for_types(target, [value.element for value in op.operands])
    width = width if stride == 1 and at_hint(length) >= width else 1
    with tile_range(frame, 0, lines) as (low, high), scopes.loop(low, high, extent=lines) as (
        _, loop,
    ):  # fmt: skip
        outer = f.udiv(loop.index, stride)
        inner = f.sub(loop.index, f.mul(outer, stride))
        base = f.add(f.mul(outer, length * stride), inner)

        def load(number: int, position: llvm.Value, lanes: int = 1) -> Register:
            """Elements of an operand from a position of this line on."""
            at = f.add(base, f.mul(f.cast("zext", position, "i64"), stride))
            kind = CONSECUTIVE if lanes > 1 else SAME
            axis = LoopAxis(at, op.operands[number].tensor.size, kind, scopes.depth)
            element = op.operands[number].element
            return emitter.load(frame.pointers[number], element, of_axis(axis), lanes)

        def given(number: int, position: llvm.Value) -> Override:
            return lambda index, width, mask: load(number, position)

        def less(left: llvm.Value, right: llvm.Value) -> llvm.Value:
            loads = [
                given(number, position)
                for number in range(len(op.operands))
                for position in (left, right)
            ]
            (result,) = lazy_region(f, op.regions[0], loads, 1)
            assert isinstance(result, llvm.Value)
            return result

        first = frame.scratch
        second = f.pointer(frame.scratch, half, "i8")
        if key is not None:
            fill(records, key, load, first, length, width)
            order = records.sort(first, second, f.pointer(second, half, "i8"), length)
        else:
            order = _merged(f, first, second, length, less)
        with f.for_range(0, length) as each:
            if key is not None:
                record = f.load(records.kind, records.at(order, each.index))
                position = records.position(record)
            else:
                position = f.load("i32", f.pointer(order, each.index, "i32"))
            to = f.add(base, f.mul(each.index, stride))
            for number, value in enumerate(op.operands):
                place = of_axis(LoopAxis(to, value.tensor.size, depth=scopes.depth))
                register = load(number, position)
                emitter.store(frame.outputs[number], register, value.element, place)
    work = 8.0 * at_hint(lines * length) * max(1, at_hint(length).bit_length())
    scratch = 2 * half + (records.counts_room() if key else 0)
    return frame.finish(lines, 0.0, scratch=scratch, work=work)


def _merged(
    f: llvm.Function,
    first: llvm.Value,
    second: llvm.Value,
    length: int,
    less: Callable[[llvm.Value, llvm.Value], llvm.Value],
) -> llvm.Value:
    """Where the positions stand in order after merging ever longer runs."""
    with f.for_range(0, length) as each:
        f.store(f.cast("trunc", each.index, "i32"), f.pointer(first, each.index, "i32"))
    passes = f.bit_length(length - 1)
    one = llvm.constant("i64", 1)
    with f.for_range(0, passes, 1, [first, second, one]) as rounds:
        source, target, width = rounds.carried
        _merge_all(f, source, target, width, length, less)
        rounds.carry(target, source, f.mul(width, 2))
    return rounds.results[0]


def _merge_all(
    f: llvm.Function,
    source: llvm.Value,
    target: llvm.Value,
    width: llvm.Value,
    length: int,
    less: Callable[[llvm.Value, llvm.Value], llvm.Value],
) -> None:
    """Merges neighbouring runs of `width` positions; of equals the left run's come first."""
    with f.for_range(0, length, f.mul(width, 2)) as runs:
        begin = runs.index
        middle = f.min(f.add(begin, width), length)
        end = f.min(f.add(middle, width), length)
        with f.for_range(begin, end, 1, [begin, middle]) as merge:
            i, j = merge.carried
            left = f.load("i32", f.pointer(source, f.min(i, length - 1), "i32"))
            right = f.load("i32", f.pointer(source, f.min(j, length - 1), "i32"))
            sooner = f.land(f.compare("slt", j, end), less(right, left))
            take = f.lor(f.compare("sge", i, middle), sooner)
            f.store(f.select(take, right, left), f.pointer(target, merge.index, "i32"))
            step = f.cast("zext", take, "i64")
            merge.carry(f.add(i, f.sub(1, step)), f.add(j, step))
