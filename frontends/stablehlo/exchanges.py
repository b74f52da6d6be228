"""`exchange` in StableHLO's words: rounds, in which a device sends one box at most and gets
one at most, by a `collective_permute`; where its boxes lie it looks up by its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ...hlo.build import Builder, build_region
from ...hlo.graph import Op, Region, Value
from ...hlo.ops.exchange import Transfer, transfers
from ...hlo.types import I32, unsharded


def exchange_region(op: Op, devices: int, channel: Callable[[], int]) -> Region:
    """The same result from operations of StableHLO.

    devices: how many run the program, as partitions where the exchange has a channel, else as
    replicas. channel: one that no operation has yet.
    """
    result = op.result.tensor.with_sharding(None)

    def built(b: Builder, value: Value) -> list[Value]:
        number = b.convert(b("partition_id" if op.channel_id else "replica_id"), I32)
        found = b.constant(0, result)
        for boxes in rounds(transfers(op)):
            found = _round(b, value, found, boxes, number, devices, channel, bool(op.channel_id))
        return [found]

    return build_region([unsharded(op.operands[0].type)], built)


def rounds(boxes: Sequence[Transfer]) -> Iterator[list[Transfer]]:
    """Boxes of one size each, in which no process is twice a source, or twice a target. What stays
    where it is has rounds of its own."""
    found: list[list[Transfer]] = []
    for box in boxes:
        if 0 in box.sizes:
            continue
        for others in found:
            first = others[0]
            alike = first.sizes == box.sizes
            alike &= (first.source == first.target) == (box.source == box.target)
            apart = all(o.source != box.source and o.target != box.target for o in others)
            if alike and apart:
                others.append(box)
                break
        else:
            found.append([box])
    yield from found


def _round(
    b: Builder, value: Value, found: Value, boxes: Sequence[Transfer], number: Value, devices: int,
    channel: Callable[[], int], partitions: bool,
) -> Value:  # fmt: skip
    sizes, rank = boxes[0].sizes, value.rank
    sources, targets = np.zeros((2, devices, rank), np.int32)
    inside = np.zeros((devices, 1), np.int32)
    for box in boxes:
        sources[box.source], targets[box.target] = box.source_start, box.target_start
        inside[box.target] = 1
    moved = b("dynamic_slice", value, *_looked_up(b, sources, number), slice_sizes=sizes)
    if boxes[0].source != boxes[0].target:
        pairs = tuple((box.source, box.target) for box in boxes)
        number_of_channel = channel() if partitions else 0
        moved = b(
            "collective_permute", moved, source_target_pairs=pairs, channel_id=number_of_channel
        )
    starts = _looked_up(b, targets, number)
    if not inside.all():
        before = b("dynamic_slice", found, *starts, slice_sizes=sizes)
        (flag,) = _looked_up(b, inside, number)
        here = b.compare("NE", flag, b.constant(np.int32(0)))
        moved = b("select", b.broadcast(here, sizes, ()), moved, before)
    return b("dynamic_update_slice", found, moved, *starts)


def _looked_up(b: Builder, table: np.ndarray, number: Value) -> list[Value]:
    """This device's row of a table, as i32 scalars."""
    if (table == table[0]).all():
        return [b.constant(np.int32(entry)) for entry in table[0]]
    return [
        b.reshape(b("dynamic_slice", b.constant(column.copy()), number, slice_sizes=(1,)), ())
        for column in table.T
    ]
