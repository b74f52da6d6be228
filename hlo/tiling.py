"""Runs tile functions in numpy, one tile after the other, and tells what they do.

`simulate` counts bytes and operations and checks what a compiled kernel cannot: two tiles that
store to one place (a race), reads of what nobody stored, places that nobody stores to.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import UserError
from .graph import Op, Region
from .offsets import EVERYTHING, Offsets

MEMORY_OPS = frozenset({"tile_load", "tile_gather", "tile_store", "tile_scatter"})
TILE_OPS = MEMORY_OPS | {"tile_bound", "tile_id", "tile_for"}
Array = np.ndarray[Any, Any]
# run(region, arrays, watch): the region's results; `watch` is asked before each operation, see
# `interpret.Interpreter`.
RunWatched = Callable[..., list[Any]]
_NOBODY = -1


@dataclass
class Counts:
    """What a kernel did. Bytes of memory count each access; compulsory ones each element once.

    tile_bytes: operands and results of operations on tiles, were each of them kept in scratch.
    faults: what is wrong, one sentence each, empty for a sound kernel.
    """

    tiles: int = 0
    loaded_bytes: int = 0
    stored_bytes: int = 0
    compulsory_bytes: int = 0
    tile_bytes: int = 0
    flops: float = 0.0
    outside: int = 0  # windows that reach outside their memory
    faults: list[str] = field(default_factory=list)


def window_parts(
    dims: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The part of memory that a window covers, and where in the tile that part stands."""
    memory, tile = [], []
    for dim, offset, size in zip(dims, map(int, offsets), sizes, strict=True):
        first = min(max(offset, 0), dim)
        last = max(first, min(offset + size, dim))
        memory.append(slice(first, last))
        tile.append(slice(first - offset, last - offset) if last > first else slice(0, 0))
    return tuple(memory), tuple(tile)


def run_kernel(op: Op, arrays: Sequence[Any], run: RunWatched) -> list[Array]:
    """The results of a kernel_call on numpy arrays; UserError where its tiles race."""
    results, counts = run_tiles(op, arrays, run)
    if counts.faults:
        raise UserError(f"kernel '{op.kernel}': " + "; ".join(counts.faults[:4]))
    return results


def run_tiles(
    op: Op, arrays: Sequence[Any], run: RunWatched, *, order: Sequence[int] | None = None
) -> tuple[list[Array], Counts]:
    """Results and counts of a kernel_call. `order` permutes the tiles (flat numbers)."""
    memory = _TileMemory(op, arrays)
    tiles = list(itertools.product(*map(range, op.grid)))
    for number in range(len(tiles)) if order is None else order:
        memory.begin(number, tiles[number])
        run(op.regions[0], memory.arrays, memory.watch)
    return memory.finish()


class _TileMemory:
    """Memory is shared by all tiles; `owners` holds for each element of a result who stored it."""

    def __init__(self, op: Op, arrays: Sequence[Any]) -> None:
        self.op, self.counts = op, Counts()
        self.tile: tuple[int, ...] = ()
        self.number = 0
        inputs = [np.asarray(array) for array in arrays]
        starts = op.starts or (-1,) * len(op.results)
        self.results = [
            inputs[start].copy() if start >= 0 else np.zeros(result.dims, result.tensor.dtype)
            for start, result in zip(starts, op.results, strict=True)
        ]
        self.arrays = [*inputs, *self.results]
        self.index = {value: i for i, value in enumerate(op.regions[0].arguments)}
        self.started = [start >= 0 for start in starts]
        self.owners = [np.full(result.shape, _NOBODY, np.int64) for result in self.results]
        self.shared = [np.zeros(result.shape, np.bool_) for result in self.results]
        self.touched = [np.zeros(array.shape, np.bool_) for array in self.arrays]
        self.faults: dict[str, None] = {}

    def begin(self, number: int, tile: tuple[int, ...]) -> None:
        """What is watched from now on is done by that tile."""
        self.number, self.tile = number, tile
        self.counts.tiles += 1

    def finish(self) -> tuple[list[Array], Counts]:
        for number, (owners, started) in enumerate(zip(self.owners, self.started, strict=True)):
            missing = int((owners == _NOBODY).sum())
            if missing and not started:
                self.faults[f"{missing} elements of result {number} are stored by no tile"] = None
        self.counts.compulsory_bytes = sum(
            int(touched.sum()) * array.dtype.itemsize
            for touched, array in zip(self.touched, self.arrays, strict=True)
        )
        self.counts.faults = list(self.faults)
        return self.results, self.counts

    def watch(self, op: Op, arrays: Sequence[Any]) -> Sequence[Any] | None:
        """Counts and checks what an operation does; gives the results of `tile_id`."""
        if op.name == "tile_id":
            if op.axis >= len(self.tile):
                raise UserError(
                    f"{op.place}tile_id: axis {op.axis} of a grid of {len(self.tile)} axes"
                )
            return (op.definition.evaluate(op, tile=self.tile),)
        if op.name in MEMORY_OPS:
            self.access(op, arrays)
        elif op.name not in TILE_OPS and not op.regions:
            self.counts.flops += op.definition.flops(op) if op.results[0].rank else 0
            self.counts.tile_bytes += sum(
                value.tensor.bytes for value in (*op.operands, *op.results) if value.rank
            )
        return None

    def access(self, op: Op, arrays: Sequence[Any]) -> None:
        """Count the access and check who else touched these elements."""
        place = self.index[op.operands[0]]
        stores = op.name in ("tile_store", "tile_scatter")
        elements, outside = _elements(op, arrays)
        self.counts.outside += outside
        self.touched[place][elements] = True
        size = self.touched[place][elements].size * self.arrays[place].dtype.itemsize
        if stores:
            self.counts.stored_bytes += size
            self.check_store(op, place - len(self.op.operands), elements)
        else:
            self.counts.loaded_bytes += size
            if place >= len(self.op.operands):
                self.check_load(op, place - len(self.op.operands), elements)

    def check_store(self, op: Op, result: int, elements: Any) -> None:
        owners, shared = self.owners[result], self.shared[result]
        old = owners[elements]
        foreign = (old != _NOBODY) & (old != self.number)
        combines = bool(op.combine)
        if np.any(foreign & ~(shared[elements] & combines)):
            self.faults[f"{op.place}two tiles store to one place of result {result}"] = None
        if combines and not self.started[result] and np.any(old == _NOBODY):
            self.faults[
                f"{op.place}result {result} is combined with what nobody stored; let it start "
                "as an input"
            ] = None
        owners[elements] = self.number
        shared[elements] = combines

    def check_load(self, op: Op, result: int, elements: Any) -> None:
        old = self.owners[result][elements]
        if np.any((old != _NOBODY) & (old != self.number)):
            self.faults[f"{op.place}a tile reads what another stores in result {result}"] = None
        if not self.started[result] and np.any(old == _NOBODY):
            self.faults[f"{op.place}result {result} is read before it is stored"] = None


