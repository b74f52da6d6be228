"""Who sends which box to whom, and who keeps what.

A device takes what it holds itself from itself. Every other box comes from the nearest device that
has it: the one that is reached along links of the least seconds per byte, then along the fewest
axes; among equals, from the one that has sent the fewest bytes so far.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from ...hlo.ops.exchange import Transfer
from ...hlo.sharding import Mesh
from .blocks import BlockState, TensorBlocks
from .interconnect import Interconnect


def transfers(
    mesh: Mesh,
    blocks: TensorBlocks,
    before: BlockState,
    after: BlockState,
    interconnect: Interconnect,
) -> tuple[Transfer, ...]:
    """The boxes that make the blocks of `after` from those of `before`, by target.

    Where values are folded, starts in the target have one entry more, in front: the number of the
    value; starts in the source have a 0 there.
    """
    folded = blocks.folded(before, after)
    holders: dict[tuple[int, ...], list[int]] = {}
    indices = [blocks.index(atoms) for atoms in before.dims]
    values, kept = blocks.index(folded), blocks.index(after.pending)
    for device in range(blocks.devices):
        key = (int(values[device]), int(kept[device]), *(int(index[device]) for index in indices))
        holders.setdefault(key, []).append(device)
    chosen = _Senders(mesh, blocks.devices, interconnect)
    found: list[Transfer] = []
    for target in range(blocks.devices):
        for value in range(blocks.parts(folded)):
            for place, start, low, sizes in _boxes(blocks, before, after, target):
                having = holders[value, int(kept[target]), *place]
                source = chosen.sender(having, target, math.prod(sizes))
                to = tuple(a - b for a, b in zip(low, _start(blocks, after, target), strict=True))
                if folded:
                    start, to, sizes = (0, *start), (value, *to), (1, *sizes)
                found.append(Transfer(source, target, start, to, sizes))
    return tuple(found)


def _start(blocks: TensorBlocks, state: BlockState, device: int) -> tuple[int, ...]:
    spans = (blocks.span(dim, state)[0] for dim in range(len(state.dims)))
    return tuple(int(start[device]) for start in spans)


_Box = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _boxes(
    blocks: TensorBlocks, before: BlockState, after: BlockState, target: int
) -> Iterator[_Box]:
    """(block of `before`, start in it, start in the tensor, sizes) of each box of a device."""
    choices: list[list[tuple[int, int, int, int]]] = []
    for dim, atoms in enumerate(before.dims):
        size = blocks.block(dim, atoms, before.grain(dim))
        starts, stops = blocks.span(dim, after)
        low, high = int(starts[target]), int(stops[target])
        if low == high:
            return
        choices.append([])
        for number in range(low // size, (high - 1) // size + 1):
            start, stop = max(low, number * size), min(high, (number + 1) * size)
            choices[-1].append((number, start - number * size, start, stop - start))
    for box in itertools.product(*choices):
        place, start, low_, sizes = zip(*box, strict=True) if box else ((), (), (), ())
        yield place, start, low_, sizes


class _Senders:
    """Chooses who sends, and knows how much each has sent."""

    def __init__(self, mesh: Mesh, devices: int, interconnect: Interconnect) -> None:
        ids = mesh.device_ids or range(devices)
        self.coordinates = {device: mesh.coordinates(place) for place, device in enumerate(ids)}
        self.byte = {name: interconnect.link(name).byte for name in mesh.names}
        self.devices, self.sent = devices, [0] * devices

    def sender(self, having: list[int], target: int, size: int) -> int:
        if target in having:
            return target
        source = min(having, key=lambda device: self._far(device, target))
        self.sent[source] += size
        return source

    def _far(self, device: int, target: int) -> tuple[float, int, int, int]:
        here, there = self.coordinates[target], self.coordinates[device]
        along = [name for name, place in here.items() if there[name] != place]
        byte = max(self.byte[name] for name in along)
        return byte, len(along), self.sent[device], (device - target) % self.devices
