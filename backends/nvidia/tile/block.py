"""A block of threads under construction: its entry, its memory, and where each thread stands."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....hlo.graph import Op
from ... import llvm
from ...llvm import elements
from ...llvm.elements import Pair, Register
from ...llvm.index import Affine, LoopAxis, number, of_axis
from .. import layouts, raster
from ..frame import Entry, Parameter, Unit
from ..launch import KernelMemory
from ..layout_code import along, sum_of
from ..layouts import AddressTerm
from ..target import NvidiaTarget
from .distributed_layout import DistributedLayout
from .shared import ALIGNMENT, CHUNK, Arena, Hazards, PaddedTile


class KernelBlock:
    """The entry of one kernel_call; one block of threads for each place of the grid. `crowded`: a
    thread may have as many registers as there are, though fewer blocks run at once then. `places`:
    where operands and results lie, if not each in its own slot; `unit`: what the entry belongs to.
    """

    def __init__(
        self,
        kernel: Op,
        target: NvidiaTarget,
        threads: int,
        shares: bool,
        crowded: bool = False,
        places: Sequence[KernelMemory] | None = None,
        unit: Unit | None = None,
        order: raster.Raster | None = None,
    ) -> None:
        self.kernel, self.target, self.threads = kernel, target, threads
        region = kernel.regions[0]
        inputs = len(kernel.operands)
        self.unit = unit or Unit(target)
        slots = [KernelMemory(number) for number in range(len(region.arguments))]
        parameters = [
            Parameter(f"m{n}", place, readonly=n < inputs and not shares, unique=not shares)
            for n, place in enumerate(places or slots)
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
                one = f.compare("ult", self.scalar(index), layout.dims[d])
                total = one if total is None else f.land(total, one)
        return total

    def scalar(self, index: Affine) -> llvm.Value:
        """An index as an i64."""
        f = self.f
        total: llvm.Value = llvm.constant("i64", 0)
        for axis, factor in index.terms:
            total = f.add(total, f.mul(axis.value, factor))
        return f.add(total, index.constant)

    def both(self, a: llvm.Value | None, b: llvm.Value | None) -> llvm.Value | None:
        """a and b, where None is true."""
        if a is None or b is None:
            return a if b is None else b
        return self.f.land(a, b)

    # Elements in memory.

    def load(
        self, pointer: llvm.Value, element: object, count: int, aligned: bool
    ) -> list[Register]:
        """`count` neighbours from a pointer on, as registers."""
        f = self.f
        kind = elements.memory_type(f, element)
        parts = 2 if element.is_complex else 1  # type: ignore[attr-defined]
        total = count * parts
        size = max(1, llvm.bits_of(kind) // 8)
        raw: list[llvm.Value] = []
        width = total if aligned else parts
        while width * size > CHUNK:
            width //= 2
        for first in range(0, total, width):
            at = f.pointer(pointer, first, kind)
            one = f.load(llvm.vector(width, kind), at, align=width * size)
            raw += [f.extract(one, lane) for lane in range(width)] if width > 1 else [one]
        wide = [elements.widen(f, one, element) for one in raw]
        if parts == 1:
            return list(wide)
        return [Pair(*wide[n : n + 2]) for n in range(0, total, 2)]

    def store(
        self, pointer: llvm.Value, registers: Sequence[Register], element: object, aligned: bool
    ) -> None:
        """Neighbours to a pointer on."""
        f = self.f
        kind = elements.memory_type(f, element)
        raw: list[llvm.Value] = []
        for register in registers:
            parts = register if isinstance(register, Pair) else (register,)
            raw += [elements.narrow(f, part, element) for part in parts]
        size = max(1, llvm.bits_of(kind) // 8)
        width = len(raw) if aligned else len(raw) // len(registers)
        while width * size > CHUNK:
            width //= 2
        for first in range(0, len(raw), width):
            at = f.pointer(pointer, first, kind)
            f.store(f.joined(raw[first : first + width]), at, align=width * size)
