"""Layouts of tiles in registers: which thread holds which element in which of its registers.

Sizes are padded to powers of two, so an index is a vector of bits. Every bit of a register's number
and of a thread's number moves along one dim by a power of two, or nowhere: then several threads
hold the same element. `layouts` has the general maps (swizzles, shared memory); these are the ones
whose coordinates add up: thread part + register part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

Basis = tuple[int, ...]
LANE_BITS = 5


def log2(size: int) -> int:
    """Bits that count to `size`, rounded up."""
    return max(0, size - 1).bit_length()


@dataclass(frozen=True)
class Spread:
    """dims of the tile; the step of each bit of a register's number and of a thread's number."""

    dims: tuple[int, ...]
    registers: tuple[Basis, ...]
    threads: tuple[Basis, ...]

    @cached_property
    def count(self) -> int:
        """Registers of a thread."""
        return 1 << len(self.registers)

    @cached_property
    def places(self) -> tuple[tuple[int, ...] | None, ...]:
        """The register part of each register's index; None where it lies outside of the tile."""
        found: list[tuple[int, ...] | None] = []
        for number in range(self.count):
            place = [0] * len(self.dims)
            for bit, basis in enumerate(self.registers):
                if number >> bit & 1:
                    place = [a + b for a, b in zip(place, basis, strict=True)]
            inside = all(a < n for a, n in zip(place, self.dims, strict=True))
            found.append(tuple(place) if inside else None)
        return tuple(found)

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
        return sum(1 << bit for bit, basis in enumerate(self.threads) if not any(basis))

    def vector(self, most: int) -> int:
        """Neighbours along the last dim in registers that follow each other, at most so many."""
        if not self.dims:
            return 1
        width = 1
        for basis in self.registers:
            if width >= most or basis[-1] != width:
                break
            width *= 2
        return width

    def project(
        self, dims: Sequence[int], change: Callable[[Basis], Iterable[int]]
    ) -> tuple[Spread, tuple[int, ...]]:
        """The spread of a value whose index is `change` of this one's, and for each register of
        this one the register that holds its element there."""
        bases = [tuple(change(basis)) for basis in self.registers]
        kept = [bit for bit, basis in enumerate(bases) if any(basis)]
        # Two bits that move alike cannot both count: such a value has no spread of this form.
        registers = tuple(bases[bit] for bit in kept)
        threads = tuple(tuple(change(basis)) for basis in self.threads)
        numbers = tuple(
            sum((number >> bit & 1) << place for place, bit in enumerate(kept))
            for number in range(self.count)
        )
        return Spread(tuple(dims), registers, threads), numbers

    def without(self, dimensions: Sequence[int]) -> tuple[Spread, tuple[int, ...]]:
        """The spread of what is left when dims are summed over."""
        kept = [d for d in range(len(self.dims)) if d not in dimensions]
        return self.project([self.dims[d] for d in kept], lambda basis: (basis[d] for d in kept))

    def broadcast(
        self, dims: Sequence[int], mapped: Sequence[int]
    ) -> tuple[Spread, tuple[int, ...]]:
        """The spread of the operand of a broadcast whose result lies so."""
        return self.project(
            dims,
            lambda basis: (basis[d] if n != 1 else 0 for d, n in zip(mapped, dims, strict=True)),
        )

    def permuted(self, permutation: Sequence[int]) -> Spread:
        """The spread of transpose(x, permutation), where x lies so."""
        return Spread(
            tuple(self.dims[d] for d in permutation),
            tuple(tuple(basis[d] for d in permutation) for basis in self.registers),
            tuple(tuple(basis[d] for d in permutation) for basis in self.threads),
        )

    def reshaped(self, dims: Sequence[int]) -> Spread | None:
        """The spread of reshape(x, dims), where x lies so; None if it has none of this form."""
        if [n for n in dims if n != 1] == [n for n in self.dims if n != 1]:
            kept = [d for d, n in enumerate(self.dims) if n != 1]
            places = [d for d, n in enumerate(dims) if n != 1]

            def change(basis: Basis) -> Basis:
                moved = [0] * len(dims)
                for place, d in zip(places, kept, strict=True):
                    moved[place] = basis[d]
                return tuple(moved)

        elif all(n & (n - 1) == 0 for n in (*dims, *self.dims)):

            def change(basis: Basis) -> Basis:
                return _index(_flat(basis, self.dims), dims)

        else:
            return None
        moving = (*self.registers, *self.threads)
        if any(any(b >= n for b, n in zip(basis, self.dims, strict=True)) for basis in moving):
            return None
        return Spread(
            tuple(dims),
            tuple(map(change, self.registers)),
            tuple(map(change, self.threads)),
        )

    def renaming(self, target: Spread) -> tuple[int, ...] | None:
        """For each register of `target` the register here that holds its element in the same
        thread; None if some lie in other threads."""
        if self.threads != target.threads or self.dims != target.dims:
            return None
        place = {basis: bit for bit, basis in enumerate(self.registers)}
        if any(basis not in place for basis in target.registers):
            return None
        bits = [place[basis] for basis in target.registers]
        return tuple(
            sum((number >> bit & 1) << own for bit, own in enumerate(bits))
            for number in range(target.count)
        )


