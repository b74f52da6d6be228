"""What targets can do, as data: the optimizer chooses by it before anything is emitted.

How fast units are is said by a machine's file (`optimizer/machine.py`).
"""

from __future__ import annotations

from dataclasses import dataclass


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
