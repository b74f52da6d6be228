"""`loop` fusions: every element of the roots by itself, a few neighbours per thread.

The index space is cut into boxes at the seams of concatenations and paddings; blocks of threads
divide the boxes among them. A thread computes `copies` vectors of `width` neighbours, a block's
width apart, so that enough bytes are in flight; all are read before the first is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from ....hlo.deciding import at_hint, common_divisor, surely_at_most, surely_below, surely_divides
from ....hlo.graph import Region
from ....optimizer.windows import NONE, Windows
from ... import llvm
from ...llvm.elements import Register
from ...llvm.index import Affine, delinear, linear
from ...plain.boxes import IndexBox, boxes, crossing
from ...plain.frame import computable, cost
from ..atoms import ACCESS_BYTES
from ..frame import blocks
from ..launch import KernelCode
from ..target import NvidiaTarget
from . import transpose
from .head import FusionEntry, FusionKernel, nothing, unaligned
from .threads import ThreadEmitter, lanes_axis

FLIGHT = 64  # bytes that a thread should have asked for before it waits
WIDEST = 64  # bytes of one operand in a thread's registers
HEAVY = 16.0  # instructions per element, above which arithmetic hides the latency of memory
SMALL = 1 << 16  # elements, below which blocks are small


@dataclass(frozen=True)
class LoopCut:
    """What a thread computes: `copies` vectors of `width` elements."""

    width: int
    copies: int


def refusal(region: Region, windows: Windows = NONE) -> str:
    """Why a `loop` fusion's region has no kernel here, "" if it has one."""
    if any(op.name == "reduce" for op in region.ops):
        return "a reduction among elementwise operations"
    if any(root.dims != region.results[0].dims for root in region.results):
        return "results of several shapes"
    if not computable(region):
        return "an operation that is not computed element by element"
    return unaligned(windows)


def emit(region: Region, target: NvidiaTarget, flops: float, windows: Windows = NONE) -> KernelCode:
    """The kernel of a `loop` fusion's region."""
    if not region.results[0].tensor.size:
        return nothing(region, target, flops)
    kernel = FusionKernel(region, target, windows)
    part = kernel.entry("loop", 128 if at_hint(region.results[0].tensor.size) <= SMALL else 256)
    emitter = part.emitter()
    parts = [_LoopBox(part, emitter, box) for box in boxes(region)]
    first = 0
    for one in parts:
        f = part.function
        block = f.sub(part.block, first)
        with ExitStack() as stack:
            if len(parts) > 1 or not surely_at_most(1, one.size):
                inside = f.compare("ult", block, one.blocks)
                stack.enter_context(part.scopes.branch(inside))
            one.emit(block)
        first += one.blocks
    part.finish(blocks(first, 1))
    return kernel.finish(flops)


def streams(region: Region, box: IndexBox) -> tuple[list[int], list[int]]:
    """Bytes per element of the arguments, and of the results, that neighbours read and write side
    by side."""
    along = next((d for d in reversed(range(len(box.sizes))) if box.sizes[d] != 1), None)
    read: dict[tuple[str, tuple[int, ...], int], int] = {}
    for access in box.found.loads:
        if access.plain and along is not None and access.row[along] == 1:
            number = int(access.pointer.removeprefix("%argument"))
            read[access.pointer, access.row, access.constant] = region.arguments[
                number
            ].element.itemsize
    return list(read.values()), [root.element.itemsize for root in region.results]


