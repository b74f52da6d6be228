"""What it costs that a value comes to its use in another way than it was left: bytes that a device
receives, for many ways at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...hlo.sharding import Mesh, Sharding
from ...hlo.types import TensorType
from .blocks import Blocks, State, atoms_of
from .candidates import Lying

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
_Key = tuple[TensorType, tuple[Lying, ...], tuple[Lying, ...]]

CALL = 4096.0
"""What each reshard costs beside its bytes, in bytes: of two ways equal in these, the shorter."""


class Transit:
    """Prices on one mesh; equal questions are answered once."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._known: dict[_Key, Array] = {}

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
        given = [lying for lying in (*sources, *targets) if lying is not None]
        atoms = atoms_of(self.mesh, tuple(dict.fromkeys(given)), prime=False)
        blocks = atoms.blocks(kind.dims, max(kind.element.bits // 8, 1))
        states = {lying: atoms.state(lying, ()) for lying in given}
        found = np.zeros((len(sources), len(targets)))
        for row, source in enumerate(sources):
            for column, target in enumerate(targets):
                if source == target or source is None or target is None:
                    continue
                if _folds(source, target):
                    price = float("inf")
                    if set(target.unreduced) <= set(source.unreduced):
                        price = _folded(blocks, states[source], states[target])
                elif set(target.unreduced) <= set(source.unreduced):
                    price = float(blocks.missing(states[source], states[target]).mean())
                elif any(dim.axes for dim in source.dims) and source.dims != target.dims:
                    price = float("inf")  # it becomes unreduced where it lies
                else:
                    price = 0.0
                found[row, column] = price + CALL
        return found


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
