"""Windows of global memory copied to shared memory, asynchronously where the machine can."""

from __future__ import annotations

from ....hlo.errors import CompilerBug
from ... import llvm
from .. import layouts
from ..atoms import ACCESS_BYTES, CopyAtom, thread_copy
from ..frame import where
from ..target import WARP
from ..windows import WindowAccess
from .analysis import OperandSource, WindowLoad
from .distributed_layout import DistributedLayout, layout_of, log2
from .emitter import Emitter
from .operands import as_dims
from .shared import PaddedTile


def copy(e: Emitter, source: OperandSource, rows: PaddedTile, ahead: bool = False) -> None:
    """The window of a product's operand into rows of shared memory; what lies outside of memory or
    tile becomes 0. `ahead`: who reads it knows when it has arrived."""
    window = source.window
    assert window is not None
    with e.f.within(window.op):
        _copy(e, source, window, rows, ahead)


def _copy(
    e: Emitter, source: OperandSource, window: WindowLoad, rows: PaddedTile, ahead: bool
) -> None:
    f, size = e.f, rows.size
    copied = layouts.dealt(
        rows.layout.shape, e.block.threads // WARP, [(1, log2(ACCESS_BYTES // size))]
    )  # neighbouring threads copy neighbouring 16 bytes
    place = as_dims(rows.layout, source)
    layout = layout_of(source.origin.dims, copied, source.rows_and_columns)
    tile = _unmerged(layout, window)
    # Of a turn that is ahead from its index, in one step.
    starts = [e.sum(offset, "i64") for offset in window.offsets] if ahead else None
    access = WindowAccess(e, window.op, window.tile, tile, starts, window.strides)
    width = access.width
    plan = layouts.addresses(layout.linear, place, size, width * size)
    common = e.block.common_address(rows, plan.terms)
    atom = thread_copy(e.target.architecture, "global", "shared", width * size)
    owner = e.owner(layout)
    for step in plan.accesses:
        number = step.registers[0]
        target = e.block.place(rows, common, step)
        if layout.places[number] is None:
            _clear(f, target, width * size)
            continue
        held = access.inside(number)
        address = access.pointer(number)
        if held is not None:
            address = f.select(held, address, access.start)
        if atom is None:
            _copy_now(f, target, address, held, width, size)
            continue
        e.block.hazards.copies |= not ahead
        # Of threads that have the same elements one copies.
        with where(e.f, owner):
            copy_async(f, atom, target, address, held)


def _unmerged(layout: DistributedLayout, window: WindowLoad) -> DistributedLayout:
    """The same layout of the window's own dims."""
    found = layout if layout.dims == window.tile.dims else layout.reshaped(window.tile.dims)
    if found is None:
        raise CompilerBug(f"{layout.dims} of a window of {window.tile.dims}")
    return found


def copy_async(
    f: llvm.Function, atom: CopyAtom, target: llvm.Value, source: llvm.Value,
    held: llvm.Value | None,
) -> None:  # fmt: skip
    """cp.async; zeros where `held` does not hold."""
    there = f.emit("ptr addrspace(1)", f"addrspacecast {source} to ptr addrspace(1)")
    name = f"llvm.nvvm.{atom.instruction}.{atom.bytes}"
    if held is None:
        f.call(name, "void", target, there, declare=True)
    else:
        count = f.select(held, llvm.constant("i32", atom.bytes), 0)
        f.call(f"{name}.s", "void", target, there, count, declare=True)


def _copy_now(
    f: llvm.Function, target: llvm.Value, source: llvm.Value,
    held: llvm.Value | None, width: int, size: int,
) -> None:  # fmt: skip
    kind = f"i{8 * size}"
    vector = llvm.vector(width, kind)
    value = f.load(vector, source, align=width * size)
    if held is not None:
        value = f.select(held, value, llvm.constant(vector, 0))
    f.store(value, target, align=width * size)


def _clear(f: llvm.Function, target: llvm.Value, size: int) -> None:
    if size > 4:
        f.store(llvm.Value(f"<{size // 4} x i32>", "zeroinitializer"), target, align=size)
    else:
        f.store(llvm.constant(f"i{8 * size}", 0), target, align=size)
