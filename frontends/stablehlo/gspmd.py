"""Programs per device in exports made for XLA's older partitioner.

There `shard_map` is a call between custom calls `SPMDFullToShardShape` and `SPMDShardToFullShape`,
with shardings as text (`{devices=[4,1,2]<=[8] last_tile_dim_replicate}`). `regroup` makes each such
call the `sdy.manual_computation` that it would be today, where it understands the shardings.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .. import tree

TO_SHARD, TO_FULL, SHARDING = "SPMDFullToShardShape", "SPMDShardToFullShape", "Sharding"

_NUMBERS = r"\[(\d+(?:,\d+)*)\]"
_TILED = re.compile(
    rf"\{{devices={_NUMBERS}(?:<={_NUMBERS}(?:T\((\d+(?:,\d+)*)\))?|(\d+(?:,\d+)*))"
    r"( last_tile_dim_replicate)?\}"
)
MAXIMUM_DEVICES = 4096


class Tiles(NamedTuple):
    """Devices 0, 1, 2, ... in an array of `source` dimensions, which are then in the order
    `permutation`, and then cut into `parts` per tensor dimension (a last one may replicate)."""

    parts: tuple[int, ...]
    source: tuple[int, ...]
    permutation: tuple[int, ...]
    replicates: bool

    @property
    def devices(self) -> int:
        return math.prod(self.source)


class _Cut(Exception):
    """An axis of the mesh has to be cut at this stride."""


def read_tiles(text: str) -> Tiles | None:
    """The tiles of `{devices=..}`; none (of no device) of `{replicated}`; None for another text."""
    if text == "{replicated}":
        return Tiles((), (), (), True)
    match = _TILED.fullmatch(text)
    if match is None:
        return None
    parts, source, order, listed = (_numbers(match[number]) for number in range(1, 5))
    if listed:
        if listed != tuple(range(len(listed))):
            return None  # devices in an order of their own
        source = (len(listed),)
    order = order or tuple(range(len(source)))
    count = math.prod(source)
    fits = count == math.prod(parts) and sorted(order) == list(range(len(source)))
    if not fits or not 0 < count <= MAXIMUM_DEVICES:
        return None
    return Tiles(parts, source, order, bool(match[5]))


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def common_mesh(all_tiles: Sequence[Tiles]) -> tuple[dict[str, Any], list[Any]] | None:
    """A mesh whose axes say all these tiles, and for each the axes that cut each dimension.

    None where there is no such mesh.
    """
    counts = {tiles.devices for tiles in all_tiles if tiles.parts}
    if len(counts) != 1:
        return None
    (count,) = counts
    strides = {1, count}
    for tiles in all_tiles:
        strides.update(itertools.accumulate(reversed(tiles.source), lambda a, b: a * b))
    while True:
        try:
            named = [_axes(tiles, sorted(strides)) for tiles in all_tiles]
            break
        except _Cut as cut:
            strides.add(cut.args[0])
        except ValueError:
            return None
    bounds = sorted(strides, reverse=True)
    axes = tuple(
        {"name": _name(low), "size": high // low} for high, low in itertools.pairwise(bounds)
    )
    return {"axes": axes}, named


def _name(stride: int) -> str:
    return f"axis{stride}"


def _axes(tiles: Tiles, strides: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """The axes of each part, major to minor; _Cut where an axis is too large for that."""
    if not tiles.parts:
        return ()
    ends = list(itertools.accumulate(reversed(tiles.source), lambda a, b: a * b))[::-1]
    pending: list[tuple[int, int]] = []  # (stride, size), in the order of the tiles
    for place in tiles.permutation:
        low, high = ends[place] // tiles.source[place], ends[place]
        inside = [s for s in strides if low <= s <= high]
        if any(b % a for a, b in itertools.pairwise(inside)):
            raise ValueError("the axes do not fit")
        pending += [(a, b // a) for a, b in itertools.pairwise(inside)][::-1]
    found: list[tuple[str, ...]] = []
    for part in tiles.parts:
        names: list[str] = []
        reached = 1
        while reached < part:
            stride, size = pending.pop(0)
            if reached * size > part:
                taken = part // reached
                if part % reached or size % taken:
                    raise ValueError("the axes do not fit")
                raise _Cut(stride * (size // taken))
            names.append(_name(stride))
            reached *= size
        found.append(tuple(names))
    return tuple(found[:-1] if tiles.replicates else found)


def regroup(module: tree.Operation) -> None:
    """Make every call between the custom calls a manual computation, in place."""
    regions = [region for op in tree.walk(module) for region in op.regions]
    if any(_target(op) == TO_SHARD for region in regions for op in region.operations):
        for region in regions:
            _regroup_region(region)


def _target(operation: tree.Operation | None) -> str:
    if operation is None or operation.name != "stablehlo.custom_call":
        return ""
    return str(operation.attributes.get("call_target_name", ""))


def _regroup_region(region: tree.Region) -> None:
    made = {value: op for op in region.operations for value in op.results}
    for call in [op for op in region.operations if op.name == "func.call"]:
        if any(_target(made.get(value)) == TO_SHARD for value in call.operands):
            _regroup_call(region, call, made)


def _regroup_call(
    region: tree.Region, call: tree.Operation, made: dict[tree.Value, tree.Operation]
) -> None:
    """Replace the call and what stands around it; leave it where that is not understood."""
    inputs: list[tuple[tree.Value, Tiles | None]] = []
    gone: list[tree.Operation] = [call]
    for value in call.operands:
        entry = made.get(value)
        if entry is None or _target(entry) != TO_SHARD:
            inputs.append((value, read_tiles("{replicated}")))
            continue
        (full,) = entry.operands
        inputs.append((full, _stated(made.get(full))))
        gone.append(entry)
    outputs: list[tuple[tree.Value, Tiles | None]] = []
    for value in call.results:
        chain = list(_chain(region, value))
        if not chain:
            outputs.append((tree.Value(value.type), read_tiles("{replicated}")))
            continue
        gone += chain
        outputs.append((chain[-1].results[0], _stated(chain[-1])))
    tiles = [found for _, found in (*inputs, *outputs)]
    known = [found for found in tiles if found is not None]
    mesh = common_mesh(known) if len(known) == len(tiles) else None
    if mesh is None:
        return
    ranks = [len(getattr(value.type, "shape", ())) for value, _ in (*inputs, *outputs)]
    axes = [_padded(found, rank) for found, rank in zip(mesh[1], ranks, strict=True)]
    parameters = [tree.Value(value.type) for value in call.operands]
    results = [tree.Value(value.type) for value in call.results]
    inner = tree.Operation(call.name, list(parameters), results, dict(call.attributes))
    inner.location = call.location
    body = tree.Region(parameters, [inner, tree.Operation("sdy.return", list(results))])
    facts = {
        "mesh": mesh[0],
        "manual_axes": tuple(axis["name"] for axis in mesh[0]["axes"]),
        "in_shardings": tuple(axes[: len(inputs)]),
        "out_shardings": tuple(axes[len(inputs) :]),
    }
    whole = tree.Operation(
        "sdy.manual_computation", [v for v, _ in inputs], [v for v, _ in outputs], facts, [body]
    )
    whole.location = call.location
    place = region.operations.index(call)
    region.operations[place] = whole
    region.operations[:] = [op for op in region.operations if op not in gone]


def _stated(operation: tree.Operation | None) -> Tiles | None:
    """The sharding that an annotation states; a value without one says nothing."""
    if operation is None or _target(operation) not in (SHARDING, TO_FULL):
        return None
    return read_tiles(str(operation.attributes.get("mhlo.sharding", "")))


def _chain(region: tree.Region, value: tree.Value) -> Iterator[tree.Operation]:
    """The annotations from a call's result to the custom call that makes it whole."""
    found: list[tree.Operation] = []
    while True:
        users = [op for op in region.operations if value in op.operands]
        if len(users) != 1 or _target(users[0]) not in (SHARDING, TO_FULL):
            return
        found.append(users[0])
        if _target(users[0]) == TO_FULL:
            yield from found
            return
        (value,) = users[0].results


def _padded(axes: Sequence[tuple[str, ...]], rank: int) -> tuple[tuple[str, ...], ...]:
    return (*axes, *[()] * (rank - len(axes)))
