"""Layouts of tiles in registers: which thread holds which element in which of its registers.

A tile of any sizes lies in a `layouts.Layout` of powers of two (inputs register, lane, warp), whose
places beyond the tile hold nothing. Each bit of a layout here moves along one dim by a power of
two, or nowhere, so that an index is a part of the thread's plus a part of the register's.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

from ....hlo.graph import Op, Value
from .. import layouts
from ..layouts import Conversion, LinearLayout
from ..target import WARP

Basis = tuple[int, ...]
LANE_BITS = layouts.LANE_BITS


def log2(size: int) -> int:
    """Bits that count to `size`, rounded up."""
    return max(0, size - 1).bit_length()


def padded(dims: Sequence[int]) -> tuple[int, ...]:
    """The next powers of two."""
    return tuple(1 << log2(n) for n in dims)


@dataclass(frozen=True)
class DistributedLayout:
    """dims of the tile, and the layout of powers of two that it lies in."""

    dims: tuple[int, ...]
    linear: LinearLayout

    @cached_property
    def _hash(self) -> int:
        return hash((self.dims, self.linear))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def count(self) -> int:
        """Registers of a thread."""
        return self.linear.size("register")

    @cached_property
    def threads(self) -> tuple[Basis, ...]:
        """The step of each bit of a thread's number along each dim."""
        images = (*self.linear.bits("lane"), *self.linear.bits("warp"))
        return tuple(map(self.linear.split, images))

    @cached_property
    def places(self) -> tuple[Basis | None, ...]:
        """The register part of each register's index; None where it lies outside of the tile."""
        return tuple(
            place if all(map(operator.lt, place, self.dims)) else None
            for place in self.linear.registers
        )

    @cached_property
    def alive(self) -> tuple[int, ...]:
        """Registers that hold an element in some thread."""
        return tuple(number for number, place in enumerate(self.places) if place is not None)

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """One more than the greatest thread part, for each dim."""
        return tuple(1 + sum(basis[d] for basis in self.threads) for d in range(len(self.dims)))

    @cached_property
    def copies(self) -> int:
        """Bits of the thread's number that change nothing: those threads hold the same."""
        return copies(self.linear)

    def vector(self, most: int) -> int:
        """Neighbours along the last dim in registers that follow each other, at most so many."""
        width, bits = 1, self.linear.bits("register")
        while self.dims and 2 * width <= most and width in bits[log2(width) : log2(width) + 1]:
            width *= 2
        return width

    def project(
        self, dims: Sequence[int], kept: Sequence[int | None]
    ) -> tuple[DistributedLayout, tuple[int, ...]]:
        """The layout of a value whose dim d is dim kept[d] of this one, or has size 1 (None); and
        for each register of this one the register that holds its element there."""
        shape = [self.linear.shape[d] if d is not None else 1 for d in kept]
        layout, numbers = self.linear.mapped(shape, kept).condensed()
        return DistributedLayout(tuple(dims), layout), numbers

    def without(self, dimensions: Sequence[int]) -> tuple[DistributedLayout, tuple[int, ...]]:
        """The layout of what is left when dims are summed over."""
        kept = [d for d in range(len(self.dims)) if d not in dimensions]
        return self.project([self.dims[d] for d in kept], kept)

    def broadcast(
        self, dims: Sequence[int], mapped: Sequence[int]
    ) -> tuple[DistributedLayout, tuple[int, ...]]:
        """The layout of the operand of a broadcast whose result lies so."""
        return self.project(
            dims, [d if n != 1 else None for d, n in zip(mapped, dims, strict=True)]
        )

    def permuted(self, permutation: Sequence[int]) -> DistributedLayout:
        """The layout of transpose(x, permutation), where x lies so."""
        dims = tuple(self.dims[d] for d in permutation)
        return DistributedLayout(dims, self.linear.transpose(permutation))

    def reshaped(self, dims: Sequence[int]) -> DistributedLayout | None:
        """The layout of reshape(x, dims), where x lies so; None if it has none of this form."""
        if [n for n in dims if n != 1] == [n for n in self.dims if n != 1]:
            sizes = iter(
                size for n, size in zip(self.dims, self.linear.shape, strict=True) if n != 1
            )
            shape = tuple(next(sizes) if n != 1 else 1 for n in dims)
            alone = all(
                size == 1 for n, size in zip(self.dims, self.linear.shape, strict=True) if n == 1
            )
        else:
            shape = tuple(dims)
            alone = shape == padded(dims) and self.linear.shape == self.dims
        return DistributedLayout(tuple(dims), self.linear.reshape(shape)) if alone else None

    def operand(self, op: Op) -> tuple[DistributedLayout, Sequence[int]] | None:
        """See `evaluator.RegisterLayout`."""
        dims = op.operands[0].dims
        if op.name == "broadcast_in_dim":
            return self.broadcast(dims, op.broadcast_dimensions)
        if op.name == "transpose":
            source = self.permuted([op.permutation.index(d) for d in range(len(dims))])
        else:
            source = self.reshaped(dims)
        return (source, range(self.count)) if source is not None else None

    @cached_property
    def trimmed(self) -> LinearLayout:
        """The layout in the next powers of two of the tile's sizes; bits that lead beyond hold
        copies there."""
        return self.linear.resized(padded(self.dims))