def choose(region: Region, box: IndexBox, target: NvidiaTarget) -> LoopCut:
    """How many neighbours and vectors a thread takes."""
    count = at_hint(math.prod(box.sizes))
    read, written = streams(region, box)
    heavy = cost(region)
    narrow, wide = min(read + written), max(read + written)
    width = max(1, min(ACCESS_BYTES // narrow, WIDEST // wide, 16))
    if heavy > HEAVY:
        width = min(width, max(1, ACCESS_BYTES // wide))
    busy = target.architecture.multiprocessors * 512  # threads
    while width > 1 and count < width * busy:
        width //= 2
    width = min(width, alignment(region, box, width))
    asked = width * sum(read)
    copies = 1
    while copies < 4 and 2 * copies * asked <= FLIGHT and heavy <= HEAVY:
        copies *= 2
    while copies > 1 and count < 2 * copies * width * busy:
        copies //= 2
    return LoopCut(width, copies)


def alignment(region: Region, box: IndexBox, width: int) -> int:
    """The widest vectors, up to `width`, that are worth it: their elements lie side by side in
    most of what is read and written."""
    inner = box.extents()[-1]
    dims = region.results[0].dims
    if box.sizes == tuple(dims):
        if surely_divides(width, inner) or len(box.groups) == 1:
            return width
        # Vectors may go on in the next row: fine for what runs through all dims as one.
        flat = tuple(math.prod(dims[d + 1 :]) if dims[d] != 1 else 0 for d in range(len(dims)))
        through = sum(root.element.itemsize for root in region.results)
        other = 0
        for access in box.found.loads:
            number = int(access.pointer.removeprefix("%argument"))
            size = region.arguments[number].element.itemsize
            row = tuple(a if d != 1 else 0 for a, d in zip(access.row, dims, strict=True))
            if access.plain and row == flat:
                through += size
            elif any(row) or not access.plain:
                other += size
        if through >= other:
            return width
        return common_divisor(inner, width)
    start = sum(low * math.prod(dims[d + 1 :]) for d, low in enumerate(box.starts))
    step = common_divisor(inner, width, start)
    for group in box.groups[:-1]:
        last = group[-1]
        step = common_divisor(step, math.prod(dims[last + 1 :]))
    return step & -step


class _LoopBox:
    """One box: the blocks that compute it."""

    def __init__(self, part: FusionEntry, emitter: ThreadEmitter, box: IndexBox) -> None:
        self.part, self.emitter, self.box = part, emitter, box
        self.region = part.region
        self.size = math.prod(box.sizes)
        self.across = None
        if self.size:
            self.across = crossing(self.region, box.groups, box.sizes, box.found)
        self.cut = choose(self.region, box, part.kernel.target)
        self.span = part.threads * self.cut.width * self.cut.copies
        if self.across is not None:
            self.tiles = transpose.Tiles(part, box, self.across)
            self.blocks = self.tiles.blocks
        else:
            self.blocks = -(-self.size // self.span)

    def emit(self, block: llvm.Value) -> None:
        if self.across is not None:
            self.tiles.emit(block)
            return
        f, scopes = self.part.function, self.part.scopes
        width, size = self.cut.width, self.size
        kind = "i32" if surely_below(size + self.span, 2**31) else "i64"
        block = f.cast("zext", block, kind)
        thread = f.cast("zext", self.part.thread, kind)
        first = f.add(f.mul(block, self.span), f.mul(thread, width))
        full = size // self.span
        with ExitStack() as stack:
            if full and full != self.blocks:
                branch = scopes.branch(f.compare("ult", block, full))
                stack.enter_context(branch)
            if full:
                self.straight(first)
        if full == self.blocks:
            return
        with ExitStack() as stack:
            if full:
                stack.enter_context(scopes.branch(f.compare("uge", block, full)))
            self.ragged(first, thread, kind)

    def straight(self, first: llvm.Value) -> None:
        """All of a thread's vectors, which lie inside."""
        step = self.part.threads * self.cut.width
        at = lanes_axis(first, self.size, self.cut.width, self.part.scopes.depth, self.cut.width)
        places = [at + copy * step for copy in range(self.cut.copies)]
        self.vectors([place.within(0, self.size - 1) for place in places], self.cut.width)

    def ragged(self, first: llvm.Value, thread: llvm.Value, kind: str) -> None:
        """A block that is not full: vectors that are, then single elements."""
        f, scopes = self.part.function, self.part.scopes
        width, size = self.cut.width, self.size
        zero = llvm.constant(kind, 0)
        copies = llvm.constant(kind, self.cut.copies)
        with ExitStack() as stack:
            place = first
            if self.cut.copies > 1:
                loop = scopes.loop(zero, copies, extent=self.cut.copies)
                _, turn = stack.enter_context(loop)
                step = self.part.threads * width
                place = f.add(first, f.mul(turn.index, step))
            # A size that the call decides may be below the width.
            below = "ult" if isinstance(size, int) else "slt"
            with scopes.branch(f.compare(below, place, size - width + 1)):
                at = lanes_axis(place, size, width, scopes.depth, width)
                self.vectors([at], width)
        if rest := size % width:
            with scopes.branch(f.compare("ult", thread, rest)):
                place = f.add(thread, size - rest)
                self.vectors([lanes_axis(place, size, 1, scopes.depth, 1)], 1)

    def vectors(self, places: Sequence[Affine], width: int) -> None:
        """Computes the roots at some places of the box, and then stores them."""
        values: list[tuple[Register, Affine, int]] = []
        for place in places:
            at = self.index(place, width)
            for number, root in enumerate(self.region.results):
                register = self.emitter.value(root, at, width)
                values.append((register, linear(at, root.dims), number))
        for register, offset, number in values:
            element = self.region.results[number].element
            self.emitter.store(self.part.outputs[number], register, element, offset, width)

    def index(self, place: Affine, width: int) -> tuple[Affine, ...]:
        at = delinear(self.emitter.indexer, place, self.box.extents(), width)
        return self.box.index(self.emitter, at, width)
