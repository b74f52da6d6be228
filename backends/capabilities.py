"""What targets can do, as data: the optimizer chooses by it before anything is emitted.

How fast units are is said by a machine's file (`optimizer/machine.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..hlo.graph import Op
from ..hlo.precision import TF32, may_use_tf32


@dataclass(frozen=True)
class MatrixUnit:
    """What multiplies matrices of elements `left` and `right`, whose products are summed as `sums`.

    grain: rows, columns and depth of the least that it multiplies at once. along: whether it reads
    operands along the sum alone. row_bytes: rows of an operand in memory are whole multiples of so
    many bytes. asynchronous: whether windows come, and others multiply, meanwhile.
    """

    left: str
    right: str
    sums: str
    grain: tuple[int, int, int]
    along: bool
    row_bytes: int
    asynchronous: bool = False


@dataclass(frozen=True)
class Capabilities:
    """What the kernels of a target are made of. copy_bytes: the most that a thread copies at
    once."""

    target: str
    units: tuple[MatrixUnit, ...]
    copy_bytes: int

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
