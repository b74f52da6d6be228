"""Windows of memory in blocks of threads: rows by number, masked and combining stores."""

from __future__ import annotations

from collections.abc import Sequence

from ....hlo.graph import Op, Value
from ... import llvm
from ...llvm.elements import Register
from .. import windows
from ..windows import WindowAccess
from .atomics import combined
from .distributed_layout import DistributedLayout
from .emitter import Emitter
from .exchange import stored
from .scope import Tile
from .shared import EVERYTHING, MemoryPiece


class BlockAccess(WindowAccess):
    """One memory operation, whose rows along an axis may go by number."""

    def __init__(self, e: Emitter, op: Op, tile: Value, layout: DistributedLayout) -> None:
        super().__init__(e, op, tile, layout)
        self.piece = MemoryPiece(self.memory, 0, EVERYTHING)
        if op.definition.numbered:
            self.axis = axis = op.axis
            rows, self.numbers = layout.project((layout.dims[axis],), (axis,))
            self.rows = e.tile(op.operands[1 if op.name == "tile_gather" else 2], rows)

    def row(self, number: int) -> llvm.Value:
        row = self.rows[self.numbers[number]]
        assert isinstance(row, llvm.Value) and self.axis is not None
        return self.f.add(self.f.cast("sext", row, "i64"), self.starts[self.axis])


def load(e: Emitter, op: Op) -> None:
    """tile_load and tile_gather, in the layout of their first user."""
    if op in e.assignment.direct:
        return  # products copy it to shared memory
    layout = e.layout(op.result)
    e.bind(op.result, loaded(e, op, layout), layout)


def loaded(e: Emitter, op: Op, layout: DistributedLayout) -> Tile:
    """The window in a layout."""
    access = BlockAccess(e, op, op.result, layout)
    if access.memory in e.contended:
        e.hazards.read(access.piece)
    return windows.loaded(e, access)


def store(e: Emitter, op: Op) -> None:
    """tile_store and tile_scatter."""
    value = op.operands[1]
    layout = e.layout(value)
    masked = op.name == "tile_store" and op.masked
    if value.rank and op.name == "tile_store" and not (op.masked or op.combine):
        layout = stored(e.assignment, value, layout)
    tile = e.tile(value, layout)
    access = BlockAccess(e, op, value, layout)
    if access.memory in e.contended and not op.combine:
        e.hazards.write(access.piece)

    write(access, tile, e.tile(op.operands[-1], layout) if masked else ())


def write(
    access: WindowAccess, tile: Sequence[Register | None], masks: Sequence[Register | None]
) -> None:
    """Stores or combines a tile where its elements are inside and masks hold."""

    def combine(pointer: llvm.Value, register: Register) -> None:
        combined(access.f, pointer, register, access.element, access.op.combine)

    windows.write(access, tile, masks, combine if access.op.combine else None)
