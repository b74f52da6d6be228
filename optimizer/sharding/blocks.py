"""Which block of a tensor each device holds, as numbers.

The axes of a mesh are cut into atoms: parts of axes that no sharding at hand cuts further. A device
has a coordinate on each. A `BlockState` says which atoms cut each dim; that is all that a search
needs. A dim of size d that is cut into p parts has blocks of ceil(d / p): the last are short or
empty. A dim with a grain g is d / g grains, and no block cuts one: what a dim that a reshape has
merged is, where only the major of its dims is cut (6 heads of 64, in 4 parts: blocks of 128).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...hlo.errors import UserError
from ...hlo.sharding import Axis, DimSharding, Mesh, Sharding

Array = np.ndarray[Any, Any]
Numbers = tuple[int, ...]  # of atoms, major to minor


class BlockState(NamedTuple):
    """Which atoms cut each dim, over which (ascending) the value is unreduced, and the grain of
    each dim; no grains: all are 1."""

    dims: tuple[Numbers, ...]
    pending: Numbers = ()
    grains: Numbers = ()

    def cut(self, changes: dict[int, Numbers], pending: Numbers | None = None) -> BlockState:
        """The state with other atoms on some dims."""
        dims = tuple(changes.get(number, atoms) for number, atoms in enumerate(self.dims))
        return BlockState(dims, self.pending if pending is None else pending, self.grains)

    def alike(self, other: BlockState, dim: int) -> Numbers:
        """The atoms with which both states begin to cut that dim; none where grains differ."""
        if self.grain(dim) != other.grain(dim):
            return ()
        pairs = zip(self.dims[dim], other.dims[dim], strict=False)
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
        return tuple(atom for atom, _ in same)

    def grain(self, dim: int) -> int:
        return self.grains[dim] if self.grains else 1

    @property
    def atoms(self) -> Numbers:
        return (*itertools.chain.from_iterable(self.dims), *self.pending)


class TensorBlocks:
    """The blocks of one tensor: sizes[a] parts of atom a, digits[a] each device's place on it."""

    def __init__(
        self, sizes: Sequence[int], digits: Sequence[Array], dims: Sequence[int], itemsize: int
    ) -> None:
        self.sizes, self.digits = tuple(sizes), tuple(digits)
        self.dims, self.itemsize = tuple(dims), itemsize
        self.devices = len(digits[0]) if digits else 1
        self._parts: dict[Numbers, int] = {}
        self._sizes: dict[tuple[int, Numbers, int], int] = {}
        self._held: dict[tuple[tuple[Numbers, ...], Numbers], Array] = {}
        self._indices: dict[Numbers, Array] = {}
        self._spans: dict[tuple[int, Numbers, int], tuple[Array, Array]] = {}
        self._shared: dict[tuple[int, Numbers, int, Numbers, int], Array] = {}

    def parts(self, atoms: Numbers) -> int:
        """Into how many parts these atoms cut."""
        found = self._parts.get(atoms)
        if found is None:
            found = self._parts[atoms] = math.prod(self.sizes[atom] for atom in atoms)
        return found

    def total(self, state: BlockState) -> int:
        """Into how many blocks the state cuts the tensor."""
        return math.prod(map(self.parts, state.dims))

    def block(self, dim: int, atoms: Numbers, grain: int) -> int:
        """The size of a block of that dim, the largest one's."""
        found = self._sizes.get((dim, atoms, grain))
        if found is None:
            grains = self.dims[dim] // grain
            found = self._sizes[dim, atoms, grain] = -(-grains // self.parts(atoms)) * grain
        return found

    def local(self, state: BlockState) -> tuple[int, ...]:
        """The dims of what each device has memory for."""
        sizes = enumerate(state.dims)
        return tuple(self.block(dim, atoms, state.grain(dim)) for dim, atoms in sizes)

    def bytes(self, state: BlockState) -> int:
        return math.prod(self.local(state)) * self.itemsize

    def index(self, atoms: Numbers) -> Array:
        """Which of the parts that these atoms make each device holds."""
        found = self._indices.get(atoms)
        if found is None:
            found = np.zeros(self.devices, np.int64)
            for atom in atoms:
                found = found * self.sizes[atom] + self.digits[atom]
            self._indices[atoms] = found
        return found

    def span(self, dim: int, state: BlockState) -> tuple[Array, Array]:
        """Where each device's block of that dim begins, and where it ends."""
        atoms, grain = state.dims[dim], state.grain(dim)
        found = self._spans.get((dim, atoms, grain))
        if found is None:
            size, whole = self.block(dim, atoms, grain), self.dims[dim]
            start = self.index(atoms) * size
            found = np.minimum(start, whole), np.minimum(start + size, whole)
            self._spans[dim, atoms, grain] = found
        return found

    def held(self, state: BlockState) -> Array:
        """Elements of each device's block."""
        found = self._held.get((state.dims, state.grains))
        if found is None:
            found = np.ones(self.devices, np.int64)
            for dim in range(len(state.dims)):
                low, high = self.span(dim, state)
                found = found * (high - low)
            self._held[state.dims, state.grains] = found
        return found

    def shared(self, one: BlockState, other: BlockState) -> Array:
        """Elements that each device holds in both states."""
        found = np.ones(self.devices, np.int64)
        for dim, (left, right) in enumerate(zip(one.dims, other.dims, strict=True)):
            key = (dim, left, one.grain(dim), right, other.grain(dim))
            if key not in self._shared:
                (a, b), (c, d) = self.span(dim, one), self.span(dim, other)
                self._shared[key] = np.maximum(np.minimum(b, d) - np.maximum(a, c), 0)
            found = found * self._shared[key]
        return found

    def folded(self, before: BlockState, after: BlockState) -> Numbers:
        """The atoms over which `after` is reduced and `before` is not."""
        return tuple(atom for atom in before.pending if atom not in after.pending)

    def missing(self, before: BlockState, after: BlockState) -> Array:
        """Bytes that each device has to get where every box that it lacks is sent to it once, from
        each of the devices whose values it has to fold."""
        values = self.parts(self.folded(before, after))
        return (values * self.held(after) - self.shared(before, after)) * self.itemsize

    def messages(self, before: BlockState, after: BlockState) -> Array:
        """How many boxes come to each device from others."""
        count = np.ones(self.devices, np.int64)
        for dim, atoms in enumerate(before.dims):
            size = max(self.block(dim, atoms, before.grain(dim)), 1)
            low, high = self.span(dim, after)
            count = count * np.where(high > low, (high - 1) // size - low // size + 1, 0)
        own = self.shared(before, after) > 0
        return count * self.parts(self.folded(before, after)) - own

    def nested(self, dim: int, coarse: Numbers, fine: Numbers, grain: int) -> bool:
        """Whether blocks of `coarse`, which `fine` continues, are whole numbers of its blocks."""
        large, small = self.block(dim, coarse, grain), self.block(dim, fine, grain)
        count = self.parts(fine) // self.parts(coarse)
        return large == count * small or large >= self.dims[dim]

    def moving(self, before: BlockState, after: BlockState) -> Array:
        """Which devices have to get another block, where both states have blocks of one size."""
        same = np.ones(self.devices, bool)
        for left, right in zip(before.dims, after.dims, strict=True):
            if left != right:
                same &= self.index(left) == self.index(right)
        return ~same & (self.held(after) > 0)


@dataclass(frozen=True)
class Atoms:
    """The parts of a mesh's axes that some shardings are made of, numbered.

    `disjoint`: each is a coordinate of its own; where two shardings cut an axis in ways that have
    no common refinement, their axes themselves are the atoms, and overlap.
    """

    mesh: Mesh
    axes: tuple[Axis, ...]
    disjoint: bool

    def sizes(self) -> tuple[int, ...]:
        return tuple(map(self.mesh.size, self.axes))

    def of(self, axes: Iterable[Axis]) -> Numbers:
        """The atoms that these axes are made of."""
        found: list[int] = []
        for axis in self.mesh.merged(axes):
            if not self.disjoint:
                found.append(self.axes.index(axis))
                continue
            low, high = self.mesh.bounds(axis)
            for number, atom in enumerate(self.axes):
                start, end = self.mesh.bounds(atom)
                if atom.name == axis.name and low <= start and end <= high:
                    found.append(number)
        return tuple(found)

    def state(self, sharding: Sharding, grains: Numbers = ()) -> BlockState:
        pending = tuple(sorted(self.of(sharding.unreduced)))
        return BlockState(tuple(self.of(dim.axes) for dim in sharding.dims), pending, grains)

    def merged(self, numbers: Iterable[int]) -> tuple[Axis, ...]:
        return self.mesh.merged(self.axes[number] for number in numbers)

    def sharding(self, state: BlockState, like: Sharding) -> Sharding:
        """The state as a sharding, on the mesh and with the reduction of another."""
        dims = tuple(DimSharding(self.merged(atoms)) for atoms in state.dims)
        return Sharding(like.mesh, dims, (), self.merged(state.pending), like.reduction)

    def blocks(self, dims: Sequence[int], itemsize: int) -> TensorBlocks:
        """The blocks of a tensor, by the numbers of devices."""
        count = self.mesh.devices
        places = np.arange(count)
        if self.mesh.device_ids:
            places[list(self.mesh.device_ids)] = np.arange(count)
        digits = []
        for axis in self.axes:
            whole = self.mesh.size(Axis(axis.name))
            later = self.mesh.names[self.mesh.names.index(axis.name) + 1 :]
            inner = self.mesh.parts(map(Axis, later))
            below = whole // self.mesh.bounds(axis)[1]
            digits.append(places // inner % whole // below % self.mesh.size(axis))
        return TensorBlocks(self.sizes(), digits, dims, itemsize)


def atoms_of(mesh: Mesh, shardings: Sequence[Sharding], prime: bool) -> Atoms:
    """The atoms of some shardings; `prime`: cut further, so that each has a prime size."""
    lists = [axes for s in shardings for axes in (*(dim.axes for dim in s.dims), s.unreduced)]
    used = [axis for axes in lists for axis in mesh.merged(axes)]
    axes: list[Axis] = []
    for name in mesh.names:
        whole = mesh.size(Axis(name))
        bounds = {1, whole}.union(*(mesh.bounds(axis) for axis in used if axis.name == name))
        ordered = sorted(bounds)
        for low, high in itertools.pairwise(ordered):
            if high % low:
                own = dict.fromkeys(used)
                return Atoms(mesh, tuple(own), disjoint=False)
            for factor in _primes(high // low) if prime else [high // low]:
                axes.append(mesh.part(name, low, low * factor))
                low *= factor
    return Atoms(mesh, tuple(axes), disjoint=True)


def _primes(size: int) -> list[int]:
    found, factor = [], 2
    while size > 1:
        while size % factor:
            factor += 1
        found.append(factor)
        size //= factor
    return found


def require_legal(mesh: Mesh, dims: Sequence[int], source: Sharding, target: Sharding) -> None:
    """UserError for shardings that do not fit the mesh or tensor, or that no exchange connects."""
    if not mesh.static:
        raise UserError(f"the mesh {mesh} has axes of open sizes; give it sizes to plan with")
    for sharding in (source, target):
        sharding.check(mesh, len(dims))
    if source.mesh != target.mesh:
        raise UserError(f"a tensor goes from mesh @{source.mesh} to @{target.mesh}; name one mesh")
    if target.unreduced and (
        source.reduction != target.reduction
        or any(not _within(mesh, axis, source.unreduced) for axis in target.unreduced)
    ):
        raise UserError(
            f"{source} cannot become {target}: a value is unreduced only where an operation leaves "
            "it so; take the axes out of the target's `unreduced`"
        )


def require_grains(dims: Sequence[int], grains: Sequence[Numbers]) -> None:
    """UserError for grains that are none of these dims."""
    for found in grains:
        if found and (len(found) != len(dims) or min(found, default=1) < 1):
            raise UserError(f"grains {found} are not one number, at least 1, for each of {dims}")
        for size, grain in zip(dims, found, strict=False):
            if size % grain:
                raise UserError(f"a dimension of {size} has no grain of {grain}: it must divide it")


def _within(mesh: Mesh, axis: Axis, others: Iterable[Axis]) -> bool:
    low, high = mesh.bounds(axis)
    parts = (mesh.bounds(other) for other in others if other.name == axis.name)
    return any(start <= low and high <= end for start, end in parts)
