"""Along which dims a tile function's windows walk with the grid, so that each part of these dims is
a kernel of fewer tiles.

An axis of the grid cuts dims where every window of their arrays begins at `step` times the tile's
number plus a constant, each tile stores into its own `step` elements alone, and the number goes
nowhere else. A window may reach beyond these elements: the halo.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .graph import Op, Region, Value
from .offsets import Offsets

_LOADS, _STORES = ("tile_load", "tile_gather"), ("tile_store", "tile_scatter")
_ARITHMETIC = frozenset(("add", "subtract", "multiply", "negate", "convert", "reshape"))


class GridWalk(NamedTuple):
    """One axis of the grid. places: memory's number (inputs, then results) -> the dim that it walks
    along, `step` elements a tile. halo: elements that windows read before and behind these; zeros
    stand beyond the array's ends."""

    axis: int
    step: int
    places: Mapping[int, int]
    halo: tuple[int, int]


def walks(kernel: Op) -> tuple[GridWalk, ...]:
    """Those of the grid's axes that cut dims.

    kernel: a `kernel_call`.
    """
    found = (_walk(kernel, axis) for axis in range(len(kernel.grid)))
    return tuple(walk for walk in found if walk is not None)


def contract_of(kernel: Op) -> str:
    """The contract that follows from the windows; "" where no dim can be cut.

    Tiles stay whole: parts are multiples of a tile. Of halos only tiles of one element are said.
    """
    arrays = kernel.regions[0].arguments
    names = [["_"] * memory.rank for memory in arrays]
    options: list[str] = []
    for walk in walks(kernel):
        if walk.step > 1 and any(walk.halo):
            continue
        name = f"tile{walk.axis}"
        for memory, dim in walk.places.items():
            names[memory][dim] = name
        if any(walk.halo):
            options.append(f"halo={{{name}: {walk.halo[0]} {walk.halo[1]}}}")
        if walk.step > 1:
            options.append(f"multiple={{{name}: {walk.step}}}")
    if all(name == "_" for dims in names for name in dims):
        return ""
    count = len(kernel.operands)
    sides = (", ".join(map(" ".join, side)) for side in (names[:count], names[count:]))
    return "; ".join((" -> ".join(sides), *options))


@dataclass
class _GridAxis:
    """What windows say of one axis of the grid."""

    step: int = 0
    places: dict[int, int] = field(default_factory=dict)
    low: int = 0
    high: int = 0
    filled: bool = False  # some load has a fill that is not zero

    def add(self, memory: int, dim: int, step: int, start: int, size: int, stores: bool) -> bool:
        """A window of `size` from `start` of its tile on; False where it fits no walk."""
        if step <= 0 or self.step not in (0, step) or self.places.setdefault(memory, dim) != dim:
            return False
        self.step = step
        if stores:
            return start >= 0 and start + size <= step
        self.low, self.high = max(self.low, -start), max(self.high, start + size - step)
        return True


def _walk(kernel: Op, axis: int) -> GridWalk | None:
    body, offsets = kernel.regions[0], Offsets(kernel)
    numbers = {
        op.results[0] for op in body.walk() if op.name == "tile_id" and op.axis == axis
    }  # fmt: skip
    if not numbers or not _only_places(body, set(numbers)):
        return None
    arrays = {memory: number for number, memory in enumerate(body.arguments)}
    found = _GridAxis()
    touched: list[tuple[int, int | None]] = []
    for op in body.walk():
        if op.name not in (*_LOADS, *_STORES):
            continue
        along: int | None = None
        for dim, place in enumerate(_offsets(op)):
            offset = offsets.of(place)
            steps = [step for variable, step in offset.terms if variable in numbers]
            if not steps:
                if _reaches(place, numbers):
                    return None
                continue
            rows = op.name in ("tile_gather", "tile_scatter") and op.axis == dim
            if along is not None or rows or len(offset.terms) > 1:
                return None
            along, stores = dim, op.name in _STORES
            size = op.operands[1].dims[dim] if stores else op.sizes[dim]
            if not found.add(arrays[op.operands[0]], dim, steps[0], offset.constant, size, stores):
                return None
            found.filled |= not stores and op.fill != 0.0
        touched.append((arrays[op.operands[0]], along))
    count = len(kernel.operands)
    for result, source in enumerate(kernel.starts):
        if source >= 0 and count + result in found.places:
            dim = found.places[count + result]
            if found.places.setdefault(source, dim) != dim:
                return None
    sizes = {body.arguments[m].dims[dim] for m, dim in found.places.items()}
    whole = len(sizes) == 1 and kernel.grid[axis] == -(-sizes.copy().pop() // found.step)
    stored = all(count + n in found.places for n in range(len(body.arguments) - count))
    if not whole or not stored or any(found.places.get(m) != dim for m, dim in touched):
        return None
    halo = found.low, found.high
    return None if found.filled and any(halo) else GridWalk(axis, found.step, found.places, halo)


def _offsets(op: Op) -> tuple[Value, ...]:
    """The offsets of a memory operation, one for each dim."""
    first = {"tile_load": 1, "tile_gather": 2, "tile_store": 2, "tile_scatter": 3}[op.name]
    return op.operands[first : first + op.operands[0].rank]


def _only_places(region: Region, reached: set[Value]) -> bool:
    """Whether nothing but offsets of windows comes of these values."""
    for op in region.ops:
        if op.name in (*_LOADS, *_STORES):
            places = set(_offsets(op))
            if any(value in reached and value not in places for value in op.operands):
                return False
        elif any(value in reached for value in op.operands):
            if op.name not in _ARITHMETIC or op.results[0].rank:
                return False
            reached.update(op.results)
        if not all(_only_places(body, reached) for body in op.regions):
            return False
    return not any(value in reached for value in region.results)


def _reaches(place: Value, numbers: set[Value]) -> bool:
    """Whether a place is made of one of these numbers."""
    if place in numbers:
        return True
    return place.op is not None and any(_reaches(v, numbers) for v in place.op.operands)