@functools.lru_cache(maxsize=512)
def conversion(
    source: DistributedLayout, target: DistributedLayout, bits: int
) -> layouts.Conversion:
    """How the registers of `source` become those of `target`, which holds the same tile; elements
    have so many bits. Places beyond the tile get what is convenient."""
    both = zip(source.linear.shape, target.linear.shape, strict=True)
    shape = [max(sizes) for sizes in both]
    here, there = source.linear.resized(shape), target.linear.resized(shape)
    inputs = []
    for name, images in there.inputs:
        wanted = []
        for image, own in zip_longest(images, here.bits(name)[: len(images)]):
            inside = all(at < n for at, n in zip(there.split(image), target.dims, strict=True))
            wanted.append(image if inside or image == own else 0)
        inputs.append((name, tuple(wanted)))
    return layouts.convert(here, LinearLayout(tuple(inputs), there.outputs), bits)


def copies(layout: LinearLayout) -> int:
    """Bits of a thread's number that reach copies."""
    return layout.copies("lane") | layout.copies("warp") << LANE_BITS


def layout_of(
    dims: Sequence[int], layout: LinearLayout, kept: Sequence[int | None] | None = None
) -> DistributedLayout:
    """A tile in a layout of powers of two; `kept`: which dimension of the layout each dim is."""
    if kept is not None:
        layout = layout.mapped([layout.shape[d] if d is not None else 1 for d in kept], kept)
    names = ("register", "lane", "warp")
    inputs = tuple((name, layout.bits(name)) for name in names)
    return DistributedLayout(tuple(dims), LinearLayout(inputs, layout.outputs))


def blocked(dims: Sequence[int], vector: int, threads: int) -> DistributedLayout:
    """Neighbouring threads hold neighbouring vectors of the last dim; then the dims before."""
    return DistributedLayout(tuple(dims), layouts.blocked(padded(dims), threads // WARP, vector))


def patches(
    dims: Sequence[int], threads: int, across_lanes: Sequence[int] = ()
) -> DistributedLayout:
    """Each thread holds a patch of rows and columns: few operands for many products. Along the dims
    `across_lanes` neighbouring lanes have neighbours."""
    return DistributedLayout(
        tuple(dims), layouts.patches(padded(dims), threads // WARP, across_lanes)
    )


def way(value: Value, source: DistributedLayout, target: DistributedLayout) -> Conversion:
    """How a value gets from one layout to another: small elements share words."""
    element = value.element
    narrow = not element.is_complex and not element.is_bool
    return conversion(source, target, 8 * element.itemsize if narrow else 32)
