"""A block of threads under construction: its entry, its memory, and where each thread stands."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....hlo.graph import Op
from ... import llvm
from ...llvm.index import Affine, LoopAxis, number, of_axis
from .. import layouts, raster
from ..frame import Entry, Parameter, Unit
from ..launch import KernelMemory
from ..layout_code import along, as_i64, sum_of
from ..layouts import AddressTerm
from ..target import NvidiaTarget
from .distributed_layout import DistributedLayout
from .shared import ALIGNMENT, Arena, Hazards, PaddedTile


class KernelBlock:
    """The entry of one kernel_call; one block of threads for each place of the grid. `crowded`: a
    thread may have as many registers as there are, though fewer blocks run at once then."""

    def __init__(
        self,
        kernel: Op,
        target: NvidiaTarget,
        threads: int,
        shares: bool,
        crowded: bool = False,
        order: raster.Raster | None = None,
    ) -> None:
        self.kernel, self.target, self.threads = kernel, target, threads
        region = kernel.regions[0]
        inputs = len(kernel.operands)
        self.unit = Unit(target)
        parameters = [
            Parameter(f"m{n}", KernelMemory(n), n < inputs and not shares, not shares)
            for n in range(len(region.arguments))
        ]
        self.entry: Entry = self.unit.kernel(
            "tile", parameters, threads, minimum_blocks=int(crowded)
        )
        self.f = f = self.entry.function
        self.memory = dict(zip(region.arguments, self.entry.pointers, strict=True))
        self.arena = Arena()
        self.hazards = Hazards(self.entry)
        self.thread = self.entry.thread()
        self.ids = raster.places(f, self.entry.block(), kernel.grid, order)
        self._head = f.slot()
        self._parts: dict[tuple[int, ...], Affine] = {}
        self._owners: dict[int, llvm.Value] = {}

    def part(self, layout: DistributedLayout, d: int) -> Affine:
        """The thread's part of an element's index along dim d."""
        steps = tuple(basis[d] for basis in layout.threads)
        if not any(steps):
            return number(0)
        found = self._parts.get(steps)
        if found is None:
            with self.f.at(self._head):
                total = self.sum_of(along(layout.linear, d))
                wide = self.f.cast("zext", total, "i64")
            multiple = math.gcd(*steps)
            axis = LoopAxis(wide, layout.extents[d], depth=0, multiple=multiple)
            found = self._parts[steps] = of_axis(axis)
        return found

    def sum_of(self, terms: Sequence[AddressTerm], **inputs: llvm.Value) -> llvm.Value:
        """The sum of the terms of a linear map of this thread's lane and warp, i32."""
        return sum_of(self.f, terms, self.thread, self.threads, **inputs)

    def common_address(
        self, rows: PaddedTile, terms: Sequence[AddressTerm], **inputs: llvm.Value
    ) -> llvm.Value:
        """What all addresses of a thread in a tile in shared memory have in common, i32."""
        total = self.sum_of(terms, **inputs)
        return total if rows.stage is None else self.f.add(total, rows.stage)

    def place(
        self, rows: PaddedTile, common: llvm.Value, access: layouts.SharedAccess
    ) -> llvm.Value:
        """The address of one access in shared memory."""
        f = self.f
        assert rows.stage is None or access.xor < ALIGNMENT
        kind = "ptr addrspace(3)"
        base = f.emit(kind, f"getelementptr i8, {kind} @shared, {f.xor(common, access.xor)}")
        return f.emit(kind, f"getelementptr i8, {base}, i32 {rows.piece.start + access.add}")

    def index(self, layout: DistributedLayout, place: Sequence[int]) -> list[Affine]:
        """The index of the element that stands in the register at `place`."""
        return [self.part(layout, d) + at for d, at in enumerate(place)]

    def owner(self, copies: int) -> llvm.Value | None:
        """Whether this thread is the first of those whose numbers differ in the bits `copies`;
        None where there are none."""
        if not copies:
            return None
        found = self._owners.get(copies)
        if found is None:
            with self.f.at(self._head):
                found = self.f.compare("eq", self.f.land(self.thread, copies), 0)
            self._owners[copies] = found
        return found

    def inside(
        self,
        layout: DistributedLayout,
        place: Sequence[int],
        dimensions: Sequence[int] | None = None,
    ) -> llvm.Value | None:
        """Whether the element of a register lies in the tile (along some dims); None: always."""
        f = self.f
        total: llvm.Value | None = None
        for d in range(len(layout.dims)) if dimensions is None else dimensions:
            index = self.part(layout, d) + place[d]
            if index.high >= layout.dims[d]:
                one = f.compare("ult", as_i64(f, index), layout.dims[d])
                total = one if total is None else f.land(total, one)
        return total
