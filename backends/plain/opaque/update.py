"""dynamic_update_slice: a copy (none where operand and result share memory), then the update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

from ....hlo.deciding import estimating
from ....hlo.graph import Op
from ....hlo.types import TensorType
from ...llvm.elementwise import ElementEmitter
from ...llvm.index import Affine, linear
from ...llvm.target import KernelCode, Target
from ..frame import Frame, fitting, lanes_for_types, steps
from .frame import copy_unless_same, frame_of, nest

PIECE = 1 << 18  # bytes of a tile, about


def emit(op: Op, target: Target) -> KernelCode:
    """Tiles are runs of rows: each is copied, then the window's rows among them are written."""
    frame, emitter = frame_of(op, target)
    f, scopes = frame.function, frame.scopes
    source, update, *starts = op.operands
    result = frame.outputs[0]
    if not source.tensor.size:
        return frame.finish(0, 0.0)
    split, per = _split(source.tensor)
    rows, row_bytes = math.prod(source.dims[:split]), _bytes_of_row(source.tensor, split)
    tiles = -(-rows // per)
    with scopes.branch(f.compare("slt", frame.begin, frame.end)):
        low, high = f.mul(frame.begin, per), f.min(f.mul(frame.end, per), rows)
        begin, end = f.mul(low, row_bytes), f.mul(high, row_bytes)
        copy_unless_same(f, scopes, result, frame.pointers[0], end, begin)
        if update.tensor.size:
            emitter.base = scopes.depth
            offsets = [
                emitter.clamped(start, (), size - window, 1, None)
                for start, size, window in zip(starts, source.dims, update.dims, strict=True)
            ]
            with nest(scopes, update.dims[:split]) as outer, ExitStack() as stack:
                if split:
                    place = [at + offset for at, offset in zip(outer, offsets, strict=False)]
                    row = emitter.indexer.scalar(linear(place, source.dims[:split]))
                    mine = f.land(f.compare("sge", row, low), f.compare("slt", row, high))
                    stack.enter_context(scopes.branch(mine))
                _window(frame, emitter, op, outer, offsets)
    return frame.finish(tiles, 0.0, parallel=split > 0)


@estimating()
def _split(kind: TensorType) -> tuple[int, int]:
    """How many leading dims number the rows, and how many rows a tile has; none: there is one."""
    wanted = int(kind.bytes // PIECE)
    for split in range(1, kind.rank):
        rows = int(math.prod(kind.dims[:split]))
        if rows >= wanted > 1:
            return split, -(-rows // wanted)
    return 0, 1


def _bytes_of_row(kind: TensorType, split: int) -> int:
    return kind.with_dims(kind.dims[split:]).bytes


def _window(
    frame: Frame,
    emitter: ElementEmitter,
    op: Op,
    outer: Sequence[Affine],
    offsets: Sequence[Affine],
) -> None:
    """Writes the update's elements at those outer indices."""
    source, update = op.operands[:2]
    inner = update.dims[len(outer) :] or (1,)
    width = fitting(lanes_for_types(frame.target, [update.element]), inner[-1])
    with nest(frame.scopes, inner[:-1]) as middle:
        for j, lanes, _, mask in steps(
            frame.scopes, frame.target, 0, inner[-1], inner[-1], width, 1
        ):
            at = (*outer, *middle, j)[: update.rank]
            register = emitter.value(update, at, lanes, mask)
            place = tuple(a + b for a, b in zip(at, offsets, strict=True))
            where = linear(place, source.dims)
            emitter.store(frame.outputs[0], register, update.element, where, lanes, mask)


def copies(op: Op, target: Target) -> KernelCode:
    """Every operand, unchanged."""
    frame, _ = frame_of(op, target)
    f, scopes = frame.function, frame.scopes
    with scopes.branch(f.compare("slt", frame.begin, frame.end)):
        for value, source, result in zip(op.operands, frame.pointers, frame.outputs, strict=True):
            copy_unless_same(f, scopes, result, source, value.tensor.bytes)
    return frame.finish(1, 0.0, parallel=False)
