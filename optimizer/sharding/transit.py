"""What it costs that a value comes to its use in another way than it was left: bytes that a device
receives, for many ways at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from ...hlo.sharding import Axis, Mesh, Sharding
from ...hlo.types import TensorType
from ..cost.assumed import BYTES_PER_COMMUNICATION
from .blocks import Atoms, BlockState, TensorBlocks, atoms_of
from .candidates import Lying, Ways

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
_Sizes = tuple[tuple[int, ...], int]  # dims, and bytes of an element

NEVER = 1e18
"""The price of what cannot be done: sums of it stay numbers."""


class Transit:
    """Prices on one mesh; equal questions are answered once."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._known: dict[tuple[_Sizes, Ways, Ways], Array] = {}
        self._pairs: dict[_Sizes, dict[Sharding, dict[Sharding, float]]] = {}
        self._atoms: dict[frozenset[Axis], Atoms] = {}
        self._states: dict[tuple[tuple[Axis, ...], Sharding], BlockState] = {}
        self._blocks: dict[tuple[Hashable, tuple[int, ...], int], TensorBlocks] = {}

    def prices(self, kind: TensorType, sources: Ways, targets: Ways) -> Array:
        """[source, target] -> bytes; NEVER where there is no way."""
        sizes = kind.dims, max(kind.element.bits // 8, 1)
        key = sizes, sources, targets
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._prices(sizes, sources.lyings, targets.lyings)
        return found

    def _prices(self, sizes: _Sizes, sources: Sequence[Lying], targets: Sequence[Lying]) -> Array:
        known = self._pairs.setdefault(sizes, {})
        found = np.zeros((len(sources), len(targets)))
        for row, source in enumerate(sources):
            if source is None:
                continue
            prices = known.setdefault(source, {})
            for column, target in enumerate(targets):
                if source is target or target is None:
                    continue
                price = prices.get(target)
                if price is None:
                    price = prices[target] = self._price(*sizes, source, target)
                found[row, column] = price
        return found

    def _price(
        self, dims: tuple[int, ...], itemsize: int, source: Sharding, target: Sharding
    ) -> float:
        fresh = any(axis not in source.unreduced for axis in target.unreduced)
        if _folds(source, target) and fresh:
            return NEVER
        if fresh:  # it becomes unreduced where it lies
            stays = source.dims == target.dims or not any(dim.axes for dim in source.dims)
            return BYTES_PER_COMMUNICATION if stays else NEVER
        atoms = self._atoms_of(source, target)
        key = atoms.axes, dims, itemsize
        blocks = self._blocks.get(key)
        if blocks is None:
            blocks = self._blocks[key] = atoms.blocks(dims, itemsize)
        ends = self._state(atoms, source), self._state(atoms, target)
        if _folds(source, target):
            return BYTES_PER_COMMUNICATION + _folded(blocks, *ends)
        return BYTES_PER_COMMUNICATION + float(blocks.missing(*ends).sum()) / blocks.devices

    def _atoms_of(self, *ends: Sharding) -> Atoms:
        """Ends with the same parts of axes have the same atoms, where these are disjoint."""
        key = frozenset(axis for end in ends for axis in end.axes if not axis.whole)
        found = self._atoms.get(key)
        if found is None:
            found = atoms_of(self.mesh, ends, prime=False)
            if found.disjoint:
                self._atoms[key] = found
        return found

    def _state(self, atoms: Atoms, sharding: Sharding) -> BlockState:
        key = atoms.axes, sharding
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = atoms.state(sharding)
        return found


def _folded(blocks: TensorBlocks, source: BlockState, target: BlockState) -> float:
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
