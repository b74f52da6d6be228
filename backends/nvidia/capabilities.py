"""What kernels of an architecture are made of, from the tables of its instructions."""

from __future__ import annotations

import functools

from ..capabilities import Capabilities, MatrixUnit
from .atoms import BITS, MATRIX_ATOMS, WIDEST, MatrixAtom
from .target import Architecture

_ROW, _WORD = 16, 4  # bytes of rows that the copy engine takes, and those that threads copy


@functools.cache
def capabilities(architecture: Architecture) -> Capabilities:
    """Of what is emitted: mma.sync, and wgmma where there is the pipeline for it."""
    atoms = [
        atom
        for atom in MATRIX_ATOMS
        if architecture.version in atom.versions
        and (architecture.warpgroups if atom.asynchronous else True)
    ]
    units = tuple(dict.fromkeys(map(_unit, atoms)))
    return Capabilities(f"nvidia:{architecture.name}", units, WIDEST)


def _unit(atom: MatrixAtom) -> MatrixUnit:
    """wgmma has all widths, of which the least is meant; it reads 16 bits across the sum, as
    mma.sync does, which reads words so as well."""
    wide = (16,) if atom.asynchronous else (16, 32, 64)
    return MatrixUnit(
        atom.a, atom.b, atom.accumulator, (atom.m, 8, atom.k), BITS[atom.a] not in wide,
        _ROW if atom.asynchronous else _WORD, atom.asynchronous,
    )  # fmt: skip
