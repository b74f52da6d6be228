"""What it costs that a value comes to its use in another way than it was left: bytes that a device
receives, for many ways at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from ...hlo.sharding import Mesh, Sharding
from ...hlo.types import TensorType
from .blocks import Blocks, State, atoms_of
from .candidates import Lying
from .inner import CALL

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
_Key = tuple[TensorType, tuple[Lying, ...], tuple[Lying, ...]]
Sizes = tuple[tuple[int, ...], int]  # dims, and bytes of an element


class Transit:
    """Prices on one mesh; equal questions are answered once."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._known: dict[_Key, Array] = {}
        self._pairs: dict[Sizes, dict[tuple[Sharding, Sharding], float]] = {}
        self._blocks: dict[tuple[Hashable, tuple[int, ...], int], Blocks] = {}

    def prices(self, kind: TensorType, sources: Sequence[Lying], targets: Sequence[Lying]) -> Array:
        """[source, target] -> bytes; infinite where there is no way."""
        key = (kind, tuple(sources), tuple(targets))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._prices(kind, sources, targets)
        return found

    def _prices(
        self, kind: TensorType, sources: Sequence[Lying], targets: Sequence[Lying]
    ) -> Array:
        key = kind.dims, max(kind.element.bits // 8, 1)
        if key not in self._pairs:
            self._pairs[key] = {}
        known = self._pairs[key]
        found = np.zeros((len(sources), len(targets)))
        for row, source in enumerate(sources):
            for column, target in enumerate(targets):
                if source is target or source is None or target is None or source == target:
                    continue
                price = known.get((source, target))
                if price is None:
                    price = known[source, target] = self._price(*key, source, target)
                found[row, column] = price
        return found

    def _price(
        self, dims: tuple[int, ...], itemsize: int, source: Sharding, target: Sharding
    ) -> float:
        fresh = any(axis not in source.unreduced for axis in target.unreduced)
        if _folds(source, target) and fresh:
            return float("inf")
        if fresh:  # it becomes unreduced where it lies
            stays = source.dims == target.dims or not any(dim.axes for dim in source.dims)
            return CALL if stays else float("inf")
        atoms = atoms_of(self.mesh, (source, target), prime=False)
        key = atoms.axes, dims, itemsize
        blocks = self._blocks.get(key)
        if blocks is None:
            blocks = self._blocks[key] = atoms.blocks(dims, itemsize)
        ends = atoms.state(source, ()), atoms.state(target, ())
        if _folds(source, target):
            return CALL + _folded(blocks, *ends)
        return CALL + float(blocks.missing(*ends).sum()) / blocks.devices


def _folded(blocks: Blocks, source: State, target: State) -> float:
    """Bytes where values are folded: each device gets all terms of what it needs, or each folds a
    part of its block, along any dim, which then goes where it has to be."""
    terms = blocks.folded(source, target)
    count = blocks.parts(terms)
    found = float(blocks.missing(source, target).mean())
    scattered = blocks.bytes(source) * (count - 1) / count
    for dim, atoms in enumerate(source.dims):
        if blocks.block(dim, atoms, source.grain(dim)) % count == 0:
            left = tuple(atom for atom in source.pending if atom not in terms)
            between = source.cut({dim: (*atoms, *terms)}, left)
            found = min(found, scattered + float(blocks.missing(between, target).mean()))
    return found


def _folds(source: Sharding, target: Sharding) -> bool:
    return any(axis not in target.unreduced for axis in source.unreduced)