def _flat(index: Sequence[int], dims: Sequence[int]) -> int:
    total = 0
    for at, size in zip(index, dims, strict=True):
        total = total * size + at
    return total


def _index(place: int, dims: Sequence[int]) -> tuple[int, ...]:
    found = []
    for size in reversed(dims):
        found.append(place % size)
        place //= size
    return tuple(reversed(found))


class Cutter:
    """Deals out the bits of a tile's index, lowest first along each dim."""

    def __init__(self, dims: Sequence[int]) -> None:
        self.dims = tuple(dims)
        self.left = [log2(n) for n in dims]
        self.step = [1] * len(self.dims)

    def take(self, d: int, bits: int) -> list[Basis]:
        """Up to so many bits along dim d."""
        found = []
        for _ in range(min(bits, self.left[d])):
            found.append(step(self.dims, d, self.step[d]))
            self.step[d] *= 2
            self.left[d] -= 1
        return found

    def inner(self, bits: int) -> list[Basis]:
        """So many bits, along the last dims first."""
        found: list[Basis] = []
        for d in range(len(self.dims) - 1, -1, -1):
            found += self.take(d, bits - len(found))
        return found

    def rest(self) -> list[Basis]:
        return self.inner(sum(self.left))


def blocked(dims: Sequence[int], vector: int, threads: int) -> Spread:
    """Neighbouring threads hold neighbouring vectors of the last dim; then the dims before."""
    cutter, bits = Cutter(dims), log2(threads)
    spare = max(0, sum(cutter.left) - bits)
    registers = cutter.take(len(dims) - 1, min(log2(vector), spare)) if dims else []
    held = cutter.inner(bits)
    none = (0,) * len(dims)
    held += [none] * (bits - len(held))
    return Spread(tuple(dims), (*registers, *cutter.rest()), tuple(held))


def patches(dims: Sequence[int], threads: int) -> Spread:
    """Each thread holds a patch of rows and columns: few operands for many products."""
    cutter, bits = Cutter(dims), log2(threads)
    spare = max(0, sum(cutter.left) - bits)
    registers: list[Basis] = []
    for d, most in ((len(dims) - 1, 2), (len(dims) - 2, 3), (len(dims) - 1, 1)):
        if d >= 0:
            registers += cutter.take(d, min(most, spare - len(registers)))
    held = cutter.inner(bits)
    held += [(0,) * len(dims)] * (bits - len(held))
    return Spread(tuple(dims), (*registers, *cutter.rest()), tuple(held))


def accumulator(dims: Sequence[int], row: int, column: int, warps: tuple[int, int]) -> Spread:
    """The sums of matrix instructions of 16 rows and 8 columns: m16n8, for warps (down, across).

    Thread 4 i + j of a warp holds columns 2 j and 2 j + 1 of rows i and i + 8 (PTX ISA, "Matrix
    Fragments for mma.m16n8k16"). Dims `row` and `column` are padded to an instruction's.
    """
    row_bits, column_bits = max(4, log2(dims[row])), max(3, log2(dims[column]))
    down, across = log2(warps[0]), log2(warps[1])
    none = (0,) * len(dims)
    row_steps = [step(dims, row, 1 << bit) for bit in range(row_bits)]
    column_steps = [step(dims, column, 1 << bit) for bit in range(column_bits)]
    lanes = [column_steps[1], column_steps[2], *row_steps[:3]]
    own_rows = min(down, row_bits - 4)
    own_columns = min(across, column_bits - 3)
    warp_rows = row_steps[4 : 4 + own_rows] + [none] * (down - own_rows)
    high = column_steps[column_bits - own_columns :]
    warp_columns = high + [none] * (across - own_columns)
    registers = [column_steps[0], row_steps[3]]
    registers += column_steps[3 : column_bits - own_columns]
    registers += row_steps[4 + own_rows :]
    return Spread(tuple(dims), tuple(registers), (*lanes, *warp_rows, *warp_columns))


def fragment(
    dims: Sequence[int], row: int, depth: int, size: int, warps: tuple[int, int]
) -> Spread:
    """The left operand of matrix instructions in registers: 16 rows by 32 bytes along the sum, 4
    bytes in a register (PTX ISA, as above)."""
    packs = log2(4 // size)
    row_bits = max(4, log2(dims[row]))
    depth_bits = max(log2(32 // size), log2(dims[depth]))
    rows = [step(dims, row, 1 << bit) for bit in range(row_bits)]
    along = [step(dims, depth, 1 << bit) for bit in range(depth_bits)]
    down, across = log2(warps[0]), log2(warps[1])
    own = min(down, row_bits - 4)
    registers = [*along[:packs], rows[3], along[packs + 2], *along[packs + 3 :], *rows[4 + own :]]
    threads = [*along[packs : packs + 2], *rows[:3], *rows[4 : 4 + own]]
    threads += [(0,) * len(dims)] * (down - own + across)
    return Spread(tuple(dims), tuple(registers), tuple(threads))


def step(dims: Sequence[int], d: int, size: int) -> Basis:
    """A step along one dim."""
    return tuple(size if e == d else 0 for e in range(len(dims)))
