"""Vectors over F2 as integers, one bit a coordinate: spans, solutions, intersections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Span:
    """The span of vectors, with how each member is a sum of those that were added."""

    def __init__(self, vectors: Iterable[int] = ()) -> None:
        self._pivots: dict[int, tuple[int, int]] = {}  # highest bit -> (vector, sum of which)
        self._count = 0
        for vector in vectors:
            self.add(vector)

    def _reduce(self, vector: int) -> tuple[int, int]:
        which = 0
        while vector:
            pivot = self._pivots.get(vector.bit_length())
            if pivot is None:
                break
            vector ^= pivot[0]
            which ^= pivot[1]
        return vector, which

    def add(self, vector: int) -> bool:
        """Whether `vector` was outside; it is inside from now on."""
        rest, which = self._reduce(vector)
        which ^= 1 << self._count
        self._count += 1
        if rest:
            self._pivots[rest.bit_length()] = (rest, which)
        return rest != 0

    def __contains__(self, vector: int) -> bool:
        return self._reduce(vector)[0] == 0

    def solve(self, vector: int) -> int | None:
        """Bits that say which added vectors sum to `vector` (earlier ones first), or None."""
        rest, which = self._reduce(vector)
        return None if rest else which

    @property
    def rank(self) -> int:
        return len(self._pivots)


def combine(vectors: Sequence[int], which: int) -> int:
    """The sum of those vectors whose bit in `which` is set."""
    total = 0
    for index, vector in enumerate(vectors):
        if which >> index & 1:
            total ^= vector
    return total


def kernel(images: Sequence[int]) -> list[int]:
    """A basis of the inputs that a map sends to zero; `images` are those of the unit vectors."""
    span, found = Span(), []
    for index, image in enumerate(images):
        which = span.solve(image)
        if which is not None:
            found.append(which ^ 1 << index)
        span.add(image)
    return found


def intersection(left: Sequence[int], right: Sequence[int]) -> list[int]:
    """A basis of span(left) & span(right)."""
    left = independent(left)
    both = [*left, *independent(right)]
    return independent(combine(left, which) for which in kernel(both))


def independent(vectors: Iterable[int], modulo: Iterable[int] = ()) -> list[int]:
    """Those of `vectors` that are outside the span of `modulo` and of the ones before them."""
    span = Span(modulo)
    return [vector for vector in vectors if span.add(vector)]


def log2(size: int) -> int:
    """The exponent of a power of two."""
    if size < 1 or size & (size - 1):
        raise ValueError(f"{size} is no power of two")
    return size.bit_length() - 1
