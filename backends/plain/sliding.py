"""Where a window that slides along a dim reads the array under it."""

from __future__ import annotations

from dataclasses import dataclass

from ..llvm.elementwise import ElementEmitter, Inside
from ..llvm.index import Affine


@dataclass(frozen=True)
class Sliding:
    """A window of `size` elements along a dim of `extent` elements: window i begins at i * stride
    - low, its elements are `dilation` apart, and those of the array `base` apart."""

    extent: int
    size: int
    stride: int = 1
    low: int = 0
    dilation: int = 1
    base: int = 1

    @property
    def still(self) -> bool:
        """Whether window i is element i alone."""
        return (self.size, self.stride, self.low, self.base) == (1, 1, 0, 1)

    @property
    def covers(self) -> bool:
        """Whether the first window is the whole dim, element by element."""
        whole = (self.extent, 0, 1, 1)
        return (self.size, self.low, self.dilation, self.base) == whole

    def place(
        self, emitter: ElementEmitter, window: Affine, element: Affine, width: int
    ) -> tuple[Inside, Affine]:
        """Which lanes find an element of the array, and which one."""
        if not self.extent:
            return False, element
        position = window * self.stride + element * self.dilation + -self.low
        inside: Inside = None
        if self.base > 1:
            position, rest = _divided(emitter, position, self.base, width)
            inside = emitter.in_range(rest, 0, 1, width)
        reach = emitter.in_range(position, 0, self.extent, width)
        if inside is False or reach is False:
            return False, position
        return emitter.both(inside, reach), position.within(0, self.extent - 1)

    def last(self, emitter: ElementEmitter, at: Affine, width: int) -> Affine:
        """The last window that begins at or before an element; -1 and less where there is none."""
        return _divided(emitter, at + self.low, self.stride, width)[0]

    @property
    def before(self) -> range:
        """How far before it other windows are that may have the element, the first one first."""
        return range(-(-self.size // self.stride) - 1, -1, -1)


def _divided(
    emitter: ElementEmitter, at: Affine, divisor: int, width: int
) -> tuple[Affine, Affine]:
    """Quotient, rounded down, and remainder of an index that may be below 0."""
    shift = max(0, -(at.low // divisor))
    quotient, rest = emitter.indexer.divide(at + shift * divisor, divisor, width)
    return quotient + -shift, rest