def _elements(op: Op, arrays: Sequence[Any]) -> tuple[Any, bool]:
    """The index of the touched elements of the memory, and whether the window reaches outside."""
    memory = arrays[0]
    gathers = op.name in ("tile_gather", "tile_scatter")
    stores = op.name in ("tile_store", "tile_scatter")
    offsets = arrays[len(arrays) - len(op.offsets) :]
    mask = arrays[-1] if op.name == "tile_store" and op.masked else None
    offsets = offsets[: memory.ndim]
    sizes = arrays[1].shape if stores else op.sizes
    if gathers:
        rows = arrays[2 if stores else 1]
        axis = op.axis
        places = np.asarray(rows, np.int64) + int(offsets[axis])
        inside = (places >= 0) & (places < memory.shape[axis])
        source, _ = window_parts(memory.shape, offsets, sizes)
        ranges = [np.arange(part.start, part.stop) for part in source]
        ranges[axis] = places[inside]
        return np.ix_(*ranges), bool((~inside).any())
    source, target = window_parts(memory.shape, offsets, sizes)
    covered = all(part.stop - part.start == n for part, n in zip(source, sizes, strict=True))
    if mask is not None:
        held = np.zeros(memory.shape, np.bool_)
        held[source] = mask[target]
        return held, not covered
    return source, not covered


def trips(op: Op) -> Iterator[tuple[Op, int]]:
    """Every operation of a kernel's body with how often it runs in the whole grid.

    A loop whose bounds depend on the tile counts halfway between its fewest and its most turns, and
    once if nothing is known of them; both sides of a branch count.
    """
    tiles = 1
    for size in op.grid:
        tiles *= size
    yield from _trips(op.regions[0], tiles, Offsets(op))


def _trips(region: Region, count: int, offsets: Offsets) -> Iterator[tuple[Op, int]]:
    for op in region.ops:
        yield op, count
        inner = count
        if op.name == "tile_for":
            inner *= trip_count(op, offsets) or _halfway(op, offsets)
        if op.definition.pattern != "reduce":
            for body in op.regions:
                yield from _trips(body, inner, offsets)


def _halfway(loop: Op, offsets: Offsets) -> int:
    ranges = [offsets.range(offsets.of(bound)) for bound in loop.operands[:2]]
    if EVERYTHING in ranges:
        return 1
    lower, upper = (sum(ends) / 2 for ends in ranges)
    return max(1, math.ceil((upper - lower) / loop.step))


def trip_count(op: Op, offsets: Offsets) -> int | None:
    """How often a tile_for runs its body; None where its bounds are not the same in all tiles."""
    lower, upper = (offsets.of(value) for value in op.operands[:2])
    if lower.terms or upper.terms:
        return None
    return len(range(lower.constant, upper.constant, op.step))
