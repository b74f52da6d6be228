"""What targets can do, as data: the optimizer chooses by it before anything is emitted.

How fast units are is said by a machine's file (`optimizer/machine.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..hlo.graph import Op
from ..hlo.precision import TF32, may_use_tf32


@dataclass(frozen=True)
class MatrixUnit:
    """What multiplies matrices of elements `left` and `right`, whose products are summed as `sums`.

    bits: of an element of an operand, in registers and in memory.
    grain: rows, columns and depth of the least that it multiplies at once; widths: the numbers of
    columns that it does; threads: that do so together. along: whether it reads operands along the
    sum alone. row_bytes: rows of an operand in memory are whole multiples of so many bytes.
    asynchronous: whether windows come, and others multiply, meanwhile. chains: whether sums, cut to
    `bits`, are a left operand where they stand in registers.
    """

    left: str
    right: str
    sums: str
    bits: int
    grain: tuple[int, int, int]
    widths: tuple[int, ...]
    threads: int
    along: bool
    row_bytes: int
    asynchronous: bool = False
    chains: bool = False

    @property
    def depth(self) -> int:
        """Of one step along the sum."""
        return self.grain[2]


@dataclass(frozen=True)
class BoxCopies:
    """Copies of windows to shared memory and back that no thread waits for.

    rank: most dims of an array. box: most elements along a dim of what is copied at once; step:
    most from one of them to the next. swizzles: bytes of a row of what is copied, widest first; a
    swizzle repeats after `alignment` bytes. stride: bytes of which rows are multiples.
    """

    rank: int
    box: int
    step: int
    swizzles: tuple[int, ...]
    alignment: int
    stride: int


@dataclass(frozen=True)
class Formulas:
    """Which operations a thread computes element by element, by the type of the first operand;
    `typed`: of all types. Names are without a dialect."""

    typed: frozenset[str]
    floats: frozenset[str]
    booleans: frozenset[str]
    integers: frozenset[str]
    complex: frozenset[str]

    def has(self, op: Op) -> bool:
        """Whether there is code for the operation on such elements."""
        name = op.name.rsplit(".", 1)[-1]
        if name in self.typed:
            return True
        if not op.operands or op.operands[0].element.kind == "quantized":
            return False
        element = op.operands[0].element
        if element.is_complex:
            return name in self.complex
        if element.is_float:
            return name in self.floats
        return name in (self.booleans if element.is_bool else self.integers)


def vector_width(access_bytes: int, sizes: Sequence[int]) -> int:
    """Neighbours that a thread takes at once of several arrays, whose elements have these bytes:
    one access of the narrowest, at most two of the widest."""
    return max(1, min(access_bytes // min(sizes), 2 * access_bytes // max(sizes), 8))


@dataclass(frozen=True)
class RowParts:
    """How several blocks divide a row: threads of each, and how often each of them takes
    neighbours of its part at least."""

    threads: int
    turns: int

    def least(self, width: int) -> int:
        """Elements of a part of which threads take `width` at once."""
        return self.threads * self.turns * width


@dataclass(frozen=True)
class Capabilities:
    """What the kernels of a target are made of.

    copy_bytes: the most that a thread copies at once. shared_bytes: of a block. processors: that
    blocks run on. row_parts: of rows that are divided. clusters: whether neighbouring blocks share
    what they bring. boxes: copies that bring windows while threads do something else, if there are
    any.
    """

    target: str
    units: tuple[MatrixUnit, ...]
    copy_bytes: int
    shared_bytes: int
    processors: int
    formulas: Formulas
    row_parts: RowParts
    clusters: bool = False
    boxes: BoxCopies | None = None

    def vector_width(self, sizes: Sequence[int]) -> int:
        """As the function, by the widest copies."""
        return vector_width(self.copy_bytes, sizes)

    @property
    def asynchronous(self) -> bool:
        """Whether there are units that multiply while windows come."""
        return any(unit.asynchronous for unit in self.units)

    def units_of(self, op: Op) -> tuple[MatrixUnit, ...]:
        """What multiplies a contraction's elements; floats of less than 32 bits are summed in
        32."""
        left, right = (value.element.name for value in op.operands[:2])
        if may_use_tf32(op):
            left = right = TF32
        element = op.result.element
        sums = "f32" if element.is_float and element.bits < 32 else element.name
        wanted = left, right, sums
        return tuple(unit for unit in self.units if (unit.left, unit.right, unit.sums) == wanted)
