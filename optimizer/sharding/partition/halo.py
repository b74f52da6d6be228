"""Which interval of an operand's dims each device reads, and who sends it.

A dim of size d that is cut into p parts has blocks of c = ceil(d / p). An operation whose factor is
a permutation reads another interval: a halo around the block, a shifted, strided or mirrored one.
`PartitionedDim` says for each part which it is; `transfers_of` makes boxes of the lines of all
dims, and nothing is sent that the reader holds already, that lies beyond the tensor or that nobody
reads.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from ....hlo.ops.exchange import Transfer
from ....hlo.sharding import Axis, Mesh

Axes = tuple[Axis, ...]


class HaloPiece(NamedTuple):
    """`size` elements of the block of part `source`, from `start`; `to`: where they come to lie."""

    source: int
    start: int
    to: int
    size: int


class PartitionedDim(NamedTuple):
    """One dim of `size` elements, cut by `axes`, and what the device of each part reads of it.

    Part k wants `length` elements, of which the first is starts[k] of the dim; it reads those in
    reads[k], which lie inside of the dim. `outside`: some part reads beyond the dim's ends, where
    a fill has to stand.
    """

    size: int
    axes: Axes
    block: int
    starts: tuple[int, ...]
    reads: tuple[tuple[int, int], ...]
    length: int
    outside: bool = False

    @property
    def stays(self) -> bool:
        """Whether every part wants its own block as it lies."""
        own = (number * self.block for number in range(len(self.starts)))
        return self.length == self.block and self.starts == tuple(own)

    @property
    def local(self) -> bool:
        """Whether every part reads of its own block alone."""
        return all(
            low >= high or (number * self.block <= low and high <= (number + 1) * self.block)
            for number, (low, high) in enumerate(self.reads)
        )

    def pieces(self, part: int) -> tuple[HaloPiece, ...]:
        """What a part reads, by the blocks in which it lies."""
        (low, high), start, block = self.reads[part], self.starts[part], self.block
        if low >= high:
            return ()
        found: list[HaloPiece] = []
        for source in range(low // block, (high - 1) // block + 1):
            first, last = max(low, source * block), min(high, (source + 1) * block)
            found.append(HaloPiece(source, first - source * block, first - start, last - first))
        return tuple(found)


def block_of(size: int, parts: int) -> int:
    """The size of the blocks of a dim."""
    return -(-size // parts)


def kept(mesh: Mesh, size: int, axes: Axes) -> PartitionedDim:
    """Each part reads its own block."""
    parts = mesh.parts(axes)
    block = block_of(size, parts)
    starts = tuple(number * block for number in range(parts))
    reads = tuple((min(start, size), min(start + block, size)) for start in starts)
    return PartitionedDim(size, axes, block, starts, reads, block)


def mirrored(mesh: Mesh, size: int, axes: Axes) -> PartitionedDim:
    """Each part reads the block that lies as far from the other end."""
    parts = mesh.parts(axes)
    block = block_of(size, parts)
    starts = tuple(size - (number + 1) * block for number in range(parts))
    reads = tuple((max(start, 0), max(start + block, 0)) for start in starts)
    return PartitionedDim(size, axes, block, starts, reads, block)


class DimWindow(NamedTuple):
    """Along one dim: window i, at its place t, reads element (i stride + t dilation - low) / base,
    where base divides it. `reverse`: place t stands where size - 1 - t would."""

    windows: int
    size: int = 1
    stride: int = 1
    low: int = 0
    dilation: int = 1
    base: int = 1
    reverse: bool = False


class Reading(NamedTuple):
    """The line of a window's dim, and how the local operation walks along it.

    phases[k]: where, counted in places between which the base puts gaps, the first window stands
    behind the first element. `reach`: the places that all windows of a part cover.
    """

    line: PartitionedDim
    phases: tuple[int, ...]
    reach: int

    @property
    def phase(self) -> int | None:
        """That of all parts; None where they differ."""
        return self.phases[0] if len({*self.phases}) == 1 else None

    def padding(self, base: int) -> tuple[int, int]:
        """The local operation's padding, with one phase, so that its windows are the part's."""
        assert self.phase is not None
        length = self.line.length
        spread = (length - 1) * base + 1 if length else 0
        return -self.phase, self.reach - spread + self.phase


def read_along(
    mesh: Mesh, size: int, window: DimWindow, along: Axes, inside: Axes = (), major: bool = True
) -> Reading:
    """What the windows of each part read of a dim of `size` elements.

    along: the axes that cut the windows; inside: those that cut the places in a window; the dim is
    cut by both. major: whether `along` comes first.
    """
    parts, places = mesh.parts(along), mesh.parts(inside)
    count, taps = block_of(window.windows, parts), block_of(window.size, places)
    axes = along + inside if major else inside + along
    base, step = window.base, window.dilation
    reach = (count - 1) * window.stride + (taps - 1) * step + 1
    firsts: list[int] = []
    spans: list[tuple[int, int] | None] = []
    ragged = taps * places != window.size
    for part in range(parts * places):
        number, place = divmod(part, places) if major else divmod(part, parts)[::-1]
        tap = window.size - (place + 1) * taps if window.reverse else place * taps
        first = number * count * window.stride + tap * step - window.low
        firsts.append(first)
        here = min(window.windows - number * count, count)
        tapped = min(window.size - place * taps, taps)
        if here <= 0 or tapped <= 0:
            spans.append(None)
            continue
        skipped = taps - tapped if window.reverse else 0
        last = first + (here - 1) * window.stride + (skipped + tapped - 1) * step
        spans.append((-(-(first + skipped * step) // base), last // base + 1))
    phases = tuple(first % base for first in firsts)
    if len({*phases}) == 1:  # begin at the first element that is read
        starts = tuple(-(-first // base) for first in firsts)
        phases = tuple(first - start * base for first, start in zip(firsts, starts, strict=True))
    else:
        starts = tuple(first // base for first in firsts)
    length = max((phase + reach - 1) // base + 1 for phase in phases)
    reads: list[tuple[int, int]] = []
    outside = ragged
    for span in spans:
        if span is None or span[0] >= span[1]:
            reads.append((0, 0))
            continue
        low, high = max(span[0], 0), min(span[1], size)
        outside |= (low, high) != span
        reads.append((low, high) if low < high else (0, 0))
    block = block_of(size, parts * places)
    line = PartitionedDim(size, axes, block, starts, tuple(reads), max(length, 0), outside)
    return Reading(line, phases, reach)


@functools.lru_cache(4096)
def transfers_of(mesh: Mesh, axes: tuple[Axes, ...], routes: Routes) -> tuple[Transfer, ...]:
    """The boxes that bring each device what it reads, those that it holds itself included.

    axes: of each dim. routes: for each dim and part the pieces that the part reads. What comes
    from another part comes from the device that differs in that part alone.
    """
    cut = [axis for dim in axes for axis in dim]
    ids = mesh.device_ids or range(mesh.devices)
    parts: dict[int, tuple[int, ...]] = {}
    rests: dict[int, tuple[int, ...]] = {}
    holders: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for place, device in enumerate(ids):
        at = mesh.coordinates(place)
        parts[device] = tuple(mesh.index(dim, at) for dim in axes)
        for axis in cut:  # what remains are the coordinates that no dim is cut by
            inner = mesh.size(Axis(axis.name)) // mesh.bounds(axis)[1]
            at[axis.name] -= at[axis.name] // inner % mesh.size(axis) * inner
        rests[device] = tuple(at.values())
        holders[parts[device], rests[device]] = device
    found: list[Transfer] = []
    for device in range(mesh.devices):
        chosen = (route[part] for route, part in zip(routes, parts[device], strict=True))
        for box in itertools.product(*chosen):
            source = holders[tuple(piece.source for piece in box), rests[device]]
            starts = tuple(piece.start for piece in box)
            to = tuple(piece.to for piece in box)
            found.append(Transfer(source, device, starts, to, tuple(piece.size for piece in box)))
    return tuple(found)


Routes = tuple[tuple[tuple[HaloPiece, ...], ...], ...]  # for each dim, for each part


def routes_of(lines: Sequence[PartitionedDim]) -> Routes:
    """The pieces of each line's parts."""
    return tuple(tuple(map(line.pieces, range(len(line.starts)))) for line in lines)


def received(mesh: Mesh, axes: tuple[Axes, ...], routes: Routes, itemsize: int) -> float:
    """Bytes that come to a device from others, mean over the devices."""
    boxes = transfers_of(mesh, axes, routes)
    moved = sum(math.prod(box.sizes) for box in boxes if box.source != box.target)
    return moved * itemsize / mesh.devices
